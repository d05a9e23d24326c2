// The page in Chromium, and the service, on a real server with the extension. psql looks at what they leave there.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { after, afterEach, before, test } from 'node:test';

import { open, start } from './open.js';

let playground;
before(async () => { playground = await open(); });
after(() => playground.close());

const sql = (text) => execFileSync('psql', ['-XAtq', '-d', process.env.DATABASE_URL, '-v', 'ON_ERROR_STOP=1', '-c', text], { encoding: 'utf8' }).trim();

// Opens the page with these choices. What goes wrong in it fails the test; an answer of 400 or 429 is no such thing,
// though Chromium puts it on the console.
const opened = [];
async function visit(choices = {}, { clock, ...options } = {}) {
    const page = await playground.browser.newPage({ viewport: { width: 1280, height: 900 }, ...options });
    if (clock) await page.clock.install();
    page.problems = [];
    page.hits = { a: 0, b: 0 };
    page.on('pageerror', (error) => page.problems.push(String(error)));
    page.on('console', (message) => {
        if (message.type() === 'error' && !/status of (400|429)/.test(message.text())) page.problems.push(message.text());
    });
    page.on('request', (request) => {
        const url = new URL(request.url());
        if (!['data:', new URL(playground.address).protocol].includes(url.protocol)) page.problems.push(request.url());
        if (url.protocol === 'http:' && url.origin !== playground.address) page.problems.push(request.url());
        if (url.pathname === '/hit') page.hits[url.searchParams.get('name')] += 1;
    });
    opened.push(page);
    await page.goto(`${playground.address}/?${new URLSearchParams(choices)}`);
    for (const id of ['a', 'b']) await page.waitForFunction((id) => document.querySelector(`#${id} .answer`).textContent, id);
    return page;
}
afterEach(async () => {
    const problems = opened.flatMap((page) => page.problems);
    for (const page of opened.splice(0)) await page.close();
    assert.deepEqual(problems, []);
});

const press = (page, name) => page.getByRole('button', { name, exact: true }).click();
const text = (page, selector) => page.locator(selector).innerText();
const numbers = async (page, id) => {
    const [allowed, denied] = await page.locator(`#${id} .numbers b`).allInnerTexts();
    return { allowed: Number(allowed), denied: Number(denied) };
};
const answered = (page, id, count) => page.waitForFunction(([id, count]) => {
    const [allowed, denied] = [...document.querySelectorAll(`#${id} .numbers b`)].map((b) => Number(b.textContent));
    return allowed + denied >= count;
}, [id, count]);
const key = async (page) => /\$2 = '(\w+)'/.exec(await text(page, '#a .sql'))[1];

// Presses Hit, and returns the answers to both panels.
async function hit(page, how = () => press(page, 'Hit')) {
    const before = await numbers(page, 'a');
    const answer = (id) => page.waitForResponse((response) => response.url().includes(`/hit?name=${id}`));
    const [a, b] = await Promise.all([answer('a'), answer('b'), how()]);
    for (const id of ['a', 'b']) await answered(page, id, before.allowed + before.denied + 1);
    return { a, b };
}

const BUCKET = { 'a-kind': 'token bucket', 'a-rate': 3, 'a-period': 3600, 'b-kind': 'sliding log', 'b-rate': 2, 'b-period': 3600 };

test('the page loads, and shows full limits', async () => {
    const page = await visit();
    assert.equal(await page.title(), 'ratelimit playground');
    assert.equal(await text(page, '#a .held b'), '5 of 5');
    assert.equal(await text(page, '#b .held b'), '5 of 5');
    assert.match(await text(page, '#a .sql'), /rl_check\(/);
    assert.deepEqual(page.hits, { a: 0, b: 0 });
});

test('a bucket of 3 lets three pass and denies the fourth, with the headers of the extension', async () => {
    const page = await visit(BUCKET);
    for (const left of [2, 1, 0]) {
        const { a } = await hit(page);
        assert.equal(a.status(), 200);
        const [, t] = new RegExp(`^"a";r=${left};t=(\\d+)$`).exec(a.headers().ratelimit);
        const more = left > 0 ? (3 - left) * 1200 : 1200; // until it is full, or has a token again
        assert.ok(t <= more && t > more - 100, t);
        assert.equal(a.headers()['retry-after'], undefined);
    }
    assert.deepEqual(await numbers(page, 'a'), { allowed: 3, denied: 0 });
    assert.equal(await text(page, '#a .answer'), 'POST /hit: 200 OK');

    const { a } = await hit(page);
    assert.equal(a.status(), 429);
    const { result } = await a.json();
    assert.equal(result.ok, false);
    assert.ok(result.retry_after > 1100 && result.retry_after < 1200, String(result.retry_after));
    const wait = Math.ceil(result.retry_after);
    const { ratelimit, 'ratelimit-policy': policy, 'retry-after': retry } = a.headers();
    assert.deepEqual([ratelimit, policy, retry], [`"a";r=0;t=${wait}`, '"a";q=3;w=3600', String(wait)]);
    assert.deepEqual(await numbers(page, 'a'), { allowed: 3, denied: 1 });
    assert.deepEqual(await numbers(page, 'b'), { allowed: 2, denied: 2 });
    assert.equal(await text(page, '#a .answer'), 'POST /hit: 429 Too Many Requests');
    assert.match(await text(page, '#a .headers'), new RegExp(`^retry-after: ${wait}$`, 'm'));
    assert.deepEqual(JSON.parse(await text(page, '#a .result')), result);

    // It is PostgreSQL that holds it.
    const config = '{"kind": "token bucket", "rate": 3, "period": "3600 seconds"}';
    assert.equal(sql(`SELECT ok, floor(remaining) FROM rl_check('a', '${await key(page)}', config => '${config}')`), 'f|0');
});

test('the time line shows circles above and crosses below, and the level', async () => {
    const page = await visit(BUCKET);
    for (let n = 0; n < 4; n++) await hit(page);
    // At one moment, since they move.
    const marks = () => page.locator('#a .dots use').evaluateAll((all) => all.map((mark) => {
        const { x, y, width, height } = mark.getBoundingClientRect();
        const { fill, stroke } = getComputedStyle(mark);
        return { outcome: mark.getAttribute('href'), x: x + width / 2, y: y + height / 2, style: [fill, stroke] };
    }));
    const all = await marks();
    const [allowed, denied] = ['#allowed', '#denied'].map((outcome) => all.filter((mark) => mark.outcome === outcome));
    assert.deepEqual([allowed.length, denied.length], [3, 1]);
    assert.ok(allowed.every((mark) => mark.y < denied[0].y && mark.x <= denied[0].x));
    assert.deepEqual([allowed[0].style, denied[0].style], [['rgb(26, 127, 55)', 'none'], ['none', 'rgb(207, 34, 46)']]);

    // From full to empty, in steps down.
    const level = await page.locator('#a polyline').evaluate((line) => [...line.points].map(({ x, y }) => ({ x, y })));
    assert.ok(level.every(({ x, y }, n) => n === 0 || (x >= level[n - 1].x && y >= level[n - 1].y - 0.5)), JSON.stringify(level));
    assert.ok(level[0].y === 42 && level.at(-1).y > 130, JSON.stringify(level));
    assert.equal(await text(page, '#a .held b'), '0 of 3');

    // It moves to the left.
    await page.waitForFunction((x) => document.querySelector('#a use[href="#denied"]').getBoundingClientRect().x < x - 20, denied[0].x);
});

test('a fixed window is full again at its turn, at once', async () => {
    const page = await visit({ 'b-rate': 3, 'b-period': 3 });
    await hit(page);
    // Answers that were under way at the turn.
    await page.route(/\/check\?name=b/, async (route) => {
        await new Promise((resolve) => { setTimeout(resolve, 1000); });
        await route.continue();
    });
    await page.waitForFunction(() => {
        const level = [...document.querySelector('#b polyline').points];
        const rises = level.flatMap(({ x, y }, n) => (n > 0 && y < level[n - 1].y ? [{ x, from: level[n - 1].x, y }] : []));
        if (!rises.length) return false;
        const turns = [...document.querySelector('#b .moving .turns').getAttribute('d').matchAll(/M([\d.-]+)/g)].map(([, x]) => Number(x));
        const ofATurn = ({ x, from, y }) => x === from && y === 42 && turns.some((turn) => Math.abs(turn - x) < 0.2);
        if (!rises.every(ofATurn)) throw new Error(JSON.stringify({ rises, turns }));
        return true;
    });
});

test('a stream sends both panels the same requests, and stops', async () => {
    for (const arrivals of ['regular', 'random']) {
        const page = await visit({ 'per-second': 20, arrivals, 'a-period': 3600, 'b-period': 3600 });
        await press(page, 'Stream');
        await answered(page, 'a', 15);
        assert.equal(await page.getByRole('button', { name: 'Stream' }).getAttribute('aria-pressed'), 'true');
        await press(page, 'Stream');
        await page.waitForTimeout(300); // what is under way
        const sent = { ...page.hits };
        assert.equal(sent.a, sent.b);
        for (const id of ['a', 'b']) await answered(page, id, sent.a);
        await page.waitForTimeout(300);
        assert.deepEqual(page.hits, sent);
        for (const id of ['a', 'b']) {
            const { allowed, denied } = await numbers(page, id);
            assert.equal(allowed + denied, sent.a);
            assert.ok(allowed >= 5 && denied > 0);
        }
        // Both have their marks at the same places, whichever was allowed.
        const places = (id) => page.locator(`#${id} .dots use`).evaluateAll((all) => all.map((mark) => mark.getAttribute('x')).sort());
        assert.deepEqual(await places('a'), await places('b'));
    }
});

test('the slider sets the rate of the stream, and arrivals are regular or random', async () => {
    const page = await visit({ 'per-second': 0.5 }, { clock: true });
    await page.clock.pauseAt(Date.now() + 60_000); // from here time passes in runFor only
    await page.evaluate(() => { Math.random = () => 0.5; }); // a wait of ln 2 times the mean
    await press(page, 'Stream');
    let sent = 0;
    for (const [rate, arrivals, hits] of [['0.5', 'regular', 1], ['20', 'regular', 40], ['20', 'random', 57], ['1', 'random', 2]]) {
        await page.getByLabel('Requests a second').fill(rate);
        await page.locator('[name=arrivals]').selectOption(arrivals);
        assert.equal(await text(page, '#per-second-shown'), rate);
        await page.clock.runFor(2000);
        await answered(page, 'a', sent + hits);
        assert.equal(page.hits.a - sent, hits, `${rate} a second, ${arrivals}`);
        sent = page.hits.a;
    }
});

test('another kind has another SQL, other fields and other windows', async () => {
    const page = await visit({ 'a-capacity': 8, 'a-period': 4 });
    const kinds = { 'fixed window': [true, true], 'sliding window': [false, true], 'sliding log': [false, false], 'token bucket': [true, false] };
    for (const [kind, [capacity, turns]] of Object.entries(kinds)) {
        await page.locator('[name=a-kind]').selectOption(kind);
        await page.waitForFunction((kind) => document.querySelector('#a .sql').textContent.includes(`"kind": "${kind}"`), kind);
        assert.match(await text(page, '#a .sql'), /rl_check/);
        await hit(page);
        const shown = await text(page, '#a .sql');
        const config = `{"kind": "${kind}", "rate": 5, "period": "4 seconds", ${capacity ? '"capacity": 8, ' : ''}"store": "table"}`;
        assert.match(shown, /FROM rl_limit\(\$1, \$2, config => \$3\) AS r/);
        assert.ok(shown.replace(/\s+/g, ' ').includes(`-- $3 = '${config}'`), shown);
        assert.equal(await page.locator('[name=a-capacity]').isVisible(), capacity);
        assert.equal((await page.locator('#a .about').innerText()).length > 30, true);
        // The window's end in the answer is drawn.
        await page.waitForFunction((turns) => Boolean(document.querySelector('#a .moving .turns').getAttribute('d')) === turns, turns);
        assert.match(await text(page, '#b .sql'), /"kind": "fixed window"/);
    }
});

test('what the extension rejects is shown in its words, in that panel', async () => {
    const page = await visit();
    const alert = page.locator('#a [role=alert]');
    assert.equal(await alert.isVisible(), false);
    for (const [field, value, message] of [
        ['rate', '-3', '"rate" is -3'], ['rate', '', '"rate" is ""'], ['period', '0', '"period" is "0 seconds"'], ['capacity', '-1', '"capacity" is -1'],
    ]) {
        const input = page.locator(`[name=a-${field}]`);
        const valid = await input.inputValue();
        await input.fill(value);
        await press(page, 'Hit');
        await alert.filter({ hasText: `invalid rate limit config: ${message}` }).waitFor();
        assert.match(await alert.innerText(), /^Allowed: a number/m);
        assert.match(await text(page, '#a .answer'), /: 400 Bad Request$/);
        assert.equal(JSON.parse(await text(page, '#a .result')).sqlstate, '22023');
        assert.equal(await page.locator('#b [role=alert]').isVisible(), false);
        await input.fill(valid);
        await input.blur();
        await alert.waitFor({ state: 'hidden' });
    }
    assert.deepEqual(await numbers(page, 'a'), { allowed: 0, denied: 0 });
    await page.locator('[name=a-kind]').selectOption('sliding log');
    await page.locator('[name=a-store]').selectOption('memory');
    await alert.filter({ hasText: 'Allowed: "table" for a sliding log' }).waitFor();
});

test('Reset makes both limits full again', async () => {
    const page = await visit(BUCKET);
    for (let n = 0; n < 4; n++) await hit(page);
    assert.equal(await text(page, '#a .held b'), '0 of 3');
    await press(page, 'Reset');
    await page.waitForFunction(() => document.querySelector('#a .held b').textContent === '3 of 3');
    await page.waitForFunction(() => document.querySelector('#b .held b').textContent === '2 of 2');
    assert.match(await text(page, '#a .sql'), /rl_reset\(\$1, \$2\)/);
    for (const id of ['a', 'b']) assert.deepEqual(await numbers(page, id), { allowed: 0, denied: 0 });
    assert.equal(await page.locator('.dots use').count(), 0);
    const { a, b } = await hit(page);
    assert.deepEqual([a.status(), b.status()], [200, 200]);
});

test('a limit in memory is another than in the table', async () => {
    const page = await visit({ ...BUCKET, 'a-store': 'memory' });
    await hit(page);
    const whose = await key(page);
    const both = ['memory', 'table'].map((store) => `SELECT floor(remaining) FROM rl_check('a', '${whose}',
        config => '{"kind": "token bucket", "rate": 3, "period": "3600 seconds", "store": "${store}"}')`).join(' UNION ALL ');
    assert.equal(sql(both), '2\n3');
    await press(page, 'Reset');
    await page.waitForFunction(() => document.querySelector('#a .held b').textContent === '3 of 3');
    assert.equal(sql(both), '3\n3');
});

test('a link restores the choices, with a key of its own', async () => {
    const page = await visit(BUCKET);
    await page.locator('[name=b-kind]').selectOption('sliding window');
    await page.locator('[name=b-rate]').fill('0.5');
    await page.locator('[name=b-store]').selectOption('memory');
    await page.locator('[name=a-capacity]').fill('1');
    await page.locator('[name=per-second]').fill('7.5');
    await page.locator('[name=arrivals]').selectOption('random');
    await hit(page);
    const choices = (page) => page.locator('form [name]').evaluateAll((all) => all.map(({ name, value }) => [name, value]));
    const [url, chosen] = [page.url(), await choices(page)];

    const other = await visit(new URL(url).searchParams);
    assert.deepEqual(await choices(other), chosen);
    assert.deepEqual(Object.fromEntries(chosen), {
        'per-second': '7.5', arrivals: 'random',
        'a-kind': 'token bucket', 'a-store': 'table', 'a-rate': '3', 'a-period': '3600', 'a-capacity': '1',
        'b-kind': 'sliding window', 'b-store': 'memory', 'b-rate': '0.5', 'b-period': '3600', 'b-capacity': '',
    });
    assert.equal(await text(other, '#per-second-shown'), '7.5');
    assert.notEqual(await key(other), await key(page));
    assert.equal(await text(page, '#a .held b'), '0 of 1');
    assert.equal(await text(other, '#a .held b'), '1 of 1');

    const strange = await visit({ 'a-kind': 'leaky', length: 3, 'a-rate': '<b>', 'per-second': 'x' });
    assert.equal(await strange.locator('[name=a-kind]').inputValue(), 'token bucket');
});

test('Pause holds the time line and the stream', async () => {
    const page = await visit({ 'per-second': 20 });
    const shift = () => page.locator('#a .moving').getAttribute('transform');
    await press(page, 'Stream');
    await answered(page, 'a', 3);
    await press(page, 'Pause');
    await page.waitForTimeout(300);
    const [sent, place] = [page.hits.a, await shift()];
    await page.waitForTimeout(300);
    assert.deepEqual([page.hits.a, await shift()], [sent, place]);
    await press(page, 'Pause');
    await answered(page, 'a', sent + 3);
    assert.notEqual(await shift(), place);
    await press(page, 'Pause');
    await press(page, 'Hit'); // goes on
    assert.equal(await page.getByRole('button', { name: 'Pause' }).getAttribute('aria-pressed'), 'false');
});

test('all of it can be done with the keyboard', async () => {
    const page = await visit(BUCKET);
    const focused = [];
    for (let n = 0; n < 40; n++) {
        await page.keyboard.press('Tab');
        focused.push(await page.evaluate(() => document.activeElement.name || document.activeElement.id || document.activeElement.className));
    }
    for (const control of ['hit', 'stream', 'per-second', 'arrivals', 'pause', 'reset', 'a-kind', 'a-rate', 'b-kind', 'b-store', 'sql', 'result']) {
        assert.ok(focused.includes(control), `${control} is not among ${focused}`);
    }
    await page.locator('#hit').focus();
    await hit(page, () => page.keyboard.press('Space'));
    await page.locator('[name=b-rate]').fill('4');
    const { b } = await hit(page, () => page.keyboard.press('Enter'));
    assert.equal((await b.json()).result.capacity, 4);
});

for (const colorScheme of ['light', 'dark']) {
    test(`the page can be read, ${colorScheme}`, async () => {
        const page = await visit({ ...BUCKET, 'b-rate': '-1' }, { colorScheme });
        for (let n = 0; n < 4; n++) await page.locator('#hit').click();
        await answered(page, 'a', 4);
        // The contrast that WCAG asks of text.
        const [ground, worst] = await page.evaluate(() => {
            const rgb = (color) => color.match(/[\d.]+/g).map(Number);
            const luminance = (color) => {
                const [r, g, b] = rgb(color).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const ground = (element) => {
                const color = getComputedStyle(element).backgroundColor;
                return rgb(color)[3] === 0 && element.parentElement ? ground(element.parentElement) : color;
            };
            const contrast = (element) => {
                const { color, fill } = getComputedStyle(element);
                const [a, b] = [luminance(element.tagName === 'text' ? fill : color), luminance(ground(element))];
                return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            };
            const texts = [...document.querySelectorAll('body *')].filter((element) => element.checkVisibility() &&
                [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()));
            const [worst] = texts.map((element) => [contrast(element), element.outerHTML]).sort(([a], [b]) => a - b);
            return [luminance(ground(document.body)), worst];
        });
        assert.ok(worst[0] >= 4.5, String(worst));
        assert.ok(colorScheme === 'dark' ? ground < 0.05 : ground > 0.9, `luminance ${ground}`);
    });
}

test('800 pixels are wide enough for both panels', async () => {
    const page = await visit({}, { viewport: { width: 800, height: 900 } });
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 800);
    const [a, b] = [await page.locator('#a').boundingBox(), await page.locator('#b').boundingBox()];
    assert.ok(a.y === b.y && a.x + a.width < b.x && b.x + b.width <= 800);
});

// The service alone

const call = (path, query, options = { method: 'POST' }) => fetch(`${playground.address}/${path}?${new URLSearchParams(query)}`, options);
const LOG = { name: `x ${Date.now()}`, kind: 'sliding log', rate: 1, period: 3600 };

test('on a phone the fields are seen that the keyboard reaches, and every choice in full', async () => {
    for (const width of [320, 390, 641, 800, 961]) {
        const page = await visit({}, { viewport: { width, height: 640 } });
        const cut = await page.locator('select').evaluateAll((selects) => selects.filter((select) => {
            const { width } = select.getBoundingClientRect();
            select.style.width = 'max-content';
            const needed = select.getBoundingClientRect().width;
            select.style.width = '';
            return needed > width;
        }).map(({ name }) => name));
        assert.deepEqual(cut, [], `${width} px`);

        // Backwards from the end of the page: each comes in from above, where the bar is.
        await page.locator('#b .result').focus();
        for (let n = 0; n < 14; n++) {
            await page.keyboard.press('Shift+Tab');
            const hidden = await page.evaluate(() => {
                const bar = document.querySelector('.requests');
                const field = document.activeElement;
                if (bar.contains(field) || field === document.body) return false;
                return field.getBoundingClientRect().top < bar.getBoundingClientRect().bottom && `${field.name || field.className}`;
            });
            assert.equal(hidden, false, `${width} px`);
        }
    }
});

test('the page has a main part, and an error tells which field it is of', async () => {
    const page = await visit({ 'a-rate': 0 });
    await page.getByRole('main').getByRole('button', { name: 'Hit', exact: true }).waitFor();
    const invalid = () => page.locator('[aria-invalid=true]').evaluateAll((all) => all.map(({ name }) => name));
    assert.deepEqual(await invalid(), ['a-rate']);
    const told = await page.locator('[name=a-rate]').evaluate((field) => document.getElementById(field.getAttribute('aria-errormessage')).textContent);
    assert.match(told, /"rate" is 0/);
    await page.locator('[name=a-rate]').fill('5');
    await page.locator('[name=a-period]').fill('-1');
    await page.keyboard.press('Tab');
    await page.waitForFunction(() => document.querySelector('[name=a-period]').getAttribute('aria-invalid') === 'true');
    assert.deepEqual(await invalid(), ['a-period']);
    await page.locator('[name=a-period]').fill('10');
    await page.keyboard.press('Tab');
    await page.waitForFunction(() => !document.querySelector('[aria-invalid=true]'));
    assert.equal(await page.locator('[name=a-rate]').getAttribute('aria-errormessage'), null);
});

test('whatever the parameters hold, they are data', async () => {
    for (const key of ["'; DROP TABLE x; --", '$1', '', '✓ é', 'a b&c']) {
        const first = await call('hit', { ...LOG, key });
        assert.equal(first.status, 200);
        assert.deepEqual((await first.json()).parameters.slice(0, 2), [LOG.name, key]);
        assert.equal((await call('hit', { ...LOG, key })).status, 429);
    }
    for (const [query, sqlstate] of [[{}, '22023'], [{ ...LOG, kind: 'x' }, '22023'], [{ ...LOG, key: '\0' }, '22021'], [{ ...LOG, rate: 'NaN' }, '22023']]) {
        const answer = await call('hit', query);
        assert.equal(answer.status, 400);
        const { error } = await answer.json();
        assert.deepEqual([error.sqlstate, typeof error.message], [sqlstate, 'string']);
    }
    assert.equal((await call('hit', LOG, { method: 'GET' })).status, 405);
});

test('a call that waits too long is answered with 503, and takes nothing', async () => {
    const config = '{"kind": "sliding log", "rate": 1, "period": "3600 seconds"}';
    const other = spawn('psql', ['-XAtq', '-d', process.env.DATABASE_URL], { stdio: ['pipe', 'pipe', 'inherit'] });
    try {
        other.stdin.write(`BEGIN; SELECT ok FROM rl_limit('${LOG.name}', 'busy', config => '${config}');\n`);
        assert.equal(String((await once(other.stdout, 'data'))[0]).trim(), 't');
        const answer = await call('hit', { ...LOG, key: 'busy' });
        assert.equal(answer.status, 503);
        assert.deepEqual(await answer.json(), { error: { message: 'the database does not answer' } });
    } finally {
        other.stdin.end('ROLLBACK;\n');
        await once(other, 'exit');
    }
    assert.equal((await call('hit', { ...LOG, key: 'busy' })).status, 200);
});

test('without a database nobody passes', async () => {
    const service = await start({ DATABASE_URL: 'host=/nowhere user=playground' });
    const answer = fetch(`${service.address}/hit?${new URLSearchParams(LOG)}`, { method: 'POST' });
    const { status, body } = await answer.then(async (it) => ({ status: it.status, body: await it.json() })).finally(service.stop);
    assert.deepEqual([status, body], [503, { error: { message: 'the database does not answer' } }]);
    assert.match(service.log(), /^error: the database does not answer: .*No such file/);
    assert.equal(await service.stop(), 0, 'SIGTERM is an ordinary end');
});

test('a port that is taken, or none, is an error that says so', async () => {
    const { port } = new URL(playground.address);
    await assert.rejects(start({ PORT: port }), { message: `error: port ${port} of 127.0.0.1 is taken; choose another by PORT\n` });
    await assert.rejects(start({ PORT: '99999' }), { message: 'error: PORT is "99999"; allowed: a whole number from 0 to 65535\n' });
    await assert.rejects(start({ DATABASE_URL: 'secret=1' }), ({ message }) => message.startsWith("error: DATABASE_URL can't be read: "));
});

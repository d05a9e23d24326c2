// The page that needs no database server, in Chromium, from a server of static files below a path.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import path from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { gzipSync } from 'node:zlib';

import { chromium } from 'playwright-core';

// Made by playground/try/build.
const FOLDER = path.join(import.meta.dirname, '../try');
const BELOW = '/any/path/try/';
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.wasm': 'application/wasm' };

let browser, address;
const server = createServer(async ({ url }, response) => {
    const { pathname } = new URL(url, 'http://localhost');
    const name = pathname.endsWith('/') ? `${pathname}index.html` : pathname;
    const file = name.startsWith(BELOW) && (await readFile(path.join(FOLDER, name.slice(BELOW.length))).catch(() => null));
    response.writeHead(file ? 200 : 404, { 'content-type': TYPES[path.extname(name)] ?? 'application/octet-stream' });
    response.end(file || '');
});
before(async () => {
    await once(server.listen(0, '127.0.0.1'), 'listening');
    address = `http://127.0.0.1:${server.address().port}`;
    browser = await chromium.launch({ executablePath: process.env.CHROMIUM });
});
after(async () => {
    await browser.close();
    server.close();
});

// Opens the page and waits until it is ready. What goes wrong in it, or leaves for another server, fails the test.
const opened = [];
async function visit({ ready = true, without, ...options } = {}) {
    const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, ...options });
    page.problems = [];
    page.loaded = [];
    if (without) await page.route(without, (route) => route.fulfill({ status: 404 }));
    page.on('pageerror', (error) => page.problems.push(String(error)));
    page.on('console', (message) => {
        if (message.type() === 'error' && !without) page.problems.push(message.text());
    });
    page.on('request', (request) => {
        const url = new URL(request.url());
        if (!['data:', 'blob:'].includes(url.protocol) && url.origin !== address) page.problems.push(request.url());
        if (url.origin === address) page.loaded.push(url.pathname);
    });
    opened.push(page);
    await page.goto(`${address}${BELOW}`);
    if (ready) await page.waitForFunction(() => !document.querySelector('main').inert, undefined, { timeout: 120_000 });
    return page;
}
afterEach(async () => {
    const problems = opened.flatMap((page) => page.problems);
    for (const page of opened.splice(0)) await page.close();
    assert.deepEqual(problems, []);
});

const press = (page, name) => page.getByRole('button', { name, exact: true }).click();
const text = (page, selector) => page.locator(selector).innerText();
const cells = (page, selector) => page.locator(`${selector} tr`).evaluateAll((rows) =>
    rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
/** Takes, and waits for its line among the calls. */
async function take(page) {
    const before = await page.locator('#calls tr').count();
    await press(page, 'Take');
    await page.waitForFunction((count) => document.querySelectorAll('#calls tr').length > count, before);
    return (await cells(page, '#calls'))[1].slice(1);
}
async function run(page, sql) {
    await page.locator('textarea').fill(sql);
    await page.locator('#results').evaluate((results) => results.replaceChildren());
    await press(page, 'Run');
    await page.waitForFunction(() => document.querySelector('#results').firstChild);
}
async function define(page, { kind = 'rl_fixed_window', rate = '2', period = '3600' }) {
    await page.locator('[name=kind]').selectOption(kind);
    await page.locator('[name=rate]').fill(rate);
    await page.locator('[name=period]').fill(period);
    await page.locator('#defined').evaluate((output) => output.replaceChildren());
    await press(page, 'Define');
    await page.waitForFunction(() => document.querySelector('#defined').firstChild);
}

test('a limit is defined, taken from until it denies, and its rows are shown', async () => {
    const page = await visit();
    assert.match(await text(page, '#status'), /^PostgreSQL \d+(\.\d+)? is ready, after [\d.]+ s\.$/);
    await define(page, {});
    assert.equal(await text(page, '#define-sql'), "SELECT rl_define('api', rl_fixed_window(rate => 2, period => '3600 seconds'));");
    assert.equal(await text(page, '#take-sql'), "SELECT * FROM rl_limit('api', 'user-1', count => 1);");
    assert.deepEqual(await take(page), ['true', '1', '']);
    assert.equal(await text(page, '#answer'), 'allowed');
    assert.deepEqual(await take(page), ['true', '0', '']);
    const [ok, left, wait] = await take(page);
    assert.deepEqual([ok, left], ['false', '0']);
    assert.ok(Number(wait) > 0 && Number(wait) <= 3600, wait);
    assert.match(await text(page, '#answer'), /^denied, try again in [\d.]+ s$/);
    assert.equal(await text(page, '#left'), '0 of 2 left');
    const [columns, ...rows] = await cells(page, '#rows');
    assert.deepEqual(columns, ['name', 'key', 'value', 'ts']);
    assert.deepEqual(rows.map((row) => row.slice(0, 2)), [['api', 'user-1']]);

    await page.locator('[name=key]').fill("o'hara");
    assert.deepEqual(await take(page), ['true', '1', ''], 'another key has its own');
    await page.waitForFunction(() => document.querySelectorAll('#rows tr').length === 3);
});

test('what flows in is seen without a call', async () => {
    const page = await visit();
    await define(page, { kind: 'rl_token_bucket', rate: '20', period: '10' });
    await page.locator('[name=count]').fill('20');
    await take(page);
    await page.waitForFunction(() => parseFloat(document.querySelector('#left').textContent) >= 2);
    assert.ok((await page.locator('meter').evaluate(({ value, max }) => value >= 2 && max === 20)));
});

test('SQL runs by hand, in its order, and a rollback gives back', async () => {
    const page = await visit();
    await press(page, 'Run');
    await page.waitForFunction(() => document.querySelectorAll('#results table').length === 2);
    assert.deepEqual(await cells(page, '#results'), [['ok', 'remaining'], ['true', '4'], ['ok', 'remaining'], ['true', '5']]);
    await run(page, 'SET application_name = x');
    assert.equal(await text(page, '#results'), 'done');
    await run(page, "SELECT rl_limit('nothing')");
    assert.match(await text(page, '#results .error'), /^ERROR: .*"nothing".*\n+Hint: /);
    await page.locator('textarea').fill("SELECT 'keys' AS pressed");
    await page.locator('textarea').press('Control+Enter');
    await page.waitForFunction(() => document.querySelector('#results td')?.textContent === 'keys');
});

test('what is wrong with a definition or a call is shown where it was made', async () => {
    const page = await visit();
    await define(page, { rate: '0' });
    assert.match(await text(page, '#defined .error'), /"rate" is 0\s+Detail: Allowed: /);
    await page.locator('[name=count]').fill('-1');
    await press(page, 'Take');
    await page.waitForSelector('#answer .error');
    assert.match(await text(page, '#answer .error'), /ERROR: /);
    await page.locator('[name=count]').fill('1');
    assert.equal((await take(page))[0], 'true');
});

test('it loads from its own folder alone, less than 7 MB gzipped', async () => {
    const page = await visit();
    const bytes = {};
    for (const name of new Set(page.loaded)) {
        const file = await readFile(path.join(FOLDER, name.slice(BELOW.length) || 'index.html'));
        bytes[name] = [file.length, gzipSync(file).length];
    }
    assert.ok(Object.keys(bytes).some((name) => name.endsWith('/pglite/pglite.wasm')));
    const [plain, gzipped] = [0, 1].map((n) => Object.values(bytes).reduce((sum, of) => sum + of[n], 0) / 1e6);
    console.log(`# ${Object.keys(bytes).length} files, ${plain.toFixed(1)} MB, gzipped ${gzipped.toFixed(1)} MB`);
    assert.ok(gzipped < 7, `${gzipped} MB`);
});

test('IndexedDB keeps limits when the page is loaded again', async () => {
    const page = await visit();
    const take = () => page.evaluate(async () => {
        const { PGlite } = await import('./pglite/index.js');
        const db = await PGlite.create('idb://kept');
        await db.exec(await (await fetch('ratelimit.sql')).text());
        const config = "ratelimit.rl_fixed_window(rate => 2, period => '1 day')";
        const { rows } = await db.query(`SELECT remaining FROM ratelimit.rl_limit('api', config => ${config})`);
        await db.close();
        return rows[0].remaining;
    });
    assert.equal(await take(), 1);
    await page.reload();
    assert.equal(await take(), 0);
});

test('without PGlite the page says why', async () => {
    const page = await visit({ ready: false, without: '**/pglite/index.js' });
    await page.waitForSelector('#status.failed');
    assert.match(await text(page, '#status'), /without PGlite/);
    await page.close();
});

test('on a phone nothing is cut off, by light or dark', async () => {
    for (const colorScheme of ['light', 'dark']) {
        const page = await visit({ viewport: { width: 360, height: 640 }, colorScheme });
        await take(page);
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360);
    }
});

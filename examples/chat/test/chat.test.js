// The chat in Chromium, as its users see it, on a real server with the extension.
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';

import { open, serve } from './open.js';

/** The chat, and another process of it, whose model is too slow to end an answer. */
let chat, slow;
before(async () => { [chat, slow] = await Promise.all([open(), serve({ PACE: '20000' })]); });
after(() => Promise.all([chat.close(), slow.end()]));

// What goes wrong in a page fails its test. A response of 4xx is no such thing, nor one that is lost on purpose, though
// Chromium puts them on the console.
const problems = [];
afterEach(() => {
    assert.deepEqual(problems.splice(0), []);
    assert.equal(chat.errors() + slow.errors(), '');
});
/** The page of a process, in another person's browser, or in that of another page. */
async function visit({ address } = chat, beside) {
    const page = await (beside ? beside.context().newPage() : chat.visit({ baseURL: address }));
    if (beside) await page.goto(address);
    page.setDefaultTimeout(10_000);
    page.on('pageerror', (error) => problems.push(String(error)));
    page.on('console', (message) => {
        const meant = /status of 4\d\d|net::ERR_/.test(message.text());
        if (message.type() === 'error' && !meant) problems.push(message.text());
    });
    await page.evaluate(() => { window.reloaded = false; }); // gone after a reload
    return page;
}
const button = (page, name) => page.getByRole('button', { name });
const lines = (page, text) => page.getByRole('listitem').filter({ hasText: text });
const line = (page, text) => lines(page, text).first();
const alert = (page, text) => page.getByRole('alert').filter({ hasText: text });
async function signUp(page, name) {
    await page.getByLabel('Your name').fill(name);
    await button(page, 'Sign up').click();
    await page.getByLabel('Text').waitFor();
}
async function say(page, text, name = 'Send') {
    await page.getByLabel('Text').fill(text);
    await button(page, name).click();
}
const userId = async (name) => (await chat.sql`SELECT id FROM users WHERE name = ${name}`)[0].id;
/** A button with its countdown, which then ends: it is enabled again, in the page as it was. */
async function countsDown(page, label, most) {
    await button(page, new RegExp(`^${label} in \\d+ s$`)).waitFor();
    const seconds = [];
    for (;;) {
        const [text, disabled] = await button(page, label).evaluate((it) => [it.textContent, it.disabled]);
        if (text === label && !disabled) break;
        const [, shown] = /in (\d+) s$/.exec(text) ?? [, '0'];
        assert.ok(disabled, text);
        if (seconds.at(-1) !== Number(shown)) seconds.push(Number(shown));
        await page.waitForTimeout(50);
    }
    assert.ok(seconds.every((shown) => shown <= most), String(seconds));
    assert.deepEqual(seconds, [...seconds].sort((a, b) => b - a));
    assert.equal(await page.evaluate(() => window.reloaded), false);
}

test('three messages are sent, then the button counts down, and another is sent', async () => {
    const [ada, bob] = await Promise.all([visit(), visit()]);
    await signUp(ada, 'Ada');
    await signUp(bob, 'Bob');
    for (const text of ['first', 'second', 'third']) await say(ada, text);
    await line(ada, 'Ada third').waitFor();
    // The server denies, whatever a page does.
    const denied = await ada.evaluate(async () => {
        const response = await fetch('/my/messages', { method: 'POST', body: '{"body": "fourth"}' });
        return [response.status, Number(response.headers.get('Retry-After')), (await response.json()).error];
    });
    assert.deepEqual([denied[0], denied[2]], [429, 'Too many calls of sendMessage']);
    assert.ok(denied[1] >= 1 && denied[1] <= 6, String(denied[1]));
    await countsDown(ada, 'Send', 6);
    await say(ada, 'fourth');

    // Each user has a limit of their own.
    await line(bob, 'Ada fourth').waitFor();
    assert.equal(await lines(bob, 'Ada').count(), 4);
    await say(bob, 'hello');
    await line(ada, 'Bob hello').waitFor();
});

test('a message that the database refuses takes no token', async () => {
    const page = await visit();
    await signUp(page, 'Carl');
    await say(page, 'long '.repeat(401));
    await alert(page, 'too long').waitFor();
    assert.equal((await chat.sql`SELECT FROM rateLimits WHERE key = ${await userId('Carl')}`).length, 0);
    await say(page, 'short');
    await line(page, 'Carl short').waitFor();
});

/** Asks as the person of a page, past its buttons, and reads what comes. */
const post = (page, id, question = 'A question?') =>
    page.evaluate(
        async (body) => {
            const response = await fetch('/my/questions', { method: 'POST', body: JSON.stringify(body) });
            return { status: response.status, wait: response.headers.get('Retry-After'), text: await response.text() };
        },
        { id, question },
    );
/** The text of a streamed answer. */
const textOf = ({ status, text }) => {
    assert.equal(status, 200, text);
    const parts = [...text.matchAll(/^data: (\{.*)$/gm)].map(([, part]) => JSON.parse(part));
    assert.equal(parts.filter(({ type }) => type === 'error').length, 0, text);
    return parts.map(({ delta = '' }) => delta).join('');
};
const WORDS = 60;
/** What an answer costs by the model's report, and without one, of what has come. */
const reported = (question) => Math.ceil(question.length / 4) + WORDS;
const streamed = (question, answer) => Math.ceil(question.length / 3) + Math.ceil(Buffer.byteLength(answer) / 3);
/** The answers to questions that begin so, the first one first. */
const answers = async (question) => {
    const found = await chat.sql`SELECT body FROM messages WHERE body LIKE ${`“${question}%`} ORDER BY id`;
    return found.map(({ body }) => body);
};
/** The tokens that are gone of a budget, but for the five that came in each second since then. */
const gone = async (name) => {
    const [row] = await chat.sql`SELECT value FROM rateLimits WHERE name = 'llmTokens' AND key = ${await userId(name)}`;
    return 300 - row.value;
};
/** The holds of a user, by their ids. */
const holds = async (name) => {
    const found = await chat.sql`SELECT DISTINCT id FROM rl_holds WHERE key = ${await userId(name)}`;
    return found.map(({ id }) => id);
};
const settled = async (name) => {
    while ((await holds(name)).length) await new Promise((resolve) => setTimeout(resolve, 20));
};
/** Whether exactly this was used of the budget, and no hold is left. */
async function costs(name, used, began) {
    await settled(name);
    const refilled = used - (await gone(name));
    assert.ok(refilled > -0.001 && refilled < (Date.now() - began) / 200, `${used - refilled} of ${used}`);
}

test('an answer streams, and costs what the model reports; without enough tokens it is 429 and no stream', async () => {
    const page = await visit();
    await signUp(page, 'Dora');
    const began = Date.now();
    let used = 0;
    for (const question of ['Question 1?', 'Another question?']) {
        const answer = page.waitForResponse('**/questions');
        await say(page, question, 'Ask the model');
        await line(page, question).waitFor();
        const early = await line(page, question).innerText();
        await (await answer).finished();
        await button(page, /^Ask the model/).waitFor();
        assert.ok(early.length < (await line(page, question).innerText()).length, 'it is shown while it is written');
        assert.equal((await answers(question))[0].split(' ').length, WORDS + question.split(' ').length);
        await costs('Dora', (used += reported(question)), began);
    }
    const key = await userId('Dora');
    const left = 300 - (await gone('Dora')) - 50;
    await chat.sql`SELECT rl_credit('llmTokens', ${key}, ${-left}, config => ${chat.sql.json(TOKENS)})`;
    const denied = await post(page, crypto.randomUUID());
    const body = JSON.parse(denied.text);
    assert.deepEqual([denied.status, body.name, body.error], [429, 'llmTokens', 'Too many calls of llmTokens']);
    assert.equal(Number(denied.wait), Math.ceil(body.retryAfter / 1000));
    assert.deepEqual(await holds('Dora'), []);
    assert.equal((await chat.sql`SELECT FROM questions WHERE asker = ${key}`).length, 2);
    await countsDown(await visit(chat, page), 'Ask the model', 10);
});
const TOKENS = { kind: 'token bucket', rate: 300, period: 60_000, keyed: true };

for (const [name, how] of [['Emil', 'stopped'], ['Erna', 'of a page that is closed']]) {
    test(`an answer that is ${how} is stored, and costs what has come`, async () => {
        const page = await visit(slow);
        await signUp(page, name);
        const began = Date.now();
        const question = `Are you there, ${name}?`;
        await say(page, question, 'Ask the model');
        await line(page, question).waitFor();
        assert.equal((await holds(name)).length, 1);
        if (how === 'stopped') await button(page, 'Stop').click();
        else await page.close();
        await settled(name);
        assert.deepEqual(await answers(question), [`“${question}”`]);
        await costs(name, streamed(question, `“${question}”`), began);
        if (how === 'stopped') await button(page, 'Ask the model').waitFor();
    });
}

test('an answer that can not be stored is not settled, and its tokens stay held', async () => {
    await chat.sql`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''refused''; END'`;
    await chat.sql`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON messages DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
        WHEN (NEW.body LIKE '“Refused%') EXECUTE FUNCTION refuse()`;
    const page = await visit();
    await signUp(page, 'Fay');
    const id = crypto.randomUUID();
    assert.match(textOf(await post(page, id, 'Refused?')), /^“Refused\?”/);
    assert.deepEqual([await holds('Fay'), await answers('Refused?')], [[id], []]);
    assert.match(chat.errors(), new RegExp(`the hold ${id} was not settled .*refused`));
    await chat.sql`SELECT rl_settle_all(${id})`;
});

test('an answer that was lost is there when its question is sent again, and is paid once', async () => {
    const page = await visit();
    await signUp(page, 'Gus');
    const began = Date.now();
    await page.route('**/my/questions', async (route) => {
        await route.fetch();
        await route.abort();
    }, { times: 1 });
    await say(page, 'Lost?', 'Ask the model');
    await alert(page, 'Failed to fetch').waitFor();
    await button(page, 'Ask the model').click();
    await line(page, 'Lost?').waitFor();
    await button(page, 'Ask the model').waitFor();
    assert.equal((await answers('Lost?')).length, 1);
    await costs('Gus', reported('Lost?'), began);
    // By its id alone.
    const [{ id }] = await chat.sql`SELECT id FROM questions WHERE asker = ${await userId('Gus')}`;
    assert.equal(textOf(await post(page, id)), (await answers('Lost?'))[0]);
    await costs('Gus', reported('Lost?'), began);
    const other = await visit();
    await signUp(other, 'Hans');
    assert.equal((await post(other, id)).status, 400);
    assert.equal((await post(other, crypto.randomUUID(), '')).status, 400);
    // Another question is another, by the same words.
    await say(page, 'Lost?', 'Ask the model');
    await lines(page, 'Lost?').nth(1).waitFor();
    await costs('Gus', 2 * reported('Lost?'), began);
});

test('a question is not asked twice at once; if its process dies, another answers it, and it is paid once', async () => {
    const dying = await serve({ PACE: '20000' });
    const page = await visit(dying);
    await signUp(page, 'Ida');
    const began = Date.now();
    const asked = page.waitForRequest('**/questions');
    await say(page, 'Will you die?', 'Ask the model');
    const { id } = (await asked).postDataJSON();
    await line(page, 'Will you die?').waitFor();
    const beside = await visit(chat, page); // its cookie is for every port
    const again = await post(beside, id, 'Will you die?');
    assert.deepEqual([again.status, again.wait, JSON.parse(again.text).place], [429, '1', 0]);
    await dying.end('SIGKILL');
    await alert(page, /./).waitFor();
    await page.close();
    assert.deepEqual([await holds('Ida'), await answers('Will you die?')], [[id], []]);
    assert.equal(JSON.parse((await post(beside, id, 'Will you die?')).text).place, 0);
    await chat.sql`UPDATE questions SET begun_at = begun_at - interval '2 min' WHERE id = ${id}`;
    const answer = textOf(await post(beside, id, 'Will you die?'));
    assert.deepEqual(await answers('Will you die?'), [answer]);
    await costs('Ida', reported('Will you die?'), began);
});

test('two answers at once; others of the user wait in line, and are given in turn', async () => {
    const page = await visit();
    await signUp(page, 'Jan');
    const key = await userId('Jan');
    const SLOTS = chat.sql.json({ kind: 'concurrency', slots: 2, ttl: 120_000, keyed: true });
    const take = () => chat.sql`SELECT lease FROM rl_acquire('answers', ${key}, config => ${SLOTS})`;
    const [[{ lease }]] = [await take(), await take()];
    const other = await visit();
    await signUp(other, 'Kim');
    await say(other, 'Is it my turn?', 'Ask the model');
    await line(other, 'Is it my turn?').waitFor(); // each user has slots of their own

    const second = await visit(chat, page);
    await say(page, 'In line, first?', 'Ask the model');
    await line(page, 'Your question is number 1 in line').waitFor();
    await say(second, 'In line, second?', 'Ask the model');
    await line(second, 'Your question is number 2 in line').waitFor();
    assert.deepEqual(await answers('In line'), []);
    await chat.sql`SELECT rl_release(${lease}, config => ${SLOTS})`;
    await line(second, 'Your question is number 1 in line').waitFor();
    for (const each of [page, second]) await button(each, 'Ask the model').waitFor();
    const given = await answers('In line');
    assert.deepEqual(given.map((answer) => answer.split('”')[0]), ['“In line, first?', '“In line, second?']);

    // A question whose page is closed holds up no others.
    await take();
    await say(page, 'In line, third?', 'Ask the model');
    await line(page, 'Your question is number 1 in line').waitFor();
    await page.close();
    await say(second, 'In line, fourth?', 'Ask the model');
    await line(second, 'Your question is number 1 in line').waitFor();
});

test('sign-ups are limited for all together, and a name that is taken costs none', async () => {
    const CONFIG = { kind: 'token bucket', rate: 30, period: 60_000, capacity: 5 };
    // By others, in debt: a page that opens late still counts down.
    await chat.sql`SELECT rl_credit('signUp', '', -8, config => ${chat.sql.json(CONFIG)})`;
    const page = await visit();
    await countsDown(page, 'Sign up', 12);
    const before = (await chat.sql`SELECT * FROM ratelimits WHERE name = 'signUp'`)[0];
    await chat.sql`INSERT INTO users (name) VALUES ('Somebody')`;
    await page.getByLabel('Your name').fill('Somebody');
    await button(page, 'Sign up').click();
    await alert(page, 'The name is taken').waitFor();
    assert.deepEqual((await chat.sql`SELECT * FROM ratelimits WHERE name = 'signUp'`)[0], before);
    await signUp(page, 'Fritz');
});

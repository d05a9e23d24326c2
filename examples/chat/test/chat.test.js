// The chat in Chromium, as its users see it, on a real server with the extension.
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';

import { open } from './open.js';

let chat;
before(async () => { chat = await open(); });
after(() => chat.close());

// What goes wrong in a page fails its test. A response of 4xx is no such thing, though Chromium puts it on the console.
const problems = [];
afterEach(() => {
    assert.deepEqual(problems.splice(0), []);
    assert.equal(chat.log(), '');
});
async function visit() {
    const page = await chat.visit();
    page.setDefaultTimeout(10_000);
    page.on('pageerror', (error) => problems.push(String(error)));
    page.on('console', (message) => {
        if (message.type() === 'error' && !/status of 4\d\d/.test(message.text())) problems.push(message.text());
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
        return [response.status, Number(response.headers.get('Retry-After')), await response.text()];
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

/** What the last answer has used: its words, and those of the question. */
async function usage(question) {
    const [{ body }] = await chat.sql`SELECT body FROM messages WHERE body LIKE ${`“${question}”%`}`;
    return body.slice(`“${question}” `.length).split(' ').length + Math.ceil(question.length / 4);
}
/** Whether exactly this is gone of the budget, but for the five tokens that come in each second, and no hold is left. */
async function costs(name, used, began) {
    const [{ value, holds }] = await chat.sql`
        SELECT value, (SELECT count(*)::int FROM rl_holds) AS holds FROM rateLimits WHERE key = ${await userId(name)}`;
    assert.equal(holds, 0);
    const refilled = value - (120 - used);
    assert.ok(refilled > -0.001 && refilled < (Date.now() - began) / 200, `${value} after ${used}`);
}

test('an answer streams, and is charged by what it has used; one ends with the budget', async () => {
    const page = await visit();
    await signUp(page, 'Dora');
    const began = Date.now();
    let used = 0;
    for (let n = 1; ; n++) {
        const question = `Question ${n}?`;
        const answer = page.waitForResponse('**/questions');
        await say(page, question, 'Ask the model');
        await line(page, question).waitFor();
        const early = await line(page, question).innerText();
        await (await answer).finished();
        assert.ok(early.length < (await line(page, question).innerText()).length, 'it is shown while it is written');
        const cost = await usage(question);
        await costs('Dora', (used += cost), began);
        if (n === 1) assert.equal(cost, 63);
        if (cost === 40) break; // held at first, and more was denied
    }
    await countsDown(page, 'Ask the model', 10);
});

test('a page that is closed in the middle of an answer pays for what was written', async () => {
    const page = await visit();
    await signUp(page, 'Emil');
    const began = Date.now();
    await say(page, 'Are you there?', 'Ask the model');
    await line(page, 'Are you there?').waitFor();
    await page.close();
    while ((await chat.sql`SELECT FROM rl_holds`).length) await new Promise((resolve) => setTimeout(resolve, 50));
    const used = await usage('Are you there?');
    assert.ok(used < 64);
    await costs('Emil', used, began);
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

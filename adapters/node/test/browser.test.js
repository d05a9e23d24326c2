// Pages in Chromium, whose button is what a limit of a real server says: with React, and without a framework.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import express from 'express';
import { chromium } from 'playwright-core';
import { rolldown } from 'rolldown';

import { MINUTE } from 'postgres-rate-limit';
import { calculate } from 'postgres-rate-limit/browser';
import { limiter, pool, sent } from './browser/application.js';
import { app as routes } from './browser/express.js';
import { app as hono } from './browser/hono.js';
import { limits } from './limits.js';

const folder = (path) => fileURLToPath(new URL(path, import.meta.url));
const { stdout } = spawnSync('which', [process.env.CHROMIUM || 'chromium'], { encoding: 'utf8' });
const executablePath = stdout?.trim() || undefined;
const inChromium = { skip: !executablePath && 'there is no Chromium' };

const HTML = {
    react: '<main></main><script type="module" src="/page.js"></script>',
    plain: `<script type="importmap">{ "imports": { "postgres-rate-limit/browser": "/dist/browser.mjs" } }</script>
        <button disabled>Send</button><script type="module" src="/browser/plain.js"></script>`,
};

let database, server, browser, address;
before(async () => {
    database = await limits(`browser_${process.pid}`);
    Object.assign(pool.options, database.app);
    const bundle = await rolldown({
        input: folder('browser/page.jsx'),
        transform: { define: { 'process.env.NODE_ENV': '"production"' } },
    });
    const [{ code }] = (await bundle.generate({ format: 'esm' })).output;
    const app = express();
    app.get('/', (request, response) => {
        const { session, page } = request.query;
        response
            .set('Set-Cookie', `session=${session}; HttpOnly`)
            .send(`<!doctype html><link rel="icon" href="data:," />${HTML[page]}`);
    });
    app.get('/page.js', (request, response) => response.type('js').send(code));
    app.use('/dist', express.static(folder('../dist')));
    app.use('/browser', express.static(folder('browser')));
    app.use(routes);
    server = app.listen(0, '127.0.0.1');
    await once(server, 'listening');
    address = `http://127.0.0.1:${server.address().port}`;
    if (executablePath) browser = await chromium.launch({ executablePath });
});
after(async () => {
    await browser?.close();
    server?.close();
    await pool.end();
    await database?.end();
});

test('the routes return the value of the session, whatever the request says', async () => {
    const headers = { Cookie: 'session=s-ada' };
    await limiter.limit('sendMessage', { key: 'ada' });
    const path = '/limits/sendMessage?key=bob&user=bob';
    for (const response of [await fetch(address + path, { headers }), await hono.request(path, { headers })]) {
        assert.equal(response.headers.get('cache-control'), 'no-store');
        const value = await response.json();
        assert.equal(value.config.kind, 'token bucket');
        const { retryAt } = calculate(value);
        assert.ok(retryAt > value.now && retryAt <= value.now + MINUTE);
    }
    for (const response of [await fetch(address + path), await hono.request(path)]) assert.equal(response.status, 401);
    await limiter.reset('sendMessage', { key: 'ada' });
});

/** Opens a page whose clock shows a time, and can be moved. What goes wrong in it fails the test. */
async function visit(context, page, session, time) {
    const tab = await browser.newPage();
    const problems = [];
    tab.on('pageerror', (error) => problems.push(String(error)));
    tab.on('console', (message) => message.type() === 'error' && problems.push(message.text()));
    tab.on('framenavigated', () => problems.push('loaded'));
    context.after(async () => {
        assert.deepEqual(problems, ['loaded'], 'once');
        await tab.close();
    });
    await tab.clock.install({ time });
    await tab.goto(`${address}/?${new URLSearchParams({ page, session })}`);
    const button = tab.getByRole('button');
    const is = (enabled) =>
        tab.waitForFunction((enabled) => document.querySelector('button')?.disabled === !enabled, enabled);
    return { tab, button, is };
}

for (const hours of [0, 3]) {
    test(`a button with React, where the browser's clock is ${hours} hours off`, inChromium, async (context) => {
        const user = hours ? 'bob' : 'ada';
        const { tab, button, is } = await visit(context, 'react', `s-${user}`, Date.now() + hours * 60 * MINUTE);
        await is(true);
        assert.equal(await button.innerText(), 'Send');
        await button.click();
        await is(false);
        assert.deepEqual(sent.splice(0), [user]);
        const seconds = async () => Number(/^Send in (\d+) s$/.exec(await button.innerText())[1]);
        const first = await seconds();
        assert.ok(first > 0 && first <= 60, String(first));
        await tab.clock.fastForward((first - 10) * 1000);
        await tab.waitForFunction((most) => parseInt(document.querySelector('button').innerText.slice(8)) <= most, 10);
        assert.equal(await button.isDisabled(), true);

        // The minute has passed in the database, too.
        await limiter.reset('sendMessage', { key: user });
        await tab.clock.fastForward(11_000);
        await is(true);
        assert.equal(await button.innerText(), 'Send');
        await button.click();
        await is(false);
        assert.deepEqual(sent.splice(0), [user]);
        await limiter.reset('sendMessage', { key: user });
    });
}

test('a button without a framework or a bundler', inChromium, async (context) => {
    const { tab, button, is } = await visit(context, 'plain', 's-ada', Date.now());
    await is(true);
    await button.click();
    await is(false);
    assert.match(await button.getAttribute('title'), /^again at \d/);
    await limiter.reset('sendMessage', { key: 'ada' });
    await tab.clock.fastForward(61_000);
    await is(true);
    assert.equal(await button.getAttribute('title'), '');
    assert.deepEqual(sent.splice(0), ['ada']);
});

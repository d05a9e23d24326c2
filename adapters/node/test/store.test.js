// The store against a real server with the extension: that of the environment (PGHOST, PGUSER, PGDATABASE).
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, test } from 'node:test';

import { serve } from '@hono/node-server';
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import { Hono } from 'hono';
import { rateLimiter } from 'hono-rate-limiter';
import pg from 'pg';

import { RateLimitStore } from '../index.js';

const pool = new pg.Pool({ max: 16, application_name: 'store.test.js' });
after(() => pool.end());

let names = 0;
const open = (options = {}, middleware = {}) => {
    const store = new RateLimitStore({ pool, name: `store ${names++}`, ...options });
    store.init({ limit: 3, windowMs: 60_000, ...middleware });
    return store;
};
const hits = async (store, key) => (await store.get(key))?.totalHits;

for (const store of ['table', 'memory']) {
    test(`hits are counted key by key, in the ${store}`, async () => {
        const of = open({ store });
        assert.equal(await of.get('a'), undefined);
        const before = Date.now();
        const first = await of.increment('a');
        assert.equal(first.totalHits, 1);
        assert.ok(first.resetTime instanceof Date);
        const left = first.resetTime.getTime() - before;
        assert.ok(left > 55_000 && left < 65_000, `${left} ms`);
        for (const expected of [2, 3, 4, 4]) {
            const { totalHits, resetTime } = await of.increment('a');
            assert.deepEqual([totalHits, resetTime], [expected, first.resetTime]);
        }
        assert.equal((await of.increment('b')).totalHits, 1);
        assert.equal(await hits(of, 'a'), 3);

        await of.decrement('a');
        assert.equal(await hits(of, 'a'), 2);
        assert.equal((await of.increment('a')).totalHits, 3);
        for (let n = 0; n < 5; n++) await of.decrement('a');
        assert.equal(await of.get('a'), undefined, 'never below none');

        await of.increment('a');
        await of.resetKey('a');
        assert.deepEqual([await hits(of, 'a'), await hits(of, 'b')], [undefined, 1]);
        await of.increment('a');
        await of.resetAll();
        assert.deepEqual([await hits(of, 'a'), await hits(of, 'b')], [undefined, undefined]);
    });
}

test('stores of one name count together, those of others apart', async () => {
    const [one, other, apart] = [open({ name: 'shared' }), open({ name: 'shared' }), open()];
    await one.increment('k');
    assert.equal((await other.increment('k')).totalHits, 2);
    assert.equal((await apart.increment('k')).totalHits, 1);
});

test('a window ends', async () => {
    const store = open({}, { limit: 1, windowMs: 2000 });
    assert.equal((await store.increment('k')).totalHits, 1);
    const { totalHits, resetTime } = await store.increment('k');
    assert.equal(totalHits, 2);
    await new Promise((resolve) => setTimeout(resolve, resetTime.getTime() - Date.now() + 50));
    assert.equal((await store.increment('k')).totalHits, 1);
});

test('what is wrong is named', async () => {
    assert.throws(() => new RateLimitStore({ name: 'x' }), /pool/);
    assert.throws(() => new RateLimitStore({ pool }), /name/);
    assert.throws(() => open({ store: 'redis' }), /store is redis/);
    await assert.rejects(open().increment('k'.repeat(1025)), { code: '22023' });
});

test('memory counts in a read-only session, and the table says that it cannot', async () => {
    const client = await pool.connect();
    try {
        await client.query('SET default_transaction_read_only = on');
        assert.equal((await open({ pool: client, store: 'memory' }).increment('k')).totalHits, 1);
        await assert.rejects(open({ pool: client }).increment('k'), { code: '25006' });
    } finally {
        client.release(true);
    }
});

/** A server for the time of a test; its URL. */
const listen = async (context, server) => {
    if (!server.listening) await once(server, 'listening');
    context.after(() => server.close());
    return `http://127.0.0.1:${server.address().port}/`;
};
const expressApp = (context, options, answer = (_, response) => response.send('hello')) => {
    const app = express();
    app.use(rateLimit({ windowMs: 60_000, limit: 10, standardHeaders: 'draft-8', legacyHeaders: false, ...options }));
    app.get('/', answer);
    app.use((error, _request, response, _next) => response.status(500).send(error.code));
    return listen(context, app.listen(0, '127.0.0.1'));
};
const honoApp = (context, options) => {
    const app = new Hono();
    app.use(rateLimiter({ windowMs: 60_000, limit: 10, keyGenerator: () => 'everybody', ...options }));
    app.get('/', (c) => c.text('hello'));
    return listen(context, serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }));
};

for (const [name, start] of [['Express', expressApp], ['Hono', honoApp]]) {
    for (const kept of ['table', 'memory']) {
        test(`of 100 requests at once ${name} lets exactly the limit pass, in the ${kept}`, async (context) => {
            const store = new RateLimitStore({ pool, name: `${name} ${kept}`, store: kept });
            const url = await start(context, { store });
            const answers = await Promise.all(Array.from({ length: 100 }, () => fetch(url)));
            const passed = answers.filter((answer) => answer.status === 200).length;
            const denied = answers.filter((answer) => answer.status === 429);
            assert.deepEqual([passed, denied.length], [10, 90]);
            const wait = Number(denied[0].headers.get('retry-after'));
            assert.ok(wait >= 55 && wait <= 60, `${wait}`);
            assert.ok((await hits(store, name === 'Hono' ? 'everybody' : '127.0.0.1')) === 10);
        });
    }
}

test('requests that fail are taken back, and denied ones take nothing back', async (context) => {
    const store = new RateLimitStore({ pool, name: 'failing' });
    // What is taken back is, after the answer.
    let done = () => {};
    const { decrement } = store;
    store.decrement = async (key) => {
        await decrement.call(store, key);
        done();
    };
    let status = 500;
    const answer = (_, response) => response.status(status).send('');
    const url = await expressApp(context, { store, limit: 2, skipFailedRequests: true }, answer);
    const call = async () => {
        const takenBack = new Promise((resolve) => (done = resolve));
        const response = await fetch(url);
        if (response.status !== 200) await takenBack;
        return response.status;
    };
    assert.deepEqual([await call(), await call(), await call()], [500, 500, 500]);
    assert.equal(await store.get('127.0.0.1'), undefined);
    status = 200;
    assert.deepEqual([await call(), await call(), await call(), await call()], [200, 200, 429, 429]);
    assert.equal(await hits(store, '127.0.0.1'), 2);
});

test('a lost connection fails, or passes where passOnStoreError says so', async (context) => {
    const nowhere = new pg.Pool({ host: '/nowhere', connectionTimeoutMillis: 1000 });
    const url = async (passOnStoreError) => {
        const store = new RateLimitStore({ pool: nowhere, name: 'lost' });
        return expressApp(context, { store, passOnStoreError });
    };
    assert.equal((await fetch(await url(false))).status, 500);
    assert.equal((await fetch(await url(true))).status, 200);

    // One that is lost on the way comes back.
    const store = open();
    await store.increment('k');
    pool.on('error', () => {});
    await Promise.all([1, 2].map(() => pool.query('SELECT pg_sleep(0.1)'))); // there are two clients
    await pool.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'store.test.js' AND pid <> pg_backend_pid()");
    while (pool.totalCount > 1) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal((await store.increment('k')).totalHits, 2);
});

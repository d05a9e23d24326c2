// The store against a real server with the extension: that of the environment (PGHOST, PGUSER, PGDATABASE).
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, test } from 'node:test';

import { serve } from '@hono/node-server';
import fastifyRateLimit from '@fastify/rate-limit';
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import Fastify from 'fastify';
import { Hono } from 'hono';
import { rateLimiter } from 'hono-rate-limiter';
import pg from 'pg';

import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { rateLimitStore } from 'postgres-rate-limit/fastify';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';
import { RateLimiterStore } from 'postgres-rate-limit/rate-limiter-flexible';
import { ADAPTERS } from './adapters.js';
import { onFile, STORES } from './edition.js';
import { hangs } from './hangs.js';

const pool = new pg.Pool({ max: 16, application_name: 'store.test.js' });
after(() => pool.end());

let names = 0;
const open = (options = {}, middleware = {}) => {
    const store = new RateLimitStore({ db: pool, name: `store ${names++}`, ...options });
    store.init({ limit: 3, windowMs: 60_000, ...middleware });
    return store;
};
/** The same end of a window: it is computed from what is left, when the answer arrives. */
const near = (time, expected) => assert.ok(Math.abs(time - expected) < 2000, `${time - expected} ms`);
const hits = async (store, key) => (await store.get(key))?.totalHits;

for (const store of STORES) {
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
            assert.equal(totalHits, expected);
            near(resetTime, first.resetTime);
        }
        assert.equal((await of.increment('b')).totalHits, 1);
        assert.equal(await hits(of, 'a'), 3);

        await of.decrement('a');
        assert.equal(await hits(of, 'a'), 2);
        assert.equal((await of.increment('a')).totalHits, 3);
        for (let n = 0; n < 5; n++) await of.decrement('a');
        assert.equal(await hits(of, 'a'), 0, 'never below none');

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

for (const store of STORES) {
    test(`a limit that is raised or lowered in a window keeps what was used, in the ${store}`, async () => {
        const name = `raised ${store}`;
        const [first, raised] = [3, 5].map((limit) => open({ store, name }, { limit }));
        const increments = async (of, times) => {
            const all = [];
            for (let n = 0; n < times; n++) all.push((await of.increment('k')).totalHits);
            return all;
        };
        assert.deepEqual(await increments(first, 4), [1, 2, 3, 4]);
        const { resetTime } = await first.get('k');
        assert.equal(await hits(raised, 'k'), 3);
        assert.deepEqual(await increments(raised, 4), [4, 5, 6, 6], 'two more pass, and the third is denied');
        assert.deepEqual(await increments(first, 1), [4], 'lowered again it is used up');
        assert.deepEqual(await increments(raised, 1), [6], 'and raised again it has given nothing twice');
        assert.equal(await hits(raised, 'k'), 5);
        near((await raised.get('k')).resetTime, resetTime);
    });
}

test('what is counted beyond a limit ends with its window', async () => {
    for (const store of STORES) {
        const name = `${Math.random()}`;
        const all = open({ store, name }, { limit: 2, windowMs: 1500, skipFailedRequests: true });
        const some = open({ store, name }, { limit: 2, windowMs: 1500 });
        let last;
        for (let n = 0; n < 9; n++) last = await all.increment('k');
        assert.equal(last.totalHits, 9);
        const denied = await some.increment('k');
        assert.equal(denied.totalHits, 3);
        near(denied.resetTime, last.resetTime);
        await new Promise((resolve) => setTimeout(resolve, last.resetTime.getTime() - Date.now() + 50));
        const hits = [];
        for (let n = 0; n < 4; n++) hits.push((await some.increment('k')).totalHits);
        assert.deepEqual(hits, [1, 2, 3, 3]);
    }
});

test('a penalty of rate-limiter-flexible ends with its window, and a block without an end has no time', async () => {
    const owner = new pg.Pool({ user: 'postgres', max: 1 }); // it has the privilege to block
    for (const store of STORES) {
        const limiter = new RateLimiterStore({ db: owner, name: `${Math.random()}`, store, points: 2, duration: 1 });
        const { msBeforeNext } = await limiter.penalty('k', 7);
        await assert.rejects(limiter.consume('k'), ({ msBeforeNext: ms }) => ms <= msBeforeNext);
        await new Promise((resolve) => setTimeout(resolve, msBeforeNext + 50));
        assert.equal((await limiter.consume('k')).consumedPoints, 1);
        await limiter.block('k', 0);
        await assert.rejects(limiter.consume('k'), { msBeforeNext: -1 });
        assert.equal((await limiter.get('k')).msBeforeNext, -1);
    }
    await owner.end();
});

test('a window ends', async () => {
    const store = open({}, { limit: 1, windowMs: 2000 });
    assert.equal((await store.increment('k')).totalHits, 1);
    const { totalHits, resetTime } = await store.increment('k');
    assert.equal(totalHits, 2);
    await new Promise((resolve) => setTimeout(resolve, resetTime.getTime() - Date.now() + 50));
    assert.equal((await store.increment('k')).totalHits, 1);
});

test('a window without hits is one until it ends', async () => {
    for (const store of STORES) {
        const of = open({ store }, { windowMs: 1000 });
        const { resetTime } = await of.increment('k');
        await of.decrement('k');
        const window = await of.get('k');
        assert.equal(window?.totalHits, 0);
        near(window.resetTime, resetTime);
        await new Promise((resolve) => setTimeout(resolve, resetTime.getTime() - Date.now() + 50));
        assert.equal(await of.get('k'), undefined);
    }
});

test('keys that are too long, or that no text can be, are counted, each by itself', async () => {
    for (const store of STORES) {
        const of = open({ store });
        const long = ['k'.repeat(1025), 'k'.repeat(100_000), 'é'.repeat(513), 'a\0b', 'a\0c', '\0', '\ud800', '\udbff', 'a\udfff'];
        for (const key of long) {
            assert.equal((await of.increment(key)).totalHits, 1, key.slice(0, 10));
            assert.equal((await of.increment(key)).totalHits, 2);
            await of.decrement(key);
            assert.equal(await hits(of, key), 1);
        }
        const hash = (await import('node:crypto')).createHash('sha256').update(long[0]).digest('hex');
        assert.equal((await of.increment(`sha256:${hash}`)).totalHits, 1, 'nobody can write the hash of another key');
        await of.resetKey(long[0]);
        assert.equal(await of.get(long[0]), undefined);
    }
    const storage = new RateLimitThrottlerStorage({ db: pool, name: 'long' });
    for (const hits of [1, 2]) {
        assert.equal((await storage.increment('k'.repeat(1025), 60_000, 5, 60_000, 'default')).totalHits, hits);
    }
});

test('a pool may read times as it likes', async (context) => {
    // All but booleans as text.
    const types = { getTypeParser: (oid, format) => (oid === 16 ? pg.types.getTypeParser(16, format) : String) };
    const strange = new pg.Pool({ types, max: 1 });
    context.after(() => strange.end());
    const store = open({ db: strange });
    const { totalHits, resetTime } = await store.increment('k');
    assert.equal(totalHits, 1);
    assert.ok(resetTime.getTime() > Date.now());
    assert.equal(await hits(store, 'k'), 1);
    near((await store.get('k')).resetTime, resetTime);
    const storage = new RateLimitThrottlerStorage({ db: strange, name: 'text' });
    const answer = await storage.increment('k', 60_000, 5, 60_000, 'default');
    assert.equal(answer.totalHits, 1);
    assert.equal(typeof answer.timeToExpire, 'number');
});

test('an extension in a schema of its own is found; another schema is an option, or in the search_path', async (context) => {
    const database = `${process.env.PGDATABASE}_elsewhere`;
    const [elsewhere, found] = ['', '-c search_path=limits'].map((options) => new pg.Pool({ database, max: 1, options }));
    context.after(() => Promise.all([elsewhere.end(), found.end()]));
    if (onFile) await assert.rejects(open({ db: elsewhere }).increment('k'), /pass it: { db, schema: 'limits' }/);
    for (const options of [{ db: elsewhere, schema: onFile ? 'limits' : undefined }, { db: found }]) {
        const store = open(options);
        assert.equal((await store.increment('k')).totalHits, 1);
        await store.decrement('k');
        assert.equal(await hits(store, 'k'), 0);
    }
});

test('a limit that is defined decides, and may be saved', async (context) => {
    const owner = new pg.Pool({ user: 'postgres', max: 1 });
    context.after(() => owner.end());
    const define = (name, options) => {
        const config = { kind: 'fixed window', rate: 3, period: 60_000, start: 'first request', ...options };
        return owner.query('SELECT rl_define($1, $2)', [name, config]);
    };
    for (const options of [{}, ...(onFile ? [] : [{ store: 'memory', save: 1000 }])]) {
        const name = `defined ${Math.random()}`;
        await define(name, options);
        const store = open({ name, defined: true, rememberDenials: true });
        const increments = [];
        for (let n = 0; n < 5; n++) increments.push((await store.increment('k')).totalHits);
        assert.deepEqual(increments, [1, 2, 3, 4, 4]);
        await store.decrement('k');
        assert.equal(await hits(store, 'k'), 2);
        await store.resetKey('k');
        assert.equal(await hits(store, 'k'), undefined);
        await assert.rejects(open({ name }).increment('k'), /may not override it/);
    }
    const name = `defined ${Math.random()}`;
    const all = open({ name, defined: true }, { limit: 3, skipFailedRequests: true });
    await define(name);
    for (let n = 0; n < 3; n++) await all.increment('k');
    await assert.rejects(all.increment('k'), /must be defined with overage, to count what is denied/);
    await define(name, { overage: true });
    assert.equal((await all.increment('k')).totalHits, 4);
});

test('what is wrong is named', async () => {
    assert.throws(() => new RateLimitStore({ name: 'x' }), /^TypeError: RateLimitStore: db is undefined; allowed: a pool/);
    assert.throws(() => new RateLimitStore({ db: pool }), /name/);
    assert.throws(() => open({ defined: 'yes' }), /defined is yes; allowed: true, false/);
    assert.throws(() => open({ store: 'redis' }), /store is redis/);
    for (const timeout of [0, -1, 1.5, '1 s', 2 ** 31]) assert.throws(() => open({ timeout }), /timeout is .*; allowed: milliseconds/);
    for (const option of ['prepare', 'batch'])
        assert.throws(() => open({ [option]: 'yes' }), new RegExp(`RateLimitStore: ${option} is yes; allowed: true, false`));
    await assert.rejects(open({}, { windowMs: 0 }).increment('k'), { code: '22023' });
    await assert.rejects(open().increment(undefined), { code: '22004' }, 'no key is not the key of everybody');
});

for (const [adapter, { make, counts }] of Object.entries(ADAPTERS)) {
    for (const store of STORES) {
        test(`hits are counted key by key with ${adapter}, in the ${store}`, async () => {
            const options = { db: pool, name: `counts ${adapter} ${store} ${process.pid}`, store };
            const count = counts(options, { limit: 3, windowMs: 60_000 });
            const answers = async (key, times) => {
                const all = [];
                for (let n = 0; n < times; n++) all.push(await count(key));
                return all;
            };
            const all = await answers('a', 5);
            assert.deepEqual(all.map(({ passed }) => passed), [true, true, true, false, false]);
            for (const { wait } of all.slice(3)) assert.ok(wait > 50 && wait <= 60 && Number.isInteger(wait), `${wait} s`);
            for (const key of ['b', 'k'.repeat(1025), 'a\0b', 'é'.repeat(513)]) {
                assert.deepEqual((await answers(key, 4)).map(({ passed }) => passed), [true, true, true, false]);
            }
            assert.equal((await counts(options, { limit: 4, windowMs: 60_000 })('a')).passed, true, 'a limit that is raised');
            assert.equal((await counts({ ...options, name: `${options.name} 2` }, { limit: 1, windowMs: 1000 })('a')).passed, true);
            for (const limit of [0, 0.5]) {
                const none = counts({ ...options, name: `${options.name} ${limit}` }, { limit, windowMs: 60_000 });
                for (let n = 0; n < 3; n++) assert.equal((await none('a')).passed, false, `a limit of ${limit} lets nothing pass`);
            }
            await assert.rejects(count(undefined), { code: '22004' });
            await assert.rejects(counts(options, { limit: 3, windowMs: 1e18 })('a'), { code: '22023' });
        });
    }

    test(`a window of ${adapter} ends`, async () => {
        const count = counts({ db: pool, name: `ends ${adapter} ${process.pid}` }, { limit: 1, windowMs: 1000 });
        assert.equal((await count('k')).passed, true);
        const { passed, wait } = await count('k');
        assert.deepEqual([passed, wait], [false, 1]);
        await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
        assert.equal((await count('k')).passed, true);
    });

    test(`options of ${adapter} that can not be used are refused`, () => {
        for (const [options, message] of [
            [undefined, /: db is undefined; allowed: a pool, client/],
            [{ db: pool, name: '' }, /: name must be the name/],
            [{ db: pool, name: 'a', store: 'redis' }, /: store is redis; allowed: "table", "memory"/],
            [{ db: pool, name: 'a', onError: 'ajar' }, /: onError is ajar; allowed: "closed", "open"/],
        ]) {
            assert.throws(() => make(options), message);
        }
    });
}

test('memory is refused by the file, which says who has it', { skip: !onFile }, async () => {
    await assert.rejects(open({ store: 'memory' }).increment('k'), { code: '0A000', message: /extension/ });
});

test('memory counts in a read-only session, and the table says that it cannot', { skip: onFile }, async () => {
    const client = await pool.connect();
    try {
        await client.query('SET default_transaction_read_only = on');
        assert.equal((await open({ db: client, store: 'memory' }).increment('k')).totalHits, 1);
        await assert.rejects(open({ db: client }).increment('k'), { code: '25006' });
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
    for (const kept of STORES) {
        test(`of 100 requests at once ${name} lets exactly the limit pass, in the ${kept}`, async (context) => {
            const store = new RateLimitStore({ db: pool, name: `${name} ${kept}`, store: kept });
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

for (const [adapter, { start, path, header }] of Object.entries(ADAPTERS)) {
    for (const kept of STORES) {
        test(`of 100 requests at once ${adapter} lets exactly the limit pass, in the ${kept}`, async (context) => {
            const options = { db: pool, name: `at once ${adapter} ${kept} ${process.pid}`, store: kept };
            const url = await listen(context, await start(options, { limit: 10, windowMs: 60_000 }));
            const answers = await Promise.all(Array.from({ length: 100 }, () => fetch(new URL(path, url))));
            const of = (status) => answers.filter((answer) => answer.status === status);
            assert.deepEqual([of(200).length, of(429).length], [10, 90]);
            for (const { headers } of of(429)) {
                const wait = Number(headers.get(header));
                assert.ok(wait >= 55 && wait <= 60, `${wait}`);
            }
        });
    }
}

test('routes of Fastify with limits of their own count apart, or as a group, in all processes together', async (context) => {
    const long = `/${'long'.repeat(100)}`;
    const start = async () => {
        const app = Fastify();
        context.after(() => app.close());
        await app.register(fastifyRateLimit, { max: 1000, store: rateLimitStore({ db: pool, name: `routes ${process.pid}` }) });
        const looks = app.createRateLimit({ max: 5 });
        app.get('/looks', (request) => looks(request, { increment: false }));
        app.get('/takes', (request) => looks(request));
        for (const [url, rateLimit] of [
            ['/plain', undefined],
            ['/a', { max: 2 }],
            [long, { max: 2 }],
            ['/one', { max: 2, groupId: 'group' }],
            ['/two', { max: 2, groupId: 'group' }],
            ['/banned', { max: 1, ban: 1 }],
        ]) {
            app.get(url, { config: { rateLimit } }, async () => 'hello');
        }
        return (url) => app.inject(url).then((answer) => (url.endsWith('s') ? answer.json().remaining : answer.statusCode));
    };
    const [one, other] = [await start(), await start()];
    for (const [url, statuses] of [
        ['/plain', [200, 200]],
        ['/looks', [5, 5]],
        ['/takes', [4, 3]],
        ['/looks', [3, 3]],
        ['/a', [200, 200, 429]],
        [long, [200, 200, 429]],
        ['/one', [200]],
        ['/two', [200, 429]],
        ['/one', [429]],
        ['/banned', [200, 429, 403]],
    ]) {
        const got = [];
        for (const [n] of statuses.entries()) got.push(await (n % 2 ? other : one)(url));
        assert.deepEqual(got, statuses, url);
    }
    for (const option of ['continueExceeding', 'exponentialBackoff']) {
        const register = Fastify().register(fastifyRateLimit, { [option]: true, store: rateLimitStore({ db: pool, name: 'a' }) });
        await assert.rejects(async () => register, new RegExp(`TypeError: rateLimitStore: ${option} is true; allowed: false`));
    }
});

test('requests that fail are taken back, and denied ones take nothing back', async (context) => {
    const store = new RateLimitStore({ db: pool, name: 'failing' });
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
    assert.equal(await hits(store, '127.0.0.1'), 0);
    status = 200;
    assert.deepEqual([await call(), await call(), await call(), await call()], [200, 200, 429, 429]);
    assert.equal(await hits(store, '127.0.0.1'), 2);
});

test('a lost connection fails, or passes where passOnStoreError says so', async (context) => {
    const nowhere = new pg.Pool({ host: '/nowhere', connectionTimeoutMillis: 1000 });
    const url = async (passOnStoreError) => {
        const store = new RateLimitStore({ db: nowhere, name: 'lost' });
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

/** A database that may hang; a pool of it. */
async function hangingDatabase(context, options) {
    const { proxy, host } = await hangs(context);
    const hanging = new pg.Pool({ host, ...options });
    hanging.on('error', () => {}); // its connections end with the proxy
    return { proxy, hanging };
}

test('a database that hangs is an error after the time-out, and comes back', async (context) => {
    const { proxy, hanging } = await hangingDatabase(context, { max: 2, connectionTimeoutMillis: 250 });
    const store = open({ db: hanging, timeout: 300 });
    const storage = new RateLimitThrottlerStorage({ db: hanging, name: 'hangs', timeout: 300 });
    assert.equal((await store.increment('k')).totalHits, 1);
    proxy.hangs = true;
    // In turn: a connection that is there, new ones, and more requests than the pool has connections.
    for (let round = 0; round < 3; round++) {
        const calls = [1, 2, 3].map(() => store.increment('k'));
        await Promise.all(calls.map((call) => assert.rejects(call, /timeout|no connection|no answer/)));
        await assert.rejects(storage.increment('k', 60_000, 5, 60_000, 'default'), /timeout|no connection|no answer/);
    }
    proxy.hangs = false;
    let back;
    while (!back) back = await store.increment('k').catch(() => undefined); // connections that hang are given up
    assert.equal(back.totalHits, 2);
});

test('a first limiter may have any limit', () => {
    for (const limit of [NaN, undefined, null, () => 3]) open({}, { limit });
});

test('nobody need say so: a call takes 5 seconds at most', async (context) => {
    const { proxy, hanging } = await hangingDatabase(context, { max: 1 });
    const store = open({ db: hanging, batch: false });
    await store.increment('k');
    proxy.hangs = true;
    context.mock.timers.enable({ apis: ['setTimeout'] });
    const [sent, waits] = [store.increment('k'), store.increment('k')];
    const failed = [assert.rejects(sent, /timeout/), assert.rejects(waits, /no connection to the database within 5000 ms/)];
    while (hanging.waitingCount !== 1 || hanging.idleCount !== 0) await new Promise(setImmediate);
    await new Promise(setImmediate); // it is sent
    context.mock.timers.tick(5000);
    await Promise.all(failed);
});

test('statements are prepared, unless one asks for none', async (context) => {
    const one = new pg.Pool({ max: 1 });
    context.after(() => one.end());
    const prepared = async () => (await one.query('SELECT count(*)::int AS n FROM pg_prepared_statements')).rows[0].n;
    const plain = open({ db: one, prepare: false });
    for (let n = 0; n < 10; n++) await plain.increment('k');
    assert.equal(await prepared(), 0);
    const store = open({ db: one });
    for (const expected of [1, 2, 3, 4]) assert.equal((await store.increment('k')).totalHits, expected);
    await store.decrement('k');
    assert.equal(await hits(store, 'k'), 2);
    await store.resetKey('k');
    await store.resetAll();
    assert.equal(await hits(open({ db: one, name: store.prefix }), 'k'), undefined);
    assert.equal(await prepared(), 5);
});

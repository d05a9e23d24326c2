// Failing open or closed: every adapter and the client where no server answers, a table is locked, and all hangs.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import net from 'node:net';
import { after, before, test } from 'node:test';

import { serve } from '@hono/node-server';
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import { Hono } from 'hono';
import { rateLimiter } from 'hono-rate-limiter';
import pg from 'pg';

import { concurrency, HOUR, isRateLimitError, RateLimiter, SECOND, tokenBucket } from 'postgres-rate-limit';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { RateLimitStore as HonoStore } from 'postgres-rate-limit/hono';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';
import { ADAPTERS } from './adapters.js';
import { onFile } from './edition.js';
import { hangs } from './hangs.js';
import { limits, run } from './limits.js';

const NAME = `failing_node_${process.pid}`;
const place = onFile ? 'ratelimit' : 'public';
const bucket = tokenBucket({ rate: 1, period: HOUR });
let database;
const pools = [];
/** A pool of the application; the pools are ended with the tests. */
const poolOf = (options) => {
    const pool = new pg.Pool({ ...database.app, connectionTimeoutMillis: 250, ...options });
    pool.on('error', () => {});
    pools.push(pool);
    return pool;
};
before(async () => {
    database = await limits(NAME);
});
after(async () => {
    for (const pool of pools) await Promise.race([pool.end(), new Promise((end) => setTimeout(end, 1000).unref())]);
    await database.end();
});

const listening = async (context, server, path = '/') => {
    if (!server.listening) await once(server, 'listening');
    context.after(() => server.close());
    const ANSWERS = { 200: 'passed', 429: 'denied', 500: 'failed' };
    return async () => ANSWERS[(await fetch(`http://127.0.0.1:${server.address().port}${path}`)).status];
};
const answers = (asked) => async () => {
    try {
        return (await asked()) ? 'passed' : 'denied';
    } catch (error) {
        assert.equal(isRateLimitError(error), false);
        return 'failed';
    }
};
let names = 0;
/** How each is called, with a limit of one an hour of its own; each call is passed, denied or failed. */
const WAYS = {
    'express-rate-limit': (context, pool, { passOnStoreError, ...options }) => {
        const store = new RateLimitStore({ db: pool, name: `express ${names++}`, timeout: 300, ...options });
        const app = express();
        app.use(rateLimit({ windowMs: HOUR, limit: 1, store, passOnStoreError }));
        app.get('/', (_, response) => response.send('hello'));
        app.use((_error, _request, response, _next) => response.status(500).end());
        return listening(context, app.listen(0, '127.0.0.1'));
    },
    'hono-rate-limiter': (context, pool, options) => {
        const store = new HonoStore({ db: pool, name: `hono ${names++}`, timeout: 300, ...options });
        const app = new Hono();
        app.use(rateLimiter({ windowMs: HOUR, limit: 1, keyGenerator: () => 'all', store }));
        app.get('/', (c) => c.text('hello'));
        app.onError((_, c) => c.text('', 500));
        return listening(context, serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }));
    },
    '@nestjs/throttler': (_, pool, options) => {
        const storage = new RateLimitThrottlerStorage({ db: pool, name: `nest ${names++}`, timeout: 300, ...options });
        return answers(async () => !(await storage.increment('k', HOUR, 1, HOUR, 'default')).isBlocked);
    },
    'the client': (_, pool, { onUnchecked, ...options }) => {
        const onDecision = ({ ok, error }) => ok && error && onUnchecked?.(error);
        const limiter = new RateLimiter({ one: bucket }, { db: pool, timeout: 300, onDecision, ...options });
        const key = `${names++}`;
        return answers(async () => (await limiter.limit('one', { key })).ok);
    },
};
for (const [adapter, { start, path }] of Object.entries(ADAPTERS)) {
    WAYS[adapter] = async (context, pool, options) => {
        const server = await start(
            { db: pool, name: `${adapter} ${names++}`, timeout: 300, ...options },
            { limit: 1, windowMs: HOUR },
        );
        return listening(context, server, path);
    };
}

/** What no call can be decided in, and its end. */
const FAULTS = {
    'no socket is there': async () => ({ pool: poolOf({ host: '/nowhere' }) }),
    'no port answers': async () => ({ pool: poolOf({ host: '127.0.0.1', port: 1 }) }),
    'the table is locked': async () => {
        const locker = new pg.Client({ user: 'postgres', database: NAME });
        await locker.connect();
        await locker.query(`BEGIN; LOCK TABLE ${place}.rateLimits`);
        return { pool: poolOf(), end: () => locker.end() };
    },
    'the table is locked, and the server gives up': async () => {
        const { end } = await FAULTS['the table is locked']();
        return { pool: poolOf({ options: '-c lock_timeout=20' }), end };
    },
    'all hangs': async (context) => {
        const { proxy, host } = await hangs(context);
        const pool = poolOf({ host, max: 1 });
        await pool.query('SELECT 1');
        proxy.hangs = true;
        return { pool, end: () => (proxy.hangs = false) };
    },
};

for (const [way, open] of Object.entries(WAYS)) {
    for (const [fault, begin] of Object.entries(FAULTS)) {
        test(`${way}, where ${fault}: an error, or passed where it is to fail open`, async (context) => {
            const { pool, end } = await begin(context);
            const heard = [];
            const onUnchecked = (error) => heard.push(error);
            const closed = await open(context, pool, { onUnchecked });
            const opened = await open(context, pool, { onError: 'open', onUnchecked });
            const all = await Promise.all([closed(), opened(), closed(), opened()]);
            assert.deepEqual(
                [all, heard.length],
                [['failed', 'passed', 'failed', 'passed'], 2],
                'closed is the default',
            );
            assert.ok(heard.every((error) => error instanceof Error));
            if (!end) return;
            await end();
            // Calls that were given up may still take theirs, and connections that hang are given up first.
            for (const call of [closed, opened]) while ((await call()) !== 'denied');
        });
    }

    test(`${way}: mistakes, refused logins and denials never pass`, async (context) => {
        const open_ = (pool) => open(context, pool, { onError: 'open', onUnchecked: () => assert.fail('it passed') });
        const uncertain = { connectionString: 'postgres://127.0.0.1:1/a?sslmode=verify-full&sslrootcert=/nowhere' };
        for (const options of [{ user: 'nobody_such' }, { database: 'nowhere_such' }, uncertain])
            assert.equal(await (await open_(poolOf(options)))(), 'failed', JSON.stringify(options));
        await run('postgres', NAME, 'CREATE ROLE failing_stranger LOGIN');
        const stranger = poolOf({ user: 'failing_stranger' });
        context.after(() => run('postgres', NAME, 'DROP ROLE failing_stranger'));
        const unknown = await open_(stranger); // 42501, or 42883 for want of USAGE on the schema
        assert.equal(await unknown(), 'failed');
        const one = await open_(poolOf());
        // A machine that is slow may pass some unchecked.
        let answer;
        for (let n = 0; answer !== 'denied' && n < 50; n++) answer = await one();
        assert.equal(answer, 'denied');
    });
}

test("the middleware's own switch has its say after ours, on all that is left", async (context) => {
    const logged = context.mock.method(console, 'error', () => {});
    const nowhere = poolOf({ host: '/nowhere' });
    const heard = [];
    const both = { onError: 'open', passOnStoreError: true, onUnchecked: (error) => heard.push(error.code) };
    assert.equal(await (await WAYS['express-rate-limit'](context, nowhere, both))(), 'passed');
    assert.deepEqual([heard, logged.mock.callCount()], [['ENOENT'], 0]);
    const refused = poolOf({ user: 'nobody_such' });
    assert.equal(await (await WAYS['express-rate-limit'](context, refused, both))(), 'passed');
    assert.deepEqual([heard.length, logged.mock.callCount()], [1, 1]);
});

test('a store warns of what passes unchecked, and gives nothing back then', async (context) => {
    const warned = context.mock.method(console, 'warn', () => {});
    const store = new RateLimitStore({ db: poolOf({ host: '/nowhere' }), name: 'warns', onError: 'open' });
    store.init({ limit: 3, windowMs: HOUR });
    const { totalHits, resetTime } = await store.increment('k');
    assert.ok(totalHits === 1 && Math.abs(resetTime - Date.now() - HOUR) < 60 * SECOND);
    assert.match(warned.mock.calls[0].arguments[0], /a request passes unchecked: connect ENOENT/);
    await store.decrement('k');
    assert.equal(warned.mock.callCount(), 1);
    for (const call of [store.get('k'), store.resetKey('k'), store.resetAll()])
        await assert.rejects(call, { code: 'ENOENT' });
    const throws = () => {
        throw new Error('it is for logs');
    };
    const storing = (onUnchecked) =>
        new RateLimitThrottlerStorage({ db: poolOf({ host: '/nowhere' }), name: 'a', onError: 'open', onUnchecked });
    const [other, rejecting] = [storing(throws), storing(async () => throws())];
    const unchecked = { totalHits: 1, timeToExpire: 60, isBlocked: false, timeToBlockExpire: 0 };
    for (const each of [other, rejecting])
        assert.deepEqual(await each.increment('k', 60_000, 1, 60_000, 'default'), unchecked);
    assert.equal(
        (await other.increment('k', 60_000, 0, 60_000, 'default')).isBlocked,
        true,
        'a limit of 0 lets nothing pass',
    );
    for (const [options, message] of [
        [{ onError: 'maybe' }, /RateLimitStore: onError is maybe; allowed: "closed", "open"/],
        [{ onUnchecked: 'log' }, /RateLimitStore: onUnchecked is string; allowed: a function/],
    ])
        assert.throws(() => new RateLimitStore({ db: poolOf(), name: 'a', ...options }), message);
});

const LIMITS = { one: bucket, slots: concurrency({ slots: 1, ttl: HOUR }) };

test('each call of the client that asks has an answer that says that it is unchecked', async () => {
    const limiter = new RateLimiter(LIMITS, { db: poolOf({ host: '/nowhere' }) });
    const open = { onError: 'open' };
    const tokens = { retryAfter: null, retryAt: null, remaining: null, capacity: null, resetAt: null };
    const nothing = { ok: true, ...tokens, limitedBy: null };
    const headers = {};
    for (const call of ['limit', 'check']) {
        const { error, ...result } = await limiter[call]('one', { key: 'a', ...open, throws: true });
        assert.deepEqual([result, error.code], [{ ...nothing, headers }, 'ENOENT'], call);
        await assert.rejects(limiter[call]('one', { key: 'a' }), { code: 'ENOENT' });
    }
    for (const call of ['limitAll', 'checkAll']) {
        const all = await limiter[call]([{ name: 'one', key: 'a' }], open);
        assert.deepEqual([all.ok, all.error.code, all.retryAfter, all.deniedBy], [true, 'ENOENT', null, null], call);
        assert.deepEqual(all.results, [{ name: 'one', key: 'a', ...nothing }]);
    }
    const lease = await limiter.acquire('slots', open);
    assert.deepEqual(
        [lease.ok, lease.id, lease.error.code, await lease.extend(), await lease.release()],
        [true, null, 'ENOENT', true, true],
    );
    const hold = await limiter.hold('one', { count: 7, ...open });
    assert.deepEqual([hold.ok, hold.id, hold.held, hold.error.code], [true, null, 7, 'ENOENT']);
    assert.deepEqual([(await hold.settle(3)).ok, await hold.extend(9)], [true, true]);
    const all = await limiter.holdAll([{ name: 'one', count: 2 }, { name: 'slots' }], open);
    assert.deepEqual([all.ok, all.id, all.error.code, await all.settle(3)], [true, null, 'ENOENT', []]);
    assert.deepEqual(all.results.map(({ held }) => held), [2, 1]);
    assert.equal(await limiter.withLease('slots', open, () => 7), 7);
    assert.equal(await limiter.withHold('one', open, () => 7), 7);
    assert.equal(await limiter.withHoldAll([{ name: 'one' }], open, () => 7), 7);

    // All else has nothing to allow.
    const opened = new RateLimiter(LIMITS, { db: poolOf({ host: '/nowhere' }), ...open });
    for (const call of [
        () => opened.reset('one'),
        () => opened.credit('one'),
        () => opened.settle('a', 1),
        () => opened.settleAll('a', 1),
        () => opened.extend('slots', 'a'),
        () => opened.release('slots', 'a'),
        () => opened.define(),
        () => opened.limit('one', { onError: 'closed' }),
    ])
        await assert.rejects(call(), { code: 'ENOENT' });
    await assert.rejects(
        opened.limit('one', { onError: 'ajar' }),
        /^TypeError: onError is ajar; allowed: "closed", "open"/,
    );
    for (const timeout of [0, -1, 1.5, '1 s', 2 ** 31])
        assert.throws(() => new RateLimiter({}, { timeout }), /timeout is .*; allowed: milliseconds/);
});

test('what a callback returned is kept where its lease or hold can not be ended, which then expires', async (context) => {
    const { proxy, host } = await hangs(context);
    const lost = (run) => async () => {
        proxy.hangs = true;
        return run();
    };
    for (const onError of ['open', 'closed']) {
        const limiter = new RateLimiter(LIMITS, { db: poolOf({ host, max: 4 }), onError, timeout: 1000 });
        const key = `kept ${onError}`;
        const calls = [
            () =>
                limiter.withLease(
                    'slots',
                    { key },
                    lost(() => 7),
                ),
            () =>
                limiter.withHold(
                    'one',
                    { key },
                    lost(() => 7),
                ),
            () =>
                limiter.withHoldAll(
                    [{ name: 'one', key: `${key} all` }],
                    {},
                    lost(() => 7),
                ),
        ];
        for (const call of calls) {
            proxy.hangs = false;
            if (onError === 'open') assert.equal(await call(), 7);
            else await assert.rejects(call(), /timeout/i);
        }
    }
});

test('in a transaction nothing fails open, since an error aborts it', async () => {
    const pool = poolOf({ options: '-c lock_timeout=20' });
    const limiter = new RateLimiter(LIMITS, { db: pool, onError: 'open' });
    const key = 'in a transaction';
    const [holder, client] = [await pool.connect(), await pool.connect()];
    await holder.query('BEGIN');
    await limiter.limit('one', { key, db: holder });
    await client.query('BEGIN');
    await assert.rejects(
        limiter.limit('one', { key, db: client, onError: 'open' }),
        /^TypeError: onError is "open" in a call with db/,
    );
    await assert.rejects(limiter.limit('one', { key, db: client }), { code: '55P03' });
    await assert.rejects(client.query('SELECT 1'), { code: '25P02' });
    await client.query('ROLLBACK');
    const own = new RateLimiter(LIMITS, { db: client, onError: 'open' });
    const { ok, error } = await own.limit('one', { key });
    assert.deepEqual([ok, error.code], [true, '55P03'], 'outside of one it does');
    await client.query('BEGIN');
    await assert.rejects(own.limit('one', { key }), { code: '55P03' });
    await client.query('ROLLBACK');

    // By its shape: a client of pg before 8.21, a runner and a manager of TypeORM; and its pool.
    const query = (...values) => client.query(...values);
    const connect = () => {};
    for (const [shape, isIn] of [
        [{ query, connect, release: connect }, true],
        [{ query, connect, isTransactionActive: true }, true],
        [{ query, queryRunner: { isTransactionActive: true }, transaction: connect }, true],
        [{ query, connect, isTransactionActive: false }, false],
        [{ query, queryRunner: undefined, transaction: connect }, false],
        [{ query, connect, transaction: connect }, false],
    ]) {
        const shaped = new RateLimiter(LIMITS, { db: shape, onError: 'open' });
        await client.query('BEGIN');
        const asked = shaped.limit('one', { key });
        if (isIn) await assert.rejects(asked, { code: '55P03' });
        else assert.equal((await asked).error.code, '55P03', Object.keys(shape).join());
        await client.query('ROLLBACK');
    }
    await holder.query('ROLLBACK');
    for (const each of [holder, client]) each.release();
});

test('a file that is missing, of a password or a certificate, is a mistake', async (context) => {
    // It asks for a password in clear text.
    const sockets = [];
    const server = net.createServer((socket) => {
        sockets.push(socket);
        socket.on('error', () => {}).on('data', () => socket.write(Buffer.from([0x52, 0, 0, 0, 8, 0, 0, 0, 3])));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    context.after(() => {
        for (const socket of sockets) socket.destroy();
        server.close();
    });
    const { port } = server.address();
    const secret = { host: '127.0.0.1', port, password: () => readFile('/nowhere/password', 'utf8') };
    for (const [way, open] of Object.entries(WAYS)) {
        const onUnchecked = () => assert.fail('it passed');
        assert.equal(await (await open(context, poolOf(secret), { onError: 'open', onUnchecked }))(), 'failed', way);
    }
});

test('a client that can not be made leaves no timer', async () => {
    const pool = poolOf({ connectionString: 'postgres://127.0.0.1:1/a?sslmode=verify-full&sslrootcert=/nowhere' });
    const limiter = new RateLimiter(LIMITS, { db: pool, timeout: 60_000 });
    const timers = () => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length;
    const before = timers();
    await assert.rejects(limiter.limit('one'), { code: 'ENOENT' });
    assert.equal(timers(), before);
});

test('each error that says "not now" fails open, and no other', async () => {
    const limiter = new RateLimiter({ one: bucket }, { onError: 'open' });
    const passes = async (error) => {
        const failing = new RateLimiter(limiter.definitions, {
            db: { query: () => Promise.reject(error) },
            onError: 'open',
        });
        return failing.limit('one').then(
            (result) => result.error !== undefined,
            (thrown) => assert.ok(thrown === error || thrown.cause === error) ?? false,
        );
    };
    const coded = (code, message = 'a message') => Object.assign(new Error(message), { code });
    const open = [
        '08000',
        '08001',
        '08003',
        '08006',
        '57P01',
        '57P02',
        '57P03',
        '53300',
        '55P03',
        '57014',
        '25006',
        '53100',
        '53200',
    ];
    const node = [
        'ECONNREFUSED',
        'ECONNRESET',
        'EPIPE',
        'ETIMEDOUT',
        'ENOTFOUND',
        'CONNECT_TIMEOUT',
        'CONNECTION_CLOSED',
        'P1001',
    ];
    for (const code of [...open, ...node]) {
        assert.equal(await passes(coded(code)), true, code);
        assert.equal(await passes(new Error('Failed query', { cause: coded(code) })), true, `${code}, wrapped`);
        assert.equal(
            await passes(
                Object.assign(coded('P2010'), { meta: { driverAdapterError: { cause: { originalCode: code } } } }),
            ),
            true,
        );
    }
    const closed = [
        'PT429',
        '42501',
        '42704',
        '22023',
        '22004',
        '28P01',
        '28000',
        '3D000',
        '08P01',
        '42883',
        '40001',
        '40P01',
        '25P02',
        'XX000',
    ];
    for (const code of [
        ...closed,
        'EACCES',
        'P1000',
        'P2010',
        'ERR_TLS_CERT_ALTNAME_INVALID',
        'CONNECTION_ENDED',
        7,
        undefined,
    ]) {
        assert.equal(await passes(coded(code)), false, `${code}`);
        assert.equal(
            await passes(new Error('Connection terminated', { cause: coded(code) })),
            !closed.includes(code),
            `${code}`,
        );
    }
    for (const [syscall, is] of [
        ['connect', true],
        ['open', false],
        [undefined, false],
    ])
        assert.equal(await passes(Object.assign(coded('ENOENT'), { syscall })), is, `ENOENT of ${syscall}`);
    assert.equal(await passes(new AggregateError([coded('ECONNREFUSED'), coded('28P01')])), false);
    for (const message of ['Connection terminated unexpectedly', 'timeout expired', 'Query read timeout'])
        assert.equal(await passes(new Error(message)), true, message);
    for (const message of [
        'SASL: SCRAM-SERVER-FIRST-MESSAGE: client password must be a string',
        'Cannot use a pool after calling end on the pool',
    ])
        assert.equal(await passes(new Error(message)), false, message);
});

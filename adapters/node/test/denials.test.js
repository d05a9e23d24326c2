// Denials that a process remembers: what is answered without the database, and what is not.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import pg from 'pg';

import { DAY, fixedWindow, HOUR, RateLimiter, SECOND, tokenBucket } from 'postgres-rate-limit';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { RateLimitStore as HonoStore } from 'postgres-rate-limit/hono';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';
import { ADAPTERS } from './adapters.js';
import { onFile } from './edition.js';
import { limits, run } from './limits.js';

const NAME = `denials_node_${process.pid}`;
const LIMITS = {
    window: fixedWindow({ rate: 5, period: HOUR, start: 'first request' }),
    daily: fixedWindow({ rate: 1, period: DAY, start: 'first request' }),
};
let database, pool;
before(async () => {
    database = await limits(NAME);
    pool = new pg.Pool(database.app);
});
after(async () => {
    await pool.end();
    await database.end();
});

/** A limiter, and how often it has asked the database since it was last asked that. */
const make = (options) => {
    let count = 0;
    const db = {
        query: (text, values) => {
            count += text.includes('pg_proc') ? 0 : 1;
            return pool.query(text, values);
        },
    };
    const limiter = new RateLimiter(LIMITS, { db, rememberDenials: { atMost: HOUR }, ...options });
    const asked = () => {
        const was = count;
        count = 0;
        return was;
    };
    return { limiter, asked };
};
let keys = 0;
const newKey = () => `key ${++keys}`;

test('a key that was denied is answered without the database, and no other call is', async () => {
    const heard = [];
    const { limiter, asked } = make({ onDecision: (decision) => heard.push(decision) });
    const key = newKey();
    await limiter.limit('window', { key, count: 3 });
    const denied = await limiter.limit('window', { key, count: 3 });
    assert.deepEqual([denied.ok, asked()], [false, 2]);
    for (const [call, count] of [
        ['limit', 3],
        ['check', 3],
        ['limit', 4],
    ]) {
        const { retryAfter, headers, ...again } = await limiter[call]('window', { key, count });
        const { retryAfter: first, headers: told, ...rest } = denied;
        assert.deepEqual([again, Object.keys(headers)], [rest, Object.keys(told)]);
        assert.ok(retryAfter <= first && retryAfter > first - 10 * SECOND, `${retryAfter} of ${first} ms`);
    }
    await assert.rejects(limiter.limit('window', { key, count: 3, throws: true }), { name: 'window' });
    assert.equal(asked(), 0);
    assert.deepEqual(
        heard.map(({ ok, remembered }) => [ok, remembered]),
        [[true, undefined], [false, undefined], ...Array(3).fill([false, true])],
        'a check is not heard',
    );
    // Fewer tokens, another key, another limit, another config, and a reservation.
    assert.equal((await limiter.limit('window', { key, count: 2 })).ok, true);
    assert.equal((await limiter.limit('window', { key: newKey() })).ok, true);
    assert.equal((await limiter.limit('daily', { key })).ok, true);
    assert.equal(
        (await limiter.limit('window', { key, config: fixedWindow({ ...LIMITS.window, rate: 50 }) })).ok,
        true,
    );
    assert.equal((await limiter.limit('window', { key, count: 3, reserve: true })).ok, true);
    assert.equal(asked(), 5);
});

test('until the call can pass, and for so long at most', async () => {
    const { limiter, asked } = make();
    const bucket = { key: newKey(), config: tokenBucket({ rate: 10, period: SECOND, capacity: 1 }) };
    assert.equal((await limiter.limit('bucket', bucket)).ok, true);
    const began = performance.now();
    const denied = await limiter.limit('bucket', bucket);
    let [again, answers] = [denied, 0];
    for (; !again.ok; answers++) {
        await new Promise(setImmediate);
        again = await limiter.limit('bucket', bucket);
    }
    assert.ok(denied.ok || performance.now() - began >= denied.retryAfter);
    assert.ok(asked() <= 4, 'the last one, or the one before it by a rounding, asks');
    assert.ok((await limiter.limit('bucket', { ...bucket, wait: 5 * SECOND })).ok, 'who waits asks then');

    const brief = make({ rememberDenials: { atMost: 30 } });
    const call = () => brief.limiter.limit('daily', { key: bucket.key });
    await call();
    assert.deepEqual([(await call()).ok, brief.asked()], [false, 2]);
    await sleep(40);
    assert.deepEqual([(await call()).ok, brief.asked()], [false, 1]);
    // One that can never pass, for so long.
    const never = () => limiter.limit('window', { key: bucket.key, count: 6 });
    asked();
    assert.deepEqual(
        [await never(), await never()].map(({ ok, retryAfter }) => [ok, retryAfter]),
        Array(2).fill([false, null]),
    );
    assert.equal(asked(), 1);
});

test('the headers of a denial that is remembered have fewer seconds, and are those of its style', async (context) => {
    let passed = 0;
    const { now } = performance;
    context.mock.method(performance, 'now', () => now.call(performance) + passed);
    const row = { n: 1, name: 'a', key: '', ok: false, limited: 'tokens', wait: 60, at: 0, remaining: 0, capacity: 1 };
    const policy = { 'RateLimit-Policy': '"a";q=1;w=60' };
    const headers = JSON.stringify({ 'RateLimit': '"a";r=0;t=61', ...policy, 'Retry-After': '60' });
    const other = { ...row, n: 2, limited: null, wait: null, at: null };
    let asked = 0;
    const query = async (text) => {
        asked += 1;
        return (text.includes('_all') ? [other, row] : [row]).map((each) =>
            text.includes('headers') ? { ...each, headers } : each,
        );
    };
    const options = { db: { query }, schema: 'public', rememberDenials: { atMost: HOUR } };
    const limiter = new RateLimiter({ a: LIMITS.daily }, options);
    for (const call of [
        (options) => limiter.limit('a', options),
        (options) => limiter.limitAll([{ name: 'a', key: 'b' }, { name: 'a' }], options),
    ]) {
        const ietf = async () => (await call({ headers: 'ietf' })).headers;
        assert.deepEqual(await ietf(), JSON.parse(headers));
        asked = 0;
        passed += 10_400;
        const { RateLimit, 'Retry-After': wait, ...rest } = await ietf();
        assert.deepEqual([RateLimit, wait, rest], ['"a";r=0;t=51', '50', policy]);
        assert.equal(asked, 0);
        assert.deepEqual((await call({})).headers, { 'Retry-After': '60' });
        assert.equal(asked, 1, 'another style is asked for');
    }
});

test('the limiter that resets, credits or defines forgets, and of too many the one used longest ago', async () => {
    const { limiter, asked } = make({ rememberDenials: { max: 2, atMost: HOUR } });
    const denied = async (key) => {
        await limiter.limit('daily', { key });
        assert.equal((await limiter.limit('daily', { key })).ok, false);
        asked();
    };
    const asks = async (key) => (await limiter.limit('daily', { key }), asked());
    const [a, b, c] = [newKey(), newKey(), newKey()];
    await denied(a);
    await limiter.credit('daily', { key: a });
    assert.equal((await limiter.limit('daily', { key: a })).ok, true);
    await denied(a);
    await limiter.reset('daily', { key: a });
    assert.equal((await limiter.limit('daily', { key: a })).ok, true);
    await denied(a);
    await denied(b);
    assert.deepEqual([await asks(a), await asks(b), await asks(a)], [0, 0, 0]);
    await denied(c);
    assert.deepEqual([await asks(a), await asks(c), await asks(b)], [0, 0, 1]);
    await assert.rejects(limiter.define(), { code: '42501' });
    asked();
    assert.deepEqual([await asks(b), await asks(b)], [1, 0]);
});

test('several limits: the same requests, until the last of them can pass', async () => {
    const { limiter, asked } = make();
    const key = newKey();
    const requests = [
        { name: 'window', key, count: 5 },
        { name: 'daily', key },
        { name: 'window', key: newKey() },
    ];
    assert.equal((await limiter.limitAll(requests)).ok, true);
    const denied = await limiter.limitAll(requests);
    asked();
    for (const call of ['limitAll', 'checkAll']) {
        const again = await limiter[call](requests);
        assert.deepEqual([again.ok, again.retryAt], [false, denied.retryAt]);
        assert.ok(again.retryAfter <= denied.retryAfter && again.retryAfter > denied.retryAfter - 10 * SECOND);
        assert.deepEqual(
            again.results.map(({ name, limitedBy, remaining }) => [name, limitedBy, remaining]),
            [
                ['window', 'tokens', 0],
                ['daily', 'tokens', 0],
                ['window', null, 4],
            ],
        );
    }
    assert.equal(asked(), 0);
    assert.equal((await limiter.limitAll(requests.slice(1, 2))).ok, false);
    assert.equal((await limiter.limitAll(requests.slice(2))).ok, true);
    assert.equal(asked(), 2);
    // One that could pass meanwhile says so.
    const soon = { name: 'soon', key, config: tokenBucket({ rate: 50, period: SECOND, capacity: 1 }) };
    await limiter.limitAll([soon]);
    const both = async () => (await limiter.limitAll([soon, requests[1]])).results.map(({ limitedBy }) => limitedBy);
    let deny = await both();
    while (deny[0]) deny = await both();
    assert.deepEqual([deny, asked() <= 2], [[null, 'tokens'], true]);
});

test('in a transaction nothing is remembered, nor answered', async () => {
    const { limiter, asked } = make();
    const client = await pool.connect();
    const key = newKey();
    await client.query('BEGIN');
    assert.equal((await limiter.limit('daily', { key, db: client })).ok, true);
    assert.equal((await limiter.limit('daily', { key, db: client })).ok, false, 'by what it has taken itself');
    await client.query('ROLLBACK');
    assert.equal((await limiter.limit('daily', { key })).ok, true);
    assert.equal((await limiter.limit('daily', { key })).ok, false);
    await client.query('BEGIN');
    await limiter.credit('daily', { key, db: client });
    assert.equal((await limiter.limit('daily', { key, db: client })).ok, true);
    await client.query('ROLLBACK');
    const own = new RateLimiter(LIMITS, { db: client, rememberDenials: { atMost: HOUR } });
    const other = newKey();
    await client.query('BEGIN');
    assert.deepEqual(
        [(await own.limit('daily', { key: other })).ok, (await own.limit('daily', { key: other })).ok],
        [true, false],
    );
    await client.query('ROLLBACK');
    assert.equal((await own.limit('daily', { key: other })).ok, true);
    client.release();
    asked();
});

test('what ends a denial early is not noticed meanwhile, and an unchecked call is not remembered', async () => {
    const { limiter } = make();
    const key = newKey();
    await limiter.limit('daily', { key });
    await limiter.limit('daily', { key });
    await make().limiter.reset('daily', { key });
    assert.equal((await limiter.limit('daily', { key })).ok, false, 'by another process');
    assert.equal(
        (await limiter.limit('daily', { key, db: pool })).ok,
        true,
        'another database may have another answer',
    );
    const other = newKey();
    for (const expected of [true, false])
        assert.equal((await limiter.limit('daily', { key: other, db: pool })).ok, expected);
    await make().limiter.reset('daily', { key: other });
    assert.equal((await limiter.limit('daily', { key: other })).ok, true, 'nor is that remembered');
    let failing = true;
    const db = {
        query: (...query) =>
            failing ? Promise.reject(Object.assign(new Error(), { code: '08006' })) : pool.query(...query),
    };
    const open = new RateLimiter(LIMITS, { db, onError: 'open', rememberDenials: true });
    const third = { key: newKey() };
    assert.ok((await open.limit('daily', third)).error);
    failing = false;
    const { ok, error } = await open.limit('daily', third);
    assert.deepEqual([ok, error], [true, undefined]);
});

const counting = () => {
    const query = (text, values) => {
        counted.asked += text.includes('pg_proc') ? 0 : 1;
        return pool.query(text, values);
    };
    const counted = { asked: 0, query };
    return counted;
};
for (const [name, Store] of [
    ['express-rate-limit', RateLimitStore],
    ['hono-rate-limiter', HonoStore],
]) {
    test(`${name}: the requests of a key that is denied`, async () => {
        const counted = counting();
        const store = new Store({ db: counted, name: `denials ${name}`, rememberDenials: { atMost: HOUR } });
        store.init({ limit: 2, windowMs: HOUR });
        const answers = async () => {
            const { totalHits, resetTime } = await store.increment('k');
            return [totalHits, Math.round((resetTime - Date.now()) / (10 * SECOND))];
        };
        const minutes = 360;
        assert.deepEqual(
            [await answers(), await answers(), await answers(), await answers(), await answers()],
            [
                [1, minutes],
                [2, minutes],
                [3, minutes],
                [3, minutes],
                [3, minutes],
            ],
        );
        assert.equal(counted.asked, 3);
        assert.equal((await store.increment('other')).totalHits, 1);
        await store.decrement('k');
        assert.equal((await store.increment('k')).totalHits, 2);
        await store.increment('k');
        await store.resetKey('k');
        assert.equal((await store.increment('k')).totalHits, 1);
        for (let n = 0; n < 3; n++) await store.increment('k');
        await store.resetAll();
        assert.equal((await store.increment('k')).totalHits, 1);
        store.init({ limit: 2, windowMs: HOUR });
        const others = [
            { limit: 3, windowMs: HOUR },
            { limit: 2, windowMs: SECOND },
            { limit: 2, windowMs: HOUR, skipFailedRequests: true },
            { limit: 2, windowMs: HOUR, skipSuccessfulRequests: true },
        ];
        for (const other of others)
            assert.throws(() => store.init(other), /^TypeError: RateLimitStore: a second limiter has /);

        // Where all are counted, none is denied by the database.
        const all = counting();
        const counts = new Store({ db: all, name: `counts ${name}`, rememberDenials: true });
        counts.init({ limit: 1, windowMs: HOUR, skipFailedRequests: true });
        for (const expected of [1, 2, 3]) assert.equal((await counts.increment('k')).totalHits, expected);
        assert.equal(all.asked, 3);
    });
}

test('@nestjs/throttler: the requests of a key that is denied', async () => {
    const counted = counting();
    const storage = new RateLimitThrottlerStorage({
        db: counted,
        name: 'denials nest',
        rememberDenials: { atMost: HOUR },
    });
    const increment = async (limit, throttler = 'default') => {
        const { totalHits, isBlocked, timeToBlockExpire } = await storage.increment('k', HOUR, limit, HOUR, throttler);
        return [totalHits, isBlocked, timeToBlockExpire > 3590];
    };
    for (const expected of [
        [1, false, false],
        [2, true, true],
        [2, true, true],
    ])
        assert.deepEqual(await increment(1), expected);
    assert.equal(counted.asked, 2);
    assert.deepEqual(await increment(2), [2, false, false]);
    assert.deepEqual(await increment(1, 'other'), [1, false, false]);
});

for (const [adapter, { counts }] of Object.entries(ADAPTERS)) {
    test(`${adapter}: the requests of a key that is denied`, async () => {
        const counted = counting();
        const options = { db: counted, name: `denials ${adapter}`, rememberDenials: { atMost: HOUR } };
        const count = counts(options, { limit: 1, windowMs: HOUR });
        assert.equal((await count('k')).passed, true);
        for (let n = 0; n < 4; n++) {
            const { passed, wait } = await count('k');
            assert.ok(!passed && wait > 3590 && wait <= 3600, `${wait} s`);
        }
        assert.equal(counted.asked, 2);
        assert.equal((await count('other')).passed, true);
    });
}

test('a store whose client is in a transaction remembers nothing', async () => {
    const client = await pool.connect();
    const store = new RateLimitStore({ db: client, name: 'denials client', rememberDenials: { atMost: HOUR } });
    store.init({ limit: 1, windowMs: HOUR });
    await client.query('BEGIN');
    assert.deepEqual([(await store.increment('k')).totalHits, (await store.increment('k')).totalHits], [1, 2]);
    await client.query('ROLLBACK');
    assert.deepEqual([(await store.increment('k')).totalHits, (await store.increment('k')).totalHits], [1, 2]);
    client.release();
});

test('a block without an end is remembered for as long as asked', async () => {
    const { limiter, asked } = make();
    const key = newKey();
    const place = onFile ? 'ratelimit.' : '';
    await run('postgres', NAME, `SELECT ${place}rl_block('daily', '${key}', until => 'infinity')`);
    assert.deepEqual(
        [(await limiter.limit('daily', { key })).ok, (await limiter.limit('daily', { key })).ok, asked()],
        [false, false, 1],
    );
    for (const rememberDenials of ['yes', 7, null, { max: 0 }, { max: 1.5 }, { atMost: 0 }, { atMost: '1 s' }]) {
        assert.throws(() => make({ rememberDenials }), /^TypeError: rememberDenials is .*; allowed: true, false, /);
        assert.throws(
            () => new RateLimitStore({ db: pool, name: 'a', rememberDenials }),
            /RateLimitStore: rememberDenials is /,
        );
    }
    make({ rememberDenials: false });
});

test('a list of limits is forgotten, too, where one of its keys is reset or credited', async () => {
    const { limiter, asked } = make();
    for (const call of ['reset', 'credit']) {
        const key = newKey();
        const requests = [{ name: 'daily', key }];
        await limiter.limitAll(requests);
        for (const all of ['limitAll', 'checkAll', 'limitAll']) assert.equal((await limiter[all](requests)).ok, false);
        assert.equal(asked(), 2);
        await limiter[call]('daily', { key });
        assert.deepEqual([(await limiter.checkAll(requests)).ok, (await limiter.limitAll(requests)).ok], [true, true]);
        asked();
    }
});

/** A database in which statements that match wait, before they are sent or when they are answered, for `open`. */
const gated = (expression, when) => {
    let open;
    const opened = new Promise((resolve) => (open = resolve));
    const query = async (...query) => {
        const holds = expression.test(query[0]);
        if (holds && when === 'before') await opened;
        const result = await pool.query(...query);
        if (holds && when === 'after') await opened;
        return result;
    };
    return { query, open };
};

test('a denial of before a reset is not learned meanwhile, nor after it', async () => {
    for (const call of ['reset', 'credit']) {
        const key = newKey();
        const db = gated(/rl_(reset|credit)\(/, 'before');
        const limiter = new RateLimiter(LIMITS, { db, rememberDenials: { atMost: HOUR } });
        assert.equal((await limiter.limit('daily', { key })).ok, true);
        const done = limiter[call]('daily', { key });
        assert.equal((await limiter.limit('daily', { key })).ok, false);
        assert.equal((await limiter.limitAll([{ name: 'daily', key }])).ok, false);
        db.open();
        await done;
        assert.equal((await limiter.checkAll([{ name: 'daily', key }])).ok, true, call);
        assert.equal((await limiter.limit('daily', { key })).ok, true, call);

        // Its answer comes last. Where too many keys are forgotten, the oldest time stands for all.
        for (const others of [0, 2]) {
            const late = newKey();
            const answers = gated(/rl_limit\(/, 'after');
            const small = new RateLimiter(LIMITS, { db: answers, rememberDenials: { atMost: HOUR, max: 1 } });
            await make().limiter.limit('daily', { key: late });
            const denied = small.limit('daily', { key: late });
            while ((await make().limiter.check('daily', { key: late })).ok) await sleep(1);
            await sleep(20);
            await small[call]('daily', { key: late });
            for (let n = 0; n < others; n++) await small.reset('daily', { key: newKey() });
            answers.open();
            await denied;
            assert.equal((await small.limit('daily', { key: late })).ok, true, `${call}, ${others}`);
        }
    }
});

test('nor by a store', async () => {
    const calls = { decrement: 'k', resetKey: 'k', resetAll: undefined };
    for (const [call, key] of Object.entries(calls)) {
        const db = gated(/rl_(reset|reset_keys|credit)\(/, 'before');
        const store = new RateLimitStore({ db: db, name: `meanwhile ${call}`, rememberDenials: { atMost: HOUR } });
        store.init({ limit: 1, windowMs: HOUR });
        await store.increment('k');
        const done = store[call](key);
        assert.equal((await store.increment('k')).totalHits, 2);
        db.open();
        await done;
        assert.equal((await store.increment('k')).totalHits, 1, call);
    }
});

// The client: definitions, decisions, waits, leases, holds and errors, on a database of its own.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import pg from 'pg';

import {
    concurrency,
    DAY,
    denialResponse,
    fixedWindow,
    HOUR,
    install,
    isRateLimitError,
    MINUTE,
    RateLimiter,
    RateLimitError,
    SECOND,
    slidingLog,
    slidingWindow,
    tokenBucket,
    tryAgain,
    unlimited,
    WEEK,
} from 'postgres-rate-limit';
import { application } from './application.js';
import { onFile } from './edition.js';
import { limits, run } from './limits.js';

const NAME = `limiter_node_${process.pid}`;
const LIMITS = {
    send: tokenBucket({ rate: 10, period: DAY, capacity: 3 }),
    signUp: { kind: 'fixed window', rate: 2, period: 7 * DAY, start: 'first request' },
    tokens: tokenBucket({ rate: 1000, period: 52 * WEEK, maxReserved: 500 }),
    exports: concurrency({ slots: 2, ttl: HOUR }),
    free: unlimited(),
};
// What a later version of the database has.
const LATER = ['rl_hold', 'rl_hold_all'];

let database, pool, has;
const later = (name) => (context, run) => (has.has(name) ? run() : context.skip(`the database has no ${name}`));
before(async () => {
    database = await limits(NAME);
    pool = new pg.Pool(database.app);
    const { rows } = await pool.query('SELECT proname FROM pg_proc WHERE proname = ANY ($1)', [LATER]);
    has = new Set(rows.map(({ proname }) => proname));
});
after(async () => {
    await pool.end();
    await database.end();
});

const make = (options) => new RateLimiter(LIMITS, { db: pool, ...options });
const thrown = (promise) =>
    promise.then(
        () => assert.fail('it passed'),
        (error) => error,
    );
let keys = 0;
const newKey = () => `key ${++keys}`;

test('limit, check, credit and reset', async () => {
    const limiter = make();
    const key = newKey();
    assert.equal((await limiter.limit('send', { key, count: 2 })).ok, true);
    const denied = await limiter.limit('send', { key, count: 2 });
    assert.equal(denied.ok, false);
    assert.ok(denied.retryAfter > 0 && denied.retryAfter <= DAY / 10, `${denied.retryAfter} ms`);
    const expected = Date.now() - application.ahead + denied.retryAfter;
    assert.ok(Math.abs(denied.retryAt - expected) < MINUTE);
    assert.equal(denied.capacity, 3);
    assert.equal((await limiter.check('send', { key })).ok, true);
    const credited = await limiter.credit('send', { key });
    assert.ok(credited.ok && credited.remaining >= 2 && credited.resetAt instanceof Date);
    assert.equal((await limiter.credit('signUp', { key, count: 1, takenAt: new Date(0) })).remaining, 2);
    assert.equal(await limiter.reset('send', { key }), true);
    assert.equal(await limiter.reset('send', { key }), false);
    assert.equal((await limiter.limit('send', { key, count: 3 })).remaining, 0);

    const never = await limiter.limit('send', { key, count: 4 });
    assert.deepEqual([never.ok, never.retryAfter, never.retryAt], [false, null, null]);
    const reserved = await limiter.limit('tokens', { key, count: 1250, reserve: true });
    assert.ok(
        reserved.ok && reserved.remaining === -250 && reserved.retryAfter > 0 && reserved.retryAt instanceof Date,
    );
    const { remaining, capacity, resetAt } = await limiter.limit('free', { key });
    assert.deepEqual([remaining, capacity, resetAt], [null, null, null]);
    for (const config of [slidingWindow({ rate: 1, period: WEEK }), slidingLog({ rate: 1, period: WEEK })]) {
        const call = () => limiter.limit(`inline ${config.kind}`, { key, config });
        assert.deepEqual([(await call()).ok, (await call()).ok], [true, false]);
    }
});

test('a key is a text or a number, and without one all share the limit', async () => {
    const limiter = make();
    for (const key of [7, '7', 7n]) assert.equal((await limiter.limit('send', { key })).ok, true);
    assert.equal((await limiter.limit('send', { key: 7 })).ok, false);
    assert.equal((await limiter.limit('signUp')).remaining, 1);
    assert.equal((await limiter.limit('signUp', {})).remaining, 0);
    await assert.rejects(limiter.limitAll([{ name: 'signUp', key: undefined }]), /^TypeError: key is undefined/);
    for (const key of [undefined, null, NaN, {}, true, Symbol('a')])
        await assert.rejects(limiter.limit('send', { key }), /^TypeError: key is /);
    await assert.rejects(limiter.limit('keyed', { config: fixedWindow({ rate: 1, period: '1 day', keyed: true }) }), {
        code: '22004',
    });
});

test('options may be inherited, or of a getter', async () => {
    const limiter = make();
    const key = newKey();
    await limiter.limit('signUp', { key, count: 2 });
    class Options {
        get key() {
            return key;
        }
    }
    for (const options of [Object.create({ key }), new Options()])
        for (const call of ['limit', 'check']) assert.equal((await limiter[call]('signUp', options)).ok, false);
    await assert.rejects(limiter.check('signUp', null), TypeError);
    assert.match(new RateLimiter(LIMITS, Object.create({ schema: 'mine' })).sql(), /^SELECT "mine"\.rl_define/);
});

test('a denial is an error where one asks for it', async () => {
    const limiter = make();
    const key = newKey();
    await limiter.limit('signUp', { key, count: 2, throws: true });
    const error = await thrown(limiter.limit('signUp', { key, throws: true }));
    assert.ok(error instanceof RateLimitError && error instanceof Error && isRateLimitError(error));
    assert.equal(error.name, 'signUp');
    assert.ok(error.retryAfter > 0 && error.retryAfter <= 7 * DAY && error.retryAt instanceof Date);
    assert.deepEqual(error.data, { kind: 'RateLimited', name: 'signUp', retryAfter: error.retryAfter });
    assert.match(error.message, /^rate limit "signUp" exceeded: retry after \d+ ms$/);
    assert.match(error.stack, /^RateLimitError: /);
    assert.equal(RateLimitError.from(error), error);
    const never = await thrown(limiter.check('signUp', { key, count: 3, throws: true }));
    assert.deepEqual([never.retryAfter, never.retryAt], [null, null]);
    assert.match(never.message, /it can never pass/);

    // In SQL, and in what wraps it.
    const direct = await thrown(
        pool.query(`SELECT * FROM rl_limit('signUp', $1, throws => true, config => $2)`, [key, LIMITS.signUp]),
    );
    const style = "SELECT set_config('ratelimit.error_style', 'pgrst', true)";
    const pgrst = await thrown(
        pool.query(`DO $$ BEGIN PERFORM 1 FROM (${style}) AS style; PERFORM rl_limit('signUp', '${key}',
        throws => true, config => '${JSON.stringify(LIMITS.signUp)}'); END $$`),
    );
    assert.equal(pgrst.code, 'PGRST');
    assert.deepEqual([RateLimitError.from(pgrst).name, RateLimitError.from(pgrst).retryAfter > 0], ['signUp', true]);
    const { code, details } = JSON.parse(pgrst.message);
    assert.equal(RateLimitError.from({ code, details }).name, 'signUp', 'as from supabase-js');
    const found = RateLimitError.from(new AggregateError([new Error('a', { cause: { driverError: direct } })]));
    assert.deepEqual([found.name, found.retryAfter > 0], ['signUp', true]);
    const circle = new Error('a circle');
    circle.cause = circle;
    for (const other of [
        circle,
        new Error('PT429'),
        { code: '42501' },
        { code: 'PGRST', message: '7' },
        'PT429',
        429,
        null,
        undefined,
    ]) {
        assert.equal(isRateLimitError(other), false);
        assert.equal(RateLimitError.from(other), undefined);
    }
    assert.equal(RateLimitError.from({ code: 'PT429', detail: 'cut' }).retryAfter, null);
});

test('the response to a denial', async () => {
    const at = new Date();
    const headers = { 'RateLimit': '"a";r=0;t=18', 'Retry-After': '18' };
    for (const [error, rateLimit, retryAfter] of [
        [new RateLimitError('a', 17_001, at), null, '18'],
        [new RateLimitError('a', 17_001, at, { headers }), '"a";r=0;t=18', '18'],
        [new RateLimitError('a', null, null), null, null],
        [{ code: 'PT429', detail: '{"name": "x\\r\\ny", "retryAfter": 1}' }, null, '1'],
    ]) {
        const response = denialResponse(new Error('a wrapper', { cause: error }));
        assert.equal(response.status, 429);
        assert.equal(response.headers.get('ratelimit'), rateLimit);
        assert.equal(response.headers.get('retry-after'), retryAfter);
    }
    const response = new Response('', { status: 429 });
    for (const other of [new Error('mine'), { ok: true, retryAfter: null }, undefined, null, response]) {
        assert.deepEqual([denialResponse(other), tryAgain(other)], [undefined, undefined]);
    }
    const [soon, never] = [300_000, null].map((retryAfter) => ({ ok: false, retryAfter }));
    assert.equal(await denialResponse(soon).text(), 'Too many requests: try again in 5 minutes');
    assert.equal(await denialResponse(never, (again) => `no: ${again}`).text(), 'no: this can never pass');
    const limiter = make();
    const key = newKey();
    await limiter.limit('send', { key, count: 2 });
    const both = [{ name: 'send', key, count: 2 }];
    for (const call of ['limit', 'check', 'limitAll', 'checkAll']) {
        const of = (options) =>
            call.endsWith('All') ? limiter[call](both, options) : limiter[call]('send', { key, count: 2, ...options });
        const { headers } = await of({ headers: 'ietf' });
        assert.deepEqual(Object.keys(headers).sort(), ['RateLimit', 'RateLimit-Policy', 'Retry-After'], call);
        assert.equal(headers['RateLimit-Policy'], '"send";q=10;w=86400');
        assert.match(headers.RateLimit, /^"send";r=1;t=\d+$/);
        assert.equal((await of({ headers: 'github' })).headers['x-ratelimit-remaining'], '1');
        assert.deepEqual(Object.keys((await of()).headers), ['Retry-After']);
        for (const denial of [await thrown(of({ headers: 'ietf', throws: true })), await of({ headers: 'ietf' })]) {
            const response = denialResponse(denial);
            assert.equal(response.headers.get('ratelimit-policy'), headers['RateLimit-Policy']);
            assert.ok(Math.abs(response.headers.get('retry-after') - headers['Retry-After']) <= 1);
        }
    }
    assert.deepEqual((await limiter.limit('send', { key })).headers, {});
    await assert.rejects(limiter.limit('send', { key, headers: 'http' }), { code: '22023' });
});

test('several limits at once', async () => {
    const limiter = make();
    const key = newKey();
    const both = [
        { name: 'send', key, count: 2 },
        { name: 'other', key, config: slidingLog({ rate: 1, period: 2 * DAY }) },
    ];
    assert.equal((await limiter.checkAll(both)).ok, true);
    const first = await limiter.limitAll(both, { throws: true });
    assert.deepEqual([first.ok, first.retryAfter, first.retryAt], [true, null, null]);
    const second = await limiter.limitAll(both);
    assert.deepEqual(
        second.results.map(({ name, ok, limitedBy }) => [name, ok, limitedBy]),
        [
            ['send', false, 'tokens'],
            ['other', false, 'tokens'],
        ],
    );
    assert.ok(
        second.retryAfter > DAY && second.retryAfter <= 2 * DAY && second.retryAt instanceof Date,
        'the longest wait',
    );
    const error = await thrown(limiter.checkAll(both, { throws: true }));
    assert.deepEqual([error.name, error.retryAfter > DAY], ['other', true]);
    const never = await thrown(limiter.limitAll([...both, { name: 'signUp', count: 9 }], { throws: true }));
    assert.ok(never.retryAfter === null && never.retryAt === null, 'one of them can never pass');
    await assert.rejects(limiter.limitAll('send'), TypeError);
});

test('a name that is nowhere is an error, which lists the names there are', async () => {
    const list = 'there are "send", "signUp", "tokens", "exports", "free"';
    const calls = [
        (limiter, name) => limiter.limit(name),
        (limiter, name) => limiter.check(name),
        (limiter, name) => limiter.reset(name),
        (limiter, name) => limiter.credit(name),
        (limiter, name) => limiter.getValue(name),
        (limiter, name) => limiter.acquire(name),
        (limiter, name) => limiter.hold(name),
        (limiter, name) => limiter.limitAll([{ name }]),
        (limiter, name) => limiter.holdAll([{ name }]),
    ];
    const heard = [];
    for (const options of [{}, { defined: true }]) {
        const limiter = make({ ...options, onDecision: (decision) => heard.push(decision) });
        for (const call of calls) {
            for (const name of ['sent', 'constructor', '__proto__', undefined]) {
                const error = await thrown(call(limiter, name));
                assert.ok(error instanceof TypeError && error.message.includes(list), error.stack);
            }
        }
    }
    assert.deepEqual(heard, [], 'nothing was decided');
    await assert.rejects(new RateLimiter({}, { db: pool }).limit('a'), /there are none/);
    assert.throws(() => new RateLimiter(), TypeError);
    for (const db of [null, 7, {}, 'postgres://'])
        assert.throws(() => new RateLimiter({}, { db }), /^TypeError: db is .*; allowed: /);
    await assert.rejects(new RateLimiter(LIMITS).limit('send'), /pass db/);
});

test('definitions in the database: by define, or by a migration', async () => {
    const owner = new pg.Pool(database.owner);
    const definitions = {
        "it's": tokenBucket({ rate: 2, period: HOUR }),
        'a "name"': fixedWindow({ rate: 1, period: '1 day', timezone: 'UTC' }),
    };
    const names = Object.keys(definitions).sort();
    const limiter = new RateLimiter(definitions, { db: pool, defined: true });
    await assert.rejects(limiter.limit("it's"), { code: '42704' });
    await assert.rejects(limiter.define(), { code: '42501' });
    assert.deepEqual((await limiter.define({ db: owner })).sort(), names);
    assert.deepEqual(await limiter.define({ db: owner }), [], 'what is the same is left alone');
    assert.deepEqual([(await limiter.limit("it's", { count: 2 })).ok, (await limiter.limit("it's")).ok], [true, false]);

    const changed = new RateLimiter(
        { ...definitions, "it's": tokenBucket({ rate: 3, period: HOUR }) },
        { db: owner, defined: true },
    );
    assert.deepEqual(await changed.define(), ["it's"]);
    assert.equal((await limiter.check("it's")).capacity, 3);

    // An application that brings its own configs may not override these.
    const inline = new RateLimiter(definitions, { db: pool });
    for (const call of [() => inline.limit("it's"), () => inline.limitAll([{ name: 'a "name"' }])]) {
        const error = await thrown(call());
        assert.match(error.message, /^rate limit ".*" is defined in the database.*defined: true/);
        assert.equal(error.cause.code, '42501');
    }
    const { rows } = await owner.query('SELECT name, config FROM rl_config ORDER BY name COLLATE "C"');
    await owner.query('SELECT rl_undefine(name) FROM rl_config');
    await owner.query(new RateLimiter({ ...definitions, ...changed.definitions }).sql());
    assert.deepEqual((await owner.query('SELECT name, config FROM rl_config ORDER BY name COLLATE "C"')).rows, rows);
    const elsewhere = new RateLimiter({ a: unlimited() }, { schema: 'order' }).sql();
    assert.equal(elsewhere, `SELECT "order".rl_define('a', '{"kind":"unlimited"}');\n`);
    await owner.query('SELECT rl_undefine(name) FROM rl_config');
    await owner.end();
});

test('idle rows are pruned', async () => {
    const owner = new pg.Pool(database.owner);
    const limiter = new RateLimiter({}, { db: owner });
    const count = async () => (await owner.query("SELECT FROM rateLimits WHERE name = 'pruned'")).rowCount;
    for (const key of ['a', 'b', 'c']) await limiter.limit('pruned', { key, config: tokenBucket({ rate: 2, period: HOUR }) });
    await limiter.prune({ maxRows: 1, undefinedIdle: HOUR });
    assert.equal(await count(), 3, 'none is idle for an hour');
    await limiter.reset('pruned', { key: 'a', config: tokenBucket({ rate: 2, period: HOUR }) });
    assert.ok((await limiter.prune()) >= 1);
    assert.equal(await count(), 2);
    assert.ok((await limiter.prune({ undefinedIdle: 0 })) >= 2);
    assert.equal(await count(), 0);
    await owner.end();
});

test('each decision is heard, and what hears it harms none', async () => {
    const heard = [];
    const key = newKey();
    const limiter = make({ onDecision: (decision) => heard.push(decision) });
    await limiter.limit('signUp', { key, count: 2 });
    await limiter.limit('signUp', { key, throws: true }).catch(() => {});
    await limiter.check('signUp', { key });
    await limiter.limitAll([
        { name: 'send', key },
        { name: 'signUp', key },
    ]);
    await limiter.limitAll([
        { name: 'send', key },
        { name: 'tokens', key },
    ]);
    await limiter.acquire('exports', { key });
    assert.deepEqual(
        heard.map(({ name, ok }) => [name, ok]),
        [
            ['signUp', true],
            ['signUp', false],
            ['signUp', false],
            ['send', true],
            ['tokens', true],
            ['exports', true],
        ],
    );
    assert.ok(heard.every(({ ms }) => ms > 0) && heard[1].retryAfter > 0 && heard[0].retryAfter === null);
    assert.ok(
        heard.every((decision) =>
            Object.keys(decision).every((field) => ['name', 'ok', 'retryAfter', 'limitedBy', 'ms'].includes(field)),
        ),
    );
    for (const onDecision of [
        () => {
            throw new Error('mine');
        },
        async () => {
            throw new Error('mine');
        },
    ]) {
        assert.equal((await make({ onDecision }).limit('send', { key: newKey() })).ok, true);
    }
});

test('who waits gets what comes, in time, and not in a transaction', async () => {
    const limiter = make();
    const bucket = { config: tokenBucket({ rate: 20, period: SECOND, capacity: 1 }) };
    const waiting = (wait, more) => limiter.limit('waits', { ...bucket, wait, ...more });
    const all = await Promise.all(Array.from({ length: 8 }, () => waiting(30 * SECOND)));
    assert.ok(all.every(({ ok }) => ok));
    let calls = 0;
    const counted = {
        query(text, values) {
            calls += 1;
            return pool.query(text, values);
        },
    };
    const hour = { config: fixedWindow({ rate: 1, period: HOUR, start: 'first request' }) };
    await limiter.limit('hour', hour);
    assert.equal((await limiter.limit('hour', { ...hour, wait: SECOND, db: counted })).ok, false, 'none comes in time');
    assert.ok(
        isRateLimitError(await thrown(limiter.limit('hour', { ...hour, wait: SECOND, throws: true, db: counted }))),
    );
    assert.equal(calls, 2, 'so it does not wait');
    await assert.rejects(limiter.limit('hour', { ...hour, wait: 2 * HOUR, signal: AbortSignal.timeout(50) }), {
        name: 'AbortError',
    });
    for (const wait of [-1, NaN, 'long']) await assert.rejects(waiting(wait), /^TypeError: wait is /);
    const client = await pool.connect();
    await client.query('BEGIN');
    await assert.rejects(waiting(SECOND, { db: client }), /^TypeError: wait would keep the transaction open/);
    await client.query('ROLLBACK');
    assert.equal((await waiting(5 * SECOND, { db: client })).ok, true);
    client.release();
});

test('a caller that waits gets the slot that is released, not only one that expires', async () => {
    const key = newKey();
    const heard = [];
    const waiting = make({ onDecision: ({ ok }) => heard.push(ok) });
    const limiter = make();
    const denied = async () => {
        for (heard.length = 0; heard.length === 0; ) await new Promise((resolve) => setTimeout(resolve, 5));
    };
    const leases = [await limiter.acquire('exports', { key }), await limiter.acquire('exports', { key })];
    const first = waiting.withLease('exports', { key, wait: MINUTE }, () => 'ran');
    await denied();
    await leases[0].release();
    assert.equal(await first, 'ran');
    // With the tokens of a hold, too, unless those deny.
    leases.push(await limiter.acquire('exports', { key }));
    const requests = [
        { name: 'exports', key },
        { name: 'signUp', key },
    ];
    const held = waiting.withHoldAll(requests, { wait: MINUTE }, () => 'held');
    await denied();
    await leases[1].release();
    assert.equal(await held, 'held');
    assert.equal((await limiter.limit('signUp', { key })).ok, true);
    const { ok, retryAfter } = await limiter.holdAll(requests, { wait: MINUTE });
    assert.ok(!ok && retryAfter > MINUTE, 'no look at slots brings the tokens of a week');
    // No wait frees more slots than there are; and it ends.
    assert.equal((await limiter.acquire('exports', { key, count: 3, wait: MINUTE })).retryAfter, null);
    // A line is of calls that are alike: one for more slots keeps none from what there is.
    const most = limiter.acquire('exports', { key, count: 2, wait: MINUTE });
    const last = await limiter.acquire('exports', { key, wait: MINUTE });
    await Promise.all([last, leases[2]].map((lease) => lease.release()));
    await (await most).release();
    for (let n = 0; n < 2; n++) await limiter.acquire('exports', { key });
    const late = await limiter.acquire('exports', { key, wait: 20 });
    assert.ok(!late.ok && late.retryAfter > MINUTE);
});

test('of those that wait for the slots of a key, the first asks for all', async () => {
    const config = concurrency({ slots: 1, ttl: HOUR });
    let [free, most, running] = [0, 0, 0];
    const db = {
        async query(text) {
            if (text.includes('rl_release')) return [{ ok: (free += 1) > 0 }];
            most = Math.max(most, ++running);
            await new Promise((resolve) => setTimeout(resolve, 2));
            running -= 1;
            const ok = free > 0;
            if (ok) free -= 1;
            return [{ ok, lease: ok ? 'a' : null, wait: ok ? null : 0.05, remaining: 0, capacity: 1 }];
        },
    };
    const limiter = new RateLimiter({ one: config }, { db, schema: 'public' });
    const came = [];
    const call = (n, more) => limiter.withLease('one', { key: 'k', wait: MINUTE, ...more }, () => came.push(n));
    const signal = AbortSignal.timeout(30);
    const calls = Array.from({ length: 20 }, (_, n) => call(n));
    const left = thrown(call(20, { signal }));
    const late = thrown(call(21, { wait: 40 }));
    calls.push(call(22));
    const other = limiter.withLease('one', { key: 'other', wait: MINUTE }, () => came.push('other'));
    assert.equal((await left).name, 'AbortError');
    assert.equal((await late).name, 'one');
    free = 2;
    await Promise.all([...calls, other]);
    assert.deepEqual(came.filter((n) => n !== 'other'), [...Array(20).keys(), 22], 'in their order');
    assert.ok(most <= 3, `${most} at once: of each key the first, and one whose time has ended`);
});

test('a lease is released, however its block or its callback ends', async () => {
    const limiter = make();
    const key = newKey();
    const free = async () => (await limiter.check('exports', { key })).remaining;
    const first = await limiter.acquire('exports', { key });
    assert.ok(
        first.ok && first.id && first.expiresAt instanceof Date && first.remaining === 1 && first.capacity === 2,
    );
    const before = first.expiresAt;
    assert.equal(await first.extend(), true);
    assert.ok(first.expiresAt >= before);
    const second = await limiter.acquire('exports', { key, count: 1 });
    const denied = await limiter.acquire('exports', { key });
    assert.deepEqual([denied.ok, denied.id, denied.expiresAt], [false, null, null]);
    assert.ok(denied.retryAfter > 0 && denied.retryAt instanceof Date);
    assert.deepEqual([await denied.extend(), await denied.release()], [false, false]);
    assert.equal((await thrown(limiter.acquire('exports', { key, throws: true }))).name, 'exports');

    // By another process, which has its text.
    assert.ok((await limiter.extend('exports', second.id)) instanceof Date);
    assert.equal(await limiter.release('exports', second.id), true);
    assert.deepEqual(
        [await second.release(), await second.extend(), await limiter.extend('exports', second.id)],
        [false, false, null],
    );
    await first[Symbol.asyncDispose]();
    assert.equal(await free(), 2);
    await first[Symbol.asyncDispose]();

    const busy = await limiter.withLease('exports', { key }, async (lease) => [lease.ok, await free()]);
    assert.deepEqual([busy, await free()], [[true, 1], 2]);
    for (const what of [new Error('mine'), undefined, 'text']) {
        const error = await limiter
            .withLease('exports', { key }, () => {
                throw what;
            })
            .catch((error) => [error]);
        assert.deepEqual(error, [what]);
        assert.equal(await free(), 2);
    }
    // Released before, and of a key that is exempt.
    await limiter.withLease('exports', { key }, (lease) => lease.release());
    const exempt = await limiter.acquire('free', { key });
    assert.deepEqual(
        [exempt.ok, exempt.id, await exempt.extend(), await exempt.release()],
        [true, null, true, true],
    );
    const config = concurrency({ slots: 1, ttl: '1 minute' });
    await limiter.withLease('inline', { config }, async (lease) => assert.equal(await lease.extend(), true));
    assert.equal((await limiter.check('inline', { config })).remaining, 1);
    // It can't be released, and what the callback threw is not hidden.
    const mine = new Error('mine');
    const broken = {
        query: (text, values) =>
            text.includes('rl_release') ? Promise.reject(new Error('lost')) : pool.query(text, values),
    };
    assert.equal(
        await thrown(
            limiter.withLease('exports', { key, db: broken }, () => {
                throw mine;
            }),
        ),
        mine,
    );
    await assert.rejects(
        limiter.withLease('exports', { key, db: broken }, () => 1),
        /lost/,
    );
});

test('a hold is settled, however its block or its callback ends', (context) =>
    later('rl_hold')(context, async () => {
        const limiter = make();
        const key = newKey();
        const left = async () => Math.floor((await limiter.check('tokens', { key })).remaining);
        const hold = await limiter.hold('tokens', { key, count: 400, ttl: 2 * HOUR });
        assert.ok(
            hold.ok && hold.id && hold.held === 400 && hold.expiresAt instanceof Date && hold.resetAt instanceof Date,
        );
        assert.equal(await left(), 600);
        const settled = await hold.settle(150);
        assert.ok(settled.ok && settled.remaining >= 850);
        assert.equal((await limiter.settle(hold.id, 150)).ok, false, 'it was settled before');
        assert.equal(await left(), 850);
        const denied = await limiter.hold('tokens', { key, count: 900 });
        assert.deepEqual([denied.ok, denied.id], [false, null]);
        assert.ok(denied.retryAfter > 0);
        assert.equal((await denied.settle(1)).ok, false);
        assert.equal((await thrown(limiter.hold('tokens', { key, count: 900, throws: true }))).name, 'tokens');
        const some = await limiter.hold('tokens', {
            key,
            count: 900,
            atLeast: 800,
            id: 'mine',
            onExpiry: 'charge',
            ttl: '1 hour',
        });
        assert.deepEqual([some.id, some.held], ['mine', 850]);
        assert.equal((await limiter.settle('mine', 0)).ok, true);

        // A block: what was used, or nothing.
        for (const [used, rest] of [
            [undefined, 850],
            [100, 750],
        ]) {
            const block = await limiter.hold('tokens', { key, count: 300 });
            block.used = used;
            await block[Symbol.asyncDispose]();
            assert.equal(await left(), rest);
        }
        // A callback: what was used, or all; if it throws, what was used, or nothing.
        const call = (run) => limiter.withHold('tokens', { key, count: 200 }, run);
        assert.equal(
            await call((hold) => {
                hold.used = 50;
                return 'value';
            }),
            'value',
        );
        assert.equal(await left(), 700);
        await call(() => {});
        assert.equal(await left(), 500);
        await call(async (hold) => {
            await hold.settle(10);
        });
        assert.equal(await left(), 490);
        for (const what of [new Error('mine'), undefined, 'text']) {
            assert.deepEqual(
                await call(() => {
                    throw what;
                }).catch((error) => [error]),
                [what],
            );
            assert.equal(await left(), 490);
        }
        assert.deepEqual(
            await call((hold) => {
                hold.used = 90;
                throw 'late';
            }).catch((error) => [error]),
            ['late'],
        );
        assert.equal(await left(), 400);
        assert.ok(
            isRateLimitError(
                await thrown(limiter.withHold('tokens', { key, count: 401 }, () => assert.fail('it ran'))),
            ),
        );
        const exempt = await limiter.hold('free', { key, count: 5 });
        assert.deepEqual([exempt.ok, exempt.id, exempt.held, (await exempt.settle(3)).ok], [true, null, 5, true]);

        // It can't be settled, and what the callback threw is not hidden.
        const mine = new Error('mine');
        const broken = {
            query: (text, values) =>
                text.includes('rl_settle') ? Promise.reject(new Error('lost')) : pool.query(text, values),
        };
        const lost = (run) => limiter.withHold('tokens', { key, count: 1, db: broken }, run);
        assert.equal(
            await thrown(
                lost(() => {
                    throw mine;
                }),
            ),
            mine,
        );
        await assert.rejects(
            lost(() => 1),
            /lost/,
        );
    }));

test('a hold of several limits', (context) =>
    later('rl_hold_all')(context, async () => {
        const limiter = make();
        const key = newKey();
        const left = async (name) => Math.floor((await limiter.check(name, { key })).remaining);
        const requests = [
            { name: 'signUp', key },
            { name: 'tokens', key, count: 400 },
        ];
        const hold = await limiter.holdAll(requests, { id: `all ${key}`, ttl: HOUR });
        assert.deepEqual(
            [hold.ok, hold.id, hold.results.map(({ name, held }) => [name, held])],
            [
                true,
                `all ${key}`,
                [
                    ['signUp', 1],
                    ['tokens', 400],
                ],
            ],
        );
        const settled = await hold.settle({ tokens: 275 });
        assert.deepEqual(settled.map(({ name, key }) => [name, key]).sort(), [
            ['signUp', key],
            ['tokens', key],
        ]);
        assert.deepEqual([await left('signUp'), await left('tokens')], [1, 725]);
        assert.deepEqual(await limiter.settleAll(hold.id, { tokens: 275 }), []);

        assert.equal(
            await limiter.withHoldAll(requests, {}, (hold) => {
                hold.used = { tokens: 25, signUp: 0 };
                return 7;
            }),
            7,
        );
        assert.deepEqual([await left('signUp'), await left('tokens')], [1, 700]);
        await assert.rejects(
            limiter.withHoldAll(requests, {}, () => {
                throw new Error('mine');
            }),
            /mine/,
        );
        assert.deepEqual([await left('signUp'), await left('tokens')], [1, 700]);
        const block = await limiter.holdAll(requests);
        await block[Symbol.asyncDispose]();
        assert.deepEqual([await left('signUp'), await left('tokens')], [1, 700]);
        await limiter.withHoldAll(requests, {}, () => {});
        assert.deepEqual([await left('signUp'), await left('tokens')], [0, 300]);
        const denied = await limiter.holdAll(requests);
        assert.deepEqual(
            [denied.ok, denied.id, denied.results.map(({ limitedBy }) => limitedBy)],
            [false, null, ['tokens', 'tokens']],
        );
        assert.equal((await thrown(limiter.withHoldAll(requests, {}, () => assert.fail('it ran')))).name, 'tokens');
    }));

test('what is no number of tokens is settled as all that is held, and heard of', (context) =>
    later('rl_hold_all')(context, async () => {
        const heard = [];
        const limiter = make({ onUnsettled: (unsettled) => heard.push(unsettled) });
        const key = newKey();
        const gone = async () => 1000 - Math.floor((await limiter.check('tokens', { key })).remaining);
        const requests = [{ name: 'tokens', key, count: 10 }];
        let expected = 0;
        for (const used of [NaN, -1, '5', Infinity, 1e16, 5n, { tokens: 5 }]) {
            const answer = await limiter.withHold('tokens', { key, count: 10, id: 'mine' }, (hold) => {
                hold.used = used;
                return 'an answer';
            });
            assert.deepEqual([answer, await gone()], ['an answer', (expected += 10)], String(used));
        }
        for (const used of [NaN, '5', [5], { tokens: NaN }, { tokens: '5' }, { tokens: null }, { tokens: -1 }]) {
            const answer = await limiter.withHoldAll(requests, { id: 'mine' }, (hold) => {
                hold.used = used;
                return 'an answer';
            });
            assert.deepEqual([answer, await gone()], ['an answer', (expected += 10)], JSON.stringify(used));
        }
        // A block, and a callback that throws.
        const block = await limiter.hold('tokens', { key, count: 10, id: 'mine' });
        block.used = NaN;
        await block[Symbol.asyncDispose]();
        const mine = new Error('mine');
        const throwing = (hold) => {
            hold.used = NaN;
            throw mine;
        };
        assert.equal(await thrown(limiter.withHold('tokens', { key, count: 10, id: 'mine' }, throwing)), mine);
        assert.equal(await gone(), (expected += 20));
        assert.equal(heard.length, 16);
        for (const { hold, used, error } of heard) {
            assert.deepEqual([hold, used], ['mine', undefined]);
            assert.match(error.message, /^used is .*; allowed: a number from 0 on/);
        }
        assert.match(heard[0].error.message, /^used is NaN/);

        // By default it is a warning. What a limit's part leaves open counts as all.
        const warned = context.mock.method(console, 'warn', () => {});
        await make().withHold('tokens', { key, count: 10 }, throwing).catch(() => {});
        assert.match(warned.mock.calls[0].arguments[0], /hold .* was not settled by what was used: used is NaN/);
        await limiter.withHoldAll(requests, {}, (hold) => (hold.used = { tokens: undefined }));
        assert.deepEqual([await gone(), heard.length], [expected + 20, 16]);
    }));

test('reserved work begins at its time, or gives back what it holds', (context) =>
    later('rl_hold_all')(context, async () => {
        const limiter = make();
        const key = newKey();
        const config = tokenBucket({ rate: 4, period: SECOND, capacity: 1 });
        const soon = { name: 'soon', key, config, reserve: true };
        const now = () => Date.now() - application.ahead;
        const begins = ({ retryAt }) => assert.ok(now() >= retryAt - 2, `${retryAt - now()} ms too early`);
        await limiter.limit('soon', { key, config });
        await limiter.withHold('soon', soon, (hold) => (assert.ok(hold.retryAfter > 0), begins(hold)));
        const requests = [{ name: 'signUp', key }, soon];
        await limiter.withHoldAll(requests, {}, ({ results }) => begins(results[1]));

        const left = async () => Math.floor((await limiter.check('tokens', { key })).remaining);
        await limiter.limit('tokens', { key, count: 1000 });
        const late = { key, count: 100, reserve: true };
        const ended = () => ({ signal: AbortSignal.timeout(30) });
        for (const call of [
            () => limiter.withHold('tokens', { ...late, ...ended() }, () => assert.fail('it ran')),
            () => limiter.withHoldAll([{ name: 'tokens', ...late }], ended(), () => assert.fail('it ran')),
        ]) {
            assert.equal((await thrown(call())).name, 'AbortError');
            assert.equal(await left(), 0);
        }
    }));

test('the value of a key', async () => {
    const limiter = make();
    const key = newKey();
    const full = await limiter.getValue('send', { key });
    assert.deepEqual(
        [full.config.kind, full.config.capacity, full.state, full.blockedUntil],
        ['token bucket', 3, null, null],
    );
    assert.ok(Math.abs(full.now - (Date.now() - application.ahead)) < MINUTE);
    await limiter.limit('send', { key, count: 2 });
    const { state, now } = await limiter.getValue('send', { key });
    assert.ok(state.value >= 1 && state.value < 2 && state.ts <= now);
    const other = await limiter.getValue('other', { key, config: fixedWindow({ rate: 1, period: DAY }) });
    assert.deepEqual([other.config.kind, other.state], ['fixed window', null]);
});

test('a database without the limiter, or with an older one, says what to run', async (context) => {
    const empty = `${NAME}_empty`;
    await run('postgres', 'postgres', `CREATE DATABASE ${empty}`);
    context.after(() => run('postgres', 'postgres', `DROP DATABASE ${empty} WITH (FORCE)`));
    await run('postgres', empty, async (db) => {
        const limiter = new RateLimiter(LIMITS, { db });
        for (const call of [
            () => limiter.limit('send'),
            () => new RateLimiter(LIMITS, { db, schema: 'limits' }).limit('send'),
        ]) {
            const error = await thrown(call());
            assert.match(
                error.message,
                /CREATE EXTENSION ratelimit.*npx postgres-rate-limit install.*schema: 'limits'/,
            );
        }
        // Found as soon as it is there.
        await db.query(`CREATE FUNCTION rl_limit(text, text, float8, boolean, config jsonb) RETURNS TABLE (ok boolean, retry_after float8,
            retry_at timestamptz, remaining float8, capacity float8, reset_at timestamptz, limited_by text) LANGUAGE sql AS $$SELECT true, 0, now(), 0, 0, now(), ''$$`);
        assert.equal((await limiter.limit('send')).ok, true);
        const older = await thrown(limiter.getValue('send'));
        assert.match(older.message, /rl_value.*needs a later version of ratelimit/);
        assert.equal(older.cause.code, '42883');
    });
});

test('the limiter is found in whatever schema it is', async (context) => {
    const name = `${NAME}_elsewhere`;
    const place = onFile ? 'ratelimit' : 'limits';
    const elsewhere = await limits(name, place);
    context.after(() => elsewhere.end());
    for (const options of [{}, { schema: place }]) {
        await run(elsewhere.app.user, name, async (db) => {
            const limiter = new RateLimiter(LIMITS, { db, ...options });
            await db.query('SET search_path = pg_catalog');
            const ok = await limiter.limit('send');
            assert.equal(ok.ok, true);
            assert.equal(await limiter.withLease('exports', {}, (lease) => lease.extend()), true);
            assert.equal((await limiter.limitAll([{ name: 'signUp' }])).ok, true);
        });
    }
});

test('a connection that is lost is the error of the driver, and admits nothing', async () => {
    const client = new pg.Client(database.app);
    client.on('error', () => {});
    await client.connect();
    const limiter = make({ db: client });
    assert.equal((await limiter.limit('send', { key: newKey() })).ok, true);
    const {
        rows: [{ pid }],
    } = await client.query('SELECT pg_backend_pid() AS pid');
    await run('postgres', 'postgres', `SELECT pg_terminate_backend(${pid}, 10000)`);
    for (const call of [() => limiter.limit('send'), () => limiter.limit('send', { throws: true, wait: SECOND })]) {
        const error = await thrown(call());
        assert.equal(isRateLimitError(error), false);
        assert.match(error.message, /terminating|terminated|not queryable|closed/i);
    }
    await client.end().catch(() => {});
    const nowhere = make({ db: new pg.Pool({ host: '/nowhere' }) });
    await assert.rejects(nowhere.limit('send'), { code: 'ENOENT' });
});

test('waits and times are rounded up to a millisecond, and those of an expiry down', async () => {
    const at = 1_700_000_000;
    const row = { ok: false, remaining: 0, capacity: 3, lease: 'a', hold: 'a', held: 0 };
    const answering = (more) => make({ schema: 'public', db: { query: async () => [{ ...row, ...more }] } });
    for (const [wait, milliseconds] of [
        [0.333334, 334],
        [0.0003, 1],
        [0.333, 333],
        [6, 6000],
        [86_399.999, 86_399_999],
    ]) {
        const answer = await answering({ wait, at: at + wait, reset: at + wait }).limit('send');
        assert.equal(answer.retryAfter, milliseconds);
        assert.equal(answer.retryAt.getTime(), at * 1000 + milliseconds);
        assert.equal(answer.resetAt.getTime(), at * 1000 + milliseconds);
        const lease = await answering({ ok: true, expires: at + wait }).acquire('exports');
        assert.equal(lease.expiresAt.getTime(), at * 1000 + Math.floor(wait * 1000));
    }
});

test('a limiter that moves to another schema is found there after one error', async (context) => {
    const name = `${NAME}_moves`;
    const [from, to] = [onFile ? 'ratelimit' : 'public', 'moved'];
    const moving = await limits(name);
    const options = { database: name, user: 'postgres', options: `-c search_path=${from},${to}` };
    const own = new pg.Pool(options);
    context.after(async () => {
        await own.end();
        await moving.end();
    });
    const [found, given] = [make({ db: own }), make({ db: own, schema: from })];
    for (const limiter of [found, given]) assert.equal((await limiter.limit('send')).ok, true);
    await run(
        'postgres',
        name,
        onFile ? 'DROP SCHEMA ratelimit CASCADE' : 'DROP EXTENSION ratelimit',
        `CREATE SCHEMA ${to}`,
        onFile ? (client) => install(client, { schema: to }) : `CREATE EXTENSION ratelimit SCHEMA ${to}`,
    );
    for (const limiter of [found, given]) await assert.rejects(limiter.limit('send'), /ratelimit/);
    assert.equal((await found.limit('send')).ok, true);
    await assert.rejects(given.limit('send'), /ratelimit/, 'one that was given is that');
});

// Calls that go together: which do, and what an error, a time-out, a locked row or a missing right means for each. What
// is sent is counted by the functions of a schema of its own; nothing depends on how long anything takes.
import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import pg from 'pg';
import postgres from 'postgres';

import { fixedWindow, HOUR, RateLimiter } from 'postgres-rate-limit';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';
import { onFile, STORES } from './edition.js';
import { counted } from './counted.js';
import { limits } from './limits.js';

const NAME = `batch_node_${process.pid}`;
const place = onFile ? 'ratelimit' : 'public';
const rule = fixedWindow({ rate: 1000, period: 100 * HOUR, start: 'first request', keyed: true });
let database, calls, owner, real;
before(async () => {
    database = await limits(NAME);
    calls = await counted(database);
    owner = new pg.Pool({ user: 'postgres', database: NAME });
    real = new RateLimiter({}, { db: owner });
});
after(async () => {
    await owner.end();
    await database.end();
});

let names = 0;
/** A limiter of its own pool, and a name of its own. */
function open(context, { pool: more = {}, config = rule, ...options } = {}) {
    const pool = more instanceof pg.Pool ? more : new pg.Pool({ ...database.app, ...more });
    if (pool !== more) {
        pool.on('error', () => {});
        context.after(() => pool.end());
    }
    const limiter = new RateLimiter({ [`one ${names}`]: config }, { db: pool, schema: calls.schema, ...options });
    const name = `one ${names++}`;
    const limit = (key, more) => limiter.limit(name, { key: String(key), ...more });
    const of = { ...config, keyed: undefined };
    const used = async (key) => of.rate - (await real.check(name, { key, config: of })).remaining;
    return { pool, limiter, name, limit, used };
}
const each = (number, run) => Promise.all(Array.from({ length: number }, (_, n) => run(n)));
/** Makes a pool's connections, so that a first call is not slow. */
const warm = async ({ pool, limit }, number = 2) => {
    await each(number, () => pool.query('SELECT pg_sleep(0.01)'));
    await limit('first');
    await calls.since();
};
const sent = async (alone, shared, requests, text) =>
    assert.deepEqual(await calls.since(), { alone, each: shared, requests }, text);
/** A session that has the row of a key locked, or the lock on which functions wait; its end. */
const locks = async (context, text) => {
    const session = await calls.session(text);
    let ended = false;
    const end = async () => {
        if (!ended) await session.end();
        ended = true;
    };
    context.after(end);
    return end;
};
const lockRow = (context, name, key) => locks(
    context,
    `BEGIN; SELECT ${place}.rl_limit('${name}', '${key}', config => '${JSON.stringify({ ...rule, keyed: undefined })}')`,
);
const waits = async (context, call) => {
    await calls.fails(call, 'waits');
    const end = await locks(context, 'SELECT pg_advisory_lock(1)');
    return async () => {
        await calls.fails(call, null);
        await end();
    };
};
/** Whether a promise is settled by now. */
const settled = (promise) => Promise.race([promise.then(() => true, () => true), sleep(0, false)]);

test('a call that comes alone is one of rl_limit, and those that come meanwhile go together', async (context) => {
    for (const store of STORES) {
        const { limit, used, ...of } = open(context, { config: { ...rule, store } });
        await warm({ limit, ...of });
        for (let n = 0; n < 5; n++) await limit('alone');
        await sent(5, 0, 0);
        const results = await each(150, (n) => limit(n % 3 ? `k${n}` : 'together'));
        const { alone, each: shared, requests } = await calls.since();
        assert.ok(alone === 1 && requests === 149 && shared >= 3 && shared < 10, `${shared} statements, of 64 at most`);
        assert.ok(results.every(({ ok }) => ok));
        const remaining = results.filter((_, n) => n % 3 === 0).map((result) => result.remaining);
        assert.deepEqual(remaining.sort((one, other) => other - one), Array.from({ length: 50 }, (_, n) => 999 - n));
        assert.deepEqual([await used('together'), await used('k1')], [50, 1]);
    }
});

test('at most a megabyte goes together', async (context) => {
    const { limiter, pool, limit } = open(context);
    await warm({ pool, limit });
    const long = { ...rule, keyed: undefined, headers: undefined };
    const other = (n) => limiter.limit(`${n} ${'x'.repeat(400_000)}`, { key: 'a', config: long }).catch(({ code }) => code);
    assert.deepEqual(await each(6, other), Array(6).fill('22023'));
    await sent(2, 2, 4);
});

test('one answer is the same alone and together', async (context) => {
    const pool = new pg.Pool({ ...database.app, max: 1 });
    context.after(() => pool.end());
    const [alone, shared] = [false, true].map((batch) => open(context, { pool, batch, onDecision: () => {} }));
    const all = async ({ limiter, name }) => {
        const ask = (key, options) => limiter.limit(name, { key, ...options });
        const asked = [
            ...['a', 'a', 'b'].map((key) => ask(key)),
            ask('c', { count: 1000 }),
            ask('c', { count: 3 }),
            ask('a', { count: -1 }),
            ask('a', { count: NaN }),
            ask('a', { count: Infinity }),
            ask('d'.repeat(2000)),
            ask('nul \0'),
            ask('half \ud800'),
            ask('f', { reserve: 'yes' }),
            ask('a', { config: { kind: 'no such' } }),
            ask('e', { reserve: true }),
            ask('é"\\u0041\\'),
            ask(7),
        ];
        const plain = ({ retryAt, resetAt, retryAfter, ...result }) => [result, retryAt && 1, resetAt && 1, retryAfter && 1];
        const failed = ({ code, message, detail, hint }) => [code, message.replaceAll(name, 'one'), detail, hint];
        return (await Promise.allSettled(asked)).map(({ value, reason }) => (reason ? failed(reason) : plain(value)));
    };
    const expected = await all(alone);
    await calls.since();
    assert.deepEqual(await all(shared), expected);
    const { each, alone: lone, requests } = await calls.since();
    // A text with a NUL reaches no function.
    assert.ok(each >= 1 && requests >= 9 && lone + requests === 15, 'those that JSON has no words for go alone');
    assert.equal(expected.filter((one) => one.length === 4 && typeof one[0] === 'string').length, 6);
});

test('calls for one key with two configs do not go together', async (context) => {
    const { limiter, pool, limit } = open(context);
    await warm({ pool, limit });
    const [first, other] = [10, 20].map((rate) => ({ ...rule, keyed: undefined, rate }));
    const asked = await each(6, (n) => limiter.limit('both', { key: 'a', config: n % 2 ? first : other }));
    assert.deepEqual(asked.map(({ capacity }) => capacity), [20, 10, 20, 10, 20, 10]);
    assert.equal((await real.check('both', { key: 'a', config: first })).remaining, 4, 'each has taken one');
    await sent(1, 2, 5);
});

test('calls with headers go together, and each has its own', async (context) => {
    const { limiter, limit, name, ...of } = open(context, { config: { ...rule, rate: 5, period: HOUR } });
    await warm({ limit, ...of });
    const ietf = (limit, left, rate, more) => ({
        RateLimit: `"${limit}";r=${left}`,
        'RateLimit-Policy': `"${limit}";q=${rate};w=3600`,
        ...more,
    });
    const github = { limit: '5', remaining: '4', used: '1', resource: name.replace(' ', '%20'), reset: '' };
    const config = fixedWindow({ rate: 9, period: HOUR, start: 'first request' });
    const asked = [
        [{ key: 'a', headers: 'ietf' }, ietf(name, 4, 5)],
        [
            { key: 'b', headers: 'github' },
            Object.fromEntries(Object.entries(github).map(([each, text]) => [`x-ratelimit-${each}`, text])),
        ],
        [{ key: 'c', count: 4 }, {}],
        [{ key: 'a', config, headers: 'ietf', name: 'other' }, ietf('other', 8, 9)],
        [{ key: 'a', count: 5, headers: 'ietf' }, ietf(name, 4, 5, { 'Retry-After': '' })],
        [{ key: 'c', count: 2 }, { 'Retry-After': '' }],
    ];
    const timed = ['x-ratelimit-reset', 'Retry-After'];
    const without = ([each, text]) => [each, timed.includes(each) ? '' : text.replace(/;t=\d+/, '')];
    const untimed = ({ headers }) => Object.fromEntries(Object.entries(headers).map(without));
    const together = asked.map(([options]) => () => limiter.limit(options.name ?? name, options));
    const [, ...answers] = await Promise.all([() => limit('first'), ...together].map((call) => call()));
    await sent(1, 1, 6);
    const alone = new RateLimiter(limiter.definitions, { db: of.pool, batch: false });
    for (const [n, [options, headers]] of asked.entries()) {
        assert.deepEqual(untimed(answers[n]), headers);
        const { ok } = answers[n];
        const same = await alone.check(options.name ?? name, { ...options, count: ok ? 0 : options.count });
        assert.deepEqual(untimed(same), headers, 'as alone');
    }
});

test('headers that the role may not make cost the others nothing, in memory neither', async (context) => {
    const headers = `EXECUTE ON FUNCTION ${place}.rl_headers`;
    await calls.runs(`REVOKE ${headers} FROM ${database.app.user}`);
    context.after(() => calls.runs(`GRANT ${headers} TO ${database.app.user}`));
    for (const store of STORES) {
        const { limit, used } = open(context, { schema: place, config: { ...rule, store } });
        await limit('first');
        const asked = [limit('first'), limit('a'), limit('b', { headers: 'ietf' }), limit('b')];
        const settled = await Promise.allSettled(asked);
        assert.deepEqual(settled.map(({ reason }) => reason?.code), [undefined, undefined, '42501', undefined]);
        assert.deepEqual([await used('a'), await used('b')], [1, 1]);
    }
});

test('only what is proven a pool shares, and nothing with a db of its own', async (context) => {
    const of = open(context);
    await warm(of);
    const sql = postgres({ ...database.app, host: process.env.PGHOST, max: 4 });
    context.after(() => sql.end());
    const { limit } = open(context, { db: sql });
    await limit('a');
    await calls.since();
    await each(9, () => limit('a'));
    await sent(1, 1, 8, 'postgres.js');
    const client = new pg.Client(database.app);
    await client.connect();
    context.after(() => client.end());
    const own = { query: (...given) => of.pool.query(...given) };
    for (const [what, options, more] of [
        ['batch: false', { pool: of.pool, batch: false }],
        ['a client', { db: client }],
        ['an object of its own', { db: own }],
        ['db of the call', { pool: of.pool }, { db: of.pool }],
        ['headers of another style', { pool: of.pool }, { headers: 'postgrest' }],
    ]) {
        const { limit } = open(context, options);
        await each(9, () => limit('a', more));
        await sent(9, 0, 0, what);
    }
    await sql.begin(async (tx) => {
        await each(3, () => limit('a', { db: tx }));
        await each(3, () => open(context, { db: tx }).limit('a'));
    });
    await sent(6, 0, 0, 'a transaction');
});

test('the stores share, with each other and the client on their pool', async (context) => {
    const { pool, limit } = open(context);
    const options = { db: pool, schema: calls.schema };
    const [store, apart] = [{}, { batch: false }].map((more) => new RateLimitStore({ ...options, name: 'store', ...more }));
    for (const each of [store, apart]) each.init({ limit: 9, windowMs: HOUR });
    const storage = new RateLimitThrottlerStorage({ ...options, name: 'nest' });
    await warm({ pool, limit });
    const hits = each(12, async () => (await store.increment('k')).totalHits);
    const others = each(12, async () => (await storage.increment('k', HOUR, 9, HOUR, 'default')).totalHits);
    await each(4, () => limit('k'));
    assert.deepEqual(await hits, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]);
    assert.deepEqual(await others, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]);
    const { alone, each: together, requests } = await calls.since();
    assert.ok(alone + requests === 28 && together + alone < 6, `${together} statements, and ${alone} alone`);
    await each(4, () => apart.increment('other'));
    await sent(4, 0, 0);
});

test('a busy key holds no strangers, however many call for it', async (context) => {
    const of = open(context, { pool: { max: 3 } });
    const { name, limit, used } = of;
    await warm(of, 3);
    for (const first of ['busy', 'stranger']) {
        const end = await lockRow(context, name, 'busy');
        const calls = [limit(first), ...Array.from({ length: 20 }, () => limit('busy'))];
        const strangers = await each(20, (n) => limit(`stranger ${n}`));
        assert.ok(strangers.every(({ ok }) => ok));
        await each(20, (n) => limit(`stranger ${n}`)); // and after those that were given up
        const waiting = calls.slice(1);
        assert.deepEqual(await Promise.all(waiting.map(settled)), waiting.map(() => false));
        await end(); // its take is rolled back
        assert.ok((await Promise.all(calls)).every(({ ok }) => ok));
    }
    assert.equal(await used('busy'), 41);
});

test('a call that is given up while its row is locked leaves others for the row', { timeout: 60_000 }, async (context) => {
    const of = open(context, { pool: { max: 6 } });
    const { name, limit } = of;
    await warm(of, 6);
    const ends = [await lockRow(context, name, 'y'), await lockRow(context, name, 'x')];
    const waiting = [limit('y'), limit('y')]; // the second one for the first one
    await calls.waiting(1);
    assert.ok((await limit('stranger')).ok);
    const end = await waits(context, 'each');
    const abort = new AbortController();
    const shared = [limit('other'), limit('x', { signal: abort.signal }), limit('x'), limit('x'), limit('x')];
    await calls.waiting(2);
    abort.abort();
    await assert.rejects(shared.splice(1, 1)[0], { name: 'AbortError' });
    await end();
    await calls.waiting(2); // each for its row: one call for y, and one for x
    for (const end of ends) await end();
    assert.ok((await Promise.all([...waiting, ...shared])).every(({ ok }) => ok));
});

test('locked rows are waited for as long as lock_wait says: 5 ms, and at most a tenth of deadlock_timeout', async (context) => {
    for (const [deadlock, expected] of [['1s', '00:00:00.005'], ['20ms', '00:00:00.002'], ['1ms', '00:00:00.0001']]) {
        const pool = { user: 'postgres', max: 1, options: `-c deadlock_timeout=${deadlock}` };
        const { limit, ...of } = open(context, { pool });
        await each(3, () => limit('a'));
        assert.equal((await of.pool.query('SHOW counted.wait')).rows[0]['counted.wait'], expected);
    }
});

test('a statement that is out for long is no longer waited for, as far as there are connections', async (context) => {
    const of = open(context, { pool: { max: 2 } });
    await warm(of);
    const end = await waits(context, 'limit');
    const stuck = of.limit('a');
    const shared = [of.limit('b'), of.limit('c')];
    await Promise.all(shared); // on the other connection
    await sent(1, 1, 2);
    assert.equal(await settled(stuck), false);
    await end();
    assert.ok((await stuck).ok);
});

test('a call that its caller gives up before it is sent is not sent', async (context) => {
    const of = open(context, { pool: { max: 1 } });
    const timed = open(context, { pool: of.pool, timeout: 50 });
    await warm(of, 1);
    const end = await waits(context, 'limit');
    const first = of.limit('a');
    await calls.waiting(1);
    const abort = new AbortController();
    const [aborted, late, left] = [of.limit('b', { signal: abort.signal }), timed.limit('c'), of.limit('d')];
    abort.abort();
    await assert.rejects(aborted, { name: 'AbortError', code: 'ABORT_ERR' });
    await assert.rejects(of.limit('b', { signal: abort.signal }), { name: 'AbortError' });
    await assert.rejects(late, { code: 'ETIMEDOUT', message: 'there was no connection to the database within 50 ms' });
    await end();
    assert.ok((await first).ok && (await left).ok);
    await sent(2, 0, 0);
    assert.deepEqual([await of.used('b'), await timed.used('c')], [0, 0]);
});

test('a call that its caller gives up later leaves the others and the connection as they are', async (context) => {
    const of = open(context, { pool: { max: 1 } });
    const timed = open(context, { pool: of.pool, timeout: 1000 });
    await warm(of, 1);
    const [{ pid }] = (await of.pool.query('SELECT pg_backend_pid() AS pid')).rows;
    const end = await waits(context, 'each');
    const abort = new AbortController();
    const first = of.limit('a');
    const shared = [of.limit('b'), of.limit('c', { signal: abort.signal }), timed.limit('d'), of.limit('e')];
    const late = assert.rejects(shared[2], { code: 'ETIMEDOUT', message: /no answer of the database/ });
    await calls.waiting(1);
    abort.abort();
    await assert.rejects(shared[1], { name: 'AbortError' });
    await late;
    assert.deepEqual(await Promise.all([shared[0], shared[3]].map(settled)), [false, false]);
    await end();
    assert.ok((await first).ok && (await shared[0]).ok && (await shared[3]).ok);
    await sent(1, 1, 4);
    assert.deepEqual(await Promise.all(['b', 'c', 'e'].map(of.used)), [1, 1, 1]);
    assert.equal((await of.pool.query('SELECT pg_backend_pid() AS pid')).rows[0].pid, pid);
});

test('a statement that a time-out ends is never sent again, and fails open where each call would', async (context) => {
    const options = '-c statement_timeout=2000';
    const of = open(context, { pool: { max: 2, options } });
    const [heard, opened] = [[], open(context, { pool: of.pool, onError: 'open', onDecision: (one) => heard.push(one) })];
    await warm(of);
    const end = await waits(context, 'each');
    const asked = [of.limit('first'), of.limit('a'), opened.limit('b'), opened.limit('c'), of.limit('d')];
    await Promise.all([1, 4].map((n) => assert.rejects(asked[n], { code: '57014' })));
    for (const n of [2, 3]) {
        const { ok, error } = await asked[n];
        assert.deepEqual([ok, error.code], [true, '57014']);
    }
    assert.deepEqual(heard.map(({ ok, error }) => [ok, error.code]), [[true, '57014'], [true, '57014']]);
    await end();
    await sent(1, 1, 4);
});

test('nor is one of which the connection is lost, or that a full server or a standby refuses, or for lost definitions', async (context) => {
    const of = open(context, { pool: { max: 2 } });
    for (const code of ['57P01', '53300', '53200', '25006', '55P03', '08006', '42704', 'lost']) {
        await warm(of);
        const end = code === 'lost' ? await waits(context, 'each') : await calls.fails('each', code);
        const asked = [of.limit('first'), of.limit('a'), of.limit('b')];
        const failed = asked.slice(1).map((call) => assert.rejects(call, code === 'lost' ? { code: '57P01' } : { code }));
        if (code === 'lost') {
            await calls.waiting(1);
            await calls.runs(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '${database.app.user}'
                AND wait_event_type = 'Lock'`);
        }
        await Promise.all([asked[0], ...failed]);
        await sent(1, 1, 2, code);
        await (end ? end() : calls.fails('each', null));
    }
});

test('after another error of it each call is sent once, alone', async (context) => {
    const of = open(context, { pool: { max: 3 } });
    for (const code of ['40P01', '40001', 'P0001', '23514']) {
        await warm(of);
        await calls.fails('each', code);
        assert.ok((await each(5, (n) => of.limit(`${code} ${n}`))).every(({ ok }) => ok));
        await sent(5, 1, 4, code);
        await calls.fails('limit', code);
        const answers = await Promise.allSettled(Array.from({ length: 5 }, (_, n) => of.limit(`${code} ${n}`)));
        assert.deepEqual(answers.map(({ reason }) => reason?.code), Array(5).fill(code));
        await sent(5, 1, 4, code);
        for (const call of ['limit', 'each']) await calls.fails(call, null);
        for (let n = 0; n < 5; n++) assert.equal(await of.used(`${code} ${n}`), 1);
    }
});

test('at SERIALIZABLE a call alone would have failed by 40001, too: none is sent again', async (context) => {
    const of = open(context, { pool: { max: 3, options: '-c default_transaction_isolation=serializable' } });
    await warm(of);
    await calls.fails('each', '40001');
    const asked = [of.limit('first'), of.limit('a'), of.limit('b')];
    await Promise.all(asked.slice(1).map((call) => assert.rejects(call, { code: '40001' })));
    await asked[0];
    await sent(1, 1, 2);
    await calls.fails('each', null);
});

test("an error of the owner's trigger is that of its call alone", async (context) => {
    const of = open(context);
    await calls.runs(
        `CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.key = 'refused' THEN RAISE 'not this one'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER refuses BEFORE INSERT OR UPDATE ON ${place}.rateLimits FOR EACH ROW EXECUTE FUNCTION refuses()`,
    );
    context.after(() => calls.runs('DROP FUNCTION refuses CASCADE'));
    await warm(of);
    const keys = ['first', 'a', 'refused', 'b', 'c'];
    const answers = await Promise.allSettled(keys.map((key) => of.limit(key)));
    assert.deepEqual(answers.map(({ value, reason }) => reason?.code ?? value.ok), [true, true, 'P0001', true, true]);
    await sent(5, 1, 4);
    assert.deepEqual(await Promise.all(['a', 'b', 'c', 'refused'].map(of.used)), [1, 1, 1, 0]);
});

test('where calls may not go together, or can not, they go alone, quietly, for ten minutes', async (context) => {
    const warned = context.mock.method(console, 'warn', () => {}).mock;
    let ahead = 0;
    const now = performance.now.bind(performance);
    context.mock.method(performance, 'now', () => now() + ahead);
    const right = (what, whom) => calls.runs(`${what} EXECUTE ON FUNCTION ${calls.schema}.rl_limit_each ${whom} PUBLIC`);
    const renamed = (from, to) => calls.runs(`ALTER FUNCTION ${calls.schema}.${from} RENAME TO ${to}`);
    for (const [what, begin, end, tried] of [
        ['42501', () => right('REVOKE', 'FROM'), () => right('GRANT', 'TO'), 0],
        ['42883', () => renamed('rl_limit_each', 'gone'), () => renamed('gone', 'rl_limit_each'), 0],
        ['0A000', () => calls.fails('each', '0A000'), () => calls.fails('each', null), 1],
    ]) {
        const of = open(context);
        await warm(of);
        await begin();
        const all = async () => assert.ok((await each(7, (n) => of.limit(`${what} ${n}`))).every(({ ok }) => ok));
        await all();
        await sent(7, tried, 6 * tried, what);
        await end();
        ahead += 599_000;
        await all();
        await sent(7, 0, 0, what);
        ahead += 2000;
        await all();
        await sent(1, 1, 6, what);
        assert.equal(await of.used(`${what} 6`), 3);
    }
    assert.equal(warned.callCount(), 0);
});

test('decisions are heard, denials remembered and counted once a request', async (context) => {
    const heard = [];
    const onDecision = ({ name, ok, limitedBy, remembered }) => heard.push([name, ok, limitedBy, remembered]);
    const config = { ...rule, rate: 4 };
    const { limiter, limit, name } = open(context, { config, onDecision, rememberDenials: true });
    const answers = await each(10, () => limit('a'));
    assert.deepEqual(answers.map(({ ok }) => ok), [...Array(4).fill(true), ...Array(6).fill(false)]);
    const denied = [name, false, 'tokens', undefined];
    assert.deepEqual(heard, [...Array(4).fill([name, true, null, undefined]), ...Array(6).fill(denied)]);
    await calls.since();
    const { ok, retryAfter } = await limit('a');
    assert.ok(!ok && retryAfter > 0);
    assert.deepEqual(heard.at(-1), [name, false, 'tokens', true]);
    await sent(0, 0, 0);
    await assert.rejects(limit('a', { throws: true }), { name });
    assert.ok(limiter);
});

test('what goes together runs in the context of no caller, and each caller goes on in its own', async (context) => {
    const storage = new AsyncLocalStorage();
    const of = open(context, { pool: { max: 1 } });
    await warm(of, 1);
    await each(3, () => of.limit('a'));
    await new Promise(setImmediate); // no statement is under way any more
    const contexts = [];
    of.pool.on('acquire', () => contexts.push(storage.getStore()));
    const asked = (n) =>
        storage.run(n, async () => {
            await of.limit('a');
            return storage.getStore();
        });
    assert.deepEqual(await each(5, asked), [0, 1, 2, 3, 4]);
    assert.deepEqual(contexts, [0, undefined], 'a call that goes at once is its own');
});

// Prepared statements: which are, their names, and what a call does if they are refused. Calls are counted by functions
// in a schema of its own, which call the limiter's.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import pg from 'pg';
import postgres from 'postgres';

import { HOUR, RateLimiter, tokenBucket } from 'postgres-rate-limit';
import { counted } from './counted.js';
import { limits } from './limits.js';

const NAME = `prepared_node_${process.pid}`;
const LIMITS = { one: tokenBucket({ rate: 100, period: HOUR, keyed: true }) };
const bucket = LIMITS.one;
let database, calls;
before(async () => {
    database = await limits(NAME);
    calls = await counted(database);
});
after(() => database.end());

const poolOf = (context, options) => {
    const pool = new pg.Pool({ ...database.app, max: 1, ...options });
    context.after(() => pool.end());
    return pool;
};
const statements = async (db) =>
    (await db.query('SELECT name, statement FROM pg_prepared_statements ORDER BY name')).rows;
const warnings = (context) => context.mock.method(console, 'warn', () => {}).mock;
let keys = 0;

test('each call on a pool is prepared, by a name of its text, and names its columns', async (context) => {
    const [one, other] = [poolOf(context), poolOf(context)];
    for (const db of [one, other]) {
        const limiter = new RateLimiter(LIMITS, { db });
        const [key, requests] = [`${keys++}`, [{ name: 'one', key: 'all' }]];
        for (let n = 0; n < 2; n++) {
            for (const headers of [undefined, 'ietf']) {
                await limiter.limit('one', { key, headers });
                await limiter.check('one', { key, headers });
                await limiter.limitAll(requests, { headers });
                await limiter.checkAll(requests, { headers });
            }
            await limiter.credit('one', { key });
            await limiter.getValue('one', { key });
            await (await limiter.hold('one', { key })).settle(1);
            await (await limiter.holdAll(requests)).settle(1);
            await limiter.reset('one', { key });
        }
    }
    const found = await statements(one);
    assert.equal(found.length, 15);
    assert.deepEqual(found, await statements(other));
    for (const { name, statement } of found) {
        assert.match(name, /^rl_[0-9a-f]{16}$/);
        assert.doesNotMatch(statement, /^(WITH .*\) )?SELECT ([^(]*\*|\w*\.?rl_\w*\()/s, 'a change of a type changes nothing');
    }
});

test('nothing is prepared on a client, in a transaction, with db in the call, nor where one asks for none', async (context) => {
    const pool = poolOf(context);
    const client = await pool.connect();
    const [own, of, none] = [{ db: client }, { db: pool }, { db: pool, prepare: false }].map(
        (options) => new RateLimiter(LIMITS, options),
    );
    const key = `${keys++}`;
    for (const command of ['BEGIN', 'COMMIT']) {
        await own.limit('one', { key });
        await of.limit('one', { key, db: client });
        await client.query(command);
    }
    assert.deepEqual(await statements(client), []);
    client.release();
    await none.limit('one', { key });
    await of.limit('one', { key, db: pool });
    assert.deepEqual(await statements(pool), []);
    await of.limit('one', { key });
    assert.equal((await statements(pool)).length, 1);
    assert.equal(Math.floor((await of.check('one', { key })).remaining), 93);
});

test('postgres.js prepares as it has been set', async (context) => {
    for (const prepare of [true, false]) {
        const { user, database: name } = database.app;
        const sql = postgres({ user, database: name, max: 1, prepare, host: process.env.PGHOST });
        context.after(() => sql.end());
        const limiter = new RateLimiter(LIMITS, { db: sql });
        await limiter.limit('one', { key: `${keys++}` });
        await sql.begin((tx) => limiter.check('one', { key: 'a', db: tx }));
        const found = await sql.unsafe(`SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%rl_%'`);
        assert.deepEqual(found.map(({ statement }) => /rl_limit/.test(statement)), prepare ? [true] : []);
    }
});

test('where it is refused, a call is made again unprepared; after three in a minute all are for ten', async (context) => {
    const warned = warnings(context);
    const pool = poolOf(context);
    const limiter = new RateLimiter(LIMITS, { db: pool });
    const other = new RateLimiter(LIMITS, { db: pool });
    const key = `${keys++}`;
    let ahead = 0;
    const now = performance.now.bind(performance);
    context.mock.method(performance, 'now', () => now() + ahead);
    let used = 0;
    const takes = async (how) => {
        const { remaining } = await how.limit('one', { key });
        assert.equal(Math.floor(remaining), 100 - ++used);
        return (await statements(pool)).length;
    };
    /** The name is unknown (26000), or taken (42P05). */
    const refuse = [
        'DEALLOCATE ALL',
        async () => {
            const [{ name }] = await statements(pool);
            const client = await pool.connect();
            client.release(true); // another connection, which has prepared nothing
            await pool.query(`PREPARE ${name} AS SELECT 1`);
        },
    ];
    const refused = async (how, n) => {
        assert.equal(await takes(how), 1);
        await (typeof refuse[n] === 'string' ? pool.query(refuse[n]) : refuse[n]());
        assert.equal(await takes(how), 0, 'on another connection, unprepared');
    };
    for (const n of [0, 1]) await refused(limiter, n);
    ahead += 61_000;
    await refused(other, 0);
    assert.equal(await takes(limiter), 1, 'they were not in one minute');
    assert.equal(warned.callCount(), 0);
    await refused(limiter, 1);
    await refused(limiter, 0);
    for (let n = 0; n < 3; n++) assert.equal(await takes(n % 2 ? other : limiter), 0);
    ahead += 599_000;
    assert.equal(await takes(limiter), 0);
    assert.equal(warned.callCount(), 1);
    assert.match(warned.calls[0].arguments[0], /statements go unprepared for ten minutes.*max_prepared_statements/s);
    ahead += 2000;
    for (const n of [0, 0, 0]) await refused(limiter, n);
    assert.equal(await takes(limiter), 0);
    assert.equal(warned.callCount(), 1, 'it is heard once');
});

test('a call of a statement whose columns have changed is made again', async (context) => {
    const warned = warnings(context);
    const pool = poolOf(context);
    const limiter = new RateLimiter(LIMITS, { db: pool, schema: calls.schema });
    const key = `${keys++}`;
    await calls.since();
    for (let n = 1; n <= 6; n++) {
        assert.equal(Math.floor((await limiter.limit('one', { key })).remaining), 100 - n);
        if (n === 5) await calls.retyped();
    }
    assert.deepEqual(await calls.since(), { alone: 6, each: 0, requests: 0 });
    assert.equal(warned.callCount(), 0);
});

test('another error of a call is its own: it is made once', async (context) => {
    const pool = poolOf(context);
    const limiter = new RateLimiter(LIMITS, { db: pool, schema: calls.schema });
    for (const code of ['08P01', '0A000', '42501', '40001']) {
        await calls.fails('limit', code);
        await calls.since();
        await assert.rejects(limiter.limit('one', { key: 'a' }), { code });
        assert.deepEqual(await calls.since(), { alone: 1, each: 0, requests: 0 }, code);
    }
    await calls.fails('limit', null);
});

test('a limit of requests at once is exact while statements are deallocated', async (context) => {
    const warned = warnings(context);
    const pool = poolOf(context, { max: 5 });
    const limiter = new RateLimiter({}, { db: pool });
    const options = { key: `${keys++}`, config: { ...bucket, rate: 50 } };
    const all = Array.from({ length: 80 }, async (_, n) => {
        for (let turn = 0; turn < n % 8; turn++) await pool.query('DEALLOCATE ALL');
        return (await limiter.limit('many', options)).ok;
    });
    assert.equal((await Promise.all(all)).filter(Boolean).length, 50);
    assert.ok(warned.callCount() <= 1);
});

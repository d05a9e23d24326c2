// ratelimit.sql in PGlite, PostgreSQL as WebAssembly in this process. docs/pglite.md shows parts of this.
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { after, test } from 'node:test';

import { createPgConfig } from '@electric-sql/pglite/node-postgres';
import pg from 'pg';

import { installSql } from 'postgres-rate-limit';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';

import { PGlite } from '@electric-sql/pglite';
import { install } from 'postgres-rate-limit';

const db = await PGlite.create();
await install(db);
await db.exec('SET search_path = public, ratelimit');

await db.query(`SELECT rl_define('sendMessage',
    rl_token_bucket(rate => 10, period => '1 minute', keyed => true))`);
const take = "SELECT ok, remaining, retry_after FROM rl_limit('sendMessage', $1)";
const { rows: [answer] } = await db.query(take, ['user-1']);

after(() => db.close());
const rows = async (sql, values) => (await db.query(sql, values)).rows;
const first = async (sql, values) => (await rows(sql, values))[0];

test('the first call takes one of ten', () => {
    assert.deepEqual(answer, { ok: true, remaining: 9, retry_after: null });
});

test('a bucket of two lets two pass, and denies the third until it has flowed in', async () => {
    await db.exec("SET ratelimit.clock = '2027-01-01 12:00:00+00'");
    await db.query("SELECT rl_define('api', rl_token_bucket(rate => 2, period => '1 minute'))");
    const take = () => first("SELECT ok, remaining, retry_after FROM rl_limit('api', 'user-1')");
    assert.deepEqual(await take(), { ok: true, remaining: 1, retry_after: null });
    assert.deepEqual(await take(), { ok: true, remaining: 0, retry_after: null });
    assert.deepEqual(await take(), { ok: false, remaining: 0, retry_after: 30 });
    assert.equal((await first("SELECT ok FROM rl_limit('api', 'user-2')")).ok, true);
    await db.exec("SET ratelimit.clock = '2027-01-01 12:00:30+00'");
    assert.deepEqual(await take(), { ok: true, remaining: 0, retry_after: null });
    await assert.rejects(db.query("SELECT rl_limit('api', 'user-1', throws => true)"), { code: 'PT429' });
    await db.exec('RESET ratelimit.clock');
});

test('a rollback gives back what was taken', async () => {
    await db.query("SELECT rl_define('mail', rl_fixed_window(rate => 1, period => '1 hour'))");
    const take = async (sql) => (await sql.query("SELECT ok FROM rl_limit('mail', 'a')")).rows[0].ok;
    await db.transaction(async (transaction) => {
        assert.deepEqual([await take(transaction), await take(transaction)], [true, false]);
        await transaction.rollback();
    });
    assert.deepEqual([await take(db), await take(db)], [true, false]);
});

test('the other algorithms answer, and what is not in the file says so', async () => {
    for (const kind of ['rl_sliding_window', 'rl_sliding_log']) {
        const take = () => first(`SELECT ok FROM rl_limit('${kind}', config => ${kind}(rate => 1, period => '1 hour'))`);
        assert.deepEqual([await take(), await take()], [{ ok: true }, { ok: false }]);
    }
    const berlin = `rl_fixed_window(rate => 1, period => '1 day', timezone => 'Europe/Berlin')`;
    const { reset_at: turns } = await first(`SELECT reset_at FROM rl_limit('day', config => ${berlin})`);
    assert.ok([22, 23].includes(turns.getUTCHours()) && turns > Date.now(), `${turns}`);
    for (const call of [`rl_limit('m', config => rl_token_bucket(rate => 1, period => '1 second', store => 'memory'))`, 'rl_stats()']) {
        await assert.rejects(db.query(`SELECT * FROM ${call}`), { code: '0A000', message: /extension/ });
    }
});

test('of two limits in one call both are taken, or neither', async () => {
    await db.exec(`
        SELECT rl_define('minute', rl_fixed_window(rate => 3, period => '1 minute'));
        SELECT rl_define('day', rl_fixed_window(rate => 2, period => '1 day'))`);
    const requests = JSON.stringify(['minute', 'day'].map((name) => ({ name, key: 'a' })));
    const take = () => rows('SELECT ok, limited_by, remaining FROM rl_limit_all($1)', [requests]);
    await take();
    assert.deepEqual((await take()).map(({ ok, remaining }) => [ok, remaining]), [[true, 1], [true, 0]]);
    assert.deepEqual((await take()).map(({ ok, limited_by: by }) => [ok, by]), [[false, null], [false, 'tokens']]);
    assert.equal((await first("SELECT remaining FROM rl_check('minute', 'a')")).remaining, 1, 'the denied call took nothing of it');
});

test('of two slots two are leased, and one that is released is the next holder\'s', async () => {
    await db.query("SELECT rl_define('exports', rl_concurrency(slots => 2, ttl => '1 minute'))");
    const acquire = async () => (await first("SELECT lease FROM rl_acquire('exports', 'acme')")).lease;
    const leases = [await acquire(), await acquire()];
    assert.ok(leases.every(Boolean));
    assert.equal(await acquire(), null);
    assert.equal((await first("SELECT rl_release($1) AS done", [leases[0]])).done, true);
    assert.ok(await acquire());
});

test('a trigger and a policy limit what is written', async () => {
    await db.exec(`
        CREATE TABLE messages (author text, body text);
        SELECT rl_define('send', rl_fixed_window(rate => 2, period => '1 hour'));
        CREATE TRIGGER limited BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION rl_trigger('send', 'key=author');
        CREATE TABLE posts (author text);
        ALTER TABLE posts ENABLE ROW LEVEL SECURITY;
        CREATE POLICY limited ON posts FOR INSERT WITH CHECK ((rl_limit('send', 'post ' || author)).ok);
        CREATE ROLE writer;
        GRANT INSERT ON messages, posts TO writer;
        GRANT USAGE ON SCHEMA ratelimit TO writer;
        GRANT EXECUTE ON FUNCTION rl_limit TO writer;
        SET ROLE writer`);
    try {
        await db.query("INSERT INTO messages VALUES ('ann', '1'), ('bob', '1'), ('ann', '2')");
        await assert.rejects(db.query("INSERT INTO messages VALUES ('ann', '3')"), { code: 'PT429' });
        for (let n = 0; n < 2; n++) await db.query("INSERT INTO posts VALUES ('ann')");
        await assert.rejects(db.query("INSERT INTO posts VALUES ('ann')"), { code: '42501', message: /row-level security/ });
        await assert.rejects(db.query('SELECT * FROM ratelimit.ratelimits'), { code: '42501' });
    } finally {
        await db.exec('RESET ROLE');
    }
    assert.deepEqual(await rows('SELECT author FROM messages ORDER BY 1'), ['ann', 'ann', 'bob'].map((author) => ({ author })));
});

test('over itself, and in another schema', async () => {
    await db.query("SELECT rl_limit('kept', config => rl_fixed_window(rate => 9, period => '1 day'))");
    await db.exec(installSql());
    await db.exec(installSql({ schema: 'limits' }));
    const { remaining } = await first("SELECT remaining FROM ratelimit.rl_check('kept', config => rl_fixed_window(rate => 9, period => '1 day'))");
    assert.equal(remaining, 8);
    const other = await first("SELECT remaining FROM limits.rl_check('kept', config => limits.rl_fixed_window(rate => 9, period => '1 day'))");
    assert.equal(other.remaining, 9);
});

test('a folder keeps the limits', async (context) => {
    const folder = await mkdtemp(`${tmpdir()}/pglite.`);
    context.after(() => rm(folder, { recursive: true }));
    for (const remaining of [1, 0]) {
        const kept = await PGlite.create(`${folder}/data`);
        if (remaining === 1) await install(kept);
        const config = `ratelimit.rl_fixed_window(rate => 2, period => '1 day')`;
        const { rows } = await kept.query(`SELECT remaining FROM ratelimit.rl_limit('api', 'a', config => ${config})`);
        assert.deepEqual(rows, [{ remaining }]);
        await kept.close();
    }
});

test('the store counts in it, through a pool of pg', async (context) => {
    const pool = new pg.Pool({ ...createPgConfig(db), max: 1 });
    context.after(() => pool.end());
    const store = new RateLimitStore({ db: pool, name: 'store' });
    store.init({ limit: 3, windowMs: 60_000 });
    const hits = await Promise.all(Array.from({ length: 5 }, () => store.increment('a')));
    assert.deepEqual(hits.map(({ totalHits }) => totalHits), [1, 2, 3, 4, 4]);
    await store.decrement('a');
    assert.equal((await store.get('a')).totalHits, 2);
});

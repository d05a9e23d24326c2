// The lines of docs/clients.md for Node: postgres.js, Drizzle, Kysely, Knex and Sequelize, on what setup.sql prepares.
//
// Connects with libpq's variables (PGHOST, PGUSER, PGDATABASE, …), as a role that has EXECUTE on rl_limit and rl_check.

import assert from 'node:assert/strict';
import { sql as drizzleSql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import knex from 'knex';
import { Kysely, PostgresDialect, sql as kyselySql } from 'kysely';
import pg from 'pg';
import postgres from 'postgres';
import { QueryTypes, Sequelize } from 'sequelize';

const config = { kind: 'fixed window', rate: 3, period: 60_000 };
const requests = [{ name: 'quota', key: 'orms' }, { name: 'quota', key: 'others' }];
const { PGHOST: host, PGPORT: port, PGUSER: user, PGDATABASE: database } = process.env;
const caught = (promise) => promise.then(() => assert.fail('it passed'), (error) => error);

// A client is how it calls rl_limit with a numeric key, a count and throws; with a config; and rl_limit_all.
async function check(name, key, { take, configured, all, sqlstate, detail }) {
  assert.deepEqual([...await take(key, 3, false)], [{ ok: true, retry_after: null }], name);
  const [denied] = await take(key, 1, false);
  assert(denied.ok === false && 80_000 < denied.retry_after && denied.retry_after <= 86_400, name);
  const error = await caught(take(key, 1, true));
  assert.equal(sqlstate(error), 'PT429', name);
  assert.equal(JSON.parse(detail(error)).kind, 'RateLimited', name);
  assert.deepEqual([...await configured(name)], [{ ok: true }], name);
  assert.equal((await all()).length, 2, name);
}

const sql = postgres({ onnotice: () => {} });
await check('postgres.js', 30_001, {
  take: (key, count, throws) => sql`SELECT ok, retry_after FROM rl_limit('sendMessage', ${key}::text, ${count}, throws => ${throws})`,
  configured: (name) => sql`SELECT ok FROM rl_limit(${name}, config => ${sql.json(config)})`,
  all: () => sql`SELECT ok FROM rl_limit_all(${sql.json(requests)})`,
  sqlstate: (error) => error.code,
  detail: (error) => error.detail,
});
// What JSON.stringify returns becomes a JSON string.
assert.equal((await caught(sql`SELECT ok FROM rl_limit_all(${JSON.stringify(requests)}::jsonb)`)).message, 'requests is a string');
await sql.end();

const pool = new pg.Pool();
// A number as a period is seconds.
const { rows: [{ period }] } = await pool.query("SELECT rl_fixed_window(3, $1)->'period' AS period", [60]);
assert.equal(period, 60_000);

const db = drizzle(pool);
const rows = async (query) => (await query).rows;
await check('Drizzle', 30_002, {
  take: (key, count, throws) => rows(db.execute(
    drizzleSql`SELECT ok, retry_after FROM rl_limit('sendMessage', ${key}::text, ${count}, throws => ${throws})`)),
  configured: (name) => rows(db.execute(drizzleSql`SELECT ok FROM rl_limit(${name}, config => ${JSON.stringify(config)})`)),
  all: () => rows(db.execute(drizzleSql`SELECT ok FROM rl_limit_all(${JSON.stringify(requests)})`)),
  sqlstate: (error) => error.cause.code,
  detail: (error) => error.cause.detail,
});
// Times are texts.
const { rows: [{ reset_at }] } = await db.execute(drizzleSql`SELECT reset_at FROM rl_check('sendMessage', '30002')`);
assert.equal(typeof reset_at, 'string');
// An array becomes as many parameters.
const spread = await caught(db.execute(drizzleSql`SELECT ok FROM rl_limit_all(${requests})`));
assert.match(spread.message, /rl_limit_all\(\(\$1, \$2\)\)/);

const kysely = new Kysely({ dialect: new PostgresDialect({ pool }) });
await check('Kysely', 30_003, {
  take: (key, count, throws) => rows(
    kyselySql`SELECT ok, retry_after FROM rl_limit('sendMessage', ${key}::text, ${count}, throws => ${throws})`.execute(kysely)),
  configured: (name) => rows(kyselySql`SELECT ok FROM rl_limit(${name}, config => ${JSON.stringify(config)})`.execute(kysely)),
  all: () => rows(kyselySql`SELECT ok FROM rl_limit_all(${JSON.stringify(requests)})`.execute(kysely)),
  sqlstate: (error) => error.code,
  detail: (error) => error.detail,
});
await kysely.destroy(); // and the pool

const k = knex({ client: 'pg', connection: { host, port, user, database } });
await check('Knex', 30_004, {
  take: (key, count, throws) => rows(
    k.raw("SELECT ok, retry_after FROM rl_limit('sendMessage', :key::text, :count, throws => :throws)", { key, count, throws })),
  configured: (name) => rows(k.raw('SELECT ok FROM rl_limit(?, config => ?)', [name, JSON.stringify(config)])),
  all: () => rows(k.raw('SELECT ok FROM rl_limit_all(?)', [JSON.stringify(requests)])),
  sqlstate: (error) => error.code,
  detail: (error) => error.detail,
});
await k.destroy();

const sequelize = new Sequelize({ dialect: 'postgres', host, port, username: user, database, logging: false });
const select = (text, replacements) => sequelize.query(text, { replacements, type: QueryTypes.SELECT });
await check('Sequelize', 30_005, {
  take: (key, count, throws) => select(
    "SELECT ok, retry_after FROM rl_limit('sendMessage', :key::text, :count, throws => :throws)", { key, count, throws }),
  configured: (name) => select('SELECT ok FROM rl_limit(:name, config => :config)', { name, config: JSON.stringify(config) }),
  all: () => select('SELECT ok FROM rl_limit_all(:requests)', { requests: JSON.stringify(requests) }),
  sqlstate: (error) => error.parent.code,
  detail: (error) => error.parent.detail,
});
// Replacements become part of the text: a number is a number. Without a type it returns the rows and what pg returned.
assert.equal((await caught(select("SELECT ok FROM rl_limit('sendMessage', :key)", { key: 5 }))).parent.code, '42883');
const [[{ ok }], { rowCount }] = await sequelize.query("SELECT ok FROM rl_check('sendMessage', 'sequelize')");
assert(ok && rowCount === 1);
// A statement outside its transaction's options is another connection's: it stays.
await assert.rejects(sequelize.transaction(async () => {
  await select("SELECT ok FROM rl_limit('sendMessage', 'outside')");
  throw new Error('rolled back');
}), { message: 'rolled back' });
assert.deepEqual(await select("SELECT remaining FROM rl_check('sendMessage', 'outside')"), [{ remaining: 2 }]);
await sequelize.close();

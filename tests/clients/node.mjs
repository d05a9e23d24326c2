// ratelimit from Node, with pg, on what setup.sql prepares.
//
// Connects with libpq's variables (PGHOST, PGUSER, PGDATABASE, …), as a role that has EXECUTE on
// rl_limit, rl_check and rl_credit. Every claim is asserted: it fails where one does not hold.

import assert from 'node:assert/strict';
import pg from 'pg';

const pool = new pg.Pool();

// BEGIN … COMMIT on one connection. An error in work rolls back, and the token is back too.
async function transaction(work) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const result = await work(client);
    await client.query('COMMIT');
    return result;
  } catch (error) {
    await client.query('ROLLBACK');
    throw error;
  } finally {
    client.release();
  }
}

const sendMessage = (user, body) => transaction(async (client) => {
  // In FROM the function runs once. ::text: the key is text, whatever the type of user.
  const take = "SELECT ok, retry_after, retry_at FROM rl_limit('sendMessage', $1::text)";
  const [limit] = (await client.query(take, [user])).rows;
  if (limit.ok) await client.query('INSERT INTO messages VALUES ($1, $2)', [user, body]);
  return limit;
});

// A denial is an error here, and takes the whole transaction with it.
const sendOrThrow = (user, body) => transaction(async (client) => {
  await client.query('INSERT INTO messages VALUES ($1, $2)', [user, body]);
  await client.query("SELECT ok FROM rl_limit('sendMessage', $1::text, throws => true)", [user]);
});

// The status of a response where pg raised an error, and so the limit wasn't taken: no error lets the request pass.
const NOT_NOW = ['25006', '53100', '53200', '53300', '55P03', '57014', '57P01', '57P02', '57P03'];
const httpStatus = ({ code }) => {
  if (code === 'PT429') return 429;
  // Without a server the code is one of Node's, such as ECONNREFUSED, or undefined after a timeout.
  if (code === undefined || /^(08|E[A-Z])/.test(code) || NOT_NOW.includes(code)) return 503;
  return code === '22023' ? 400 : 500;
};

// Takes the tokens of a job in advance, and stores when to run it: without a retry_at, at once.
// One statement, so one transaction. No row: too much is reserved already.
const SCHEDULE = `
  INSERT INTO jobs (owner, estimate, run_at)
  SELECT $1::bigint, $2, coalesce(retry_at, now())
  FROM rl_limit('llmTokens', $1::text, count => $2, reserve => true) WHERE ok
  RETURNING id`;
// The job is done: gives back what it did not use, in the statement that deletes it.
const SETTLE = `
  WITH done AS (DELETE FROM jobs WHERE id = $1 RETURNING owner, estimate)
  SELECT remaining FROM done, LATERAL rl_credit('llmTokens', owner::text, estimate - $2)`;

const row = async (sql, values) => (await pool.query(sql, values)).rows[0];
const { id: user } = await row("INSERT INTO users (name) VALUES ('grace') RETURNING id");

// 1. An empty message breaks a constraint: the transaction rolls back, and no token is gone.
await assert.rejects(sendMessage(user, ''), { code: '23514' });
const check = "SELECT remaining FROM rl_check('sendMessage', $1::text)";
assert.equal((await row(check, [user])).remaining, 3);

// 2. Three pass; the fourth is denied, by an ordinary row that says when to try again.
for (const body of ['one', 'two', 'three']) assert((await sendMessage(user, body)).ok);
const { ok, retry_after, retry_at } = await sendMessage(user, 'one too many');
assert(!ok && 80_000 < retry_after && retry_after <= 86_400);
console.log(`denied: Retry-After: ${Math.ceil(retry_after)}, at ${retry_at.toISOString()}`);
// A Date holds whole milliseconds, and so does retry_at: nothing is cut off.
const same = "SELECT retry_at = $2 AS same FROM rl_check('sendMessage', $1::text)";
assert((await row(same, [user, retry_at])).same);

// 3. The same as an error. retryAfter is in milliseconds, null where it can never pass.
const error = await sendOrThrow(user, 'one too many').catch((error) => error);
assert.equal(error.code, 'PT429');
assert.equal(httpStatus(error), 429);
for (const [sql, status] of [
  ["SELECT ok FROM rl_limit('sendMessage', repeat('a', 1025))", 400],
  ["SELECT ok FROM rl_limit('undefined', 'a')", 500],
  ["DO $$ BEGIN RAISE SQLSTATE '55P03'; END $$", 503],
]) assert.equal(httpStatus(await pool.query(sql).catch((error) => error)), status);
const absent = new pg.Client({ host: '127.0.0.1', port: 1 });
assert.equal(httpStatus(await absent.connect().catch((error) => error)), 503);
const { retryAfter } = JSON.parse(error.detail);
assert(80_000_000 < retryAfter && retryAfter <= 86_400_000);
const sent = await pool.query('SELECT body FROM messages WHERE author = $1', [user]);
assert.deepEqual(sent.rows.map(({ body }) => body), ['one', 'two', 'three']);

// 4. Of 1,000 tokens, the first job runs now, the second when there are as many again, and a
// third would be too much.
const jobs = [];
for (const estimate of [800, 800, 800]) jobs.push(await row(SCHEDULE, [user, estimate]));
const due = await pool.query('SELECT id FROM jobs WHERE owner = $1 AND run_at <= now()', [user]);
assert.deepEqual(due.rows, [jobs[0]]);
assert(jobs[1] !== undefined && jobs[2] === undefined);
assert.equal((await row(SETTLE, [jobs[0].id, 500])).remaining, 1000 - 800 - 800 + (800 - 500));

// 5. JSON is stringified: pg makes an array of PostgreSQL of an array. A bare call is a text, which is true.
const all = 'SELECT ok FROM rl_limit_all($1)';
const requests = [{ name: 'quota', key: 'node' }, { name: 'quota', key: 'others' }];
assert.equal((await pool.query(all, [JSON.stringify(requests)])).rowCount, 2);
await assert.rejects(pool.query(all, [requests]), { code: '22P02' });
const { rl_limit: bare } = await row("SELECT rl_limit('sendMessage', $1::text)", [user]);
assert(bare.startsWith('(f,'));

await pool.end();

// TypeORM's line of docs/clients.md, on what setup.sql prepares.
//
// Connects with libpq's variables, as a role that has EXECUTE on rl_limit, rl_limit_all and rl_check.

import assert from 'node:assert/strict';
import { DataSource } from 'typeorm';

const { PGHOST: host, PGPORT: port, PGUSER: username, PGDATABASE: database } = process.env;
const source = await new DataSource({ type: 'postgres', host, port: Number(port), username, database }).initialize();

const take = "SELECT ok, retry_after FROM rl_limit('sendMessage', $1::text, $2)";
assert.deepEqual(await source.query(take, [95_001, 3]), [{ ok: true, retry_after: null }]);
const [denied] = await source.query(take, [95_001, 1]);
assert(denied.ok === false && 80_000 < denied.retry_after && denied.retry_after <= 86_400);
const requests = [{ name: 'quota', key: 'typeorm' }, { name: 'quota', key: 'others' }];
assert.equal((await source.query('SELECT ok FROM rl_limit_all($1)', [JSON.stringify(requests)])).length, 2);
const error = await source.query("SELECT ok FROM rl_limit('sendMessage', $1::text, throws => true)", [95_001])
  .then(() => assert.fail('it passed'), (error) => error);
assert.equal(error.driverError.code, 'PT429');
assert.equal(JSON.parse(error.driverError.detail).kind, 'RateLimited');
// In transaction(), only what its manager runs is rolled back.
await assert.rejects(source.transaction(async (manager) => {
  await manager.query("SELECT ok FROM rl_limit('sendMessage', 'typeorm')");
  await source.query("SELECT ok FROM rl_limit('sendMessage', 'typeorm outside')");
  throw new Error('rolled back');
}), { message: 'rolled back' });
const check = 'SELECT remaining FROM rl_check($1, $2)';
assert.deepEqual(await source.query(check, ['sendMessage', 'typeorm']), [{ remaining: 3 }]);
assert.deepEqual(await source.query(check, ['sendMessage', 'typeorm outside']), [{ remaining: 2 }]);
await source.destroy();

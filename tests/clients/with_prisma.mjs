// Prisma's line of docs/clients.md, with its adapter for pg, on what setup.sql prepares.
//
// Connects with libpq's variables, as a role that has EXECUTE on rl_limit, rl_limit_all and rl_check.

import assert from 'node:assert/strict';
import { PrismaPg } from '@prisma/adapter-pg';
import client from '@prisma/client';

const { PGHOST: host, PGPORT: port, PGUSER: user, PGDATABASE: database } = process.env;
const prisma = new client.PrismaClient({ adapter: new PrismaPg({ host, port, user, database }) });

const take = (key, count) => prisma.$queryRaw`SELECT ok, retry_after FROM rl_limit('sendMessage', ${key}::text, ${count}::float8)`;
assert.deepEqual(await take(90_001, 3), [{ ok: true, retry_after: null }]);
const [denied] = await take(90_001, 1);
assert(denied.ok === false && 80_000 < denied.retry_after && denied.retry_after <= 86_400);

// pg makes an array of PostgreSQL of an array: JSON is passed as a text.
const config = { kind: 'fixed window', rate: 3, period: 60_000 };
const requests = [{ name: 'quota', key: 'prisma' }, { name: 'quota', key: 'others' }];
assert.deepEqual(await prisma.$queryRaw`SELECT ok FROM rl_limit('prisma', config => ${JSON.stringify(config)}::jsonb)`, [{ ok: true }]);
assert.equal((await prisma.$queryRaw`SELECT ok FROM rl_limit_all(${JSON.stringify(requests)}::jsonb)`).length, 2);
await assert.rejects(prisma.$queryRaw`SELECT ok FROM rl_limit_all(${requests})`, /22P02/);

const error = await prisma.$queryRaw`SELECT ok FROM rl_limit('sendMessage', ${90_001}::text, throws => true)`
  .then(() => assert.fail('it passed'), (error) => error);
assert.equal(error.code, 'P2010');
assert.equal(error.meta.driverAdapterError.cause.originalCode, 'PT429');
assert.equal(JSON.parse(error.meta.driverAdapterError.cause.detail).kind, 'RateLimited');

// $executeRaw returns a count of rows, 1 for a denial too. A bare call is a text.
assert.equal(await prisma.$executeRaw`SELECT ok FROM rl_limit('sendMessage', ${90_001}::text)`, 1);
const [{ rl_limit: bare }] = await prisma.$queryRaw`SELECT rl_limit('sendMessage', ${90_001}::text)`;
assert(bare.startsWith('(f,'));
await prisma.$disconnect();

// Behind PgBouncer in transaction mode, whose max_prepared_statements is in RATELIMIT_PREPARED: 0, so that it mixes up
// the statements that its clients prepare, or more. Each request is counted once all the same, and is answered.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import pg from 'pg';

import { HOUR, RateLimiter } from 'postgres-rate-limit';
import { STORES } from '../edition.js';

const keepsThem = process.env.RATELIMIT_PREPARED !== '0';
const admin = new pg.Client({ user: 'postgres', database: 'pgbouncer' });
await admin.connect();
after(() => admin.end());

/** Two applications of eight connections each, on four of the server. */
async function exactly(context, beside = async () => {}) {
    const warned = context.mock.method(console, 'warn', () => {}).mock;
    for (const store of STORES) {
        for (const batch of [true, false]) {
            const pools = [0, 1].map(() => new pg.Pool({ max: 8 }));
            for (const pool of pools) pool.on('error', () => {});
            const config = { kind: 'fixed window', rate: 100, period: 100 * HOUR, start: 'first request', store };
            const options = { key: `${Math.random()}`, config };
            const asked = pools.flatMap((db) => {
                const limiter = new RateLimiter({}, { db, batch });
                return Array.from({ length: 10 }, async (_, turn) => {
                    const answers = [];
                    for (let times = 0; times < 7; times++) {
                        answers.push((await limiter.limit('pooled', options)).ok);
                        if (turn === 0) await beside();
                    }
                    return answers;
                });
            });
            const answers = (await Promise.all(asked)).flat();
            assert.deepEqual([answers.length, answers.filter(Boolean).length], [140, 100], `${store}, batch: ${batch}`);
            await Promise.all(pools.map((pool) => pool.end()));
        }
    }
    return warned.calls.map(({ arguments: [text] }) => text);
}

test('requests at once are counted once', async (context) => {
    const warned = await exactly(context);
    if (keepsThem) assert.deepEqual(warned, []);
    for (const text of warned) assert.match(text, /statements go unprepared for ten minutes/);
});

test('and after DISCARD ALL, with which PgBouncer ends each transaction', async (context) => {
    await admin.query('SET server_reset_query_always = 1');
    context.after(() => admin.query('SET server_reset_query_always = 0'));
    const warned = await exactly(context);
    if (keepsThem) assert.deepEqual(warned, []);
});

test('and where another client deallocates all', async (context) => {
    const other = new pg.Pool({ max: 2 });
    context.after(() => other.end());
    const warned = await exactly(context, () => other.query('DEALLOCATE ALL'));
    if (keepsThem) assert.deepEqual(warned, []);
});

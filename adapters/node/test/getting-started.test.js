// docs/getting-started.md shows parts of this.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import postgres from 'postgres';

import { MINUTE, RateLimiter, tokenBucket } from 'postgres-rate-limit';
import { limits } from './limits.js';

const name = `getting_started_${process.pid}`;
const sql = postgres({ user: `${name}_app`, database: name });

const limiter = new RateLimiter(
    { sendMessage: tokenBucket({ rate: 10, period: MINUTE, keyed: true }) },
    { db: sql },
);

const send = (author, body) =>
    sql.begin(async (tx) => {
        const { ok, retryAfter } = await limiter.limit('sendMessage', { key: author, count: 3, db: tx });
        if (ok) await tx`INSERT INTO messages VALUES (${author}, ${body})`;
        return retryAfter; // null, or milliseconds
    });

let database;
before(async () => {
    database = await limits(name);
});
after(async () => {
    await sql.end();
    await database.end();
});

test('messages are sent within the limit, in a transaction of both', async () => {
    await assert.rejects(send('user-1', 'no\0text'));
    const sent = [];
    for (let n = 0; n < 4; n++) sent.push(await send('user-1', 'hello'));
    assert.deepEqual(sent.slice(0, 3), [null, null, null]);
    assert.ok(sent[3] > 0 && sent[3] <= 12_000, String(sent[3]));
    assert.equal((await sql`SELECT FROM messages`).length, 3);
});

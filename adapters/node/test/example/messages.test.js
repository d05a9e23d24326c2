// Ten messages a minute for each user, and the tests of it, which docs/testing.md shows. testing.test.js runs them.
import { expect } from 'vitest';
import { test } from 'postgres-rate-limit/testing';

// What the application does, on a pool that it is given.

/** Sends a message, or answers the seconds to wait. */
async function send(pool, user, body) {
    const client = await pool.connect();
    try {
        await client.query('BEGIN');
        const take = "SELECT ok, retry_after FROM rl_limit('sendMessage', $1)";
        const { rows: [{ ok, retry_after }] } = await client.query(take, [user]);
        if (ok) await client.query('INSERT INTO messages VALUES ($1, $2)', [user, body]);
        await client.query('COMMIT');
        return ok ? undefined : retry_after;
    } catch (error) {
        await client.query('ROLLBACK');
        throw error;
    } finally {
        client.release();
    }
}

// Its tests.

test('ten messages a minute', async ({ pool, clock }) => {
    for (let n = 0; n < 10; n++) expect(await send(pool, 'ada', 'hello')).toBeUndefined();
    expect(await send(pool, 'ada', 'hello')).toBe(6);
    await clock.advance(6_000);
    expect(await send(pool, 'ada', 'hello')).toBeUndefined();
});

test('users do not wait for each other', async ({ pool }) => {
    for (let n = 0; n < 10; n++) await send(pool, 'ada', 'hello');
    expect(await send(pool, 'ben', 'hello')).toBeUndefined();
});

test('a message is kept', async ({ pool }) => {
    await send(pool, 'ada', 'hello');
    const { rows } = await pool.query('SELECT * FROM messages');
    expect(rows).toEqual([{ author: 'ada', body: 'hello' }]);
});

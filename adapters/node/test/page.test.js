// docs/node.md, docs/failing.md and docs/borrowing.md show parts of this.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { drizzle } from 'drizzle-orm/node-postgres';
import { pgTable, text } from 'drizzle-orm/pg-core';
import pg from 'pg';

import {
    concurrency,
    denialResponse,
    HOUR,
    isRateLimitError,
    MINUTE,
    RateLimiter,
    SECOND,
    tokenBucket,
} from 'postgres-rate-limit';
import { limits, run } from './limits.js';

const pool = new pg.Pool();
const db = drizzle(pool);
const messages = pgTable('messages', { author: text(), body: text() });
const done = [];
const prepare = async (tenant) => done.push(`prepared for ${tenant}`);
const model = async (prompt) => ({ text: `an answer to ${prompt}`, tokens: 8_500 });
const find = async (words) => [`found: ${words}`];
const log = (line) => done.push(line);
const write = async (tenant) => done.push(`written for ${tenant}`);

const limiter = new RateLimiter(
    {
        sendMessage: tokenBucket({ rate: 10, period: MINUTE, capacity: 3, keyed: true }),
        signUp: { kind: 'fixed window', rate: 100, period: HOUR },
        exports: concurrency({ slots: 2, ttl: 5 * MINUTE }),
        llmTokens: tokenBucket({ rate: 40_000, period: MINUTE }),
        searches: tokenBucket({ rate: 1, period: HOUR }),
    },
    { db: pool },
);

const send = (author, body) =>
    db.transaction(async (tx) => {
        await limiter.limit('sendMessage', { key: author, db: tx, throws: true });
        await tx.insert(messages).values({ author, body });
    });

async function answer(error) {
    const response = denialResponse(error);
    if (!response) throw error;
    return response;
}

const search = async (user, words) => {
    const { ok, error } = await limiter.limit('searches', { key: user, onError: 'open' });
    if (error) log(`unchecked: ${error.message}`);
    return ok ? find(words) : [];
};

const report = (tenant) =>
    limiter.withLease('exports', { key: tenant, wait: 30 * SECOND }, async (lease) => {
        await prepare(tenant);
        if (!(await lease.extend())) throw new Error('the slot has expired');
        return write(tenant);
    });

const ask = (team, prompt) =>
    limiter.withHold('llmTokens', { key: team, count: 12_000, ttl: 2 * MINUTE }, async (hold) => {
        const { text, tokens } = await model(prompt);
        hold.used = tokens;
        return text;
    });

const shared = new RateLimiter(limiter.definitions, { db: pool, defined: true });

const remembering = new RateLimiter(limiter.definitions, { db: pool, rememberDenials: { max: 10_000, atMost: 1000 } });

const apiRequests = tokenBucket({ rate: 1000, period: SECOND, keyed: true });
const requests = limiter.borrow('apiRequests', { config: apiRequests, max: 100 });

async function serve(user) {
    const { ok, retryAfter } = await requests.limit({ key: user });
    if (ok) return new Response('hello');
    const headers = retryAfter === null ? {} : { 'Retry-After': String(Math.ceil(retryAfter / 1000)) };
    return new Response('', { status: 429, headers });
}

const logged = (log) =>
    new RateLimiter(limiter.definitions, {
        db: pool,
        onDecision: ({ name, ok, limitedBy, ms, error }) => log({ name, ok, limitedBy, ms, error: error?.message }),
    });

let database;
before(async () => {
    database = await limits(`page_node_${process.pid}`);
    Object.assign(pool.options, database.app);
});
after(async () => {
    await pool.end();
    await database.end();
});

test('messages within the limit are sent, a denial is answered, and a rollback returns the token', async () => {
    for (let n = 0; n < 4; n++) await assert.rejects(send('ada', 'no\0text'), (error) => !isRateLimitError(error));
    let [sent, denial] = [0];
    for (; !denial; sent += 1)
        denial = await send('ada', 'hello').then(
            () => undefined,
            (error) => error,
        );
    assert.ok(sent > 3);
    const response = await answer(denial);
    assert.equal(response.status, 429);
    assert.ok(['1', '2', '3', '4', '5', '6'].includes(response.headers.get('retry-after')));
    assert.match(await response.text(), /^Too many requests: try again in \d+ /);
    const other = new Error('another');
    await assert.rejects(answer(other), other);
    assert.equal((await db.select().from(messages)).length, sent - 1);
});

test('a search goes on while the server is full, and not without end', async () => {
    await run('postgres', 'postgres', `ALTER ROLE ${database.app.user} CONNECTION LIMIT 0`);
    const { idleCount } = pool;
    const held = await Promise.all(Array.from({ length: idleCount }, () => pool.connect())); // those that are there
    assert.deepEqual(await search('ada', 'words'), ['found: words']);
    assert.match(done.pop(), /^unchecked: too many connections/);
    for (const client of held) client.release();
    await run('postgres', 'postgres', `ALTER ROLE ${database.app.user} CONNECTION LIMIT -1`);
    assert.deepEqual([await search('ada', 'words'), await search('ada', 'words')], [['found: words'], []]);
});

test('who floods is denied without the database', async () => {
    while ((await remembering.limit('sendMessage', { key: 'floods' })).ok);
    assert.equal((await remembering.limit('sendMessage', { key: 'floods' })).ok, false);
});

test('requests are served of what is borrowed', async () => {
    const statuses = [];
    for (let n = 0; n < 20; n++) statuses.push((await serve('ada')).status);
    assert.deepEqual(statuses, Array(20).fill(200));
    await requests.close();
});

test('a report is written in a slot', async () => {
    await report('acme');
    assert.deepEqual(done, ['prepared for acme', 'written for acme']);
    assert.equal((await limiter.check('exports', { key: 'acme' })).remaining, 2);
});

test('a call to a model costs what it has used', async (context) => {
    const { rows } = await pool.query("SELECT FROM pg_proc WHERE proname = 'rl_hold'");
    if (rows.length === 0) return context.skip('the database has no holds');
    const { remaining: before } = await limiter.limit('llmTokens', { key: 'acme', count: 20_000 });
    assert.equal(await ask('acme', 'a question'), 'an answer to a question');
    const { remaining } = await limiter.check('llmTokens', { key: 'acme' });
    assert.ok(remaining >= before - 8_500, 'what was used, less what has flowed in since');
});

test('decisions are logged, and limits are shared by their definitions', async () => {
    const lines = [];
    await logged((line) => lines.push(line)).limit('signUp');
    assert.deepEqual(Object.keys(lines[0]), ['name', 'ok', 'limitedBy', 'ms', 'error']);
    await assert.rejects(shared.limit('signUp'), { code: '42704' });
    const owner = new pg.Pool(database.owner);
    assert.equal((await shared.define({ db: owner })).length, 5);
    await owner.end();
    assert.equal((await shared.check('signUp')).remaining, 99);
});

// A restart of the server while an application has a transaction open: with the README's listeners it lives on. And one
// that is stopped, where a call is an error, or passes where it is to fail open.
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { test } from 'node:test';
import { promisify } from 'node:util';

import pg from 'pg';

import { HOUR, RateLimiter, tokenBucket } from 'postgres-rate-limit';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { RateLimitStore as HonoStore } from 'postgres-rate-limit/hono';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';

import { ADAPTERS } from '../adapters.js';

const source = fileURLToPath(new URL('../..', import.meta.url));
/** Restarts the server: adapters/run copies the package to target/adapters/node. */
const [restart, ...how] = [`${source}/../../../scripts/server`, 'ctl', process.env.PGHOST, 'restart', '-m', 'fast'];
const ctl = (...what) => promisify(execFile)(restart, ['ctl', process.env.PGHOST, ...what]);

const readme = await readFile(`${source}/README.md`, 'utf8');
const [, example] = /```js\n(.*?)\n```/s.exec(readme);
// Its pool and the listeners.
const begin = example.slice(example.indexOf('const pool'), example.indexOf('const app'));
const [pool, ...listeners] = begin.split('\n').filter((line) => line && !line.startsWith('//'));
const program = (lines) => `
    import pg from 'pg';
    import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
    ${lines.join('\n')}
    const open = (pool) => {
        const store = new RateLimitStore({ db: pool, name: \`restart \${process.pid}\` });
        store.init({ limit: 3, windowMs: 600_000 });
        return store;
    };
    const store = open(pool);
    await store.increment('key');
    const client = await pool.connect();
    await client.query('BEGIN');
    await open(client).increment('other');
    process.stdout.write('open\\n');
    await new Promise((resolve) => process.stdin.once('data', resolve));
    const failed = await client.query('COMMIT').then(() => false, () => true);
    client.release(true);
    const { totalHits } = await store.increment('key');
    process.stdout.write(JSON.stringify({ failed, totalHits, other: (await store.get('other')) ?? null }));
    await pool.end();
    process.exit(0);`;

/** Runs such a program over a restart of the server; its code, and what it has printed. */
async function over(lines) {
    const child = spawn(process.execPath, ['--input-type=module', '-e', program(lines)], { cwd: source });
    let [out, log] = ['', ''];
    child.stdout.on('data', (data) => (out += data));
    child.stderr.on('data', (data) => (log += data));
    const ended = new Promise((resolve) => child.once('close', resolve));
    while (out !== 'open\n') {
        assert.equal(child.exitCode, null, log);
        await new Promise((resolve) => setTimeout(resolve, 10));
    }
    await promisify(execFile)(restart, how);
    child.stdin.on('error', () => {}); // if it has ended
    child.stdin.end('go on\n');
    return { code: await ended, out: out.slice('open\n'.length), log };
}

test('a restart in mid-transaction fails that transaction, and the application lives on', async () => {
    const { code, out, log } = await over([pool, ...listeners]);
    assert.equal(code, 0, log);
    assert.deepEqual(JSON.parse(out), { failed: true, totalHits: 2, other: null });
    assert.match(log, /^terminating connection/m);
});

test('without the listener of each client it ends', async () => {
    const { code, log } = await over([pool, ...listeners.filter((line) => !line.includes("'connect'"))]);
    assert.equal(code, 1);
    assert.match(log, /Unhandled 'error' event/);
});

test('while it is stopped each adapter and the client fails, or passes where it is to; then all count', async (context) => {
    const pool = new pg.Pool();
    pool.on('error', () => {});
    const heard = [];
    const onUnchecked = (error) => heard.push(error);
    const nameOf = (n) => `stopped ${n} ${process.pid}`;
    const options = (n) => ({ db: pool, name: nameOf(n), onError: n % 2 ? 'open' : 'closed', onUnchecked });
    const stores = [0, 1, 2, 3].map((n) => new (n < 2 ? RateLimitStore : HonoStore)(options(n)));
    for (const store of stores) store.init({ limit: 2, windowMs: HOUR });
    const storages = [4, 5].map((n) => new RateLimitThrottlerStorage(options(n)));
    const onDecision = ({ ok, error }) => ok && error && heard.push(error);
    const config = tokenBucket({ rate: 2, period: HOUR });
    const others = Object.entries(ADAPTERS).flatMap(([adapter, { counts }]) =>
        [8, 9].map((n) => {
            const count = counts({ ...options(n), name: `${nameOf(n)} ${adapter}` }, { limit: 2, windowMs: HOUR });
            return async () => (await count('k')).passed;
        }),
    );
    const limiters = [6, 7].map((n) => new RateLimiter({}, { db: pool, onError: options(n).onError, onDecision }));
    const calls = [
        ...stores.map((store) => async () => (await store.increment('k')).totalHits <= 2),
        ...storages.map((storage) => async () => !(await storage.increment('k', HOUR, 2, HOUR, 'default')).isBlocked),
        ...limiters.map((limiter, n) => async () => (await limiter.limit(nameOf(n + 6), { config })).ok),
        ...others,
    ];
    const answered = async (call) => call().catch(() => 'failed');
    const all = async (expected) => assert.deepEqual(await Promise.all(calls.map(answered)), calls.map((_, n) => expected(n)));
    await all(() => true);
    await ctl('stop', '-m', 'fast');
    context.after(() => ctl('start').catch(() => {}));
    // On connections that are lost, then on none.
    for (const times of [1, 2]) {
        await all((n) => (n % 2 ? true : 'failed'));
        assert.equal(heard.length, (times * calls.length) / 2);
    }
    await ctl('start');
    await all(() => true);
    await all(() => false);
    await pool.end();
});

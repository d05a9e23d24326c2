// The application's clock and the database's show different times, and either steps. An application's times are those of
// its own clock, and its spans those of the database.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';

import { serve } from '@hono/node-server';
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import { Hono } from 'hono';
import { rateLimiter } from 'hono-rate-limiter';
import pg from 'pg';

import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';
import { ADAPTERS } from './adapters.js';
import { application } from './application.js';
import { STORES } from './edition.js';

const SECOND = 1000;
const HOUR = 3600 * SECOND;
const APART = [-HOUR, -10 * SECOND, 0, 10 * SECOND, HOUR];

const NOON = Date.UTC(2027, 0, 1, 12);
/** The database, whose clock is the server's, or stands where it is set. */
async function database(context) {
    const pool = new pg.Pool({ user: 'postgres', max: 1, idleTimeoutMillis: 0 });
    context.after(async () => {
        application.ahead = 0;
        await pool.end();
    });
    const set = (text) => pool.query("SELECT set_config('ratelimit.clock', $1, false)", [text]);
    let forms = 0;
    return {
        pool,
        // Alternately in each of the forms that the setting may have.
        setClock: (time) => set(forms++ % 2 ? new Date(time).toISOString().replace('T', ' ').replace('Z', '+00') : String(time)),
    };
}

const FRAMEWORKS = {
    Express: (options, answer) => {
        const app = express();
        app.use(rateLimit({ standardHeaders: 'draft-7', keyGenerator: () => 'key', ...options }));
        app.get('/', (_, response) => response.status(answer()).send(''));
        return app.listen(0, '127.0.0.1');
    },
    Hono: (options, answer) => {
        const app = new Hono();
        app.use(rateLimiter({ standardHeaders: 'draft-7', keyGenerator: () => 'key', ...options }));
        app.get('/', (c) => c.body('', answer()));
        return serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' });
    },
};
/** An application; what calls it, and answers the status and the headers. */
async function open(context, start, options, answer = () => 200) {
    const server = start(options, answer);
    if (!server.listening) await once(server, 'listening');
    context.after(() => server.close());
    return async () => {
        const { status, headers } = await fetch(`http://127.0.0.1:${server.address().port}/`);
        const reset = Number(/reset=(\d+)/.exec(headers.get('ratelimit'))[1]);
        const [wait, at] = ['retry-after', 'x-ratelimit-reset'].map((name) => headers.has(name) && Number(headers.get(name)));
        return { status, wait, reset, at };
    };
}
/** Sends requests until `left` hits are left, counting those given back after the answer. */
async function hits(store, expected) {
    for (let tries = 0; tries < 200; tries++) {
        if (((await store.get('key'))?.totalHits ?? 0) === expected) return;
        await new Promise((resolve) => setTimeout(resolve, 10));
    }
    assert.equal((await store.get('key'))?.totalHits, expected);
}
let names = 0;
const nameOf = (what) => `${what} ${process.pid} ${names++}`;

for (const [name, start] of Object.entries(FRAMEWORKS)) {
    for (const kept of STORES) {
        test(`${name} answers the seconds that are left, whatever the clocks show, in the ${kept}`, async (context) => {
            const { pool, setClock } = await database(context);
            for (const clock of ['set', 'running']) {
                if (clock === 'running') await pool.query('RESET ratelimit.clock');
                for (application.ahead of APART) {
                    const store = new RateLimitStore({ db: pool, name: nameOf(name), store: kept });
                    const call = await open(context, start, { windowMs: 5000, limit: 1, store });
                    if (clock === 'set') await setClock(NOON);
                    const seconds = (got) => assert.ok(got === 5 || (clock === 'running' && got === 4), `${got} s, ${application.ahead} ms ahead`);
                    const first = await call();
                    assert.equal(first.status, 200);
                    seconds(first.reset);
                    const denied = await call();
                    assert.equal(denied.status, 429);
                    seconds(denied.reset);
                    seconds(denied.wait);
                    const { totalHits, resetTime } = await store.get('key');
                    assert.equal(totalHits, 1);
                    const left = resetTime.getTime() - Date.now();
                    assert.ok(left > 3000 && left <= 5000, `${left} ms`);
                    // The header Date has its own clock.
                    if (name === 'Express') assert.ok(Math.abs(denied.at - Date.now() / 1000 - 5) <= 2, `${denied.at}`);
                    if (clock === 'running') continue;
                    await setClock(NOON + 4999.7);
                    assert.deepEqual([(await call()).wait, (await store.get('key')).totalHits], [1, 1], 'never 0 of a denial');
                }
            }
        });

        test(`${name} gives hits back, whatever the clocks show, in the ${kept}`, async (context) => {
            const { pool, setClock } = await database(context);
            for (const clock of ['set', 'running']) {
                if (clock === 'running') await pool.query('RESET ratelimit.clock');
                for (application.ahead of APART) {
                    let status = 500;
                    const store = new RateLimitStore({ db: pool, name: nameOf(name), store: kept });
                    const options = { windowMs: 5000, limit: 2, store, skipFailedRequests: true };
                    const call = await open(context, start, options, () => status);
                    if (clock === 'set') await setClock(NOON);
                    for (let n = 0; n < 4; n++) {
                        assert.equal((await call()).status, 500, `${application.ahead} ms ahead`);
                        await hits(store, 0);
                        const left = (await store.get('key')).resetTime.getTime() - Date.now();
                        assert.ok(left > 3000 && left <= 5000, `of a window without hits ${left} ms are left`);
                    }
                    status = 200;
                    assert.equal((await call()).status, 200);
                    await hits(store, 1);
                }
            }
        });

        test(`${name} over a step of the application's clock, in the ${kept}`, async (context) => {
            const { pool, setClock } = await database(context);
            await setClock(NOON);
            for (const step of APART) {
                application.ahead = 0;
                let status = 200;
                let steps = () => {};
                const store = new RateLimitStore({ db: pool, name: nameOf(name), store: kept });
                const options = { windowMs: 5000, limit: 2, store, skipFailedRequests: true };
                const call = await open(context, start, options, () => {
                    steps();
                    return status;
                });
                assert.equal((await call()).reset, 5);
                application.ahead = step;
                assert.equal((await call()).reset, 5);
                assert.equal((await call()).wait, 5);
                await store.resetAll();
                status = 500;
                for (let n = 0; n < 3; n++) {
                    application.ahead = n % 2 ? step : 0;
                    assert.equal((await call()).status, 500);
                    await hits(store, 0);
                }
                // While a request runs: express-rate-limit compares its own clock with the window's end.
                application.ahead = 0;
                steps = () => (application.ahead = step);
                assert.equal((await call()).status, 500);
                await new Promise((resolve) => setTimeout(resolve, 20));
                await hits(store, name === 'Express' && step > 5000 ? 1 : 0);
            }
        });

        test(`${name} over a step of the database's clock, in the ${kept}`, async (context) => {
            const { pool, setClock } = await database(context);
            // Back, the window goes on and ends by the clock: the denial ends when that shows its end.
            for (const [step, left] of [[2000, 3], [-10 * SECOND, 15], [-HOUR, 3605]]) {
                for (const skipFailedRequests of [false, true]) {
                    let status = 200;
                    const store = new RateLimitStore({ db: pool, name: nameOf(name), store: kept });
                    const call = await open(context, start, { windowMs: 5000, limit: 2, store, skipFailedRequests }, () => status);
                    await setClock(NOON);
                    assert.equal((await call()).reset, 5);
                    await setClock(NOON + step);
                    if (skipFailedRequests) {
                        status = 500;
                        for (let n = 0; n < 3; n++) {
                            assert.equal((await call()).status, 500);
                            await hits(store, 1);
                        }
                        status = 200;
                    }
                    assert.equal((await call()).reset, left);
                    const denied = await call();
                    assert.deepEqual([denied.status, denied.wait], [429, left]);
                    await setClock(NOON + 5000);
                    assert.deepEqual(await call().then(({ status, reset }) => [status, reset]), [200, 5], 'then it has ended');
                }
            }
        });
    }
}

for (const kept of STORES) {
    test(`Nest: the seconds that are left, whatever the clocks show, and over steps, in the ${kept}`, async (context) => {
        const { pool, setClock } = await database(context);
        const storage = new RateLimitThrottlerStorage({ db: pool, name: nameOf('nest'), store: kept });
        let key = 0;
        const increment = () => storage.increment(`${key}`, 5000, 1, 5000, 'default');
        const times = ({ timeToExpire, timeToBlockExpire }) => [timeToExpire, timeToBlockExpire];
        for (application.ahead of APART) {
            key++;
            await setClock(NOON);
            assert.deepEqual(times(await increment()), [5, 0]);
            for (const step of APART) {
                application.ahead = step;
                assert.deepEqual(times(await increment()), [5, 5]);
            }
            for (const [at, left] of [[2000, 3], [-10 * SECOND, 15], [-HOUR, 3605], [4000, 1], [4999, 1], [4999.001, 1], [4999.9, 1]]) {
                await setClock(NOON + at);
                assert.deepEqual(times(await increment()), [left, left], `at ${at} ms`);
            }
            await setClock(NOON + 5000);
            assert.deepEqual(times(await increment()), [5, 0]);
        }
        await pool.query('RESET ratelimit.clock');
        for (application.ahead of APART) {
            key++;
            for (const blocked of [0, 1]) {
                const [left, block] = times(await increment());
                assert.ok((left === 5 || left === 4) && (block === 5 || block === 4) === Boolean(blocked), `${left} ${block}`);
            }
        }
    });
}

for (const [adapter, { counts, start, path, header }] of Object.entries(ADAPTERS)) {
    test(`${adapter}: the seconds that are left, whatever the clocks show, and over steps`, async (context) => {
        const { pool, setClock } = await database(context);
        for (const store of STORES) {
            const limits = { limit: 1, windowMs: 5000 };
            const count = counts({ db: pool, name: nameOf(adapter), store }, limits);
            let key = 0;
            const answer = async () => Object.values(await count(`${key}`));
            for (application.ahead of APART) {
                key++;
                await setClock(NOON);
                assert.equal((await answer())[0], true);
                for (const step of APART) {
                    application.ahead = step;
                    assert.deepEqual(await answer(), [false, 5]);
                }
                for (const [at, left] of [[2000, 3], [-10 * SECOND, 15], [4000, 1], [4999, 1], [4999.001, 1], [4999.9, 1]]) {
                    await setClock(NOON + at);
                    assert.deepEqual(await answer(), [false, left], `at ${at} ms`);
                }
                await setClock(NOON + 5000);
                assert.equal((await answer())[0], true);
            }
            await setClock(NOON);
            for (application.ahead of APART) {
                const server = await start({ db: pool, name: nameOf(adapter), store }, limits);
                if (!server.listening) await once(server, 'listening');
                context.after(() => server.close());
                const answers = [];
                for (let n = 0; n < 2; n++) answers.push(await fetch(`http://127.0.0.1:${server.address().port}${path}`));
                assert.deepEqual(answers.map(({ status }) => status), [200, 429], `${application.ahead} ms ahead`);
                assert.equal(answers[1].headers.get(header), '5');
            }
            // A block is denied until its end; one without an end, for a window, or without a time.
            const never = adapter === 'rate-limiter-flexible' ? -1 : 5;
            for (const [until, seconds] of [["'2027-01-01 12:01:30+00'", 90], ["'infinity'", never]]) {
                const name = nameOf('blocked');
                await pool.query(`SELECT rl_block($1, 'key', until => ${until})`, [name]);
                const blocked = counts({ db: pool, name, store }, limits);
                assert.deepEqual(Object.values(await blocked('key')), [false, seconds]);
            }
        }
    });
}

test('a call has its time-out over a step of the clock', async (context) => {
    context.after(() => (application.ahead = 0));
    for (const step of [HOUR, -HOUR]) {
        let sent;
        const client = { on() {}, off() {}, query: (config) => (sent = config) };
        let connect;
        const pool = { totalCount: 0, query() {}, connect: (connected) => (connect = connected) };
        const store = new RateLimitStore({ db: pool, schema: 'public', name: 'step', timeout: 5000 });
        store.init({ limit: 1, windowMs: 5000 });
        application.ahead = 0;
        void store.increment('key');
        application.ahead = step;
        connect(undefined, client, () => {});
        assert.ok(sent.query_timeout > 4000 && sent.query_timeout <= 5000, `${sent.query_timeout} ms`);
    }
});

test('a key that rl_block denies is told when that ends', async (context) => {
    const { pool, setClock } = await database(context);
    await setClock(NOON);
    for (application.ahead of APART) {
        for (const [until, seconds] of [["'2027-01-01 12:01:30+00'", 90], ["'infinity'", 5]]) {
            const name = nameOf('blocked');
            await pool.query(`SELECT rl_block(blocked, 'key', until => ${until}) FROM unnest($1::text[]) AS blocked`, [[name, `${name}/default`]]);
            for (const start of Object.values(FRAMEWORKS)) {
                const call = await open(context, start, { windowMs: 5000, limit: 2, store: new RateLimitStore({ db: pool, name }) });
                const { status, wait } = await call();
                assert.deepEqual([status, wait], [429, seconds]);
            }
            const storage = new RateLimitThrottlerStorage({ db: pool, name });
            assert.equal((await storage.increment('key', 5000, 2, 5000, 'default')).timeToBlockExpire, seconds);
        }
    }
});

// Frameworks answer the same requests in the same way with our store as with the one in memory of their own.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { after, test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { serve } from '@hono/node-server';
import express from 'express';
import * as forExpress from 'express-rate-limit';
import { betterAuth } from 'better-auth';
import { Hono } from 'hono';
import * as forHono from 'hono-rate-limiter';
import pg from 'pg';
import { RateLimiterMemory } from 'rate-limiter-flexible';

import { RateLimitStorage } from 'postgres-rate-limit/better-auth';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { RateLimiterStore } from 'postgres-rate-limit/rate-limiter-flexible';
import { onFile, STORES } from './edition.js';

const pool = new pg.Pool();
after(() => pool.end());

// Applications that answer the status that a request asks for. `done` is called when nothing follows a response.
const FRAMEWORKS = {
    Express: {
        MemoryStore: forExpress.MemoryStore,
        wasSuccessful: (judge) => (_, response) => judge(response.statusCode),
        start: (options, done) => {
            const app = express();
            app.use((_, response, next) => {
                response.on('close', done);
                next();
            });
            app.use(forExpress.rateLimit({ standardHeaders: 'draft-6', validate: false, ...options }));
            app.get('/:status', (request, response) => response.status(Number(request.params.status)).send(''));
            return app.listen(0, '127.0.0.1');
        },
    },
    Hono: {
        MemoryStore: forHono.MemoryStore,
        wasSuccessful: (judge) => (c) => judge(c.res.status),
        start: (options, done) => {
            const app = new Hono();
            app.use(async (_, next) => {
                await next();
                done();
            });
            app.use(forHono.rateLimiter(options));
            app.get('/:status', (c) => c.body('', Number(c.req.param('status'))));
            return serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' });
        },
    },
};

/** The answers to requests for these statuses, one after the other, each after what follows the one before. */
async function answers({ start }, options, statuses) {
    const { store } = options;
    let givenBack;
    const { decrement } = store;
    store.decrement = (...arguments_) => (givenBack = decrement.apply(store, arguments_));
    let done;
    const server = start({ windowMs: 600_000, keyGenerator: () => 'key', ...options }, () => done());
    if (!server.listening) await once(server, 'listening');
    const all = [];
    for (const status of statuses) {
        const ended = new Promise((resolve) => (done = resolve));
        const response = await fetch(`http://127.0.0.1:${server.address().port}/${status}`);
        await ended;
        await setImmediate(); // now all is asked for that follows
        await givenBack;
        all.push(`${response.status} ${response.headers.get('ratelimit-remaining')}`);
    }
    server.close();
    return all;
}

const STATUSES = [
    Array(12).fill(401),
    Array(6).fill(200),
    [401, 200, 401, 500, 200, 401, 401, 404, 200, 200, 401, 500, 401, 200, 401, 401, 200, 401],
];
const LIMITS = [3, 0, () => 3, async () => 2.5];
const JUDGES = [(status) => status < 400, (status) => status !== 401];
const SKIPS = [[], ['skipFailedRequests'], ['skipSuccessfulRequests'], ['skipFailedRequests', 'skipSuccessfulRequests']];

for (const [name, framework] of Object.entries(FRAMEWORKS)) {
    for (const kept of STORES) {
        for (const skips of SKIPS) {
            test(`as with MemoryStore: ${name}, in the ${kept}, ${skips.join(', ') || 'all count'}`, async () => {
                for (const judge of JUDGES) {
                    for (const limit of LIMITS) {
                        for (const statuses of STATUSES) {
                            const requestWasSuccessful = framework.wasSuccessful(judge);
                            const options = { limit, requestWasSuccessful };
                            for (const skip of skips) options[skip] = true;
                            const ours = new RateLimitStore({ db: pool, name: `${Math.random()}`, store: kept });
                            const theirs = new framework.MemoryStore();
                            const [got, expected] = [
                                await answers(framework, { ...options, store: ours }, statuses),
                                await answers(framework, { ...options, store: theirs }, statuses),
                            ];
                            theirs.shutdown();
                            assert.deepEqual(got, expected, `limit ${limit}, successful ${judge}`);
                        }
                    }
                }
            });
        }
    }
}

test('as with its memory: better-auth, by the rule of each path', async () => {
    const rateLimit = {
        enabled: true,
        window: 600,
        max: 4,
        customRules: {
            '/get-session': { window: 300, max: 2 },
            '/error': false,
            '/sign-in/*': { window: 600, max: 3 },
            '/token/*': () => ({ window: 600, max: 1 }),
        },
    };
    const paths = ['ok', 'get-session', 'ok', 'error', 'sign-in/email', 'get-session', 'get-session', 'ok', 'token/a', 'token/b'];
    const calls = [...paths, ...paths, 'token/a', 'sign-in/email', 'sign-in/email', ...paths];
    const answers = async (options) => {
        const auth = betterAuth({
            secret: 'a'.repeat(32),
            baseURL: 'http://127.0.0.1',
            logger: { disabled: true },
            rateLimit: { ...rateLimit, ...options },
        });
        const all = [];
        for (const path of calls) {
            const { status } = await auth.handler(new Request(`http://127.0.0.1/api/auth/${path}`));
            all.push(`${path} ${status === 429 ? 'denied' : 'passed'}`);
        }
        return all;
    };
    const expected = await answers({ storage: 'memory' });
    assert.equal(expected.filter((answer) => answer.endsWith('denied')).length, 19);
    for (const store of STORES) {
        const customStorage = new RateLimitStorage({ db: pool, name: `${Math.random()}`, store });
        assert.deepEqual(await answers({ customStorage }), expected);
    }
});

// What needs continueExceeding or exponentialBackoff is refused.
const REFUSED = /continue exceeding|continueExceeding|exponentialBackoff|issue #284/i;
test("the plugin's own tests pass: @fastify/rate-limit", { skip: onFile }, async () => {
    const at = (path) => fileURLToPath(new URL(path, import.meta.url));
    const folder = at('../node_modules/@fastify/rate-limit/test');
    const files = readdirSync(folder, { recursive: true }).filter((name) => /\.test\.js$/.test(name));
    const others = /redis|exponential-backoff|local-store/; // of other stores
    const chosen = files.filter((name) => !others.test(name)).map((name) => `${folder}/${name}`);
    const { NODE_TEST_CONTEXT, ...env } = process.env;
    const child = spawn(
        process.execPath,
        ['--require', at('fastify/store.cjs'), '--test', '--test-reporter=tap', '--test-timeout=60000', ...chosen],
        { env, stdio: ['ignore', 'pipe', 'inherit'] },
    );
    let out = '';
    child.stdout.on('data', (data) => (out += data));
    await once(child, 'close');
    const results = [...out.matchAll(/^(not )?ok \d+ - (.*)$/gm)].map(([, not, name]) => [!not, name.replaceAll('\\', '')]);
    assert.ok(results.filter(([ok]) => ok).length > 80, out);
    assert.deepEqual(results.filter(([ok, name]) => !ok && !REFUSED.test(name)), [], out);
});

// A call's method and arguments; with `?` only whether it passes is alike, since a denial takes nothing here.
const CALLS = [
    ['get'], ['consume'], ['consume', 2], ['get'], ['penalty', 4], ['consume?'], ['reward', 3], ['get'], ['consume'], ['consume?', 2],
    ['delete'], ['delete'], ['get'], ['set', 2, 600], ['consume'], ['consume?'], ['set', 7, 600], ['get'], ['consume?'], ['delete'],
    ['block', 900], ['consume?'], ['get'], ['delete'], ['consume', 3], ['reward', 2], ['consume', 2], ['block', 0], ['consume?'],
];
const COUNTED = [
    ['consume'], ['consume', 2], ['consume'], ['get'], ['consume?'], ['delete'], ['consume', 5], ['consume?'], ['delete'],
    ['penalty', 9], ['get'], ['consume?'], ['delete'], ['consume', 3], ['consume'], ['consume?'],
];
for (const [options, calls] of [
    [{}, CALLS],
    [{ blockDuration: 1200 }, COUNTED],
]) {
    test(`as with RateLimiterMemory: rate-limiter-flexible, ${JSON.stringify(options)}`, async (context) => {
        const owner = new pg.Pool({ user: 'postgres', max: 1 }); // it has the privilege to block
        context.after(() => owner.end());
        const theirs = new RateLimiterMemory({ points: 3, duration: 600, ...options });
        for (const store of STORES) {
            await theirs.delete('key');
            const ours = new RateLimiterStore({ db: owner, name: `${Math.random()}`, store, points: 3, duration: 600, ...options });
            for (const [n, [method, ...values]] of calls.entries()) {
                const [got, expected] = await Promise.all(
                    [ours, theirs].map(async (limiter) => {
                        const call = limiter[method.replace('?', '')]('key', ...values);
                        const answer = await call.then((result) => [true, result], (result) => [false, result]);
                        if (answer[1] instanceof Error) throw answer[1];
                        const result = answer[1]?.toJSON?.() ?? answer[1];
                        if (typeof result !== 'object' || !result) return answer;
                        // Their memory answers the points that blocked a key.
                        const blocked = result.consumedPoints > 3 || method === 'block';
                        const { remainingPoints, isFirstInDuration, consumedPoints } = result;
                        const minutes = result.msBeforeNext < 0 ? -1 : Math.round(result.msBeforeNext / 60_000);
                        if (method.endsWith('?')) return [answer[0], remainingPoints];
                        return [answer[0], remainingPoints, blocked || consumedPoints, blocked || isFirstInDuration, minutes];
                    }),
                );
                assert.deepEqual(got, expected, `${n}: ${method} ${values}, in the ${store}`);
            }
        }
    });
}

test('rate-limiter-flexible: the options of its stores count denials, too', async (context) => {
    const owner = new pg.Pool({ user: 'postgres', max: 1 });
    context.after(() => owner.end());
    let asked = 0;
    const query = (...statement) => ((asked += 1), owner.query(...statement));
    const open = (options) =>
        new RateLimiterStore({ db: { query }, schema: onFile ? 'ratelimit' : 'public', name: `${Math.random()}`, points: 2, duration: 600, ...options });
    const answers = async (limiter) => {
        const all = [];
        for (let n = 0; n < 6; n++) all.push(await limiter.consume('key').then(() => 0, (result) => Math.ceil(result.msBeforeNext / 60_000)));
        return all;
    };
    const blocking = open({ blockDuration: 1200, blockOnConsumed: 4 });
    assert.deepEqual(await answers(blocking), [0, 0, 10, 20, 20, 20]);
    asked = 0;
    assert.deepEqual(await answers(open({ inMemoryBlockOnConsumed: 4 })), [0, 0, 10, 10, 10, 10]);
    assert.equal(asked, 4, 'then it answers by itself');
});

test('rate-limiter-flexible: what it can not do is refused, and who may not block can delete', async () => {
    const limiter = new RateLimiterStore({ db: pool, name: `${Math.random()}`, points: 3, duration: 600 });
    await assert.rejects(limiter.set('key', 1, 60), /TypeError: RateLimiterStore: the duration is 60 s; allowed: that of the limiter/);
    await assert.rejects(limiter.consume('key', 1, { customDuration: 60 }), /TypeError: RateLimiterStore: the duration is 60 s/);
    await limiter.consume(7);
    assert.equal((await limiter.get('7')).consumedPoints, 1);
    assert.deepEqual([await limiter.delete(7), await limiter.delete(7)], [true, false]);
    await assert.rejects(limiter.block('key', 60), { code: '42501' });
    const forever = new RateLimiterStore({ db: pool, name: `${Math.random()}`, points: 1, duration: 0 });
    assert.equal((await forever.consume('key')).msBeforeNext, -1);
    await assert.rejects(forever.consume('key'), { msBeforeNext: -1, consumedPoints: 2 });
    const insured = new RateLimiterStore({
        db: new pg.Pool({ host: '/nowhere' }),
        name: 'insured',
        points: 1,
        duration: 600,
        insuranceLimiter: new RateLimiterMemory({ points: 1, duration: 600 }),
    });
    assert.equal((await insured.consume('key')).remainingPoints, 0);
    await assert.rejects(insured.consume('key'), { remainingPoints: 0 });
    // What it throws at once is the error of the call.
    insured.insuranceLimiter.set = insured.insuranceLimiter.block = () => {
        throw new Error('it only consumes');
    };
    await assert.rejects(insured.set('key', 1, 60), /only consumes/);
    await assert.rejects(insured.block('key', 60), /only consumes/);
});

test('twelve wrong passwords: three are tried, whatever requestWasSuccessful says of a denial', async () => {
    for (const framework of Object.values(FRAMEWORKS)) {
        const options = {
            limit: 3,
            skipSuccessfulRequests: true,
            requestWasSuccessful: framework.wasSuccessful((status) => status !== 401),
            store: new RateLimitStore({ db: pool, name: `${Math.random()}` }),
        };
        const statuses = (await answers(framework, options, Array(12).fill(401))).map((answer) => answer.split(' ')[0]);
        assert.deepEqual(statuses, [...Array(3).fill('401'), ...Array(9).fill('429')]);
    }
});

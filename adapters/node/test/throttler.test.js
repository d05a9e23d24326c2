// The storage for @nestjs/throttler against a real server with the extension, in a real Nest application.
import 'reflect-metadata';
import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import { Controller, Get, Module } from '@nestjs/common';
import { APP_GUARD, NestFactory } from '@nestjs/core';
import { ThrottlerGuard, ThrottlerModule } from '@nestjs/throttler';
import pg from 'pg';

import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';
import { onFile, STORES } from './edition.js';

const pool = new pg.Pool({ max: 16 });
after(() => pool.end());

for (const store of STORES) {
    test(`hits are counted, and denials are blocked, in the ${store}`, async () => {
        const storage = new RateLimitThrottlerStorage({ db: pool, name: `throttler ${store}`, store });
        const increment = (key, throttler = 'default') => storage.increment(key, 60_000, 2, 60_000, throttler);
        for (const [totalHits, isBlocked] of [[1, false], [2, false], [3, true], [3, true]]) {
            const answer = await increment('a');
            assert.deepEqual([answer.totalHits, answer.isBlocked], [totalHits, isBlocked]);
            assert.ok(answer.timeToExpire > 50 && answer.timeToExpire <= 60, `${answer.timeToExpire} s`);
            assert.equal(answer.timeToBlockExpire, isBlocked ? answer.timeToExpire : 0);
        }
        assert.equal((await increment('b')).totalHits, 1);
        assert.equal((await increment('a', 'other')).totalHits, 1);
        await assert.rejects(storage.increment('a', 60_000, 2, 90_000, 'default'), /blockDuration is 90000; allowed: ttl/);
    });
}

test('a limit of 0 lets nothing pass', async () => {
    for (const store of STORES) {
        const storage = new RateLimitThrottlerStorage({ db: pool, name: `none ${store}`, store });
        for (const hits of [1, 2, 3]) {
            const answer = await storage.increment('a', 60_000, 0, 60_000, 'default');
            assert.deepEqual([answer.totalHits, answer.isBlocked], [hits, true]);
            assert.ok(answer.timeToBlockExpire > 50, `${answer.timeToBlockExpire} s`);
        }
    }
});

test('a ttl may be as long as a period: 31,688 years', async () => {
    const storage = new RateLimitThrottlerStorage({ db: pool, name: `long ${process.pid}` });
    const YEAR = 365.25 * 86_400;
    for (const ttl of [68 * YEAR * 1000, 69 * YEAR * 1000, 7000 * YEAR * 1000, 1e15]) {
        for (const isBlocked of [false, true]) {
            const answer = await storage.increment(`${ttl}`, ttl, 1, ttl, 'default');
            assert.equal(answer.isBlocked, isBlocked);
            // A time in the database may end at the year 9999.
            const least = Math.min(ttl / 1000, 7900 * YEAR) - 10;
            for (const seconds of [answer.timeToExpire, ...(isBlocked ? [answer.timeToBlockExpire] : [])]) {
                assert.ok(Number.isInteger(seconds) && seconds >= least && seconds <= ttl / 1000, `${ttl} ms: ${seconds} s`);
            }
        }
    }
    for (const ttl of [1e15 + 1, 1e16, 1e21, Infinity, 0, -1]) {
        await assert.rejects(storage.increment('k', ttl, 1, ttl, 'default'), { code: '22023' }, `${ttl}`);
    }
    if (!onFile) {
        const memory = new RateLimitThrottlerStorage({ db: pool, name: `long ${process.pid}`, store: 'memory' });
        await assert.rejects(memory.increment('k', 1e15, 1, 1e15, 'default'), { code: '22023' }, 'it is shorter in memory');
    }
});

test('exactly the limit of 100 requests at once passes a Nest application', async () => {
    class Messages {
        list() {
            return 'ok';
        }
    }
    Controller('messages')(Messages);
    Get()(Messages.prototype, 'list', Object.getOwnPropertyDescriptor(Messages.prototype, 'list'));
    const storage = new RateLimitThrottlerStorage({ db: pool, name: 'nest' });
    class Application {}
    Module({
        imports: [ThrottlerModule.forRoot({ throttlers: [{ ttl: 60_000, limit: 7 }], storage })],
        controllers: [Messages],
        providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
    })(Application);
    const app = await NestFactory.create(Application, { logger: false });
    try {
        await app.listen(0, '127.0.0.1');
        const url = `${await app.getUrl()}/messages`;
        const answers = await Promise.all(Array.from({ length: 100 }, () => fetch(url)));
        const of = (status) => answers.filter((answer) => answer.status === status);
        assert.deepEqual([of(200).length, of(429).length], [7, 93]);
        const left = of(200).map((answer) => Number(answer.headers.get('x-ratelimit-remaining'))).sort();
        assert.deepEqual(left, [0, 1, 2, 3, 4, 5, 6]);
        assert.ok(of(429).every((answer) => Number(answer.headers.get('retry-after')) > 50));
    } finally {
        await app.close();
    }
});

test('options that can not be used are refused', () => {
    for (const [options, message] of [
        [undefined, /RateLimitThrottlerStorage: db is undefined; allowed: a pool, client/],
        [{ db: pool, name: '' }, /RateLimitThrottlerStorage: name must be the name/],
        [{ db: pool, name: 'a', store: 'redis' }, /RateLimitThrottlerStorage: store is redis; allowed: "table", "memory"/],
    ]) {
        assert.throws(() => new RateLimitThrottlerStorage(options), message);
    }
});

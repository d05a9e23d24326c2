// The store and the storage are those of the middlewares' own types.
import { rateLimit } from 'express-rate-limit';
import { rateLimiter } from 'hono-rate-limiter';
import fastifyRateLimit from '@fastify/rate-limit';
import { betterAuth } from 'better-auth';
import type { ThrottlerStorage } from '@nestjs/throttler';
import { PGlite } from '@electric-sql/pglite';
import Fastify from 'fastify';
import { RateLimiterUnion } from 'rate-limiter-flexible';
import knex, { type Knex } from 'knex';
import { install, installSql } from 'postgres-rate-limit';
import { RateLimitStorage } from 'postgres-rate-limit/better-auth';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { RateLimitStore as HonoStore } from 'postgres-rate-limit/hono';
import { rateLimitStore } from 'postgres-rate-limit/fastify';
import { RateLimiterStore } from 'postgres-rate-limit/rate-limiter-flexible';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';

const db = { query: async () => ({ rows: [] }) };
rateLimit({ limit: 3, windowMs: 1000, store: new RateLimitStore({ db, name: 'api' }) });
rateLimiter({ limit: 3, windowMs: 1000, keyGenerator: () => 'a', store: new HonoStore({ db, name: 'api', store: 'memory' }) });
// @ts-expect-error
new RateLimitStore({ db });
// @ts-expect-error
new RateLimitStore({ db, name: 'api', store: 'redis' });
new RateLimitStore({ db, name: 'api', onError: 'open', onUnchecked: (error) => console.log(error.message) });
// @ts-expect-error
new RateLimitStore({ db, name: 'api', onError: 'maybe' });
new RateLimitThrottlerStorage({ db, name: 'api', rememberDenials: { atMost: 500 } });
// @ts-expect-error
new RateLimitStore({ db, name: 'api', rememberDenials: { seconds: 1 } });
// @ts-expect-error
new RateLimitThrottlerStorage({ db, name: 'api', onUnchecked: 'log' });
betterAuth({ rateLimit: { customStorage: new RateLimitStorage({ db, name: 'auth' }) } });
// @ts-expect-error
new RateLimitStorage({ db, name: 'auth', limit: 3 });
Fastify().register(fastifyRateLimit, { max: 3, store: rateLimitStore({ db, name: 'api', rememberDenials: true }) });
// @ts-expect-error
rateLimitStore({ db });
const limiter = new RateLimiterStore({ db, name: 'login', points: 3, duration: 60, blockDuration: 600 });
export const left: Promise<number> = limiter.consume('key', 2).then(({ remainingPoints }) => remainingPoints);
// @ts-expect-error
new RateLimiterStore({ db, name: 'login', points: 3, duration: 60, tableName: 'limits' });
export const union = new RateLimiterUnion(limiter, limiter);
const storage: ThrottlerStorage = new RateLimitThrottlerStorage({ db, name: 'api' });

const text: string = installSql({ schema: 'limits' });
// @ts-expect-error
installSql({ schema: 7 });
// @ts-expect-error
install({});
export const installed: Promise<void>[] = [install(db), install(new PGlite(), { schema: text }), install(knex({ client: 'pg' }))];
export const migration: { up(knex: Knex): Promise<void> } = { up: (knex) => install(knex) };
export default storage;

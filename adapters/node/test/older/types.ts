// As TypeScript resolves a package that knows no "exports": what Nest's own starter project was made with for years.
import type { ThrottlerStorage } from '@nestjs/throttler';
import { RateLimitStorage } from 'postgres-rate-limit/better-auth';
import { calculate } from 'postgres-rate-limit/browser';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { rateLimitStore } from 'postgres-rate-limit/fastify';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';
import { RateLimiterStore } from 'postgres-rate-limit/rate-limiter-flexible';
import { useRateLimit } from 'postgres-rate-limit/react';

const db = { query: async () => ({ rows: [] }) };
export const store = new RateLimitStore({ db, name: 'api' });
// @ts-expect-error
new RateLimitStore({ db });
export const wait: Promise<number | null> = new RateLimitStorage({ db, name: 'auth' })
    .consume('key', { window: 1, max: 1 })
    .then(({ retryAfter }) => retryAfter);
export const counts = new (rateLimitStore({ db, name: 'api' }))().child({});
export const limiter = new RateLimiterStore({ db, name: 'api', points: 1, duration: 1 }).consume('key');
export const storage: ThrottlerStorage = new RateLimitThrottlerStorage({ db, name: 'api' });
export const remaining: number | null = calculate({ config: {}, state: null, now: 0, blockedUntil: null }).remaining;
export const status = () => useRateLimit(async () => ({ config: {}, state: null, now: 0, blockedUntil: null })).status;
// @ts-expect-error
useRateLimit('/limits');

// As from a package that is CommonJS, such as one of Nest.
import { rateLimit } from 'express-rate-limit';
import type { ThrottlerStorage } from '@nestjs/throttler';
import { RateLimitStorage } from 'postgres-rate-limit/better-auth';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { rateLimitStore } from 'postgres-rate-limit/fastify';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';

const db = { query: async () => ({ rows: [] }) };
rateLimit({ limit: 3, windowMs: 1000, store: new RateLimitStore({ db, name: 'api', timeout: 1000, prepare: true }) });
// @ts-expect-error
new RateLimitStore({ db, name: 'api', prepare: 'yes' });
new RateLimitStorage({ db, name: 'auth' }).consume('key', { window: 1, max: 1 }).then(({ allowed }): boolean => allowed);
new (rateLimitStore({ db, name: 'api' }))().incr('key', (error, result) => [error?.message, result?.ttl], 1000, 1);
const storage: ThrottlerStorage = new RateLimitThrottlerStorage({ db, name: 'api' });
export = storage;

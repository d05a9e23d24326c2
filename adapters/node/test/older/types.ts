// As TypeScript resolves a package that knows no "exports": what Nest's own starter project was made with for years.
import type { ThrottlerStorage } from '@nestjs/throttler';
import { RateLimitStore, RateLimitThrottlerStorage } from 'ratelimit-store';

const pool = { query: async () => ({ rows: [] }) };
export const store = new RateLimitStore({ pool, name: 'api' });
// @ts-expect-error
new RateLimitStore({ pool });
export const storage: ThrottlerStorage = new RateLimitThrottlerStorage({ pool, name: 'api' });

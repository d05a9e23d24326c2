// As TypeScript resolves a package that knows no "exports": what Nest's own starter project was made with for years.
import type { ThrottlerStorage } from '@nestjs/throttler';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';

const pool = { query: async () => ({ rows: [] }) };
export const store = new RateLimitStore({ pool, name: 'api' });
// @ts-expect-error
new RateLimitStore({ pool });
export const storage: ThrottlerStorage = new RateLimitThrottlerStorage({ pool, name: 'api' });

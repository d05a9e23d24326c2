// The same for packages with declarations that exactOptionalPropertyTypes refuses.
import { rateLimit } from 'express-rate-limit';
import { rateLimiter } from 'hono-rate-limiter';
import { RateLimiter, tokenBucket, type Unsettled } from 'postgres-rate-limit';
import { budget, type ModelCall, type Unreported, type Usage } from 'postgres-rate-limit/ai';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { RateLimitStore as HonoStore } from 'postgres-rate-limit/hono';
import { useRateLimit } from 'postgres-rate-limit/react';

const db = { query: async () => ({ rows: [] }) };
rateLimit({ store: new RateLimitStore({ db, name: 'api' }) });
rateLimiter({ keyGenerator: () => 'all', store: new HonoStore({ db, name: 'api' }) });

const limiter = new RateLimiter({ tokens: tokenBucket({ rate: 1, period: 1 }) });
export const middleware = (given: {
    maxOutputTokens: number | undefined;
    id: string | undefined;
    ttl: number | undefined;
    onExpiry: 'refund' | 'charge' | undefined;
    estimate: ((call: ModelCall) => number) | undefined;
    unreported: ((call: Unreported) => Usage) | undefined;
    onUnsettled: ((unsettled: Unsettled) => void) | undefined;
    count: number | undefined;
}) => budget(limiter, { ...given, limits: [{ name: 'tokens', count: given.count }] });
export const status = (count: number | undefined) =>
    useRateLimit(async () => ({ config: {}, state: null, now: 0, blockedUntil: null }), { count });

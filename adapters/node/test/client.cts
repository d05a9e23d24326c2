// The client as from a package that is CommonJS.
import { RateLimiter, tokenBucket, type Result } from 'postgres-rate-limit';
import { watchRateLimit } from 'postgres-rate-limit/browser';
import { useRateLimit } from 'postgres-rate-limit/react';

const limiter = new RateLimiter({ send: tokenBucket({ rate: 1, period: '1 minute', keyed: true }) });
const result: Promise<Result> = limiter.limit('send', { key: 'a' });
// @ts-expect-error
limiter.limit('send');
const watch = watchRateLimit(() => limiter.getValue('send', { key: 'a' }));
useRateLimit(watch).status?.ok;
// @ts-expect-error
useRateLimit(limiter);
export = result;

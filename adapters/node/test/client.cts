// The client as from a package that is CommonJS.
import { RateLimiter, tokenBucket, type Result } from 'postgres-rate-limit';

const limiter = new RateLimiter({ send: tokenBucket({ rate: 1, period: '1 minute', keyed: true }) });
const result: Promise<Result> = limiter.limit('send', { key: 'a' });
// @ts-expect-error
limiter.limit('send');
export = result;

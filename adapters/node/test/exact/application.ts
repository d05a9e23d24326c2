// An application with exactOptionalPropertyTypes, which checks the declarations of libraries, too: it passes on what it
// may not have.
import {
    addressKey,
    denialResponse,
    fixedWindow,
    install,
    RateLimiter,
    tokenBucket,
    type BorrowOptions,
    type Database,
    type HoldAllOptions,
    type HoldOptions,
    type LimitOptions,
    type RateLimiterOptions,
    type Result,
} from 'postgres-rate-limit';
import { RateLimitStorage } from 'postgres-rate-limit/better-auth';
import { calculate, watchRateLimit } from 'postgres-rate-limit/browser';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { rateLimitStore } from 'postgres-rate-limit/fastify';
import { RateLimitStore as HonoStore } from 'postgres-rate-limit/hono';
import { RateLimitThrottlerStorage } from 'postgres-rate-limit/nest';
import { RateLimiterStore } from 'postgres-rate-limit/rate-limiter-flexible';

/** The same fields, each of which may be undefined. */
type Maybe<T> = { [K in keyof T]: T[K] | undefined };
interface Given {
    limiter: Maybe<RateLimiterOptions>;
    limit: Maybe<LimitOptions>;
    hold: Maybe<HoldOptions>;
    holdAll: Maybe<HoldAllOptions>;
    borrow: Maybe<BorrowOptions>;
    number: number | undefined;
    date: Date | undefined;
    text: string | undefined;
    boolean: boolean | undefined;
}
const pool = { query: async () => ({ rows: [] }) };

export async function calls(db: Database, given: Given): Promise<Result['error']> {
    const definitions = {
        send: tokenBucket({
            rate: 1,
            period: 1,
            capacity: given.number,
            maxReserved: given.number,
            shards: given.number,
            enforce: given.boolean,
            store: undefined,
            save: given.number,
            applyUpdates: undefined,
        }),
        month: fixedWindow({ rate: 1, period: 1, start: given.number, timezone: given.text, overage: given.boolean }),
    };
    const limiter = new RateLimiter(definitions, given.limiter);
    await limiter.limit('send', given.limit);
    await limiter.limit('send', { key: 'a', ...given.limit });
    await limiter.check('send', { count: given.number, reserve: given.boolean, throws: given.boolean, db: undefined });
    await limiter.credit('send', { count: given.number, takenAt: given.date });
    await limiter.limitAll([{ name: 'send', count: given.number, reserve: given.boolean }], given.limit);
    await limiter.checkAll([{ name: 'send' }], { throws: given.boolean });
    await limiter.holdAll([{ name: 'send', count: given.number }], given.holdAll);
    await limiter.withHold('send', given.hold, (hold) => (hold.used = given.number));
    await limiter.withHoldAll([{ name: 'month' }], given.holdAll, (hold) => (hold.used = given.number));
    await limiter.extend('exports', null, { config: undefined, db: undefined });
    await limiter.borrow('send', given.borrow).limit({ count: given.number, wait: given.number, signal: undefined });
    await install(pool, { schema: given.text });
    const own: Omit<Result, 'headers'> = await limiter.hold('send');
    return denialResponse(own.error) ? undefined : (await limiter.limit('send', { key: addressKey('::1') })).error;
}

export const stores = (timeout: number | undefined, is: boolean | undefined, max: number | undefined) => {
    const onUnchecked: ((error: Error) => void) | undefined = undefined;
    const rememberDenials = { max, atMost: max };
    const same = { store: undefined, onError: undefined, onUnchecked, rememberDenials };
    const options = { db: pool, name: 'api', timeout, prepare: is, defined: is, schema: undefined, ...same };
    return [
        new RateLimitStore(options),
        new HonoStore(options),
        new RateLimitThrottlerStorage(options),
        new RateLimitStorage(options),
        rateLimitStore(options),
        new RateLimiterStore({ ...options, points: 1, duration: 1 }),
    ];
};

export const button = (count: number | undefined, shared: boolean | undefined) => {
    const value = { config: {}, state: null, now: 0, blockedUntil: null };
    watchRateLimit(async () => value, { count, shared });
    return calculate(value, count);
};

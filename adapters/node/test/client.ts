// The types of the client: what must compile, and after @ts-expect-error what must not.
import { PGlite } from '@electric-sql/pglite';
import { drizzle } from 'drizzle-orm/node-postgres';
import { Kysely, PostgresDialect } from 'kysely';
import pg from 'pg';
import postgres from 'postgres';
import {
    concurrency,
    fixedWindow,
    HOUR,
    isRateLimitError,
    MINUTE,
    RateLimiter,
    RateLimitError,
    slidingLog,
    tokenBucket,
    unlimited,
    type AllResult,
    type BorrowResult,
    type Decision,
    type Hold,
    type HoldAll,
    type Lease,
    type LimitedBy,
    type RateLimitConfig,
    type RequestResult,
    type Result,
    type Value,
} from 'postgres-rate-limit';

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const is = <A, B>(_: Equal<A, B>) => {};

const db = new pg.Pool();
const limiter = new RateLimiter(
    {
        send: { kind: 'token bucket', rate: 10, period: MINUTE, capacity: 3 },
        login: { kind: 'fixed window', rate: 5, period: '15 minutes', keyed: true },
        made: tokenBucket({ rate: 1, period: HOUR, keyed: true }),
        search: slidingLog({ rate: 30, period: MINUTE }),
        exports: concurrency({ slots: 2, ttl: MINUTE }),
        free: unlimited(),
        asConvex: {
            kind: 'token bucket',
            rate: 1,
            period: 1000,
            start: null,
            shards: 2,
            applyUpdates: 'transactionally',
        },
    },
    { db, onDecision: (decision) => is<typeof decision, Decision>(true) },
);

export async function calls() {
    is<Result['limitedBy'], 'block' | 'slots' | 'tokens' | null>(true);
    is<Result, Awaited<ReturnType<typeof limiter.check>>>(true);
    const { ok, retryAfter, retryAt } = await limiter.limit('send', {
        key: 'a',
        count: 2,
        reserve: true,
        throws: true,
        wait: 5,
        db,
    });
    is<typeof ok, boolean>(true);
    is<typeof retryAfter, number | null>(true);
    is<typeof retryAt, Date | null>(true);
    await limiter.limit('send');
    await limiter.limit('send', { key: 7 });
    await limiter.limit('login', { key: 7n });
    await limiter.limit('made', { key: 'a' });
    await limiter.limit('free');
    await limiter.limit('other', { config: { kind: 'sliding window', rate: 1, period: 'PT1M' } });
    await limiter.limit('send', { config: fixedWindow({ rate: 1, period: HOUR }) });
    const unchecked = await limiter.limit('send', { onError: 'open' });
    is<typeof unchecked.error, (Error & { code?: string }) | undefined>(true);
    (await limiter.limitAll([{ name: 'send' }], { onError: 'closed' })).error?.code?.length;
    (await limiter.hold('send', { onError: 'open' })).error?.code?.length;
    const borrowed = limiter.borrow('login', { borrowFor: 500, max: 10, onError: 'open' });
    is<boolean, ReturnType<typeof borrowed.take>>(true);
    const spent = await borrowed.limit({ key: 'a', count: 2, throws: true, wait: 5 });
    is<typeof spent, BorrowResult>(true);
    await using other = limiter.borrow('other', { config: fixedWindow({ rate: 1, period: HOUR }) });
    other.take();
    // @ts-expect-error: it is keyed
    borrowed.take();
    // @ts-expect-error: there is no transaction
    await borrowed.limit({ key: 7, db });
    // @ts-expect-error: it can't be borrowed
    limiter.borrow('search');
    // @ts-expect-error
    await limiter.limit('send', { onError: 'maybe' });
    // @ts-expect-error: there is nothing to allow
    await limiter.credit('send', { onError: 'open' });
    // @ts-expect-error: there is no such limit
    await limiter.limit('sent');
    // @ts-expect-error
    await limiter.limit('sent', { key: 'a' });
    // @ts-expect-error: it needs a key
    await limiter.limit('login');
    // @ts-expect-error
    await limiter.limit('login', { count: 2 });
    // @ts-expect-error
    await limiter.limit('made');
    // @ts-expect-error: there is no such option
    await limiter.limit('send', { keys: 'a' });
    // @ts-expect-error
    await limiter.limit('send', { key: null });
    // @ts-expect-error
    await limiter.limit('send', { count: '2' });
    // @ts-expect-error: a concurrency limit is acquired
    await limiter.limit('exports');
    // @ts-expect-error
    await limiter.limit('other', { config: concurrency({ slots: 1, ttl: 1 }) });
    // @ts-expect-error: a config has no such field
    await limiter.limit('other', { config: { kind: 'token bucket', rate: 1, period: 1, capacities: 2 } });

    await limiter.check('exports');
    await limiter.check('login', { key: 'a' });
    // @ts-expect-error: it takes nothing that one could wait for
    await limiter.check('send', { wait: 5 });
    // @ts-expect-error
    await limiter.check('login');

    is<typeof reset, boolean>(true);
    const reset = await limiter.reset('exports', { key: 'a' });
    // @ts-expect-error
    await limiter.reset('sent');
    await limiter.credit('send', { key: 'a', count: 2, takenAt: new Date() });
    // @ts-expect-error: a sliding log can't
    await limiter.credit('search', { key: 'a' });
    const value: Value = await limiter.getValue('send', { key: 'a' });
    is<typeof value.now, number>(true);
    // @ts-expect-error
    await limiter.getValue('made');

    const all: AllResult = await limiter.limitAll([
        { name: 'send', count: 2 },
        { name: 'login', key: 'a' },
        { name: 'other', key: 'a', config: unlimited() },
    ]);
    is<(typeof all.results)[0]['limitedBy'], LimitedBy | null>(true);
    // @ts-expect-error: it needs a key
    await limiter.limitAll([{ name: 'login' }]);
    // @ts-expect-error
    await limiter.limitAll([{ name: 'sent' }]);
    // @ts-expect-error
    await limiter.limitAll([{ name: 'exports' }]);
    await limiter.checkAll([{ name: 'send' }]);
}

export async function held() {
    {
        await using lease = await limiter.acquire('exports', { key: 'a', wait: 5 });
        is<typeof lease, Lease>(true);
        is<Awaited<ReturnType<typeof lease.extend>>, boolean>(true);
        await using hold = await limiter.hold('send', {
            key: 'a',
            count: 2,
            ttl: '1 minute',
            atLeast: 1,
            onExpiry: 'charge',
        });
        is<typeof hold, Hold>(true);
        hold.used = 1;
        await using all = await limiter.holdAll([{ name: 'send' }, { name: 'exports' }], { id: 'a' });
        const both: HoldAll = all;
        await all.extend([{ name: 'send', count: 2 }]);
        // @ts-expect-error: there is no such limit
        await all.extend([{ name: 'sent' }]);
        await hold.extend(3);
        is<typeof both.deniedBy, RequestResult | null>(true);
        all.used = { send: 1 };
        all.used = 0;
    }
    const text = await limiter.withLease('exports', {}, async (lease) => lease.id);
    is<typeof text, string | null>(true);
    const used = await limiter.withHold('login', { key: 'a', count: 5 }, (hold) => hold.held);
    is<typeof used, number | null>(true);
    is<Awaited<ReturnType<typeof limiter.withHoldAll<string>>>, string>(true);
    // @ts-expect-error: no concurrency limit
    await limiter.acquire('send');
    // @ts-expect-error
    await limiter.withLease('exports', { slots: 2 }, () => {});
    // @ts-expect-error
    await limiter.hold('search');
    // @ts-expect-error: it needs a key
    await limiter.withHold('login', {}, () => {});
    // @ts-expect-error
    await limiter.hold('send', { onExpiry: 'keep' });
    // @ts-expect-error
    (await limiter.hold('send')).used = '1';
    const until: Date | null = await limiter.extend('exports', text);
    const released: boolean = await limiter.release('exports', text);
    return [until, released, await limiter.settle('a', 3), await limiter.settleAll('a', { send: 3 })];
}

// @ts-expect-error: a kind that there is not
new RateLimiter({ a: { kind: 'leaky bucket', rate: 1, period: 1 } });
// @ts-expect-error: a field that is missing
new RateLimiter({ a: { kind: 'token bucket', rate: 1 } });
// @ts-expect-error: a field that the kind does not have
new RateLimiter({ a: { kind: 'token bucket', rate: 1, period: 1, timezone: 'UTC' } });
// @ts-expect-error: a misspelt one
new RateLimiter({ a: { kind: 'fixed window', rate: 1, period: 1, capacities: 1 } });
// @ts-expect-error
tokenBucket({ rate: 1, period: 1, capacities: 1 });
// @ts-expect-error
fixedWindow({ period: 1 });
// @ts-expect-error
new RateLimiter({}, { db: 'postgres://localhost' });
// @ts-expect-error
new RateLimiter({}, { database: db });
new RateLimiter({}, { db, onError: 'open', timeout: 500, rememberDenials: true });
// @ts-expect-error
new RateLimiter({}, { db, rememberDenials: { seconds: 1 } });
// @ts-expect-error
new RateLimiter({}, { db, onError: true });

// What runs SQL.
const sql = postgres();
const orm = drizzle(db);
const kysely = new Kysely<{ messages: { author: string } }>({ dialect: new PostgresDialect({ pool: db }) });
const lite = new PGlite();
const dbs = [
    db,
    new pg.Client(),
    sql,
    orm,
    kysely,
    lite,
    { query: async (text: string, values?: any[]) => [{ text, values }] },
];
export const limiters = dbs.map((db) => new RateLimiter({}, { db }));
export const transactions = async () => {
    await db.connect().then((client) => limiter.limit('send', { db: client }));
    await sql.begin((tx) => limiter.limit('send', { db: tx }));
    await orm.transaction((tx) => limiter.limit('send', { db: tx }));
    await kysely.transaction().execute((tx) => limiter.limit('send', { db: tx }));
    await lite.transaction((tx) => limiter.limit('send', { db: tx }));
};

// Configs that are read from elsewhere are of any kind, and names of any text.
export const read = (configs: Record<string, RateLimitConfig>) => new RateLimiter(configs, { db }).limit('a');
const names: Promise<string[]> = limiter.define({ db });
export const migration: string = limiter.sql() + (await names).join();

export function answer(error: unknown): number | null {
    if (!isRateLimitError(error)) throw error;
    const denial = RateLimitError.from(error);
    is<typeof denial, RateLimitError | undefined>(true);
    return denial?.data.retryAfter ?? null;
}

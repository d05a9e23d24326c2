// The configs of limits, in the form of rl_define: their types, and a function that makes one of each kind.

/** Milliseconds, or a text such as "1 minute" or "PT1M". */
export type Duration = number | string;

interface Common {
    /** "memory": in the server's shared memory. Default: "table". */
    store?: 'table' | 'memory' | undefined;
    /** With "memory", for defined limits: the time within which a change is saved to the table. */
    save?: Duration | undefined;
    /** `false`: a dry run, which denies nothing. Default: true. */
    enforce?: boolean | undefined;
    /** `true`: a call must have a key. */
    keyed?: boolean | undefined;
    /** "asynchronously": in memory; if the limit is defined, saved within a second. Default: "transactionally". */
    applyUpdates?: 'transactionally' | 'asynchronously' | undefined;
}
interface Tokens extends Common {
    /** Tokens in each period. */
    rate: number;
    period: Duration;
}
interface Stock extends Tokens {
    /** The maximum number of tokens that it can hold. Default: rate. */
    capacity?: number | undefined;
    /** The largest debt of reservations. Default: no bound. */
    maxReserved?: number | undefined;
    /** The number of rows over which it is spread. */
    shards?: number | undefined;
}
export interface TokenBucket extends Stock {
    kind: 'token bucket';
    start?: null | undefined;
}
export interface FixedWindow extends Stock {
    kind: 'fixed window';
    /** The alignment of windows: epoch milliseconds, a time, or "first request". With timezone: a date. */
    start?: number | string | undefined;
    /** An IANA time zone, for calendar windows. */
    timezone?: string | undefined;
    /** `true`: a soft quota, which calls may exceed. */
    overage?: boolean | undefined;
}
export interface SlidingWindow extends Tokens {
    kind: 'sliding window';
}
export interface SlidingLog extends Tokens {
    kind: 'sliding log';
}
export interface Concurrency extends Common {
    kind: 'concurrency';
    slots: number;
    /** The duration of a lease, unless it is extended. */
    ttl: Duration;
}
export interface Unlimited extends Common {
    kind: 'unlimited';
}

export type RateLimitConfig = TokenBucket | FixedWindow | SlidingWindow | SlidingLog | Concurrency | Unlimited;
export type Definitions = Record<string, RateLimitConfig>;

type Options<C, K> = Omit<C, 'kind' | 'keyed'> & { keyed?: K | undefined };
type Made<C, K> = K extends true ? C & { keyed: true } : C;
const maker =
    <C extends RateLimitConfig>(kind: C['kind']) =>
    <const K extends boolean = false>(options: Options<C, K>): Made<C, K> =>
        ({ kind, ...options }) as unknown as Made<C, K>;

export const tokenBucket = maker<TokenBucket>('token bucket');
export const fixedWindow = maker<FixedWindow>('fixed window');
export const slidingWindow = maker<SlidingWindow>('sliding window');
export const slidingLog = maker<SlidingLog>('sliding log');
export const concurrency = maker<Concurrency>('concurrency');
export const unlimited = (): Unlimited => ({ kind: 'unlimited' });

export const SECOND = 1000;
export const MINUTE = 60 * SECOND;
export const HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;
export const WEEK = 7 * DAY;

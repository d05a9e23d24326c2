export { addressKey } from './address';
export type { Value } from './calculate';
export {
    concurrency,
    DAY,
    fixedWindow,
    HOUR,
    MINUTE,
    SECOND,
    slidingLog,
    slidingWindow,
    tokenBucket,
    unlimited,
    WEEK,
} from './config';
export type {
    Concurrency,
    Definitions,
    Duration,
    FixedWindow,
    RateLimitConfig,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    Unlimited,
} from './config';
export { denialResponse, isRateLimitError, RateLimitError, tryAgain } from './errors';
export type { Borrowed, BorrowOptions, BorrowResult } from './borrowed';
export type { RememberDenials } from './denials';
export type { OnError } from './failing';
export type { HeaderStyle } from './calls';
export type { Hold, HoldAll, HoldRequestResult, Lease, Otherwise, Unsettled, Used } from './held';
export { RateLimiter } from './limiter';
export type {
    AcquireOptions,
    CheckAllOptions,
    CheckOptions,
    CreditOptions,
    PruneOptions,
    Decision,
    HoldAllOptions,
    HoldOptions,
    Key,
    LimitAllOptions,
    LimitOptions,
    LimitRequest,
    RateLimiterOptions,
} from './limiter';
export type { Database, Queryable } from './query';
export type { AllResult, LimitedBy, RequestResult, Result, SettleResult } from './results';
export { install, installSql, type InstallOptions } from './sql';

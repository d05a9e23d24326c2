export { addressKey } from './address.cjs';
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
} from './config.cjs';
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
} from './config.cjs';
export { denialResponse, isRateLimitError, RateLimitError } from './errors.cjs';
export type { Borrowed, BorrowOptions, BorrowResult } from './borrowed.cjs';
export type { RememberDenials } from './denials.cjs';
export type { OnError } from './failing.cjs';
export type { HeaderStyle } from './calls.cjs';
export type { Hold, HoldAll, HoldRequestResult, Lease, Otherwise, Unsettled, Used } from './held.cjs';
export { RateLimiter } from './limiter.cjs';
export type {
    AcquireOptions,
    CheckAllOptions,
    CheckOptions,
    CreditOptions,
    Decision,
    HoldAllOptions,
    HoldOptions,
    Key,
    LimitAllOptions,
    LimitOptions,
    LimitRequest,
    RateLimiterOptions,
    Value,
} from './limiter.cjs';
export type { Database, Queryable } from './query.cjs';
export type { AllResult, LimitedBy, RequestResult, Result, SettleResult } from './results.cjs';
export { install, installSql, type InstallOptions } from './sql.cjs';

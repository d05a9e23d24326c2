// For import. Everything is in index.cts, so that each class exists once in a process.
export type * from './index.cjs';
export {
    addressKey,
    concurrency,
    DAY,
    denialResponse,
    fixedWindow,
    HOUR,
    install,
    installSql,
    isRateLimitError,
    MINUTE,
    RateLimiter,
    RateLimitError,
    SECOND,
    slidingLog,
    slidingWindow,
    tokenBucket,
    unlimited,
    WEEK,
} from './index.cjs';

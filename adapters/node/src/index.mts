// For import; index.cts has it all, so that there is one of each class in a process.
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

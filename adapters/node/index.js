// For import; index.cjs has it all, so that there is one of each class in a process.
export { RateLimitStore, RateLimitThrottlerStorage, installSql, install } from './index.cjs';

// For a browser: computes the answers of a limit, without asking the server each time.
export { calculate, type Status, type Value } from './calculate';
export { watchRateLimit, type RateLimitWatch, type Snapshot, type WatchOptions } from './watch';

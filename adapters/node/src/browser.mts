// For a browser: what a limit will answer, without asking the server each time.
export { calculate, type Status, type Value } from './calculate.mjs';
export { watchRateLimit, type RateLimitWatch, type Snapshot, type WatchOptions } from './watch.mjs';

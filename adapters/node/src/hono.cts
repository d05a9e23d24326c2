export type { Database, Queryable } from './query.cjs';
export type { RateLimitStoreOptions } from './window.cjs';
export { RateLimitStore, type Hits } from './store.cjs';

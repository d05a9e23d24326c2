export type { Database, Queryable } from './query';
export type { RateLimitStoreOptions } from './window';
export { RateLimitStore, type Hits } from './store';

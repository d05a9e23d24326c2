export type { Queryable, RateLimitStoreOptions } from './database.cjs';
export { RateLimitStore, type Hits } from './store.cjs';

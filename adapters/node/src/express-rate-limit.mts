export type * from './express-rate-limit.cjs';
export { RateLimitStore } from './express-rate-limit.cjs';

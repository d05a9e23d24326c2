export type * from './nest.cjs';
export { RateLimitThrottlerStorage } from './nest.cjs';

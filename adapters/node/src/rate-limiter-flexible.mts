export type * from './rate-limiter-flexible.cjs';
export { RateLimiterStore } from './rate-limiter-flexible.cjs';

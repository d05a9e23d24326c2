export type * from './hono.cjs';
export { RateLimitStore } from './hono.cjs';

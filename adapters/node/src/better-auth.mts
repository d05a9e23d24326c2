export type * from './better-auth.cjs';
export { RateLimitStorage } from './better-auth.cjs';

export type * from './fastify.cjs';
export { rateLimitStore } from './fastify.cjs';

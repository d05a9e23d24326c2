// Stores that are called in one way each, as one call: in the tests that are the same for all, and as applications.
import { serve } from '@hono/node-server';
import { betterAuth } from 'better-auth';
import { Hono } from 'hono';

import { RateLimitStorage } from 'postgres-rate-limit/better-auth';

/**
 * Each has its class; `counts`, which resolves for a key to whether it passes, and the seconds that a denied one waits;
 * and `start`, the server of an application with all its requests under one key, which has the seconds in a header.
 */
export const ADAPTERS = {
    'better-auth': {
        make: (options) => new RateLimitStorage(options),
        counts: (options, { limit, windowMs }) => {
            const storage = new RateLimitStorage(options);
            return async (key) => {
                const { allowed, retryAfter } = await storage.consume(key, { window: windowMs / 1000, max: limit });
                return { passed: allowed, wait: retryAfter };
            };
        },
        start: (options, { limit, windowMs }) => {
            const auth = betterAuth({
                secret: 'a'.repeat(32),
                baseURL: 'http://127.0.0.1',
                logger: { disabled: true },
                rateLimit: {
                    enabled: true,
                    window: windowMs / 1000,
                    max: limit,
                    customStorage: new RateLimitStorage(options),
                },
            });
            const app = new Hono();
            app.on(['GET', 'POST'], '/api/auth/*', (c) => auth.handler(c.req.raw));
            app.onError((_, c) => c.text('', 500));
            return serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' });
        },
        path: '/api/auth/ok',
        header: 'x-retry-after',
    },
};

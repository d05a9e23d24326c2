// Stores that are called in one way each, as one call: in the tests that are the same for all, and as applications.
import fastifyRateLimit from '@fastify/rate-limit';
import { serve } from '@hono/node-server';
import { betterAuth } from 'better-auth';
import express from 'express';
import Fastify from 'fastify';
import { Hono } from 'hono';

import { RateLimitStorage } from 'postgres-rate-limit/better-auth';
import { rateLimitStore } from 'postgres-rate-limit/fastify';
import { RateLimiterStore } from 'postgres-rate-limit/rate-limiter-flexible';

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
    '@fastify/rate-limit': {
        make: rateLimitStore,
        counts: (options, { limit, windowMs }) => {
            const store = new (rateLimitStore(options))();
            return async (key) => {
                const counted = (resolve, reject) => (error, result) => (error ? reject(error) : resolve(result));
                const call = (resolve, reject) => store.incr(key, counted(resolve, reject), windowMs, limit);
                const { current, ttl } = await new Promise(call);
                return { passed: current <= limit, wait: Math.ceil(ttl / 1000) };
            };
        },
        start: async (options, { limit, windowMs }) => {
            const app = Fastify({ forceCloseConnections: true });
            const store = rateLimitStore(options);
            await app.register(fastifyRateLimit, { max: limit, timeWindow: windowMs, keyGenerator: () => 'all', store });
            app.get('/', async () => 'hello');
            await app.listen({ port: 0, host: '127.0.0.1' });
            return app.server;
        },
        path: '/',
        header: 'retry-after',
    },
    'rate-limiter-flexible': {
        make: (options) => new RateLimiterStore({ points: 1, duration: 1, ...options }),
        counts: (options, { limit, windowMs }) => {
            const limiter = new RateLimiterStore({ ...options, points: limit, duration: windowMs / 1000 });
            return async (key) => {
                const denied = (result) => {
                    if (result instanceof Error) throw result;
                    return { passed: false, wait: result.msBeforeNext < 0 ? -1 : Math.ceil(result.msBeforeNext / 1000) };
                };
                return limiter.consume(key).then(() => ({ passed: true, wait: null }), denied);
            };
        },
        start: (options, { limit, windowMs }) => {
            const limiter = new RateLimiterStore({ ...options, points: limit, duration: windowMs / 1000 });
            const app = express();
            app.use((_, response, next) => {
                const denied = (result) => {
                    if (result instanceof Error) return next(result);
                    response.set('Retry-After', String(Math.ceil(result.msBeforeNext / 1000))).status(429).end();
                };
                limiter.consume('all').then(() => next(), denied);
            });
            app.get('/', (_, response) => response.send('hello'));
            app.use((_error, _request, response, _next) => response.status(500).end());
            return app.listen(0, '127.0.0.1');
        },
        path: '/',
        header: 'retry-after',
    },
};

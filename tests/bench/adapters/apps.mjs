// Applications in Node that answer hello, each with all stores that its limiter can have, at /STORE/LOAD; the key is
// the header x-key. adapters.py runs and asks them:
//   node apps.mjs express|fastify|flexible PORT
// PACKAGE is the folder of our built package, which has the frameworks, PEERS that of the stores of others, REDIS the
// socket of Redis; PGHOST and the others are the database.
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const { PACKAGE, PEERS, REDIS } = process.env;
const ours = createRequire(`${PACKAGE}/package.json`);
const theirs = createRequire(`${PEERS}/package.json`);
const pg = ours('pg');
const { HOUR, SECOND, RateLimiter, fixedWindow } = ours('postgres-rate-limit');
const { Redis } = theirs('ioredis');

/** Requests an hour of a key: more than a run sends, and few. */
const LOADS = { admitted: 10_000, denied: 10 };
const pool = new pg.Pool();
const redis = new Redis(REDIS);

/** Makers of our stores, by MAKE of their options and the limit. */
const stores = (make) => ({
    table: (name, limit) => make({ db: pool, name }, limit),
    alone: (name, limit) => make({ db: pool, name, batch: false }, limit),
    remembered: (name, limit) => make({ db: pool, name, rememberDenials: true }, limit),
    memory: (name, limit) => make({ db: pool, name, store: 'memory' }, limit),
    memory_alone: (name, limit) => make({ db: pool, name, store: 'memory', batch: false }, limit),
});
/** Calls USE with a path, a limit and the store of each of the makers and each load. */
function each(makers, use) {
    for (const [store, make] of Object.entries(makers)) {
        for (const [load, limit] of Object.entries(LOADS)) {
            use(`/${store}/${load}`, limit, make(`${store}:${load}`, limit));
        }
    }
}
/** A limit in memory that is saved, by our client: resolves to what limits a key. */
async function saved() {
    const config = (rate) => fixedWindow({ rate, period: HOUR, start: 'first request', store: 'memory', save: SECOND });
    const limits = { admitted: config(LOADS.admitted), denied: config(LOADS.denied) };
    const limiter = new RateLimiter(limits, { db: pool, defined: true });
    await limiter.define();
    return async (load, key) => (await limiter.limit(load, { key })).ok;
}

const applications = {
    async express(port) {
        const app = ours('express')();
        const { MemoryStore, rateLimit } = ours('express-rate-limit');
        const { RateLimitStore } = ours('postgres-rate-limit/express-rate-limit');
        const { RedisStore } = theirs('rate-limit-redis');
        const { PostgresStore } = theirs('@acpr/rate-limit-postgresql');
        const makers = {
            ...stores((options) => new RateLimitStore(options)),
            own: () => new MemoryStore(),
            redis: (name) => new RedisStore({ sendCommand: (...command) => redis.call(...command), prefix: name }),
            postgres: (name) => new PostgresStore({}, name),
        };
        const hello = (request, response) => response.send('hello');
        each(makers, (path, limit, store) => {
            const keyGenerator = (request) => request.get('x-key');
            app.get(path, rateLimit({ windowMs: HOUR, limit, keyGenerator, store }), hello);
        });
        const passes = await saved();
        app.get('/saved/:load', async (request, response) => {
            if (await passes(request.params.load, request.get('x-key'))) hello(request, response);
            else response.sendStatus(429);
        });
        app.get('/none/admitted', hello);
        app.listen(port, '127.0.0.1');
    },

    async fastify(port) {
        const app = ours('fastify')();
        const { rateLimitStore } = ours('postgres-rate-limit/fastify');
        const makers = {
            ...stores((options) => ({ store: rateLimitStore(options) })),
            own: () => ({}),
            redis: (name) => ({ redis, nameSpace: name }),
        };
        const hello = async () => 'hello';
        each(makers, (path, max, store) =>
            app.register(async (scope) => {
                const keyGenerator = (request) => request.headers['x-key'];
                await scope.register(ours('@fastify/rate-limit'), { max, timeWindow: HOUR, keyGenerator, ...store });
                scope.get(path, hello);
            }),
        );
        app.get('/none/admitted', hello);
        await app.listen({ port, host: '127.0.0.1' });
    },

    async flexible(port) {
        const { RateLimiterMemory, RateLimiterPostgres, RateLimiterRedis } = ours('rate-limiter-flexible');
        const { RateLimiterStore } = ours('postgres-rate-limit/rate-limiter-flexible');
        const all = (points) => ({ points, duration: HOUR / 1000 });
        const postgres = (options) =>
            new Promise((resolve, reject) => {
                const made = new RateLimiterPostgres(options, (error) => (error ? reject(error) : resolve(made)));
            });
        const table = (name) => `flexible_${name.replace(':', '_')}`;
        const makers = {
            ...stores((options, points) => new RateLimiterStore({ ...options, ...all(points) })),
            own: (name, points) => new RateLimiterMemory(all(points)),
            redis: (name, points) => new RateLimiterRedis({ storeClient: redis, keyPrefix: name, ...all(points) }),
            postgres: (name, points) => postgres({ storeClient: pool, tableName: table(name), ...all(points) }),
            blocked: (name, points) => {
                const options = { storeClient: pool, tableName: table(name), ...all(points) };
                return postgres({ ...options, inMemoryBlockOnConsumed: points });
            },
        };
        const limiters = { '/none/admitted': { consume: async () => {} } };
        const made = [];
        each(makers, (path, limit, limiter) => made.push([path, limiter]));
        for (const [path, limiter] of made) limiters[path] = await limiter;
        createServer(async (request, response) => {
            try {
                await limiters[request.url].consume(request.headers['x-key']);
            } catch (denial) {
                response.statusCode = denial instanceof Error ? 500 : 429;
            }
            response.end('hello');
        }).listen(port, '127.0.0.1');
    },
};

const [name, port] = process.argv.slice(2);
await applications[name](Number(port));

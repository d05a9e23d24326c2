'use strict';
const { createHash } = require('node:crypto');
const { installSql, install } = require('./sql.cjs');

/** The limiter's clock in epoch milliseconds: what a test has set (a time, or such milliseconds), or the server's. */
const CLOCK = "current_setting('ratelimit.clock', true)";
const NOW = `
    CASE WHEN coalesce(${CLOCK}, '') = '' THEN date_part('epoch', clock_timestamp()) * 1000
         WHEN ${CLOCK} ~ '^[-+.0-9eE]+$' THEN ${CLOCK}::float8
         ELSE date_part('epoch', ${CLOCK}::timestamptz) * 1000 END`;
/**
 * Of one row of rl_limit or rl_check. `wait`: the milliseconds until a denied call succeeds, or until the window ends;
 * a span, since the application's clock may show another time. NULL: a block without an end.
 */
const HITS = `
    ok, capacity - remaining AS hits,
    CASE WHEN ok THEN date_part('epoch', reset_at) * 1000 - ${NOW} ELSE retry_after * 1000 END AS wait`;
/** The statements, by the names under which they are prepared. */
const SQL = {
    take: `SELECT ${HITS} FROM rl_limit($1::text, $2::text, config => $3::jsonb)`,
    // What is left of an open window, since a key in one may have no hits, when all were given back.
    look: `
        SELECT ${HITS}, (rl_state($1::text, $2::text, $3::jsonb) ->> 'ts')::float8 + ($3::jsonb ->> 'period')::float8
            - ${NOW} AS open
        FROM rl_check($1::text, $2::text, config => $3::jsonb)`,
    give_back: 'SELECT FROM rl_credit($1::text, $2::text, 1, config => $3::jsonb)',
    reset: 'SELECT rl_reset($1::text, $2::text)',
    reset_all: 'SELECT rl_reset_all($1::text)',
};

/** What both classes know: the connections, the limit's name, where it is kept, and how long to wait. */
class Database {
    #pool;
    #timeout;
    #prepare;

    constructor(kind, { pool, name, store = 'table', timeout = 5000, prepare = false } = {}) {
        if (typeof pool?.query !== 'function') {
            throw new TypeError(`${kind}: pool must be a Pool of pg`);
        }
        if (typeof name !== 'string' || name === '') {
            throw new TypeError(`${kind}: name must be the name of the limit, such as "api"`);
        }
        if (store !== 'table' && store !== 'memory') {
            throw new TypeError(`${kind}: store is ${store}; allowed: "table", "memory"`);
        }
        if (!Number.isInteger(timeout) || timeout < 1 || timeout > 2 ** 31 - 1) {
            throw new TypeError(`${kind}: timeout is ${timeout}; allowed: milliseconds, an integer from 1 on`);
        }
        if (typeof prepare !== 'boolean') {
            throw new TypeError(`${kind}: prepare is ${prepare}; allowed: true, false`);
        }
        this.kind = kind;
        this.name = name;
        this.store = store;
        this.#pool = pool;
        this.#timeout = timeout;
        this.#prepare = prepare;
    }

    /** The row that a statement of SQL returns, within the time-out. */
    async row(statement, values) {
        const config = { text: SQL[statement], values, query_timeout: this.#timeout };
        if (this.#prepare) config.name = `ratelimit_store_${statement}`;
        // No Pool of pg, but one client.
        if (typeof this.#pool.totalCount !== 'number') return (await this.#pool.query(config)).rows[0];
        return new Promise((resolve, reject) => {
            const until = performance.now() + this.#timeout; // the clock may step
            let late = false;
            const timer = setTimeout(() => {
                late = true;
                reject(new Error(`${this.kind}: there was no connection to the database within ${this.#timeout} ms`));
            }, this.#timeout);
            this.#pool.connect((error, client, release) => {
                clearTimeout(timer);
                if (error) return reject(error);
                if (late) return release();
                client.on('error', ignore); // the query ends with it, too
                config.query_timeout = Math.max(Math.ceil(until - performance.now()), 1);
                client.query(config, (error, result) => {
                    client.off('error', ignore);
                    release(error); // with an error the pool closes the connection
                    if (error) reject(error);
                    else resolve(result.rows[0]);
                });
            });
        });
    }
}

function ignore() {}

/** A key as the extension takes it: one that is too long, or has a NUL in it, by its hash. */
function keyOf(key) {
    if (typeof key !== 'string') return key;
    // A key that looks like a hash is hashed, too, so none can collide with that of another key.
    const taken = Buffer.byteLength(key) <= 1024 && !key.includes('\0') && !key.startsWith('sha256:');
    return taken ? key : `sha256:${createHash('sha256').update(key).digest('hex')}`;
}

/** Whether the database can decide by this limit. */
const isWhole = (limit) => Number.isSafeInteger(limit) && limit > 0;

/**
 * The config of a window in which a key has LIMIT requests, as JSON.
 *
 * Where the database decides, a request beyond the limit is denied and takes nothing. With COUNTS_ALL, and where it
 * can't decide, each request is counted (`overage`), and the middleware compares.
 */
function windowOf(limit, milliseconds, store, countsAll) {
    const rate = isWhole(limit) ? limit : 1;
    const config = { kind: 'fixed window', rate, period: milliseconds, start: 'first request', store };
    if (countsAll || !isWhole(limit)) config.overage = true;
    return JSON.stringify(config);
}

/** Returns the requests counted by a row of rl_limit: more than the limit if it was denied. */
function hitsOf(row, limit) {
    if (row.ok) return Number(row.hits);
    return isWhole(limit) ? limit + 1 : Number.MAX_SAFE_INTEGER;
}

/**
 * The end of a wait by the clock of this process, to which the middleware compares it. It is cut to a millisecond: a
 * window of 60 seconds must not become one of 61.
 *
 * The middleware rounds what is left to seconds a moment later; a denial has enough left then for one second.
 */
function resetTimeOf({ ok, wait }, milliseconds) {
    const left = Math.floor(Number(wait ?? milliseconds));
    return new Date(Date.now() + Math.max(left, ok ? 1 : 20));
}

/**
 * Counts the requests of a window in PostgreSQL, by `rl_limit` of the extension ratelimit: a store for
 * express-rate-limit and hono-rate-limiter.
 *
 * A request beyond the limit takes nothing, and answers one hit more than the limit. Where the middleware gives hits
 * back (skipFailedRequests, skipSuccessfulRequests), or the limit is a function or 0, each request is counted.
 */
class RateLimitStore {
    /** Every process that uses the name counts together. */
    localKeys = false;
    #database;
    #limit;
    #windowMs;
    #config;

    constructor(options) {
        this.#database = new Database('RateLimitStore', options);
        this.prefix = this.#database.name;
    }

    /** Called by the middleware, with its options. */
    init({ limit, max, windowMs, skipFailedRequests, skipSuccessfulRequests }) {
        this.#limit = limit ?? max;
        this.#windowMs = windowMs;
        // What is given back of a denial must have been taken.
        const givesBack = Boolean(skipFailedRequests || skipSuccessfulRequests);
        this.#config = windowOf(this.#limit, windowMs, this.#database.store, givesBack);
    }

    /** What a key has used; undefined: it has no window. */
    async get(key) {
        const row = await this.#call('look', key);
        const totalHits = Number(row.hits);
        if (totalHits > 0) return { totalHits, resetTime: resetTimeOf(row, this.#windowMs) };
        return row.open > 0 ? { totalHits, resetTime: resetTimeOf({ ok: true, wait: row.open }) } : undefined;
    }

    /** Takes one; beyond the limit it answers more than that. */
    async increment(key) {
        const row = await this.#call('take', key);
        return { totalHits: hitsOf(row, this.#limit), resetTime: resetTimeOf(row, this.#windowMs) };
    }

    /** Gives one back, as for a request that failed. */
    async decrement(key) {
        await this.#call('give_back', key);
    }

    async resetKey(key) {
        await this.#database.row('reset', [this.prefix, keyOf(key)]);
    }

    async resetAll() {
        await this.#database.row('reset_all', [this.prefix]);
    }

    #call(statement, key) {
        return this.#database.row(statement, [this.prefix, keyOf(key), this.#config]);
    }
}

/** The same for @nestjs/throttler: each of its throttlers is a limit of its own, `name/throttler`. */
class RateLimitThrottlerStorage {
    #database;

    constructor(options) {
        this.#database = new Database('RateLimitThrottlerStorage', options);
    }

    /** Takes one; ttl and blockDuration in milliseconds, the times of the answer in seconds. */
    async increment(key, ttl, limit, blockDuration, throttler) {
        if (blockDuration !== ttl) {
            throw new TypeError(`RateLimitThrottlerStorage: blockDuration is ${blockDuration}; allowed: ttl, its default`);
        }
        const { name, store } = this.#database;
        const config = windowOf(limit, ttl, store, false);
        const row = await this.#database.row('take', [`${name}/${throttler}`, keyOf(key), config]);
        const totalHits = hitsOf(row, limit);
        const isBlocked = totalHits > limit;
        // Times are rounded up to a millisecond: 60 seconds must not become 61, nor the last millisecond 0.
        const seconds = Math.max(Math.ceil(Number(row.wait ?? ttl) / 1000 - 0.001), 1);
        return { totalHits, timeToExpire: seconds, isBlocked, timeToBlockExpire: isBlocked ? seconds : 0 };
    }
}

module.exports = { RateLimitStore, RateLimitThrottlerStorage, installSql, install };

/** Checks the options that the classes here share. */
function checked(kind, { pool, name, store = 'table' } = {}) {
    if (typeof pool?.query !== 'function') {
        throw new TypeError(`${kind}: pool must be a Pool of pg`);
    }
    if (typeof name !== 'string' || name === '') {
        throw new TypeError(`${kind}: name must be the name of the limit, such as "api"`);
    }
    if (store !== 'table' && store !== 'memory') {
        throw new TypeError(`${kind}: store is ${store}; allowed: "table", "memory"`);
    }
    return { pool, name, store };
}

/**
 * The config of a window in which a key has LIMIT requests, as JSON.
 *
 * Where the database can decide, a request beyond the limit is denied and takes nothing. Otherwise, with COUNTS_ALL or
 * a limit that it takes for none, each request is counted (`overage`), and the middleware compares.
 */
function windowOf(limit, milliseconds, store, countsAll) {
    const decides = Number.isSafeInteger(limit) && limit > 0;
    const config = { kind: 'fixed window', rate: decides ? limit : 1, period: milliseconds, start: 'first request', store };
    if (countsAll || !decides) config.overage = true;
    return JSON.stringify(config);
}

/** The requests that a row of rl_limit tells: of one that the database has denied, more than the limit. */
function hitsOf(row, limit) {
    if (row.ok) return row.hits;
    return Number.isSafeInteger(limit) && limit > 0 ? limit + 1 : Number.MAX_SAFE_INTEGER;
}

const HITS = 'ok, capacity - remaining AS hits, reset_at';

/**
 * Counts the requests of a window in PostgreSQL, by `rl_limit` of the extension ratelimit: a store for
 * express-rate-limit and hono-rate-limiter.
 *
 * A request beyond the limit takes nothing, and answers one hit more than the limit. Where the middleware gives hits
 * back (skipFailedRequests, skipSuccessfulRequests), or the limit is a function or 0, each request is counted.
 */
export class RateLimitStore {
    /** Every process that uses the name counts together. */
    localKeys = false;
    #pool;
    #store;
    #limit;
    #config;

    constructor(options) {
        const { pool, name, store } = checked('RateLimitStore', options);
        this.#pool = pool;
        this.#store = store;
        this.prefix = name;
    }

    /** Called by the middleware, with its options. */
    init({ limit, max, windowMs, skipFailedRequests, skipSuccessfulRequests }) {
        this.#limit = limit ?? max;
        // What is given back of a denial must have been taken.
        const givesBack = Boolean(skipFailedRequests || skipSuccessfulRequests);
        this.#config = windowOf(this.#limit, windowMs, this.#store, givesBack);
    }

    /** What a key has used; undefined: nothing. */
    async get(key) {
        const row = await this.#call(`SELECT ${HITS} FROM rl_check($1, $2, config => $3)`, key);
        return row.hits > 0 ? { totalHits: row.hits, resetTime: row.reset_at } : undefined;
    }

    /** Takes one; beyond the limit it answers more than that. */
    async increment(key) {
        const row = await this.#call(`SELECT ${HITS} FROM rl_limit($1, $2, config => $3)`, key);
        return { totalHits: hitsOf(row, this.#limit), resetTime: row.reset_at };
    }

    /** Gives one back, as for a request that failed. */
    async decrement(key) {
        await this.#call('SELECT FROM rl_credit($1, $2, 1, config => $3)', key);
    }

    async resetKey(key) {
        await this.#pool.query('SELECT rl_reset($1, $2)', [this.prefix, key]);
    }

    async resetAll() {
        await this.#pool.query('SELECT rl_reset_all($1)', [this.prefix]);
    }

    async #call(sql, key) {
        const { rows } = await this.#pool.query(sql, [this.prefix, key, this.#config]);
        return rows[0];
    }
}

/** The same for @nestjs/throttler: each of its throttlers is a limit of its own, `name/throttler`. */
export class RateLimitThrottlerStorage {
    #pool;
    #name;
    #store;

    constructor(options) {
        const { pool, name, store } = checked('RateLimitThrottlerStorage', options);
        this.#pool = pool;
        this.#name = name;
        this.#store = store;
    }

    /** Takes one; ttl and blockDuration in milliseconds, the times of the answer in seconds. */
    async increment(key, ttl, limit, blockDuration, throttler) {
        if (blockDuration !== ttl) {
            throw new TypeError(`RateLimitThrottlerStorage: blockDuration is ${blockDuration}; allowed: ttl, its default`);
        }
        const config = windowOf(limit, ttl, this.#store, false);
        const { rows } = await this.#pool.query(TAKE_IN_SECONDS, [`${this.#name}/${throttler}`, key, config]);
        const totalHits = hitsOf(rows[0], limit);
        const isBlocked = totalHits > limit;
        const { seconds } = rows[0];
        return { totalHits, timeToExpire: seconds, isBlocked, timeToBlockExpire: isBlocked ? seconds : 0 };
    }
}

// reset_at is rounded up to a millisecond: 60 seconds must not become 61.
const TAKE_IN_SECONDS = `
    SELECT ${HITS}, ceil(extract(epoch FROM reset_at - clock_timestamp()) - 0.001)::int AS seconds
    FROM rl_limit($1, $2, config => $3)`;

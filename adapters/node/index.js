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
    const inMemory = store === 'memory' ? ` || '{"store": "memory"}'` : '';
    const config = `rl_fixed_window($3, make_interval(secs => $4), first_request => true)${inMemory}`;
    return { pool, name, config };
}

/**
 * Counts the requests of a window in PostgreSQL, by `rl_limit` of the extension ratelimit: a store for
 * express-rate-limit and hono-rate-limiter.
 *
 * A request that is denied takes nothing, and answers one hit more than the limit.
 */
export class RateLimitStore {
    /** Every process that uses the name counts together. */
    localKeys = false;
    #pool;
    #config;
    #limit;
    #window;
    /** Of each key, the denied requests that may be taken back. */
    #denied = new Map();
    #denialsAreTakenBack = false;

    constructor(options) {
        const { pool, name, config } = checked('RateLimitStore', options);
        this.#pool = pool;
        this.prefix = name;
        this.#config = config;
    }

    /** Called by the middleware, with its options. */
    init({ limit, max, windowMs, skipFailedRequests }) {
        this.#limit = limit ?? max;
        if (!Number.isInteger(this.#limit) || this.#limit < 1) {
            throw new TypeError(
                `RateLimitStore: limit is ${this.#limit}; allowed: an integer from 1 on, since the database decides`,
            );
        }
        this.#window = windowMs / 1000;
        this.#denialsAreTakenBack = Boolean(skipFailedRequests);
    }

    /** What a key has used; undefined: nothing. */
    async get(key) {
        const row = await this.#call('SELECT capacity - remaining AS hits, reset_at FROM rl_check($1, $2, config => CONFIG)', key);
        return row.hits > 0 ? { totalHits: row.hits, resetTime: row.reset_at } : undefined;
    }

    /** Takes one; beyond the limit it answers one hit more than that. */
    async increment(key) {
        const row = await this.#call('SELECT ok, capacity - remaining AS hits, reset_at FROM rl_limit($1, $2, config => CONFIG)', key);
        if (!row.ok && this.#denialsAreTakenBack) {
            this.#denied.set(key, (this.#denied.get(key) ?? 0) + 1);
        }
        return { totalHits: row.ok ? row.hits : this.#limit + 1, resetTime: row.reset_at };
    }

    /** Gives one back, as for a request that failed; one that was denied has taken none. */
    async decrement(key) {
        const denied = this.#denied.get(key);
        if (denied === undefined) {
            await this.#call('SELECT FROM rl_credit($1, $2, 1, config => CONFIG)', key);
        } else if (denied === 1) {
            this.#denied.delete(key);
        } else {
            this.#denied.set(key, denied - 1);
        }
    }

    async resetKey(key) {
        await this.#pool.query('SELECT rl_reset($1, $2)', [this.prefix, key]);
    }

    async resetAll() {
        await this.#pool.query('SELECT rl_reset_all($1)', [this.prefix]);
    }

    async #call(sql, key) {
        const values = [this.prefix, key, this.#limit, this.#window];
        const { rows } = await this.#pool.query(sql.replace('CONFIG', this.#config), values);
        return rows[0];
    }
}

/** The same for @nestjs/throttler: each of its throttlers is a limit of its own, `name/throttler`. */
export class RateLimitThrottlerStorage {
    #pool;
    #name;
    #take;

    constructor(options) {
        const { pool, name, config } = checked('RateLimitThrottlerStorage', options);
        this.#pool = pool;
        this.#name = name;
        // reset_at is rounded up to a millisecond: 60 seconds must not become 61.
        this.#take = `SELECT ok, capacity - remaining AS hits, ceil(extract(epoch FROM reset_at - clock_timestamp()) - 0.001)::int AS seconds
            FROM rl_limit($1, $2, config => ${config})`;
    }

    /** Takes one; ttl and blockDuration in milliseconds, the times of the answer in seconds. */
    async increment(key, ttl, limit, blockDuration, throttler) {
        if (blockDuration !== ttl) {
            throw new TypeError(`RateLimitThrottlerStorage: blockDuration is ${blockDuration}; allowed: ttl, its default`);
        }
        const { rows } = await this.#pool.query(this.#take, [`${this.#name}/${throttler}`, key, limit, ttl / 1000]);
        const [{ ok, hits, seconds }] = rows;
        const totalHits = ok ? hits : limit + 1;
        return { totalHits, timeToExpire: seconds, isBlocked: !ok, timeToBlockExpire: ok ? 0 : seconds };
    }
}

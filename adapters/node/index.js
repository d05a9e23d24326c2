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

    constructor({ pool, name, store = 'table' } = {}) {
        if (typeof pool?.query !== 'function') {
            throw new TypeError('RateLimitStore: pool must be a Pool of pg');
        }
        if (typeof name !== 'string' || name === '') {
            throw new TypeError('RateLimitStore: name must be the name of the limit, such as "api"');
        }
        if (store !== 'table' && store !== 'memory') {
            throw new TypeError(`RateLimitStore: store is ${store}; allowed: "table", "memory"`);
        }
        this.#pool = pool;
        this.prefix = name;
        const inMemory = store === 'memory' ? ` || '{"store": "memory"}'` : '';
        this.#config = `rl_fixed_window($3, make_interval(secs => $4), first_request => true)${inMemory}`;
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

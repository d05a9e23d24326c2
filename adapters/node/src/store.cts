// The store of express-rate-limit and hono-rate-limiter.
import { Database, type RateLimitStoreOptions } from './database.cjs';
import { hitsOf, keyOf, resetTimeOf, windowOf } from './window.cjs';

export interface Hits {
    /**
     * Requests in this window. Beyond the limit: all of them, or the limit and one, if only allowed ones are counted.
     */
    totalHits: number;
    /** The time when the window ends, or a blocked key may call again, by the clock of this process. */
    resetTime: Date;
}

/**
 * Counts the requests of a window in PostgreSQL, by `rl_limit` of the extension ratelimit: a store for
 * express-rate-limit and hono-rate-limiter.
 *
 * A request beyond the limit takes nothing, and answers one hit more than the limit. If the middleware gives hits back
 * (skipFailedRequests, skipSuccessfulRequests), or the limit is a function or 0, each request is counted.
 */
export class RateLimitStore {
    /** All processes that use the name count together. */
    readonly localKeys = false;
    readonly prefix: string;
    #database: Database;
    #limit: unknown;
    #windowMs!: number;
    /** The limit in words, for an error. */
    #limiter!: string;
    #config!: string;

    constructor(options: RateLimitStoreOptions) {
        this.#database = new Database('RateLimitStore', options);
        this.prefix = this.#database.name;
    }

    /** Called by the middleware, with its options. Throws a TypeError for a second one with other options. */
    init({ limit, max, windowMs, skipFailedRequests, skipSuccessfulRequests }: any): void {
        const most = limit ?? max;
        // To give back a denial, it must have been taken.
        const givesBack = Boolean(skipFailedRequests || skipSuccessfulRequests);
        const config = windowOf(most, windowMs, this.#database.store, givesBack);
        const limiter = `${most} in ${windowMs} ms${givesBack ? ' and skips requests' : ''}`;
        if (this.#config && (most !== this.#limit || config !== this.#config)) {
            throw new TypeError(
                `RateLimitStore: a second limiter has ${limiter}, the first ${this.#limiter}; \
allowed: a store with a name of its own for each`,
            );
        }
        this.#limit = most;
        this.#windowMs = windowMs;
        this.#limiter = limiter;
        this.#config = config;
    }

    /** The number that a key has used; undefined: it has no window. */
    async get(key: string): Promise<Hits | undefined> {
        const row = await this.#database.row('look', this.#values(key));
        const totalHits = Number(row.hits);
        if (totalHits > 0) return { totalHits, resetTime: resetTimeOf(row, this.#windowMs) };
        return row.open > 0 ? { totalHits, resetTime: resetTimeOf({ ok: true, wait: row.open }) } : undefined;
    }

    /**
     * Takes one; beyond the limit it answers more than that. Unchecked: the answer of the first request in a window.
     */
    async increment(key: string): Promise<Hits> {
        const row = await this.#database.take(this.prefix, keyOf(key), this.#config);
        if (!row) return { totalHits: 1, resetTime: new Date(Date.now() + this.#windowMs) };
        return { totalHits: hitsOf(row, this.#limit), resetTime: resetTimeOf(row, this.#windowMs) };
    }

    /** Gives one back, for example for a failed request. */
    async decrement(key: string): Promise<void> {
        await this.#database.rowIfNow('give_back', [...this.#values(key), '1']);
    }

    async resetKey(key: string): Promise<void> {
        await this.#database.row('reset', [this.prefix, keyOf(key)]);
    }

    async resetAll(): Promise<void> {
        await this.#database.row('reset_keys', [this.prefix]);
    }

    #values(key: string): string[] {
        return [this.prefix, keyOf(key), this.#config];
    }
}

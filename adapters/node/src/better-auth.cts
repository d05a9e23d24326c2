// The storage of better-auth's rate limiter.
import { Database, type RateLimitStoreOptions } from './database.cjs';
import { secondsOf, takeOne } from './window.cjs';

export type { Queryable, RateLimitStoreOptions } from './database.cjs';

/** Counts as RateLimitStore does, in the window of each rule: `rateLimit.customStorage` of better-auth. */
export class RateLimitStorage {
    #database: Database;

    constructor(options: RateLimitStoreOptions) {
        this.#database = new Database('RateLimitStorage', options);
    }

    /** Takes one; `window` and `retryAfter` in seconds. */
    async consume(
        key: string,
        { window, max }: { window: number; max: number },
    ): Promise<{ allowed: boolean; retryAfter: number | null }> {
        const { hits, wait } = await takeOne(this.#database, this.#database.name, key, max, window * 1000);
        const allowed = hits <= max;
        return { allowed, retryAfter: allowed ? null : secondsOf(wait) };
    }
}

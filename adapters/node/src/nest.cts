// The storage of @nestjs/throttler.
import { Database, type RateLimitStoreOptions } from './database.cjs';
import { hitsOf, keyOf, windowOf } from './window.cjs';

export type { Queryable, RateLimitStoreOptions } from './database.cjs';

/** Counts as RateLimitStore does; each throttler is a limit of its own, `name/throttler`. */
export class RateLimitThrottlerStorage {
    #database: Database;

    constructor(options: RateLimitStoreOptions) {
        this.#database = new Database('RateLimitThrottlerStorage', options);
    }

    /**
     * Takes one; ttl and blockDuration in milliseconds, the times of the answer in seconds. Throws a TypeError where
     * blockDuration is not ttl.
     */
    async increment(
        key: string,
        ttl: number,
        limit: number,
        blockDuration: number,
        throttler: string,
    ): Promise<{ totalHits: number; timeToExpire: number; isBlocked: boolean; timeToBlockExpire: number }> {
        if (blockDuration !== ttl) {
            throw new TypeError(
                `RateLimitThrottlerStorage: blockDuration is ${blockDuration}; allowed: ttl, its default`,
            );
        }
        const { name, store } = this.#database;
        const config = windowOf(limit, ttl, store, false);
        const taken = await this.#database.take(`${name}/${throttler}`, keyOf(key), config);
        const row = taken ?? { ok: true, hits: 1, wait: ttl }; // unchecked
        const totalHits = hitsOf(row, limit);
        const isBlocked = totalHits > limit;
        // Times are rounded up to a millisecond: 60 seconds must not become 61, nor the last millisecond 0.
        const seconds = Math.max(Math.ceil(Number(row.wait ?? ttl) / 1000 - 0.001), 1);
        return { totalHits, timeToExpire: seconds, isBlocked, timeToBlockExpire: isBlocked ? seconds : 0 };
    }
}

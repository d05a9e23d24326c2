// The storage of @nestjs/throttler.
import { Database, type RateLimitStoreOptions } from './database.cjs';
import { secondsOf, takeOne } from './window.cjs';

export type { Queryable, RateLimitStoreOptions } from './database.cjs';

/** Counts as RateLimitStore does; each throttler is a limit of its own, `name/throttler`. */
export class RateLimitThrottlerStorage {
    #database: Database;

    constructor(options: RateLimitStoreOptions) {
        this.#database = new Database('RateLimitThrottlerStorage', options);
    }

    /**
     * Takes one; ttl and blockDuration in milliseconds, the times of the answer in seconds. Throws a TypeError if
     * blockDuration differs from ttl.
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
        const name = `${this.#database.name}/${throttler}`;
        const { hits: totalHits, wait } = await takeOne(this.#database, name, key, limit, ttl);
        const isBlocked = totalHits > limit;
        const seconds = secondsOf(wait);
        return { totalHits, timeToExpire: seconds, isBlocked, timeToBlockExpire: isBlocked ? seconds : 0 };
    }
}

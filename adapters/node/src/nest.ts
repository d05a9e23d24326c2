// The storage of @nestjs/throttler.
import { allow } from './errors';
import { secondsOf, Windows, type RateLimitStoreOptions } from './window';

export type { Database, Queryable, RateLimitStoreOptions } from './window';

/** Counts as RateLimitStore does; each throttler is a limit of its own, `name/throttler`. */
export class RateLimitThrottlerStorage {
    #windows: Windows;

    constructor(options: RateLimitStoreOptions) {
        this.#windows = new Windows('RateLimitThrottlerStorage', options);
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
        const { kind, name } = this.#windows;
        allow(blockDuration === ttl, `${kind}: blockDuration`, blockDuration, 'ttl, its default');
        const window = { limit, milliseconds: ttl, name: `${name}/${throttler}` };
        const { hits: totalHits, wait } = await this.#windows.take(window, key);
        const isBlocked = totalHits > limit;
        const seconds = secondsOf(wait);
        return { totalHits, timeToExpire: seconds, isBlocked, timeToBlockExpire: isBlocked ? seconds : 0 };
    }
}

// The storage of better-auth's rate limiter.
import { secondsOf, Windows, type RateLimitStoreOptions } from './window';

export type { Database, Queryable, RateLimitStoreOptions } from './window';

/** Counts as RateLimitStore does, in the window of each rule: `rateLimit.customStorage` of better-auth. */
export class RateLimitStorage {
    #windows: Windows;

    constructor(options: RateLimitStoreOptions) {
        this.#windows = new Windows('RateLimitStorage', options);
    }

    /** Takes one; `window` and `retryAfter` in seconds. */
    async consume(
        key: string,
        { window, max }: { window: number; max: number },
    ): Promise<{ allowed: boolean; retryAfter: number | null }> {
        const { hits, wait } = await this.#windows.take({ limit: max, milliseconds: window * 1000 }, key);
        const allowed = hits <= max;
        return { allowed, retryAfter: allowed ? null : secondsOf(wait) };
    }
}

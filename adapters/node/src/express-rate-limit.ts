// The store of express-rate-limit and hono-rate-limiter.
import { spanOf, Windows, type RateLimitStoreOptions, type Window } from './window';

export type { Database, Queryable, RateLimitStoreOptions } from './window';

export interface Hits {
    /** Requests in this window. Beyond the limit: all, or the limit and one, if only allowed ones are counted. */
    totalHits: number;
    /** The time when the window ends, or a blocked key may call again, by the clock of this process. */
    resetTime: Date;
}

/**
 * Counts the requests of a window in PostgreSQL, by `rl_limit`: a store for express-rate-limit and hono-rate-limiter.
 *
 * A request beyond the limit takes nothing, and answers one hit more than the limit. If the middleware gives hits back
 * (skipFailedRequests, skipSuccessfulRequests), or the limit is a function or 0, each request is counted.
 */
export class RateLimitStore {
    /** All processes that use the name count together. */
    readonly localKeys = false;
    readonly prefix: string;
    #windows: Windows;
    #window!: Window;

    constructor(options: RateLimitStoreOptions) {
        this.#windows = new Windows('RateLimitStore', options);
        this.prefix = this.#windows.name;
    }

    /** Called by the middleware, with its options. Throws a TypeError for a second one with other options. */
    init({ limit: given, max, windowMs, skipFailedRequests, skipSuccessfulRequests }: any): void {
        // To give back a denial, it must have been taken.
        const countsAll = Boolean(skipFailedRequests || skipSuccessfulRequests);
        const window = { limit: given ?? max, milliseconds: windowMs, countsAll };
        const first: Window | undefined = this.#window;
        if (first && (first.limit !== window.limit || inWords(first) !== inWords(window))) {
            const both = `a second limiter has ${inWords(window)}, the first ${inWords(first)}`;
            throw new TypeError(`RateLimitStore: ${both}; allowed: a store with a name of its own for each`);
        }
        this.#window = window;
    }

    /** The number that a key has used; undefined: it has no window. */
    async get(key: string): Promise<Hits | undefined> {
        const { used, isOpen, ...counted } = await this.#windows.look(this.#window, key);
        return isOpen ? { totalHits: used, resetTime: resetTimeOf(counted) } : undefined;
    }

    /** Takes one; beyond the limit it answers more than that. Unchecked: as the first request in a window. */
    async increment(key: string): Promise<Hits> {
        const counted = await this.#windows.take(this.#window, key);
        return { totalHits: counted.hits, resetTime: resetTimeOf(counted) };
    }

    /** Gives one back, for example for a failed request. */
    async decrement(key: string): Promise<void> {
        await this.#windows.giveBack(this.#window, key, 1, true);
    }

    async resetKey(key: string): Promise<void> {
        await this.#windows.reset(key);
    }

    async resetAll(): Promise<void> {
        await this.#windows.sender.row('resetKeys', {}, [this.prefix]);
    }
}

const inWords = ({ limit, milliseconds, countsAll }: Window): string =>
    `${limit} in ${milliseconds} ms${countsAll ? ' and skips requests' : ''}`;

/** When a wait ends by this process's clock. The middleware rounds the rest a moment later: a denial's to a second. */
const resetTimeOf = ({ ok, wait }: { ok: boolean; wait: number }): Date =>
    new Date(Date.now() + Math.max(spanOf(wait), ok ? 1 : 20));

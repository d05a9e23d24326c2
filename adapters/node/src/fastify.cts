// The store of @fastify/rate-limit.
import { Database, type RateLimitStoreOptions } from './database.cjs';
import { keyOf, takeOne, windowOf } from './window.cjs';

export type { Queryable, RateLimitStoreOptions } from './database.cjs';

/** Receives the requests of a window, and the milliseconds until it ends. */
export type Counted = (error: Error | null, result?: { current: number; ttl: number }) => void;

/** The interface that the plugin calls. */
export interface RateLimitStore {
    /** Takes one; beyond the limit it answers more than that. */
    incr(key: string, counted: Counted, timeWindow: number, max: number): void;
    /** The number that a key has used, for `{ increment: false }`. */
    read(key: string, counted: Counted, timeWindow: number, max: number): void;
    /** The store of a route with options of its own, which counts separately: by its group, or its method and URL. */
    child(settings: any): RateLimitStore;
}

/**
 * Counts as RateLimitStore does for express-rate-limit: the class to use as `store` of @fastify/rate-limit. With `ban`
 * each request is counted. Throws a TypeError if continueExceeding or exponentialBackoff is true.
 */
export function rateLimitStore(options: RateLimitStoreOptions): new (settings?: any) => RateLimitStore {
    const database = new Database('rateLimitStore', options);
    return class extends Store {
        constructor(settings: any = {}) {
            super(database, database.name, settings);
        }
    };
}

class Store implements RateLimitStore {
    #database: Database;
    #name: string;
    #countsAll: boolean;

    constructor(database: Database, name: string, settings: any) {
        for (const option of ['continueExceeding', 'exponentialBackoff']) {
            if (settings[option]) throw new TypeError(`rateLimitStore: ${option} is true; allowed: false, its default`);
        }
        this.#database = database;
        this.#name = name;
        this.#countsAll = settings.ban >= 0;
    }

    incr(key: string, counted: Counted, timeWindow: number, max: number): void {
        takeOne(this.#database, this.#name, key, max, timeWindow, this.#countsAll).then(
            ({ hits, wait }) => counted(null, { current: hits, ttl: spanOf(wait) }),
            (error) => counted(error),
        );
    }

    read(key: string, counted: Counted, timeWindow: number, max: number): void {
        const config = windowOf(max, timeWindow, this.#database.store, this.#countsAll);
        this.#database.rowIfNow('look', [this.#name, keyOf(key), config]).then(
            (row) => {
                const current = Number(row?.hits ?? 0);
                const wait = current > 0 ? (row.wait ?? timeWindow) : Math.max(row?.open ?? 0, 0);
                counted(null, { current, ttl: wait > 0 ? spanOf(wait) : 0 });
            },
            (error) => counted(error),
        );
    }

    child(settings: any): RateLimitStore {
        const { groupId, max, timeWindow, routeInfo: { method, url } = {} as any } = settings;
        // For fastify.rateLimit and createRateLimit there is no route.
        const part = groupId ?? (url === undefined ? `${max} in ${timeWindow} ms` : `${method} ${url}`);
        return new Store(this.#database, `${this.#database.name}/${keyOf(part, 100)}`, settings);
    }
}

/** Whole milliseconds, which the plugin rounds up to seconds: a window of 60 seconds must not become one of 61. */
const spanOf = (wait: unknown): number => Math.max(Math.floor(Number(wait)), 1);

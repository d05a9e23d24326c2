// The store of @fastify/rate-limit.
import { allow } from './errors';
import { keyOf, spanOf, Windows, type RateLimitStoreOptions, type Window } from './window';

export type { Database, Queryable, RateLimitStoreOptions } from './window';

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
    const windows = new Windows('rateLimitStore', options);
    return class Store implements RateLimitStore {
        #countsAll: boolean;
        #name: string;

        constructor(settings: any = {}, name = windows.name) {
            for (const option of ['continueExceeding', 'exponentialBackoff'])
                allow(!settings[option], `rateLimitStore: ${option}`, true, 'false, its default');
            this.#countsAll = settings.ban >= 0;
            this.#name = name;
        }

        #of(timeWindow: number, max: number): Window {
            return { limit: max, milliseconds: timeWindow, name: this.#name, countsAll: this.#countsAll };
        }

        incr(key: string, counted: Counted, timeWindow: number, max: number): void {
            const answer = windows.take(this.#of(timeWindow, max), key);
            answer.then(({ hits, wait }) => counted(null, { current: hits, ttl: spanOf(wait) }), counted);
        }

        read(key: string, counted: Counted, timeWindow: number, max: number): void {
            const answer = windows.look(this.#of(timeWindow, max), key, true);
            answer.then(
                ({ used, wait, isOpen }) => counted(null, { current: used, ttl: isOpen ? spanOf(wait) : 0 }),
                counted,
            );
        }

        child(settings: any): RateLimitStore {
            const { groupId, max, timeWindow, routeInfo: { method, url } = {} as any } = settings;
            // For fastify.rateLimit and createRateLimit there is no route.
            const part = groupId ?? (url === undefined ? `${max} in ${timeWindow} ms` : `${method} ${url}`);
            return new Store(settings, `${windows.name}/${keyOf(part, 100)}`);
        }
    };
}

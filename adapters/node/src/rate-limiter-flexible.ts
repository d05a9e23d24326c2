// The store of rate-limiter-flexible.
import { RateLimiterRes as Result, type RateLimiterRes, type RateLimiterStoreAbstract } from 'rate-limiter-flexible';
// @ts-expect-error: the package does not export it, so it has no types.
import Untyped from 'rate-limiter-flexible/lib/RateLimiterStoreAbstract.js';

import { allow } from './errors';
import { keyOf, spanOf, Windows, type RateLimitStoreOptions, type Window } from './window';

export type { Database, Queryable, RateLimitStoreOptions } from './window';

const Abstract: typeof RateLimiterStoreAbstract = Untyped;

type Theirs = ConstructorParameters<typeof RateLimiterStoreAbstract>[0];
type OfTables = 'storeClient' | 'storeType' | 'dbName' | 'tableName' | 'tableCreated';
/** The options of rate-limiter-flexible, except those for tables, and the options of our stores. */
export type RateLimiterStoreOptions = Omit<Theirs, OfTables> & RateLimitStoreOptions;

interface Found {
    hits: number;
    /** Milliseconds; infinite while the key is blocked without an end. */
    wait: number;
}
/** Marks the options of a penalty, which is taken beyond the limit, too. */
const PENALTY = Symbol('penalty');
/** The longest period, for a duration of 0: it never ends. */
const FOREVER = 1e15;

/**
 * A limiter of rate-limiter-flexible that counts in PostgreSQL, with all of its options. A denial takes no points,
 * unless blockDuration, blockOnConsumed or inMemoryBlockOnConsumed count them.
 */
export class RateLimiterStore extends Abstract {
    #windows: Windows;

    constructor(options: RateLimiterStoreOptions) {
        super({ keyPrefix: '', ...options } as any);
        this.#windows = new Windows('RateLimiterStore', options);
    }

    get #countsAll(): boolean {
        const { points, blockDuration, blockOnConsumed, inMemoryBlockOnConsumed } = this as any;
        return blockDuration > 0 || blockOnConsumed > points || inMemoryBlockOnConsumed > points;
    }
    #window(countsAll = true): Window {
        return { limit: this.points, milliseconds: this.msDuration || FOREVER, countsAll };
    }

    async _upsert(key: string, points: number, ms: number, replaces: boolean, options: any): Promise<Found> {
        allow(ms === this.msDuration, 'RateLimiterStore: the duration', `${ms / 1000} s`, 'that of the limiter');
        if (replaces) await this.#windows.reset(key);
        if (points < 0) {
            await this.#windows.giveBack(this.#window(), key, -points);
            return (await this._get(key)) ?? { hits: 0, wait: 0 };
        }
        const countsAll = this.#countsAll || replaces || Boolean(options?.[PENALTY]);
        const { ok, used, wait, isEndless } = await this.#windows.take(this.#window(countsAll), key, points);
        const never = isEndless && (countsAll || points <= this.points);
        // If all are counted, only a block denies, which does not count as crossing the limit.
        const least = countsAll ? Math.max(this.points, this.blockOnConsumed ?? 0) + points + 1 : this.points + 1;
        return { hits: ok ? used : Math.max(used + points, least), wait: never ? Infinity : wait };
    }

    /** Undefined: no window, and no block. */
    async _get(key: string): Promise<Found | undefined> {
        const { ok, used, wait, isEndless, isOpen } = await this.#windows.look(this.#window(), key);
        if (!ok) return { hits: Math.max(used, this.points + 1), wait: isEndless ? Infinity : wait };
        return isOpen ? { hits: used, wait } : undefined;
    }

    async _delete(key: string): Promise<boolean> {
        const was = await this.#windows.reset(key);
        const { ok } = await this.#windows.sender.row('unblock', {}, [this.#windows.name, keyOf(key)]).catch((error) => {
            if (error.code === '42501') return { ok: false }; // no block is this role's
            throw error;
        });
        return was || ok;
    }

    _penalty(key: string, points: number, options: any): Promise<RateLimiterRes> {
        return (Abstract.prototype as any)._penalty.call(this, key, points, { ...options, [PENALTY]: true });
    }

    // In version 9 it blocks.
    override async set(key: any, points: number, seconds: number, options: any = {}): Promise<RateLimiterRes> {
        const ms = (seconds >= 0 ? seconds : this.duration) * 1000;
        const done = this._upsert(this.getKey(key), points, ms, true, options);
        return this.#insured(done, points, ms, 'set', [key, points, ms / 1000, options]);
    }

    async _block(key: string, points: number, ms: number, options: any): Promise<RateLimiterRes> {
        const done = this.#windows.sender.row('block', {}, [this.#windows.name, keyOf(key), ms]);
        return this.#insured(done, points, ms, 'block', [this.parseKey(key), ms / 1000, options]);
    }

    /** The answer when that is DONE; if it fails, that of its insuranceLimiter to the call; without one, the error. */
    #insured(done: Promise<unknown>, points: number, ms: number, ...call: [name: string, given: unknown[]]) {
        return new Promise<RateLimiterRes>((resolve, reject) => {
            const failed = (error: unknown) => (this as any)._handleError(error, call[0], resolve, reject, call[1]);
            done.then(() => resolve(new Result(0, ms > 0 ? ms : -1, points)), failed).catch(reject);
        });
    }

    _getRateLimiterRes(_key: string, changed: number, { hits, wait }: Found): RateLimiterRes {
        const left = this.msDuration > 0 && wait < Infinity ? spanOf(wait) : -1;
        return new Result(Math.max(this.points - hits, 0), left, hits, hits === changed);
    }
}

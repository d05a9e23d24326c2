// The store of rate-limiter-flexible.
import type { RateLimiterRes, RateLimiterStoreAbstract } from 'rate-limiter-flexible';

import { Database, type RateLimitStoreOptions } from './database.cjs';
import { keyOf, windowOf } from './window.cjs';

export type { Queryable, RateLimitStoreOptions } from './database.cjs';

const Result: typeof RateLimiterRes = require('rate-limiter-flexible').RateLimiterRes;
// The package does not export it.
const Abstract: typeof RateLimiterStoreAbstract = require('rate-limiter-flexible/lib/RateLimiterStoreAbstract.js');

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
    #database: Database;

    constructor(options: RateLimiterStoreOptions) {
        super({ keyPrefix: '', ...options } as any);
        this.#database = new Database('RateLimiterStore', options);
    }

    get #period(): number {
        return this.msDuration || FOREVER;
    }
    get #countsAll(): boolean {
        const { points, blockDuration, blockOnConsumed, inMemoryBlockOnConsumed } = this as any;
        return blockDuration > 0 || blockOnConsumed > points || inMemoryBlockOnConsumed > points;
    }
    #values(key: unknown, countsAll: boolean): [string, string, string] {
        const { name, store } = this.#database;
        const text = typeof key === 'number' ? String(key) : (key as string);
        return [name, keyOf(text), windowOf(this.points, this.#period, store, countsAll)];
    }

    async _upsert(key: string, points: number, ms: number, replaces: boolean, options: any): Promise<Found> {
        if (ms !== this.msDuration) {
            throw new TypeError(`RateLimiterStore: the duration is ${ms / 1000} s; allowed: that of the limiter`);
        }
        if (replaces) await this.#database.row('reset', this.#values(key, true).slice(0, 2));
        if (points < 0) {
            await this.#database.row('give_back', [...this.#values(key, true), String(-points)]);
            return (await this._get(key)) ?? { hits: 0, wait: 0 };
        }
        const countsAll = this.#countsAll || replaces || Boolean(options?.[PENALTY]);
        const taken = await this.#database.take(...this.#values(key, countsAll), points);
        const { ok, hits, wait } = taken ?? { ok: true, hits: points, wait: this.#period };
        const never = !ok && wait === null && (countsAll || points <= this.points);
        // If all are counted, only a block denies, which does not count as crossing the limit.
        const least = countsAll ? Math.max(this.points, this.blockOnConsumed ?? 0) + points + 1 : this.points + 1;
        const consumed = ok ? Number(hits) : Math.max(Number(hits) + points, least);
        return { hits: consumed, wait: never ? Infinity : Number(wait ?? this.#period) };
    }

    /** Undefined: no window, and no block. */
    async _get(key: string): Promise<Found | undefined> {
        const { ok, hits, wait, open } = await this.#database.row('look', this.#values(key, true));
        if (!ok) return { hits: Math.max(Number(hits), this.points + 1), wait: Number(wait ?? Infinity) };
        if (hits <= 0 && !(open > 0)) return undefined;
        return { hits: Number(hits), wait: Number(hits > 0 ? (wait ?? this.#period) : open) };
    }

    async _delete(key: string): Promise<boolean> {
        const values = this.#values(key, true).slice(0, 2);
        const { was } = await this.#database.row('reset', values);
        const { was: blocked } = await this.#database.row('unblock', values).catch((error) => {
            if (error.code === '42501') return { was: false }; // no block is this role's
            throw error;
        });
        return was || blocked;
    }

    _penalty(key: string, points: number, options: any): Promise<RateLimiterRes> {
        return (Abstract.prototype as any)._penalty.call(this, key, points, { ...options, [PENALTY]: true });
    }

    // In version 9 it blocks.
    override async set(key: any, points: number, seconds: number, options: any = {}): Promise<RateLimiterRes> {
        const ms = (seconds >= 0 ? seconds : this.duration) * 1000;
        try {
            await this._upsert(this.getKey(key), points, ms, true, options);
        } catch (error) {
            return this.#insured(error, 'set', [key, points, ms / 1000, options]);
        }
        return new Result(0, ms > 0 ? ms : -1, points);
    }

    async _block(key: string, points: number, ms: number, options: any): Promise<RateLimiterRes> {
        try {
            await this.#database.row('block', [...this.#values(key, true).slice(0, 2), String(ms)]);
        } catch (error) {
            return this.#insured(error, 'block', [this.parseKey(key), ms / 1000, options]);
        }
        return new Result(0, ms > 0 ? ms : -1, points);
    }

    /** The answer of its insuranceLimiter in its place; without one, the error. */
    #insured(error: unknown, call: string, given: unknown[]): Promise<RateLimiterRes> {
        return new Promise((resolve, reject) => (this as any)._handleError(error, call, resolve, reject, given));
    }

    _getRateLimiterRes(_key: string, changed: number, { hits, wait }: Found): RateLimiterRes {
        const left = this.msDuration > 0 && wait < Infinity ? Math.max(Math.floor(wait), 1) : -1;
        return new Result(Math.max(this.points - hits, 0), left, hits, hits === changed);
    }
}

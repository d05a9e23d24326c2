// The windows in which the stores for other packages count, by a client: their options, and what a key has used.
import { createHash } from 'node:crypto';

import { allow } from './errors';
import type { Decision, RateLimiterOptions } from './limiter';
import { checked, type Database } from './query';
import { Sender } from './sender';

export type { Database, Queryable } from './query';

export interface RateLimitStoreOptions extends Pick<RateLimiterOptions, 'schema' | 'onError' | 'rememberDenials' | 'prepare' | 'batch'> {
    /** The connections that run SQL, as for RateLimiter. */
    db: Database;
    /** The limit's name; all processes that use it count together. */
    name: string;
    /** "memory": in the server's shared memory, lost when it restarts. Default: "table". */
    store?: 'table' | 'memory' | undefined;
    /**
     * `true`: the name is defined in the database, by a fixed window that has the middleware's limit, and may have
     * `save` or shards. Calls send no config. Default: false.
     */
    defined?: boolean | undefined;
    /** The milliseconds after which a call ends with an error: to get a connection, and the answer. Default: 5000. */
    timeout?: number | undefined;
    /** Called with the error of each request that passed unchecked. Default: a line of console.warn. */
    onUnchecked?: ((error: Error) => void) | undefined;
}

const warn = ({ message }: Error) => console.warn(`postgres-rate-limit: a request passes unchecked: ${message}`);

/** The windows of one limit, each of a key. */
export interface Window {
    limit: unknown;
    milliseconds: number;
    /** Default: that of the store. */
    name?: string;
    /** Denied requests are counted, too. */
    countsAll?: boolean;
}

/** What a key has used of a window. */
export interface Counted {
    ok: boolean;
    used: number;
    /** The same for a middleware, which compares: more than the limit if the request was denied. */
    hits: number;
    /** Milliseconds until the window ends or a denied call can pass; the length of the window if it never can. */
    wait: number;
    isEndless: boolean;
    /** Whether there is a window. */
    isOpen: boolean;
}

/** Whether the database can decide with this limit. */
const isWhole = (limit: unknown): limit is number => Number.isSafeInteger(limit) && (limit as number) > 0;
const usedOf = ({ capacity, remaining }: any): number => Number(capacity) - Number(remaining);
/** The milliseconds until a window ends, if there is one. */
const endOf = ({ reset, now }: any): number | null => (reset === null ? null : Number(reset) * 1000 - Number(now));
/** The denial of a window that is used up. */
const denied = (row: any) => ({ ...row, ok: false, limited: 'tokens', wait: endOf(row)! / 1000 });

/**
 * Where a store counts. If the database decides, a request beyond the limit is denied and takes nothing. If all are
 * counted, or it can't decide, each request is counted (`overage`), and the middleware compares.
 */
export class Windows {
    readonly name: string;
    readonly store: 'table' | 'memory';
    readonly defined: boolean;
    readonly sender: Sender;

    /** Throws a TypeError for invalid options; KIND is the store's name in it. */
    constructor(
        readonly kind: string,
        options: RateLimitStoreOptions,
    ) {
        const { db, name, store = 'table', defined = false, timeout = 5000 } = options ?? {};
        const { schema, onError, rememberDenials, prepare, batch, onUnchecked = warn } = options ?? {};
        try {
            checked(db);
            const isName = typeof name === 'string' && name !== '';
            if (!isName) throw new TypeError('name must be the name of the limit, such as "api"');
            allow(store === 'table' || store === 'memory', 'store', store, '"table", "memory"');
            allow(typeof defined === 'boolean', 'defined', defined, 'true, false');
            allow(typeof onUnchecked === 'function', 'onUnchecked', typeof onUnchecked, 'a function');
            const onDecision = ({ ok, error }: Decision) => ok && error && onUnchecked(error);
            this.sender = new Sender({ db, schema, onError, timeout, rememberDenials, prepare, batch, onDecision });
        } catch (error: any) {
            throw new TypeError(`${kind}: ${error.message}`);
        }
        this.name = name;
        this.store = store;
        this.defined = defined;
    }

    /** Fills the window of a key; false: it was full. */
    async reset(key: string): Promise<boolean> {
        return (await this.sender.row('reset', {}, [this.name, keyOf(key)])).ok;
    }

    /** As JSON; null: the name is defined. */
    #configOf({ limit, milliseconds: period, countsAll }: Window): string | null {
        if (this.defined) return null;
        const rate = isWhole(limit) ? limit : 1;
        const config = { kind: 'fixed window', rate, period, start: 'first request', store: this.store };
        return JSON.stringify(countsAll || !isWhole(limit) ? { ...config, overage: true } : config);
    }

    /** Takes some of a key's window. Unchecked: the answer of the first request in a window. */
    async take(window: Window, key: string, count = 1): Promise<Counted> {
        const values = [window.name ?? this.name, keyOf(key), count, false, this.#configOf(window)];
        const row = await this.sender.decided('limit', {}, values, async () => [await this.#take(window, values)]);
        return countedOf(window, row, count);
    }
    async #take(window: Window, values: unknown[]): Promise<any> {
        const row = await this.sender.row('limit', {}, values);
        if (row.ok || row.limited !== 'tokens') return row;
        const { limit, countsAll } = window;
        const decides = isWhole(limit) && !countsAll;
        if (this.defined && !decides)
            throw new TypeError(`${this.kind}: "${values[0]}" must be defined with overage, to count what is denied`);
        return !this.defined && decides && usedOf(row) > limit ? this.#takeIfLess(window, limit, values) : row;
    }
    /** Tokens that a window took beyond the limit, by a config that counts all, end with the window. */
    async #takeIfLess(window: Window, limit: number, [name, key, count]: any[]): Promise<any> {
        const config = this.#configOf({ ...window, countsAll: true });
        const seen = await this.sender.row('look', {}, [name, key, config, window.milliseconds]);
        if (!seen.ok) return seen;
        if (usedOf(seen) + count > limit) return denied(seen);
        const row = await this.sender.row('limit', {}, [name, key, count, false, config]);
        return row.ok && usedOf(row) > limit ? denied(row) : row;
    }

    /** Looks up what a key has used. With FAILS_OPEN and a store that fails open, nothing if it can't be asked. */
    async look(window: Window, key: string, failsOpen = false): Promise<Counted> {
        const values = [window.name ?? this.name, keyOf(key), this.#configOf(window), window.milliseconds];
        const row = await this.sender[failsOpen ? 'decided' : 'row']('look', {}, values);
        const counted = countedOf(window, row);
        const rest = Math.max(row.rest ?? 0, 0);
        if (counted.ok && counted.used <= 0) return { ...counted, wait: rest, isOpen: rest > 0 };
        return { ...counted, isOpen: counted.used > 0 || rest > 0 };
    }

    /** Gives back some, for example for a failed request. */
    async giveBack(window: Window, key: string, count = 1, failsOpen = false): Promise<void> {
        const values = [window.name ?? this.name, keyOf(key), count, null, this.#configOf(window)];
        await this.sender[failsOpen ? 'decided' : 'row']('credit', {}, values);
    }
}

/** UNCHECKED: what was used, if that is not known. */
function countedOf({ limit, milliseconds }: Window, row: any, unchecked = 0): Counted {
    const [ok, used] = [row.ok, row.error ? unchecked : usedOf(row)];
    const wait = row.error ? null : ok ? endOf(row) : row.wait && row.wait * 1000;
    const beyond = isWhole(limit) ? limit + 1 : Number.MAX_SAFE_INTEGER;
    const rest = { wait: Number(wait ?? milliseconds), isEndless: !ok && wait === null, isOpen: true };
    return { ok, used, hits: ok ? used : beyond, ...rest };
}

/** A key that the extension accepts: a longer one, or one with a NUL, becomes its hash. */
export function keyOf(key: unknown, most = 1024): string {
    if (typeof key !== 'string') return typeof key === 'number' ? String(key) : (key as string);
    // UTF-8 maps all halves of surrogate pairs to one text, so their hash is of UTF-16.
    const isWhole = !/\p{Surrogate}/u.test(key);
    // A key that looks like a hash is hashed, too, so that it can't collide with another key's.
    const taken = isWhole && Buffer.byteLength(key) <= most && !key.includes('\0') && !key.startsWith('sha256:');
    return taken ? key : `sha256:${createHash('sha256').update(key, isWhole ? 'utf8' : 'utf16le').digest('hex')}`;
}

/** A wait in whole seconds. Rounded up to a millisecond: 60 seconds must not become 61, nor the last millisecond 0. */
export const secondsOf = (milliseconds: number): number => Math.max(Math.ceil(milliseconds / 1000 - 0.001), 1);
/** A wait in whole milliseconds, which a framework rounds up to seconds: 60 seconds must not become 61. */
export const spanOf = (milliseconds: number): number => Math.max(Math.floor(milliseconds), 1);

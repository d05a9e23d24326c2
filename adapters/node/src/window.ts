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

/** Where a store counts, and its checked options. */
export class Windows {
    readonly kind: string;
    readonly name: string;
    readonly store: 'table' | 'memory';
    readonly defined: boolean;
    readonly sender: Sender;

    /** Throws a TypeError for invalid options; KIND is the store's name in it. */
    constructor(kind: string, options: RateLimitStoreOptions) {
        const { db, name, store = 'table', defined = false } = options ?? {};
        const { schema, onError, timeout = 5000, rememberDenials, prepare, batch, onUnchecked = warn } = options ?? {};
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
        this.kind = kind;
        this.name = name;
        this.store = store;
        this.defined = defined;
    }

    /** The windows of a limit: they last milliseconds. COUNTS_ALL: denied requests are counted, too. */
    of(limit: unknown, milliseconds: number, { name = this.name, countsAll = false } = {}): Window {
        return new Window(this, name, limit, milliseconds, countsAll);
    }

    /** Fills the window of a key; false: it was full. */
    async reset(key: string): Promise<boolean> {
        return (await this.sender.row('reset', {}, [this.name, keyOf(key)])).ok;
    }
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
 * The windows of one limit, each of a key.
 *
 * If the database decides, a request beyond the limit is denied and takes nothing. If all are counted, or it can't
 * decide, each request is counted (`overage`), and the middleware compares.
 */
export class Window {
    /** As JSON; null: the name is defined. */
    #config: string | null;
    #countsAll: boolean;

    constructor(
        private readonly windows: Windows,
        private readonly name: string,
        private readonly limit: unknown,
        private readonly milliseconds: number,
        countsAll: boolean,
    ) {
        this.#countsAll = countsAll || !isWhole(limit);
        this.#config = windows.defined ? null : this.#configOf(this.#countsAll);
    }

    #configOf(overage: boolean): string {
        const { store } = this.windows;
        const [rate, period] = [isWhole(this.limit) ? this.limit : 1, this.milliseconds];
        const config = { kind: 'fixed window', rate, period, start: 'first request', store };
        return JSON.stringify(overage ? { ...config, overage } : config);
    }

    /** Takes some of a key's window. Unchecked: the answer of the first request in a window. */
    async take(key: string, count = 1): Promise<Counted> {
        const values = [this.name, keyOf(key), count, false, this.#config];
        const { sender } = this.windows;
        const row = await sender.decided('limit', {}, values, async () => [await this.#take(values, count)]);
        return this.#counted(row, count);
    }
    async #take(values: unknown[], count: number): Promise<any> {
        const row = await this.windows.sender.row('limit', {}, values);
        if (row.ok || row.limited !== 'tokens') return row;
        const { kind, defined } = this.windows;
        if (defined && this.#countsAll)
            throw new TypeError(`${kind}: "${this.name}" must be defined with overage, to count what is denied`);
        const isBeyond = !defined && !this.#countsAll && usedOf(row) > (this.limit as number);
        return isBeyond ? this.#takeIfLess(values, count) : row;
    }
    /** Tokens that a window took beyond the limit, by a config that counts all, end with the window. */
    async #takeIfLess([name, key]: unknown[], count: number): Promise<any> {
        const [limit, config] = [this.limit as number, this.#configOf(true)];
        const { sender } = this.windows;
        const seen = await sender.row('look', {}, [name, key, config, this.milliseconds]);
        if (!seen.ok) return seen;
        if (usedOf(seen) + count > limit) return denied(seen);
        const row = await sender.row('limit', {}, [name, key, count, false, config]);
        return row.ok && usedOf(row) > limit ? denied(row) : row;
    }

    /** Looks up what a key has used. With FAILS_OPEN and a store that fails open, nothing if it can't be asked. */
    async look(key: string, failsOpen = false): Promise<Counted> {
        const values = [this.name, keyOf(key), this.#config, this.milliseconds];
        const row = await this.windows.sender[failsOpen ? 'decided' : 'row']('look', {}, values);
        const counted = this.#counted(row);
        const rest = Math.max(row.rest ?? 0, 0);
        if (counted.ok && counted.used <= 0) return { ...counted, wait: rest, isOpen: rest > 0 };
        return { ...counted, isOpen: counted.used > 0 || rest > 0 };
    }

    /** Gives back some, for example for a failed request. */
    async giveBack(key: string, count = 1, failsOpen = false): Promise<void> {
        const values = [this.name, keyOf(key), count, null, this.#config];
        await this.windows.sender[failsOpen ? 'decided' : 'row']('credit', {}, values);
    }

    /** UNCHECKED: what was used, if that is not known. */
    #counted(row: any, unchecked = 0): Counted {
        const [ok, used] = [row.ok, row.error ? unchecked : usedOf(row)];
        const wait = row.error ? null : ok ? endOf(row) : row.wait && row.wait * 1000;
        const beyond = isWhole(this.limit) ? this.limit + 1 : Number.MAX_SAFE_INTEGER;
        const rest = { wait: Number(wait ?? this.milliseconds), isEndless: !ok && wait === null, isOpen: true };
        return { ok, used, hits: ok ? used : beyond, ...rest };
    }
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

// The client: limits by their names, as the compiler knows them, in the caller's own transaction.
import { setTimeout as sleep } from 'node:timers/promises';

import { Calls, prefix, type Call } from './calls.cjs';
import type {
    Checked,
    ConfigOf,
    Definitions,
    Duration,
    HoldKind,
    Kind,
    LeaseKind,
    NameOf,
    TokenKind,
} from './config.cjs';
import {
    Hold,
    HoldAll,
    Lease,
    released,
    settled,
    type HoldRow,
    type LeaseCalls,
    type SettleResult,
    type Used,
} from './held.cjs';
import { checked, inTransaction, type Database } from './query.cjs';
import { allOf, date, denial, last, milliseconds, number, resultOf, type AllResult, type Result } from './results.cjs';
import { innermost, type RateLimitError } from './errors.cjs';

/** Who a call counts for. A number stands for its text. */
export type Key = string | number | bigint;

export interface Decision {
    name: string;
    ok: boolean;
    /** Milliseconds; null: none, or never. */
    retryAfter: number | null;
    /** How long the call took. */
    ms: number;
    /** There was no decision, and `ok` is false: the innermost error. */
    error?: Error & { code?: string };
}

export interface RateLimiterOptions {
    /** What runs SQL: of pg, postgres.js, Drizzle, Kysely, Prisma or PGlite, or `{ query(text, values) }`. */
    db?: Database;
    /** Where the limiter is. By default it is looked for: in the search_path, then where the extension or the file is. */
    schema?: string;
    /** `true`: the names are defined in the database, and calls send no configs: see define and sql. */
    defined?: boolean;
    /** Hears of each call that takes, or would have: never of a key. What it throws is ignored. */
    onDecision?: (decision: Decision) => void;
}

interface CallOptions {
    /** The transaction, or what else is to run this call. */
    db?: Database;
}
interface Throws {
    /** `true`: a denial is a RateLimitError. */
    throws?: boolean;
    /** Tries again for at most this number of milliseconds. Not in a transaction. */
    wait?: number;
    /** Ends the wait. */
    signal?: AbortSignal;
}
export interface CheckOptions extends CallOptions {
    /** Tokens. Default: 1. */
    count?: number;
    /** May put the limit into debt; retryAt is when the work may begin. */
    reserve?: boolean;
    /** `true`: a denial is a RateLimitError. */
    throws?: boolean;
}
export interface LimitOptions extends CheckOptions, Throws {}
export interface CreditOptions extends CallOptions {
    /** Tokens that come back. Default: 1. */
    count?: number;
    /** When they were taken: none comes back of a window that has ended since. */
    takenAt?: Date;
}
export interface AcquireOptions extends CallOptions, Throws {
    /** Slots. Default: 1. */
    count?: number;
}
export interface HoldAllOptions extends CallOptions, Throws {
    /** When it expires. Default: 10 minutes. */
    ttl?: Duration;
    /** The hold's id; the same again is the same hold. Default: a random one. */
    id?: string;
    /** What becomes of it if it is not settled. Default: "refund". */
    onExpiry?: 'refund' | 'charge';
}
export interface HoldOptions extends HoldAllOptions {
    /** Tokens, estimated. Default: 1. */
    count?: number;
    /** Holds as many as there are, if at least this number. */
    atLeast?: number;
    reserve?: boolean;
}

type Keyed<C> = C extends { keyed: true } ? { key: Key } : { key?: Key };
type Rest<C, O> = C extends { keyed: true } ? [options: O & { key: Key }] : [options?: O & { key?: Key }];
type Inline<K extends Kind> = { key?: Key; config: ConfigOf<K> };
type Asked = { count?: number; reserve?: boolean };
/** One of several requests: of a limit in the code, or with its config. */
export type LimitRequest<D, K extends Kind = TokenKind> =
    | { [N in NameOf<D, K>]: { name: N; config?: undefined } & Asked & Keyed<D[N]> }[NameOf<D, K>]
    | ({ name: string } & Asked & Inline<K>);

/** What a client needs to compute a limit's answers itself. */
export interface Value {
    config: Record<string, any>;
    /** null: full. */
    state: { value: number; ts: number; [field: string]: any } | null;
    /** Epoch milliseconds, by the database's clock. */
    now: number;
    blockedUntil: number | null;
}

type AnyOptions = Record<string, any>;

export class RateLimiter<const D extends Definitions = {}> {
    readonly definitions: D;
    #db: unknown;
    #schema: string | undefined;
    #defined: boolean;
    #onDecision: ((decision: Decision) => void) | undefined;
    #calls: Calls;

    constructor(definitions: D & Checked<D>, { db, schema, defined = false, onDecision }: RateLimiterOptions = {}) {
        if (typeof definitions !== 'object' || definitions === null) {
            throw new TypeError('the limits of a RateLimiter are an object: their names, and the config of each');
        }
        this.definitions = { ...definitions };
        this.#db = db === undefined ? undefined : checked(db);
        this.#schema = schema;
        this.#defined = defined;
        this.#onDecision = onDecision;
        this.#calls = new Calls(schema);
    }

    /** Takes tokens, in the transaction that `db` is, if any. A denial takes nothing. */
    limit<N extends NameOf<D, TokenKind>>(name: N, ...options: Rest<D[N], LimitOptions>): Promise<Result>;
    limit(name: string, options: LimitOptions & Inline<TokenKind>): Promise<Result>;
    async limit(name: string, options: AnyOptions = {}): Promise<Result> {
        const values = this.#asked(name, options);
        return this.#passing(name, options, async () =>
            resultOf(await this.#heard([name], () => this.#row('limit', options, values))),
        );
    }

    /** What limit would return. Takes nothing. */
    check<N extends NameOf<D, Kind>>(name: N, ...options: Rest<D[N], CheckOptions>): Promise<Result>;
    check(name: string, options: CheckOptions & Inline<Kind>): Promise<Result>;
    async check(name: string, options: AnyOptions = {}): Promise<Result> {
        const values = this.#asked(name, options);
        return this.#passing(name, { ...options, wait: undefined }, async () =>
            resultOf(await this.#row('check', options, values)),
        );
    }

    /** Fills the limit of the key again; false: it was full. */
    reset<N extends NameOf<D, Kind>>(name: N, ...options: Rest<D[N], CallOptions>): Promise<boolean>;
    reset(name: string, options: CallOptions & Inline<Kind>): Promise<boolean>;
    async reset(name: string, options: AnyOptions = {}): Promise<boolean> {
        this.#configOf(name, options);
        return (await this.#row('reset', options, [name, keyOf(options)])).ok;
    }

    /** Gives tokens back that were taken and not used. */
    credit<N extends NameOf<D, HoldKind>>(name: N, ...options: Rest<D[N], CreditOptions>): Promise<Result>;
    credit(name: string, options: CreditOptions & Inline<HoldKind>): Promise<Result>;
    async credit(name: string, options: AnyOptions = {}): Promise<Result> {
        const { count = 1, takenAt } = options;
        const values = [name, keyOf(options), count, takenAt?.toISOString() ?? null, this.#configOf(name, options)];
        return resultOf(await this.#row('credit', options, values));
    }

    /** The limit's config and the key's state: what rl_calculate, and a client, compute answers from. */
    getValue<N extends NameOf<D, Kind>>(name: N, ...options: Rest<D[N], CallOptions>): Promise<Value>;
    getValue(name: string, options: CallOptions & Inline<Kind>): Promise<Value>;
    async getValue(name: string, options: AnyOptions = {}): Promise<Value> {
        const row = await this.#row('value', options, [name, keyOf(options), this.#configOf(name, options)]);
        return JSON.parse(row.value);
    }

    /** Takes tokens from several limits: from all of them, or from none. */
    async limitAll(requests: LimitRequest<D>[], options: CallOptions & Throws = {}): Promise<AllResult> {
        const [names, list] = this.#listOf(requests);
        return this.#passingAll(options, async () =>
            allOf(await this.#heardAll(names, () => this.#rows('limitAll', options, [list]))),
        );
    }

    /** What limitAll would return. Takes nothing. */
    async checkAll(requests: LimitRequest<D>[], options: CallOptions & { throws?: boolean } = {}): Promise<AllResult> {
        const [, list] = this.#listOf(requests);
        const once = { ...options, wait: undefined };
        return this.#passingAll(once, async () => allOf(await this.#rows('checkAll', options, [list])));
    }

    /** Takes slots of a concurrency limit with one lease, which `await using` releases. */
    acquire<N extends NameOf<D, LeaseKind>>(name: N, ...options: Rest<D[N], AcquireOptions>): Promise<Lease>;
    acquire(name: string, options: AcquireOptions & Inline<LeaseKind>): Promise<Lease>;
    async acquire(name: string, options: AnyOptions = {}): Promise<Lease> {
        const { count = 1, config, db } = options;
        const calls: LeaseCalls = {
            extend: (lease) => this.extend(name, lease, { config, db }),
            release: (lease) => this.release(name, lease, { config, db }),
        };
        const values = [name, keyOf(options), count, this.#configOf(name, options)];
        return this.#passing(name, options, async () => {
            const row = await this.#heard([name], () => this.#row('acquire', options, values));
            return new Lease({ ...resultOf(row), lease: row.lease, expiresAt: date(row.expires) }, calls);
        });
    }

    /** Runs the callback while it has a lease, which it then releases. A denial is a RateLimitError. */
    withLease<N extends NameOf<D, LeaseKind>, T>(
        name: N,
        options: AcquireOptions & Keyed<D[N]>,
        run: (lease: Lease) => T | Promise<T>,
    ): Promise<T>;
    withLease<T>(
        name: string,
        options: AcquireOptions & Inline<LeaseKind>,
        run: (lease: Lease) => T | Promise<T>,
    ): Promise<T>;
    async withLease<T>(name: string, options: AnyOptions, run: (lease: Lease) => T | Promise<T>): Promise<T> {
        return released(await this.acquire(name, { ...options, throws: true } as any), run);
    }

    /** Extends a lease by its limit's ttl; null: it has expired, or was released. */
    async extend(
        name: string,
        lease: string | null,
        options: CallOptions & { config?: ConfigOf<LeaseKind> } = {},
    ): Promise<Date | null> {
        return date((await this.#row('extend', options, [lease, this.#configOf(name, options)])).expires);
    }

    /** Frees the slots of a lease; false: it has expired, or was released before. */
    async release(
        name: string,
        lease: string | null,
        options: CallOptions & { config?: ConfigOf<LeaseKind> } = {},
    ): Promise<boolean> {
        return (await this.#row('release', options, [lease, this.#configOf(name, options)])).ok;
    }

    /** Takes an estimate now, of which settle gives back what was not used. */
    hold<N extends NameOf<D, HoldKind>>(name: N, ...options: Rest<D[N], HoldOptions>): Promise<Hold>;
    hold(name: string, options: HoldOptions & Inline<HoldKind>): Promise<Hold>;
    async hold(name: string, options: AnyOptions = {}): Promise<Hold> {
        const { count = 1, ttl, id = null, atLeast = null, onExpiry = null, reserve = false, db } = options;
        const asked = [name, keyOf(options), count, interval(ttl)];
        const values = [...asked, id, atLeast, onExpiry, reserve, this.#configOf(name, options)];
        return this.#passing(name, options, async () => {
            const row = await this.#heard([name], () => this.#row('hold', options, values));
            return new Hold({ ...resultOf(row), ...holdOf(row) }, (hold, used) => this.settle(hold, used, { db }));
        });
    }

    /** Gives back what a hold did not use, or takes what was used beyond it. `ok`: it was not settled before. */
    async settle(hold: string | null, used?: number, options: CallOptions = {}): Promise<Result> {
        return resultOf(await this.#row('settle', options, [hold, used ?? null]));
    }

    /**
     * Runs the callback while it holds tokens, then settles what it says was used: `hold.used`, or else all. If it
     * throws: `hold.used`, or else nothing. A denial is a RateLimitError.
     */
    withHold<N extends NameOf<D, HoldKind>, T>(
        name: N,
        options: HoldOptions & Keyed<D[N]>,
        run: (hold: Hold) => T | Promise<T>,
    ): Promise<T>;
    withHold<T>(name: string, options: HoldOptions & Inline<HoldKind>, run: (hold: Hold) => T | Promise<T>): Promise<T>;
    async withHold<T>(name: string, options: AnyOptions, run: (hold: Hold) => T | Promise<T>): Promise<T> {
        return settled(await this.hold(name, { ...options, throws: true } as any), run);
    }

    /** Holds tokens of several limits: of all of them, or of none. */
    async holdAll(
        requests: LimitRequest<D, HoldKind | 'concurrency'>[],
        options: HoldAllOptions = {},
    ): Promise<HoldAll> {
        const { ttl, id = null, onExpiry = null, db } = options;
        const [names, list] = this.#listOf(requests);
        const values = [list, interval(ttl), id, onExpiry];
        return this.#passingAll(options, async () => {
            const rows = await this.#heardAll(names, () => this.#rows('holdAll', options, values));
            const all = allOf(rows);
            const results = all.results.map((result, n) => ({ ...result, ...holdOf(rows[n]) }));
            return new HoldAll(all, results, (hold, used) => this.settleAll(hold, used, { db }));
        });
    }

    /** Settles each limit of a hold: with what was used of it, or with all of what `used` does not name. */
    async settleAll(hold: string | null, used?: Used, options: CallOptions = {}): Promise<SettleResult[]> {
        const rows = await this.#rows('settleAll', options, [hold, used === undefined ? null : JSON.stringify(used)]);
        return rows.map((row) => {
            const { ok, ...rest } = resultOf(row);
            return { name: row.name, key: row.key, ...rest };
        });
    }

    /** The same as withHold, of several limits. */
    async withHoldAll<T>(
        requests: LimitRequest<D, HoldKind | 'concurrency'>[],
        options: HoldAllOptions,
        run: (hold: HoldAll) => T | Promise<T>,
    ): Promise<T> {
        return settled(await this.holdAll(requests, { ...options, throws: true }), run);
    }

    /** Defines the limits in the database, where they differ; returns the names of those. Undefines none. */
    async define({ db }: CallOptions = {}): Promise<string[]> {
        return (await this.#rows('define', { db }, [JSON.stringify(this.definitions)])).map(({ name }) => name);
    }

    /** The same as SQL, for a migration. */
    sql(): string {
        const place = this.#schema === undefined ? '' : prefix(this.#schema);
        const literal = (text: string) => `'${text.replaceAll("'", "''")}'`;
        const line = ([name, config]: [string, unknown]) =>
            `SELECT ${place}rl_define(${literal(name)}, ${literal(JSON.stringify(config))});\n`;
        return Object.entries(this.definitions).map(line).join('');
    }

    // From here on: what the calls have in common.

    #of(options: AnyOptions): any {
        if (options.db !== undefined) return checked(options.db);
        if (this.#db !== undefined) return this.#db;
        throw new TypeError('nothing runs SQL: pass db to RateLimiter, or with the call');
    }

    #rows(call: Call, options: AnyOptions, values: unknown[]): Promise<any[]> {
        return this.#calls.rows(this.#of(options), call, values);
    }
    #row(call: Call, options: AnyOptions, values: unknown[]): Promise<any> {
        return this.#calls.row(this.#of(options), call, values);
    }

    /** The config that a call sends, as JSON; null: none. Throws a TypeError for a name that is nowhere. */
    #configOf(name: string, { config }: AnyOptions): string | null {
        if (config !== undefined && config !== null) return JSON.stringify(config);
        if (!Object.hasOwn(this.definitions, name)) {
            const names = Object.keys(this.definitions).map((each) => JSON.stringify(each));
            throw new TypeError(
                `there is no limit ${JSON.stringify(name)}; there are ${names.join(', ') || 'none'}; another needs its config in the call`,
            );
        }
        return this.#defined ? null : JSON.stringify(this.definitions[name]);
    }

    /** The names of requests, and the requests as JSON. */
    #listOf(requests: unknown): [string[], string] {
        if (!Array.isArray(requests)) throw new TypeError('the requests are a list of { name, key, count }');
        const list = requests.map(({ name, key, count, reserve, config }) => {
            const sent = this.#configOf(name, { config });
            return { name, key: keyOf({ key }), count, reserve, config: sent === null ? undefined : JSON.parse(sent) };
        });
        return [list.map(({ name }) => name), JSON.stringify(list)];
    }

    #asked(name: string, options: AnyOptions): unknown[] {
        const { count = 1, reserve = false } = options;
        return [name, keyOf(options), count, reserve, this.#configOf(name, options)];
    }

    async #heard(names: string[], run: () => Promise<any>): Promise<any> {
        return (await this.#heardAll(names, async () => [await run()]))[0];
    }

    /** Reports what is decided to onDecision. Where several are denied together: those that deny. */
    async #heardAll(names: string[], run: () => Promise<any[]>): Promise<any[]> {
        const began = performance.now();
        const report = (name: string, ok: boolean, retryAfter: number | null, error?: Error) => {
            if (!this.#onDecision) return;
            const decision: Decision = { name, ok, retryAfter, ms: performance.now() - began };
            if (error !== undefined) decision.error = error;
            quietly(() => this.#onDecision?.(decision));
        };
        let rows: any[];
        try {
            rows = await run();
        } catch (error) {
            for (const name of new Set(names)) report(name, false, null, innermost(error));
            throw error;
        }
        rows.forEach((row, n) => {
            if (row.ok || row.allows !== true) report(names[n], row.ok, milliseconds(row.wait));
        });
        return rows;
    }

    #passing<R extends Pick<Result, 'ok' | 'retryAfter' | 'retryAt'>>(
        name: string,
        options: AnyOptions,
        attempt: () => Promise<R>,
    ): Promise<R> {
        return this.#patiently(options, attempt, (result) => denial(name, result));
    }

    #passingAll<R extends Pick<AllResult, 'ok' | 'retryAfter' | 'results'>>(
        options: AnyOptions,
        attempt: () => Promise<R>,
    ): Promise<R> {
        return this.#patiently(options, attempt, ({ results }) => {
            const it = last(results);
            return denial(it.name, it);
        });
    }

    /** The answer of an attempt; of others after it, as long as that may take; or its denial as an error. */
    async #patiently<R extends { ok: boolean; retryAfter: number | null }>(
        options: AnyOptions,
        attempt: () => Promise<R>,
        error: (result: R) => RateLimitError,
    ): Promise<R> {
        const { wait = 0, throws = false, signal } = options;
        if (!(wait >= 0)) throw new TypeError(`wait is ${wait}; allowed: milliseconds`);
        if (wait > 0 && inTransaction(this.#of(options)))
            throw new TypeError('wait would keep the transaction open: wait outside of it');
        const until = performance.now() + wait;
        for (;;) {
            const result = await attempt();
            if (result.ok) return result;
            const left = until - performance.now();
            if (result.retryAfter === null || result.retryAfter > left) {
                if (throws) throw error(result);
                return result;
            }
            await sleep(spread(result.retryAfter, left), undefined, { signal });
        }
    }
}

/** A wait, and up to a tenth more, so that those who wait for the same moment do not come back at once. */
function spread(wait: number, most: number): number {
    const jitter = Math.random() * Math.max(wait / 10, 20);
    return Math.min(wait + jitter, most, 2 ** 31 - 1);
}

function keyOf({ key }: AnyOptions): string {
    if (key === undefined) return '';
    const isNumber = typeof key === 'bigint' || Number.isFinite(key);
    if (typeof key === 'string' || isNumber) return String(key);
    throw new TypeError(
        `key is ${key === null ? 'null' : typeof key}; allowed: a text or a number; without a key all share the limit`,
    );
}

const interval = (ttl: unknown): string | null =>
    ttl === undefined ? null : typeof ttl === 'number' ? `${ttl} milliseconds` : String(ttl);
const holdOf = (row: any): HoldRow => ({ hold: row.hold, held: number(row.held), expiresAt: date(row.expires) });

/** Runs what may neither throw nor reject. */
function quietly(run: () => unknown): void {
    try {
        Promise.resolve(run()).catch(() => {});
    } catch {
        // It is for logs.
    }
}

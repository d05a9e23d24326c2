// The client: limits by name, known to the compiler, in the caller's own transaction.
import { setTimeout as sleep } from 'node:timers/promises';

import { lends } from '../../facts.json';
import { Batch, type Request } from './batch';
import type { Value } from './calculate';
import { Calls, prefix, requestOf, type Call, type HeaderStyle } from './calls';
import type { Checked, ConfigOf, Definitions, Duration, HoldKind, Kind, LeaseKind, NameOf, TokenKind } from './config';
import {
    Hold,
    HoldAll,
    Lease,
    released,
    settled,
    warnUnsettled,
    type HoldAllRow,
    type HoldRow,
    type LeaseCalls,
    type Otherwise,
    type Unsettled,
    type Used,
} from './held';
import { Borrowed, type BorrowOptions } from './borrowed';
import { Denials, idOf, Question, type RememberDenials } from './denials';
import { Lines } from './lines';
import { checkedFailing, ignore, isNotNow, quietly, type OnError } from './failing';
import { checked, inTransaction, isLender, type Database } from './query';
import {
    allOf,
    date,
    denial,
    denying,
    denyingRows,
    milliseconds,
    number,
    resultOf,
    tokensOf,
    type AllResult,
    type LimitedBy,
    type Result,
    type SettleResult,
} from './results';
import { innermost, type RateLimitError } from './errors';

/** The identity that a call counts for. A number is the same as its text. */
export type Key = string | number | bigint;

export interface Decision {
    name: string;
    ok: boolean;
    /** Milliseconds; null: no wait, or never. */
    retryAfter: number | null;
    /** As of Result; null after an error. */
    limitedBy: LimitedBy | null;
    /** The duration of the call. */
    ms: number;
    /** A denial that this process has remembered. */
    remembered?: true;
    /** Without a decision: the innermost error. `ok` is true if the call failed open. */
    error?: Error & { code?: string };
}

export interface RateLimiterOptions {
    /**
     * The connections that run SQL: of pg, postgres.js, Drizzle, Kysely, Prisma or PGlite, or `{ query(text, values)
     * }`.
     */
    db?: Database | undefined;
    /** The schema of the limiter. Default: looked up in the search_path, or else that of the extension or the file. */
    schema?: string | undefined;
    /** `true`: the names are defined in the database, and calls send no configs: see define and sql. */
    defined?: boolean | undefined;
    /**
     * What to do if a call can't be decided: no server answers, it is full or a standby, or the call timed out. "open":
     * the call is allowed, and its result has the error. Default: "closed", the error. Denials, mistakes and refused
     * logins are errors with both, and so are all errors in a transaction.
     */
    onError?: OnError | undefined;
    /**
     * The milliseconds after which a statement ends with an error, outside transactions: to get a connection, and the
     * answer. Default: none; 5000 with onError "open".
     */
    timeout?: number | undefined;
    /**
     * Prepares statements, on a Pool of pg, and on postgres.js as that has been set. Not in a transaction, nor on a
     * client. If a pooler refuses them, they go unprepared. Default: true.
     */
    prepare?: boolean | undefined;
    /**
     * On a Pool of pg or postgres.js, calls of limit that come while a statement is under way go together in the next
     * one, by rl_limit_each. Not with the `db` of a call. Default: true.
     */
    batch?: boolean | undefined;
    /**
     * Answers a denied key without the database: until it can pass, and for at most a second, or `atMost`. Remembers
     * `max` denials of limit, check, limitAll and checkAll. Default: false.
     */
    rememberDenials?: boolean | RememberDenials | undefined;
    /** Called for each call that takes, or would have; never gets a key. Its errors are ignored. */
    onDecision?: ((decision: Decision) => void) | undefined;
    /**
     * Called with a hold that a callback or a block has left, and that was not settled by the actual use: either the
     * use was not a number of tokens, so that everything held counts, or the database failed. Default: a warning.
     */
    onUnsettled?: ((unsettled: Unsettled) => void) | undefined;
}

interface CallOptions {
    /** The transaction, or another connection, that runs this call. */
    db?: Database | undefined;
}
interface Asks extends CallOptions {
    /** What to do if this call can't be decided. Not with `db`, because an error aborts its transaction. */
    onError?: OnError | undefined;
}
interface Throws {
    /** `true`: a denial is a RateLimitError. */
    throws?: boolean | undefined;
    /** Tries again for at most this number of milliseconds. Not in a transaction. */
    wait?: number | undefined;
    /** Ends the wait, including that of a reservation. */
    signal?: AbortSignal | undefined;
}
export interface CheckAllOptions extends Asks {
    /** `true`: a denial is a RateLimitError. */
    throws?: boolean | undefined;
    /** Adds these HTTP headers to the result, by rl_headers or rl_headers_all, on which the role needs EXECUTE. */
    headers?: HeaderStyle | undefined;
}
export interface LimitAllOptions extends CheckAllOptions, Throws {}
export interface CheckOptions extends CheckAllOptions {
    /** Tokens. Default: 1. */
    count?: number | undefined;
    /** May put the limit into debt; retryAt is the time when the work may begin. */
    reserve?: boolean | undefined;
}
export interface LimitOptions extends CheckOptions, Throws {}
export interface PruneOptions extends CallOptions {
    /** About how many rows to delete. Default: 10,000. */
    maxRows?: number | undefined;
    /** Also rows of limits that aren't defined, if unused for this time, in milliseconds. */
    undefinedIdle?: number | undefined;
}
export interface CreditOptions extends CallOptions {
    /** Tokens that come back. Default: 1. */
    count?: number | undefined;
    /** The time when they were taken: tokens of a window that has ended don't come back. */
    takenAt?: Date | undefined;
}
export interface AcquireOptions extends Asks, Throws {
    /** Slots. Default: 1. */
    count?: number | undefined;
}
export interface HoldAllOptions extends Asks, Throws {
    /** The time until it expires. Default: 10 minutes. */
    ttl?: Duration | undefined;
    /** The hold's id; the id of an existing hold means the same hold. Default: a random one. */
    id?: string | undefined;
    /** What to do with its tokens if it is not settled. Default: "refund". */
    onExpiry?: Otherwise | undefined;
    /**
     * What to do with its tokens if the callback throws, and at the end of `await using`, which can't know of an error,
     * unless it was settled or `used` was set. Default: "refund".
     */
    onException?: Otherwise | undefined;
}
export interface HoldOptions extends HoldAllOptions {
    /** Estimated tokens. Default: 1. */
    count?: number | undefined;
    /** Holds as many tokens as there are, if at least this number. */
    atLeast?: number | undefined;
    reserve?: boolean | undefined;
}

export type Keyed<C> = C extends { keyed: true } ? { key: Key } : { key?: Key };
type Rest<C, O> = C extends { keyed: true } ? [options: O & { key: Key }] : [options?: O & { key?: Key }];
export type Inline<K extends Kind> = { key?: Key; config: ConfigOf<K> };
type Asked = { count?: number | undefined; reserve?: boolean | undefined };
/** One of several requests: for a limit in the code, or with its config. */
export type LimitRequest<D, K extends Kind = TokenKind> =
    | { [N in NameOf<D, K>]: { name: N; config?: undefined } & Asked & Keyed<D[N]> }[NameOf<D, K>]
    | ({ name: string } & Asked & Inline<K>);

type HoldRequests<D> = LimitRequest<D, HoldKind | 'concurrency'>[];

/** Calls that take, which onDecision hears; and calls after which remembered denials no longer hold. */
const TAKES: Call[] = ['limit', 'limitAll', 'take', 'acquire', 'hold', 'holdAll'];
const FORGETS: Call[] = ['reset', 'credit', 'define', 'resetKeys', 'unblock'];

/** Of a pool: those of limiters with the same schema and statements. */
const BATCHES = new WeakMap<object, Map<string, Batch>>();

type AnyOptions = Record<string, any>;
/** Marks the options of a call that takes no more than it has: onDecision is not called. */
const EXTENDS = Symbol('extends');
/** A request of several. */
interface Sent {
    name: string;
    key: string;
    count?: number;
    config?: { kind: Kind };
}
/** The slots that a call waits for, which may be released at any time: its id, and whether they alone deny it. */
interface Slots<R> {
    id: string;
    denies(result: R): boolean;
}
/** The milliseconds after which a caller that waits for slots checks again. */
const LOOK = 250;

const OPEN_WITH_DB =
    'onError is "open" in a call with db: an error aborts its transaction, so nothing can be allowed in it; pass one of them';

/** How a store asks its limiter, defined in this module. VALUES begin with the name and the key. */
export let ofStore: {
    /** The row of a statement. */
    row(limiter: RateLimiter<any>, call: Call, values: unknown[], options: AnyOptions): Promise<any>;
    /** The row that RUN returns for a call; if it fails open, one with its error. */
    decided(limiter: RateLimiter<any>, call: Call, values: unknown[], run: () => Promise<any>): Promise<any>;
};

export class RateLimiter<const D extends Definitions = {}> {
    static {
        ofStore = {
            row: (limiter, call, values, options) => limiter.#row(call, options, values),
            async decided(limiter, call, values, run) {
                const [name, key, count] = values as [string, string, number];
                const one = async () => [await run()];
                return (await limiter.#heard(call, [{ name, key, count }], {}, values, one))[0];
            },
        };
    }

    readonly definitions: D;
    #db: unknown;
    #schema: string | undefined;
    #defined: boolean;
    #onError: OnError;
    #timeout: number | undefined;
    #denials: Denials | undefined;
    #onDecision: ((decision: Decision) => void) | undefined;
    #onUnsettled: (unsettled: Unsettled) => void;
    #calls: Calls;
    #prepare: boolean;
    /** The calls that go together. */
    #batch: Batch | undefined;
    #lines = new Lines();

    constructor(definitions: D & Checked<D>, options: RateLimiterOptions = {}) {
        const { db, schema, defined = false, onError = 'closed', timeout, onDecision } = options;
        const { onUnsettled = warnUnsettled } = options;
        if (typeof definitions !== 'object' || definitions === null) {
            throw new TypeError('the limits of a RateLimiter are an object: their names, and the config of each');
        }
        this.definitions = { ...definitions };
        this.#db = db === undefined ? undefined : checked(db);
        this.#schema = schema;
        this.#defined = defined;
        checkedFailing(options);
        this.#onError = onError;
        this.#timeout = timeout;
        this.#denials = Denials.of(options.rememberDenials);
        this.#onDecision = onDecision;
        this.#onUnsettled = onUnsettled;
        this.#calls = new Calls(schema);
        const { prepare = true, batch = true } = options;
        for (const [option, is] of Object.entries({ prepare, batch }))
            if (typeof is !== 'boolean') throw new TypeError(`${option} is ${is}; allowed: true, false`);
        this.#prepare = prepare;
        if (batch && db !== undefined && isLender(db)) this.#batch = this.#batchOf(db, `${prepare} ${schema}`);
    }

    /** The limiters of a pool have one. */
    #batchOf(db: any, like: string): Batch {
        const batches = BATCHES.get(db) ?? new Map<string, Batch>();
        BATCHES.set(db, batches);
        const [calls, prepare] = [this.#calls, this.#prepare];
        const send = (requests: Request[], timeout?: number) => calls.each(db, requests, { timeout, prepare });
        const batch = batches.get(like) ?? new Batch({ send, fate: (error) => calls.fate(error) }, db.options?.max ?? 10);
        batches.set(like, batch);
        return batch;
    }

    /** Takes tokens, in the transaction `db` if given. A denial takes nothing. */
    limit<N extends NameOf<D, TokenKind>>(name: N, ...options: Rest<D[N], LimitOptions>): Promise<Result>;
    limit(name: string, options: LimitOptions & Inline<TokenKind>): Promise<Result>;
    async limit(name: string, options: AnyOptions = {}): Promise<Result> {
        const values = this.#asked(name, options);
        return this.#passing(name, options, async () => resultOf(await this.#decided('limit', options, values)));
    }

    /** The result that limit would return. Takes nothing. */
    check<N extends NameOf<D, Kind>>(name: N, ...options: Rest<D[N], CheckOptions>): Promise<Result>;
    check(name: string, options: CheckOptions & Inline<Kind>): Promise<Result>;
    async check(name: string, options: AnyOptions = {}): Promise<Result> {
        const values = this.#asked(name, options);
        const once = { ...options, wait: undefined };
        return this.#passing(name, once, async () => resultOf(await this.#decided('check', options, values)));
    }

    /** Fills the limit of the key again; false: it was full. */
    reset<N extends NameOf<D, Kind>>(name: N, ...options: Rest<D[N], CallOptions>): Promise<boolean>;
    reset(name: string, options: CallOptions & Inline<Kind>): Promise<boolean>;
    async reset(name: string, options: AnyOptions = {}): Promise<boolean> {
        this.#configOf(name, options);
        return (await this.#row('reset', options, [name, keyOf(options)])).ok;
    }

    /** Gives back tokens that were taken and not used. */
    credit<N extends NameOf<D, HoldKind>>(name: N, ...options: Rest<D[N], CreditOptions>): Promise<Result>;
    credit(name: string, options: CreditOptions & Inline<HoldKind>): Promise<Result>;
    async credit(name: string, options: AnyOptions = {}): Promise<Result> {
        const { count = 1, takenAt } = options;
        const values = [name, keyOf(options), count, takenAt?.toISOString() ?? null, this.#configOf(name, options)];
        return resultOf(await this.#row('credit', options, values));
    }

    /** The limit's config and the key's state: rl_calculate, or a client, computes answers from them. */
    getValue<N extends NameOf<D, Kind>>(name: N, ...options: Rest<D[N], CallOptions>): Promise<Value>;
    getValue(name: string, options: CallOptions & Inline<Kind>): Promise<Value>;
    async getValue(name: string, options: AnyOptions = {}): Promise<Value> {
        const row = await this.#row('value', options, [name, keyOf(options), this.#configOf(name, options)]);
        return JSON.parse(row.value);
    }

    /** Takes tokens from several limits: from all of them, or from none. */
    async limitAll(requests: LimitRequest<D>[], options: LimitAllOptions = {}): Promise<AllResult> {
        const list = this.#listOf(requests);
        return this.#passingAll(options, async () => allOf(await this.#decidedAll('limitAll', list, options)));
    }

    /** The result that limitAll would return. Takes nothing. */
    async checkAll(requests: LimitRequest<D>[], options: CheckAllOptions = {}): Promise<AllResult> {
        const list = this.#listOf(requests);
        const once = { ...options, wait: undefined };
        return this.#passingAll(once, async () => allOf(await this.#decidedAll('checkAll', list, options)));
    }

    /**
     * Takes of this limit that need no round trip: the process takes batches, and spends them in memory. They are taken
     * outside any transaction, so a rollback returns nothing.
     */
    borrow<N extends NameOf<D, HoldKind>>(name: N, options?: BorrowOptions & Pick<Asks, 'onError'>): Borrowed<D[N]>;
    borrow<C extends ConfigOf<HoldKind>>(
        name: string,
        options: BorrowOptions & Pick<Asks, 'onError'> & { config: C },
    ): Borrowed<C>;
    borrow(name: string, options: AnyOptions = {}): Borrowed<any> {
        const { config, onError } = options;
        const sent = this.#configOf(name, options);
        const kind = (config ?? this.definitions[name]).kind;
        if (!lends.includes(kind)) throw new TypeError(`${kind} can't be borrowed; allowed: ${lends.join(', ')}`);
        checkedFailing({ onError });
        const checkApart = () => {
            if (inTransaction(this.#of({})))
                throw new TypeError('db is in a transaction, whose rollback would undo what is borrowed and returned');
        };
        return new Borrowed(options, {
            keyOf,
            take: async (key, atLeast, atMost) => {
                checkApart();
                return this.#decided('take', { onError }, [name, key, atLeast, sent, atMost]);
            },
            giveBack: async (key, count, takenAt) => {
                checkApart();
                return this.credit(name, { key, count, takenAt, config } as any);
            },
            patiently: (asked, attempt) => this.#passing(name, asked, attempt),
        });
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
        const acquire = async () => {
            const row = await this.#decided('acquire', options, values);
            const { headers, ...result } = resultOf(row);
            return new Lease({ ...result, id: row.lease ?? null, expiresAt: date(row.expires) }, calls);
        };
        const slots = { id: JSON.stringify(values), denies: () => true };
        return this.#passing(name, options, acquire, slots);
    }

    /** Runs the callback with a lease, and then releases it. A denial is a RateLimitError. */
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
        const lease = await this.acquire(name, { ...options, throws: true } as any);
        return released(lease, run, (error) => this.#opens(options, error));
    }

    /** Extends a lease by its limit's ttl; null: it has expired, or was released. */
    async extend(
        name: string,
        lease: string | null,
        options: CallOptions & { config?: ConfigOf<LeaseKind> | undefined } = {},
    ): Promise<Date | null> {
        return date((await this.#row('extend', options, [lease, this.#configOf(name, options)])).expires);
    }

    /** Frees the slots of a lease; false: it has expired, or was released before. */
    async release(
        name: string,
        lease: string | null,
        options: CallOptions & { config?: ConfigOf<LeaseKind> | undefined } = {},
    ): Promise<boolean> {
        return (await this.#row('release', options, [lease, this.#configOf(name, options)])).ok;
    }

    /** Takes an estimate now; settle gives back the unused tokens. */
    hold<N extends NameOf<D, HoldKind>>(name: N, ...options: Rest<D[N], HoldOptions>): Promise<Hold>;
    hold(name: string, options: HoldOptions & Inline<HoldKind>): Promise<Hold>;
    async hold(name: string, options: AnyOptions = {}): Promise<Hold> {
        const { count = 1, ttl, id = null, atLeast = null, onExpiry = null, reserve = false, db } = options;
        const { onException = 'refund', onError } = options;
        checkedOtherwise(onException);
        const [key, config] = [keyOf(options), this.#configOf(name, options)];
        const ask = async (asked: AnyOptions, count: number, id: string | null, atLeast: number | null) => {
            const values = [name, key, count, interval(ttl), id, atLeast, onExpiry, reserve, config];
            return holdOf(await this.#decided('hold', asked, values));
        };
        return this.#passing(name, options, async () => {
            const hold: Hold = new Hold(await ask(options, count, id, atLeast), {
                settle: (id, used) => this.settle(id, used, { db }),
                again: (id, more) => ask(extending({ db, onError }, more), more ?? hold.held!, id, null),
                unsettled: this.#onUnsettled,
                onException,
            });
            return hold;
        });
    }

    /** Gives back the unused tokens of a hold, or takes those used beyond it. `ok`: it was not settled before. */
    async settle(hold: string | null, used?: number, options: CallOptions = {}): Promise<Result> {
        return resultOf(await this.#row('settle', options, [hold, used ?? null]));
    }

    /**
     * Runs the callback while it holds tokens, then settles `hold.used`, or else everything held. If it throws:
     * `hold.used`, or else as `onException` says. A denial is a RateLimitError. With `reserve` it waits until the work
     * may begin; `signal` ends that, and gives the tokens back.
     */
    withHold<N extends NameOf<D, HoldKind>, T>(
        name: N,
        options: HoldOptions & Keyed<D[N]>,
        run: (hold: Hold) => T | Promise<T>,
    ): Promise<T>;
    withHold<T>(name: string, options: HoldOptions & Inline<HoldKind>, run: (hold: Hold) => T | Promise<T>): Promise<T>;
    async withHold<T>(name: string, options: AnyOptions, run: (hold: Hold) => T | Promise<T>): Promise<T> {
        const hold = await this.hold(name, { ...options, throws: true } as any);
        const begun = async () => {
            await begins(hold, [hold], options.signal);
            return run(hold);
        };
        return settled(hold, begun, (error) => this.#opens(options, error));
    }

    /** Holds tokens of several limits: of all of them, or of none. An exempt caller has no requests. */
    async holdAll(
        requests: HoldRequests<D>,
        options: HoldAllOptions = {},
    ): Promise<HoldAll<HoldRequests<D>>> {
        const { ttl, id = null, onExpiry = null, onException = 'refund', onError, db } = options;
        checkedOtherwise(onException);
        const list = this.#listOf(requests);
        const ask = async (asked: AnyOptions, list: Sent[], id: string | null) => {
            const values = [interval(ttl), id, onExpiry];
            return holdAllOf(await this.#decidedAll('holdAll', list, asked, values));
        };
        const hold = async () =>
            new HoldAll<HoldRequests<D>>(list.length === 0 ? holdAllOf([]) : await ask(options, list, id), {
                settle: (id, used) => this.settleAll(id, used, { db }),
                again: async (id, more) =>
                    ask(extending({ db, onError }, more), more === undefined ? list : this.#listOf(more), id),
                unsettled: this.#onUnsettled,
                onException,
            });
        const isOfSlots = ({ name, config = this.definitions[name] }: Sent) => config?.kind === 'concurrency';
        const slots: Slots<HoldAll> = {
            id: JSON.stringify(list),
            denies: ({ results }) =>
                denying(results).every((each) => isOfSlots(list[results.indexOf(each)])),
        };
        return this.#passingAll(options, hold, list.some(isOfSlots) ? slots : undefined);
    }

    /** Settles each limit of a hold: by its use, or everything held for limits that `used` does not name. */
    async settleAll(hold: string | null, used?: Used, options: CallOptions = {}): Promise<SettleResult[]> {
        const rows = await this.#rows('settleAll', options, [hold, used === undefined ? null : JSON.stringify(used)]);
        return rows.map((row) => ({ name: row.name, key: row.key, ...tokensOf(row) }));
    }

    /** The same as withHold, for several limits. */
    async withHoldAll<T>(
        requests: HoldRequests<D>,
        options: HoldAllOptions,
        run: (hold: HoldAll<HoldRequests<D>>) => T | Promise<T>,
    ): Promise<T> {
        const hold = await this.holdAll(requests, { ...options, throws: true });
        const begun = async () => {
            await begins(hold, hold.results, options.signal);
            return run(hold);
        };
        return settled(hold, begun, (error) => this.#opens(options, error));
    }

    /** Defines the limits in the database that differ; returns their names. Undefines none. */
    async define({ db }: CallOptions = {}): Promise<string[]> {
        return (await this.#rows('define', { db }, [JSON.stringify(this.definitions)])).map(({ name }) => name);
    }

    /**
     * Deletes a batch of rows that no result depends on, and gives back what has expired; resolves to the number of rows.
     */
    async prune({ maxRows = 10_000, undefinedIdle, db }: PruneOptions = {}): Promise<number> {
        return (await this.#rows('prune', { db }, [maxRows, undefinedIdle ?? null]))[0].rows;
    }

    /** The limits' definitions as SQL, for a migration. */
    sql(): string {
        const place = this.#schema === undefined ? '' : prefix(this.#schema);
        const literal = (text: string) => `'${text.replaceAll("'", "''")}'`;
        const line = ([name, config]: [string, unknown]) =>
            `SELECT ${place}rl_define(${literal(name)}, ${literal(JSON.stringify(config))});\n`;
        return Object.entries(this.definitions).map(line).join('');
    }

    // From here on: shared parts of the calls.

    #of(options: AnyOptions): any {
        if (options.db !== undefined) return checked(options.db);
        if (this.#db !== undefined) return this.#db;
        throw new TypeError('nothing runs SQL: pass db to RateLimiter, or with the call');
    }

    async #rows(call: Call, options: AnyOptions, values: unknown[]): Promise<any[]> {
        const db = this.#of(options);
        // In a transaction the statement would continue, and the next one wait for it.
        const isOwn = options.db === undefined && !inTransaction(db);
        const { onError = this.#onError } = options;
        const timeout = this.#timeout ?? (onError === 'open' ? 5000 : undefined);
        const prepare = this.#prepare && options.db === undefined;
        const send = (timeout?: number) => this.#calls.rows(db, call, values, { timeout, prepare }, options.headers);
        if (this.#batch && call === 'limit' && options.db === undefined) {
            const request = () => requestOf(values, options.headers);
            return this.#batch.join({ request, alone: send }, timeout, options.signal);
        }
        const run = () => send(isOwn ? timeout : undefined);
        if (!this.#denials || !FORGETS.includes(call)) return run();
        const ofAll = call === 'define' || call === 'resetKeys';
        return this.#denials.forgetting(ofAll ? undefined : idOf(values[0] as string, values[1] as string), run);
    }
    async #row(call: Call, options: AnyOptions, values: unknown[]): Promise<any> {
        return (await this.#rows(call, options, values))[0];
    }

    /** Whether a call that failed with this error is allowed. Not in a transaction, which the error has aborted. */
    #opens({ db, onError = this.#onError }: AnyOptions, error: unknown): boolean {
        return db === undefined && onError === 'open' && isNotNow(error) && !inTransaction(this.#db);
    }

    /** The config that a call sends, as JSON; null: none. Throws a TypeError for an unknown name. */
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

    /** The requests in the form in which they are sent. */
    #listOf(requests: unknown): Sent[] {
        if (!Array.isArray(requests)) throw new TypeError('the requests are a list of { name, key, count }');
        return requests.map((request) => {
            const { name, count, reserve, config } = request;
            const sent = this.#configOf(name, { config });
            return { name, key: keyOf(request), count, reserve, config: sent === null ? undefined : JSON.parse(sent) };
        });
    }

    #asked(name: string, options: AnyOptions): unknown[] {
        const { count = 1, reserve = false } = options;
        return [name, keyOf(options), count, reserve, this.#configOf(name, options)];
    }

    /** The row of a call that decides on one limit. */
    async #decided(call: Call, options: AnyOptions, values: unknown[]): Promise<any> {
        const [name, key, count] = values as [string, string, number];
        return (await this.#heard(call, [{ name, key, count }], options, values))[0];
    }
    #decidedAll(call: Call, list: Sent[], options: AnyOptions, values: unknown[] = []): Promise<any[]> {
        return this.#heard(call, list, options, [JSON.stringify(list), ...values]);
    }

    /**
     * The rows of a deciding call, by RUN; if it fails open, rows in their place. Reports the decision to onDecision if
     * the call takes. If several are denied together: the denying ones.
     */
    async #heard(
        call: Call,
        list: Sent[],
        options: AnyOptions,
        values: unknown[],
        run = () => this.#rows(call, options, values),
    ): Promise<any[]> {
        checkedFailing({ onError: options.onError });
        if (options.onError === 'open' && options.db !== undefined) throw new TypeError(OPEN_WITH_DB);
        const asked = this.#asking(call, options, values);
        const began = performance.now();
        const report = (name: string, ok: boolean, row: any, more: Partial<Decision> = {}) => {
            if (!this.#onDecision || !TAKES.includes(call) || EXTENDS in options) return;
            const [retryAfter, limitedBy] = [milliseconds(row.wait), row.limited ?? null];
            const decision: Decision = { name, ok, retryAfter, limitedBy, ms: performance.now() - began, ...more };
            quietly(() => this.#onDecision?.(decision));
        };
        const known = asked && this.#denials?.known(asked);
        let rows: any[];
        try {
            rows = known ?? (await run());
        } catch (outer) {
            const [ok, error] = [this.#opens(options, outer), innermost(outer)];
            for (const name of new Set(list.map(({ name }) => name))) report(name, ok, {}, { error });
            if (!ok) throw outer;
            return list.map(({ name, key, count = 1 }) => ({ name, key, ok, held: count, error }));
        }
        if (asked && !known) this.#denials?.learn(asked, rows);
        const deny = denyingRows(rows);
        rows.forEach((row, n) => {
            if (row.ok || deny.includes(row)) report(list[n].name, row.ok, row, known && { remembered: true });
        });
        return rows;
    }

    /** A call with a denial that may be remembered. In a transaction others don't see its denials. */
    #asking(call: Call, options: AnyOptions, values: unknown[]): Question | undefined {
        if (!this.#denials || options.db !== undefined || inTransaction(this.#of(options))) return undefined;
        const [name, key, count, ...config] = values as [string, string, number, ...unknown[]];
        const like = JSON.stringify([...config, options.headers]);
        if (call === 'take') return new Question(idOf(name, key), JSON.stringify([call, config[0]]), count);
        if (call === 'limit' || call === 'check') return new Question(idOf(name, key), like, count);
        return call === 'limitAll' || call === 'checkAll' ? new Question(name, like, 0) : undefined;
    }

    #passing<R extends Pick<Result, 'ok' | 'retryAfter' | 'retryAt'> & Partial<Pick<Result, 'headers'>>>(
        name: string,
        options: AnyOptions,
        attempt: () => Promise<R>,
        slots?: Slots<R>,
    ): Promise<R> {
        return this.#patiently(options, attempt, (result) => denial(name, result), slots);
    }

    #passingAll<R extends Pick<AllResult, 'ok' | 'retryAfter' | 'deniedBy'> & Partial<Pick<Result, 'headers'>>>(
        options: AnyOptions,
        attempt: () => Promise<R>,
        slots?: Slots<R>,
    ): Promise<R> {
        const error = ({ deniedBy, headers }: R) => denial(deniedBy!.name, { ...deniedBy!, headers });
        return this.#patiently(options, attempt, error, slots);
    }

    /** The answer of an attempt, or of later ones as long as the wait allows; or its denial as an error. */
    async #patiently<R extends { ok: boolean; retryAfter: number | null }>(
        options: AnyOptions,
        attempt: () => Promise<R>,
        error: (result: R) => RateLimitError,
        slots?: Slots<R>,
    ): Promise<R> {
        const { wait = 0, throws = false, signal } = options;
        if (!(wait >= 0)) throw new TypeError(`wait is ${wait}; allowed: milliseconds`);
        if (wait > 0 && inTransaction(this.#of(options)))
            throw new TypeError('wait would keep the transaction open: wait outside of it');
        const until = performance.now() + wait;
        const attempts = async () => {
            for (;;) {
                const result = await attempt();
                if (result.ok) return result;
                const { retryAfter } = result;
                const left = until - performance.now();
                const mayCome = slots?.denies(result);
                if (retryAfter === null || left <= 0 || (retryAfter > left && !mayCome)) {
                    if (throws) throw error(result);
                    return result;
                }
                await sleep(spread(mayCome ? Math.min(retryAfter, LOOK) : retryAfter, left), undefined, { signal });
            }
        };
        if (!slots || wait === 0) return attempts();
        return this.#lines.join(this.#of(options), slots.id, wait, signal, attempts);
    }
}

/** A wait, and up to a tenth more, so that callers that wait for the same moment do not come back at once. */
function spread(wait: number, most: number): number {
    const jitter = Math.random() * Math.max(wait / 10, 20);
    return Math.min(wait + jitter, most, 2 ** 31 - 1);
}

/** Waits until reserved work may begin. If the wait is ended, the hold is given back. */
async function begins(
    hold: { settle(used: 0): Promise<unknown> },
    results: Pick<Result, 'retryAfter'>[],
    signal?: AbortSignal,
): Promise<void> {
    const until = performance.now() + Math.max(...results.map(({ retryAfter }) => retryAfter ?? 0));
    try {
        for (let left; (left = until - performance.now()) > 0; )
            await sleep(Math.min(Math.ceil(left), 2 ** 31 - 1), undefined, { signal });
    } catch (error) {
        await hold.settle(0).catch(ignore); // it expires
        throw error;
    }
}

function keyOf(options: AnyOptions): string {
    const { key } = options;
    if (key === undefined && !Object.hasOwn(options, 'key')) return '';
    const isNumber = typeof key === 'bigint' || Number.isFinite(key);
    if (typeof key === 'string' || isNumber) return String(key);
    throw new TypeError(
        `key is ${key === null ? 'null' : typeof key}; allowed: a text or a number; without a key all share the limit`,
    );
}

const interval = (ttl: unknown): string | null =>
    ttl === undefined ? null : typeof ttl === 'number' ? `${ttl} milliseconds` : String(ttl);
const holdOf = (row: any): HoldRow => {
    const { headers, ...result } = resultOf(row);
    return { ...result, id: row.hold ?? null, held: number(row.held), expiresAt: date(row.expires) };
};
function holdAllOf(rows: any[]): HoldAllRow {
    const { results, headers, ...all } = allOf(rows);
    const row = rows.find(({ hold }) => hold != null) ?? {};
    const held = results.map((result, n) => ({ ...result, held: number(rows[n].held) }));
    return { ...all, id: row.hold ?? null, expiresAt: date(row.expires), results: held };
}
/** The options of a call that extends a hold: onDecision is called if it asks for more. */
const extending = (options: AnyOptions, more: unknown): AnyOptions =>
    more === undefined ? { ...options, [EXTENDS]: true } : options;
function checkedOtherwise(onException: unknown): void {
    if (onException !== 'refund' && onException !== 'charge')
        throw new TypeError(`onException is ${onException}; allowed: "refund", "charge"`);
}

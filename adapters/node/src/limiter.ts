// The client: limits by name, known to the compiler, in the caller's own transaction.
import { lends } from '../../facts.json';
import { Borrowed, type BorrowOptions } from './borrowed';
import type { Value } from './calculate';
import { prefix, type Call, type HeaderStyle } from './calls';
import type { Definitions, Duration } from './config';
import type { RememberDenials } from './denials';
import { allow } from './errors';
import { checkedFailing, type OnError } from './failing';
import { Ending, Hold, HoldAll, Lease } from './held';
import type { HoldAllRow, HoldRow, Otherwise, Run, Unsettled, Used } from './held';
import { Lines, pause } from './lines';
import type { Checked, ConfigOf, HoldKind, Inline, Keyed, Kind, LeaseKind, NameOf, Rest, TokenKind } from './names';
import { inTransaction, type Database } from './query';
import { allOf, date, denial, denying, heldAllOf, heldOf, number, resultOf, tokensOf } from './results';
import type { AllResult, Denied, LimitedBy, Result, SettleResult } from './results';
import { EXTENDS, keyOf, Sender, type AnyOptions, type Sent } from './sender';

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
    /** What runs SQL: pg, postgres.js, Drizzle, Kysely, Prisma, PGlite, or an object `{ query(text, values) }`. */
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
    /** Milliseconds for a connection and the answer, outside transactions. Default: none; 5000 with onError "open". */
    timeout?: number | undefined;
    /**
     * Prepares statements, on a Pool of pg, and on postgres.js as that has been set. Not in a transaction, nor on a
     * client. If a pooler refuses them, they go unprepared. Default: true.
     */
    prepare?: boolean | undefined;
    /**
     * On a Pool of pg or postgres.js, calls of limit that come during a statement share the next, by rl_limit_each. Not
     * with the `db` of a call. Default: true.
     */
    batch?: boolean | undefined;
    /**
     * Answers a denied key without the database until it can pass, at most a second, or `atMost`. Remembers `max`
     * denials of limit, check, limitAll and checkAll. Default: false.
     */
    rememberDenials?: boolean | RememberDenials | undefined;
    /** Called for each call that takes, or would have; never gets a key. Its errors are ignored. */
    onDecision?: ((decision: Decision) => void) | undefined;
    /** Called with a hold that a callback or a block has left, and that its use has not settled. Default: a warning. */
    onUnsettled?: ((unsettled: Unsettled) => void) | undefined;
}

interface CallOptions {
    /** The transaction, or another connection, that runs this call. */
    db?: Database | undefined;
}
interface Asks extends CallOptions {
    /** What to do if this call can't be decided. Not with `db`, because an error aborts its transaction. */
    onError?: OnError | undefined;
    /** `true`: a denial is a RateLimitError. */
    throws?: boolean | undefined;
}
interface Waits extends Asks {
    /** Tries again for at most this number of milliseconds. Not in a transaction. */
    wait?: number | undefined;
    /** Ends the wait, including that of a reservation. */
    signal?: AbortSignal | undefined;
}
interface Counts {
    /** Tokens or slots. Default: 1. */
    count?: number | undefined;
}
export interface CheckAllOptions extends Asks {
    /** Adds these HTTP headers to the result, by rl_headers or rl_headers_all, on which the role needs EXECUTE. */
    headers?: HeaderStyle | undefined;
}
export interface LimitAllOptions extends CheckAllOptions, Waits {}
export interface CheckOptions extends CheckAllOptions, Counts {
    /** May put the limit into debt; retryAt is the time when the work may begin. */
    reserve?: boolean | undefined;
}
export interface LimitOptions extends CheckOptions, Waits {}
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
export interface AcquireOptions extends Waits, Counts {}
interface LeaseOptions extends CallOptions {
    config?: ConfigOf<LeaseKind> | undefined;
}
export interface HoldAllOptions extends Waits {
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
export interface HoldOptions extends HoldAllOptions, Pick<CheckOptions, 'reserve'> {
    /** Estimated tokens. Default: 1. */
    count?: number | undefined;
    /** Holds as many tokens as there are, if at least this number. */
    atLeast?: number | undefined;
}

/** One of several requests: for a limit in the code, or with its config. A: what it asks for. */
export type LimitRequest<D, K extends Kind = TokenKind, A = Pick<CheckOptions, 'count' | 'reserve'>> =
    | { [N in NameOf<D, K>]: { name: N; config?: undefined } & A & Keyed<D[N]> }[NameOf<D, K>]
    | ({ name: string } & A & Inline<K>);

type HoldRequests<D> = LimitRequest<D, HoldKind | 'concurrency'>[];
type HeldAll<D> = HoldAll<HoldRequests<D>>;
type Borrows = BorrowOptions & Pick<Asks, 'onError'>;

/** The milliseconds after which a caller that waits for slots checks again. */
const LOOK = 250;

export class RateLimiter<const D extends Definitions = {}> {
    readonly definitions: D;
    #options: RateLimiterOptions;
    #sender: Sender;
    #lines = new Lines();

    constructor(definitions: D & Checked<D>, options: RateLimiterOptions = {}) {
        if (typeof definitions !== 'object' || definitions === null) {
            throw new TypeError('the limits of a RateLimiter are an object: their names, and the config of each');
        }
        this.definitions = { ...definitions };
        const { schema, defined, onUnsettled } = options;
        this.#options = { schema, defined, onUnsettled };
        this.#sender = new Sender(options);
    }

    /** Takes tokens, in the transaction `db` if given. A denial takes nothing. */
    limit<N extends NameOf<D, TokenKind>>(name: N, ...options: Rest<D[N], LimitOptions>): Promise<Result>;
    limit(name: string, options: LimitOptions & Inline<TokenKind>): Promise<Result>;
    async limit(name: string, options: AnyOptions = {}): Promise<Result> {
        return this.#one('limit', name, options);
    }

    /** The result that limit would return. Takes nothing. */
    check<N extends NameOf<D, Kind>>(name: N, ...options: Rest<D[N], CheckOptions>): Promise<Result>;
    check(name: string, options: CheckOptions & Inline<Kind>): Promise<Result>;
    async check(name: string, options: AnyOptions = {}): Promise<Result> {
        return this.#one('check', name, options);
    }

    /** Fills the limit of the key again; false: it was full. */
    reset<N extends NameOf<D, Kind>>(name: N, ...options: Rest<D[N], CallOptions>): Promise<boolean>;
    reset(name: string, options: CallOptions & Inline<Kind>): Promise<boolean>;
    async reset(name: string, options: AnyOptions = {}): Promise<boolean> {
        this.#configOf(name, options);
        return (await this.#sender.row('reset', options, [name, keyOf(options)])).ok;
    }

    /** Gives back tokens that were taken and not used. */
    credit<N extends NameOf<D, HoldKind>>(name: N, ...options: Rest<D[N], CreditOptions>): Promise<Result>;
    credit(name: string, options: CreditOptions & Inline<HoldKind>): Promise<Result>;
    async credit(name: string, options: AnyOptions = {}): Promise<Result> {
        const { count = 1, takenAt } = options;
        const values = [name, keyOf(options), count, takenAt?.toISOString() ?? null, this.#configOf(name, options)];
        return resultOf(await this.#sender.row('credit', options, values));
    }

    /** The limit's config and the key's state: rl_calculate, or a client, computes answers from them. */
    getValue<N extends NameOf<D, Kind>>(name: N, ...options: Rest<D[N], CallOptions>): Promise<Value>;
    getValue(name: string, options: CallOptions & Inline<Kind>): Promise<Value>;
    async getValue(name: string, options: AnyOptions = {}): Promise<Value> {
        const row = await this.#sender.row('value', options, [name, keyOf(options), this.#configOf(name, options)]);
        return JSON.parse(row.value);
    }

    /** Takes tokens from several limits: from all of them, or from none. */
    async limitAll(requests: LimitRequest<D>[], options: LimitAllOptions = {}): Promise<AllResult> {
        return this.#all('limitAll', requests, options);
    }

    /** The result that limitAll would return. Takes nothing. */
    async checkAll(requests: LimitRequest<D>[], options: CheckAllOptions = {}): Promise<AllResult> {
        return this.#all('checkAll', requests, { ...options, wait: undefined });
    }

    /**
     * Takes that need no round trip: the process takes batches, and spends them in memory. They are taken outside any
     * transaction, so a rollback returns nothing.
     */
    borrow<N extends NameOf<D, HoldKind>>(name: N, options?: Borrows): Borrowed<D[N]>;
    borrow<C extends ConfigOf<HoldKind>>(name: string, options: Borrows & { config: C }): Borrowed<C>;
    borrow(name: string, options: AnyOptions = {}): Borrowed<any> {
        const { config, onError } = options;
        const sent = this.#configOf(name, options);
        const kind = (config ?? this.definitions[name]).kind;
        if (!lends.includes(kind)) throw new TypeError(`${kind} can't be borrowed; allowed: ${lends.join(', ')}`);
        checkedFailing({ onError });
        const checkApart = () => {
            if (inTransaction(this.#sender.of({})))
                throw new TypeError('db is in a transaction, whose rollback would undo what is borrowed and returned');
        };
        return new Borrowed(options, {
            take: async (key, atLeast, atMost) => {
                checkApart();
                return this.#sender.decided('take', { onError }, [name, key, atLeast, sent, atMost]);
            },
            giveBack: async (key, count, takenAt) => {
                checkApart();
                return this.credit(name, { key, count, takenAt, config } as any);
            },
            patiently: (asked, attempt) => this.#patiently(asked, name, attempt),
        });
    }

    /** Takes slots of a concurrency limit with one lease, which `await using` releases. */
    acquire<N extends NameOf<D, LeaseKind>>(name: N, ...options: Rest<D[N], AcquireOptions>): Promise<Lease>;
    acquire(name: string, options: AcquireOptions & Inline<LeaseKind>): Promise<Lease>;
    async acquire(name: string, options: AnyOptions = {}): Promise<Lease> {
        const { count = 1, config, db } = options;
        const values = [name, keyOf(options), count, this.#configOf(name, options)];
        const call = (call: 'extend' | 'release', lease: string) => this[call](name, lease, { config, db });
        const acquire = async () => new Lease(heldOf(await this.#sender.decided('acquire', options, values)), call);
        return this.#patiently(options, name, acquire, { id: JSON.stringify(values), denies: () => true });
    }

    /** Runs the callback with a lease, and then releases it. A denial is a RateLimitError. */
    withLease<N extends NameOf<D, LeaseKind>, T>(
        name: N,
        options: AcquireOptions & Keyed<D[N]>,
        run: Run<Lease, T>,
    ): Promise<T>;
    withLease<T>(name: string, options: AcquireOptions & Inline<LeaseKind>, run: Run<Lease, T>): Promise<T>;
    async withLease<T>(name: string, options: AnyOptions, run: Run<Lease, T>): Promise<T> {
        return Ending.during(this.acquire(name, { ...options, throws: true } as any), run, options, this.#sender);
    }

    /** Extends a lease by its limit's ttl; null: it has expired, or was released. */
    async extend(name: string, lease: string | null, options: LeaseOptions = {}): Promise<Date | null> {
        return date((await this.#sender.row('extend', options, [lease, this.#configOf(name, options)])).expires);
    }

    /** Frees the slots of a lease; false: it has expired, or was released before. */
    async release(name: string, lease: string | null, options: LeaseOptions = {}): Promise<boolean> {
        return (await this.#sender.row('release', options, [lease, this.#configOf(name, options)])).ok;
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
            const row = await this.#sender.decided('hold', asked, values);
            return { ...heldOf(row), held: number(row.held) };
        };
        const again = ({ id, held }: HoldRow, more?: number) =>
            ask({ db, onError, [EXTENDS]: more === undefined }, more ?? held!, id, null);
        const settle = async ({ id, ok }: HoldRow, used?: number) =>
            id === null ? resultOf({ ok }) : this.settle(id, used, { db });
        const calls = { settle, again, unsettled: this.#options.onUnsettled, onException };
        return this.#patiently(options, name, async () => new Hold(await ask(options, count, id, atLeast), calls));
    }

    /** Gives back the unused tokens of a hold, or takes those used beyond it. `ok`: it was not settled before. */
    async settle(hold: string | null, used?: number, options: CallOptions = {}): Promise<Result> {
        return resultOf(await this.#sender.row('settle', options, [hold, used ?? null]));
    }

    /**
     * Runs the callback with a hold, then settles `hold.used`, or else everything held. If it throws: `hold.used`, or
     * else as `onException` says. A denial is a RateLimitError. With `reserve` it waits until the work may begin;
     * `signal` ends that, and gives the tokens back.
     */
    withHold<N extends NameOf<D, HoldKind>, T>(
        name: N,
        options: HoldOptions & Keyed<D[N]>,
        run: Run<Hold, T>,
    ): Promise<T>;
    withHold<T>(name: string, options: HoldOptions & Inline<HoldKind>, run: Run<Hold, T>): Promise<T>;
    async withHold<T>(name: string, options: AnyOptions, run: Run<Hold, T>): Promise<T> {
        return Ending.during(this.hold(name, { ...options, throws: true } as any), run, options, this.#sender);
    }

    /** Holds tokens of several limits: of all of them, or of none. An exempt caller has no requests. */
    async holdAll(requests: HoldRequests<D>, options: HoldAllOptions = {}): Promise<HeldAll<D>> {
        const { ttl, id = null, onExpiry = null, onException = 'refund', onError, db } = options;
        checkedOtherwise(onException);
        const list = this.#listOf(requests);
        const ask = (asked: AnyOptions, list: Sent[], id: string | null) =>
            this.#sender.decidedAll('holdAll', list, asked, [JSON.stringify(list), interval(ttl), id, onExpiry]);
        const again = async ({ id }: HoldAllRow, more?: HoldRequests<D>) => {
            const isSame = more === undefined;
            return heldAllOf(await ask({ db, onError, [EXTENDS]: isSame }, isSame ? list : this.#listOf(more), id));
        };
        const settle = async ({ id }: HoldAllRow, used?: Used) =>
            id === null ? [] : this.settleAll(id, used, { db });
        const calls = { settle, again, unsettled: this.#options.onUnsettled, onException };
        let rows: any[] = [];
        const hold = async () => {
            if (list.length > 0) rows = await ask(options, list, id);
            return new HoldAll<HoldRequests<D>>(heldAllOf(rows), calls);
        };
        const isOfSlots = ({ name, config = this.definitions[name] }: Sent) => config?.kind === 'concurrency';
        const denies = () => denying(rows).every((row) => isOfSlots(list[rows.indexOf(row)]));
        const slots = { id: JSON.stringify(list), denies };
        return this.#patiently(options, '', hold, list.some(isOfSlots) ? slots : undefined);
    }

    /** Settles each limit of a hold: by its use, or everything held for limits that `used` does not name. */
    async settleAll(hold: string | null, used?: Used, options: CallOptions = {}): Promise<SettleResult[]> {
        const rows = await this.#sender.rows('settleAll', options, [hold, JSON.stringify(used) ?? null]);
        return rows.map((row) => ({ name: row.name, key: row.key, ...tokensOf(row) }));
    }

    /** The same as withHold, for several limits. */
    async withHoldAll<T>(requests: HoldRequests<D>, options: HoldAllOptions, run: Run<HeldAll<D>, T>): Promise<T> {
        return Ending.during(this.holdAll(requests, { ...options, throws: true }), run, options, this.#sender);
    }

    /** Defines the limits in the database that differ; returns their names. Undefines none. */
    async define({ db }: CallOptions = {}): Promise<string[]> {
        return (await this.#sender.rows('define', { db }, [JSON.stringify(this.definitions)])).map(({ name }) => name);
    }

    /** Deletes a batch of rows that no result depends on, and gives back what has expired; resolves to their number. */
    async prune({ maxRows = 10_000, undefinedIdle, db }: PruneOptions = {}): Promise<number> {
        return (await this.#sender.row('prune', { db }, [maxRows, undefinedIdle ?? null])).rows;
    }

    /** The limits' definitions as SQL, for a migration. */
    sql(): string {
        const { schema } = this.#options;
        const place = schema === undefined ? '' : prefix(schema);
        const literal = (text: string) => `'${text.replaceAll("'", "''")}'`;
        const line = ([name, config]: [string, unknown]) =>
            `SELECT ${place}rl_define(${literal(name)}, ${literal(JSON.stringify(config))});\n`;
        return Object.entries(this.definitions).map(line).join('');
    }

    // From here on: shared parts of the calls.

    /** The config that a call sends, as JSON; null: none. Throws a TypeError for an unknown name. */
    #configOf(name: string, { config }: AnyOptions): string | null {
        if (config !== undefined && config !== null) return JSON.stringify(config);
        if (!Object.hasOwn(this.definitions, name)) {
            const names = Object.keys(this.definitions).map((each) => JSON.stringify(each));
            const known = `there is no limit ${JSON.stringify(name)}; there are ${names.join(', ') || 'none'}`;
            throw new TypeError(`${known}; another needs its config in the call`);
        }
        return this.#options.defined ? null : JSON.stringify(this.definitions[name]);
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

    /** A call that decides on one limit. */
    #one(call: Call, name: string, options: AnyOptions): Promise<Result> {
        const { count = 1, reserve = false } = options;
        const values = [name, keyOf(options), count, reserve, this.#configOf(name, options)];
        const waiting = call === 'check' ? { ...options, wait: undefined } : options;
        return this.#patiently(waiting, name, async () => resultOf(await this.#sender.decided(call, options, values)));
    }
    #all(call: Call, requests: unknown, options: AnyOptions): Promise<AllResult> {
        const list = this.#listOf(requests);
        const values = [JSON.stringify(list)];
        const attempt = async () => allOf(await this.#sender.decidedAll(call, list, options, values));
        return this.#patiently(options, '', attempt);
    }

    /**
     * The answer of an attempt, or of later ones as long as the wait allows; or its denial as an error. SLOTS may be
     * released at any time: the id of their line, and whether they alone deny the last one.
     */
    async #patiently<R extends Denied>(
        options: AnyOptions,
        name: string,
        attempt: () => Promise<R>,
        slots?: { id: string; denies(): boolean },
    ): Promise<R> {
        const { wait = 0, throws = false, signal } = options;
        allow(wait >= 0, 'wait', wait, 'milliseconds');
        if (wait > 0 && inTransaction(this.#sender.of(options)))
            throw new TypeError('wait would keep the transaction open: wait outside of it');
        const until = performance.now() + wait;
        const attempts = async () => {
            for (;;) {
                const result = await attempt();
                if (result.ok) return result;
                const { retryAfter } = result;
                const left = until - performance.now();
                const mayCome = slots?.denies();
                if (retryAfter === null || left <= 0 || (retryAfter > left && !mayCome)) {
                    if (throws) throw denial(result, name);
                    return result;
                }
                await pause(spread(mayCome ? Math.min(retryAfter, LOOK) : retryAfter, left), signal);
            }
        };
        if (!slots || wait === 0) return attempts();
        return this.#lines.join(this.#sender.of(options), slots.id, wait, signal, attempts);
    }
}

/** A wait, and up to a tenth more, so that callers that wait for the same moment do not come back at once. */
function spread(wait: number, most: number): number {
    const jitter = Math.random() * Math.max(wait / 10, 20);
    return Math.min(wait + jitter, most);
}

const interval = (ttl: unknown): string | null =>
    ttl === undefined ? null : typeof ttl === 'number' ? `${ttl} milliseconds` : String(ttl);
const checkedOtherwise = (onException: unknown) =>
    allow(onException === 'refund' || onException === 'charge', 'onException', onException, '"refund", "charge"');

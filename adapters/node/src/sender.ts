// Sends the calls of a limiter or a store, on the connections and within the time that they may have, and says what to
// do if one can't be decided. Remembers denials, and reports decisions.
import { Batch } from './batch';
import { Calls, requestOf, type Call } from './calls';
import { Denials, idOf, type Question } from './denials';
import { allow, innermost } from './errors';
import { checkedFailing, isNotNow, quietly } from './failing';
import type { Decision, RateLimiterOptions } from './limiter';
import { checked, inTransaction, isLender } from './query';
import { denying, milliseconds } from './results';

export type AnyOptions = Record<string | symbol, any>;
export interface Sent {
    name: string;
    key: string;
    count?: number;
    config?: { kind: string };
}

/** Calls that take, which onDecision hears; and calls after which remembered denials no longer hold. */
const TAKES: Call[] = ['limit', 'limitAll', 'take', 'acquire', 'hold', 'holdAll'];
const FORGETS: Call[] = ['reset', 'credit', 'define', 'resetKeys', 'unblock'];
/** Marks the options of a call that takes no more than it has: onDecision is not called. */
export const EXTENDS = Symbol('extends');

const OPEN_WITH_DB =
    'onError is "open" in a call with db: an error aborts its transaction, so nothing can be allowed in it; pass one of them';

/** Of a pool: those of limiters with the same schema and statements. */
const BATCHES = new WeakMap<object, Map<string, Batch>>();

export function keyOf(options: AnyOptions): string {
    const { key } = options;
    if (key === undefined && !Object.hasOwn(options, 'key')) return '';
    const isKey = typeof key === 'string' || typeof key === 'bigint' || Number.isFinite(key);
    const given = key === null ? 'null' : typeof key;
    allow(isKey, 'key', given, 'a text or a number; without a key all share the limit');
    return String(key);
}

export class Sender {
    #options: RateLimiterOptions;
    #denials: Denials | undefined;
    #calls: Calls;
    #batch: Batch | undefined;

    /** Throws a TypeError for invalid options. */
    constructor({ prepare = true, batch = true, rememberDenials = false, ...options }: RateLimiterOptions) {
        const { db, schema } = options;
        if (db !== undefined) checked(db);
        checkedFailing(options);
        for (const [option, is] of Object.entries({ prepare, batch }))
            allow(typeof is === 'boolean', option, is, 'true, false');
        this.#options = { ...options, prepare };
        if (rememberDenials !== false) this.#denials = new Denials(rememberDenials);
        this.#calls = new Calls(schema);
        if (!batch || db === undefined || !isLender(db)) return;
        const [batches, like] = [BATCHES.get(db) ?? new Map<string, Batch>(), `${prepare} ${schema}`];
        this.#batch = batches.get(like) ?? new Batch(this.#calls, db, prepare);
        BATCHES.set(db, batches.set(like, this.#batch));
    }

    /** What runs the SQL of a call. */
    of(options: AnyOptions): any {
        if (options.db !== undefined) return checked(options.db);
        if (this.#options.db !== undefined) return this.#options.db;
        throw new TypeError('nothing runs SQL: pass db to RateLimiter, or with the call');
    }

    /** Whether a call that failed with this error is allowed. Not in a transaction, which the error has aborted. */
    opens({ db, onError = this.#options.onError }: AnyOptions, error: unknown): boolean {
        return db === undefined && onError === 'open' && isNotNow(error) && !inTransaction(this.#options.db);
    }

    async rows(call: Call, options: AnyOptions, values: unknown[]): Promise<any[]> {
        const db = this.of(options);
        const { onError = this.#options.onError, headers, signal } = options;
        const timeout = this.#options.timeout ?? (onError === 'open' ? 5000 : undefined);
        const prepare = this.#options.prepare && options.db === undefined;
        const send = (timeout?: number) => this.#calls.rows(db, call, values, { timeout, prepare }, headers);
        if (this.#batch && call === 'limit' && options.db === undefined)
            return this.#batch.join(() => requestOf(values, headers), send, timeout, signal);
        // In a transaction the statement would continue, and the next one wait for it.
        const isOwn = options.db === undefined && !inTransaction(db);
        const run = () => send(isOwn ? timeout : undefined);
        if (!this.#denials || !FORGETS.includes(call)) return run();
        const ofAll = call === 'define' || call === 'resetKeys';
        return this.#denials.forgetting(ofAll ? undefined : idOf(values[0] as string, values[1] as string), run);
    }
    async row(call: Call, options: AnyOptions, values: unknown[]): Promise<any> {
        return (await this.rows(call, options, values))[0];
    }

    /** The row of a call that decides on one limit. VALUES begin with the name, the key and the count. */
    async decided(call: Call, options: AnyOptions, values: unknown[], run?: () => Promise<any[]>): Promise<any> {
        const [name, key, count] = values as [string, string, number];
        return (await this.decidedAll(call, [{ name, key, count }], options, values, run))[0];
    }

    /** The rows of a deciding call, by RUN; or others, if it fails open. It reports to onDecision, if it takes. */
    async decidedAll(
        call: Call,
        list: Sent[],
        options: AnyOptions,
        values: unknown[],
        run = () => this.rows(call, options, values),
    ): Promise<any[]> {
        checkedFailing({ onError: options.onError });
        if (options.onError === 'open' && options.db !== undefined) throw new TypeError(OPEN_WITH_DB);
        const asked = this.#asking(call, options, values);
        const began = performance.now();
        const { onDecision } = this.#options;
        const report = (name: string, ok: boolean, row: any, more: Partial<Decision> = {}) => {
            if (!onDecision || !TAKES.includes(call) || options[EXTENDS]) return;
            const [retryAfter, limitedBy] = [milliseconds(row.wait), row.limited ?? null];
            const decision: Decision = { name, ok, retryAfter, limitedBy, ms: performance.now() - began, ...more };
            quietly(() => onDecision(decision));
        };
        const known = asked && this.#denials?.known(asked);
        let rows: any[];
        try {
            rows = known ?? (await run());
        } catch (outer) {
            const [ok, error] = [this.opens(options, outer), innermost(outer)];
            for (const name of new Set(list.map(({ name }) => name))) report(name, ok, {}, { error });
            if (!ok) throw outer;
            return list.map(({ name, key, count = 1 }) => ({ name, key, ok, held: count, error }));
        }
        if (asked && !known) this.#denials?.learn(asked, rows);
        const deny = denying(rows);
        rows.forEach((row, n) => {
            if (row.ok || deny.includes(row)) report(list[n].name, row.ok, row, known && { remembered: true });
        });
        return rows;
    }

    /** A call with a denial that may be remembered. In a transaction others don't see its denials. */
    #asking(call: Call, options: AnyOptions, values: unknown[]): Question | undefined {
        if (!this.#denials || options.db !== undefined || inTransaction(this.of(options))) return undefined;
        const [name, key, count, ...config] = values as [string, string, number, ...unknown[]];
        const [like, began] = [JSON.stringify([...config, options.headers]), performance.now()];
        if (call === 'take') return { id: idOf(name, key), like: JSON.stringify([call, config[0]]), count, began };
        if (call === 'limit' || call === 'check') return { id: idOf(name, key), like, count, began };
        return call === 'limitAll' || call === 'checkAll' ? { id: name, like, count: 0, began } : undefined;
    }
}

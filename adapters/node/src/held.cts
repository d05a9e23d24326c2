/// <reference lib="esnext.disposable" preserve="true" />
// What is held for a while: a lease of a concurrency limit, and a hold of tokens. Each ends automatically: where a block
// ends, with `await using`, or a callback.
import { inspect } from 'node:util';

import { ignore, quietly } from './failing.cjs';
import { errorOf, type Result, type RequestResult } from './results.cjs';

type Answer = Pick<Result, 'ok' | 'retryAfter' | 'retryAt' | 'error'>;

/** A lease of a concurrency limit, or a denial (`ok` is false). Left by `await using`, it is released. */
export class Lease implements Omit<Result, 'resetAt'> {
    readonly ok: boolean;
    /** The lease, for extend and release of another process. null: denied, or exempt. */
    readonly lease: string | null;
    /** When it expires unless it is extended. */
    expiresAt: Date | null;
    readonly retryAfter: number | null;
    readonly retryAt: Date | null;
    /** Free slots after the call. */
    readonly remaining: number | null;
    readonly capacity: number | null;
    /** It was granted unchecked, and there is no lease. */
    declare readonly error?: Error & { code?: string };
    #calls: LeaseCalls;
    #released = false;

    constructor(row: Omit<Result, 'resetAt'> & { lease: string | null; expiresAt: Date | null }, calls: LeaseCalls) {
        this.ok = row.ok;
        this.lease = row.lease;
        this.expiresAt = row.expiresAt;
        this.retryAfter = row.retryAfter;
        this.retryAt = row.retryAt;
        this.remaining = row.remaining;
        this.capacity = row.capacity;
        Object.assign(this, errorOf(row));
        this.#calls = calls;
    }

    /** Extends it by the ttl of its limit; false: it has expired, or was released. */
    async extend(): Promise<boolean> {
        if (this.lease === null) return this.ok; // it is exempt
        const until = await this.#calls.extend(this.lease);
        if (until) this.expiresAt = until;
        return until !== null;
    }

    /** Frees its slots; false: it has expired, or was released before. */
    async release(): Promise<boolean> {
        if (this.lease === null || this.#released) return false;
        const released = await this.#calls.release(this.lease);
        this.#released = true;
        return released;
    }

    async [Symbol.asyncDispose](): Promise<void> {
        await this.release();
    }
}
export interface LeaseCalls {
    extend(lease: string): Promise<Date | null>;
    release(lease: string): Promise<boolean>;
}

/** A hold that was not settled by what was used. */
export interface Unsettled {
    hold: string;
    /** What settle or settleAll can be sent again with, for a day; undefined: all that was held. */
    used: Used | undefined;
    error: Error;
}
export const warnUnsettled = ({ hold, error }: Unsettled): void =>
    console.warn(`postgres-rate-limit: the hold ${hold} was not settled by what was used: ${error.message}`);

/** Whether this can be settled: a number of tokens. */
export const isCount = (used: unknown): boolean => typeof used === 'number' && used >= 0 && used <= 1e15;

/** How a hold is settled, and what hears of one that is not. */
export interface HoldCalls<U, R> {
    settle(hold: string, used: U | undefined): Promise<R>;
    unsettled(unsettled: Unsettled): void;
}

/** Tokens that are held until they are settled. U is what was used, R the answer when it is settled. */
abstract class Held<U extends Used, R> {
    /**
     * What was used so far, where the application knows it: what is settled when the block or the callback ends. It
     * counts as all where it is no number of tokens, and onUnsettled hears of that.
     */
    used: U | undefined;
    #calls: HoldCalls<U, R>;
    #settled = false;

    constructor(calls: HoldCalls<U, R>) {
        this.#calls = calls;
    }

    protected abstract isUsed(used: unknown): boolean;
    abstract readonly ok: boolean;
    /** The hold, for settle in another process, and as the id of another hold call. null: denied, or exempt. */
    abstract readonly hold: string | null;
    protected abstract readonly nothing: R;

    /** Gives back what was not used, or takes what was used beyond it. Without `used`: all was used. Once only. */
    async settle(used: U | undefined = this.used): Promise<R> {
        this.used = used;
        if (this.hold === null) return this.nothing;
        const answer = await this.#calls.settle(this.hold, used);
        this.#settled = true;
        return answer;
    }

    /** Settles it unless that was done: with what was used, or else with this. */
    async end(otherwise: U | undefined): Promise<void> {
        if (this.#settled || !this.ok) return;
        const used = this.used ?? otherwise;
        if (used === undefined || this.isUsed(used)) return void (await this.settle(used));
        this.used = undefined;
        this.unsettled(new TypeError(`used is ${inspect(used)}; allowed: a number from 0 on`));
        await this.settle();
    }

    /** Reports an error by which it was not settled by what was used. */
    unsettled(error: any): void {
        const { hold, used } = this;
        if (hold !== null) quietly(() => this.#calls.unsettled({ hold, used, error }));
    }
}

/** A hold of one limit, or a denial (`ok` is false). Left by `await using`, it settles `used`, or gives all back. */
export class Hold extends Held<number, Result> implements Result {
    readonly ok: boolean;
    readonly hold: string | null;
    /** Tokens that it holds. */
    readonly held: number | null;
    /** When it expires. */
    readonly expiresAt: Date | null;
    readonly retryAfter: number | null;
    readonly retryAt: Date | null;
    readonly remaining: number | null;
    readonly capacity: number | null;
    readonly resetAt: Date | null;
    /** It was allowed unchecked, and there is no hold. */
    declare readonly error?: Error & { code?: string };

    constructor(row: Result & HoldRow, calls: HoldCalls<number, Result>) {
        super(calls);
        this.ok = row.ok;
        this.hold = row.hold;
        this.held = row.held;
        this.expiresAt = row.expiresAt;
        this.retryAfter = row.retryAfter;
        this.retryAt = row.retryAt;
        this.remaining = row.remaining;
        this.capacity = row.capacity;
        this.resetAt = row.resetAt;
        Object.assign(this, errorOf(row));
    }

    protected isUsed(used: unknown): boolean {
        return isCount(used);
    }
    protected get nothing(): Result {
        return { ok: false, retryAfter: null, retryAt: null, remaining: null, capacity: null, resetAt: null };
    }

    async [Symbol.asyncDispose](): Promise<void> {
        await this.end(0);
    }
}
export interface HoldRow {
    hold: string | null;
    held: number | null;
    expiresAt: Date | null;
}

/** What was used of each limit, by its name; a number counts for all. */
export type Used = number | Record<string, number>;
export type HoldRequestResult = RequestResult & HoldRow;
export type SettleResult = Omit<Result, 'ok'> & { name: string; key: string };

/** A hold of several limits, or a denial. Left by `await using`, it settles `used`, or gives all back. */
export class HoldAll extends Held<Used, SettleResult[]> {
    readonly ok: boolean;
    readonly hold: string | null;
    readonly retryAfter: number | null;
    readonly retryAt: Date | null;
    /** In the order of the requests. */
    readonly results: HoldRequestResult[];
    /** They were allowed unchecked, and there is no hold. */
    declare readonly error?: Error & { code?: string };

    constructor(answer: Answer, results: HoldRequestResult[], calls: HoldCalls<Used, SettleResult[]>) {
        super(calls);
        this.ok = answer.ok;
        this.hold = results.find(({ hold }) => hold !== null)?.hold ?? null;
        this.retryAfter = answer.retryAfter;
        this.retryAt = answer.retryAt;
        this.results = results;
        Object.assign(this, errorOf(answer));
    }

    protected isUsed(used: unknown): boolean {
        if (typeof used !== 'object' || used === null || Array.isArray(used)) return isCount(used);
        return Object.values(used).every((each) => each === undefined || isCount(each));
    }
    protected get nothing(): SettleResult[] {
        return [];
    }

    async [Symbol.asyncDispose](): Promise<void> {
        await this.end(0);
    }
}

/** Runs the callback, then releases the lease. Where that fails with an error that IGNORED takes, the lease expires. */
export async function released<T>(
    lease: Lease,
    run: (lease: Lease) => T | Promise<T>,
    ignored: (error: unknown) => boolean,
): Promise<T> {
    let value: T;
    try {
        value = await run(lease);
    } catch (error) {
        await lease.release().catch(ignore); // it expires
        throw error;
    }
    await lease.release().catch((error) => {
        if (!ignored(error)) throw error;
    });
    return value;
}

/** Runs the callback, then settles the hold: with what was used, or with all of it; or with none, if it throws. */
export async function settled<T, H extends Held<any, any>>(
    hold: H,
    run: (hold: H) => T | Promise<T>,
    ignored: (error: unknown) => boolean,
): Promise<T> {
    let value: T;
    try {
        value = await run(hold);
    } catch (error) {
        await hold.end(0).catch((error) => hold.unsettled(error)); // it expires
        throw error;
    }
    await hold.end(undefined).catch((error) => {
        if (!ignored(error)) throw error;
        hold.unsettled(error);
    });
    return value;
}

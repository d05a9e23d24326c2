// Held for a while: a lease of a concurrency limit, and a hold of tokens. Each ends automatically, at the end of a
// block with `await using`, or of a callback.
import { inspect } from 'node:util';

import { quietly } from './failing';
import { pause } from './lines';
import type { AllResult, RequestResult, Result, SettleResult } from './results';
import type { AnyOptions, Sender } from './sender';

type Decided = Readonly<Omit<Result, 'ok' | 'headers' | 'error'>>;
interface Expiring extends Readonly<Pick<Result, 'ok' | 'retryAfter' | 'retryAt' | 'error'>> {
    /** For calls in another process; of a hold also for another hold call. null: denied, exempt or unchecked. */
    readonly id: string | null;
    /** The time when it expires, unless it is ended or extended. */
    expiresAt: Date | null;
}

/** A callback, during which something is held. */
export type Run<H, T> = (held: H) => T | Promise<T>;

/** What ends with a block or a callback. */
export interface Ending extends Expiring {}
export abstract class Ending {
    constructor(row: Expiring) {
        Object.assign(this, row);
    }

    /** Ends it, unless that was done; FAILED: the work may have failed. */
    protected abstract end(failed: boolean): Promise<unknown>;
    /** Hears an error because of which it did not end, and expires. */
    protected unended(_error: unknown): void {}

    /**
     * Runs the callback when reserved work may begin, then ends this. If the signal ends the wait, none was used. An
     * error of the end is ignored if the call would fail open by it, as SENDER knows. @internal
     */
    static async during<H extends Ending, T>(
        holding: Promise<H>,
        run: Run<H, T>,
        options: AnyOptions,
        sender: Sender,
    ): Promise<T> {
        const held = await holding;
        let value: T;
        try {
            const all: Pick<Result, 'retryAfter'>[] = (held as any).results ?? [held];
            const until = performance.now() + Math.max(...all.map(({ retryAfter }) => retryAfter ?? 0));
            for (let left; (left = until - performance.now()) > 0; )
                await pause(Math.ceil(left), options.signal).catch((error) => {
                    (held as any).used = 0;
                    throw error;
                });
            value = await run(held);
        } catch (error) {
            await held.end(true).catch((error) => held.unended(error));
            throw error;
        }
        await held.end(false).catch((error) => {
            if (!sender.opens(options, error)) throw error;
            held.unended(error);
        });
        return value;
    }

    async [Symbol.asyncDispose](): Promise<void> {
        await this.end(true);
    }
}

type LeaseCall = (call: 'extend' | 'release', lease: string) => Promise<any>;
export interface Lease extends Expiring, Decided {}
/**
 * A lease of a concurrency limit, or a denial (`ok` is false). `await using` releases it. `remaining`: the free slots;
 * `resetAt`: when the last lease expires; `error`: it was granted unchecked, and there is no lease.
 */
export class Lease extends Ending {
    #call: LeaseCall;
    #released = false;

    constructor(row: Expiring & Decided, call: LeaseCall) {
        super(row);
        this.#call = call;
    }

    /** Extends it by the ttl of its limit; false: it has expired, was released, or was denied. */
    async extend(): Promise<boolean> {
        if (this.id === null) return this.ok; // it is exempt
        const until: Date | null = await this.#call('extend', this.id);
        if (until) this.expiresAt = until;
        return until !== null;
    }

    /** Frees its slots; false: it has expired, was released before, or was denied. */
    async release(): Promise<boolean> {
        if (this.id === null) return this.ok;
        if (this.#released) return false;
        const released: boolean = await this.#call('release', this.id);
        this.#released = true;
        return released;
    }

    protected end(): Promise<unknown> {
        return this.release();
    }
}

/** A hold not settled by the actual use: that was no number of tokens, so all held counts; or the database failed. */
export interface Unsettled {
    hold: string;
    /** The `used` with which settle or settleAll can be sent again, for a day; undefined: everything held. */
    used: Used | undefined;
    error: Error;
}
export const warnUnsettled = ({ hold, error }: Unsettled): void =>
    console.warn(`postgres-rate-limit: the hold ${hold} was not settled by what was used: ${error.message}`);

/** Whether this can be settled: a number of tokens. */
export const isCount = (used: unknown): boolean => typeof used === 'number' && used >= 0 && used <= 1e15;

/** The end of held tokens: they come back, or stay taken. */
export type Otherwise = 'refund' | 'charge';

/** How to settle and extend a hold of the form A, the listener for an unsettled one, and the effect of an error. */
interface HoldCalls<A, U, R, M> {
    settle(hold: Expiring, used: U | undefined): Promise<R>;
    /** Asks for more, or for the tokens held, under the same id. */
    again(hold: Expiring, more: M | undefined): Promise<A>;
    unsettled: ((unsettled: Unsettled) => void) | undefined;
    onException: Otherwise;
}

/** Tokens held until they are settled. A: their fields; U: the use; R: the answer to that; M: what more to hold. */
abstract class Held<A extends HoldRow | HoldAllRow, U extends Used, R, M> extends Ending {
    /**
     * The use so far, if the application knows it: settled when the block or the callback ends. If it is not a number
     * of tokens, everything held is settled, and onUnsettled is called.
     */
    used: U | undefined;
    #calls: HoldCalls<A, U, R, M>;
    #settled = false;

    constructor(row: A, calls: HoldCalls<A, U, R, M>) {
        super(row);
        this.#calls = calls;
    }

    /** The part of it that is numbers of tokens; undefined: none. */
    protected counts(used: U): U | undefined {
        return isCount(used) ? used : undefined;
    }

    /**
     * Gives back unused tokens, or takes those used beyond the hold. Without `used`: by the field, or else everything
     * held. If it is not a number of tokens, everything held is settled, and onUnsettled is called.
     */
    async settle(used: U | undefined = this.used): Promise<R> {
        this.used = used === undefined ? undefined : this.counts(used);
        if (this.used !== used) this.unended(new TypeError(`used is ${inspect(used)}; allowed: a number from 0 on`));
        const answer = await this.#calls.settle(this, this.used);
        this.#settled = true;
        return answer;
    }

    /**
     * Holds up to MORE, a count or requests, if that is more, and for its ttl from now. false: denied, and the hold
     * keeps its tokens; or it was settled, or denied before.
     */
    async extend(more?: M): Promise<boolean> {
        if (this.id === null) return this.ok; // it is exempt
        if (this.#settled) return false;
        const answer = await this.#calls.again(this, more);
        const { ok, error, expiresAt } = answer;
        const held = 'held' in answer ? { held: answer.held } : { results: answer.results };
        if (ok && error === undefined) Object.assign(this, { expiresAt, ...held });
        return ok;
    }

    protected async end(failed: boolean): Promise<void> {
        if (failed && this.#calls.onException === 'refund') this.used ??= 0 as U;
        if (!this.#settled && this.ok) await this.settle();
    }

    protected unended(error: any): void {
        const { id, used } = this;
        const { unsettled = warnUnsettled } = this.#calls;
        if (id !== null) quietly(() => unsettled({ hold: id, used, error }));
    }
}

interface Amount {
    /** The tokens or slots held. */
    held: number | null;
}
export interface HoldRow extends Expiring, Decided, Amount {}

export interface Hold extends HoldRow {}
/** A hold of one limit, or a denial (`ok` is false). `await using` settles `used`, or as onException says. */
export class Hold extends Held<HoldRow, number, Result, number> {}

/** The use of each limit, by its name; one number is the use of all. */
export type Used = number | Record<string, number>;
export interface HoldRequestResult extends RequestResult, Amount {}
export interface HoldAllRow extends Expiring, Readonly<Pick<AllResult, 'deniedBy'>> {
    /** In the order of the requests. */
    results: HoldRequestResult[];
}

export interface HoldAll<M = unknown> extends HoldAllRow {}
/** A hold of several limits, or a denial. `await using` settles `used`, or as onException says. */
export class HoldAll<M = unknown> extends Held<HoldAllRow, Used, SettleResult[], M> {
    protected override counts(used: Used): Used | undefined {
        if (typeof used !== 'object' || used === null || Array.isArray(used)) return super.counts(used);
        const given = Object.entries(used).filter(([, each]) => each !== undefined);
        const counts = given.filter(([, each]) => isCount(each));
        if (counts.length === given.length) return used;
        return counts.length === 0 ? undefined : Object.fromEntries(counts);
    }
}

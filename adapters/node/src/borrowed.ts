// Tokens that a process has borrowed: it takes a batch of them in one database call, and spends it in memory.
import { lends } from '../../facts.json';
import { allow } from './errors';
import { ignore } from './failing';
import type { LimitOptions } from './limiter';
import type { Rest } from './names';
import { resultOf, type Result } from './results';
import { keyOf, type AnyOptions } from './sender';

export interface BorrowOptions {
    /** Milliseconds after which a batch is not spent any more, and the rest is returned. Default: 1000. */
    borrowFor?: number | undefined;
    /** The maximum number of tokens in a batch, except for a call with a larger count. Default: 100. */
    max?: number | undefined;
}
/** The result of a call that may not have asked the database. */
export type BorrowResult = Pick<Result, 'ok' | 'retryAfter' | 'retryAt' | 'limitedBy' | 'headers' | 'error'>;

/** The calls by which the batches of one limit are taken and returned. */
export interface BorrowCalls {
    take(key: string, atLeast: number, atMost: number): Promise<any>;
    giveBack(key: string, count: number, takenAt: Date): Promise<unknown>;
    patiently(options: object, attempt: () => Promise<BorrowResult>): Promise<BorrowResult>;
}

interface Batch {
    taken: number;
    left: number;
    /** The milliseconds since its request. */
    passed(): number;
    lasts: number;
    /** Absent: taken without a limit, so nothing is returned. */
    takenAt?: Date;
}
/** The milliseconds from now on, by both clocks: the monotonic one stops on a suspended machine. */
function stopwatch(): () => number {
    const [sent, sentAt] = [performance.now(), Date.now()];
    return () => Math.max(performance.now() - sent, Date.now() - sentAt);
}

const isCount = (count: unknown): boolean => Number.isFinite(count) && (count as number) >= 0;

/** Spends from a batch; false: it has too few tokens, or has ended. */
function spends(batch: Batch | undefined, count: number): boolean {
    if (!batch || !isCount(count) || count > batch.left || batch.passed() >= batch.lasts) return false;
    batch.left -= count;
    return true;
}

interface Account {
    batch?: Batch;
    /** Tokens of the next batch, to last between half and all of its time. 0: unknown. */
    size: number;
    /** The running call, its count, and the tokens for which others wait for it. */
    asking?: Promise<BorrowResult>;
    asked: number;
    awaited: number;
    /** The return of the rest of the batch before. */
    returning?: Promise<unknown>;
    timer?: NodeJS.Timeout;
}

/** Takes of one limit that usually need no database call. `await using` closes it. */
export class Borrowed<C = unknown> {
    #calls: BorrowCalls;
    #borrowFor: number;
    #max: number;
    #accounts = new Map<string, Account>();
    #returning = new Set<Promise<unknown>>();
    #closed = false;

    constructor({ borrowFor = 1000, max = 100 }: BorrowOptions, calls: BorrowCalls) {
        allow(borrowFor >= 1 && borrowFor <= 60_000, 'borrowFor', borrowFor, 'milliseconds, from 1 to 60000');
        allow(Number.isSafeInteger(max) && max >= 1, 'max', max, 'an integer from 1 on');
        this.#calls = calls;
        this.#borrowFor = borrowFor;
        this.#max = max;
    }

    /** Spends borrowed tokens, without a database call; false: there are too few, so ask `limit`. */
    take(...options: Rest<C, Pick<LimitOptions, 'count'>>): boolean;
    take(options: AnyOptions = {}): boolean {
        const { count = 1 } = options;
        return spends(this.#accounts.get(keyOf(options))?.batch, count);
    }

    /** Spends borrowed tokens, or else takes a new batch. A denial takes nothing. */
    limit(...options: Rest<C, Pick<LimitOptions, 'count' | 'throws' | 'wait' | 'signal'>>): Promise<BorrowResult>;
    async limit(options: AnyOptions = {}): Promise<BorrowResult> {
        if ('db' in options) throw new TypeError('borrowed tokens are spent outside of transactions: pass no db');
        return this.#calls.patiently(options, () => this.#decided(options));
    }

    async #decided(options: AnyOptions): Promise<BorrowResult> {
        const key = keyOf(options);
        const { count = 1 } = options;
        allow(isCount(count), 'count', count, 'a number from 0 on');
        for (;;) {
            let account = this.#accounts.get(key);
            if (spends(account?.batch, count))
                return { ok: true, retryAfter: null, retryAt: null, limitedBy: null, headers: {} };
            if (this.#closed) throw new Error('the borrowed tokens were returned by close()');
            if (!account) this.#accounts.set(key, (account = { size: 0, asked: 0, awaited: 0 }));
            if (!account.asking) {
                account.asked = count;
                return (account.asking = this.#ask(key, account, count).finally(() => (account.asking = undefined)));
            }
            const { asked } = account;
            account.awaited += count;
            const answer = await account.asking.finally(() => (account.awaited -= count));
            if (answer.error || (!answer.ok && asked <= count)) return answer;
        }
    }

    /** Requests the tokens missing for COUNT, and a batch. */
    async #ask(key: string, account: Account, count: number): Promise<BorrowResult> {
        const { batch } = account;
        let had = 0;
        if (batch && batch.passed() < batch.lasts) {
            if (batch.passed() < batch.lasts / 2) account.size = Math.min(account.size * 2, this.#max);
            had = Math.min(batch.left, count);
            batch.left -= had;
        } else if (batch) this.#end(key, account);
        const missing = count - had;
        // The call may need the returned tokens. Others can only have begun to wait by the next line.
        await account.returning;
        const wanted = account.size > 0 ? Math.max(account.size, missing + account.awaited) : 0;
        const most = Math.max(missing, Math.min(wanted, this.#max));
        const passed = stopwatch();
        let row;
        try {
            row = await this.#calls.take(key, missing, most);
        } finally {
            if (batch && !row?.ok) batch.left += had;
            clearTimeout(account.timer);
            this.#await(key, account);
        }
        if (row.ok && !row.error) {
            if (batch) this.#end(key, account);
            account.batch = this.#batchOf(row, missing, passed);
            const size = row.taken < most ? Math.floor(account.size / 2) : account.size; // others want them, too
            account.size = account.batch.lasts > 0 ? Math.max(size, 1) : 0;
        }
        const { remaining, capacity, resetAt, ...answer } = resultOf(row);
        return answer;
    }

    #batchOf({ taken, reset, value }: any, spent: number, passed: () => number): Batch {
        const { config, now } = JSON.parse(value);
        // Rounded up: a window may have begun with the call, and rounded down this would be in the one before.
        const takenAt = Math.ceil(now);
        // The rest is useless if it can't be returned; a dry run has more tokens than there were to take.
        const isKept = lends.includes(config.kind) && config.enforce !== false;
        const ends = config.kind === 'fixed window' ? Number(reset) * 1000 - takenAt : Infinity;
        const batch = { taken, left: taken - spent, passed, lasts: isKept ? Math.min(this.#borrowFor, ends) : 0 };
        return config.kind === 'unlimited' ? batch : { ...batch, takenAt: new Date(takenAt) };
    }

    /** Ends a batch and returns the rest. If that fails, the rest stays taken. */
    #end(key: string, account: Account): void {
        const { batch } = account;
        account.batch = undefined;
        if (!batch || batch.left <= 0 || batch.lasts <= 0) return;
        account.size = Math.max(Math.ceil(batch.taken - batch.left), 1);
        if (!batch.takenAt) return;
        const returning = this.#calls.giveBack(key, batch.left, batch.takenAt).catch(ignore);
        account.returning = returning;
        this.#returning.add(returning);
        void returning.then(() => this.#returning.delete(returning));
    }

    /** Ends the batch when its time is up. Forgets the key after as long again without use. */
    #await(key: string, account: Account): void {
        account.timer = setTimeout(() => {
            if (account.asking) return this.#await(key, account);
            const { batch } = account;
            this.#end(key, account);
            if (batch && batch.left < batch.taken) this.#await(key, account);
            else this.#accounts.delete(key);
        }, this.#borrowFor + 1);
        account.timer.unref();
    }

    /** Returns everything left, and spends no more. Otherwise, for example if a process dies, the rest stays taken. */
    async close(): Promise<void> {
        this.#closed = true;
        for (const { asking } of [...this.#accounts.values()]) await asking?.catch(ignore);
        for (const [key, account] of this.#accounts) {
            clearTimeout(account.timer);
            this.#end(key, account);
        }
        this.#accounts.clear();
        await Promise.all(this.#returning);
    }

    async [Symbol.asyncDispose](): Promise<void> {
        await this.close();
    }
}

// Calls that share round trips: those that come while a statement is under way go together in the next one.
import { AsyncResource } from 'node:async_hooks';

import type { Calls } from './calls';
import { late } from './failing';

export interface Request {
    /** What the call counts for: its row is locked. */
    id: string;
    /** Calls with one id go together only if they have one config. */
    config: string | null;
    /** The request, as JSON. */
    request: string;
    /** The style of the HTTP headers that it asks for. */
    headers: string | undefined;
}
/** Makes the request of a call; undefined: it can only go alone. */
type Asks = () => Request | undefined;
type Alone = (timeout: number | undefined) => Promise<any[]>;
/** The answer to one of several requests: a row, or an error; or its row is locked, and nothing was taken. */
export type Answer = Record<string, any> | Error | 'locked';

/** Calls in one statement, and bytes of their requests. */
const [MOST_CALLS, MOST_BYTES] = [64, 1_000_000];
/** Milliseconds after which others don't wait for a statement any more: these, or this number of times the median. */
const [SLOW, TIMES] = [20, 4];
/** The number of statements that the median is of. */
const SEEN = 31;
/** Milliseconds for which calls go alone where they can't go together. */
const APART = 600_000;

/** The context of no caller: what is sent for many shows in the traces of none. */
const NOWHERE = new AsyncResource('postgres-rate-limit');

/** A statement under way; `only`: its call, if it has one. */
interface Statement {
    began: number;
    only: Asks | undefined;
}
const idOf = ({ only }: Statement): string | undefined => only?.()?.id;

/** A call that may wait, from the time when it comes to its answer. */
class Waiting {
    isSent = false;
    isEnded = false;
    #until: number | undefined;
    #timer: ReturnType<typeof setTimeout> | undefined;
    #aborts = () => this.reject(aborted(this.signal!));

    constructor(
        readonly alone: Alone,
        readonly request: Request,
        timeout: number | undefined,
        private readonly signal: AbortSignal | undefined,
        private readonly answered: (rows: any[]) => void,
        private readonly failed: (error: unknown) => void,
    ) {
        if (timeout !== undefined) this.#until = performance.now() + timeout;
        if (signal?.aborted) this.#aborts();
        else signal?.addEventListener('abort', this.#aborts);
    }

    /** Waits for others in LINE; from then on its time-out is its own. */
    joins(line: Waiting[]): void {
        line.push(this);
        const { left } = this;
        if (left === undefined || this.#timer !== undefined) return;
        const error = () => late(this.isSent ? 'answer of' : 'connection to', Math.round(left));
        this.#timer = setTimeout(() => this.reject(error()), left);
    }

    /** The milliseconds that are left of its time-out. */
    get left(): number | undefined {
        return this.#until && Math.max(this.#until - performance.now(), 1);
    }

    resolve(rows: any[]): void {
        if (this.#ends()) this.answered(rows);
    }
    reject(error: unknown): void {
        if (this.#ends()) this.failed(error);
    }
    #ends(): boolean {
        if (this.isEnded) return false;
        clearTimeout(this.#timer);
        this.signal?.removeEventListener('abort', this.#aborts);
        return (this.isEnded = true);
    }
}

/** The error of timers/promises, which end a wait. */
const aborted = ({ reason }: AbortSignal): Error =>
    Object.assign(new Error('The operation was aborted', { cause: reason }), { name: 'AbortError', code: 'ABORT_ERR' });

export class Batch {
    /** The connections of the pool. */
    #most: number;
    /** Calls that wait to be sent. */
    #queue: Waiting[] = [];
    /** The statement that the queue waits for, and its time-out; the number of those under way. */
    #current: Statement | undefined;
    #timer: ReturnType<typeof setTimeout> | undefined;
    #running = 0;
    /** How long the last statements took, in milliseconds. */
    #spans: number[] = [];
    /** Calls for an id that another transaction has locked: one waits alone, and these for that one. */
    #busy = new Map<string, Waiting[]>();
    /** Until this time of the monotonic clock calls go alone. */
    #apart = -Infinity;

    constructor(
        private readonly calls: Calls,
        private readonly pool: any,
        private readonly prepare: boolean,
    ) {
        this.#most = pool.options?.max ?? 10;
    }

    /** The rows of a call. TIMEOUT, in milliseconds, and SIGNAL end the call, but no statement that others share. */
    join(asks: Asks, alone: Alone, timeout?: number, signal?: AbortSignal): Promise<any[]> {
        const goesAtOnce = this.#isFree && this.#busy.size === 0 && performance.now() >= this.#apart;
        if (goesAtOnce && !signal) {
            const statement = this.#begins(asks); // the short way of most that come alone
            return alone(timeout).finally(() => this.#ended(statement));
        }
        const request = asks();
        if (!request) return alone(timeout);
        return new Promise((resolve, reject) => {
            const waiting = new Waiting(alone, request, timeout, signal, resolve, reject);
            const line = this.#busy.get(request.id);
            if (waiting.isEnded) return;
            if (performance.now() < this.#apart) this.#alone(waiting);
            else if (line) waiting.joins(line);
            else if (this.#isFree) this.#send([waiting]);
            else {
                waiting.joins(this.#queue);
                this.#watch();
            }
        });
    }

    get #isFree(): boolean {
        return this.#current === undefined && this.#running < this.#most;
    }

    /** Sends what waits, as far as it may. */
    #next(): void {
        if (this.#queue.length > 0 && this.#isFree) NOWHERE.runInAsyncScope(this.#sendNext, this);
    }
    #sendNext(): void {
        if (performance.now() < this.#apart) return this.#queue.splice(0).forEach((waiting) => this.#alone(waiting));
        const [calls, rest, configs] = [[] as Waiting[], [] as Waiting[], new Map<string, string | null>()];
        let bytes = 0;
        for (const waiting of this.#queue) {
            const { id, config, request } = waiting.request;
            const line = this.#busy.get(id);
            if (waiting.isEnded) continue;
            if (line) waiting.joins(line);
            else if (calls.length === MOST_CALLS || (configs.has(id) && configs.get(id) !== config)) rest.push(waiting);
            else if ((bytes += Buffer.byteLength(request)) > MOST_BYTES && calls.length > 0) rest.push(waiting);
            else {
                calls.push(waiting);
                configs.set(id, config);
            }
        }
        this.#queue = rest;
        if (calls.length > 0) this.#send(calls);
        if (rest.length > 0) this.#watch();
    }

    #send(calls: Waiting[]): void {
        const statement = this.#begins(calls.length === 1 ? () => calls[0].request : undefined);
        const ended = () => this.#ended(statement);
        if (statement.only) this.#alone(calls[0], ended);
        else void this.#share(calls, ended);
    }

    #begins(only?: Asks): Statement {
        this.#running++;
        return (this.#current = { began: performance.now(), only });
    }
    #ended(statement: Statement): void {
        this.#running--;
        if (this.#spans.push(performance.now() - statement.began) > SEEN) this.#spans.shift();
        if (this.#current === statement) this.#waitNoMore();
        else this.#free(idOf(statement));
        this.#next();
    }

    /** Sets the time after which the queue doesn't wait for the statement that is under way. */
    #watch(): void {
        const statement = this.#current;
        if (!statement || this.#timer !== undefined) return;
        const median = [...this.#spans].sort((one, other) => one - other)[this.#spans.length >> 1] ?? 0;
        const left = statement.began + Math.max(SLOW, TIMES * median) - performance.now();
        this.#timer = setTimeout(() => {
            this.#waitNoMore();
            // A call that waits for its row: the others for it wait, too.
            const id = idOf(statement);
            if (id !== undefined) this.#busy.set(id, []);
            this.#next();
        }, left);
        this.#timer.unref?.();
    }
    #waitNoMore(): void {
        this.#current = undefined;
        clearTimeout(this.#timer);
        this.#timer = undefined;
    }

    /** Sends a call alone. ENDED is called before its caller goes on. */
    #alone(waiting: Waiting, ended?: () => void): void {
        if (waiting.isEnded) return ended?.();
        waiting.isSent = true;
        const answer = waiting.alone(waiting.left).finally(ended);
        answer.then((rows) => waiting.resolve(rows), (error) => waiting.reject(error));
    }

    /** Sends calls together. After that go alone those for locked rows, and all if they failed by an error of one. */
    async #share(calls: Waiting[], ended: () => void): Promise<void> {
        for (const waiting of calls) waiting.isSent = true;
        const longest = Math.max(...calls.map((waiting) => waiting.left ?? Infinity));
        const how = { timeout: longest === Infinity ? undefined : longest, prepare: this.prepare };
        let answers: Answer[];
        try {
            answers = await this.calls.each(this.pool, calls.map(({ request }) => request), how);
            if (answers.length !== calls.length) throw new TypeError('not all requests were answered');
        } catch (error) {
            const fate = this.calls.fate(error);
            if (fate === 'apart') this.#apart = performance.now() + APART;
            ended();
            for (const waiting of calls) {
                if (fate === 'ended') waiting.reject(error);
                else this.#alone(waiting);
            }
            return;
        }
        calls.forEach((waiting, n) => answers[n] === 'locked' && this.#waitForRow(waiting));
        setImmediate(ended); // their callers' next calls go with those that wait
        calls.forEach((waiting, n) => {
            const answer = answers[n];
            if (answer instanceof Error) waiting.reject(answer);
            else if (answer !== 'locked') waiting.resolve([answer]);
        });
    }

    #waitForRow(waiting: Waiting): void {
        const { id } = waiting.request;
        const line = this.#busy.get(id);
        if (line) waiting.joins(line);
        else {
            this.#busy.set(id, []);
            this.#alone(waiting, () => {
                this.#free(id);
                this.#next();
            });
        }
    }
    /** The calls that waited for one that had to wait for its row are the next ones. */
    #free(id: string | undefined): void {
        if (id === undefined) return;
        this.#queue.unshift(...(this.#busy.get(id) ?? []));
        this.#busy.delete(id);
    }
}

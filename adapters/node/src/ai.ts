// A middleware for the AI SDK: each call to a model holds an estimate on all of its limits at once, and settles the
// reported usage.
import { inspect } from 'node:util';

import { APICallError, type LanguageModelMiddleware } from 'ai';

// By the package's name: of its own file the class would be bundled here, and exist twice.
import { RateLimitError } from 'postgres-rate-limit';
import type { Definitions, HoldAll, RateLimiter, Unsettled, Used } from 'postgres-rate-limit';
import { allow } from './errors';
import { ignore, quietly } from './failing';
import { isCount, warnUnsettled } from './held';
import type { LimitRequest } from './limiter';
import type { HoldKind } from './names';

type Generate = Parameters<NonNullable<LanguageModelMiddleware['wrapGenerate']>>[0];
type Stream = Awaited<ReturnType<Generate['doStream']>>['stream'];
type Part = Stream extends ReadableStream<infer P> ? P : never;
type Report = Extract<Part, { type: 'finish' }>['usage'];

/** A call to a model: its options, as the SDK passes them to the provider. */
export type ModelCall = Pick<Generate, 'params' | 'model'>;

export interface Usage {
    inputTokens: number;
    outputTokens: number;
    totalTokens: number;
}
/** The use of a limit by a call: a number, such as 1 for requests and slots, a kind of tokens, or a function. */
export type Count = number | keyof Usage | ((usage: Counted) => number);
/** The argument of a `count` function: an estimate or the usage, with the model's whole report. */
export type Counted = Usage & { modelId: string; report?: Report | undefined };

/** A limit that a call holds. `count` default: 1. */
export type BudgetLimit<D> = LimitRequest<D, HoldKind | 'concurrency', Counts>;
type Counts = { count?: Count | undefined };

/** A call that ended without a report: the tokens held, the estimate of those streamed, and the reason. */
export interface Unreported {
    held: Usage;
    streamed: Usage;
    error: unknown;
}

/** The end of a call: its hold (null: exempt, or unchecked), what to settle, and the text of the answer so far. */
export interface Settlement extends Pick<Unsettled, 'used'> {
    hold: string | null;
    text: string;
}

export interface BudgetOptions<D> {
    /** The limits of every call, or of this one. The same name may be repeated only with the same count. */
    limits: BudgetLimit<D>[] | ((call: ModelCall) => BudgetLimit<D>[] | PromiseLike<BudgetLimit<D>[]>);
    /**
     * The maximum number of tokens of an answer, if the call has none: they are held, and the maximum is sent to the
     * model. Required unless each limit counts a number.
     */
    maxOutputTokens?: number | undefined;
    /** The id of a call's hold: the id of an existing hold means the same hold. Default: a random one. */
    id?: string | ((call: ModelCall) => string | undefined) | undefined;
    /** The tokens of the prompt. Default: a third of its bytes, 1,600 for a picture, 5,000 for another file. */
    estimate?: ((call: ModelCall) => number | PromiseLike<number>) | undefined;
    /** Milliseconds until the hold of a dead process expires. A live process extends it. Default: 120,000. */
    ttl?: number | undefined;
    /** What a hold does with its tokens when it expires. Default: "refund". */
    onExpiry?: 'refund' | 'charge' | undefined;
    /** The usage to settle if the model reported none. Default: everything held. */
    unreported?: ((call: Unreported) => Usage) | undefined;
    /**
     * Settles a call, however it ended, by settleAll(hold, used) in the transaction that stores the answer. If it
     * throws, onUnsettled is called. Default: settleAll alone.
     */
    settle?: ((settlement: Settlement) => PromiseLike<unknown>) | undefined;
    /**
     * Called with a hold that could not be settled: settleAll(hold, used) can be sent again. Also called if a function
     * of `count` or `unreported` throws: everything held is settled then. Default: a warning.
     */
    onUnsettled?: ((unsettled: Unsettled) => void) | undefined;
}

/** The middleware for wrapLanguageModel. A denial is an APICallError, which the SDK retries within a minute. */
export function budget<D extends Definitions>(
    limiter: RateLimiter<D>,
    options: BudgetOptions<D>,
): LanguageModelMiddleware {
    const { maxOutputTokens, limits } = options;
    checkedMost(maxOutputTokens, Array.isArray(limits) ? limits : []);
    return {
        specificationVersion: 'v4',
        transformParams: async ({ params }) => ({
            ...params,
            maxOutputTokens: params.maxOutputTokens ?? maxOutputTokens,
        }),
        async wrapGenerate({ doGenerate, params, model }) {
            const held = await hold(limiter, options, { params, model });
            try {
                const result = await held.sent(doGenerate, params.abortSignal);
                for (const part of result.content) if (part.type === 'text') held.text += part.text;
                await held.reported(result.usage);
                return result;
            } catch (error) {
                await held.failed(error);
                throw error;
            }
        },
        async wrapStream({ doStream, params, model }) {
            const held = await hold(limiter, options, { params, model }).catch((error) => {
                // Otherwise the promises of streamText only say that there is no output.
                if (APICallError.isInstance(error)) Object.defineProperty(error, NO_OUTPUT, { value: true });
                throw error;
            });
            try {
                const { stream, ...result } = await held.sent(doStream, params.abortSignal);
                return { ...result, stream: metered(stream, held) };
            } catch (error) {
                await held.failed(error);
                throw error;
            }
        },
    };
}

/**
 * A result of streamText, once its answer begins. Throws the error that ended it before, such as a denial, so that the
 * caller can answer with another status.
 */
export async function opened<R extends { stream: AsyncIterable<{ type: string; error?: unknown }> }>(
    result: R,
): Promise<R> {
    for await (const { type, error } of result.stream) {
        if (type === 'error') throw error;
        if (type !== 'start') break;
    }
    return result;
}

/** Marks an error that has ended the call, for the SDK. */
const NO_OUTPUT = Symbol.for('vercel.ai.error.AI_NoOutputGeneratedError');

/** Throws a TypeError if a limit counts tokens and there is no maximum for an answer. */
function checkedMost(most: number | undefined, limits: Counts[]): void {
    const isNeeded = limits.some(({ count = 1 }) => typeof count !== 'number');
    allow(most === undefined ? !isNeeded : most >= 0, 'maxOutputTokens', most, 'tokens, which each call may hold');
}

/** Holds the estimate of a call. Throws a denial in the form of the SDK. */
async function hold<D extends Definitions>(limiter: RateLimiter<D>, options: BudgetOptions<D>, call: ModelCall) {
    const { limits, estimate = estimated, ttl = 120_000, onExpiry, id } = options;
    const { params, model } = call;
    params.abortSignal?.throwIfAborted();
    const list = typeof limits === 'function' ? await limits(call) : limits;
    checkedMost(params.maxOutputTokens ?? options.maxOutputTokens, list);
    const most = usageOf(await estimate(call), mostOutput(params, options.maxOutputTokens));
    const counts = new Map<string, Count>();
    const requests = list.map(({ count = 1, ...limit }) => {
        if (counts.has(limit.name) && counts.get(limit.name) !== count) {
            throw new TypeError(`the limit ${JSON.stringify(limit.name)} comes twice, with different counts`);
        }
        counts.set(limit.name, count);
        return { ...limit, count: counted(count, most, model.modelId) };
    }) as LimitRequest<D, HoldKind | 'concurrency'>[];
    const own = typeof id === 'function' ? id(call) : id;
    const held = await limiter.holdAll(requests, { ttl, onExpiry, id: own, throws: true }).catch((error) => {
        const denial = RateLimitError.from(error);
        throw denial ? denied(denial) : error;
    });
    return new Held(held, ttl, counts, most, model.modelId, options as BudgetOptions<any>);
}

/** The hold of a call, until it is settled. */
class Held {
    #timer: ReturnType<typeof setInterval> | undefined;
    #extending: Promise<unknown> = Promise.resolve();
    #settled: Promise<void> | undefined;
    #sent = false;
    /** The model's API has begun to answer. */
    #answers = false;
    /** Whether the model works. While the answer waits for its reader, the hold is not extended. */
    #active = true;
    /** The bytes of the answer received so far, and its text. */
    streamed = 0;
    text = '';

    constructor(
        private readonly hold: HoldAll,
        private readonly ttl: number,
        private readonly counts: Map<string, Count>,
        private readonly most: Usage,
        private readonly modelId: string,
        private readonly options: BudgetOptions<any>,
    ) {
        this.#tick();
    }

    /** Sends the call, unless the user has ended it meanwhile. */
    async sent<T>(send: () => PromiseLike<T>, signal: AbortSignal | undefined): Promise<T> {
        signal?.throwIfAborted();
        this.#sent = true;
        const result = await this.working(send);
        this.#answers = true;
        return result;
    }

    /** Waits for the model. */
    async working<T>(work: () => PromiseLike<T>): Promise<T> {
        this.#active = true;
        if (this.#timer === undefined && this.#settled === undefined) {
            this.#extendNow();
            this.#tick();
        }
        try {
            return await work();
        } finally {
            this.#active = false;
        }
    }
    #tick() {
        if (this.hold.id === null) return; // exempt, or unchecked
        this.#timer = setInterval(() => {
            if (this.#active) return this.#extendNow();
            clearInterval(this.#timer);
            this.#timer = undefined;
        }, this.ttl / 3);
        this.#timer.unref?.();
    }
    #extendNow() {
        // A hold that can't be extended may expire, and is settled all the same.
        this.#extending = this.#extending.then(() => this.hold.extend()).catch(ignore);
    }

    /** Settles the reported usage, and everything held for kinds of tokens not reported. */
    reported(report: Report | undefined): Promise<void> {
        const { inputTokens, outputTokens } = this.most;
        const [input, output] = [report?.inputTokens?.total, report?.outputTokens?.total];
        if (input === undefined && output === undefined) return this.failed(undefined);
        return this.#settle(() => this.#used(usageOf(input ?? inputTokens, output ?? outputTokens), report));
    }

    /** Settles a call without a report: nothing, if it was not sent; no tokens, if the model's API refused it. */
    failed(error: unknown): Promise<void> {
        return this.#settle(() => {
            if (!this.#sent || (!this.#answers && isUnsent(error))) return 0;
            if (this.streamed === 0 && isRefused(error)) return this.#used(usageOf(0, 0));
            const streamed = usageOf(this.most.inputTokens, Math.ceil(this.streamed / 3));
            const usage = this.options.unreported?.({ held: this.most, streamed, error });
            return usage && this.#used(usage);
        });
    }

    #used(usage: Usage, report?: Report): Record<string, number> {
        const used = Array.from(this.counts, ([name, count]) => {
            const number = counted(count, usage, this.modelId, report);
            // The database would refuse it, and settle none.
            if (!isCount(number)) throw new TypeError(`the count of ${JSON.stringify(name)} is ${inspect(number)}`);
            return [name, number];
        });
        return Object.fromEntries(used);
    }

    /**
     * Settles once: the usage, by functions of the application, or everything held if they throw. Never rejects. Waits
     * for a running extension: an extension after the settlement would be a new hold.
     */
    #settle(counts: () => Used | undefined): Promise<void> {
        return (this.#settled ??= this.#settling(counts));
    }
    async #settling(counts: () => Used | undefined): Promise<void> {
        clearInterval(this.#timer);
        this.#timer = undefined;
        let used: Used | undefined;
        const { id: hold } = this.hold; // null: exempt, or unchecked
        const hear = (error: any) => {
            const heard = hold === null ? warnUnsettled : (this.options.onUnsettled ?? warnUnsettled);
            quietly(() => heard({ hold: hold!, used, error }));
        };
        try {
            used = counts();
        } catch (error) {
            hear(error);
        }
        await this.#extending;
        const { settle } = this.options;
        const end = async () =>
            settle ? void (await settle({ hold, used, text: this.text })) : this.hold.settle(used);
        const settled = await end().catch(hear);
        const isGone = hold !== null && settled?.length === 0;
        if (isGone) hear(new Error('it is gone: another call has settled it, or a reset'));
    }
}

/** The stream. Its hold is settled before its end is read, and when its reader leaves. */
function metered(stream: Stream, held: Held): Stream {
    const reader = stream.getReader();
    let failure: unknown;
    return new ReadableStream<Part>(
        {
            async pull(controller) {
                try {
                    const { done, value } = await held.working(() => reader.read());
                    if (done) {
                        await held.failed(failure); // unless it was reported
                        return controller.close();
                    }
                    if (value.type === 'error') failure = value.error;
                    if ('delta' in value) held.streamed += Buffer.byteLength(value.delta);
                    if (value.type === 'text-delta') held.text += value.delta;
                    if (value.type === 'finish') await held.reported(value.usage);
                    controller.enqueue(value);
                } catch (error) {
                    reader.cancel(error).catch(ignore);
                    await held.failed(error);
                    controller.error(error);
                }
            },
            async cancel(reason) {
                await Promise.all([held.failed(reason), reader.cancel(reason)]);
            },
        },
        { highWaterMark: 0 },
    );
}

const usageOf = (inputTokens: number, outputTokens: number): Usage => ({
    inputTokens,
    outputTokens,
    totalTokens: inputTokens + outputTokens,
});

function counted(count: Count, usage: Usage, modelId: string, report?: Report): number {
    if (typeof count === 'function') return count({ ...usage, modelId, report });
    return typeof count === 'string' ? usage[count] : count;
}

// The numbers of the estimate, as listed in docs/llm-budgets.md, the same in the package for Python.
const PICTURE = 1600;
const FILE = 5000;
const ofText = (text = ''): number => Math.ceil(Buffer.byteLength(text) / 3);
const ofJson = (value: unknown): number => ofText(JSON.stringify(value));
const sum = (counts: number[]): number => counts.reduce((one, other) => one + other, 0);

/** The tokens of the prompt, its tools and the schema of its answer. */
function estimated({ params: { prompt, tools = [], responseFormat } }: ModelCall): number {
    const ofMessage = ({ content }: Message) => (typeof content === 'string' ? [ofText(content)] : content.map(ofPart));
    // A tool of the provider has args, in place of a description and a schema.
    const ofTool = ({ name, description, inputSchema, args }: any) => ofJson({ name, description, inputSchema, args });
    const schema = responseFormat?.type === 'json' ? responseFormat.schema : undefined;
    return sum([...prompt.flatMap(ofMessage), ...tools.map(ofTool), ofJson(schema)]);
}

type Message = ModelCall['params']['prompt'][number];
type Content = Exclude<Message['content'], string>[number];
type Output = Extract<Content, { type: 'tool-result' }>['output'];

function ofPart(part: Content | Extract<Output, { type: 'content' }>['value'][number]): number {
    if (part.type === 'text' || part.type === 'reasoning') return ofText(part.text);
    if (part.type === 'file' && part.data.type === 'text') return ofText(part.data.text);
    if (part.type === 'file' && /^image\b/i.test(part.mediaType)) return PICTURE;
    if (part.type === 'file' || part.type === 'reasoning-file') return FILE;
    if (part.type === 'tool-call') return ofJson(part.input);
    if (part.type === 'tool-result') return ofOutput(part.output);
    if (part.type === 'tool-approval-response') return ofText(part.reason);
    return ofJson(part);
}

function ofOutput(output: Output): number {
    if (output.type === 'content') return sum(output.value.map(ofPart));
    const value = output.type === 'execution-denied' ? (output.reason ?? '') : output.value;
    return typeof value === 'string' ? ofText(value) : ofJson(value);
}

/** The maximum number of tokens of an answer. For Anthropic's provider thinking is in addition to maxOutputTokens. */
function mostOutput({ maxOutputTokens, providerOptions }: ModelCall['params'], most = 0): number {
    const { budgetTokens = 0 } = (providerOptions?.anthropic?.thinking ?? {}) as { budgetTokens?: number };
    return (maxOutputTokens ?? most) + budgetTokens;
}

// The request has not reached the model.
const UNSENT = ['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'UND_ERR_CONNECT_TIMEOUT'];
function isUnsent(error: any): boolean {
    for (let [inner, depth] = [error, 0]; inner && depth < 10; inner = inner.cause, depth++)
        if (UNSENT.includes(inner.code)) return true;
    return false;
}
/** The API has answered with an error, other than a time-out. */
const isRefused = (error: unknown): boolean =>
    APICallError.isInstance(error) && (error.statusCode ?? 0) >= 400 && ![408, 504].includes(error.statusCode!);

/** A denial in the form of the SDK. It heeds waits below a minute; after a longer one it would retry in vain. */
function denied(denial: RateLimitError): APICallError {
    const { message, retryAfter, data } = denial;
    const [wait, seconds] = [Math.ceil(retryAfter ?? 0), Math.ceil((retryAfter ?? 0) / 1000)];
    const waits = { 'retry-after-ms': String(wait), 'retry-after': String(seconds) };
    return new APICallError({
        message,
        url: 'postgres-rate-limit:holdAll',
        requestBodyValues: {},
        statusCode: 429,
        responseHeaders: retryAfter === null ? {} : waits,
        isRetryable: retryAfter !== null && retryAfter < 60_000,
        data,
        cause: denial,
    });
}

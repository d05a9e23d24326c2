// A denial as an error: the client's own, and the database's (PT429), inside the error of any driver or ORM.

const MARK = Symbol.for('postgres-rate-limit.RateLimitError');

/** A call was denied. */
export class RateLimitError extends Error {
    /** The denying limit. */
    override readonly name: string;
    /** Milliseconds until the same call can pass; null: it never can. */
    readonly retryAfter: number | null;
    /** `retryAfter` as a time, by the database's clock. */
    readonly retryAt: Date | null;
    /** The headers of a response 429: the requested ones, or else Retry-After, unless the call can never pass. */
    readonly headers: Record<string, string>;

    constructor(
        name: string,
        retryAfter: number | null,
        retryAt: Date | null,
        { headers, ...options }: ErrorOptions & { headers?: Record<string, string> | undefined } = {},
    ) {
        const when = retryAfter === null ? 'it can never pass' : `retry after ${retryAfter} ms`;
        super(`rate limit "${name}" exceeded: ${when}`, options);
        this.name = name;
        this.retryAfter = retryAfter;
        this.retryAt = retryAt;
        this.headers = headers ?? retryHeader(retryAfter);
        const stack = this.stack ?? '';
        this.stack = `RateLimitError: ${stack.slice(stack.indexOf(this.message))}`;
    }

    /** The DETAIL of PT429. */
    get data(): { kind: 'RateLimited'; name: string; retryAfter: number | null } {
        return { kind: 'RateLimited', name: this.name, retryAfter: this.retryAfter };
    }

    get [MARK](): true {
        return true;
    }

    /** The denial in this error or in one that it wraps: of a call here, of a trigger, or with throws in SQL. */
    static from(error: unknown): RateLimitError | undefined {
        for (const found of causes(error)) {
            if (found[MARK]) return found;
            const denial = databaseDenial(found);
            if (!denial) continue;
            const { name = 'unknown', retryAfter = null } = parsed(denial.detail ?? denial.details);
            // By the clock of this process, because the error has only a span.
            const retryAt = retryAfter === null ? null : new Date(Date.now() + retryAfter);
            return new RateLimitError(name, retryAfter, retryAt, { cause: error });
        }
        return undefined;
    }
}

/** Whether this error is a denial, or wraps one. `RateLimitError.from` has its fields. */
export const isRateLimitError = (error: unknown): boolean => RateLimitError.from(error) !== undefined;

/** The header of a denial that can pass after these milliseconds. */
export const retryHeader = (retryAfter: number | null): Record<string, string> =>
    retryAfter === null ? {} : { 'Retry-After': String(Math.ceil(retryAfter / 1000)) };

/**
 * The response to a denial, an error or the answer of a call: 429, with its headers. undefined: it is none.
 * `message`: its text, of the words of tryAgain.
 */
export function denialResponse(
    denial: unknown,
    message: (again: string) => string = (again) => `Too many requests: ${again}`,
): Response | undefined {
    const found = denialOf(denial);
    return found && new Response(message(inWords(found.retryAfter)), { status: 429, headers: found.headers });
}

/**
 * The wait of a denial, an error or the answer of a call, in words: "try again in 5 minutes", or "this can never pass".
 * undefined: it is none. Rounded up, to whole seconds, or from 2 minutes, hours and days on to these.
 */
export function tryAgain(denial: unknown): string | undefined {
    const found = denialOf(denial);
    return found && inWords(found.retryAfter);
}

const SPANS = [[86_400, 'day'], [3600, 'hour'], [60, 'minute'], [1, 'second']] as const;

function inWords(retryAfter: number | null): string {
    if (retryAfter === null) return 'this can never pass';
    const seconds = Math.max(1, Math.ceil(retryAfter / 1000));
    const [span, name] = SPANS.find(([span]) => seconds % span === 0 || seconds >= 2 * span)!;
    const number = Math.ceil(seconds / span);
    return `try again in ${number} ${name}${number === 1 ? '' : 's'}`;
}

function denialOf(denial: any): Pick<RateLimitError, 'retryAfter' | 'headers'> | undefined {
    const { ok, retryAfter, headers } = denial ?? {};
    const isAnswer = ok === false && retryAfter !== undefined;
    return isAnswer ? { retryAfter, headers: headers ?? retryHeader(retryAfter) } : RateLimitError.from(denial);
}

/** PT429, or the same in the form of PostgREST (ratelimit.error_style); its DETAIL is `detail` or `details`. */
function databaseDenial(found: any): { detail?: unknown; details?: unknown } | undefined {
    if (sqlstate(found) === 'PT429') return found;
    const inside = sqlstate(found) === 'PGRST' ? parsed(found.originalMessage ?? found.message) : {};
    return inside.code === 'PT429' ? inside : undefined;
}

/** The object in JSON; an empty one if there is none, or the JSON was cut. */
function parsed(text: unknown): any {
    try {
        const value = JSON.parse(String(text));
        return isObject(value) ? value : {};
    } catch {
        return {};
    }
}

// The fields in which wrappers have the wrapped error: Drizzle and most others, Prisma, TypeORM, Sequelize,
// PostGraphile; a part of a stream of the AI SDK.
const INSIDE = ['error', 'cause', 'meta', 'driverAdapterError', 'driverError', 'parent', 'originalError'];

/** The error and all errors that it wraps, from the outside in. */
export function causes(error: unknown): any[] {
    const found: any[] = [error].filter(isObject);
    for (const outer of found) {
        // With several tries, the last one ended the call.
        const tries = outer.lastError ?? outer.errors;
        const inner = INSIDE.map((name) => outer[name]).concat(Array.isArray(tries) || isObject(tries) ? tries : []);
        found.push(...inner.filter((each) => isObject(each) && !found.includes(each)));
        if (found.length > 100) break;
    }
    return found;
}
const isObject = (value: unknown) => typeof value === 'object' && value !== null;

/** Throws a TypeError for an option that is not allowed. */
export function allow(is: boolean, option: string, value: unknown, allowed: string): void {
    if (!is) throw new TypeError(`${option} is ${value}; allowed: ${allowed}`);
}

export const sqlstate = (found: any): unknown => found.originalCode ?? found.code;

/** The innermost error alone, for logs: a wrapper may show the call's parameters, and so its key. */
export function innermost(error: unknown): Error {
    const inner = causes(error).at(-1);
    if (!inner) return new Error('unknown');
    return Object.assign(new Error(inner.originalMessage ?? inner.message ?? inner.kind), { code: sqlstate(inner) });
}

/** The SQLSTATE and message of the database's error in this one: of the first that has any of these SQLSTATEs. */
export function databaseError(error: unknown, ...codes: string[]): { code: string; message: string } | undefined {
    const found = causes(error).find((each) => codes.includes(sqlstate(each) as string));
    return found && { code: sqlstate(found) as string, message: String(found.originalMessage ?? found.message) };
}

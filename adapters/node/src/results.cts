// What calls return: rows as JavaScript has them. Waits are milliseconds, times are Dates.
import { RateLimitError, retryHeader } from './errors.cjs';

/** What a call says of the tokens of a limit. */
interface Tokens {
    /** Denied: milliseconds until the same call can pass, null if it never can. Reserved: until the work may begin. */
    retryAfter: number | null;
    /** The same as a time, by the database's clock. */
    retryAt: Date | null;
    /** Tokens left after the call; negative: a debt. null: the key is exempt. */
    remaining: number | null;
    /** The most tokens that it can hold. null: the key is exempt. */
    capacity: number | null;
    /** When it will be full again. */
    resetAt: Date | null;
}

/** The key is blocked; too few slots are free; too few tokens are left, or there can never be enough. */
export type LimitedBy = 'block' | 'slots' | 'tokens';

/** What a call that decides says of a limit. */
interface Decided extends Tokens {
    /** What denies it; null: nothing, or only other requests of the call. If `ok` is true, only a dry run admitted it. */
    limitedBy: LimitedBy | null;
}

export interface Result extends Decided {
    /** Whether the tokens were taken; of check, whether they would be. */
    ok: boolean;
    /** Those of HTTP that the call was asked for; else Retry-After, if it was denied and can pass later. */
    headers: Record<string, string>;
    /** Where it was allowed unchecked (`onError: 'open'`): the innermost error. */
    error?: Error & { code?: string };
}

/** Of one request of several. */
export interface RequestResult extends Decided {
    name: string;
    key: string;
    /** Whether all were admitted. */
    ok: boolean;
}

/** Of one limit of a hold that is settled. */
export interface SettleResult extends Tokens {
    name: string;
    key: string;
}

export interface AllResult {
    /** Whether all were admitted. */
    ok: boolean;
    /** Denied: milliseconds until none of them denies, null if one always will. */
    retryAfter: number | null;
    retryAt: Date | null;
    /** The request that denies with the longest wait; null: all were admitted. */
    deniedBy: RequestResult | null;
    /** As of Result. */
    headers: Record<string, string>;
    /** Where they were allowed unchecked. */
    error?: Error & { code?: string };
    /** In the order of the requests. */
    results: RequestResult[];
}

// Rows have one word for each column, which no naming plugin of an ORM changes, and seconds for each time, since drivers
// read times in many ways.
const TIMES = `retry_after AS wait, date_part('epoch', retry_at) AS at`;
export const TOKENS = `${TIMES}, remaining, capacity, date_part('epoch', reset_at) AS reset`;
export const DECIDED = `${TOKENS}, limited_by AS limited`;

export const number = (value: unknown): number | null => (value === null || value === undefined ? null : Number(value));
/** Rounded up: none may come back too early. Less than a microsecond is noise of the float8. */
const up = (seconds: unknown): number => Math.ceil(Number(seconds) * 1000 - 0.0005);
export const milliseconds = (seconds: unknown): number | null => (number(seconds) === null ? null : up(seconds));
/** The time when something can pass, or is full. */
const at = (seconds: unknown): Date | null => (number(seconds) === null ? null : new Date(up(seconds)));
/** The time when something expires, rounded down. */
export const date = (seconds: unknown): Date | null =>
    number(seconds) === null ? null : new Date(Math.floor(Number(seconds) * 1000 + 0.0005));

export const tokensOf = (row: any): Tokens => ({
    retryAfter: milliseconds(row.wait),
    retryAt: at(row.at),
    remaining: number(row.remaining),
    capacity: number(row.capacity),
    resetAt: at(row.reset),
});
const decidedOf = (row: any): Decided => ({ ...tokensOf(row), limitedBy: row.limited ?? null });
export function resultOf(row: any): Result {
    const decided = decidedOf(row);
    return { ok: row.ok, ...decided, headers: headersOf(row, row.ok ? null : decided.retryAfter), ...errorOf(row) };
}
/** A row's headers; those of a denial that was remembered have fewer seconds by what has passed. */
function headersOf({ headers, passed }: any, retryAfter: number | null): Record<string, string> {
    if (headers === undefined) return retryHeader(retryAfter);
    const told = Object.entries<string>(JSON.parse(headers));
    if (passed === undefined) return Object.fromEntries(told);
    const less = (text: string) =>
        text.replace(/(?<=;t=)\d+/g, (seconds) => String(Math.max(Number(seconds) - Math.floor(passed / 1000), 0)));
    const isWait = (name: string) => name.toLowerCase() === 'retry-after' && retryAfter !== null;
    const aged = told.map(([name, text]) => [name, isWait(name) ? retryHeader(retryAfter)['Retry-After'] : less(text)]);
    return Object.fromEntries(aged);
}
/** Of a row that stands for an answer of the database; absent, as a rule. */
export const errorOf = ({ error }: { error?: Error }) => (error === undefined ? {} : { error });

export const requestOf = (row: any): RequestResult => ({
    name: row.name,
    key: row.key,
    ok: row.ok,
    ...decidedOf(row),
});

export function allOf(rows: any[]): AllResult {
    const results = rows.map(requestOf);
    const ok = results.every((each) => each.ok);
    const deniedBy = ok ? null : last(results);
    const { retryAfter, retryAt } = deniedBy ?? { retryAfter: null, retryAt: null };
    const first = rows[0] ?? {};
    return { ok, retryAfter, retryAt, deniedBy, headers: headersOf(first, retryAfter), results, ...errorOf(first) };
}

/**
 * The requests that deny. If one can never pass, none has a wait; so if another has one, one without is a dry run,
 * which would deny and doesn't.
 */
export function denying<R extends Pick<Decided, 'retryAfter' | 'limitedBy'>>(results: R[]): R[] {
    const deny = results.filter(({ limitedBy }) => limitedBy !== null);
    const waits = deny.filter(({ retryAfter }) => retryAfter !== null);
    return waits.length > 0 ? waits : deny;
}
/** The same of rows. One of a store, which has no `limited`, denies. */
export const denyingRows = (rows: any[]): any[] =>
    denying(rows.map((row) => ({ row, limitedBy: row.limited, retryAfter: row.wait }))).map(({ row }) => row);

/** Of the requests that deny, the one with the longest wait. */
function last(results: RequestResult[]): RequestResult {
    const wait = ({ retryAfter }: RequestResult) => retryAfter ?? Infinity;
    const deny = denying(results);
    return deny.reduce((one, other) => (wait(other) > wait(one) ? other : one), deny[0] ?? results[0]);
}

type Denied = Pick<Result, 'retryAfter' | 'retryAt'> & { headers?: Record<string, string> };
export const denial = (name: string, { retryAfter, retryAt, headers }: Denied) =>
    new RateLimitError(name, retryAfter, retryAt, { headers });

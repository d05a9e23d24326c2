// The results of calls: rows as JavaScript objects. Waits are milliseconds, times are Dates.
import { RateLimitError, retryHeader } from './errors';

/** The tokens of a limit in a result. */
interface Tokens {
    /** Denied: milliseconds until the same call can pass, null if it never can. Reserved: until the work may begin. */
    retryAfter: number | null;
    /** `retryAfter` as a time, by the database's clock. */
    retryAt: Date | null;
    /** Tokens left after the call; negative: a debt. null: the key is exempt. */
    remaining: number | null;
    /** The maximum number of tokens of the limit. null: the key is exempt. */
    capacity: number | null;
    /** The time when it will be full again. */
    resetAt: Date | null;
}

/** The key is blocked; too few slots are free; too few tokens are left, or there can never be enough. */
export type LimitedBy = 'block' | 'slots' | 'tokens';

/** The decision of a call on a limit. */
interface Decided extends Tokens {
    /** The reason of the denial; null: none, or only other requests. If `ok` is true, only a dry run admitted it. */
    limitedBy: LimitedBy | null;
}

export interface Result extends Decided {
    /** Whether the tokens were taken; for check, whether they would be. */
    ok: boolean;
    /** The HTTP headers that the call asked for, or else Retry-After, if it was denied and can pass later. */
    headers: Record<string, string>;
    /** If it was allowed unchecked (`onError: 'open'`): the innermost error. */
    error?: Error & { code?: string };
}

/** The result of one limit of a settled hold. */
export interface SettleResult extends Tokens {
    name: string;
    key: string;
}

/** The result of one request of several. `ok`: whether all were admitted. */
export interface RequestResult extends Decided, SettleResult, Pick<Result, 'ok'> {}

/** `ok`: whether all were admitted. Denied: `retryAfter` until none of them denies, null if one always will. */
export interface AllResult extends Pick<Result, 'ok' | 'retryAfter' | 'retryAt' | 'headers' | 'error'> {
    /** The denying request with the longest wait; null: all were admitted. */
    deniedBy: RequestResult | null;
    /** In the order of the requests. */
    results: RequestResult[];
}

// Rows have one word for each column, which no naming plugin of an ORM changes, and seconds for each time, because
// drivers read times in many ways.
const TIMES = `retry_after AS wait, date_part('epoch', retry_at) AS at`;
export const TOKENS = `${TIMES}, remaining, capacity, date_part('epoch', reset_at) AS reset`;
export const DECIDED = `${TOKENS}, limited_by AS limited`;

export const number = (value: unknown): number | null => (value === null || value === undefined ? null : Number(value));
/** Rounded up: no caller may come back too early. Less than a microsecond is float error. */
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
/** The headers that a row has, or else Retry-After; of a remembered denial with fewer seconds, by the time passed. */
function headersOf({ headers, passed }: any, retryAfter: number | null): Record<string, string> {
    if (!headers) return retryHeader(retryAfter);
    const told = Object.entries<string>(JSON.parse(headers));
    if (passed === undefined) return Object.fromEntries(told);
    const less = (text: string) =>
        text.replace(/(?<=;t=)\d+/g, (seconds) => String(Math.max(Number(seconds) - Math.floor(passed / 1000), 0)));
    const isWait = (name: string) => name.toLowerCase() === 'retry-after' && retryAfter !== null;
    const aged = told.map(([name, text]) => [name, isWait(name) ? retryHeader(retryAfter)['Retry-After'] : less(text)]);
    return Object.fromEntries(aged);
}
/** The id of what is held until a time. A row that stands for an answer of the database has none. */
const expiringOf = ({ lease, hold, expires }: any) => ({ id: lease ?? hold ?? null, expiresAt: date(expires) });
export function heldOf(row: any) {
    const { headers, ...result } = resultOf(row);
    return { ...result, ...expiringOf(row) };
}
export function heldAllOf(rows: any[]) {
    const { results, headers, ...all } = allOf(rows);
    const held = results.map((result, n) => ({ ...result, held: number(rows[n].held) }));
    return { ...all, ...expiringOf(rows.find(({ hold }) => hold != null) ?? {}), results: held };
}
/** The error of a row that stands for an answer of the database; usually absent. */
const errorOf = ({ error }: { error?: Error | null }) => (error ? { error } : {});

export function allOf(rows: any[]): AllResult {
    const results = rows.map((row) => ({ name: row.name, key: row.key, ok: row.ok, ...decidedOf(row) }));
    const ok = results.every((each) => each.ok);
    const deniedBy = ok ? null : results[rows.indexOf(last(rows))];
    const { retryAfter, retryAt } = deniedBy ?? { retryAfter: null, retryAt: null };
    const first = rows[0] ?? {};
    return { ok, retryAfter, retryAt, deniedBy, headers: headersOf(first, retryAfter), results, ...errorOf(first) };
}

/**
 * The rows of denying requests. If one can never pass, none has a wait; so if another has one, a request without a wait
 * is a dry run, which would deny and doesn't.
 */
export function denying(rows: any[]): any[] {
    const deny = rows.filter(({ limited }) => limited !== null);
    const waits = deny.filter(({ wait }) => wait !== null);
    return waits.length > 0 ? waits : deny;
}
/** The denying request with the longest wait. */
function last(rows: any[]): any {
    const wait = (row: any) => milliseconds(row.wait) ?? Infinity;
    const deny = denying(rows);
    return deny.reduce((one, other) => (wait(other) > wait(one) ? other : one), deny[0] ?? rows[0]);
}

export type Denied = Pick<Result, 'ok' | 'retryAfter' | 'retryAt'> & Partial<Pick<AllResult, 'headers' | 'deniedBy'>>;
/** A denial as an error: of the limit that denies, or of the only one, NAME. */
export const denial = ({ retryAfter, retryAt, headers, deniedBy }: Denied, name: string) =>
    new RateLimitError(deniedBy?.name ?? name, retryAfter, retryAt, { headers });

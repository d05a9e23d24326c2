// What calls return: rows as JavaScript has them. Waits are milliseconds, times are Dates.
import { RateLimitError } from './errors.cjs';

export interface Result {
    /** Whether the tokens were taken; of check, whether they would be. */
    ok: boolean;
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
    /** Where it was allowed unchecked (`onError: 'open'`): the innermost error. */
    error?: Error & { code?: string };
}

/** Of one request of several. */
export interface RequestResult extends Result {
    name: string;
    key: string;
    /** Whether this one would be admitted without those for other limits. */
    allows: boolean;
}

export interface AllResult {
    /** Whether all were admitted. */
    ok: boolean;
    /** Denied: milliseconds until none of them denies, null if one always will. */
    retryAfter: number | null;
    retryAt: Date | null;
    /** Where they were allowed unchecked. */
    error?: Error & { code?: string };
    /** In the order of the requests. */
    results: RequestResult[];
}

// Rows have one word for each column, which no naming plugin of an ORM changes, and seconds for each time, since drivers
// read times in many ways.
const TIMES = `retry_after AS wait, date_part('epoch', retry_at) AS at`;
export const FREE = `${TIMES}, remaining, capacity`;
export const RESULT = `${FREE}, date_part('epoch', reset_at) AS reset`;

export const number = (value: unknown): number | null => (value === null || value === undefined ? null : Number(value));
/** Rounded up: none may come back too early. Less than a microsecond is noise of the float8. */
const up = (seconds: unknown): number => Math.ceil(Number(seconds) * 1000 - 0.0005);
export const milliseconds = (seconds: unknown): number | null => (number(seconds) === null ? null : up(seconds));
/** The time when something can pass, or is full. */
const at = (seconds: unknown): Date | null => (number(seconds) === null ? null : new Date(up(seconds)));
/** The time when something expires, rounded down. */
export const date = (seconds: unknown): Date | null =>
    number(seconds) === null ? null : new Date(Math.floor(Number(seconds) * 1000 + 0.0005));

export const resultOf = (row: any): Result => ({
    ok: row.ok,
    retryAfter: milliseconds(row.wait),
    retryAt: at(row.at),
    remaining: number(row.remaining),
    capacity: number(row.capacity),
    resetAt: at(row.reset),
    ...errorOf(row),
});
/** Of a row that stands for an answer of the database; absent, as a rule. */
export const errorOf = ({ error }: { error?: Error }) => (error === undefined ? {} : { error });

export function allOf(rows: any[]): AllResult {
    const results = rows.map((row) => ({ name: row.name, key: row.key, allows: row.allows, ...resultOf(row) }));
    const ok = results.every((each) => each.ok);
    const { retryAfter, retryAt } = ok ? { retryAfter: null, retryAt: null } : last(results);
    return { ok, retryAfter, retryAt, results, ...errorOf(rows[0] ?? {}) };
}

/** Of the requests that deny, the one with the longest wait. */
export function last(results: RequestResult[]): RequestResult {
    const wait = ({ retryAfter }: Result) => retryAfter ?? Infinity;
    const deny = results.filter(({ allows }) => !allows);
    return deny.reduce((one, other) => (wait(other) > wait(one) ? other : one), deny[0] ?? results[0]);
}

export const denial = (name: string, result: Pick<Result, 'retryAfter' | 'retryAt'> & { remaining?: number | null }) =>
    new RateLimitError(name, result.retryAfter, result.retryAt, { remaining: result.remaining ?? null });

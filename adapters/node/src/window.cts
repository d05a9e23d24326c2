// The window in which a store counts a key's requests, and the form of its answers for a middleware.
import { createHash } from 'node:crypto';

import type { Database } from './database.cjs';

/** A key that the extension accepts: a longer one, or one with a NUL, becomes its hash. */
export function keyOf(key: string, most = 1024): string {
    if (typeof key !== 'string') return key;
    // UTF-8 maps all halves of surrogate pairs to one text, so their hash is of UTF-16.
    const isWhole = !/\p{Surrogate}/u.test(key);
    // A key that looks like a hash is hashed, too, so that it can't collide with another key's.
    const taken = isWhole && Buffer.byteLength(key) <= most && !key.includes('\0') && !key.startsWith('sha256:');
    return taken ? key : `sha256:${createHash('sha256').update(key, isWhole ? 'utf8' : 'utf16le').digest('hex')}`;
}

/** Whether the database can decide with this limit. */
const isWhole = (limit: unknown): limit is number => Number.isSafeInteger(limit) && (limit as number) > 0;

/**
 * The config of a window in which a key has LIMIT requests, as JSON.
 *
 * If the database decides, a request beyond the limit is denied and takes nothing. With COUNTS_ALL, or if it can't
 * decide, each request is counted (`overage`), and the middleware compares.
 */
export function windowOf(limit: unknown, milliseconds: number, store: string, countsAll: boolean): string {
    const rate = isWhole(limit) ? limit : 1;
    const config: Record<string, unknown> = {
        kind: 'fixed window',
        rate,
        period: milliseconds,
        start: 'first request',
        store,
    };
    if (countsAll || !isWhole(limit)) config.overage = true;
    return JSON.stringify(config);
}

/**
 * Takes one of a key's window: returns the requests counted, more than the limit if it was denied, and the milliseconds
 * until the window ends or a denied call can pass. Unchecked: the answer of the first request in a window.
 */
export async function takeOne(
    database: Database,
    name: string,
    key: string,
    limit: unknown,
    milliseconds: number,
    countsAll = false,
): Promise<{ hits: number; wait: number }> {
    const config = windowOf(limit, milliseconds, database.store, countsAll);
    const row = (await database.take(name, keyOf(key), config)) ?? { ok: true, hits: 1, wait: milliseconds };
    return { hits: hitsOf(row, limit), wait: Number(row.wait ?? milliseconds) };
}

/** Returns the requests counted by a row of rl_limit: more than the limit if it was denied. */
export function hitsOf(row: { ok: boolean; hits: unknown }, limit: unknown): number {
    if (row.ok) return Number(row.hits);
    return isWhole(limit) ? limit + 1 : Number.MAX_SAFE_INTEGER;
}

/**
 * The end of a wait by the clock of this process, with which the middleware compares it. Truncated to a millisecond: a
 * window of 60 seconds must not become one of 61.
 *
 * The middleware rounds the rest to seconds a moment later; the rest of a denial is then enough for one second.
 */
export function resetTimeOf({ ok, wait }: { ok: boolean; wait: unknown }, milliseconds?: number): Date {
    const left = Math.floor(Number(wait ?? milliseconds));
    return new Date(Date.now() + Math.max(left, ok ? 1 : 20));
}

/** A wait in whole seconds. Rounded up to a millisecond: 60 seconds must not become 61, nor the last millisecond 0. */
export const secondsOf = (milliseconds: number): number => Math.max(Math.ceil(milliseconds / 1000 - 0.001), 1);

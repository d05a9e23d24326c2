// Calls that can't be decided now: the errors that say so, and the time-out.
import type { QueryConfig } from 'pg';

import { 'not now' as notNow } from '../../facts.json';
import { allow, causes, sqlstate } from './errors';

/** "open": a call that can't be decided now is allowed. Denials, mistakes and refused logins are errors in any case. */
export type OnError = 'closed' | 'open';

/** Of a server that is a standby, full, starting or stopping, or timed out. PgBouncer refuses logins by 08P01, too. */
const isNotNowState = (code: string) =>
    notNow.sqlstates.includes(code) || (code.startsWith(notNow.class) && !notNow.except.includes(code));
// No server answers, or not any more: errors of Node, of postgres.js, of Prisma.
const NO_ANSWER = [
    ...['ECONNREFUSED', 'ECONNRESET', 'ECONNABORTED', 'EPIPE', 'ETIMEDOUT', 'EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH'],
    ...['ENOTFOUND', 'EAI_AGAIN', 'CONNECT_TIMEOUT', 'CONNECTION_CLOSED', 'CONNECTION_DESTROYED'],
    ...['P1001', 'P1002', 'P1008', 'P1017', 'P2024'],
    ...['DatabaseNotReachable', 'ConnectionClosed', 'SocketTimeout'],
];
// Errors for which pg has no code.
const LOST = [
    'Connection terminated',
    'Connection terminated unexpectedly',
    'Connection terminated due to connection timeout',
    'timeout expired',
    'timeout exceeded when trying to connect',
    'Query read timeout',
    'Client has encountered a connection error and is not queryable',
];

/** There is no socket. Another missing file, such as a password or a certificate, is a mistake. */
const hasNoSocket = ({ code, syscall }: any) => code === 'ENOENT' && syscall === 'connect';

/** Whether an error, or a wrapped one, is in docs/failing.md. An SQLSTATE comes first: then the server has answered. */
export function isNotNow(error: unknown): boolean {
    const all = causes(error);
    const codes = codesOf(all);
    const states = codes.filter(isState);
    if (states.length > 0) return states.every(isNotNowState);
    if (codes.some((code) => NO_ANSWER.includes(code)) || all.some(hasNoSocket)) return true;
    return all.some(({ message }) => LOST.includes(message));
}

const codesOf = (all: any[]) => all.map((each) => String(sqlstate(each) ?? each.kind));
const isState = (code: string) => /^(?!P[1-9])[0-9A-Z]{5}$/.test(code) && !NO_ANSWER.includes(code);

/**
 * What to do with the calls of a failed statement: they end with it, or each is sent again, alone; "apart": as those
 * after them. None is sent again if each would have failed alone, or may have taken what it asked for.
 */
export function fateOf(error: unknown, isSerializable: boolean): 'ended' | 'alone' | 'apart' {
    const state = codesOf(causes(error)).find(isState);
    // The function may not be called, is missing, or can't wait for a limited time: on Citus.
    if (state === '42501' || state === '42883' || state === '0A000') return 'apart';
    // 42704: a definition went after the tokens were taken, before rl_headers; those in memory stay taken.
    const ends = isNotNow(error) || /^(08|28|3D|53|57|42704)/.test(state ?? '08') || (state === '40001' && isSerializable);
    return ends ? 'ended' : 'alone';
}

/** The error of a call that has taken too long. */
export const late = (what: 'connection to' | 'answer of', milliseconds: number): Error =>
    Object.assign(new Error(`there was no ${what} the database within ${milliseconds} ms`), { code: 'ETIMEDOUT' });

/** Whether this is a Pool of pg, which lends clients. */
export const isPool = (db: any): boolean => typeof db.totalCount === 'number' && typeof db.connect === 'function';

/** Runs a statement on a Pool of pg: it fails after a time, and its connection, if it has one, is closed. */
export function pooled(pool: any, statement: QueryConfig, milliseconds: number): Promise<{ rows: any[] }> {
    return new Promise((resolve, reject) => {
        const until = performance.now() + milliseconds; // the clock may step
        let ended = false;
        const timer = setTimeout(() => {
            ended = true;
            reject(late('connection to', milliseconds));
        }, milliseconds);
        const lent = (error: unknown, client: any, release: (error?: unknown) => void) => {
            clearTimeout(timer);
            if (error) return reject(error);
            if (ended) return release();
            client.on('error', ignore); // the query ends with it, too
            const query_timeout = Math.max(Math.ceil(until - performance.now()), 1);
            client.query({ ...statement, query_timeout }, (error: unknown, result: any) => {
                client.off('error', ignore);
                release(error); // with an error the pool closes the connection
                if (error) reject(error);
                else resolve(result);
            });
        };
        try {
            pool.connect(lent);
        } catch (error) {
            clearTimeout(timer); // a client that can't be made
            reject(error);
        }
    });
}

/** The same for a call that can't be stopped: it may continue in the database. */
export function within<T>(running: Promise<T>, milliseconds: number): Promise<T> {
    return new Promise((resolve, reject) => {
        const error = late('answer of', milliseconds);
        const timer = setTimeout(() => reject(error), milliseconds);
        running.then(resolve, reject).finally(() => clearTimeout(timer));
    });
}

/** Throws a TypeError for invalid options. */
export function checkedFailing({ onError = 'open', timeout = 1 }: { onError?: unknown; timeout?: any }): void {
    allow(onError === 'closed' || onError === 'open', 'onError', onError, '"closed", "open"');
    const isSpan = Number.isInteger(timeout) && timeout >= 1 && timeout <= 2 ** 31 - 1;
    allow(isSpan, 'timeout', timeout, 'milliseconds, an integer from 1 on');
}

/** Runs a function, and ignores whatever it throws or rejects with. */
export function quietly(run: () => unknown): void {
    new Promise((resolve) => resolve(run())).catch(ignore); // it is for logs only
}

export function ignore() {}

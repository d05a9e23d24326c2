// What the routes of express.js and hono.js have: a limiter, and sessions by the browser's cookie.
import pg from 'pg';

import { MINUTE, RateLimiter, tokenBucket } from 'postgres-rate-limit';

export const pool = new pg.Pool();
export const limiter = new RateLimiter(
    { sendMessage: tokenBucket({ rate: 1, period: MINUTE, keyed: true }) },
    { db: pool },
);

const sessions = { 's-ada': { user: 'ada' }, 's-bob': { user: 'bob' } };
export const sessionOf = (cookie) => sessions[/session=([\w-]+)/.exec(cookie ?? '')?.[1]];

/** The authors of messages that were sent. */
export const sent = [];
export async function send(author) {
    const { ok } = await limiter.limit('sendMessage', { key: author });
    if (ok) sent.push(author);
    return ok;
}

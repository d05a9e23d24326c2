// An application of oracle.test.js: until its input ends it calls limits in a loop, and writes down each call before it
// is made, and its answer. Written at once, so that nothing is lost if it is killed.
import { writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import pg from 'pg';

import { RateLimiter } from 'postgres-rate-limit';

const { seed, number, keys, ...options } = JSON.parse(process.argv[2]);
const pool = new pg.Pool({ max: 4, ...options.pool });
pool.on('error', () => {});
pool.on('connect', (client) => client.on('error', () => {}));
const limiter = new RateLimiter({}, { db: pool, ...options.limiter });

let state = seed;
/** A number below MOST, of a generator that a seed repeats. */
const below = (most) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * most);
};
let stopped = false;
process.stdin.resume().on('end', () => (stopped = true));
const write = (...fields) => writeSync(1, `${fields.join(' ')}\n`);

let calls = 0;
const worker = async () => {
    while (!stopped) {
        const n = calls++;
        // Half are for the first key.
        const key = below(2) === 0 ? 0 : below(keys.length);
        const count = [1, 1, 1, 2, 3, -1, NaN][below(7)];
        write('call', n, key, count);
        const answer = await limiter.limit('oracle', { key: keys[key].key, count, config: keys[key].config }).then(
            ({ ok }) => (ok ? 'ok' : 'denied'),
            ({ code, message }) => `failed ${code ?? message.replaceAll(' ', '_')}`,
        );
        write('answer', n, answer);
        await sleep(below(4));
    }
};
await Promise.all(Array.from({ length: number }, worker));
await pool.end();
write('end');

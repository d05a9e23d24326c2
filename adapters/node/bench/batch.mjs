// How many calls a second a pool answers one by one, prepared and not, and together (batch), with 16 and 64 at once, in
// the table and in memory, and what they cost the server: of 1,024 keys, all admitted, on a server of which this is the
// only load.
//   node bench/batch.mjs [SECONDS]    by PGHOST, PGUSER and PGDATABASE; the server is on this machine
import { readFileSync } from 'node:fs';

import pg from 'pg';

import { HOUR, RateLimiter, fixedWindow } from 'postgres-rate-limit';

const seconds = Number(process.argv[2] ?? 3);
const [KEYS, POOL] = [1024, 16];

/** The CPU seconds of the sessions of a pool so far, by /proc. */
async function cpu(pool) {
    const { rows } = await pool.query(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'",
    );
    const ticks = ({ pid }) => {
        const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
        return Number(fields[11]) + Number(fields[12]);
    };
    return rows.reduce((sum, row) => sum + ticks(row), 0) / 100;
}

/** Calls a second of this number of callers, milliseconds of the median and of the slowest of a hundred, and CPU each. */
async function measure(store, callers, options) {
    const pool = new pg.Pool({ max: POOL });
    const config = { ...fixedWindow({ rate: 1e9, period: 1000 * HOUR, start: 'first request' }), store };
    const limiter = new RateLimiter({}, { db: pool, ...options });
    const call = (n) => limiter.limit(`batch ${store}`, { key: `user-${n % KEYS}`, config });
    await Promise.all(Array.from({ length: POOL }, () => pool.query('SELECT pg_sleep(0.05)'))); // connects
    for (let n = 0; n < KEYS; n++) await call(n);
    const times = [];
    const before = await cpu(pool);
    const began = performance.now();
    const until = began + seconds * 1000;
    let n = 0;
    await Promise.all(
        Array.from({ length: callers }, async () => {
            for (let at = performance.now(); at < until; ) {
                if (!(await call(n++ * 7)).ok) throw new Error('a call was denied');
                const now = performance.now();
                times.push(now - at);
                at = now;
            }
        }),
    );
    const rate = times.length / ((performance.now() - began) / 1000);
    const spent = ((await cpu(pool)) - before) / times.length;
    await pool.end();
    times.sort((one, other) => one - other);
    const at = (part) => times[Math.floor(times.length * part)].toFixed(2);
    return { rate, text: `${Math.round(rate)}/s, p50 ${at(0.5)} ms, p99 ${at(0.99)} ms, ${(spent * 1e6).toFixed(0)} µs CPU` };
}

const WAYS = {
    unprepared: { prepare: false, batch: false },
    prepared: { batch: false },
    together: {},
};
for (const store of ['table', 'memory'])
    for (const callers of [1, 16, 64]) {
        let first;
        for (const [way, options] of Object.entries(WAYS)) {
            const { rate, text } = await measure(store, callers, options);
            first ??= rate;
            console.log(`${store}, ${callers} at once, ${way}: ${text}, ${(rate / first).toFixed(2)} times`);
        }
    }

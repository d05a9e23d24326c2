// How many requests a second one key gets denied, and what that costs the server, with and without rememberDenials: the
// client and a store, in this process, on a server of which this is the only load.
//   node bench/flood.mjs [SECONDS]    by PGHOST, PGUSER and PGDATABASE; the server is on this machine
import { readFileSync } from 'node:fs';

import pg from 'pg';

import { HOUR, RateLimiter, fixedWindow } from 'postgres-rate-limit';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';

const seconds = Number(process.argv[2] ?? 5);
const pool = new pg.Pool({ max: 10 });
/** The CPU seconds of the sessions of the pool so far, by /proc. */
const cpu = async () => {
    const { rows } = await pool.query(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'",
    );
    const ticks = ({ pid }) => {
        const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
        return Number(fields[11]) + Number(fields[12]);
    };
    return rows.reduce((sum, row) => sum + ticks(row), 0) / 100;
};

const config = fixedWindow({ rate: 1, period: HOUR, start: 'first request' });
const ways = {
    client: (rememberDenials) => {
        const limiter = new RateLimiter({}, { db: pool, rememberDenials });
        return async () => (await limiter.limit('flood', { key: `${process.pid}`, config })).ok;
    },
    store: (rememberDenials) => {
        const store = new RateLimitStore({ db: pool, name: `flood ${process.pid}`, rememberDenials });
        store.init({ limit: 1, windowMs: HOUR });
        return async () => (await store.increment('k')).totalHits <= 1;
    },
};
/** Requests a second, and the server's CPU time for each, in microseconds. */
async function flood(call) {
    await call();
    await Promise.all(Array.from({ length: 10 }, () => pool.query('SELECT pg_sleep(0.05)'))); // connects
    let requests = 0;
    const [before, began] = [await cpu(), performance.now()];
    const until = began + seconds * 1000;
    const flooding = async () => {
        while (performance.now() < until) {
            if (await call()) throw new Error('a request passed');
            requests += 1;
            if (requests % 100 === 0) await new Promise(setImmediate);
        }
    };
    await Promise.all(Array.from({ length: 10 }, flooding));
    const spent = (await cpu()) - before;
    return { requests: requests / ((performance.now() - began) / 1000), cpu: (spent / requests) * 1e6, spent };
}

for (const [name, make] of Object.entries(ways)) {
    const [without, remembered] = [await flood(make(false)), await flood(make(true))];
    const line = ({ requests, cpu, spent }) =>
        `${Math.round(requests)} requests/s, ${cpu.toFixed(2)} µs of server CPU each, ${spent.toFixed(2)} s in all`;
    console.log(`${name}, asked:      ${line(without)}`);
    console.log(`${name}, remembered: ${line(remembered)}`);
    console.log(`${name}: ${(remembered.requests / without.requests).toFixed(0)} times the requests`);
}
await pool.end();

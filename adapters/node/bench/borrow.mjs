// What borrowed tokens cost, and one call each, with 1, 10 and 100 processes on one key: takes a second and the server's
// CPU time for each; then, where the processes together want less than a limit gives, how many calls are denied although
// there are tokens, in the batches of others; and where they want more.
//   node bench/borrow.mjs [SECONDS]    by PGHOST, PGUSER and PGDATABASE; the server is on this machine, without other load
import { fork } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import pg from 'pg';

import { RateLimiter, SECOND, tokenBucket } from 'postgres-rate-limit';

const LIMITS = {
    plenty: tokenBucket({ rate: 1e9, period: SECOND }),
    second: tokenBucket({ rate: 1000, period: SECOND }),
    tenth: tokenBucket({ rate: 1000, period: SECOND, capacity: 100 }),
};

/** One process: takes for some seconds, as fast as it can or, at random times, at the wanted rate per second. */
async function worker({ name = 'plenty', borrows, wanted, seconds, key, max }) {
    const pool = new pg.Pool({ max: 1 });
    const limiter = new RateLimiter(LIMITS, { db: pool });
    const local = limiter.borrow(name, { max });
    const borrowed = async () => local.take({ key }) || (await local.limit({ key })).ok;
    const take = borrows ? borrowed : async () => (await limiter.limit(name, { key })).ok;
    await take();
    process.send('ready');
    await new Promise((resolve) => process.once('message', resolve));
    let [takes, denied, next] = [0, 0, performance.now()];
    const until = performance.now() + seconds * 1000;
    const count = (ok) => (ok ? (takes += 1) : (denied += 1));
    const open = new Set();
    while (performance.now() < until) {
        if (wanted) {
            next += (-Math.log(Math.random()) / wanted) * 1000;
            await sleep(Math.max(next - performance.now(), 0));
            const call = take().then(count);
            open.add(call);
            void call.then(() => open.delete(call));
        } else if (borrows) {
            for (let n = 0; n < 1000; n++) count(local.take({ key }) || (await local.limit({ key })).ok);
            await new Promise(setImmediate);
        } else count(await take());
    }
    await Promise.all(open);
    process.send({ takes, denied });
    await new Promise((resolve) => process.once('message', resolve));
    await local.close();
    await pool.end();
    process.disconnect();
}

/** The CPU seconds of the sessions of the database so far, by /proc. */
async function cpu(pool) {
    const { rows } = await pool.query(
        'SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
    );
    const ticks = ({ pid }) => {
        const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
        return Number(fields[11]) + Number(fields[12]);
    };
    return rows.reduce((sum, row) => sum + ticks(row), 0) / 100;
}
const message = (child) => new Promise((resolve) => child.once('message', resolve));

async function measure(pool, processes, given) {
    const key = `${process.pid} ${Math.random()}`;
    const wanted = given.wanted && given.wanted / processes;
    const children = Array.from({ length: processes }, () =>
        fork(fileURLToPath(import.meta.url), [JSON.stringify({ ...given, wanted, key })]),
    );
    await Promise.all(children.map(message));
    const before = await cpu(pool);
    for (const child of children) child.send('go');
    const answers = await Promise.all(children.map(message));
    const spent = (await cpu(pool)) - before;
    for (const child of children) child.send('end');
    await Promise.all(children.map((child) => new Promise((resolve) => child.once('exit', resolve))));
    const sum = (field) => answers.reduce((all, each) => all + each[field], 0);
    const [takes, denied] = [sum('takes'), sum('denied')];
    const calls = takes + denied;
    return { takes: takes / given.seconds, denied: (100 * denied) / calls, cpu: (spent / calls) * 1e6 };
}

if (process.send) await worker(JSON.parse(process.argv[2]));
else {
    const seconds = Number(process.argv[2] ?? 5);
    const pool = new pg.Pool({ max: 1 });
    const WAYS = {
        'one call each': { borrows: false },
        'borrowed, max 100': { borrows: true, max: 100 },
        'borrowed, max 10000': { borrows: true, max: 10_000 },
        'one call each, 800 of 1000 wanted': { name: 'second', borrows: false, wanted: 800 },
        'borrowed, max 100, 800 of 1000 wanted': { name: 'second', borrows: true, max: 100, wanted: 800 },
        'one call each, 800 of 1000 wanted, capacity 100': { name: 'tenth', borrows: false, wanted: 800 },
        'borrowed, max 100, 800 of 1000 wanted, capacity 100': { name: 'tenth', borrows: true, max: 100, wanted: 800 },
        'borrowed, max 10, 800 of 1000 wanted, capacity 100': { name: 'tenth', borrows: true, max: 10, wanted: 800 },
        'one call each, 2000 of 1000 wanted': { name: 'second', borrows: false, wanted: 2000 },
        'borrowed, max 100, 2000 of 1000 wanted': { name: 'second', borrows: true, max: 100, wanted: 2000 },
    };
    for (const processes of [1, 10, 100]) {
        for (const [how, given] of Object.entries(WAYS)) {
            const { takes, denied, cpu } = await measure(pool, processes, { ...given, seconds });
            const costs = `${Math.round(takes)} takes/s, ${cpu.toFixed(2)} µs of server CPU each`;
            console.log(`${processes} processes, ${how}: ${costs}, ${denied.toFixed(1)} % denied`);
        }
    }
    await pool.end();
}

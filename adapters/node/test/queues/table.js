// docs/queues.md shows parts of this: a worker of a table, which queues.test.js starts.
import pg from 'pg';

import { counted, run } from './job.js';

const client = counted(new pg.Client(), /take_jobs/);

let wake;
let woken = false;
client.on('notification', () => {
    woken = true;
    wake?.();
});

/** Sleeps until a job is queued, or until a tenant need not wait any more. */
async function sleep() {
    const { rows } = await client.query('SELECT min(wait) * 1000 AS ms FROM job_waits');
    // At least while others have locked what is due, and at most until others' holds may have expired.
    const ms = Math.min(Math.max(Math.ceil(rows[0].ms ?? Infinity), 100), 600_000);
    let timer;
    if (!woken) await new Promise((resolve) => (timer = setTimeout((wake = resolve), ms)));
    clearTimeout(timer);
}

async function work() {
    await client.connect();
    await client.query('LISTEN jobs');
    for (;;) {
        woken = false;
        const { rows: jobs } = await client.query('SELECT * FROM take_jobs(10)');
        const done = [];
        for (const job of jobs) {
            try {
                await run(job);
                done.push(job.id);
            } catch (error) {
                console.error(error);
            }
        }
        const finish = () => client.query('SELECT finish_jobs($1, $2, $3)', [jobs[0].batch, done, done.length]);
        await (jobs.length === 0 ? sleep() : finish().catch(console.error));
    }
}

await work();

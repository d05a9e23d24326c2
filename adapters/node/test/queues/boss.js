// docs/queues.md shows parts of this: a worker of pg-boss, which queues.test.js starts.
import pg from 'pg';
import { PgBoss } from 'pg-boss';

import { HOUR, MINUTE, RateLimiter, tokenBucket } from 'postgres-rate-limit';
import { counted, run } from './job.js';

const { supervised } = JSON.parse(process.env.QUEUE);
const ttl = 10 * MINUTE;
const limiter = new RateLimiter({ reports: tokenBucket({ rate: 10, period: MINUTE }) }, { defined: true });
const { hold } = limiter;
limiter.hold = (name, options) =>
    hold.call(limiter, name, { ...options, ttl: options.key === 'initech' ? 4000 : options.ttl });
const boss = new PgBoss({
    host: process.env.PGHOST,
    port: Number(process.env.PGPORT),
    user: process.env.PGUSER,
    database: process.env.PGDATABASE,
    ...supervised,
});
boss.on('error', console.error);
const client = counted(new pg.Client(), /FOR UPDATE OF j SKIP LOCKED/);

const db = { executeSql: (text, values) => client.query(text, values) };
const denied = new Map(); // tenants without a token, and until when: at most for a minute, since tokens come back

/** Fetches a job of a tenant who has a token, and takes it. */
async function take() {
    for (;;) {
        for (const [tenant, until] of denied) if (until <= performance.now()) denied.delete(tenant);
        await client.query('BEGIN');
        const [job] = await boss.fetch('reports', { db, ignoreGroups: [...denied.keys()] });
        const hold = job && (await limiter.hold('reports', { key: job.data.tenant, id: job.id, ttl, db: client }));
        await client.query(hold?.ok ? 'COMMIT' : 'ROLLBACK');
        if (!job || hold.ok) return job;
        if (denied.has(job.data.tenant))
            await boss.fail('reports', job.id, new Error("it is not in its tenant's group"));
        denied.set(job.data.tenant, performance.now() + Math.min(hold.retryAfter ?? HOUR, MINUTE));
    }
}

/** Ends a job, and settles its token. */
async function finish(job, error) {
    await client.query('BEGIN');
    const ended = error ? boss.fail('reports', job, error, { db }) : boss.complete('reports', job, null, { db });
    if ((await ended).affected > 0) await limiter.settle(job.id, error ? 0 : 1, { db: client });
    await client.query('COMMIT');
}

let wake;
let woken = false;
client.on('notification', ({ payload }) => {
    denied.delete(payload); // a tenant whose limit was raised, say
    woken = true;
    wake?.();
});

async function work() {
    await client.connect();
    await client.query('LISTEN reports');
    for (;;) {
        woken = false;
        const job = await take();
        if (job) {
            await run(job.data).then(
                () => finish(job),
                (error) => finish(job, error),
            );
        } else if (!woken) {
            const ms = Math.min(MINUTE, ...[...denied.values()].map((until) => until - performance.now()));
            await new Promise((resolve) => setTimeout((wake = resolve), Math.ceil(ms)));
        }
    }
}

await boss.start();
await work();

// The recipes of docs/queues.md, with three workers each, of which one is killed.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';

import { makeWorkerUtils } from 'graphile-worker';
import pg from 'pg';
import { PgBoss } from 'pg-boss';

import { limits } from './limits.js';

// The repository is above the package or, for a copy that adapters/run makes, above target/adapters.
const pages = [3, 4].map((up) => new URL(`${'../'.repeat(up)}docs/queues.md`, import.meta.url));
const page = readFileSync(pages.find(existsSync), 'utf8');

// What a window of the limit admits, and the jobs of a tenant who has more.
const ADMITTED = 20;
const BACKLOG = 3 * ADMITTED;
const BODIES = Array.from({ length: BACKLOG }, (_, n) => `job ${n}`);
// Holds of initech, whose worker is killed, expire soon; those of others do not, however slow the machine is.
const SOON = (tenant) => `CASE ${tenant} WHEN 'initech' THEN interval '4 seconds' ELSE interval '10 minutes' END`;
const WINDOW = `rl_fixed_window(${ADMITTED}, '1 day', first_request => true, keyed => true)`;

/** A database with a queue, its workers, and what they report. */
async function queue(context, name, worker, role = 'app', settings = {}) {
    const database = await limits(`queues_${name}_${process.pid}`);
    const owner = new pg.Pool(database.owner);
    const { user } = database[role];
    const workers = new Set();
    const ends = [];
    const told = { fetches: 0, empty: 0, started: 0 };
    let hung;
    const hangs = new Promise((resolve) => (hung = resolve));
    const start = () => {
        const child = fork(new URL(`queues/${worker}.js`, import.meta.url), {
            env: { ...process.env, PGUSER: user, PGDATABASE: database.app.database, QUEUE: JSON.stringify(settings) },
            execArgv: [],
            stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
        });
        child.errors = '';
        child.stderr.on('data', (data) => (child.errors += data));
        child.on('message', ({ fetched, hangs, lockedBy }) => {
            if (hangs !== undefined) return hung(child);
            child.lockedBy = lockedBy ?? child.lockedBy;
            told.fetches += 1;
            if (fetched === 0) told.empty += 1;
            child.idle = fetched === 0;
        });
        child.on('exit', (code) => {
            if (workers.delete(child)) hung(Promise.reject(new Error(child.errors)));
        });
        told.started += 1;
        workers.add(child);
    };
    const kill = async (child) => {
        if (!workers.delete(child)) return;
        child.kill('SIGKILL');
        await once(child, 'exit');
    };
    context.after(async () => {
        await Promise.all([...workers].map(kill));
        for (const end of ends) await end();
        await owner.end();
        await database.end();
    });
    const sql = async (text, values) => (await owner.query({ text, values, rowMode: 'array' })).rows;
    /** Waits until a query finds this. */
    const until = async (text, wanted) => {
        let found;
        for (let n = 0; n < 1200; n++) {
            found = JSON.stringify(await sql(text));
            if (found === JSON.stringify(wanted)) return;
            await pause(50);
        }
        assert.equal(found, JSON.stringify(wanted), [...workers].map(({ errors }) => errors).join());
    };
    await sql(`CREATE TABLE runs (tenant text, body text, try int); GRANT ALL ON runs TO ${user}`);
    return { database, owner, ends, user, sql, until, start, kill, hangs, told, workers };
}

/** The SQL of the page that begins like this, each of these texts of it replaced. */
function recipe(start, replaced) {
    let [, code] = new RegExp(`\`\`\`sql\\n(${start}.*?)\`\`\``, 's').exec(page);
    for (const [shown, by] of Object.entries(replaced)) {
        assert.ok(code.includes(shown), shown);
        code = code.replaceAll(shown, by);
    }
    return code;
}

/** `onExpiry`: what to do with the tokens of a worker that dies. */
async function table(context, onExpiry) {
    const { sql, until, user, start, kill, hangs, told, workers } = await queue(context, `table_${onExpiry}`, 'table');
    await sql(
        recipe('CREATE TABLE jobs', {
            ' TO app': ` TO ${user}`,
            "interval '10 minutes'": SOON('whose'),
            ", '10 minutes'": `, ${SOON('whose')}`,
            'at_least => 1)': `at_least => 1, on_expiry => '${onExpiry}')`,
            "rl_token_bucket(rate => 10, period => '1 minute', keyed => true)": WINDOW,
        }),
    );
    // What the transaction of finish_jobs writes.
    await sql(`CREATE TABLE finished (tenant text, body text);
        CREATE FUNCTION finished() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
            'BEGIN INSERT INTO public.finished VALUES (OLD.tenant, OLD.body); RETURN NULL; END';
        CREATE TRIGGER finished AFTER DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION finished()`);
    for (let n = 0; n < 3; n++) start();
    await sql(`INSERT INTO jobs (tenant, body)
        SELECT 'acme', CASE n WHEN 14 THEN 'fail' ELSE 'job ' || n END
        FROM generate_series(1, ${BACKLOG}) AS n`);
    await sql(`INSERT INTO jobs (tenant, body)
        SELECT 'initech', CASE n WHEN 3 THEN 'hang' ELSE 'initech ' || n END FROM generate_series(1, 12) AS n`);
    await sql("INSERT INTO jobs (tenant, body) SELECT 'globex', 'globex ' || n FROM generate_series(1, 5) AS n");
    const victim = await hangs;
    const lost = await sql("SELECT body FROM jobs WHERE batch = (SELECT batch FROM jobs WHERE body = 'hang')");
    await kill(victim);
    start();

    const finished = 'SELECT tenant, count(*)::int, count(DISTINCT body)::int FROM finished GROUP BY 1 ORDER BY 1';
    let [done, resets] = [ADMITTED, 0];
    const others = onExpiry === 'charge' ? Math.min(12, ADMITTED - lost.length) : 12; // of initech
    for (; ; resets += 1) {
        const exactly = [
            ['acme', done, done],
            ['globex', 5, 5],
            ['initech', others, others],
        ];
        await until(finished, exactly);
        if (done === BACKLOG) break;
        await until("SELECT remaining, held FROM rl_status('jobs', 'acme')", [[0, 0]]);
        while (![...workers].every(({ idle }) => idle)) await pause(20);
        assert.deepEqual(await sql(finished), exactly);
        done = Math.min(done + ADMITTED, BACKLOG);
        await sql("SELECT rl_reset('jobs', 'acme'); NOTIFY jobs");
    }
    assert.deepEqual(await sql('SELECT count(*)::int FROM jobs'), [[12 - others]]);

    const late = [...workers].some(({ errors }) => errors.includes('the hold has expired'));
    const twice = (await sql('SELECT body FROM runs GROUP BY body HAVING count(*) > 1')).flat();
    assert.ok(late || twice.every((body) => body === 'fail' || lost.flat().includes(body)), twice.join());
    assert.ok(twice.includes('hang') && twice.includes('fail'));
    // Each worker looks when it starts, when it is notified of jobs, of a failure or a reset, when the failed job
    // is due and when the hold expires; and once for each fetch of another that it has waited for.
    const wakes = told.started + 3 * (3 + 1 + resets + 1 + 1);
    const found = told.fetches - told.empty;
    context.diagnostic(`${found} fetches found jobs, ${told.empty} none; at most ${wakes + found}`);
    assert.ok(late || told.empty <= wakes + found, `${told.empty} empty fetches, ${found} others`);
    // What is no key of a limit would end each worker.
    for (const tenant of ['', 'k'.repeat(1025)]) {
        const queued = sql('INSERT INTO jobs (tenant, body) VALUES ($1, $1)', [tenant]);
        await assert.rejects(queued, { code: '23514' });
    }
    // However often a job has failed, it is put off.
    await sql(`INSERT INTO jobs (tenant, body, run_at, batch, attempt)
        VALUES ('x', 'x', now() + interval '1 day', 'x', 2000);
        SELECT finish_jobs('x', '{}', 0)`);
    // A fetch reads no job that is not due.
    for (const each of workers) await kill(each);
    await sql(`INSERT INTO jobs (tenant, body, run_at)
        SELECT 'x', 'x', now() + CASE WHEN n > 1 THEN interval '1 day' ELSE '0' END
        FROM generate_series(1, 1000) AS n`);
    const [[taken, read]] = await sql(`SELECT n::int, (SELECT idx_tup_fetch::int + 0 * n::int
        FROM pg_stat_xact_user_tables WHERE relname = 'jobs') FROM (SELECT count(*) AS n FROM take_jobs(10)) AS taken`);
    assert.equal(taken, 1);
    assert.ok(read < 100, `${read} rows`);
}

test('a table: three workers admit exactly the limit, and the tokens of a killed one come back, or do not', (context) =>
    Promise.all(['refund', 'charge'].map((onExpiry) => table(context, onExpiry))));

test('graphile-worker: jobs reserve their tokens, and put themselves off', async (context) => {
    const { owner, ends, sql, until, start, kill, hangs, told } = await queue(context, 'graphile', 'graphile', 'owner');
    const utils = await makeWorkerUtils({ pgPool: owner });
    ends.push(() => utils.release());
    await utils.migrate();
    await sql(
        recipe("SELECT rl_define\\('reports'", {
            "'10 minutes'": SOON("payload ->> 'tenant'"),
            "rl_token_bucket(10, '1 minute', max_reserved => 100000, keyed => true)": WINDOW.replace(
                ')',
                ', max_reserved => 1000)',
            ),
        }),
    );
    const spec = { identifier: 'report', maxAttempts: 3, priority: 7, flags: ['red', 'blue'] };
    const queued = (tenant, bodies) =>
        utils.addJobs(
            bodies.map((body) => ({ ...spec, payload: { tenant, body }, jobKey: body, queueName: body })),
        );
    await queued('acme', BODIES);
    await queued('globex', ['globex 1', 'fail', 'globex 3']);
    await queued('initech', ['hang']);
    for (let n = 0; n < 3; n++) start();
    const victim = await hangs;
    await kill(victim);
    start();

    await until("SELECT remaining, held FROM rl_status('reports', 'initech')", [[ADMITTED, 0]]); // its token is back
    await utils.forceUnlockWorkers([victim.lockedBy]);
    const ran = `SELECT count(*) FILTER (WHERE tenant = 'acme')::int, count(*) FILTER (WHERE tenant = 'globex')::int
        FROM runs`;
    const waiting = `SELECT count(*)::int FROM graphile_worker.jobs
        WHERE attempts = 0 AND locked_at IS NULL AND run_at > now() + interval '12 hours'
            AND (max_attempts, queue_name, priority, flags) = (3, key, 7, '{"red": true, "blue": true}')`;
    const jobs = 'SELECT count(*)::int FROM graphile_worker.jobs';
    let runs = ADMITTED;
    let found = BACKLOG + 3 + 1 + 2; // each once, and the failed and the killed one again
    for (;;) {
        const wait = BACKLOG - runs;
        await until(ran, [[runs, 4]]);
        await until(waiting, [[wait]]);
        await until(jobs, [[wait]]);
        assert.deepEqual(await sql(ran), [[runs, 4]]);
        assert.ok(told.fetches - told.empty <= found);
        if (wait === 0) break;
        runs = Math.min(runs + ADMITTED, BACKLOG);
        found += wait;
        await sql(`SELECT rl_reset('reports', 'acme'), graphile_worker.reschedule_jobs(array_agg(id), now())
            FROM graphile_worker.jobs`);
    }
    const twice = await sql('SELECT body FROM runs GROUP BY body HAVING count(*) > 1 ORDER BY body');
    assert.deepEqual(twice, [['fail'], ['hang']]);
    context.diagnostic(`${told.fetches - told.empty} fetches found jobs, ${told.empty} none`);
    await utils.addJob('report', { tenant: 'acme' }, { maxAttempts: 1 });
    const error = "SELECT substring(last_error FROM 'was queued without a key') FROM graphile_worker.jobs";
    await until(error, [['was queued without a key']]);
});

test('pg-boss: a job and its token are taken in one transaction', async (context) => {
    // Looks for jobs of workers that died, each second.
    const supervised = { superviseIntervalSeconds: 1, monitorIntervalSeconds: 1 };
    const settings = { supervised };
    const made = await queue(context, 'boss', 'boss', 'owner', settings);
    const { database, ends, sql, until, start, kill, hangs, told, workers } = made;
    const { PGHOST: host, PGPORT } = process.env;
    const boss = new PgBoss({ host, port: Number(PGPORT), ...database.owner, ...supervised });
    boss.on('error', console.error);
    await sql(`SELECT rl_define('reports', ${WINDOW})`);
    ends.push(() => boss.stop({ graceful: false }));
    await boss.start();
    await boss.createQueue('reports', { retryLimit: 2 });
    const queued = (tenant, bodies) => {
        const expireInSeconds = tenant === 'initech' ? 4 : 600;
        const jobs = bodies.map((body) => ({ data: { tenant, body }, group: { id: tenant }, expireInSeconds }));
        return boss.insert('reports', jobs);
    };
    await queued('acme', BODIES);
    await queued('globex', ['globex 1', 'fail', 'globex 3']);
    await queued('initech', ['hang']);
    for (let n = 0; n < 3; n++) start();
    await kill(await hangs);
    start();
    await until("SELECT remaining, held FROM rl_status('reports', 'initech')", [[ADMITTED, 0]]); // its token is back
    await until("SELECT state::text FROM pgboss.job WHERE data ->> 'body' = 'hang'", [['retry']]);
    await sql('NOTIFY reports');

    const done = `SELECT data ->> 'tenant', count(*)::int FROM pgboss.job
        WHERE state = 'completed' GROUP BY 1 ORDER BY 1`;
    let completed = ADMITTED;
    let resets = 0;
    for (; ; resets += 1) {
        await until(done, [
            ['acme', completed],
            ['globex', 3],
            ['initech', 1],
        ]);
        if (completed === BACKLOG) break;
        await until("SELECT remaining, held FROM rl_status('reports', 'acme')", [[0, 0]]);
        completed = Math.min(completed + ADMITTED, BACKLOG);
        await sql("SELECT rl_reset('reports', 'acme'); NOTIFY reports, 'acme'");
    }
    const twice = await sql('SELECT body FROM runs GROUP BY body HAVING count(*) > 1 ORDER BY body');
    assert.deepEqual(twice, [['fail'], ['hang']]);
    const tries = "SELECT DISTINCT data ->> 'body' FROM pgboss.job WHERE retry_count > 0 ORDER BY 1";
    assert.deepEqual(await sql(tries), twice, 'a fetch that is rolled back is no try');
    // Each worker is denied and sleeps once a window, and wakes at a reset and for the killed one's job.
    const wakes = told.started + 3 * (resets + 1);
    const found = told.fetches - told.empty;
    context.diagnostic(`${found} fetches found jobs, ${told.empty} none`);
    assert.ok(told.empty <= 2 * wakes && found <= BACKLOG + 4 + 2 + 2 * wakes, `${told.empty} of ${told.fetches}`);

    // A fetch can't leave out a job that has no group: it fails, and the workers go on.
    await boss.send('reports', { tenant: 'acme', body: 'in no group' }, { retryLimit: 0 });
    await sql('NOTIFY reports');
    const failed = "SELECT output ->> 'message' FROM pgboss.job WHERE state = 'failed'";
    await until(failed, [["it is not in its tenant's group"]]);
    await queued('globex', ['globex 4']);
    await sql('NOTIFY reports');
    await until("SELECT state::text FROM pgboss.job WHERE data ->> 'body' = 'globex 4'", [['completed']]);
    assert.equal(workers.size, 3);
});

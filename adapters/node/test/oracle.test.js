// An oracle over applications whose calls go together: several processes, of which some are killed, lose connections or
// have time-outs, while transactions hold a key, or take two in the other order. No limit gives more than it has,
// no admitted token is lost, and every call is answered.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import pg from 'pg';

import { fixedWindow, HOUR, RateLimiter } from 'postgres-rate-limit';
import { STORES } from './edition.js';
import { limits } from './limits.js';

const NAME = `oracle_node_${process.pid}`;
const SEED = Number(process.env.SEED || 1);
const TIMES = Number(process.env.TIMES || 1);
const TURNS = 5 * TIMES;
let database;
before(async () => {
    database = await limits(NAME);
});
after(() => database.end());

const ruleOf = (rate, store) => ({ ...fixedWindow({ rate, period: 1000 * HOUR, start: 'first request' }), store });
// The first two are busy; the first and every third are soon used up.
const KEYS = STORES.flatMap((store) =>
    Array.from({ length: 12 }, (_, n) => ({
        key: `${String.fromCharCode(97 + n)} in the ${store}`,
        config: ruleOf(n % 3 ? 1_000_000 : 60, store),
    })),
);
const [A, B, HELD] = [1, 2, 4];

/** What is known of each key: tokens that were taken, that may have been, and the smallest count denied. */
const known = KEYS.map(() => ({ taken: 0, unknown: 0, denied: Infinity }));
const found = { calls: 0, answers: {}, killed: 0, wrong: [] };

/** Starts an application, and writes down what it says. */
function start(seed, options = {}) {
    const given = { seed, number: 12, keys: KEYS, ...options, pool: { ...database.app, ...options.pool } };
    const caller = fileURLToPath(new URL('oracle/caller.js', import.meta.url));
    const child = spawn(process.execPath, [caller, JSON.stringify(given)], { stdio: ['pipe', 'pipe', 'inherit'] });
    const [open, closed] = [new Map(), once(child, 'close')];
    let rest = '';
    let ended = false;
    child.stdout.setEncoding('utf8').on('data', (data) => {
        const lines = (rest + data).split('\n');
        rest = lines.pop();
        for (const line of lines) {
            const [what, n, ...fields] = line.split(' ');
            if (what === 'call') open.set(n, fields.map(Number));
            else if (what === 'end') ended = true;
            else {
                settle(...open.get(n), fields);
                open.delete(n);
            }
        }
    });
    const settle = (key, count, [answer, code]) => {
        found.calls++;
        const text = code ? `${answer} ${code}` : answer;
        found.answers[text] = (found.answers[text] ?? 0) + 1;
        if (!(count >= 0)) return answer === 'failed' || found.wrong.push(text);
        const of = known[key];
        if (answer === 'ok') of.taken += count;
        else if (answer === 'denied') of.denied = Math.min(of.denied, count);
        else of.unknown += count;
    };
    const unanswered = () => {
        for (const [key, count] of open.values()) if (count >= 0) known[key].unknown += count;
        return open.size;
    };
    return {
        async stop() {
            child.stdin.end();
            const [code] = await closed;
            assert.deepEqual([code, ended, unanswered()], [0, true, 0], 'every call is answered');
        },
        async kill() {
            child.kill('SIGKILL');
            await closed;
            found.killed += unanswered();
        },
    };
}

test(`several applications, of which some are killed: seed ${SEED}`, { timeout: TIMES * 120_000 }, async (context) => {
    const owner = new pg.Pool({ user: 'postgres', database: NAME, max: 4 });
    context.after(() => owner.end());
    const limiter = new RateLimiter({}, { db: owner });
    let stopped = false;
    const take = (db, key) => limiter.limit('oracle', { ...KEYS[key], db });
    /** Runs transactions until the end: each takes one of these keys in turn. */
    const transactions = async (keys, between, end) => {
        const client = await owner.connect();
        while (!stopped) {
            await client.query('BEGIN');
            for (const key of keys) {
                assert.ok((await take(client, key)).ok); // 40P01 would end the test
                await sleep(between);
            }
            await client.query(end);
            if (end === 'COMMIT') for (const key of keys) known[key].taken++;
        }
        client.release();
    };
    const others = [transactions([HELD], 400, 'ROLLBACK'), transactions([B, A], 2, 'COMMIT')];
    const options = [
        {},
        { limiter: { timeout: 40 } },
        { pool: { options: '-c statement_timeout=60' } },
        { pool: { options: '-c lock_timeout=20' }, limiter: { prepare: false } },
    ];
    const running = options.map((each, n) => start(SEED + n, each));
    const terminate = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE usename = '${database.app.user}' ORDER BY random() LIMIT 2`;
    for (let turn = 0; turn < TURNS; turn++) {
        await sleep(500);
        await owner.query(terminate);
        await sleep(500);
        const n = turn % options.length;
        await running[n].kill();
        running[n] = start(SEED + 100 * (turn + 1), options[n]);
    }
    stopped = true;
    await Promise.all(others);
    await Promise.all(running.map((each) => each.stop()));

    // Statements of processes that were killed may still run.
    const idle = `SELECT count(*)::int AS n FROM pg_stat_activity WHERE usename = '${database.app.user}'`;
    while ((await owner.query(idle)).rows[0].n > 0) await sleep(10);
    for (const [n, { key, config }] of KEYS.entries()) {
        const { taken, unknown, denied } = known[n];
        const used = config.rate - (await limiter.check('oracle', { key, config })).remaining;
        const text = `${key}: ${used} used, ${taken} taken, ${unknown} unknown, ${denied} denied, of ${config.rate}`;
        assert.ok(used <= config.rate && taken <= used, `nothing over, nothing lost: ${text}`);
        assert.ok(used <= taken + unknown, `nothing twice: ${text}`);
        assert.ok(used + denied > config.rate, `denied only if there is too little: ${text}`);
    }
    context.diagnostic(JSON.stringify(found));
    assert.deepEqual(found.wrong, [], 'no bad request is answered');
    assert.ok(found.answers.ok > 0 && found.answers.denied > 0);
});

// Tokens that a process has borrowed: its requests to the database, its use of the tokens, and the rest. An
// oracle reads what processes have spent that die, are stopped for a while, and have wrong clocks.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import pg from 'pg';

import {
    concurrency,
    DAY,
    fixedWindow,
    HOUR,
    MINUTE,
    RateLimiter,
    SECOND,
    slidingLog,
    tokenBucket,
    unlimited,
} from 'postgres-rate-limit';
import { application } from './application.js';
import { onFile } from './edition.js';
import { limits, run } from './limits.js';

const NAME = `borrowed_node_${process.pid}`;
const LIMITS = {
    daily: fixedWindow({ rate: 1000, period: DAY, start: 'first request' }),
    bucket: tokenBucket({ rate: 1000, period: 52 * 7 * DAY }),
    memory: fixedWindow({ rate: 1000, period: DAY, start: 'first request', store: 'memory' }),
    shards: tokenBucket({ rate: 1000, period: 52 * 7 * DAY, shards: 4 }),
    minute: fixedWindow({ rate: 1000, period: MINUTE, start: 0 }),
    small: tokenBucket({ rate: 3, period: DAY, keyed: true }),
    dry: fixedWindow({ rate: 5, period: DAY, enforce: false }),
    free: unlimited(),
    log: slidingLog({ rate: 5, period: DAY }),
    slots: concurrency({ slots: 2, ttl: HOUR }),
};
let database, pool;
before(async () => {
    database = await limits(NAME);
    pool = new pg.Pool(database.app);
});
after(async () => {
    await pool.end();
    await database.end();
});

/** A limiter, and how often it has asked the database since it was last asked that. */
const make = ({ on = pool, ...options } = {}) => {
    let count = 0;
    const db = {
        query: (text, values) => {
            count += text.includes('pg_proc') ? 0 : 1;
            return on.query(text, values);
        },
    };
    const limiter = new RateLimiter(LIMITS, { db, ...options });
    const asked = () => {
        const was = count;
        count = 0;
        return was;
    };
    return { limiter, asked };
};
const remaining = async (name, key) =>
    (await new RateLimiter(LIMITS, { db: pool }).check(name, { key, count: 0 })).remaining;
let keys = 0;
const newKey = () => `key ${++keys}`;
/** Waits until it is so; a minute is for ever. */
async function until(isSo) {
    for (let n = 0; n < 6000; n++) {
        if (await isSo()) return;
        await sleep(10);
    }
    assert.fail('it did not become so within a minute');
}
/** Lets milliseconds pass in which no timer runs. */
function busy(milliseconds) {
    for (const began = performance.now(); performance.now() < began + milliseconds; );
}
/** Borrows for a minute, as long as no test takes. */
const LONG = { borrowFor: MINUTE };
const ok = { ok: true, retryAfter: null, retryAt: null, limitedBy: null, headers: {} };

for (const name of ['daily', 'bucket', ...(onFile ? [] : ['memory', 'shards'])]) {
    test(`${name}: batches grow, what is spent is counted once, and the rest is returned`, async () => {
        const { limiter, asked } = make();
        const local = limiter.borrow(name, { ...LONG, max: 64 });
        const key = newKey();
        assert.equal(local.take({ key }), false, 'nothing is borrowed yet');
        let spent = 0;
        for (; spent < 500; spent++) if (!local.take({ key })) assert.deepEqual(await local.limit({ key }), ok);
        // 1, 2, 4, 8, 16, 32, and 64 each from then on.
        assert.equal(asked(), 6 + Math.ceil((500 - 63) / 64));
        assert.equal(Math.round(await remaining(name, key)), 1000 - 63 - 7 * 64);
        assert.equal(local.take({ key: newKey() }), false, 'another key has nothing');
        await local.close();
        assert.equal(asked(), 1);
        assert.equal(Math.round(await remaining(name, key)), 500);
        assert.equal(local.take({ key }), false);
        await assert.rejects(local.limit({ key }), /close/);
    });
}

test('no more than the limit is spent, of any counts, and a denial is exact', async () => {
    const key = newKey();
    const spent = await Promise.all(
        Array.from({ length: 4 }, async (_, n) => {
            const local = make().limiter.borrow('daily', { ...LONG, max: 50 });
            let spent = 0;
            for (let count = 1 + n; ; spent += count, count = (count * 7 + n) % 13) {
                const { ok, retryAfter } = await local.limit({ key, count });
                if (!ok) {
                    assert.ok(retryAfter > HOUR && retryAfter <= DAY);
                    await local[Symbol.asyncDispose]();
                    return spent;
                }
            }
        }),
    );
    const sum = spent.reduce((one, other) => one + other);
    assert.ok(sum <= 1000, `${sum} were spent`);
    assert.equal(await remaining('daily', key), 1000 - sum);
});

test('calls at once share a batch', async (context) => {
    const { limiter, asked } = make();
    const local = limiter.borrow('daily', { ...LONG, max: 1000 });
    context.after(() => local.close());
    const key = newKey();
    const answers = await Promise.all(Array.from({ length: 1500 }, () => local.limit({ key })));
    assert.equal(answers.filter(({ ok }) => ok).length, 1000);
    // The first learns that batches last, the second has all that wait; the third finds no more, and is denied for all.
    assert.equal(asked(), 3);
    assert.ok(answers.filter(({ ok }) => !ok).every(({ retryAfter }) => retryAfter > HOUR));
});

test('a batch ends by either clock, and is returned', async (context) => {
    const was = application.ahead;
    context.after(() => (application.ahead = was));
    for (const [borrowFor, passes] of [
        [MINUTE, async () => (application.ahead += MINUTE)],
        [50, async () => busy(51, (application.ahead -= HOUR))],
    ]) {
        const local = make().limiter.borrow('daily', { borrowFor, max: 64 });
        const key = newKey();
        let spent = 0;
        do {
            assert.equal((await local.limit({ key })).ok, true);
            spent += 1;
        } while (spent < 20 || !(local.take({ key }) && ++spent));
        await passes();
        assert.equal(local.take({ key }), false);
        if (borrowFor === 50) await until(async () => (await remaining('daily', key)) === 1000 - spent);
        assert.equal((await local.limit({ key })).ok, true);
        await local.close();
        assert.equal(await remaining('daily', key), 1000 - spent - 1);
    }
});

/** A connection whose limiter has this clock; moved by calling. */
async function clocked(context) {
    const client = new pg.Client({ user: 'postgres', database: NAME });
    await client.connect();
    context.after(() => client.end());
    if (!onFile) return { client, set: (time) => client.query(`SET ratelimit.clock = '${time}'`) };
    return { client, set: (time) => client.query(`SELECT set_config('ratelimit.clock', '${time}', false)`) };
}

test('a batch ends with its window, to which the rest is returned, and not to the next', async (context) => {
    const { client, set } = await clocked(context);
    let late = 0;
    const db = {
        async query(text, values) {
            const result = await client.query(text, values);
            if (late > 0) await sleep(late);
            return result;
        },
    };
    const limiter = new RateLimiter(LIMITS, { db });
    const left = async (key) => (await limiter.check('minute', { key, count: 0 })).remaining;
    const borrowed = async (key, time) => {
        await set(time);
        const local = limiter.borrow('minute', { ...LONG, max: 16 });
        for (let n = 0; n < 15; n++) await local.limit({ key });
        await local.limit({ key }); // the first of 16
        return local;
    };
    const at = (before) => new Date(Date.UTC(2027, 0, 1, 12, 1) - before).toISOString();
    {
        const key = newKey();
        const local = await borrowed(key, at(50));
        await sleep(51);
        assert.equal(local.take({ key }), false, 'the window has ended');
        await set(at(1));
        await local.close();
        assert.equal(await left(key), 1000 - 16);
    }
    {
        const key = newKey();
        const local = limiter.borrow('minute', { ...LONG, max: 16 });
        for (let n = 0; n < 15; n++) await local.limit({ key });
        await set(at(50));
        late = 51;
        await local.limit({ key });
        late = 0;
        assert.equal(local.take({ key }), false, 'the window has ended before the answer came');
        await local.close();
    }
    {
        const key = newKey();
        const local = await borrowed(key, at(30 * SECOND));
        assert.equal(local.take({ key }), true);
        await set(at(0));
        await limiter.limit('minute', { key, count: 100 });
        await local.close();
        assert.equal(await left(key), 900);
    }
});

test('what is left is returned to a window that has begun with its batch', async () => {
    const { limiter } = make();
    const local = limiter.borrow('daily', LONG);
    const key = newKey();
    for (let n = 0; n < 15; n++) await local.limit({ key });
    await limiter.reset('daily', { key });
    await local.limit({ key }); // the first of 16
    await local.close();
    assert.equal(await remaining('daily', key), 999);
});

test('a call waits for what is returned, and may get it', async (context) => {
    const was = application.ahead;
    context.after(() => (application.ahead = was));
    const on = {
        async query(text, values) {
            if (text.includes('rl_credit')) await sleep(100);
            return pool.query(text, values);
        },
    };
    const local = make({ on }).limiter.borrow('daily', LONG);
    context.after(() => local.close());
    const key = newKey();
    for (let n = 0; n < 17; n++) await local.limit({ key });
    await make().limiter.limit('daily', { key, count: await remaining('daily', key) });
    application.ahead += MINUTE;
    assert.deepEqual(await local.limit({ key }), ok);
});

test('nothing is returned in a transaction, which may be rolled back', async () => {
    const client = await pool.connect();
    try {
        const local = new RateLimiter(LIMITS, { db: client }).borrow('daily', LONG);
        for (let n = 0; n < 17; n++) await local.limit();
        await client.query('BEGIN');
        await local.close();
        const { rows } = await client.query('SELECT pg_current_xact_id_if_assigned() AS written');
        assert.equal(rows[0].written, null);
        await client.query('ROLLBACK');
    } finally {
        client.release();
    }
});

test('a denial is shared, thrown, waited for, and remembered', async (context) => {
    const { limiter, asked } = make({ rememberDenials: { atMost: HOUR } });
    const local = limiter.borrow('small', LONG);
    context.after(() => local.close());
    const key = newKey();
    for (let n = 0; n < 3; n++) assert.deepEqual(await local.limit({ key }), ok);
    const denied = await local.limit({ key });
    assert.ok(!denied.ok && denied.retryAfter > 7 * HOUR && denied.retryAt > 0, JSON.stringify(denied));
    asked();
    assert.equal((await local.limit({ key })).ok, false);
    assert.equal(asked(), 0);
    await assert.rejects(local.limit({ key, throws: true }), { name: 'small' });
    await limiter.reset('small', { key });
    assert.equal((await local.limit({ key, wait: SECOND })).ok, true);
    const other = make().limiter.borrow('small', LONG);
    assert.equal((await other.limit({ key, count: 4 })).retryAfter, null, 'more than it can hold');
});

test('what can not be asked fails, or opens', async (context) => {
    let fails = 1;
    const gone = () => Promise.reject(Object.assign(new Error('gone'), { code: 'ECONNREFUSED' }));
    const db = { query: (text, values) => (fails-- > 0 ? gone() : pool.query(text, values)) };
    const limiter = new RateLimiter(LIMITS, { db, schema: onFile ? 'ratelimit' : 'public' });
    const key = newKey();
    const closed = limiter.borrow('daily', LONG);
    context.after(() => closed.close());
    const answers = await Promise.allSettled([closed.limit({ key }), closed.limit({ key })]);
    assert.deepEqual(answers.map(({ reason }) => reason?.code), ['ECONNREFUSED', 'ECONNREFUSED'], 'they share it');
    assert.deepEqual(await closed.limit({ key }), ok);
    const open = limiter.borrow('daily', { ...LONG, onError: 'open' });
    context.after(() => open.close());
    fails = 1;
    const unchecked = await Promise.all([open.limit({ key }), open.limit({ key })]);
    for (const { ok, error } of unchecked) assert.deepEqual([ok, error.code], [true, 'ECONNREFUSED']);
    assert.equal(open.take({ key }), false);
    assert.deepEqual(await open.limit({ key }), ok);
});

test('an exempt key borrows; a dry run, and an override of another kind, are asked for each time', async (context) => {
    const { limiter, asked } = make();
    const free = limiter.borrow('free', { ...LONG, max: 8 });
    context.after(() => free.close());
    for (let n = 0; n < 14; n++) assert.deepEqual(await free.limit(), ok);
    assert.equal(asked(), 4); // 1, 2, 4, 8
    await free.close();
    assert.equal(asked(), 0, 'what was taken of no limit must not fill another');
    const key = newKey();
    const dry = limiter.borrow('dry', LONG);
    context.after(() => dry.close());
    for (let n = 0; n < 20; n++)
        assert.deepEqual(await dry.limit({ key }), { ...ok, limitedBy: n < 5 ? null : 'tokens' });
    assert.equal(asked(), 20);
    await Promise.all(Array.from({ length: 3 }, () => dry.limit({ key: 'at once' })));
    assert.equal(await remaining('dry', 'at once'), 5 - 3);
    await run('postgres', NAME, "SELECT rl_define('overridden', rl_token_bucket(rate => 5, period => '1 day'))",
        "SELECT rl_define('overridden', rl_sliding_log(rate => 5, period => '1 day'), key => 'other')");
    const defined = new RateLimiter({ overridden: LIMITS.bucket }, { db: pool, defined: true });
    const local = defined.borrow('overridden', LONG);
    context.after(() => local.close());
    const answers = await Promise.all(Array.from({ length: 7 }, () => local.limit({ key: 'other' })));
    assert.equal(answers.filter(({ ok }) => ok).length, 5);
});

test('what can not be borrowed is refused', async (context) => {
    const { limiter } = make();
    assert.throws(() => limiter.borrow('log'), /sliding log can't be borrowed/);
    assert.throws(() => limiter.borrow('slots'), /concurrency can't be borrowed/);
    assert.throws(() => limiter.borrow('none'), /there is no limit/);
    for (const borrowFor of [0, -1, NaN, '1 second', 60_001])
        assert.throws(() => limiter.borrow('daily', { borrowFor }), /borrowFor/);
    assert.throws(() => limiter.borrow('daily', { onError: 'opens' }), /onError is opens/);
    for (const max of [0, 1.5, NaN, '1']) assert.throws(() => limiter.borrow('daily', { max }), /max/);
    const local = limiter.borrow('daily', LONG);
    context.after(() => local.close());
    await assert.rejects(local.limit({ db: pool }), /outside of transactions/);
    const key = newKey();
    await local.limit({ key });
    await local.limit({ key });
    for (const count of [-1, NaN, Infinity, null, '1']) {
        assert.equal(local.take({ key, count }), false);
        await assert.rejects(local.limit({ key, count }), /count is/);
    }
    assert.throws(() => local.take({ key: null }), /key is null/);
    const client = await pool.connect();
    try {
        await client.query('BEGIN');
        const inside = new RateLimiter(LIMITS, { db: client }).borrow('daily');
        await assert.rejects(inside.limit({ key }), /transaction/);
        await client.query('ROLLBACK');
    } finally {
        client.release();
    }
});

// Processes. What they borrow comes by the same calls on the file.

const once = { skip: onFile };

/** Starts processes that spend of this limit; they end with the test. */
async function processes(context, config, options, counts = 1) {
    const folder = await mkdtemp(`${tmpdir()}/borrowed.`);
    context.after(() => rm(folder, { recursive: true }));
    const key = newKey();
    let files = 0;
    const start = async (ahead) => {
        const file = `${folder}/${files++}`;
        const given = { app: database.app, config, key, options, ahead, counts, file };
        const child = fork(new URL('./borrowing/worker.js', import.meta.url), [JSON.stringify(given)]);
        context.after(() => child.kill('SIGKILL'));
        const waiting = new Map();
        const answered = (command) =>
            new Promise((resolve, reject) => {
                waiting.set(command, resolve);
                child.once('exit', () => reject(new Error(`it has ended before ${command}`)));
            });
        child.on('message', ({ command, answer }) => waiting.get(command)?.(answer));
        const begun = answered('begun');
        const send = (command) => {
            const answer = answered(command);
            answer.catch(() => {}); // one that is killed
            child.send(command);
            return answer;
        };
        await begun;
        return { child, send };
    };
    /** What has been spent, as [before, after, count], in the order of the ends. */
    const spent = async () => {
        const texts = await Promise.all(Array.from({ length: files }, (_, n) => readFile(`${folder}/${n}`, 'utf8')));
        const lines = texts.flatMap((text) => text.split('\n').filter(Boolean));
        return lines.map((line) => line.split(' ').map(Number)).sort(([, one], [, other]) => one - other);
    };
    return { key, start, spent };
}

const BORROW = { borrowFor: 150, max: 50 };
const AHEAD = [0, HOUR, -HOUR, 0, DAY];
/** Lets processes spend for some seconds, while one after the other is stopped for a while, and three are killed. */
async function storm(context, config) {
    const { key, start, spent } = await processes(context, config, BORROW, 3);
    const all = await Promise.all(AHEAD.map(start));
    const storms = new Map(all.map((each) => [each, each.send('storm')]));
    for (let n = 0; n < 24; n++) {
        const which = n % all.length;
        all[which].child.kill('SIGSTOP');
        await sleep(100 + Math.random() * 3 * BORROW.borrowFor);
        if (n % 8 === 7) {
            all[which].child.kill('SIGKILL');
            storms.delete(all[which]);
            all[which] = await start(AHEAD[which]);
            storms.set(all[which], all[which].send('storm'));
        } else all[which].child.kill('SIGCONT');
    }
    for (const { send } of all) void send('stop');
    await Promise.all(storms.values());
    return { key, spends: await spent(), killed: 3 };
}
const sum = (spends) => spends.reduce((all, [, , count]) => all + count, 0);

test('processes that die, are stopped, and have wrong clocks spend no more of a window than it has', once, async (context) => {
    const rate = 400;
    const config = fixedWindow({ rate, period: 500, start: 0 });
    const { spends } = await storm(context, config);
    const windows = new Map();
    for (const [before, after, count] of spends) {
        const [first, last] = [before, after].map((at) => Math.floor(at / 500));
        if (first === last) windows.set(first, (windows.get(first) ?? 0) + count);
    }
    const counts = [...windows.values()];
    context.diagnostic(`${sum(spends)} were spent in ${counts.length} windows, ${Math.max(...counts)} at most`);
    assert.ok(counts.length > 0 && Math.max(...counts) <= rate, `${counts}`);
});

test('such processes spend no more of a bucket than it gives, and the batches that are out', once, async (context) => {
    const [rate, capacity] = [1000, 200];
    const { spends } = await storm(context, tokenBucket({ rate, period: SECOND, capacity }));
    const most = capacity + AHEAD.length * BORROW.max;
    let worst = 0;
    const [end] = spends.at(-1).slice(1);
    for (let since = spends[0][0]; since < end; since += 10) {
        let all = 0;
        for (const [before, after, count] of spends) {
            if (before < since) continue;
            all += count;
            worst = Math.max(worst, all - (rate / SECOND) * (after + 1 - since));
        }
    }
    context.diagnostic(`${sum(spends)} were spent, at most ${Math.round(worst)} of ${most} more than had flowed in`);
    assert.ok(worst <= most, `${worst} of ${most}`);
});

test('a process that dies loses its batch at most, and all others lose nothing', once, async (context) => {
    const rate = 1_000_000;
    const config = fixedWindow({ rate, period: DAY, start: 'first request' });
    const { key, spends, killed } = await storm(context, config);
    const { remaining } = await new RateLimiter({ limit: config }, { db: pool }).check('limit', { key, count: 0 });
    const lost = rate - remaining - sum(spends);
    context.diagnostic(`${sum(spends)} were spent, ${lost} lost`);
    // A process may die between a spend and its line.
    assert.ok(lost >= 0 && lost <= killed * (BORROW.max + 3), `${lost}`);
});

test('a process that was stopped spends nothing of a window that has ended, nor of a batch', once, async (context) => {
    const config = fixedWindow({ rate: 1000, period: 2000, start: 0 });
    for (const ahead of AHEAD.slice(0, 3)) {
        const { key, start } = await processes(context, config, { borrowFor: MINUTE, max: 50 });
        const { child, send } = await start(ahead);
        await send('borrow');
        child.kill('SIGSTOP');
        const { resetAt } = await new RateLimiter({ limit: config }, { db: pool }).check('limit', { key });
        await until(async () => {
            const other = await new RateLimiter({ limit: config }, { db: pool }).check('limit', { key });
            return other.resetAt > resetAt;
        });
        child.kill('SIGCONT');
        assert.equal(await send('rest'), 0);
        await send('end');
        child.disconnect();
    }
});

// What the browser computes is what rl_calculate answers: on the states of the golden vectors, and on random ones.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { after, test } from 'node:test';

import pg from 'pg';

import {
    concurrency,
    fixedWindow,
    HOUR,
    MINUTE,
    RateLimiter,
    slidingLog,
    slidingWindow,
    tokenBucket,
    unlimited,
} from 'postgres-rate-limit';
import { calculate } from 'postgres-rate-limit/browser';

const NOW = Date.UTC(2026, 6, 1, 12);
const pool = new pg.Pool({ max: 1 });
after(() => pool.end());

/** The start of a millisecond's fraction, in microseconds. */
const micros = (milliseconds) => Math.trunc(milliseconds) * 1000 + Math.round((milliseconds % 1) * 1000);
/** Until when a number of milliseconds has every microsecond: 2248. */
const EXACT = 2 ** 43 * 1000;

/** What rl_calculate answers to cases, in one query: retryAt in microseconds. */
async function answers(cases) {
    const list = cases.map(({ config, state, at, count }) => ({ config, state, at: String(micros(at)), count }));
    const { rows } = await pool.query(
        `SELECT r.ok, to_jsonb(r.remaining)::text AS remaining, (extract(epoch FROM r.retry_at) * 1000000)::bigint AS at
        FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY u(c, n), rl_calculate(c->'config',
            nullif(c->'state', 'null'), timestamptz 'epoch' + ((c->>'at') || ' microseconds')::interval,
            (c->>'count')::float8) r
        ORDER BY n`,
        [JSON.stringify(list)],
    );
    return rows.map(({ ok, remaining, at }, n) => ({
        ok,
        retryAt: at === null ? null : Number(at),
        remaining: JSON.parse(remaining),
        limitedBy: ok ? null : cases[n].config.kind === 'concurrency' ? 'slots' : 'tokens',
    }));
}

/** Compares them: to the last bit, where times have every digit. Returns how many were denied until a time. */
async function compare(cases) {
    const expected = await answers(cases);
    let denied = 0;
    cases.forEach((given, n) => {
        const { config, state, at, count } = given;
        const found = calculate({ config, state, now: at, blockedUntil: null }, at, count);
        const retryAt = found.retryAt === null ? null : micros(found.retryAt);
        const what = JSON.stringify(given);
        if (expected[n].retryAt > EXACT) {
            assert.ok(Math.abs(retryAt / expected[n].retryAt - 1) < 1e-15, what);
            expected[n].retryAt = retryAt;
        }
        assert.deepEqual({ ...found, retryAt }, expected[n], what);
        denied += retryAt !== null;
    });
    return denied;
}

/** A file of the repository, of which this folder may be a copy. */
function ofRepository(file) {
    let folder = new URL('..', import.meta.url);
    while (!existsSync(new URL(file, folder))) folder = new URL('..', folder);
    return readFileSync(new URL(file, folder), 'utf8');
}

test('on the golden vectors', async () => {
    const lines = ofRepository('crates/core/tests/vectors/vectors.jsonl').trim().split('\n');
    let refused = 0;
    const cases = [];
    for (const { suite, config, initial, steps } of lines.map((line) => JSON.parse(line))) {
        if (suite !== 'convex') continue;
        const isAllowed = await answers([{ config, state: null, at: 0, count: 0 }]).catch((error) => {
            assert.equal(error.code, '22023');
        });
        if (!isAllowed) {
            refused += 1;
            continue;
        }
        let state = initial;
        for (const { now, count, expect } of steps) {
            const asked = count ?? 1;
            if (asked >= 0 && asked <= 1e15 && typeof state?.value !== 'string')
                cases.push({ config, state, at: now, count: asked });
            state = expect.value === null ? null : { value: expect.value, ts: expect.ts };
        }
    }
    const denied = await compare(cases);
    assert.deepEqual([cases.length, denied, refused], [6781, 2139, 10], 'compared, denied, refused configs');
});

test('where the last bits decide', async () => {
    const state = (value) => ({ value, ts: 0 });
    const bucket = { kind: 'token bucket', rate: 1e15, period: 86_400_000 };
    const window = { kind: 'fixed window', rate: 3, period: 1000, capacity: 10, start: 0 };
    await compare([
        // A take that is too small for the float takes its last bit.
        ...[1e15, 2 ** 49, 123_456_789_012_345.67].map((value) => ({
            config: bucket,
            state: state(value),
            at: 0,
            count: 0.001,
        })),
        // A window is enough for 3 and half the tolerance, and a call passes within all of it.
        ...[2e-9, 7e-9, 2e-8].map((more) => ({ config: window, state: state(0), at: 0, count: 3 + more })),
        ...[2e-9, 7e-9, 2e-8].map((more) => ({ config: window, state: state(3), at: 0, count: 3 + more })),
        // The largest debt is what comes in within ten years.
        ...[bucket, window].map((config) => ({ config, state: state(-1e20), at: 0, count: 1 })),
    ]);
});

test('on what getValue returns, a check is answered as by the server', async (context) => {
    const client = new pg.Client({ user: 'postgres' });
    await client.connect();
    context.after(() => client.end());
    const configs = {
        bucket: tokenBucket({ rate: 7, period: '1 minute', capacity: 9 }),
        window: fixedWindow({ rate: 5, period: 'PT10S', capacity: 8 }),
        changing: fixedWindow({ rate: 5, period: MINUTE }),
        aligned: fixedWindow({ rate: 3, period: HOUR, start: '2027-01-01T00:20:00Z' }),
        first: fixedWindow({ rate: 4, period: MINUTE, start: 'first request' }),
        monthly: fixedWindow({ rate: 10, period: '1 month', timezone: 'Europe/Berlin' }),
        soft: fixedWindow({ rate: 2, period: MINUTE, overage: true }),
        sliding: slidingWindow({ rate: 6, period: MINUTE }),
        log: slidingLog({ rate: 4, period: MINUTE }),
        slots: concurrency({ slots: 3, ttl: MINUTE }),
        exempt: unlimited(),
        dry: tokenBucket({ rate: 2, period: MINUTE, enforce: false }),
    };
    const limiter = new RateLimiter({}, { db: client });
    let now = NOW;
    const shows = (time) => client.query("SELECT set_config('ratelimit.clock', $1, true)", [String((now = time))]);
    await client.query('BEGIN');
    let [compared, denied] = [0, 0];
    for (let step = 0; step < 40; step += 1) {
        await shows(NOW + step * 7001);
        configs.changing = fixedWindow({ rate: 2 + ((step * 5) % 7), period: MINUTE, capacity: 9 });
        if (step === 20) await client.query("SELECT rl_block('bucket', 'a', interval '25 seconds')");
        for (const name of Object.keys(configs)) {
            const value = await limiter.getValue(name, { key: 'a', config: configs[name] });
            assert.equal(value.now, now);
            for (const [ahead, count] of [
                [0, 1],
                [0, 3],
                [20_000, 2],
                [MINUTE, 4],
            ]) {
                // prettier-ignore
                await shows(value.now + ahead);
                const { ok, retryAt, remaining, limitedBy } = await limiter.check(name, {
                    key: 'a',
                    count,
                    config: configs[name],
                });
                const found = calculate(value, now, count);
                assert.deepEqual(
                    [found.ok, found.retryAt === null ? null : Math.ceil(found.retryAt), found.limitedBy],
                    [ok, retryAt?.getTime() ?? null, limitedBy],
                    JSON.stringify({ value, now, count }),
                );
                assert.equal(calculate(value, now, 0).remaining, remaining);
                compared += 1;
                denied += !ok;
            }
            await shows(value.now);
            if (name === 'slots') await limiter.acquire(name, { key: 'a', config: configs[name] });
            else await limiter.limit(name, { key: 'a', count: 1 + (step % 3), config: configs[name] });
        }
    }
    await client.query('ROLLBACK');
    assert.ok(denied > compared / 10, `${denied} of ${compared} denied`);
});

/** Random numbers from a seed, which a failure shows. */
function randomOf(seed) {
    const next = () => {
        seed = (seed + 0x6d2b79f5) | 0;
        let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
        mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
        return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
    };
    const of = (list) => list[Math.floor(next() * list.length)];
    /** Of any size, half of them whole. */
    const number = (most) => {
        const number = most ** next() * next();
        return next() < 0.5 ? Math.ceil(number) : number;
    };
    return { next, of, number };
}

const ZONES = ['UTC', 'Europe/Berlin', 'America/New_York', 'America/Havana', 'Asia/Kathmandu', 'Pacific/Chatham'];
const SPANS = [1, 20, 1000, 60_000, 3_600_000, 86_400_000, 30 * 86_400_000];

/** A case of a kind, whose time is near that of its state. */
function randomCase(kind, { next, of, number }) {
    const period = of(SPANS) * (next() < 0.5 ? 1 : Math.ceil(number(100)));
    const config = { kind, rate: number(1e6), period };
    const capacity = next() < 0.3 ? number(1e6) : config.rate;
    const near = (span) => NOW + Math.round((next() - 0.5) * span * 1000) / 1000;
    const state = { value: next() < 0.2 ? -number(1e3) : number(capacity), ts: near(10 * period) };
    if (capacity !== config.rate) config.capacity = capacity;
    const given = {
        config,
        state,
        at: near(next() < 0.9 ? (next() < 0.5 ? 12 : 2) * period : 1e10),
        count: next() < 0.9 ? number(capacity) : 0,
    };
    if (kind === 'sliding window' || kind === 'sliding log') delete config.capacity;
    if (kind === 'sliding window') state.prior = number(config.rate);
    if (kind === 'sliding window') state.value = Math.abs(state.value);
    if (kind === 'sliding log' || kind === 'concurrency') {
        const times = Array.from({ length: Math.floor(next() * 9) }, () => near(2 * period)).sort((a, b) => a - b);
        given.count = Math.floor(next() * 5);
        state.value = times.length;
        if (kind === 'sliding log') {
            Object.assign(config, { rate: 1 + Math.floor(next() * 9) });
            state.log = times;
        } else {
            given.config = { kind, slots: 1 + Math.floor(next() * 9), ttl: period };
            state.leases = times.map((expires, id) => [id + 1, expires]);
        }
    }
    if (kind === 'fixed window') {
        if (next() < 0.2) config.overage = true;
        const start = of([undefined, 0, near(1e12), 'first request', 'calendar', 'calendar']);
        if (start === 'calendar') {
            config.timezone = of(ZONES);
            config.period = of(['1 day', '7 days', '1 month', '3 months', '12 months']);
            if (next() < 0.5) config.start = of(['2024-01-31', '2025-02-28', '2026-01-01', '2027-03-31']);
            const span = config.period.includes('day') ? 6e8 : 2e10;
            // A state of a window of these begins with one: the server says when.
            Object.assign(given, { at: near(3 * span), begins: near(span) });
        } else if (start !== undefined) {
            config.start = start;
        }
    }
    if (next() < 0.1) given.state = null;
    return given;
}

const KINDS = ['token bucket', 'fixed window', 'sliding window', 'sliding log', 'concurrency'];
for (const kind of KINDS) {
    test(`on random values: ${kind}`, async () => {
        const seed = Math.floor(Math.random() * 2 ** 31);
        const random = randomOf(seed);
        const cases = Array.from({ length: 3000 }, () => randomCase(kind, random));
        await aligned(cases);
        const denied = await compare(cases).catch((error) => {
            error.message += `; seed ${seed}`;
            throw error;
        });
        assert.ok(denied > cases.length / 50, `${denied} of ${cases.length} denied`);
    });
}

/** Lets the states of calendar windows begin where those windows do. */
async function aligned(cases) {
    const calendar = cases.filter(({ begins, state }) => begins !== undefined && state);
    if (calendar.length === 0) return;
    const { rows } = await pool.query(
        `SELECT r.state->'ts' AS ts FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY u(c, n),
            rl_calculate(c->'config' || '{"rate": 1, "capacity": 1}', NULL, to_timestamp((c->>'begins')::float8 / 1000), 1) r ORDER BY n`,
        [JSON.stringify(calendar)],
    );
    calendar.forEach((given, n) => {
        given.state.ts = rows[n].ts;
        // A state further ahead comes from a wrong clock, which the browser judges by whole windows.
        given.at = Math.max(given.at, rows[n].ts - 3_600_000);
    });
}

// The watch of a limit, under a clock of the test. What the application's function returns is made here: its fields are
// those of rl_value, and test/browser.test.js has it of a server.
import assert from 'node:assert/strict';
import { beforeEach, mock, test } from 'node:test';

import { calculate, watchRateLimit } from 'postgres-rate-limit/browser';

const NOW = Date.UTC(2027, 0, 1, 12);
const CONFIG = { kind: 'token bucket', rate: 10, period: 60_000, capacity: 3 };
/** The database's clock is ahead of the browser's by this. */
const AHEAD = 5_000;
let server;

beforeEach(() => {
    mock.timers.reset();
    mock.timers.enable({ apis: ['setTimeout', 'Date'], now: NOW });
    mock.restoreAll();
    server = { tokens: 0, calls: 0, answer: undefined };
});
const settled = () => new Promise((resolve) => setImmediate(resolve));
/** Lets time pass, and what begins then end. */
async function pass(milliseconds) {
    mock.timers.tick(milliseconds);
    await settled();
}

function value() {
    const now = Date.now() + AHEAD;
    return { config: CONFIG, state: { value: server.tokens, ts: now }, now, blockedUntil: null };
}
async function getValue() {
    server.calls += 1;
    return (server.answer ?? value)();
}
async function watched(options, get = getValue) {
    const watch = watchRateLimit(get, options);
    const seen = [];
    const end = watch.subscribe(() => seen.push(watch.getSnapshot()));
    await settled();
    return { watch, seen, end };
}

test('before the first value nothing is known, and nothing is asked until there is a listener', async () => {
    const watch = watchRateLimit(getValue);
    const before = watch.getSnapshot();
    assert.deepEqual(
        [before.status, before.offset, before.error, before.check()],
        [undefined, undefined, undefined, undefined],
    );
    await pass(60_000);
    assert.equal(server.calls, 0);
    watch.subscribe(() => {})();
    await settled();
    assert.equal(server.calls, 1);
    assert.notEqual(watch.getSnapshot(), before);
    assert.equal(watch.getSnapshot(), watch.getSnapshot());
});

test('a denial ends at its time, by the clock of the browser, with one more question', async () => {
    const { watch, seen } = await watched();
    const { status, offset, check } = watch.getSnapshot();
    assert.deepEqual(status, { ok: false, retryAt: NOW + 6000, remaining: 0, limitedBy: 'tokens' });
    assert.equal(offset, AHEAD);
    assert.equal(check(NOW + 5999).ok, false);
    assert.deepEqual(check(NOW + 6000), { ok: true, retryAt: null, remaining: 1, limitedBy: null }, 'before the call');
    assert.deepEqual(check(NOW, 2), { ok: false, retryAt: NOW + 12_000, remaining: 0, limitedBy: 'tokens' });
    assert.equal(check(undefined, 4).retryAt, null);
    server.tokens = 1;
    await pass(5999);
    assert.deepEqual([watch.getSnapshot().status.ok, server.calls, seen.length], [false, 1, 1]);
    await pass(1);
    assert.deepEqual([watch.getSnapshot().status.ok, server.calls, seen.length], [true, 2, 3]);
    await pass(3_600_000);
    assert.equal(server.calls, 2, 'nothing is asked while the limit admits');
});

test('at the end of a denial the status changes at once, and is right again if others took the token', async () => {
    const { watch, seen } = await watched();
    await pass(6000);
    assert.deepEqual(
        seen.map(({ status }) => status.ok),
        [false, true, false],
    );
    assert.equal(watch.getSnapshot().status.retryAt, NOW + 12_000);
});

test('a count of its own', async () => {
    server.tokens = 2;
    const { watch } = await watched({ count: 3 });
    assert.deepEqual(watch.getSnapshot().status, { ok: false, retryAt: NOW + 6000, remaining: 2, limitedBy: 'tokens' });
    assert.equal(watch.getSnapshot().check(NOW).ok, false, 'of which check is, too');
    assert.equal(watch.getSnapshot().check(NOW, 2).ok, true);
});

test('browsers that share a key ask again at times of their own, and show them', async () => {
    const ends = new Set();
    for (const random of [0, 0.5, 0.999]) {
        mock.method(Math, 'random', () => random);
        const { watch } = await watched({ shared: true });
        const { status, check } = watch.getSnapshot();
        ends.add(status.retryAt);
        assert.ok(status.retryAt >= NOW + 6000 && status.retryAt <= NOW + 6600);
        assert.equal(check(NOW + 6000).ok, true, 'check is exact');
    }
    assert.equal(ends.size, 3);
    await pass(6000);
    assert.equal(server.calls, 4, 'the first of them');
    await pass(600);
    assert.equal(server.calls, 6);
});

test('a status for ever is not asked about', async () => {
    const { watch } = await watched({ count: 4 });
    assert.deepEqual(watch.getSnapshot().status, { ok: false, retryAt: null, remaining: 0, limitedBy: 'tokens' });
    await pass(2 ** 31);
    assert.equal(server.calls, 1);
});

test('a denial longer than a timer can wait', async () => {
    server.answer = () => ({ ...value(), config: { ...CONFIG, period: 600 * 86_400_000 } });
    const { mock: timers } = mock.method(globalThis, 'setTimeout');
    await watched();
    await pass(2 ** 31);
    assert.equal(server.calls, 1);
    // More than that would be no delay at all.
    for (const {
        arguments: [, delay],
    } of timers.calls)
        assert.ok(delay < 2 ** 31, String(delay));
    for (let days = 25; days < 61; days += 1) await pass(86_400_000);
    assert.equal(server.calls, 2);
});

test('an error is shown, the status stays, and the next attempts come ever later', async () => {
    const { watch } = await watched();
    const error = new Error('no network');
    server.answer = () => {
        throw error;
    };
    await watch.refresh();
    assert.equal(watch.getSnapshot().error, error);
    assert.equal(watch.getSnapshot().status.ok, false);
    const at = [];
    for (let second = 1; second <= 300; second += 1) {
        const before = server.calls;
        await pass(1000);
        if (server.calls > before) at.push(second);
    }
    assert.deepEqual(at, [2, 6, 14, 30, 62, 122, 182, 242]);
    assert.equal(watch.getSnapshot().status.ok, true, 'the denial has ended without an answer');
    server.answer = undefined;
    await watch.refresh();
    assert.equal(watch.getSnapshot().error, undefined);
    assert.equal(watch.getSnapshot().status.ok, false);
});

test('what is no value is an error', async () => {
    for (const answer of [
        undefined,
        null,
        {},
        'value',
        { error: 'log in' },
        { config: {} },
        { config: CONFIG, state: null },
    ]) {
        server.answer = () => answer;
        const { watch, end } = await watched();
        assert.match(
            String(watch.getSnapshot().error),
            /TypeError: this is no value of rl_value/,
            JSON.stringify(answer),
        );
        assert.equal(watch.getSnapshot().status, undefined);
        end();
    }
    const unknown = { ...value(), config: { kind: 'fixed window', rate: 1, period: '1 day', timezone: 'Mars/Base' } };
    server.answer = () => unknown;
    const { watch } = await watched();
    assert.ok(watch.getSnapshot().error instanceof RangeError);
});

test('an answer to an earlier question is not shown after that to a later one', async () => {
    const answers = [];
    const { watch, seen } = await watched({}, () => new Promise((resolve) => answers.push(resolve)));
    const refreshed = watch.refresh();
    answers[1](value());
    await refreshed;
    assert.equal(watch.getSnapshot().status.ok, false);
    server.tokens = 3;
    answers[0](value());
    await settled();
    assert.deepEqual([watch.getSnapshot().status.ok, seen.length], [false, 1]);
});

test('it rests without listeners, and asks when there is one again', async () => {
    const { watch, seen, end } = await watched();
    const other = watch.subscribe(() => {});
    await settled();
    assert.equal(server.calls, 1, 'one question for all');
    end();
    end();
    await pass(1000);
    other();
    await pass(60_000);
    assert.deepEqual([server.calls, seen.length], [1, 1]);
    assert.equal(watch.getSnapshot().status.ok, false, 'as it was');
    watch.subscribe(() => {});
    watch.subscribe(() => {});
    await settled();
    assert.equal(server.calls, 2);
});

test('under contention it asks no more than once a second', async () => {
    const fast = { ...CONFIG, period: 60 };
    server.answer = () => ({ ...value(), config: fast });
    await watched();
    for (let n = 0; n < 1000; n += 1) await pass(5);
    assert.ok(server.calls >= 5 && server.calls <= 6, String(server.calls));
});

test('a page that is shown again asks', async (context) => {
    globalThis.document = Object.assign(new EventTarget(), { visibilityState: 'visible' });
    context.after(() => delete globalThis.document);
    server.tokens = 3;
    const { end } = await watched();
    const changes = (state) => {
        document.visibilityState = state;
        document.dispatchEvent(new Event('visibilitychange'));
        return settled();
    };
    await changes('hidden');
    assert.equal(server.calls, 1);
    await changes('visible');
    assert.equal(server.calls, 2);
    end();
    await changes('visible');
    assert.equal(server.calls, 2);
});

test('a block, an exempt key, a dry run, a kind of a later version', () => {
    const at = NOW + 1000;
    const empty = { config: CONFIG, state: { value: 0, ts: NOW }, now: NOW, blockedUntil: null };
    const block = (blockedUntil) => ({ ...empty, blockedUntil });
    const blocked = { ok: false, remaining: 10 / 60, limitedBy: 'block' };
    assert.deepEqual(calculate(block(NOW + 3000), at), { ...blocked, retryAt: NOW + 6000 });
    assert.deepEqual(calculate(block(NOW + 9000), at), { ...blocked, retryAt: NOW + 9000 });
    assert.deepEqual(calculate(block(at), at), calculate(empty, at));
    assert.equal(calculate(block(NOW + 9000), at, 4).retryAt, null);
    const exempt = { ok: true, retryAt: null, remaining: null, limitedBy: null };
    for (const kind of ['unlimited', 'leaky bucket'])
        assert.deepEqual(calculate({ ...empty, config: { kind } }), exempt);
    const dry = { ...empty, config: { ...CONFIG, enforce: false } };
    assert.deepEqual(calculate(dry, at), { ok: true, retryAt: null, remaining: 10 / 60, limitedBy: 'tokens' });
    for (const count of [-1, NaN]) assert.throws(() => calculate(empty, at, count), RangeError);
});

test('a listener that throws is reported, and harms neither the others nor the watch', async (context) => {
    const reported = context.mock.method(console, 'error', () => {});
    const error = new Error('of a listener');
    const watch = watchRateLimit(getValue);
    watch.subscribe(() => {
        throw error;
    });
    let heard = 0;
    watch.subscribe(() => (heard += 1));
    await settled();
    assert.deepEqual([watch.getSnapshot().error, watch.getSnapshot().status.ok, heard], [undefined, false, 1]);
    await pass(6000);
    assert.deepEqual([server.calls, heard], [2, 3]);
    server.answer = () => {
        throw new Error('no network');
    };
    await watch.refresh();
    assert.deepEqual([String(watch.getSnapshot().error), heard], ['Error: no network', 4]);
    assert.deepEqual(
        reported.mock.calls.map(({ arguments: [first] }) => first),
        Array(4).fill(error),
    );
});

test('a listener may ask again, and nobody asks meanwhile', async () => {
    const watch = watchRateLimit(getValue);
    const end = watch.subscribe(() => {
        server.answer = () => new Promise(() => {});
        watch.refresh();
    });
    await settled();
    assert.equal(server.calls, 2);
    end();
    watch.subscribe(() => {});
    await settled();
    assert.equal(server.calls, 2);
});

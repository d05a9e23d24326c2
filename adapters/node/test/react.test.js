// The hooks, by React's own act in a document without a browser, under a clock of the test. test/browser.test.js has them
// in Chromium.
import assert from 'node:assert/strict';
import { afterEach, beforeEach, mock, test } from 'node:test';

import { Window } from 'happy-dom';

const window = new Window();
// Node may have a navigator of its own, which assignment does not replace.
for (const [name, value] of Object.entries({ window, document: window.document, navigator: window.navigator }))
    Object.defineProperty(globalThis, name, { value, configurable: true });
globalThis.IS_REACT_ACT_ENVIRONMENT = true;
const { act, createElement, StrictMode } = await import('react');
const { createRoot, hydrateRoot } = await import('react-dom/client');
const { renderToString } = await import('react-dom/server');
const { useCountdown, useRateLimit, watchRateLimit } = await import('postgres-rate-limit/react');

const NOW = Date.UTC(2027, 0, 1, 12);
const config = { kind: 'token bucket', rate: 10, period: 60_000, capacity: 3 };
let tokens, calls, root, place, complaints;

beforeEach(() => {
    mock.timers.reset();
    mock.timers.enable({ apis: ['setTimeout', 'Date'], now: NOW });
    [tokens, calls, complaints] = [0, 0, []];
    // Of React: Node puts its warning of the clock there.
    mock.method(console, 'error', (...what) => /ExperimentalWarning/.test(what[0]) || complaints.push(what));
    place = document.createElement('div');
    root = createRoot(place);
});
afterEach(async () => {
    await act(() => root.unmount());
    assert.deepEqual(complaints, []);
});

const show = (element) => act(async () => root.render(element));
const pass = (milliseconds) => act(async () => mock.timers.tick(milliseconds));
const text = () => [...place.querySelectorAll('button')].map((button) => [button.disabled, button.textContent]);
const click = () => act(async () => place.querySelector('button').click());

async function getValue() {
    calls += 1;
    const now = Date.now() + 7000;
    return { config, state: { value: tokens, ts: now }, now, blockedUntil: null };
}
let rendered = 0;
function Button({ source = getValue, options, send = () => {} }) {
    rendered += 1;
    const { status, error, refresh } = useRateLimit(source, options);
    const seconds = useCountdown(status?.retryAt);
    const label = error ? String(error) : seconds > 0 ? `Send (${seconds} s)` : 'Send';
    return createElement('button', { disabled: !status?.ok, onClick: () => (send(), refresh()) }, label);
}

test('a button is disabled until retryAt, counts down, and is enabled again', async () => {
    await show(createElement(Button));
    assert.deepEqual(text(), [[true, 'Send (6 s)']]);
    const before = rendered;
    for (let seconds = 5; seconds > 0; seconds -= 1) {
        await pass(1000);
        assert.deepEqual(text(), [[true, `Send (${seconds} s)`]]);
    }
    assert.equal(rendered - before, 5, 'it renders once a second');
    await pass(999);
    assert.deepEqual(text(), [[true, 'Send (1 s)']]);
    tokens = 1;
    await pass(1);
    assert.deepEqual([text(), calls], [[[false, 'Send']], 2]);
    await click();
    assert.deepEqual([text(), calls], [[[false, 'Send']], 3], 'there is a token');
});

test('a click that takes the last token disables it', async () => {
    tokens = 1;
    await show(createElement(Button, { send: () => (tokens -= 1) }));
    assert.deepEqual(text(), [[false, 'Send']]);
    await click();
    assert.deepEqual(text(), [[true, 'Send (6 s)']]);
});

test('in StrictMode, and with a function that is new in each render, one question is asked', async () => {
    const Inline = ({ tokens }) => {
        const source = async () => {
            const value = await getValue();
            return { ...value, state: { ...value.state, value: tokens } };
        };
        return createElement(Button, { source });
    };
    const strict = (element) => createElement(StrictMode, null, element);
    await show(strict(createElement(Inline, { tokens: 0 })));
    assert.deepEqual([text(), calls], [[[true, 'Send (6 s)']], 1]);
    await show(strict(createElement(Inline, { tokens: 3 })));
    assert.equal(calls, 1);
    await click();
    await act(async () => {});
    assert.deepEqual(text(), [[true, 'Send (6 s)']], 'a disabled button is not clicked');
    await pass(6000);
    assert.deepEqual([text(), calls], [[[false, 'Send']], 2], 'the latest function was called');
});

test('components share a watch', async () => {
    const source = watchRateLimit(getValue);
    const both = [1, 2].map((key) => createElement(Button, { key, source }));
    await show(both);
    assert.deepEqual(
        [text(), calls],
        [
            [
                [true, 'Send (6 s)'],
                [true, 'Send (6 s)'],
            ],
            1,
        ],
    );
    await show(both.slice(1));
    await pass(6000);
    assert.deepEqual([text(), calls], [[[true, 'Send (6 s)']], 2]);
});

test('another count is another status', async () => {
    tokens = 2;
    await show(createElement(Button, { options: { count: 2 } }));
    assert.deepEqual(text(), [[false, 'Send']]);
    await show(createElement(Button, { options: { count: 3 } }));
    assert.deepEqual(text(), [[true, 'Send (6 s)']]);
});

test('an error is shown', async () => {
    const source = async () => {
        throw new Error('no network');
    };
    await show(createElement(Button, { source }));
    assert.deepEqual(text(), [[true, 'Error: no network']]);
});

test('what is no longer shown asks nothing', async () => {
    await show(createElement(Button));
    await show(null);
    await pass(3_600_000);
    assert.equal(calls, 1);
});

test('on a server nothing is known, and nothing asked', () => {
    assert.equal(renderToString(createElement(Button)), '<button disabled="">Send</button>');
    assert.equal(calls, 0);
});

test('a time that the server has rendered is hydrated without a difference', async () => {
    const Seconds = ({ until }) => createElement('b', null, useCountdown(until));
    const element = createElement(Seconds, { until: NOW + 1500 });
    const page = document.createElement('div');
    page.innerHTML = renderToString(element);
    assert.equal(page.textContent, '0');
    mock.timers.tick(800);
    const onRecoverableError = (error) => complaints.push(error);
    const hydrated = await act(async () => hydrateRoot(page, element, { onRecoverableError }));
    assert.equal(page.textContent, '1');
    await act(() => hydrated.unmount());
});

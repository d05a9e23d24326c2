// The middleware for the AI SDK, with its own mock models: what is held, settled and given back, and that it is never
// more than the limits admit.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { dirname } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import {
    APICallError,
    createUIMessageStreamResponse,
    generateText,
    isStepCount,
    Output,
    RetryError,
    streamText,
    tool,
    ToolLoopAgent,
    toUIMessageStream,
    wrapLanguageModel,
} from 'ai';
import { MockLanguageModelV4, simulateReadableStream } from 'ai/test';
import pg from 'pg';
import { z } from 'zod';

import { denialResponse, isRateLimitError, RateLimiter, RateLimitError } from 'postgres-rate-limit';
import { budget, opened } from 'postgres-rate-limit/ai';
import { axes as axesOf, LIMITS } from './ai/limits.js';
import { limits } from './limits.js';

let database, pool, owner, limiter;
before(async () => {
    database = await limits(`ai_node_${process.pid}`);
    pool = new pg.Pool(database.app);
    owner = new pg.Pool({ ...database.app, user: 'postgres' });
    limiter = new RateLimiter(LIMITS, { db: pool });
});
after(async () => {
    await Promise.all([pool.end(), owner.end()]);
    await database.end();
});

let keys = 0;
/** All axes at once, of a key of its own. */
const axes = () => {
    const key = `key ${++keys}`;
    const list = axesOf(key);
    /** What of each is gone now. */
    const used = async () => {
        const results = await Promise.all(list.map(({ name }) => limiter.check(name, { key, count: 0 })));
        return results.map(({ capacity, remaining }) => capacity - remaining);
    };
    return { key, list, used };
};
const NOTHING = [0, 0, 0, 0, 0];
/** What calls cost that have used these tokens. */
const cost = (input, output, calls = 1) => [0, calls, input + output, output, 2 * input + 10 * output];

const usage = (input, output) => ({
    inputTokens: { total: input, noCache: input, cacheRead: undefined, cacheWrite: undefined },
    outputTokens: { total: output, text: output, reasoning: undefined },
});
const stop = { unified: 'stop', raw: 'stop' };
const answer = (input = 12, output = 30, content = [{ type: 'text', text: 'Paris.' }]) => ({
    content,
    finishReason: stop,
    usage: usage(input, output),
    warnings: [],
});
const parts = (finish = { type: 'finish', finishReason: stop, usage: usage(12, 30) }) =>
    [
        { type: 'stream-start', warnings: [] },
        { type: 'text-start', id: '1' },
        { type: 'text-delta', id: '1', delta: 'Par' },
        { type: 'text-delta', id: '1', delta: 'is.' },
        { type: 'text-end', id: '1' },
        finish,
    ].filter(Boolean);
const streaming = (chunks) => async () => ({ stream: simulateReadableStream({ chunks, chunkDelayInMs: null }) });
/** A wrapped mock model. */
const modelOf = (mock, list, options = {}) => {
    const middleware = budget(limiter, { limits: list, maxOutputTokens: 100, estimate: () => 50, ...options });
    return wrapLanguageModel({ model: new MockLanguageModelV4(mock), middleware });
};
const ask = { prompt: 'What is the capital of France?', maxRetries: 0 };
const thrown = (promise) =>
    promise.then(
        () => assert.fail('it passed'),
        (error) => error,
    );
/** The text of a stream, and the errors in it. */
const read = async (result) => {
    let [text, errors, aborted] = ['', [], false];
    for await (const part of result.stream) {
        if (part.type === 'text-delta') text += part.text;
        if (part.type === 'error') errors.push(part.error);
        if (part.type === 'abort') aborted = true;
    }
    return { text, errors, aborted };
};

test('a call holds its estimate on all axes, and settles what the model reports', async () => {
    const { list, used } = axes();
    let asked, during;
    const doGenerate = async (params) => {
        [asked, during] = [params, await used()];
        return answer();
    };
    const { text } = await generateText({ model: modelOf({ doGenerate }, list), ...ask });
    assert.equal(text, 'Paris.');
    assert.deepEqual(during, [1, ...cost(50, 100).slice(1)]);
    assert.equal(asked.maxOutputTokens, 100, 'the model is told what is held');
    assert.deepEqual(await used(), cost(12, 30));

    await generateText({ model: modelOf({ doGenerate }, list), ...ask, maxOutputTokens: 7 });
    assert.deepEqual([asked.maxOutputTokens, during], [7, [1, ...cost(12 + 50, 30 + 7, 2).slice(1)]]);
    // What the model reports beyond the estimate is taken; what it leaves out is as held.
    const more = axes();
    await generateText({ model: modelOf({ doGenerate: answer(60, 300) }, more.list), ...ask });
    assert.deepEqual(await more.used(), cost(60, 300));
    const part = axes();
    await generateText({
        model: modelOf({ doGenerate: { ...answer(), usage: usage(12, undefined) } }, part.list),
        ...ask,
    });
    assert.deepEqual(await part.used(), cost(12, 100));
    const none = axes();
    await generateText({ model: modelOf({ doGenerate: { ...answer(), usage: usage() } }, none.list), ...ask });
    assert.deepEqual(await none.used(), cost(50, 100));
});

test('the estimate of a prompt, and limits that depend on the call', async () => {
    const { key, list } = axes();
    let during;
    const doGenerate = async () => {
        during = (await limiter.check('user', { key, count: 0 })).remaining;
        return answer();
    };
    const seen = [];
    const limitsOf = ({ params, model }) => {
        seen.push([params.providerOptions.app.tenant, model.modelId]);
        return list.slice(2, 3);
    };
    const content = [{ type: 'text', text: 'a'.repeat(3000) }];
    const call = { messages: [{ role: 'user', content }], maxRetries: 0, providerOptions: { app: { tenant: 'acme' } } };
    await generateText({ model: modelOf({ doGenerate }, limitsOf, { estimate: undefined }), ...call });
    assert.deepEqual(seen, [['acme', 'mock-model-id']]);
    const held = 100_000 - during;
    assert.equal(held, 1100, '1,000 for the text, 100 for the answer');

    let told;
    const count = (given) => ((told = given), given.inputTokens);
    await generateText({ model: modelOf({ doGenerate: answer() }, [{ name: 'tenant', key, count }]), ...ask });
    assert.deepEqual([told.modelId, told.totalTokens, told.report.inputTokens.noCache], ['mock-model-id', 42, 12]);
    const twice = [
        { name: 'tenant', key },
        { name: 'tenant', key: 'other', count: 2 },
    ];
    await assert.rejects(generateText({ model: modelOf({ doGenerate: answer() }, twice), ...ask }), /comes twice/);
    assert.throws(() => budget(limiter, { limits: list }), /^TypeError: maxOutputTokens is undefined/);
});

/** A limiter that admits all, without a database. */
const db = { query: async () => [{ n: 1, name: 'user', ok: true, hold: null }] };
const admitting = new RateLimiter(LIMITS, { schema: 'public', db });
/** What the call is estimated to use. */
const estimateOf = async (call, options = {}) => {
    let estimate;
    const count = (usage) => ((estimate ??= [usage.inputTokens, usage.outputTokens]), 0);
    const limits = [{ name: 'user', key: 'a', count }];
    const middleware = budget(admitting, { limits, maxOutputTokens: 100, ...options });
    const doGenerate = answer(1, 1, [{ type: 'text', text: '{"city":"a"}' }]);
    const mock = new MockLanguageModelV4({ doGenerate, supportedUrls: { '*/*': [/./] } });
    const model = wrapLanguageModel({ model: mock, middleware });
    await generateText({ model, maxRetries: 0, ...(call.messages ? {} : { prompt: '' }), ...call });
    return estimate;
};
const third = (text) => Math.ceil(Buffer.byteLength(text) / 3);

test('what the estimate counts, and how', async () => {
    const base64 = 'A'.repeat(400_000);
    const url = new URL('https://example.com/a');
    const bytes = new Uint8Array(300_000);
    const user = (...content) => ({ messages: [{ role: 'user', content }] });
    const assistant = (...content) => ({ messages: [{ role: 'assistant', content }, { role: 'user', content: '' }] });
    const file = (mediaType, data) => user({ type: 'file', mediaType, data });
    const input = { city: 'München', days: [1, 2] };
    const called = { type: 'tool-call', toolCallId: '1', toolName: 'weather', input };
    const resulted = (output) => ({
        messages: [
            { role: 'user', content: '' },
            { role: 'assistant', content: [called] },
            { role: 'tool', content: [{ type: 'tool-result', toolCallId: '1', toolName: 'weather', output }] },
        ],
    });
    const shape = z.object({ city: z.string().describe('a city') });
    const seen = [];
    const schemas = { estimate: ({ params }) => (seen.push(params), 0) };
    const weather = tool({ description: 'The weather of a city', inputSchema: shape });
    await estimateOf({ tools: { weather }, output: Output.object({ schema: shape }) }, schemas);
    const [{ tools: [{ inputSchema }], responseFormat: { schema } }] = seen;
    const args = third(JSON.stringify(input));

    for (const [what, call, tokens] of [
        ['a text', user({ type: 'text', text: 'a'.repeat(10) }), 4],
        ['in bytes of UTF-8', user({ type: 'text', text: '€€' }, { type: 'text', text: 'é' }), 3],
        ['instructions', { instructions: 'a'.repeat(9), prompt: 'b' }, 4],
        ['thoughts', assistant({ type: 'reasoning', text: 'a'.repeat(12) }), 4],
        ['a picture in base64', file('image/png', base64), 1600],
        ['a picture at a URL', file('image/jpeg', url), 1600],
        ['a picture in bytes', file('image/webp', bytes), 1600],
        ['a picture in a data URL', file('image/png', `data:image/png;base64,${base64}`), 1600],
        ['a picture of whatever type', file('image', base64), 1600],
        ['an image', user({ type: 'image', image: bytes }), 1600],
        ['a PDF', file('application/pdf', base64), 5000],
        ['a PDF at a URL', file('application/pdf', url), 5000],
        ['a sound', file('audio/wav', bytes), 5000],
        ['a video', file('video/mp4', `data:video/mp4;base64,${base64}`), 5000],
        ['a file that the provider has', file('video/mp4', { type: 'reference', reference: { mock: 'a' } }), 5000],
        ['a file of text', file('text/plain', { type: 'text', text: 'a'.repeat(30) }), 10],
        ['an answer with a picture', assistant({ type: 'file', mediaType: 'image/png', data: base64 }), 1600],
        ['a file of thoughts', assistant({ type: 'reasoning-file', mediaType: 'image/png', data: base64 }), 5000],
        ["a call's arguments", resulted({ type: 'text', value: '' }), args],
        ["a result's text", resulted({ type: 'text', value: 'a'.repeat(30) }), args + 10],
        ["a result's JSON", resulted({ type: 'json', value: { rain: 'a' } }), args + third('{"rain":"a"}')],
        ["a result's error", resulted({ type: 'error-text', value: 'abc' }), args + 1],
        ['an error in JSON', resulted({ type: 'error-json', value: ['a'] }), args + 2],
        ['a call that is refused', resulted({ type: 'execution-denied', reason: 'abc' }), args + 1],
        [
            "a result's text, picture and file",
            resulted({
                type: 'content',
                value: [
                    { type: 'text', text: 'abc' },
                    { type: 'file', mediaType: 'image/png', data: { type: 'data', data: base64 } },
                    { type: 'file', mediaType: 'application/pdf', data: { type: 'url', url } },
                ],
            }),
            args + 1 + 1600 + 5000,
        ],
        [
            'a tool',
            { tools: { weather } },
            third(JSON.stringify({ name: 'weather', description: 'The weather of a city', inputSchema })),
        ],
        ['the schema of the answer', { output: Output.object({ schema: shape }) }, third(JSON.stringify(schema))],
    ])
        assert.deepEqual(await estimateOf(call), [tokens, 100], what);
});

test('what may come: the most that an answer may have, with what thinking adds', async () => {
    const thinking = { type: 'enabled', budgetTokens: 12_000 };
    const anthropic = { providerOptions: { anthropic: { thinking } } };
    assert.deepEqual(await estimateOf(anthropic), [0, 12_100]);
    assert.deepEqual(await estimateOf({ ...anthropic, maxOutputTokens: 20_000 }), [0, 32_000]);
    const disabled = { providerOptions: { anthropic: { thinking: { type: 'disabled' } } } };
    assert.deepEqual(await estimateOf(disabled), [0, 100]);

    // Requests and slots need none.
    const list = [{ name: 'requests' }, { name: 'slots', count: 2 }];
    for (const limits of [list, () => list]) {
        const doGenerate = async ({ maxOutputTokens }) => (assert.equal(maxOutputTokens, undefined), answer());
        const middleware = budget(admitting, { limits });
        const model = wrapLanguageModel({ model: new MockLanguageModelV4({ doGenerate }), middleware });
        assert.equal((await generateText({ model, ...ask })).text, 'Paris.');
    }
    const counts = [...list, { name: 'user', key: 'a', count: 'inputTokens' }];
    const model = modelOf({ doGenerate: answer() }, () => counts, { maxOutputTokens: undefined });
    await assert.rejects(generateText({ model, ...ask }), /maxOutputTokens is undefined/);
    assert.equal((await generateText({ model, ...ask, maxOutputTokens: 5 })).text, 'Paris.');
});

test('a denial is an error of the SDK, which it retries after the exact wait, or not at all', async () => {
    const { key, list, used } = axes();
    const model = modelOf({ doGenerate: answer() }, list);
    await limiter.limit('user', { key, count: 99_900 });
    const denial = await thrown(generateText({ model, ...ask, maxRetries: 5 }));
    assert.ok(APICallError.isInstance(denial) && !RetryError.isInstance(denial), denial.stack);
    assert.deepEqual([denial.statusCode, denial.isRetryable], [429, false], 'not today');
    assert.equal(
        denial.responseHeaders['retry-after'],
        String(Math.ceil(denial.responseHeaders['retry-after-ms'] / 1000)),
    );
    assert.ok(
        isRateLimitError(denial) && RateLimitError.from(denial).name === 'user' && denial.data.kind === 'RateLimited',
    );
    assert.deepEqual(await used(), [0, 0, 99_900, 0, 0], 'nothing is held of the others');
    const never = await thrown(generateText({ model: modelOf({}, list, { estimate: () => 1e6 }), ...ask }));
    assert.deepEqual([never.isRetryable, never.responseHeaders, never.data.retryAfter], [false, {}, null]);

    // Two calls for a bucket of one: the second is denied, and the SDK tries again when the token is there.
    const soon = [{ name: 'soon', key }];
    const [first, second] = [1, 2].map(() =>
        generateText({ model: modelOf({ doGenerate: answer() }, soon), ...ask, maxRetries: 9 }),
    );
    assert.deepEqual([(await first).text, (await second).text], ['Paris.', 'Paris.']);
    await limiter.limit('soon', { key, wait: 5000 });
    const error = await thrown(generateText({ model: modelOf({ doGenerate: answer() }, soon), ...ask }));
    assert.ok(
        error.isRetryable &&
            error.responseHeaders['retry-after-ms'] <= 100 &&
            error.responseHeaders['retry-after'] === '1',
    );
    const streamed = await read(streamText({ model, ...ask, onError: () => {} }));
    assert.deepEqual([streamed.text, isRateLimitError(streamed.errors[0])], ['', true]);
});

/** What a promise or a stream of the SDK throws. */
const PROMISES = ['text', 'usage', 'finishReason', 'steps', 'content', 'response', 'output', 'toolCalls', 'warnings'];

test('a denial is found in what streamText throws and streams', async () => {
    const { key, list } = axes();
    await limiter.limit('user', { key, count: 99_900 });
    const model = modelOf({}, list);
    const heard = [];
    const streamed = () => streamText({ model, ...ask, onError: (event) => heard.push(event) });
    const isOfUser = (error, what) => assert.equal(RateLimitError.from(error)?.name, 'user', what);
    for (const promise of PROMISES) isOfUser(await thrown(streamed()[promise]), promise);
    for await (const part of streamed().stream) if (part.type === 'error') isOfUser(part, 'a part');
    const onError = (error) => (isOfUser(error, 'of a UI stream'), 'denied');
    for await (const part of toUIMessageStream({ stream: streamed().stream, onError }))
        if (part.type === 'error') assert.equal(part.errorText, 'denied');
    isOfUser(await thrown(streamText({ model, ...ask, onError() {}, output: Output.json() }).output), 'an output');
    isOfUser(await thrown(new ToolLoopAgent({ model }).stream({ prompt: 'a', onError() {} }).then(({ text }) => text)));
    isOfUser(await thrown(new ToolLoopAgent({ model }).generate({ prompt: 'a' })), 'an agent');
    assert.equal(heard.length, PROMISES.length + 2);
    for (const event of heard) isOfUser(event, 'an event');

    // After the SDK has tried again its promises don't say what has ended the call: the event does.
    const row = { n: 1, name: 'soon', key, ok: false, limited: 'tokens', wait: 0.001, remaining: 0, capacity: 1 };
    const denying = new RateLimiter(LIMITS, { schema: 'public', db: { query: async () => [row] } });
    const middleware = budget(denying, { limits: [{ name: 'soon', key }] });
    const soon = wrapLanguageModel({ model: new MockLanguageModelV4(), middleware });
    const retried = streamText({ ...ask, model: soon, maxRetries: 1, onError: (event) => heard.push(event) });
    assert.equal(RateLimitError.from(await thrown(retried.text)), undefined);
    assert.ok(RetryError.isInstance(heard.at(-1).error));
    assert.equal(RateLimitError.from(heard.at(-1)).name, 'soon');
});

test('a denial after the first step ends a stream of several, and is no denial of what went on after one', async () => {
    const { key, list } = axes();
    await limiter.limit('user', { key, count: 99_800 });
    const chunks = [
        { type: 'tool-call', toolCallId: '1', toolName: 'weather', input: '{}' },
        { type: 'finish', finishReason: { unified: 'tool-calls', raw: undefined }, usage: usage(60, 100) },
    ];
    const weather = tool({ inputSchema: z.object({}), execute: async () => 'rain' });
    const model = modelOf({ doStream: streaming(chunks) }, list);
    const result = streamText({ model, ...ask, tools: { weather }, stopWhen: isStepCount(5), onError() {} });
    assert.equal(RateLimitError.from(await thrown(result.text))?.name, 'user');

    // The first attempt is denied, the second fails at the model.
    const soon = [{ name: 'soon', key }];
    await limiter.limit('soon', { key });
    const lost = new Error('lost');
    const losing = modelOf({ doGenerate: () => Promise.reject(lost) }, soon);
    const error = await thrown(generateText({ model: losing, ...ask, maxRetries: 1 }));
    assert.equal(RateLimitError.from(error), undefined, error.stack);
});

test('a route answers 429 before its stream opens, and streams the whole answer', async () => {
    const { key, list } = axes();
    const route = async (model) => {
        try {
            const { stream } = await opened(streamText({ model, ...ask, onError() {} }));
            return createUIMessageStreamResponse({ stream: toUIMessageStream({ stream }) });
        } catch (error) {
            return denialResponse(error) ?? new Response(error.message, { status: 500 });
        }
    };
    const model = modelOf({ doStream: streaming(parts()) }, list);
    const answered = await route(model);
    const text = await answered.text();
    assert.ok(answered.status === 200 && text.includes('"Par"') && text.includes('"is."'), text);
    assert.equal(text.match(/start-step/g).length, 1, 'each part once');
    await limiter.limit('user', { key, count: 99_900 });
    const denied = await route(model);
    assert.equal(denied.status, 429);
    const seconds = Number(denied.headers.get('retry-after'));
    assert.ok(seconds > 0 && seconds <= 86_400);
    assert.match(await denied.text(), /^Too many requests: try again in \d+ /);
    const never = await route(modelOf({}, list, { estimate: () => 1e6 }));
    assert.deepEqual([never.status, never.headers.get('retry-after')], [429, null]);
    const other = await route(modelOf({ doStream: () => Promise.reject(new Error('mine')) }, axes().list));
    assert.deepEqual([other.status, await other.text()], [500, 'mine']);
});

test('calls with the same id hold once, and a step after another holds again', async () => {
    const { list, used } = axes();
    let [running, both] = [0];
    const bothRun = new Promise((resolve) => (both = resolve));
    const doGenerate = async () => {
        if (++running === 2) both();
        await bothRun;
        return answer();
    };
    const heard = [];
    const onUnsettled = ({ hold, used, error }) => heard.push([hold, used.user, error.message]);
    const model = modelOf({ doGenerate }, list, { id: 'req-1', onUnsettled });
    const calls = [generateText({ model, ...ask }), generateText({ model, ...ask })];
    await bothRun;
    assert.equal((await Promise.all(calls)).length, 2);
    assert.deepEqual(await used(), cost(12, 30), 'one of them');
    assert.deepEqual(heard, [['req-1', 42, 'it is gone: another call has settled it, or a reset']]);
    const one = modelOf({ doGenerate: answer() }, list, { id: ({ params }) => params.providerOptions?.app.id });
    await generateText({ model: one, ...ask, providerOptions: { app: { id: 'req-1' } } });
    await generateText({ model: one, ...ask });
    assert.deepEqual(await used(), cost(36, 90, 3));
});

test('a call that fails: nothing if it was not sent, no tokens if it was refused, else what was held', async () => {
    const refused = (statusCode) =>
        new APICallError({ message: 'a message', url: 'a', requestBodyValues: {}, statusCode });
    const lost = (code) =>
        new APICallError({
            message: 'Cannot connect',
            url: 'a',
            requestBodyValues: {},
            cause: Object.assign(new Error(), { code }),
        });
    for (const [error, expected] of [
        [lost('ECONNREFUSED'), NOTHING],
        [refused(429), cost(0, 0)],
        [refused(503), cost(0, 0)],
        [refused(400), cost(0, 0)],
        [refused(504), cost(50, 100)],
        [lost('ECONNRESET'), cost(50, 100)],
        [new Error('mine'), cost(50, 100)],
    ]) {
        for (const way of ['generate', 'stream', 'in the stream']) {
            const { list, used } = axes();
            const fail = async () => {
                throw error;
            };
            const chunks = [
                { type: 'stream-start', warnings: [] },
                { type: 'error', error },
            ];
            const doStream =
                way === 'stream'
                    ? fail
                    : async () => ({ stream: simulateReadableStream({ chunks, chunkDelayInMs: null }) });
            const model = modelOf({ doGenerate: fail, doStream }, list);
            if (way === 'generate') assert.equal(await thrown(generateText({ model, ...ask })), error);
            else assert.deepEqual((await read(streamText({ model, ...ask, onError: () => {} }))).errors, [error]);
            const sent = way === 'in the stream' && expected === NOTHING ? cost(50, 100) : expected;
            assert.deepEqual(await used(), sent, `${way}: ${error.message} ${error.statusCode}`);
        }
    }
    // It can be otherwise.
    const { list, used } = axes();
    const told = [];
    const unreported = (call) => (told.push(call), { inputTokens: 5, outputTokens: 6, totalTokens: 11 });
    const mine = new Error('mine');
    const model = modelOf({ doGenerate: () => Promise.reject(mine) }, list, { unreported });
    await thrown(generateText({ model, ...ask }));
    assert.deepEqual(await used(), cost(5, 6));
    assert.deepEqual(told, [
        {
            held: { inputTokens: 50, outputTokens: 100, totalTokens: 150 },
            streamed: { inputTokens: 50, outputTokens: 0, totalTokens: 50 },
            error: mine,
        },
    ]);
});

test('an answer in no form of the SDK is one without a report', async () => {
    for (const result of [undefined, {}, { usage: usage(12, 30) }]) {
        const told = [];
        const unreported = ({ error }) => void told.push(error);
        const doGenerate = async () => result;
        const generated = axes();
        const generates = modelOf({ doGenerate }, generated.list, { unreported });
        const errors = [await thrown(generateText({ model: generates, ...ask }))];
        const streamed = axes();
        const streams = modelOf({ doStream: doGenerate }, streamed.list, { unreported });
        errors.push(...(await read(streamText({ model: streams, ...ask, onError: () => {} }))).errors);
        assert.ok(errors.length === 2 && errors.every((error) => error instanceof TypeError));
        assert.deepEqual(told, errors);
        for (const { used } of [generated, streamed]) assert.deepEqual(await used(), cost(50, 100));
    }
});

test('a retry of the SDK holds anew, and in the end exactly what was used is gone', async () => {
    const { list, used } = axes();
    let calls = 0;
    const doGenerate = async () => {
        if (++calls < 3) {
            const responseHeaders = { 'retry-after-ms': '1' };
            throw new APICallError({
                message: 'busy',
                url: 'a',
                requestBodyValues: {},
                statusCode: 503,
                responseHeaders,
            });
        }
        return answer();
    };
    await generateText({ model: modelOf({ doGenerate }, list), ...ask, maxRetries: 2 });
    assert.deepEqual([calls, await used()], [3, cost(12, 30, 3)]);
});

test("a stream settles before its end is read; its parts are the model's", async () => {
    const { list, used } = axes();
    let during;
    const doStream = async () => {
        during = await used();
        return { stream: simulateReadableStream({ chunks: parts(), chunkDelayInMs: null }) };
    };
    assert.equal((await read(streamText({ model: modelOf({ doStream }, list), ...ask }))).text, 'Paris.');
    assert.deepEqual([during, await used()], [[1, ...cost(50, 100).slice(1)], cost(12, 30)]);
    const silent = axes();
    const chunks = parts(null);
    const model = modelOf(
        { doStream: async () => ({ stream: simulateReadableStream({ chunks, chunkDelayInMs: null }) }) },
        silent.list,
    );
    await read(streamText({ model, ...ask, onError: () => {} }));
    assert.deepEqual(await silent.used(), cost(50, 100), 'no report');
});

test('a user who ends it: before it is sent nothing, else what was held, or what streamed', async () => {
    const early = axes();
    const ended = modelOf({ doGenerate: () => assert.fail('it was sent') }, early.list);
    await thrown(generateText({ model: ended, ...ask, abortSignal: AbortSignal.abort() }));
    assert.deepEqual(await early.used(), NOTHING);
    // While it is held.
    const held = axes();
    const between = new AbortController();
    const late = modelOf({ doGenerate: () => assert.fail('it was sent') }, () => (between.abort(), held.list));
    await thrown(generateText({ model: late, ...ask, abortSignal: between.signal }));
    assert.deepEqual(await held.used(), NOTHING);

    for (const [unreported, expected] of [
        [undefined, cost(50, 100)],
        [({ streamed }) => streamed, cost(50, 2)],
    ]) {
        // The model ends with an error, or goes on, or its reader leaves.
        for (const way of ['an error', 'goes on', 'cancelled']) {
            const { list, used } = axes();
            const user = new AbortController();
            const doStream = async ({ abortSignal }) => ({
                stream: new ReadableStream({
                    start(controller) {
                        for (const part of parts(null).slice(0, 4)) controller.enqueue(part);
                        if (way === 'an error')
                            abortSignal.addEventListener('abort', () => controller.error(abortSignal.reason));
                    },
                }),
            });
            const model = modelOf({ doStream }, list, { unreported });
            if (way === 'cancelled') {
                const { stream } = await model.doStream({ prompt: [] });
                const reader = stream.getReader();
                for (let n = 0; n < 4; n++) await reader.read();
                await reader.cancel();
            } else {
                const result = streamText({ model, ...ask, abortSignal: user.signal });
                let text = '';
                for await (const part of result.stream) {
                    if (part.type === 'text-delta') text += part.text;
                    if (text === 'Paris.') user.abort();
                }
                while ((await used())[0] !== 0) await sleep(5);
            }
            assert.deepEqual(await used(), expected, way);
        }
    }
});

test('a tool loop of ten calls uses exactly what they have', async () => {
    const { list, used } = axes();
    let calls = 0;
    const doGenerate = async () => {
        calls += 1;
        if (calls === 10) return answer(100, 5);
        const call = { type: 'tool-call', toolCallId: `${calls}`, toolName: 'weather', input: '{}' };
        return { ...answer(10 * calls, calls, [call]), finishReason: { unified: 'tool-calls', raw: undefined } };
    };
    const weather = tool({ inputSchema: z.object({}), execute: async () => 'rain' });
    const { text, steps } = await generateText({
        model: modelOf({ doGenerate }, list),
        ...ask,
        tools: { weather },
        stopWhen: isStepCount(20),
    });
    assert.deepEqual([text, steps.length], ['Paris.', 10]);
    assert.deepEqual(await used(), cost(450 + 100, 45 + 5, 10));
});

test('50 calls at once: never over the limits, and exactly what they have used', async () => {
    const { key, list, used } = axes();
    const unheld = 100_000 - 150 * 30; // 30 calls fit into what is left, 8 at once
    await limiter.limit('user', { key, count: unheld });
    let [running, most, calls, over] = [0, 0, 0, 0];
    const doGenerate = async () => {
        most = Math.max(most, ++running);
        if ((await limiter.check('user', { key, count: 0 })).remaining < 0) over += 1;
        running -= 1;
        calls += 1;
        return answer(calls % 50, calls % 100);
    };
    const doStream = async () => {
        const { usage } = await doGenerate();
        return {
            stream: simulateReadableStream({
                chunks: parts({ type: 'finish', finishReason: stop, usage }),
                chunkDelayInMs: null,
            }),
        };
    };
    const model = modelOf({ doGenerate, doStream }, list);
    const one = async (n) => {
        for (;;) {
            const failed =
                n % 2
                    ? await generateText({ model, ...ask }).then(
                          () => undefined,
                          (error) => error,
                      )
                    : (await read(streamText({ model, ...ask, onError: () => {} }))).errors[0];
            const denial = failed && RateLimitError.from(failed);
            if (failed && !denial) throw failed;
            if (denial?.name !== 'slots') return !denial;
        }
    };
    const passed = (await Promise.all(Array.from({ length: 50 }, (_, n) => one(n)))).filter(Boolean).length;
    assert.equal(passed, calls);
    assert.ok(most <= 8 && over === 0 && passed >= 30, `${most} at once, ${over} over, ${passed} passed`);
    let [input, output] = [0, 0];
    for (let n = 1; n <= calls; n++) [input, output] = [input + (n % 50), output + (n % 100)];
    const expected = cost(input, output, calls);
    expected[2] += unheld;
    assert.deepEqual(await used(), expected);
});

/** When the hold of a key expires, in milliseconds. */
const expiry = async (key) => {
    const { rows } = await owner.query(
        'SELECT extract(epoch FROM max(expires_at)) * 1000 AS at FROM rl_holds WHERE key = $1',
        [key],
    );
    return Number(rows[0].at);
};

test('a hold lasts as long as its stream, and expires with its process', async (context) => {
    const { key, used } = axes();
    const program = fileURLToPath(new URL('ai/streams.js', import.meta.url));
    const { user: PGUSER, database: PGDATABASE } = database.app;
    const env = { ...process.env, PGUSER, PGDATABASE };
    const child = spawn(process.execPath, [program, key], { env, stdio: ['ignore', 'pipe', 'inherit'] });
    context.after(() => child.kill('SIGKILL'));
    child.stdout.resume();
    await once(child.stdout, 'data'); // it streams
    const first = await expiry(key);
    while ((await expiry(key)) < first + 700) await sleep(20); // its ttl
    child.kill('SIGKILL');
    await once(child, 'exit');
    while ((await used()).some((left) => left !== 0)) await sleep(20); // it expires
});

test('a hold is extended while the model works, and not for a stream that nobody reads', async () => {
    const { key, list, used } = axes();
    let finish;
    const doGenerate = () => new Promise((resolve) => (finish = () => resolve(answer())));
    const working = generateText({ model: modelOf({ doGenerate }, list, { ttl: 600 }), ...ask });
    while (!finish) await sleep(5);
    const first = await expiry(key);
    while ((await expiry(key)) < first + 600) await sleep(20);
    finish();
    await working;
    assert.deepEqual(await used(), cost(12, 30));

    const abandoned = axes();
    const doStream = async () => ({ stream: simulateReadableStream({ chunks: parts(), chunkDelayInMs: null }) });
    const { stream } = await modelOf({ doStream }, abandoned.list, { ttl: 200 }).doStream({ prompt: [] });
    while ((await abandoned.used()).some((left) => left !== 0)) await sleep(20);
    // Read after all, it is held again, and settled.
    for await (const _ of stream);
    assert.deepEqual(await abandoned.used(), cost(12, 30));
});

test('a hold that can not be settled is reported, and the answer not lost; one unchecked is none', async (context) => {
    const { list } = axes();
    const db = {
        query: (text, values) =>
            text.includes('rl_settle') ? Promise.reject(new Error('lost')) : pool.query(text, values),
    };
    const broken = new RateLimiter(LIMITS, { db });
    const heard = [];
    const warned = context.mock.method(console, 'warn', () => {});
    for (const onUnsettled of [(unsettled) => heard.push(unsettled), undefined]) {
        const middleware = budget(broken, { limits: list, maxOutputTokens: 100, onUnsettled });
        const model = wrapLanguageModel({ model: new MockLanguageModelV4({ doGenerate: answer() }), middleware });
        assert.equal((await generateText({ model, ...ask })).text, 'Paris.');
    }
    const [{ hold, used, error }] = heard;
    assert.deepEqual([used.user, error.message, heard.length, warned.mock.callCount()], [42, 'lost', 1, 1]);
    assert.equal((await limiter.settleAll(hold, used)).length, 5, 'it can be settled later');

    const open = new RateLimiter(LIMITS, { db: new pg.Pool({ host: '/nowhere' }), onError: 'open' });
    const middleware = budget(open, { limits: list, maxOutputTokens: 100 });
    const model = wrapLanguageModel({ model: new MockLanguageModelV4({ doGenerate: answer() }), middleware });
    assert.equal((await generateText({ model, ...ask })).text, 'Paris.');
});

/** The stream's parts, read; throws its error. */
const drained = async (stream) => {
    const found = [];
    for await (const part of stream) found.push(part.type);
    return found;
};

test('a call settles in the transaction that stores its answer, however it ends', async () => {
    const { key, list, used } = axes();
    await owner.query(`CREATE TABLE answers (id text, body text CHECK (body <> ''));
        GRANT INSERT ON answers TO PUBLIC`);
    const [settlements, heard] = [[], []];
    const settle = async ({ hold, used, text }) => {
        settlements.push([hold, used, text]);
        const client = await pool.connect();
        try {
            await client.query('BEGIN');
            await limiter.settleAll(hold, used, { db: client });
            await client.query('INSERT INTO answers VALUES ($1, $2)', [hold, text]);
            await client.query('COMMIT');
        } catch (error) {
            await client.query('ROLLBACK');
            throw error;
        } finally {
            client.release();
        }
    };
    const options = { id: key, settle, unreported: ({ streamed }) => streamed, onUnsettled: (it) => heard.push(it) };
    const content = ['Par', 'is.'].map((text) => ({ type: 'text', text }));
    const thought = answer(12, 30, [{ type: 'reasoning', text: 'Which?' }, ...content]);
    await generateText({ model: modelOf({ doGenerate: thought }, list, options), ...ask });
    await read(streamText({ model: modelOf({ doStream: streaming(parts()) }, list, options), ...ask }));
    // It breaks off.
    const part = streaming([...parts(null).slice(0, 3), { type: 'error', error: new Error('broken') }]);
    await read(streamText({ model: modelOf({ doStream: part }, list, options), ...ask, onError() {} }));
    const stored = await owner.query('SELECT body FROM answers WHERE id = $1', [key]);
    assert.deepEqual(stored.rows.map(({ body }) => body), ['Paris.', 'Paris.', 'Par']);
    const all = [12 + 12 + 50, 30 + 30 + 1, 3];
    assert.deepEqual([await used(), heard], [cost(...all), []]);

    // It can't be stored: then it isn't settled either, and the call ends as it would.
    const empty = modelOf({ doGenerate: answer(12, 30, []) }, list, options);
    await generateText({ model: empty, ...ask });
    const [hold, counts, text] = settlements.at(-1);
    assert.deepEqual([heard.length, heard[0].hold, heard[0].used, text], [1, hold, counts, '']);
    assert.match(heard[0].error.message, /violates check/);
    assert.equal((await used())[0], 1, 'it is held');
    await limiter.settleAll(hold, counts);
    assert.deepEqual(await used(), cost(all[0] + 12, all[1] + 30, 4));
});

test('what was reported is not unreported', async () => {
    const { list, used } = axes();
    const unreported = () => assert.fail('it was reported');
    const model = modelOf({ doStream: streaming(parts()) }, list, { unreported });
    assert.equal((await drained((await model.doStream({ prompt: [] })).stream)).at(-1), 'finish');
    const { stream } = await model.doStream({ prompt: [] });
    const reader = stream.getReader();
    while ((await reader.read()).value.type !== 'finish');
    await reader.cancel();
    assert.deepEqual(await used(), cost(24, 60, 2));
});

test('a function of the application that throws: all that was held is settled, and the call ends as it would', async () => {
    const mine = new Error('mine');
    const fails = () => {
        throw mine;
    };
    const bug = new Error('bug');
    const buggy = () => {
        throw bug;
    };
    const heard = [];
    const onUnsettled = ({ used, error }) => heard.push([used, error.message]);
    const told = (message) => assert.deepEqual(heard.splice(0), [[undefined, message]]);

    // A call without a report.
    const lost = axes();
    const options = { unreported: buggy, onUnsettled, ttl: 300 };
    const failing = modelOf({ doGenerate: fails, doStream: fails }, lost.list, options);
    assert.equal(await thrown(failing.doGenerate({ prompt: [] })), mine);
    told('bug');
    assert.equal(await thrown(failing.doStream({ prompt: [] })), mine);
    told('bug');
    assert.deepEqual(await lost.used(), cost(100, 200, 2));

    // A price that there is not for what was reported.
    for (const [price, message] of [
        [({ report }) => (report ? buggy() : 1), 'bug'],
        [({ report }) => (report ? undefined : 1), 'the count of "requests" is undefined'],
        [({ report }) => (report ? NaN : 1), 'the count of "requests" is NaN'],
        [({ report }) => (report ? -1 : 1), 'the count of "requests" is -1'],
        [({ report }) => (report ? '1' : 1), `the count of "requests" is '1'`],
        [({ report }) => (report ? 1e16 : 1), 'the count of "requests" is 10000000000000000'],
    ]) {
        const { list, used } = axes();
        list[1].count = price;
        const model = modelOf({ doGenerate: answer(), doStream: streaming(parts()) }, list, { onUnsettled });
        assert.equal((await generateText({ model, ...ask })).text, 'Paris.');
        told(message);
        assert.equal((await read(streamText({ model, ...ask }))).text, 'Paris.');
        told(message);
        assert.deepEqual(await used(), cost(100, 200, 2));
    }
});

test('a stream that the middleware can not read is ended at the model, too', async () => {
    const { list, used } = axes();
    let ended;
    const stream = new ReadableStream({
        start: (controller) => controller.enqueue({ type: 'text-delta', id: '1', delta: 7 }),
        cancel: (reason) => (ended = reason),
    });
    const model = modelOf({ doStream: async () => ({ stream }) }, list);
    const error = await thrown(drained((await model.doStream({ prompt: [] })).stream));
    assert.equal(ended, error);
    assert.deepEqual(await used(), cost(50, 100));
});

test('a denial is one whichever copy of the package it is of', async () => {
    const require = createRequire(import.meta.url);
    const file = require.resolve('postgres-rate-limit');
    for (const path of Object.keys(require.cache)) if (dirname(path) === dirname(file)) delete require.cache[path];
    const copy = require(file);
    assert.notEqual(copy.RateLimitError, RateLimitError);
    const { key, list } = axes();
    await limiter.limit('user', { key, count: 99_900 });
    const middleware = budget(new copy.RateLimiter(LIMITS, { db: pool }), { limits: list, maxOutputTokens: 100 });
    const model = wrapLanguageModel({ model: new MockLanguageModelV4({ doGenerate: answer() }), middleware });
    const denial = await thrown(generateText({ model, ...ask }));
    assert.ok(APICallError.isInstance(denial) && denial.statusCode === 429, denial.stack);
});

test('a hold is heard of once, however often it is extended', async () => {
    const { key, list } = axes();
    const heard = [];
    const hearing = new RateLimiter(LIMITS, { db: pool, onDecision: ({ name }) => heard.push(name) });
    let finish;
    const doGenerate = () => new Promise((resolve) => (finish = () => resolve(answer())));
    const middleware = budget(hearing, { limits: list, maxOutputTokens: 100, ttl: 300 });
    const model = wrapLanguageModel({ model: new MockLanguageModelV4({ doGenerate }), middleware });
    const working = generateText({ model, ...ask });
    while (!finish) await sleep(5);
    const first = await expiry(key);
    while ((await expiry(key)) === first) await sleep(20);
    finish();
    await working;
    assert.deepEqual(heard.sort(), list.map(({ name }) => name).sort());
});

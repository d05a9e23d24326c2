// docs/llm-budgets.md shows parts of this.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { createUIMessageStreamResponse, generateText, streamText, toUIMessageStream, wrapLanguageModel } from 'ai';
import { MockLanguageModelV4, simulateReadableStream } from 'ai/test';
import pg from 'pg';

import {
    concurrency,
    denialResponse,
    fixedWindow,
    MINUTE,
    RateLimiter,
    RateLimitError,
    tokenBucket,
} from 'postgres-rate-limit';
import { budget, opened } from 'postgres-rate-limit/ai';
import { limits } from './limits.js';

const pool = new pg.Pool();
const lines = [];
const log = (line) => lines.push(line);

const limiter = new RateLimiter(
    {
        generations: concurrency({ slots: 20, ttl: 2 * MINUTE }),
        requests: tokenBucket({ rate: 60, period: MINUTE }),
        userTokens: tokenBucket({ rate: 40_000, period: MINUTE }),
        tenantTokens: tokenBucket({ rate: 200_000, period: MINUTE }),
        microUsd: fixedWindow({ rate: 50_000_000, period: '1 month', timezone: 'UTC' }),
    },
    { db: pool },
);

const prices = ({ inputTokens, outputTokens }) => 3 * inputTokens + 15 * outputTokens; // millionths of a dollar

const budgeted = (model, tenant, user) =>
    wrapLanguageModel({
        model,
        middleware: budget(limiter, {
            limits: [
                { name: 'generations', key: tenant },
                { name: 'requests', key: user },
                { name: 'userTokens', key: user, count: 'totalTokens' },
                { name: 'tenantTokens', key: tenant, count: 'totalTokens' },
                { name: 'microUsd', key: tenant, count: prices },
            ],
            maxOutputTokens: 4_000,
            unreported: ({ streamed }) => streamed, // a user who stops an answer pays for what has come
            onUnsettled: ({ hold, used, error }) => log({ hold, used, error: error.message }),
        }),
    });

const ask = async (model, prompt) => {
    try {
        return (await generateText({ model, prompt })).text;
    } catch (error) {
        const denial = RateLimitError.from(error);
        if (!denial) throw error;
        return `Out of ${denial.name}`;
    }
};

const chat = async (request, model) => {
    const prompt = await request.text();
    try {
        // Resolves when the answer begins, and throws what ended it before.
        const { stream } = await opened(streamText({ model, prompt, abortSignal: request.signal }));
        return createUIMessageStreamResponse({ stream: toUIMessageStream({ stream }) });
    } catch (error) {
        const response = denialResponse(error);
        if (response) return response;
        throw error;
    }
};

let database;
before(async () => {
    database = await limits(`ai_page_node_${process.pid}`);
    Object.assign(pool.options, database.app);
});
after(async () => {
    await pool.end();
    await database.end();
});

const usage = { inputTokens: { total: 1_000 }, outputTokens: { total: 200 } };
const finishReason = { unified: 'stop', raw: 'stop' };
const content = [{ type: 'text', text: 'Paris.' }];
const chunks = [
    { type: 'text-start', id: '1' },
    { type: 'text-delta', id: '1', delta: 'Paris.' },
    { type: 'text-end', id: '1' },
    { type: 'finish', usage, finishReason },
];
const model = new MockLanguageModelV4({
    doGenerate: { content, finishReason, usage, warnings: [] },
    doStream: async () => ({ stream: simulateReadableStream({ chunks, chunkDelayInMs: null }) }),
});
const spent = async (key = 'acme') => {
    const { capacity, remaining } = await limiter.check('microUsd', { key, count: 0 });
    return capacity - remaining;
};

test('answers cost what the model reports, and a denial says of what', async () => {
    const prompt = 'What is the capital of France?';
    assert.equal(await ask(budgeted(model, 'acme', 'ada'), prompt), 'Paris.');
    assert.equal(await spent(), 6_000);
    assert.equal(await streamText({ model: budgeted(model, 'acme', 'ada'), prompt }).text, 'Paris.');
    assert.equal(await spent(), 12_000);
    await limiter.limit('microUsd', { key: 'acme', count: 49_980_000 });
    assert.equal(await ask(budgeted(model, 'acme', 'ada'), prompt), 'Out of microUsd');
    const other = new Error('another');
    const failing = new MockLanguageModelV4({ doGenerate: () => Promise.reject(other) });
    await assert.rejects(ask(budgeted(failing, 'globex', 'bob'), prompt), other);
});

test('a user who stops an answer pays for what has come', async () => {
    const user = new AbortController();
    const doStream = async ({ abortSignal }) => ({
        stream: new ReadableStream({
            start(controller) {
                for (const part of chunks.slice(0, 2)) controller.enqueue(part);
                abortSignal.addEventListener('abort', () => controller.error(abortSignal.reason));
            },
        }),
    });
    const stopped = budgeted(new MockLanguageModelV4({ doStream }), 'hooli', 'eve');
    const prompt = 'What is the capital of France?';
    const { textStream } = streamText({ model: stopped, prompt, abortSignal: user.signal, onError() {} });
    for await (const text of textStream) if (text === 'Paris.') user.abort();
    const free = async () => (await limiter.check('generations', { key: 'hooli' })).remaining;
    while ((await free()) < 20) await new Promise((resolve) => setTimeout(resolve, 5)); // it is settled
    assert.equal(await spent('hooli'), 3 * 10 + 15 * 2, '10 tokens of the prompt, 2 of the answer');
});

test('a route answers 429 before its stream opens', async (context) => {
    const logged = context.mock.method(console, 'error', () => {});
    const request = () => new Request('http://127.0.0.1/', { method: 'POST', body: 'a question' });
    const answered = await chat(request(), budgeted(model, 'umbrella', 'ada'));
    assert.equal(answered.status, 200);
    assert.match(await answered.text(), /"Paris\."/);
    await limiter.limit('microUsd', { key: 'umbrella', count: 49_990_000 });
    const denied = await chat(request(), budgeted(model, 'umbrella', 'ada'));
    assert.equal(denied.status, 429);
    assert.ok(Number(denied.headers.get('retry-after')) > 0);
    const failing = new MockLanguageModelV4({ doStream: () => Promise.reject(new Error('another')) });
    await assert.rejects(chat(request(), budgeted(failing, 'globex', 'bob')), /another/);
    assert.ok(logged.mock.callCount() > 0 && lines.length === 0);
});

// docs/llm-budgets.md shows parts of this.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { generateText, streamText, wrapLanguageModel } from 'ai';
import { MockLanguageModelV4, simulateReadableStream } from 'ai/test';
import pg from 'pg';

import { concurrency, fixedWindow, MINUTE, RateLimiter, RateLimitError, tokenBucket } from 'postgres-rate-limit';
import { budget } from 'postgres-rate-limit/ai';
import { limits } from './limits.js';

const pool = new pg.Pool();

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
const spent = async () => {
    const { capacity, remaining } = await limiter.check('microUsd', { key: 'acme', count: 0 });
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

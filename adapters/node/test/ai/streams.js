// Streams an answer that does not end, until it is killed. ai.test.js runs it.
import { streamText, wrapLanguageModel } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import pg from 'pg';

import { RateLimiter } from 'postgres-rate-limit';
import { budget } from 'postgres-rate-limit/ai';
import { axes, LIMITS } from './limits.js';

const limiter = new RateLimiter(LIMITS, { db: new pg.Pool() });
const doStream = async () => ({
    stream: new ReadableStream({
        async pull(controller) {
            await new Promise((resolve) => setTimeout(resolve, 20));
            controller.enqueue({ type: 'text-start', id: '1' });
            controller.enqueue({ type: 'text-delta', id: '1', delta: 'and ' });
        },
    }),
});
const options = { limits: axes(process.argv[2]), maxOutputTokens: 100, estimate: () => 50, ttl: 700 };
const model = wrapLanguageModel({ model: new MockLanguageModelV4({ doStream }), middleware: budget(limiter, options) });
for await (const text of streamText({ model, prompt: 'Go on.' }).textStream) process.stdout.write(text);

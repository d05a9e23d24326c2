// A provider for the AI SDK, but no language model: it repeats a sentence, a word at a time, and reports what it has
// used. For a real one: import { openai } from '@ai-sdk/openai'; export const model = openai('gpt-5-mini');
import { setTimeout as sleep } from 'node:timers/promises';

import type { LanguageModelV4, LanguageModelV4CallOptions, LanguageModelV4StreamPart } from '@ai-sdk/provider';

const WORDS = 'I am no language model. I repeat this, a word at a time, so that you see what it costs.'.split(' ');
/** Milliseconds a word. */
const PACE = Number(process.env.PACE ?? 25);

export const model: LanguageModelV4 = {
    specificationVersion: 'v4',
    provider: 'example',
    modelId: 'no-model',
    supportedUrls: {},
    doGenerate: () => Promise.reject(new Error('it only streams')),
    async doStream(options) {
        const parts = answer(options);
        const pull = async (stream: ReadableStreamDefaultController) => {
            const { done, value } = await parts.next();
            done ? stream.close() : stream.enqueue(value);
        };
        return { stream: new ReadableStream({ pull }) };
    },
};

async function* answer(options: LanguageModelV4CallOptions): AsyncGenerator<LanguageModelV4StreamPart> {
    const { prompt, maxOutputTokens = 60, abortSignal } = options;
    const parts = prompt.flatMap(({ role, content }) => (role === 'user' ? content : []));
    const question = parts.map((part) => (part.type === 'text' ? part.text : '')).join('');
    const part = (delta: string) => ({ type: 'text-delta', id: '1', delta }) as const;
    yield { type: 'text-start', id: '1' };
    yield part(`“${question}”`);
    for (let n = 0; n < maxOutputTokens; n++) {
        await sleep(PACE, undefined, { signal: abortSignal });
        yield part(` ${WORDS[n % WORDS.length]}`);
    }
    yield { type: 'text-end', id: '1' };
    const total = Math.ceil(question.length / 4);
    const usage = {
        inputTokens: { total, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
        outputTokens: { total: maxOutputTokens, text: undefined, reasoning: undefined },
    };
    yield { type: 'finish', finishReason: { unified: 'length', raw: undefined }, usage };
}

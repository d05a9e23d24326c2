// The middleware's types, and what must not compile.
import { streamText, wrapLanguageModel, type LanguageModelMiddleware } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { concurrency, fixedWindow, RateLimiter, slidingLog, tokenBucket } from 'postgres-rate-limit';
import { budget, opened, type BudgetLimit, type Count, type Usage } from 'postgres-rate-limit/ai';

const limiter = new RateLimiter({
    slots: concurrency({ slots: 2, ttl: '1 minute' }),
    tokens: tokenBucket({ rate: 1, period: '1 minute', keyed: true }),
    money: fixedWindow({ rate: 1, period: '1 month' }),
    log: slidingLog({ rate: 1, period: '1 minute' }),
});
const price: Count = ({ inputTokens, outputTokens, modelId, report }) =>
    modelId === 'small' ? inputTokens : outputTokens - (report?.inputTokens.cacheRead ?? 0);
const limits: BudgetLimit<typeof limiter.definitions>[] = [
    { name: 'slots' },
    { name: 'tokens', key: 'ada', count: 'totalTokens' },
    { name: 'money', count: price },
    { name: 'other', key: 7, count: 3, config: tokenBucket({ rate: 1, period: 1 }) },
];
const middleware: LanguageModelMiddleware = budget(limiter, {
    limits,
    maxOutputTokens: 100,
    estimate: async ({ params }) => params.prompt.length,
    unreported: ({ held, streamed, error }): Usage => (error ? held : streamed),
    settle: ({ hold, used, text }) => limiter.settleAll(hold, used).then(() => text),
    onUnsettled: ({ hold, used, error }) => console.log(hold, used, error.message),
});
export const model = wrapLanguageModel({ model: new MockLanguageModelV4(), middleware });
export const text = async (): Promise<string> => (await opened(streamText({ model, prompt: 'a' }))).text;
budget(limiter, {
    limits: ({ params, model }) => [{ name: 'slots', key: `${model.modelId} ${params.seed}` }],
    maxOutputTokens: 1,
    ttl: 1000,
    onExpiry: 'charge',
});

budget(limiter, { limits: [{ name: 'slots' }], id: ({ params }) => params.headers?.id });
// @ts-expect-error: no promise
budget(limiter, { limits, maxOutputTokens: 1, settle: () => {} });
// @ts-expect-error: a text
budget(limiter, { limits, maxOutputTokens: 1, id: 7 });
// @ts-expect-error: there is no such limit
budget(limiter, { limits: [{ name: 'token', key: 'a' }], maxOutputTokens: 1 });
// @ts-expect-error: it needs a key
budget(limiter, { limits: [{ name: 'tokens', count: 'totalTokens' }], maxOutputTokens: 1 });
// @ts-expect-error: a sliding log has no holds
budget(limiter, { limits: [{ name: 'log' }], maxOutputTokens: 1 });
// @ts-expect-error: nothing that a call reports
budget(limiter, { limits: [{ name: 'slots', count: 'tokens' }], maxOutputTokens: 1 });
// @ts-expect-error
budget(limiter, { limits, maxOutputTokens: 1, ttl: '1 minute' });

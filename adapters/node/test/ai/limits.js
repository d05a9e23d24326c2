// The limits of ai.test.js, and all of them for one key.
import { concurrency, DAY, fixedWindow, tokenBucket } from 'postgres-rate-limit';

export const LIMITS = {
    slots: concurrency({ slots: 8, ttl: DAY }),
    requests: fixedWindow({ rate: 1000, period: DAY }),
    user: fixedWindow({ rate: 100_000, period: DAY, keyed: true }),
    tenant: fixedWindow({ rate: 1_000_000, period: DAY }),
    microUsd: fixedWindow({ rate: 1_000_000, period: DAY }),
    soon: tokenBucket({ rate: 10, period: 1000, capacity: 1 }),
};
const price = ({ inputTokens, outputTokens }) => 2 * inputTokens + 10 * outputTokens;
export const axes = (key) => [
    { name: 'slots', key },
    { name: 'requests', key, count: 1 },
    { name: 'user', key, count: 'totalTokens' },
    { name: 'tenant', key, count: 'outputTokens' },
    { name: 'microUsd', key, count: price },
];

// What the packages for all languages share is as adapters/facts.json says: errors that say "not now", waits in words,
// kinds that can be lent, keys that become a hash.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

import {
    concurrency,
    fixedWindow,
    HOUR,
    RateLimiter,
    RateLimitError,
    slidingLog,
    slidingWindow,
    tokenBucket,
    tryAgain,
    unlimited,
} from 'postgres-rate-limit';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';

const files = [3, 4].map((up) => new URL(`${'../'.repeat(up)}adapters/facts.json`, import.meta.url));
const facts = JSON.parse(readFileSync(files.find(existsSync)));

test('the SQLSTATEs that fail open are those of the file', async () => {
    const { sqlstates, class: ofConnections, except } = facts['not now'];
    const CHARACTERS = [...'0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ'];
    const classes = CHARACTERS.flatMap((one) => CHARACTERS.map((other) => one + other));
    const rests = [...sqlstates, ...except].map((code) => code.slice(2)).concat('000', '001', '003', '004', '006', '007');
    const codes = classes.flatMap((each) => rests.map((rest) => each + rest));
    // These look like codes of Prisma, which come without an SQLSTATE.
    const open = new Set();
    for (const code of codes.filter((each) => !/^P[1-9]/.test(each))) {
        const query = () => Promise.reject(Object.assign(new Error(), { code }));
        const limiter = new RateLimiter({ one: tokenBucket({ rate: 1, period: HOUR }) }, { db: { query }, onError: 'open' });
        if (await limiter.limit('one').then(() => true, () => false)) open.add(code);
    }
    const expected = codes.filter((code) => code.startsWith(ofConnections) && !except.includes(code));
    assert.deepEqual([...open].sort(), [...new Set([...sqlstates, ...expected])].sort());
});

test('the words of a wait are those of the file', () => {
    for (const [wait, words] of facts['try again']) {
        const retryAfter = wait && wait * 1000;
        assert.equal(tryAgain(new RateLimitError('a', retryAfter, null)), words);
        assert.equal(tryAgain({ ok: false, retryAfter }), words);
    }
});

test('the kinds that can be borrowed are those of the file', () => {
    const tokens = { rate: 1, period: HOUR };
    const kinds = [tokenBucket(tokens), fixedWindow(tokens), slidingWindow(tokens), slidingLog(tokens), unlimited()];
    const limiter = new RateLimiter({}, { db: { query: async () => [] } });
    const lends = [...kinds, concurrency({ slots: 1, ttl: HOUR })].filter((config) => {
        try {
            return limiter.borrow('one', { config });
        } catch {
            return false;
        }
    });
    assert.deepEqual(lends.map(({ kind }) => kind).sort(), [...facts.lends].sort());
});

test('the keys that a store sends are those of the file', async () => {
    for (const { key, times = 1, stored = key.repeat(times) } of facts['stored keys']) {
        const sent = [];
        const query = async (_, values) => (sent.push(values[1]), [{ ok: true, capacity: 1, remaining: 0, reset: null, now: 0 }]);
        const store = new RateLimitStore({ db: { query }, schema: 'public', name: 'facts' });
        store.init({ limit: 1, windowMs: HOUR });
        assert.equal((await store.increment(key.repeat(times))).totalHits, 1);
        assert.deepEqual(sent, [stored]);
    }
});

// What the packages for all languages share is as adapters/facts.json says: waits in words, keys that become a hash.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { HOUR, RateLimitError, tryAgain } from 'postgres-rate-limit';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';

const facts = JSON.parse(readFileSync(new URL('../../facts.json', import.meta.url)));

test('the words of a wait are those of the file', () => {
    for (const [wait, words] of facts['try again']) {
        const retryAfter = wait && wait * 1000;
        assert.equal(tryAgain(new RateLimitError('a', retryAfter, null)), words);
        assert.equal(tryAgain({ ok: false, retryAfter }), words);
    }
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

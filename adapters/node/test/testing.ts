// The types of the fixtures of Vitest.
import { ratelimitTest, test } from 'postgres-rate-limit/testing';

test('a test', async ({ clock }) => {
    const now: Date = clock.now;
    await clock.set(now);
    await clock.advance(1000);
    // @ts-expect-error
    await clock.advance('a minute');
});
ratelimitTest({ connection: { database: 'app_test_1' }, names: ['api'] });
// @ts-expect-error
ratelimitTest({ database: 'app_test_1' });

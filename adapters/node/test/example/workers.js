import { ratelimitTest } from 'postgres-rate-limit/testing';

/** For each worker of Vitest a database of its own: app_test_1, app_test_2, … */
export const test = ratelimitTest({ connection: { database: `app_test_${process.env.VITEST_POOL_ID}` } });

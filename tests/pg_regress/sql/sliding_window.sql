-- Sliding window: used = prior * (share of the previous window still overlapped) + current, in
-- windows aligned to the epoch; allowed iff used + count <= rate.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('sw', rl_sliding_window(10, '1 minute'));
SET ratelimit.clock = '2027-01-01 12:00:30+00';
SELECT * FROM rl_limit('sw', count => 10);
-- One can come when a tenth of this window has slid out: 12:01:06.
SELECT ok, retry_after, retry_at, remaining, reset_at FROM rl_limit('sw');
SELECT value, ts, prior, log FROM rateLimits WHERE name = 'sw';
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT ok, retry_after, remaining, reset_at FROM rl_limit('sw');
SET ratelimit.clock = '2027-01-01 12:01:05.998+00';
SELECT ok FROM rl_check('sw');
SET ratelimit.clock = '2027-01-01 12:01:06+00';
SELECT ok FROM rl_check('sw');
-- Half of the previous window: 5 are used.
SET ratelimit.clock = '2027-01-01 12:01:30+00';
SELECT ok, remaining FROM rl_check('sw');
SELECT ok, remaining FROM rl_limit('sw', count => 5);
-- 10 * 0.4 + 5 + 1 = 10: in six seconds.
SELECT ok, retry_after, retry_at FROM rl_limit('sw');
-- Six more never fit into this window: 5 * 0.8 + 6 = 10, a fifth into the next.
SELECT ok, retry_after, retry_at FROM rl_limit('sw', count => 6);
SELECT value, ts, prior, log FROM rateLimits WHERE name = 'sw';
SET ratelimit.clock = '2027-01-01 12:02:12+00';
SELECT ok, remaining, reset_at FROM rl_limit('sw', count => 6);
-- Two windows later nothing is left of it.
SET ratelimit.clock = '2027-01-01 12:04:00+00';
SELECT ok, remaining FROM rl_check('sw');
-- More than the rate: never. Zero: always, and nothing is written.
SELECT ok, retry_after, retry_at FROM rl_limit('sw', count => 10.5);
SELECT ok, remaining FROM rl_limit('sw', count => 10);
SELECT ok, remaining, retry_after FROM rl_limit('sw', count => 0);
-- There is no debt: reserve changes nothing.
SELECT ok, retry_after, retry_at FROM rl_limit('sw', count => 1, reserve => true);
SELECT ok, retry_after FROM rl_limit('sw', count => 11, reserve => true);
-- Counts and rates may be fractions.
SELECT ok, remaining FROM rl_limit('sw/fraction', count => 0.5, config => rl_sliding_window(0.75, '1 minute'));
SELECT ok, remaining FROM rl_limit('sw/fraction', count => 0.5, config => rl_sliding_window(0.75, '1 minute'));
SELECT ok, remaining FROM rl_limit('sw/fraction', count => 0.25, config => rl_sliding_window(0.75, '1 minute'));
-- A rate that was lowered below what is used is no debt: a count of 0 passes.
SELECT ok, remaining FROM rl_limit('sw/lowered', count => 9, config => rl_sliding_window(10, '1 minute'));
SELECT count, ok, remaining, retry_after IS NULL AS no_wait
FROM unnest(ARRAY[0, 1]) count, rl_limit('sw/lowered', count => count, config => rl_sliding_window(3, '1 minute'));
SELECT value FROM rateLimits WHERE name = 'sw/lowered';

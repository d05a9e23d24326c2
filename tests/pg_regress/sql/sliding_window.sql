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

-- Sliding log: allowed iff what was taken in (now - period, now] plus count is at most the rate;
-- exact, whole counts, one entry a token.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('sl', rl_sliding_log(3, '1 minute'));
SELECT * FROM rl_limit('sl');
SET ratelimit.clock = '2027-01-01 12:00:10+00';
SELECT * FROM rl_limit('sl', count => 2);
SELECT value, ts, prior, log FROM rateLimits WHERE name = 'sl';
SET ratelimit.clock = '2027-01-01 12:00:30+00';
-- One: when the first leaves; two and three: when the other two leave.
SELECT n, ok, retry_after, retry_at, remaining FROM generate_series(1, 4) n, LATERAL rl_limit('sl', count => n);
SET ratelimit.clock = '2027-01-01 12:00:59.999+00';
SELECT ok, remaining, reset_at FROM rl_check('sl');
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT ok, remaining, reset_at FROM rl_limit('sl');
SELECT ok, retry_after, retry_at, remaining FROM rl_limit('sl');
-- What has left the window has left the log.
SELECT value, ts, prior, log FROM rateLimits WHERE name = 'sl';
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT ok, remaining, reset_at FROM rl_check('sl');
SELECT ok, remaining, reset_at FROM rl_limit('sl', count => 0);
SELECT ok, remaining, reset_at FROM rl_limit('sl', count => 3);
SELECT ok, retry_after FROM rl_limit('sl', count => 1, reserve => true);
-- Whole counts only; also a huge one.
SELECT error_of($$SELECT rl_limit('sl', count => 1.5)$$);
SELECT error_of($$SELECT rl_check('sl', count => 1.5)$$);
SELECT ok, retry_after FROM rl_limit('sl', count => 1e15);
-- The largest log.
SELECT ok, remaining, capacity FROM rl_limit('sl/big', count => 10000, config => rl_sliding_log(10000, '1 day'));
SELECT ok, retry_after FROM rl_limit('sl/big', config => rl_sliding_log(10000, '1 day'));
SELECT value, cardinality(log) FROM rateLimits WHERE name = 'sl/big';

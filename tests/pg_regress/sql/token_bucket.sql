-- Token bucket: min(value + elapsed * rate / period, capacity), capped before the count is
-- subtracted; enough for the count is taken, less is denied until the exact time.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('tb', rl_token_bucket(10, '1 minute'));
SELECT n, ok, retry_after, remaining, reset_at
FROM generate_series(1, 4) n, LATERAL rl_limit('tb', count => 2 + sign(n)) ORDER BY n;
-- A denial changed nothing, so a smaller count still fits.
SELECT * FROM rl_limit('tb', count => 1);
SELECT value, ts, prior, log FROM rateLimits WHERE name = 'tb';
-- Three tokens need 18 seconds.
SELECT ok, retry_after, retry_at FROM rl_limit('tb', count => 3);
SET ratelimit.clock = '2027-01-01 12:00:17.998+00';
SELECT ok, retry_after, remaining FROM rl_limit('tb', count => 3);
SET ratelimit.clock = '2027-01-01 12:00:18+00';
SELECT ok, retry_after, remaining FROM rl_limit('tb', count => 3);
-- An idle day buys no more than the capacity.
SET ratelimit.clock = '2027-01-02 12:00:00+00';
SELECT ok, remaining FROM rl_limit('tb', count => 10);
SELECT ok, retry_after FROM rl_limit('tb');

-- The slowest: a wait that no timestamp holds is no time at all.
SELECT rl_define('tb/slow', rl_token_bucket(1e-300, 1e15 * interval '1 ms', capacity => 1));
SELECT ok, remaining, reset_at FROM rl_limit('tb/slow');
SELECT ok, retry_after, retry_at, reset_at FROM rl_limit('tb/slow');

-- A count of zero passes and writes nothing, even in an empty bucket.
SELECT ok, retry_after, remaining FROM rl_limit('tb', count => 0);
SELECT ok, remaining FROM rl_limit('tb', 'nobody', count => 0);
SELECT count(*) FROM rateLimits WHERE name = 'tb' AND key = 'nobody';

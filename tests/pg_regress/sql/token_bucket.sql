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

-- The capacity is a burst above the rate, or below it.
SELECT rl_define('tb/burst', rl_token_bucket(10, '1 minute', capacity => 25));
SELECT ok, remaining, capacity, reset_at FROM rl_limit('tb/burst', count => 25);
SELECT rl_define('tb/small', rl_token_bucket(10, '1 minute', capacity => 2));
SELECT ok, remaining, capacity, reset_at FROM rl_limit('tb/small', count => 2);
SELECT ok, retry_after, remaining FROM rl_limit('tb/small', count => 3);

-- Counts and rates may be fractions.
SELECT rl_define('tb/fraction', rl_token_bucket(0.5, '1 second', capacity => 1.5));
SELECT ok, remaining, reset_at FROM rl_limit('tb/fraction', count => 0.25);
SELECT ok, remaining FROM rl_limit('tb/fraction', count => 1.25);
SELECT ok, retry_after FROM rl_limit('tb/fraction', count => 0.125);
-- Less than one token of capacity.
SELECT ok, remaining, capacity FROM rl_limit('tb/tiny', count => 0.1, config => rl_token_bucket(0.1, '1 s'));

-- Ten tenths are one, and no float error decides.
SELECT rl_define('tb/tenth', rl_token_bucket(1, '1 day'));
SELECT count(*) FILTER (WHERE ok) AS granted, min(remaining) AS remaining
FROM generate_series(1, 20) n, LATERAL rl_limit('tb/tenth', count => 0.1 * sign(n));

-- The largest numbers.
SELECT rl_define('tb/huge', rl_token_bucket(1e15, '1 ms'));
SELECT ok, remaining, capacity, reset_at FROM rl_limit('tb/huge', count => 1e15);
SELECT ok, remaining, retry_after FROM rl_limit('tb/huge', count => 1e15);
-- The slowest: a wait that no timestamp holds is no time at all.
SELECT rl_define('tb/slow', rl_token_bucket(1e-300, 1e15 * interval '1 ms', capacity => 1));
SELECT ok, remaining, reset_at FROM rl_limit('tb/slow');
SELECT ok, retry_after, retry_at, reset_at FROM rl_limit('tb/slow');

-- A count of zero passes and writes nothing, even in an empty bucket.
SELECT ok, retry_after, remaining FROM rl_limit('tb/huge', count => 0);
SELECT ok, remaining FROM rl_limit('tb', 'nobody', count => 0);
SELECT count(*) FROM rateLimits WHERE name = 'tb' AND key = 'nobody';

-- reserve goes into debt, down to -maxReserved, and says when the tokens are there; without
-- maxReserved a wait of ten years bounds it.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('rv', rl_token_bucket(10, '1 minute', max_reserved => 5));
SELECT ok, retry_after, remaining FROM rl_limit('rv', count => 8, reserve => true);
SELECT ok, retry_after, retry_at, remaining, reset_at FROM rl_limit('rv', count => 4, reserve => true);
-- Three more would owe 5, which is allowed; four more 6, which is not for six seconds.
SELECT ok, retry_after, retry_at, remaining FROM rl_check('rv', count => 3, reserve => true);
SELECT ok, retry_after, retry_at, remaining FROM rl_limit('rv', count => 4, reserve => true);
SELECT ok, retry_after FROM rl_limit('rv', count => 3, reserve => true);
-- In debt: without reserve even zero is denied, until it is paid back.
SELECT ok, retry_after, remaining FROM rl_limit('rv', count => 0);
SELECT ok, retry_after, remaining FROM rl_limit('rv', count => 1);
SELECT ok, retry_after, remaining FROM rl_limit('rv', count => 0, reserve => true);
SELECT value FROM rateLimits WHERE name = 'rv';
SET ratelimit.clock = '2027-01-01 12:00:30+00';
SELECT ok, remaining FROM rl_limit('rv', count => 0);
SELECT ok, retry_after FROM rl_limit('rv', count => 1);
-- More than capacity + maxReserved never fits; exactly that much does, once it is full.
SELECT ok, retry_after FROM rl_limit('rv', count => 16, reserve => true);
SELECT ok, retry_after FROM rl_limit('rv', count => 15, reserve => true);
SET ratelimit.clock = '2027-01-01 12:01:30+00';
SELECT ok, retry_after, remaining FROM rl_limit('rv', count => 15, reserve => true);

SET ratelimit.clock = '2027-01-01 13:00:00+00';
-- Ten years (3652.5 days) at most: one token a day.
SELECT rl_define('rv/years', rl_token_bucket(1, '1 day'));
SELECT ok, retry_after / 86400 AS days, remaining FROM rl_limit('rv/years', count => 3653, reserve => true);
SELECT ok, retry_after, remaining FROM rl_limit('rv/years', count => 1, reserve => true);
SELECT ok, retry_after FROM rl_limit('rv/years', count => 3654, reserve => true);
SELECT rl_define('rv/years', rl_token_bucket(1, '1 day', max_reserved => 1e15), 'bounded');
SELECT ok, retry_after FROM rl_limit('rv/years', 'bounded', count => 3654, reserve => true);
SELECT rl_define('rv/years', rl_fixed_window(1, '1 day', start => '2027-01-01 00:00:00+00'), 'window');
SELECT ok, retry_after FROM rl_limit('rv/years', 'window', count => 5000, reserve => true);
SELECT ok, retry_at, remaining FROM rl_limit('rv/years', 'window', count => 3653, reserve => true);
SELECT ok, retry_after, retry_at FROM rl_limit('rv/years', 'window', count => 1, reserve => true);

-- A debt that another config left counts as ten years of the limit at most; rl_reset forgets it.
SELECT ok, remaining FROM rl_limit('rv/late', 'k', 1e15, reserve => true, config => rl_token_bucket(1e15, '1 day'));
SELECT ok, remaining FROM rl_limit('rv/late', 'k', 1e15, reserve => true, config => rl_token_bucket(1e15, '1 day'));
SELECT rl_define('rv/late', rl_token_bucket(10, '1 minute'));
SELECT ok, retry_after, retry_at, remaining FROM rl_limit('rv/late', 'k', 0);
SELECT ok, retry_at FROM rl_limit('rv/late', 'k', 1);
SELECT rl_define('rv/late', rl_fixed_window(10, '1 month', timezone => 'UTC'));
SELECT ok, retry_at, remaining, reset_at FROM rl_limit('rv/late', 'k', 0);
SELECT rl_define('rv/late', rl_fixed_window(10, '1 month', timezone => 'UTC', shards => 3));
SELECT ok, retry_at, remaining, reset_at FROM rl_limit('rv/late', 'k', 0);
BEGIN;
SET LOCAL ratelimit.clock = '2037-01-01 00:00:00+00';
SELECT ok, retry_at, remaining FROM rl_limit('rv/late', 'k', 1);
SET LOCAL ratelimit.clock = '2037-03-01 00:00:00+00';
SELECT ok, round(remaining::numeric, 6) AS remaining FROM rl_limit('rv/late', 'k', 1);
ROLLBACK;
SELECT rl_reset('rv/late', 'k');
SELECT ok, round(remaining::numeric, 6) AS remaining FROM rl_limit('rv/late', 'k', 1);
-- So does one that a credit leaves, and it says so itself.
SELECT rl_define('rv/taken', rl_token_bucket(1, '1 day'));
SELECT remaining, retry_after / 86400 AS days FROM rl_credit('rv/taken', 'k', -1e15);
SELECT remaining, retry_after / 86400 AS days FROM rl_credit('rv/taken', 'k', -1);
SELECT ok, remaining, retry_after / 86400 AS days FROM rl_limit('rv/taken', 'k', 0);

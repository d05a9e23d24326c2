-- rl_result: its columns, and what each of them says when tokens were taken, denied, denied for
-- ever, reserved, and when only asked.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT attname, format_type(atttypid, atttypmod) AS type
FROM pg_attribute WHERE attrelid = 'rl_result'::regclass ORDER BY attnum;

SELECT rl_define('result', rl_token_bucket(10, '1 minute', max_reserved => 10));
-- It is unused: full, and it is full now.
SELECT * FROM rl_check('result');
SELECT * FROM rl_limit('result');
-- A check leaves remaining as it is.
SELECT * FROM rl_check('result', count => 4);
SELECT * FROM rl_limit('result', count => 4);
SELECT * FROM rl_limit('result', count => 6);
SELECT * FROM rl_check('result', count => 6);
-- More than it holds: never.
SELECT * FROM rl_limit('result', count => 11);
SELECT * FROM rl_check('result', count => 11);
-- Reserved: the wait is for the work, the tokens are taken.
SELECT * FROM rl_check('result', count => 10, reserve => true);
SELECT * FROM rl_limit('result', count => 10, reserve => true);
SELECT * FROM rl_check('result', count => 0);
-- Times are rounded up to a whole millisecond: a third of a second here.
SELECT rl_define('result/3', rl_token_bucket(3, '1 second'));
SELECT ok, retry_after, reset_at FROM rl_limit('result/3');
SELECT ok FROM rl_limit('result/3', count => 2);
SELECT ok, retry_after, retry_at, reset_at FROM rl_limit('result/3');
SET ratelimit.clock = '2027-01-01 12:00:00.333+00';
SELECT ok FROM rl_limit('result/3');
SET ratelimit.clock = '2027-01-01 12:00:00.334+00';
SELECT ok FROM rl_limit('result/3');
-- Between two milliseconds retry_at is rounded too.
SET ratelimit.clock = '2027-01-01 12:00:01.0001+00';
SELECT ok FROM rl_limit('result/3', 'x', count => 3);
SELECT ok, retry_after, retry_at, reset_at FROM rl_limit('result/3', 'x', count => 3);

-- One value, as jsonb and as a column.
SELECT to_jsonb(r) - 'retry_at' - 'reset_at' AS json FROM rl_check('result', 'new') r;
SELECT rl_check('result', 'new'), (rl_check('result', 'new')).ok;

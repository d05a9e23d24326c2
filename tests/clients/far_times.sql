-- What the programs far_times.* find, in a database of the extension and in one of the SQL file: limits whose times lie
-- after the year 9999, where many languages' times end.
SELECT rl_define('slow', rl_token_bucket(rate => 1, period => '3650000 days'));
SELECT rl_define('fixed', rl_fixed_window(rate => 1, period => '3650000 days', first_request => true));
SELECT rl_define('sliding', rl_sliding_window(rate => 1, period => '3650000 days'));
SELECT rl_define('log', rl_sliding_log(rate => 1, period => '3650000 days'));
SELECT rl_define('reserved', rl_token_bucket(rate => 1, period => '3650000 days', max_reserved => 5));
SELECT rl_define('lease', rl_concurrency(slots => 1, ttl => '3650000 days'));
SELECT rl_define('brief', rl_concurrency(slots => 1, ttl => '1 minute'));
CREATE TABLE held (key text PRIMARY KEY, lease text NOT NULL, exempt boolean);

-- To the role that setup.sql creates.
GRANT EXECUTE ON FUNCTION rl_limit, rl_check, rl_credit, rl_limit_all, rl_check_all, rl_status, rl_acquire, rl_extend,
    rl_define, rl_block, rl_unblock TO client;
GRANT SELECT ON rl_blocks TO client;
GRANT SELECT, INSERT, UPDATE ON held TO client;

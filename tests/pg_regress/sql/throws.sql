-- throws makes a denial, and only a denial, the error PT429: constant message, DETAIL one line of
-- JSON without the key, a HINT.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('th', rl_token_bucket(10, '1 minute', max_reserved => 5));
SELECT ok, remaining FROM rl_limit('th', 'secret', count => 10, throws => true);
SELECT * FROM rl_limit('th', 'secret', throws => true);
\echo :SQLSTATE
SELECT * FROM rl_check('th', 'secret', count => 2.0001, throws => true);
\echo :SQLSTATE
-- It can never succeed: NULL.
SELECT rl_limit('th', 'secret', count => 11, throws => true);
SELECT rl_limit('th', 'secret', count => 15.5, reserve => true, throws => true);
-- A reservation is no denial.
SELECT ok, remaining FROM rl_limit('th', 'secret', count => 5, reserve => true, throws => true);
SELECT rl_limit('th', 'secret', count => 1, reserve => true, throws => true);
-- The DETAIL is JSON whatever the name is.
SELECT rl_limit(E'a "b" \\ ''c'' \n %s', count => 2, throws => true, config => rl_sliding_log(1, '1 day'));
-- A millisecond is rounded up.
SELECT rl_limit('th/3', count => 3, config => rl_token_bucket(3, '1 second'));
SELECT rl_limit('th/3', throws => true, config => rl_token_bucket(3, '1 second'));
-- Other errors stay what they are.
SELECT error_of($$SELECT rl_limit('th', NULL, throws => true)$$);
SELECT error_of($$SELECT rl_limit('th/undefined', throws => true)$$);
-- It rolls back with the statement: nothing of it was taken, no row written.
CREATE TEMP TABLE written (n int);
INSERT INTO written SELECT n FROM generate_series(1, 5) n, LATERAL rl_limit('th', 'batch', count => 3 * sign(n), throws => true);
SELECT (SELECT count(*) FROM written) AS written, remaining FROM rl_check('th', 'batch');

-- rl_credit gives back what was taken and not used: debt first, never above the capacity; a negative
-- count takes unconditionally; what an ended window gave does not come back.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('cr', rl_token_bucket(6, '1 minute', capacity => 10, max_reserved => 20));
-- A missing row is full already: nothing is written.
SELECT * FROM rl_credit('cr', 'new', 5);
SELECT count(*) FROM rateLimits WHERE name = 'cr';
-- Back what was taken, with the refill of the time between, and no more.
SELECT ok, remaining FROM rl_limit('cr', 'a', 10);
SELECT * FROM rl_credit('cr', 'a', 4);
SET ratelimit.clock = '2027-01-01 12:00:10+00';
SELECT remaining FROM rl_credit('cr', 'a', 2.5);
SELECT remaining, reset_at FROM rl_credit('cr', 'a', 1e15);
SELECT value, ts FROM rateLimits WHERE name = 'cr' AND key = 'a';
-- Debt first; where some remains, the answer says when it is gone.
SELECT ok, remaining, retry_after FROM rl_limit('cr', 'b', 25, reserve => true);
SELECT * FROM rl_credit('cr', 'b', 5);
SELECT * FROM rl_credit('cr', 'b', 12);
-- A negative count takes unconditionally, from a new key too, and beyond maxReserved.
SELECT * FROM rl_credit('cr', 'c', -3);
SELECT ok, remaining, retry_after FROM rl_credit('cr', 'c', -40);
SELECT ok, remaining, retry_after FROM rl_limit('cr', 'c');
-- Settling an estimate of 8 with the 9.5 that were used: estimate - actual.
SELECT ok, remaining FROM rl_limit('cr', 'job', 8);
SELECT ok, remaining FROM rl_credit('cr', 'job', 8 - 9.5);
-- A count of 0 changes nothing; a reset key is full.
SELECT remaining FROM rl_credit('cr', 'job', 0);
SELECT rl_reset('cr', 'job');
SELECT remaining FROM rl_credit('cr', 'job', 3);
SELECT value FROM rateLimits WHERE name = 'cr' AND key = 'job';
SELECT remaining FROM rl_credit('cr', 'job', -3);
-- A rolled back credit was none.
BEGIN;
SELECT remaining FROM rl_credit('cr', 'job', 2);
ROLLBACK;
SELECT remaining FROM rl_check('cr', 'job');
-- Fixed window: only within the window in which it was taken.
SELECT rl_define('crw', rl_fixed_window(5, '1 hour', capacity => 8, start => '2027-01-01 00:00:00+00'));
SET ratelimit.clock = '2027-01-01 12:59:00+00';
SELECT remaining FROM rl_limit('crw', count => 6);
SELECT remaining FROM rl_credit('crw', '', 1, '2027-01-01 12:59:00+00');
SELECT remaining FROM rl_credit('crw', '', 1);
SET ratelimit.clock = '2027-01-01 13:01:00+00';
SELECT remaining FROM rl_limit('crw', count => 3);
SELECT remaining, reset_at FROM rl_credit('crw', '', 2, '2027-01-01 12:59:00+00');
SELECT remaining FROM rl_credit('crw', '', 2, '2027-01-01 13:00:00+00');
SELECT remaining FROM rl_credit('crw', '', -2, '2027-01-01 12:59:00+00');
SELECT value, ts FROM rateLimits WHERE name = 'crw';
-- A token bucket has no windows to end.
SELECT remaining FROM rl_credit('cr', 'c', 1, '2000-01-01 00:00:00+00');
-- With a config of its own.
SELECT ok, remaining FROM rl_limit('cr/inline', 'k', 4, config => rl_token_bucket(5, '1 minute'));
SELECT ok, remaining FROM rl_credit('cr/inline', 'k', 2, config => rl_token_bucket(5, '1 minute'));
-- Errors.
SELECT call || '|' || error_of('SELECT ' || call) AS error FROM unnest(ARRAY[
    'rl_credit(''cr'', ''k'', NULL)', 'rl_credit(''cr'', NULL, 1)', 'rl_credit(NULL, ''k'', 1)',
    'rl_credit(''cr'', ''k'', ''NaN'')', 'rl_credit(''cr'', ''k'', ''-Infinity'')', 'rl_credit(''cr'', ''k'', 2e15)',
    'rl_credit(''cr'', ''k'', -2e15)', 'rl_credit(''cr'', ''k'', 1, ''infinity'')', 'rl_credit('''', ''k'', 1)',
    'rl_credit(''cr'', repeat(''k'', 1025), 1)', 'rl_credit(''cr/none'', ''k'', 1)',
    'rl_credit(''cr'', ''k'', 1, config => ''{}'')',
    'rl_credit(''cr/sw'', ''k'', 1, config => rl_sliding_window(5, ''1 minute''))',
    'rl_credit(''cr/sl'', ''k'', 1, config => rl_sliding_log(5, ''1 minute''))']) call;
BEGIN READ ONLY;
SELECT error_of($$ SELECT rl_credit('cr', 'k', 1) $$);
ROLLBACK;

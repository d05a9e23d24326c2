-- rl_take takes all of at_most, or else the whole tokens that are there, if these are at least at_least; and none
-- otherwise.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('tk', rl_token_bucket(60, '1 minute', capacity => 100));
-- A batch: as many jobs as there are tokens.
CREATE TABLE tk_jobs (id int PRIMARY KEY, done boolean DEFAULT false);
INSERT INTO tk_jobs SELECT generate_series(1, 150);
WITH batch AS (SELECT id FROM tk_jobs WHERE NOT done ORDER BY id LIMIT (SELECT taken FROM rl_take('tk', at_most => 80)))
UPDATE tk_jobs j SET done = true FROM batch WHERE j.id = batch.id;
WITH batch AS (SELECT id FROM tk_jobs WHERE NOT done ORDER BY id LIMIT (SELECT taken FROM rl_take('tk', at_most => 80)))
UPDATE tk_jobs j SET done = true FROM batch WHERE j.id = batch.id;
WITH batch AS (SELECT id FROM tk_jobs WHERE NOT done ORDER BY id LIMIT (SELECT taken FROM rl_take('tk', at_most => 80)))
UPDATE tk_jobs j SET done = true FROM batch WHERE j.id = batch.id;
SELECT count(*), max(id) FROM tk_jobs WHERE done;
DROP TABLE tk_jobs;
-- All columns: all, part, none, and one token later.
SELECT * FROM rl_take('tk', 'a', 70);
SELECT * FROM rl_take('tk', 'a', 70);
SELECT * FROM rl_take('tk', 'a', 70);
SET ratelimit.clock = '2027-01-01 12:00:01+00';
SELECT * FROM rl_take('tk', 'a', 70);
SELECT value, ts FROM rateLimits WHERE name = 'tk' AND key = 'a';
-- One token if nothing is said.
SELECT ok, taken, remaining FROM rl_take('tk', 'one');
-- At least that number, or none; the wait is for the fewest whole tokens that suffice.
SELECT ok, taken, remaining FROM rl_take('tk', 'b', 95.5);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'b', 50, at_least => 5);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'b', 50, at_least => 4.5);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'b', 50, at_least => 4);
SET ratelimit.clock = '2027-01-01 12:00:05.5+00';
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'b', 50, at_least => 5);
-- A fraction only with all the rest.
SELECT ok, taken, remaining FROM rl_take('tk', 'c', 98.25);
SELECT ok, taken, remaining FROM rl_take('tk', 'c', 1.75);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'c', 0.25, at_least => 0.25);
SELECT ok, taken, remaining FROM rl_take('tk', 'd', 99.5);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'd', 2, at_least => 0.25);
SELECT ok, taken, remaining FROM rl_take('tk', 'd', 0.5, at_least => 0.5);
-- at_least 0: ok, also where nothing is there, and in debt.
SELECT ok, taken, retry_after, retry_at, remaining FROM rl_take('tk', 'd', 10, at_least => 0);
SELECT remaining FROM rl_credit('tk', 'd', -5);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'd', 10, at_least => 0);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'd', 0, at_least => 0);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'd', 10);
-- More than fits ever: at_most may be, at_least may not.
SELECT ok, taken, remaining FROM rl_take('tk', 'e', 1e15, at_least => 100);
SELECT ok, taken, retry_after, retry_at FROM rl_take('tk', 'e', 1e15, at_least => 101);
SELECT error_of($$ SELECT rl_take('tk', 'e', 1e15, 101, throws => true) $$, true);
SELECT error_of($$ SELECT rl_take('tk', 'e', 50, 2, throws => true) $$, true);
-- A denial writes nothing, nor does a take of none.
SELECT rl_define('tk/none', rl_token_bucket(5, '1 minute'));
SELECT ok, taken FROM rl_take('tk/none', at_most => 9, at_least => 6);
SELECT ok, taken FROM rl_take('tk/none', at_most => 0, at_least => 0);
SELECT count(*) FROM rateLimits WHERE name = 'tk/none';
-- What is rolled back was not taken.
BEGIN;
SELECT taken FROM rl_take('tk/none', at_most => 9);
SAVEPOINT s;
SELECT taken FROM rl_take('tk/none', at_most => 9, at_least => 0);
ROLLBACK;
SELECT taken, remaining FROM rl_take('tk/none', at_most => 9);

\echo the other kinds
SELECT rl_define('tk/window', rl_fixed_window(10, '1 minute', start => '2027-01-01 12:00:00+00', capacity => 15));
SELECT ok, taken, remaining, reset_at FROM rl_take('tk/window', at_most => 12);
SELECT ok, taken, remaining, reset_at FROM rl_take('tk/window', at_most => 12);
SELECT ok, taken, retry_at FROM rl_take('tk/window', at_most => 12);
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT ok, taken, remaining FROM rl_take('tk/window', at_most => 12);
SELECT rl_define('tk/month', rl_fixed_window(1000, '1 month', timezone => 'Europe/Berlin'));
SELECT ok, taken, remaining, reset_at FROM rl_take('tk/month', at_most => 990);
SELECT ok, taken, remaining, reset_at FROM rl_take('tk/month', at_most => 990);
SELECT ok, taken, retry_at FROM rl_take('tk/month', at_most => 990);
SELECT rl_define('tk/first', rl_fixed_window(5, '1 minute', first_request => true));
SELECT ok, taken, remaining, reset_at FROM rl_take('tk/first', at_most => 7);
SELECT rl_define('tk/sliding', rl_sliding_window(10, '1 minute'));
SELECT ok, taken, remaining FROM rl_take('tk/sliding', at_most => 8);
SET ratelimit.clock = '2027-01-01 12:02:15+00';
SELECT ok, taken, remaining FROM rl_take('tk/sliding', at_most => 8);
SELECT ok, taken, retry_after FROM rl_take('tk/sliding', at_most => 8, at_least => 3);
SELECT rl_define('tk/log', rl_sliding_log(5, '1 minute'));
SELECT ok, taken, remaining FROM rl_take('tk/log', at_most => 3);
SET ratelimit.clock = '2027-01-01 12:02:30+00';
SELECT ok, taken, remaining FROM rl_take('tk/log', at_most => 3);
SELECT ok, taken, retry_after FROM rl_take('tk/log', at_most => 3);
-- With overage all pass.
SELECT rl_define('tk/over', rl_fixed_window(5, '1 minute', start => '2027-01-01 12:00:00+00') || '{"overage": true}');
SELECT ok, taken, remaining FROM generate_series(1, 2) n, LATERAL rl_take('tk/over', at_most => 6 + n);
-- An exempt key gets all that it may.
SELECT rl_define('tk', rl_unlimited(), 'vip');
SELECT * FROM rl_take('tk', 'vip', 1000);
-- A dry run lets all pass, and loses what it would give.
SELECT rl_define('tk/dry', rl_token_bucket(5, '1 minute') || '{"enforce": false}');
SELECT ok, taken, remaining FROM rl_take('tk/dry', at_most => 3);
SELECT ok, taken, remaining FROM rl_take('tk/dry', at_most => 3);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk/dry', at_most => 3, throws => true);
-- While the key is blocked nothing is taken, in a dry run too; the wait is to the end of the block, and for the tokens.
SELECT rl_block('tk', 'a', '10 seconds'), rl_block('tk/dry', until => 'infinity');
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'a', 500);
SELECT ok, taken, retry_after, remaining FROM rl_take('tk', 'a', 500, at_least => 0);
SELECT ok, taken, retry_after FROM rl_take('tk', 'a', 500, at_least => 101);
SELECT ok, remaining FROM rl_limit('tk', 'blocked', 100);
SELECT rl_block('tk', 'blocked', '10 seconds');
SELECT ok, taken, retry_after FROM rl_take('tk', 'blocked', 500, at_least => 20);
SELECT remaining FROM rl_credit('tk', 'blocked', -20);
SELECT ok, taken, retry_after FROM rl_take('tk', 'blocked', 500, at_least => 0);
SELECT ok, taken, retry_after FROM rl_take('tk/dry', at_most => 3);
SELECT error_of($$ SELECT rl_take('tk/dry', throws => true) $$, true);
-- A config of its own, a plan, a key that is required.
SELECT ok, taken, remaining FROM rl_take('tk/inline', 'k', 9, config => rl_token_bucket(5, '1 minute'));
SELECT rl_define('tk/pro', rl_token_bucket(200, '1 minute')), rl_define('tk', '{"plan": "tk/pro"}', 'pro');
SELECT ok, taken, remaining FROM rl_take('tk', 'pro', 500);
SELECT rl_define('tk/keyed', rl_token_bucket(5, '1 minute') || '{"keyed": true}');

\echo errors
SELECT rl_define('tk/slots', rl_concurrency(3, '1 minute'));
SELECT call || '|' || error_of('SELECT ' || call) AS error FROM unnest(ARRAY[
    'rl_take(NULL)', 'rl_take('''')', 'rl_take(''tk'', NULL)', 'rl_take(''tk'', repeat(''k'', 1025))',
    'rl_take(''tk'', at_most => NULL)', 'rl_take(''tk'', at_least => NULL)', 'rl_take(''tk'', throws => NULL)',
    'rl_take(''tk'', at_most => -1)', 'rl_take(''tk'', at_most => ''NaN'')', 'rl_take(''tk'', at_most => 1e16)',
    'rl_take(''tk'', at_least => -1)', 'rl_take(''tk'', at_least => ''Infinity'')', 'rl_take(''tk'', at_least => ''NaN'')',
    'rl_take(''tk'', at_least => 2)', 'rl_take(''tk'', at_most => 0.5)', 'rl_take(''tk'', at_most => 0)',
    'rl_take(''tk'', at_most => 9.5, at_least => 9.75)', 'rl_take(''tk/log'', at_most => 1.5)',
    'rl_take(''tk/log'', at_most => 2, at_least => 1.5)', 'rl_take(''tk/slots'')', 'rl_take(''tk/slots'', at_most => 1.5)',
    'rl_take(''tk/undefined'')', 'rl_take(''tk/keyed'')', 'rl_take(''tk'', config => ''{}'')',
    'rl_take(''tk/inline'', config => rl_concurrency(3, ''1 minute''))']) call;
BEGIN READ ONLY;
SELECT error_of($$ SELECT rl_take('tk', 'x') $$), error_of($$ SELECT rl_take('tk', 'vip', 5) $$);
ROLLBACK;
SELECT rl_undefine(name), rl_unblock(name) FROM unnest(ARRAY['tk/dry', 'tk/keyed']) name;

-- rl_forget erases a key of all names, in each store.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('fo/bucket', rl_token_bucket(3, '1 minute')), rl_define('fo/slots', rl_concurrency(2, '5 minutes')),
       rl_define('fo/log', rl_sliding_log(3, '1 minute')), rl_define('fo/log', rl_sliding_log(9, '1 minute'), 'ada'),
       rl_define('fo/keyed', rl_fixed_window(3, '1 hour') || '{"keyed": true}'), rl_define('fo/free', rl_unlimited(), 'ada');
SELECT name, ok FROM (VALUES ('fo/bucket'), ('fo/log'), ('fo/keyed'), ('fo/free')) AS d (name), rl_limit(name, 'ada');
SELECT ok FROM rl_limit('fo/bucket', 'adam');
SELECT ok FROM rl_limit('fo/bucket');
SELECT ok FROM rl_acquire('fo/slots', 'ada');
SELECT ok FROM rl_limit('fo/inline', 'ada', config => rl_token_bucket(3, '1 minute'));
SELECT rl_block('fo/bucket', 'ada', '1 hour'), rl_block('fo/keyed', 'ada', '1 second', reason => 'why'), rl_block('fo/bucket', 'adam', '1 hour');
-- A reset state is none, but its row goes.
SELECT rl_reset('fo/keyed', 'ada');
SET ratelimit.clock = '2027-01-01 12:00:30+00';
BEGIN;
SELECT rl_forget('ada');
SELECT remaining FROM rl_check('fo/log', 'ada');
ROLLBACK;
SELECT remaining FROM rl_check('fo/log', 'ada');
-- Of buckets, logs, slots and a config in a call; two overrides; two blocks.
SELECT rl_forget('ada');
SELECT rl_forget('ada');
SELECT name, key FROM rateLimits WHERE name LIKE 'fo/%' ORDER BY 1, 2;
SELECT name, key FROM rl_config WHERE name LIKE 'fo/%' ORDER BY 1, 2;
SELECT name, key FROM rl_blocks WHERE name LIKE 'fo/%' ORDER BY 1, 2;
SELECT count(*) FROM rl_status(key => 'ada');
SELECT ok, remaining FROM rl_limit('fo/bucket', 'ada');
SELECT ok, remaining FROM rl_limit('fo/log', 'ada');
SELECT rl_forget('nobody');
-- The empty key stands for all.
\set VERBOSITY terse
SELECT rl_forget('');
SELECT rl_forget(NULL);
SELECT rl_forget(repeat('k', 1025));
BEGIN READ ONLY;
SELECT rl_forget('ada');
ROLLBACK;
\set VERBOSITY default
SELECT rl_forget('ada'), rl_forget('adam');
SELECT count(rl_undefine(name)), count(rl_reset_all(name)) FROM unnest(ARRAY['fo/bucket', 'fo/slots', 'fo/log', 'fo/keyed', 'fo/free']) AS d (name);

-- Where Postgres discards its caches at each chance, as a build with assertions can, calls end with the same answers.
-- Other builds can't, and have nothing to show here.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT set_config('debug_discard_caches', least(1, max_val::int)::text, false) IS NOT NULL AS set
FROM pg_settings WHERE name = 'debug_discard_caches';
SELECT rl_define('di', rl_token_bucket(2, '1 hour'));
SELECT ok, remaining FROM rl_limit('di', 'a');
SELECT ok, remaining FROM rl_limit('di', 'a');
SELECT ok, remaining FROM rl_limit('di', 'a');
SELECT ok, remaining FROM rl_check('di', 'a');
SELECT name, ok, remaining FROM rl_limit_all('[{"name": "di", "key": "a"}, {"name": "di", "key": "b"}]');
SELECT rl_reset('di', 'a');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT ok, remaining FROM rl_limit('di', 'a');
SELECT ok, remaining FROM rl_limit('di', 'a');
ROLLBACK;
SELECT rl_define('di/shards', rl_fixed_window(6, '1 hour', shards => 3));
SELECT ok FROM rl_limit('di/shards', count => 5);
SELECT rl_define('di/shards', rl_fixed_window(6, '1 hour', shards => 2));
SELECT ok FROM rl_limit('di/shards');
SELECT rl_block('di', 'a', '1 hour');
SELECT ok FROM rl_limit('di', 'a');
SELECT name, key, remaining, limited FROM rl_status('di');
SELECT remaining FROM rl_credit('di', 'b', 1);
SELECT ok, remaining FROM rl_limit('di/inline', config => rl_sliding_log(2, '1 hour'));
SELECT ok, lease IS NOT NULL AS lease FROM rl_acquire('di/slots', config => rl_concurrency(1, '1 minute'));
SELECT rl_reset_keys('di'), rl_undefine('di');
RESET debug_discard_caches;
DELETE FROM rl_config WHERE name LIKE 'di%';
TRUNCATE rl_blocks;
DELETE FROM rateLimits WHERE name LIKE 'di%';

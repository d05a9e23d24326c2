-- rl_forget in memory, in shards, and in the counters.
SELECT rl_stats_reset() IS NOT NULL AS reset;
SELECT rl_define('fm/memory', rl_token_bucket(3, '365 days') || '{"store": "memory"}'),
       rl_define('fm/slots', rl_concurrency(2, '1 day') || '{"store": "memory"}'),
       rl_define('fm/saved', rl_fixed_window(3, '365 days') || '{"store": "memory", "save": "1 hour"}'),
       rl_define('fm/shards', rl_token_bucket(8, '365 days', shards => 2));
SELECT name, ok FROM (VALUES ('fm/memory'), ('fm/saved'), ('fm/shards')) AS d (name), rl_limit(name, 'ada', 2);
SELECT name, ok FROM (VALUES ('fm/memory'), ('fm/saved'), ('fm/shards')) AS d (name), rl_limit(name, 'ada', 9);
SELECT ok FROM rl_limit('fm/saved', 'bob', 2);
SELECT ok FROM rl_limit('fm/memory', 'bob', 9);
SELECT ok FROM rl_acquire('fm/slots', 'ada', 2);
SELECT ok FROM rl_limit('fm/inline', 'ada', 2, config => rl_token_bucket(3, '365 days') || '{"store": "memory"}');
SELECT rl_save() AS unsaved;
SELECT name, key, denied FROM rl_top_denied() WHERE name LIKE 'fm/%' ORDER BY 1, 2;
SELECT rl_forget('ada');
SELECT name, key, denied FROM rl_top_denied() WHERE name LIKE 'fm/%' ORDER BY 1, 2;
SELECT name, key FROM rl_status() WHERE name LIKE 'fm/%' ORDER BY 1, 2;
SELECT name, key FROM rateLimits WHERE name LIKE 'fm/%' ORDER BY 1, 2;
SELECT name, remaining FROM (VALUES ('fm/memory'), ('fm/slots'), ('fm/saved'), ('fm/shards')) AS d (name), rl_check(name, 'ada');
SELECT remaining FROM rl_check('fm/inline', 'ada', config => rl_token_bucket(3, '365 days') || '{"store": "memory"}');
-- Nothing comes back, and others keep what they have.
SELECT rl_save() AS unsaved;
SELECT name, key FROM rateLimits WHERE name LIKE 'fm/%' ORDER BY 1, 2;
SELECT remaining FROM rl_check('fm/saved', 'bob');
SELECT rl_forget('ada'), rl_forget('bob');
SELECT rl_save() AS unsaved;
SELECT count(rl_undefine(name)) FROM unnest(ARRAY['fm/memory', 'fm/slots', 'fm/saved', 'fm/shards']) AS d (name);
SELECT count(*) FROM rl_status() WHERE name LIKE 'fm/%';

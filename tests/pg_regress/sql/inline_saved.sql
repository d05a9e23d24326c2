-- A config in a call for a limit that is saved counts where the limit does, in memory, and is saved with it. By the
-- server's clock, since no other is saved.
SELECT rl_define('ic/defined', rl_token_bucket(1, '1 s')) \g /dev/null
SELECT rl_define('ic/saved', rl_token_bucket(10, '1000 days') || '{"store": "memory", "save": "1 hour"}'),
       rl_define('ic/slots', rl_concurrency(3, '1 hour') || '{"store": "memory", "save": "1 hour"}');
BEGIN READ ONLY;
SELECT ok, round(remaining), capacity FROM rl_limit('ic/saved', 'a', 2, config => rl_token_bucket(5, '1000 days'));
SELECT ok, round(remaining), capacity FROM rl_limit('ic/saved', 'a');
SELECT round(remaining) FROM rl_limit('ic/saved', 'a', config => rl_token_bucket(10, '1000 days') || '{"store": "memory", "save": 3600000}');
SELECT round(remaining) FROM rl_check('ic/saved', 'a', config => rl_token_bucket(5, '1000 days') || '{"store": "memory"}');
SELECT round(remaining) FROM rl_credit('ic/saved', 'a', 3, config => rl_token_bucket(5, '1000 days'));
SELECT n, ok, round(remaining) FROM rl_limit_all(format('[{"name": "ic/saved", "key": "a", "config": %s}, {"name": "ic/saved", "key": "a"}]',
    rl_token_bucket(10, '1000 days'))::jsonb);
SELECT n, ok, round(remaining) FROM rl_check_all(format('[{"name": "ic/saved", "key": "a", "config": %s}]', rl_token_bucket(2, '1000 days'))::jsonb);
SELECT round((rl_value('ic/saved', 'a', config => rl_token_bucket(2, '1000 days')) -> 'state' ->> 'value')::numeric);
SELECT ok, remaining FROM rl_acquire('ic/slots', 'a', 2, config => rl_concurrency(2, '1 hour'));
SELECT ok, remaining, capacity FROM rl_check('ic/slots', 'a');
COMMIT;
SELECT rl_save();
SELECT name, key, round(value) FROM rateLimits WHERE name IN ('ic/saved', 'ic/slots') ORDER BY name;
-- Where it can't, it is refused, with what it may be.
SELECT more, error_of(format('SELECT rl_limit(%L, %L, config => %L)', 'ic/saved', 'a', rl_token_bucket(5, '1 s') || more))
FROM (VALUES ('{"store": "table"}'::jsonb), ('{"store": "memory", "save": 100}'), ('{"applyUpdates": "asynchronously"}'), ('{"shards": 2}')) v (more);
SELECT error_of(format('SELECT rl_check(%L, %L, config => %L)', 'ic/saved', 'a', rl_sliding_log(5, '1 s')), true);
SELECT error_of(format('SELECT rl_acquire(%L, %L, config => %L)', 'ic/slots', 'a', rl_concurrency(101, '1 s')));
SELECT error_of(format('SELECT rl_limit_all(%L)', format('[{"name": "ic/saved", "config": %s}]', rl_token_bucket(5, '1 s') || '{"store": "table"}')), true);
-- A key that is exempt has the state of its name; a limit that is not saved has no other that is.
SELECT rl_define('ic/saved', rl_unlimited(), 'exempt') \g /dev/null
SELECT error_of(format('SELECT rl_limit(%L, %L, config => %L)', 'ic/saved', 'exempt', rl_token_bucket(5, '1 s') || '{"store": "table"}'));
SELECT round(remaining) FROM rl_limit('ic/saved', 'exempt', config => rl_token_bucket(5, '1000 days'));
-- A fixed clock has the same in a state of its own.
SET ratelimit.clock = '2040-01-01 00:00:00+00';
SELECT remaining FROM rl_limit('ic/saved', 'exempt', config => rl_token_bucket(7, '1000 days'));
RESET ratelimit.clock;
SELECT count(*) FROM rateLimits WHERE key = 'exempt';
SELECT rl_undefine('ic/saved', 'exempt');
SELECT round(remaining) FROM rl_check('ic/saved', 'exempt');
SELECT error_of(format('SELECT rl_limit(%L, config => %L)', 'ic/defined', rl_token_bucket(5, '1 s') || '{"store": "memory", "save": 100}'));
SELECT rl_undefine('ic/saved'), rl_undefine('ic/slots'), rl_undefine('ic/defined');
DELETE FROM rateLimits WHERE name IN ('ic/saved', 'ic/slots');

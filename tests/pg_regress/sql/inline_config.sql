-- A call may bring its own config, for a name that is not defined; over a defined one only who may
-- define (see also privileges).
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT ok, remaining, capacity FROM rl_limit('ic', 'a', count => 2, config => rl_token_bucket(10, '1 minute'));
SELECT ok, remaining, capacity FROM rl_limit('ic', 'a', config => '{"kind": "token bucket", "rate": 10, "period": "1 minute"}');
SELECT ok, remaining, capacity FROM rl_check('ic', 'a', config => rl_token_bucket(10, '1 minute'));
-- Nothing was defined by that.
SELECT error_of($$SELECT rl_limit('ic', 'a')$$);
-- Another config works on the same state.
SELECT ok, remaining, capacity FROM rl_limit('ic', 'a', config => rl_token_bucket(5, '1 minute'));
SELECT ok, remaining, capacity FROM rl_limit('ic', 'a', count => 2, config => rl_sliding_window(2, '1 minute'));
-- A config that is NULL is none.
SELECT error_of($$SELECT rl_limit('ic', 'a', config => NULL)$$);
-- A JSON null, and everything else that is no config, is a bad one.
SELECT error_of(format('SELECT rl_limit(%L, config => %L)', 'ic', config))
FROM (VALUES ('null'), ('[]'), ('1'), ('"token bucket"'), ('true'), ('{}'), ('[{"kind": "token bucket", "rate": 1, "period": 1}]')) v (config);
SELECT error_of($$SELECT rl_check('ic', config => '{"kind": "token bucket", "rate": 1}')$$, true);
-- Here a superuser calls, who may define.
SELECT rl_define('ic/defined', rl_token_bucket(1, '1 minute'));
SELECT capacity FROM rl_check('ic/defined', config => rl_token_bucket(50, '1 minute'));
SELECT capacity FROM rl_check('ic/defined');
-- Configs from a column, a row each.
SELECT n, ok, remaining FROM (VALUES (1, rl_token_bucket(3, '1 s')), (2, rl_sliding_log(2, '1 s')), (3, rl_fixed_window(1, '1 s'))) v (n, config),
    LATERAL rl_limit('ic/each', n::text, config => v.config);

-- For a limit that is saved it counts where the limit does, in memory, and is saved with it. By the server's clock, since
-- no other is saved.
RESET ratelimit.clock;
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
SELECT round((rl_state('ic/saved', 'a', config => rl_token_bucket(2, '1000 days')) ->> 'value')::numeric);
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
SELECT rl_undefine('ic/saved', 'exempt');
SELECT round(remaining) FROM rl_check('ic/saved', 'exempt');
SELECT error_of(format('SELECT rl_limit(%L, config => %L)', 'ic/defined', rl_token_bucket(5, '1 s') || '{"store": "memory", "save": 100}'));
SELECT rl_undefine('ic/saved'), rl_undefine('ic/slots');
DELETE FROM rateLimits WHERE name IN ('ic/saved', 'ic/slots');

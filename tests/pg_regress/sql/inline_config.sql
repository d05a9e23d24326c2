-- A call may bring its own config, for a name that is not defined; over a defined one only a role
-- that can define (see also privileges).
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
-- A superuser calls, which can define.
SELECT rl_define('ic/defined', rl_token_bucket(1, '1 minute'));
SELECT capacity FROM rl_check('ic/defined', config => rl_token_bucket(50, '1 minute'));
SELECT capacity FROM rl_check('ic/defined');
-- Configs from a column, a row each.
SELECT n, ok, remaining FROM (VALUES (1, rl_token_bucket(3, '1 s')), (2, rl_sliding_log(2, '1 s')), (3, rl_fixed_window(1, '1 s'))) v (n, config),
    LATERAL rl_limit('ic/each', n::text, config => v.config);

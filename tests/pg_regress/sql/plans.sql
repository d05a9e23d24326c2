-- Plans: a key whose definition is that of another name. Its state stays under its own name and key.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('pn/free', rl_fixed_window(100, '1 month', timezone => 'UTC')),
       rl_define('pn/pro', rl_fixed_window(1000, '1 month', timezone => 'UTC'));
SELECT rl_define('pn', '{"plan": "pn/free"}', 'acme'), rl_define('pn', '{"plan": "pn/free"}', 'acme');
-- A name needs no definition of its own.
SELECT error_of($$SELECT rl_limit('pn', 'other')$$, true);
SELECT rl_define('pn', rl_token_bucket(5, '1 minute'));
SELECT remaining, capacity FROM rl_limit('pn', 'other');
SELECT remaining, capacity, reset_at FROM rl_limit('pn', 'acme', 60);
SELECT name, key, value FROM rateLimits WHERE name ~ '^pn' ORDER BY name, key;
SELECT name, key, config FROM rl_config WHERE name ~ '^pn' ORDER BY name, key;

-- An upgrade in the middle of a window keeps what was used.
SELECT rl_define('pn', '{"plan": "pn/pro"}', 'acme');
SELECT remaining, capacity FROM rl_check('pn', 'acme');
SELECT rl_define('pn', '{"plan": "pn/free"}', 'acme');
SELECT remaining, capacity FROM rl_check('pn', 'acme');
SELECT rl_define('pn', '{"plan": "pn/pro"}', 'acme'), rl_define('pn', '{"plan": "pn/pro"}', 'b'), rl_define('pn2', '{"plan": "pn/pro"}', 'c');

-- A change of the plan is one statement, for every key of every name that has it, and for no other.
SELECT remaining FROM rl_limit('pn', 'b', 10);
SELECT rl_define('pn/pro', rl_fixed_window(2000, '1 month', timezone => 'UTC'));
SELECT name, key, remaining, capacity
FROM (VALUES ('pn', 'acme'), ('pn', 'b'), ('pn2', 'c'), ('pn', 'other'), ('pn/pro', 'acme')) AS keys (name, key), rl_check(name, key);
-- Within a transaction, and within a statement; a rollback undoes it.
BEGIN;
SELECT rl_define('pn/pro', rl_fixed_window(3000, '1 month', timezone => 'UTC')), (rl_check('pn', 'acme')).capacity;
SELECT rl_define('pn', '{"plan": "pn/free"}', 'b');
SELECT key, capacity FROM (VALUES ('acme'), ('b')) AS keys (key), rl_check('pn', key);
ROLLBACK;
SELECT key, capacity FROM (VALUES ('acme'), ('b')) AS keys (key), rl_check('pn', key);
-- An override of the plan's name for the same key doesn't count, and one customer has a figure of his own.
SELECT rl_define('pn/pro', rl_fixed_window(1, '1 month', timezone => 'UTC'), 'acme');
SELECT rl_define('pn', rl_fixed_window(1500, '1 month', timezone => 'UTC'), 'b');
SELECT key, remaining, capacity FROM (VALUES ('acme'), ('b')) AS keys (key), rl_check('pn', key);
SELECT rl_define('pn', '{"plan": "pn/pro"}', 'b');

-- Every function knows it.
SELECT ok, allows, remaining FROM rl_limit_all('[{"name": "pn", "key": "acme", "count": 40}, {"name": "pn2", "key": "c"}]');
SELECT ok, allows, remaining FROM rl_check_all('[{"name": "pn", "key": "acme", "count": 1901}, {"name": "pn2", "key": "c"}]');
SELECT remaining FROM rl_credit('pn', 'acme', 100);
SELECT ok, retry_at FROM rl_check('pn', 'acme', 2001);
SELECT rl_state('pn', 'b'), rl_state('pn2', 'c');
SELECT name, key, kind, remaining, capacity FROM rl_status() WHERE name ~ '^pn' ORDER BY name, key;
SELECT rl_reset('pn', 'b'), rl_state('pn', 'b');
SELECT rl_block('pn', 'b', '1 minute'), (rl_limit('pn', 'b')).ok, rl_unblock('pn', 'b');
SELECT ok, remaining FROM rl_limit('pn', 'b', config => rl_token_bucket(7, '1 minute'));
-- An exempt plan, and another kind.
SELECT rl_define('pn/pro', rl_unlimited());
SELECT ok, remaining FROM rl_limit('pn', 'acme', 1e9);
SELECT name, key, kind, limited FROM rl_status('pn', 'acme');
SELECT name, key, kind, limited FROM rl_status('pn') WHERE kind = 'unlimited';
SELECT name, key, kind, limited FROM rl_status() WHERE name = 'pn3';
SELECT rl_define('pn3', '{"plan": "pn/pro"}', 'new');
SELECT name, key, kind, limited FROM rl_status() WHERE name = 'pn3';
SELECT rl_define('pn/pro', rl_sliding_window(50, '1 minute'));
SELECT remaining FROM rl_limit('pn', 'acme', 20);
SELECT error_of($$SELECT rl_credit('pn', 'acme', 1)$$);
SELECT rl_define('pn/pro', rl_concurrency(2, '1 minute'));
SELECT error_of($$SELECT rl_limit('pn', 'acme')$$);
SELECT ok, remaining FROM rl_acquire('pn', 'acme');
SELECT rl_define('pn/pro', rl_token_bucket(10, '1 minute') || '{"enforce": false, "keyed": true}');
SELECT ok FROM rl_limit('pn', 'acme', 11);
-- Idle rows go.
SET ratelimit.clock = '2027-03-01 12:00:00+00';
SELECT rl_prune() > 0;
SELECT key FROM rateLimits WHERE name = 'pn';

-- A plan that isn't defined.
SELECT error_of($$SELECT rl_define('pn', '{"plan": "pn/none"}', 'd')$$, true);
SELECT rl_define('pn/other', rl_token_bucket(10, '1 minute'));
SELECT rl_define('pn', '{"plan": "pn/other"}', 'd'), (rl_limit('pn', 'd', 3)).remaining;
DELETE FROM rl_config WHERE name = 'pn/other';
SELECT error_of($$SELECT rl_limit('pn', 'd')$$, true);
SELECT error_of($$SELECT rl_check('pn', 'd')$$);
SELECT error_of($$SELECT rl_limit_all('[{"name": "pn", "key": "acme"}, {"name": "pn", "key": "d"}]')$$);
SELECT error_of($$SELECT rl_credit('pn', 'd', 1)$$);
SELECT error_of($$SELECT rl_acquire('pn', 'd')$$);
SELECT error_of($$SELECT rl_define('pn', '{"plan": "pn/other"}', 'd')$$);
SELECT name, key, kind, remaining FROM rl_status('pn', 'd');
SELECT rl_prune();
SELECT (rl_check('pn', 'acme')).capacity, (rl_check('pn', 'any')).capacity;
SELECT rl_define('pn/other', rl_token_bucket(20, '1 minute')), (rl_limit('pn', 'd')).capacity;

-- A plan in use.
SELECT error_of($$SELECT rl_undefine('pn/other')$$, true);
SELECT error_of($$SELECT rl_undefine('pn/pro')$$, true);
SELECT rl_undefine('pn/pro', 'acme'), rl_undefine('pn', 'd'), rl_undefine('pn/other');
SELECT (rl_check('pn', 'd')).capacity;
-- A name whose own definition a key has.
SELECT rl_define('pn', '{"plan": "pn"}', 'e'), (rl_check('pn', 'e')).capacity;
SELECT error_of($$SELECT rl_undefine('pn')$$);

-- A plan is for a key, and stands alone.
SELECT error_of($$SELECT rl_define('pn/pro', '{"plan": "pn/free"}')$$, true);
SELECT error_of($$SELECT rl_define('pn', '{"plan": "pn/free", "rate": 5}', 'f')$$);
SELECT error_of($$SELECT rl_define('pn', '{"plan": "pn/free", "kind": "unlimited"}', 'f')$$);
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'pn', config, 'f'), true)
FROM unnest('{"{\"plan\": 5}", "{\"plan\": null}", "{\"plan\": \"\"}", "[\"plan\"]", "\"plan\""}'::jsonb[]) AS config;
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'pn', jsonb_build_object('plan', repeat('x', n)), 'f'))
FROM unnest('{200,201}'::int[]) AS n;
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'pn', jsonb_build_object('plan', repeat('x', 10001)), 'f')) ~ 'bytes long';
SELECT error_of($$SELECT rl_limit('pn/inline', 'f', config => '{"plan": "pn/free"}')$$);
SELECT error_of($$SELECT rl_calculate('{"plan": "pn/free"}', NULL, now())$$);
SELECT error_of($$SELECT rl_headers('pn', ROW(true, NULL, NULL, 5, 5, NULL)::rl_result, config => '{"plan": "pn/free"}')$$);
SELECT error_of($$SELECT rl_limit_all('[{"name": "pn/inline", "config": {"plan": "pn/free"}}]')$$);

-- Plain SQL: a row is checked, and may come before its plan, as in a restore.
SELECT error_of($$INSERT INTO rl_config VALUES ('pn/bad', '', '{"plan": "pn/free"}')$$);
SELECT error_of($$INSERT INTO rl_config VALUES ('pn/bad', 'k', '{"plan": 5}')$$);
SELECT error_of($$UPDATE rl_config SET key = '' WHERE name = 'pn2'$$);
INSERT INTO rl_config (name, key, config) VALUES ('pn', 'g', '{"plan": "pn/later"}');
INSERT INTO rl_config (name, key, config) VALUES ('pn/later', '', rl_token_bucket(8, '1 minute'));
SELECT (rl_check('pn', 'g')).capacity;

DELETE FROM rl_config WHERE name ~ '^pn';
DELETE FROM rateLimits WHERE name ~ '^pn';

-- Plans: a key whose definition is that of another name. Its state stays under its own name and key.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('pk/free', rl_fixed_window(100, '1 month', timezone => 'UTC')),
       rl_define('pk/pro', rl_fixed_window(1000, '1 month', timezone => 'UTC'));
SELECT rl_define('pk', '{"plan": "pk/free"}', 'acme'), rl_define('pk', '{"plan": "pk/free"}', 'acme');
-- A name needs no definition of its own.
SELECT error_of($$SELECT rl_limit('pk', 'other')$$, true);
SELECT rl_define('pk', rl_token_bucket(5, '1 minute'));
SELECT remaining, capacity FROM rl_limit('pk', 'other');
SELECT remaining, capacity, reset_at FROM rl_limit('pk', 'acme', 60);
SELECT name, key, value FROM rateLimits WHERE name ~ '^pk' ORDER BY name, key;
SELECT name, key, config FROM rl_config WHERE name ~ '^pk' ORDER BY name, key;

-- An upgrade in the middle of a window keeps what was used.
SELECT rl_define('pk', '{"plan": "pk/pro"}', 'acme');
SELECT remaining, capacity FROM rl_check('pk', 'acme');
SELECT rl_define('pk', '{"plan": "pk/free"}', 'acme');
SELECT remaining, capacity FROM rl_check('pk', 'acme');
SELECT rl_define('pk', '{"plan": "pk/pro"}', 'acme'), rl_define('pk', '{"plan": "pk/pro"}', 'b'), rl_define('pk2', '{"plan": "pk/pro"}', 'c');

-- A change of the plan is one statement, for every key of every name that has it, and for no other.
SELECT remaining FROM rl_limit('pk', 'b', 10);
SELECT rl_define('pk/pro', rl_fixed_window(2000, '1 month', timezone => 'UTC'));
SELECT name, key, remaining, capacity
FROM (VALUES ('pk', 'acme'), ('pk', 'b'), ('pk2', 'c'), ('pk', 'other'), ('pk/pro', 'acme')) AS keys (name, key), rl_check(name, key);
-- Within a transaction, and within a statement; a rollback undoes it.
BEGIN;
SELECT rl_define('pk/pro', rl_fixed_window(3000, '1 month', timezone => 'UTC')), (rl_check('pk', 'acme')).capacity;
SELECT rl_define('pk', '{"plan": "pk/free"}', 'b');
SELECT key, capacity FROM (VALUES ('acme'), ('b')) AS keys (key), rl_check('pk', key);
ROLLBACK;
SELECT key, capacity FROM (VALUES ('acme'), ('b')) AS keys (key), rl_check('pk', key);
-- An override of the plan's name for the same key doesn't count, and one customer has a figure of his own.
SELECT rl_define('pk/pro', rl_fixed_window(1, '1 month', timezone => 'UTC'), 'acme');
SELECT rl_define('pk', rl_fixed_window(1500, '1 month', timezone => 'UTC'), 'b');
SELECT key, remaining, capacity FROM (VALUES ('acme'), ('b')) AS keys (key), rl_check('pk', key);
SELECT rl_define('pk', '{"plan": "pk/pro"}', 'b');

-- Every function knows it.
SELECT ok, allows, remaining FROM rl_limit_all('[{"name": "pk", "key": "acme", "count": 40}, {"name": "pk2", "key": "c"}]');
SELECT ok, allows, remaining FROM rl_check_all('[{"name": "pk", "key": "acme", "count": 1901}, {"name": "pk2", "key": "c"}]');
SELECT remaining FROM rl_credit('pk', 'acme', 100);
SELECT ok, retry_at FROM rl_check('pk', 'acme', 2001);
SELECT rl_state('pk', 'b'), rl_state('pk2', 'c');
SELECT name, key, kind, remaining, capacity FROM rl_status() WHERE name ~ '^pk' ORDER BY name, key;
SELECT rl_reset('pk', 'b'), rl_state('pk', 'b');
SELECT rl_block('pk', 'b', '1 minute'), (rl_limit('pk', 'b')).ok, rl_unblock('pk', 'b');
SELECT ok, remaining FROM rl_limit('pk', 'b', config => rl_token_bucket(7, '1 minute'));
-- An exempt plan, and another kind.
SELECT rl_define('pk/pro', rl_unlimited());
SELECT ok, remaining FROM rl_limit('pk', 'acme', 1e9);
SELECT name, key, kind, limited FROM rl_status('pk', 'acme');
SELECT name, key, kind, limited FROM rl_status('pk') WHERE kind = 'unlimited';
SELECT name, key, kind, limited FROM rl_status() WHERE name = 'pk3';
SELECT rl_define('pk3', '{"plan": "pk/pro"}', 'new');
SELECT name, key, kind, limited FROM rl_status() WHERE name = 'pk3';
SELECT rl_define('pk/pro', rl_sliding_window(50, '1 minute'));
SELECT remaining FROM rl_limit('pk', 'acme', 20);
SELECT error_of($$SELECT rl_credit('pk', 'acme', 1)$$);
SELECT rl_define('pk/pro', rl_concurrency(2, '1 minute'));
SELECT error_of($$SELECT rl_limit('pk', 'acme')$$);
SELECT ok, remaining FROM rl_acquire('pk', 'acme');
SELECT rl_define('pk/pro', rl_token_bucket(10, '1 minute') || '{"enforce": false, "keyed": true}');
SELECT ok FROM rl_limit('pk', 'acme', 11);
-- Idle rows go.
SET ratelimit.clock = '2027-03-01 12:00:00+00';
SELECT rl_prune() > 0;
SELECT key FROM rateLimits WHERE name = 'pk';

-- A plan that isn't defined.
SELECT error_of($$SELECT rl_define('pk', '{"plan": "pk/none"}', 'd')$$, true);
SELECT rl_define('pk/other', rl_token_bucket(10, '1 minute'));
SELECT rl_define('pk', '{"plan": "pk/other"}', 'd'), (rl_limit('pk', 'd', 3)).remaining;
DELETE FROM rl_config WHERE name = 'pk/other';
SELECT error_of($$SELECT rl_limit('pk', 'd')$$, true);
SELECT error_of($$SELECT rl_check('pk', 'd')$$);
SELECT error_of($$SELECT rl_limit_all('[{"name": "pk", "key": "acme"}, {"name": "pk", "key": "d"}]')$$);
SELECT error_of($$SELECT rl_credit('pk', 'd', 1)$$);
SELECT error_of($$SELECT rl_acquire('pk', 'd')$$);
SELECT error_of($$SELECT rl_define('pk', '{"plan": "pk/other"}', 'd')$$);
SELECT name, key, kind, remaining FROM rl_status('pk', 'd');
SELECT rl_prune();
SELECT (rl_check('pk', 'acme')).capacity, (rl_check('pk', 'any')).capacity;
SELECT rl_define('pk/other', rl_token_bucket(20, '1 minute')), (rl_limit('pk', 'd')).capacity;

-- A plan in use.
SELECT error_of($$SELECT rl_undefine('pk/other')$$, true);
SELECT error_of($$SELECT rl_undefine('pk/pro')$$, true);
SELECT rl_undefine('pk/pro', 'acme'), rl_undefine('pk', 'd'), rl_undefine('pk/other');
SELECT (rl_check('pk', 'd')).capacity;
-- A name whose own definition a key has.
SELECT rl_define('pk', '{"plan": "pk"}', 'e'), (rl_check('pk', 'e')).capacity;
SELECT error_of($$SELECT rl_undefine('pk')$$);

-- A plan is for a key, and stands alone.
SELECT error_of($$SELECT rl_define('pk/pro', '{"plan": "pk/free"}')$$, true);
SELECT error_of($$SELECT rl_define('pk', '{"plan": "pk/free", "rate": 5}', 'f')$$);
SELECT error_of($$SELECT rl_define('pk', '{"plan": "pk/free", "kind": "unlimited"}', 'f')$$);
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'pk', config, 'f'), true)
FROM unnest('{"{\"plan\": 5}", "{\"plan\": null}", "{\"plan\": \"\"}", "[\"plan\"]", "\"plan\""}'::jsonb[]) AS config;
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'pk', jsonb_build_object('plan', repeat('x', n)), 'f'))
FROM unnest('{200,201}'::int[]) AS n;
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'pk', jsonb_build_object('plan', repeat('x', 10001)), 'f')) ~ 'bytes long';
SELECT error_of($$SELECT rl_limit('pk/inline', 'f', config => '{"plan": "pk/free"}')$$);
SELECT error_of($$SELECT rl_calculate('{"plan": "pk/free"}', NULL, now())$$);
SELECT error_of($$SELECT rl_headers('pk', ROW(true, NULL, NULL, 5, 5, NULL)::rl_result, config => '{"plan": "pk/free"}')$$);
SELECT error_of($$SELECT rl_limit_all('[{"name": "pk/inline", "config": {"plan": "pk/free"}}]')$$);

-- Plain SQL: a row is checked, and may come before its plan, as in a restore.
SELECT error_of($$INSERT INTO rl_config VALUES ('pk/bad', '', '{"plan": "pk/free"}')$$);
SELECT error_of($$INSERT INTO rl_config VALUES ('pk/bad', 'k', '{"plan": 5}')$$);
SELECT error_of($$UPDATE rl_config SET key = '' WHERE name = 'pk2'$$);
INSERT INTO rl_config (name, key, config) VALUES ('pk', 'g', '{"plan": "pk/later"}');
SELECT error_of($$SELECT rl_limit('pk', 'g')$$), error_of($$SELECT rl_limit('pk', 'g', config => rl_token_bucket(9, '1 minute'))$$);
SELECT rl_block('pk', 'g', '1 hour') > now(), rl_unblock('pk', 'g');
INSERT INTO rl_config (name, key, config) VALUES ('pk/later', '', rl_token_bucket(8, '1 minute'));
SELECT (rl_check('pk', 'g')).capacity;

DELETE FROM rl_config WHERE name ~ '^pk';
DELETE FROM rateLimits WHERE name ~ '^pk';

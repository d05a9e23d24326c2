-- Plans: a key whose definition is that of another name. Its state stays under its own name and key.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('tp/free', rl_fixed_window(100, '1 month', timezone => 'UTC')),
       rl_define('tp/pro', rl_fixed_window(1000, '1 month', timezone => 'UTC'));
SELECT rl_define('tp', '{"plan": "tp/free"}', 'acme'), rl_define('tp', '{"plan": "tp/free"}', 'acme');
-- A name needs no definition of its own.
SELECT error_of($$SELECT rl_limit('tp', 'other')$$, true);
SELECT rl_define('tp', rl_token_bucket(5, '1 minute'));
SELECT remaining, capacity FROM rl_limit('tp', 'other');
SELECT remaining, capacity, reset_at FROM rl_limit('tp', 'acme', 60);
SELECT name, key, value FROM rateLimits WHERE name ~ '^tp' ORDER BY name, key;
SELECT name, key, config FROM rl_config WHERE name ~ '^tp' ORDER BY name, key;

-- An upgrade in the middle of a window keeps what was used.
SELECT rl_define('tp', '{"plan": "tp/pro"}', 'acme');
SELECT remaining, capacity FROM rl_check('tp', 'acme');
SELECT rl_define('tp', '{"plan": "tp/free"}', 'acme');
SELECT remaining, capacity FROM rl_check('tp', 'acme');
SELECT rl_define('tp', '{"plan": "tp/pro"}', 'acme'), rl_define('tp', '{"plan": "tp/pro"}', 'b'), rl_define('tp2', '{"plan": "tp/pro"}', 'c');

-- A change of the plan is one statement, for every key of every name that has it, and for no other.
SELECT remaining FROM rl_limit('tp', 'b', 10);
SELECT rl_define('tp/pro', rl_fixed_window(2000, '1 month', timezone => 'UTC'));
SELECT name, key, remaining, capacity
FROM (VALUES ('tp', 'acme'), ('tp', 'b'), ('tp2', 'c'), ('tp', 'other'), ('tp/pro', 'acme')) AS keys (name, key), rl_check(name, key);
-- Within a transaction, and within a statement; a rollback undoes it.
BEGIN;
SELECT rl_define('tp/pro', rl_fixed_window(3000, '1 month', timezone => 'UTC')), (rl_check('tp', 'acme')).capacity;
SELECT rl_define('tp', '{"plan": "tp/free"}', 'b');
SELECT key, capacity FROM (VALUES ('acme'), ('b')) AS keys (key), rl_check('tp', key);
ROLLBACK;
SELECT key, capacity FROM (VALUES ('acme'), ('b')) AS keys (key), rl_check('tp', key);
-- An override of the plan's name for the same key doesn't count, and one customer has a figure of his own.
SELECT rl_define('tp/pro', rl_fixed_window(1, '1 month', timezone => 'UTC'), 'acme');
SELECT rl_define('tp', rl_fixed_window(1500, '1 month', timezone => 'UTC'), 'b');
SELECT key, remaining, capacity FROM (VALUES ('acme'), ('b')) AS keys (key), rl_check('tp', key);
SELECT rl_define('tp', '{"plan": "tp/pro"}', 'b');

-- Every function knows it.
SELECT ok, allows, remaining FROM rl_limit_all('[{"name": "tp", "key": "acme", "count": 40}, {"name": "tp2", "key": "c"}]');
SELECT ok, allows, remaining FROM rl_check_all('[{"name": "tp", "key": "acme", "count": 1901}, {"name": "tp2", "key": "c"}]');
SELECT remaining FROM rl_credit('tp', 'acme', 100);
SELECT ok, retry_at FROM rl_check('tp', 'acme', 2001);
SELECT rl_value('tp', 'b') -> 'state', rl_value('tp2', 'c') -> 'state';
SELECT name, key, kind, remaining, capacity FROM rl_status() WHERE name ~ '^tp' ORDER BY name, key;
SELECT rl_reset('tp', 'b'), rl_value('tp', 'b') -> 'state';
SELECT rl_block('tp', 'b', '1 minute'), (rl_limit('tp', 'b')).ok, rl_unblock('tp', 'b');
SELECT ok, remaining FROM rl_limit('tp', 'b', config => rl_token_bucket(7, '1 minute'));
-- An exempt plan, and another kind.
SELECT rl_define('tp/pro', rl_unlimited());
SELECT ok, remaining FROM rl_limit('tp', 'acme', 1e9);
SELECT name, key, kind, limited FROM rl_status('tp', 'acme');
SELECT name, key, kind, limited FROM rl_status('tp') WHERE kind = 'unlimited';
SELECT name, key, kind, limited FROM rl_status() WHERE name = 'tp3';
SELECT rl_define('tp3', '{"plan": "tp/pro"}', 'new');
SELECT name, key, kind, limited FROM rl_status() WHERE name = 'tp3';
SELECT rl_define('tp/pro', rl_sliding_window(50, '1 minute'));
SELECT remaining FROM rl_limit('tp', 'acme', 20);
SELECT error_of($$SELECT rl_credit('tp', 'acme', 1)$$);
SELECT rl_define('tp/pro', rl_concurrency(2, '1 minute'));
SELECT error_of($$SELECT rl_limit('tp', 'acme')$$);
SELECT ok, remaining FROM rl_acquire('tp', 'acme');
SELECT rl_define('tp/pro', rl_token_bucket(10, '1 minute') || '{"enforce": false, "keyed": true}');
SELECT ok FROM rl_limit('tp', 'acme', 11);
-- Idle rows go.
SET ratelimit.clock = '2027-03-01 12:00:00+00';
SELECT rl_prune() > 0;
SELECT key FROM rateLimits WHERE name = 'tp';

-- A plan that isn't defined.
SELECT error_of($$SELECT rl_define('tp', '{"plan": "tp/none"}', 'd')$$, true);
SELECT rl_define('tp/other', rl_token_bucket(10, '1 minute'));
SELECT rl_define('tp', '{"plan": "tp/other"}', 'd'), (rl_limit('tp', 'd', 3)).remaining;
DELETE FROM rl_config WHERE name = 'tp/other';
SELECT error_of($$SELECT rl_limit('tp', 'd')$$, true);
SELECT error_of($$SELECT rl_check('tp', 'd')$$);
SELECT error_of($$SELECT rl_limit_all('[{"name": "tp", "key": "acme"}, {"name": "tp", "key": "d"}]')$$);
SELECT error_of($$SELECT rl_credit('tp', 'd', 1)$$);
SELECT error_of($$SELECT rl_acquire('tp', 'd')$$);
SELECT error_of($$SELECT rl_define('tp', '{"plan": "tp/other"}', 'd')$$);
SELECT name, key, kind, remaining FROM rl_status('tp', 'd');
SELECT rl_prune();
SELECT (rl_check('tp', 'acme')).capacity, (rl_check('tp', 'any')).capacity;
SELECT rl_define('tp/other', rl_token_bucket(20, '1 minute')), (rl_limit('tp', 'd')).capacity;

-- A plan in use.
SELECT error_of($$SELECT rl_undefine('tp/other')$$, true);
SELECT error_of($$SELECT rl_undefine('tp/pro')$$, true);
SELECT rl_undefine('tp/pro', 'acme'), rl_undefine('tp', 'd'), rl_undefine('tp/other');
SELECT (rl_check('tp', 'd')).capacity;
-- A name whose own definition a key has.
SELECT rl_define('tp', '{"plan": "tp"}', 'e'), (rl_check('tp', 'e')).capacity;
SELECT error_of($$SELECT rl_undefine('tp')$$);

-- A plan is for a key, and stands alone.
SELECT error_of($$SELECT rl_define('tp/pro', '{"plan": "tp/free"}')$$, true);
SELECT error_of($$SELECT rl_define('tp', '{"plan": "tp/free", "rate": 5}', 'f')$$);
SELECT error_of($$SELECT rl_define('tp', '{"plan": "tp/free", "kind": "unlimited"}', 'f')$$);
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'tp', config, 'f'), true)
FROM unnest('{"{\"plan\": 5}", "{\"plan\": null}", "{\"plan\": \"\"}", "[\"plan\"]", "\"plan\""}'::jsonb[]) AS config;
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'tp', jsonb_build_object('plan', repeat('x', n)), 'f'))
FROM unnest('{200,201}'::int[]) AS n;
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'tp', jsonb_build_object('plan', repeat(U&'\00e9', n)), 'f')) ~ '^22023'
FROM unnest('{100,101}'::int[]) AS n;
SELECT error_of(format('SELECT rl_define(%L, %L, %L)', 'tp', jsonb_build_object('plan', repeat('x', 10001)), 'f')) ~ 'bytes long';
SELECT error_of($$SELECT rl_limit('tp/inline', 'f', config => '{"plan": "tp/free"}')$$);
SELECT error_of($$SELECT rl_calculate('{"plan": "tp/free"}', NULL, now())$$);
SELECT error_of($$SELECT rl_headers('tp', ROW(true, NULL, NULL, 5, 5, NULL)::rl_result, config => '{"plan": "tp/free"}')$$);
SELECT error_of($$SELECT rl_limit_all('[{"name": "tp/inline", "config": {"plan": "tp/free"}}]')$$);

-- Plain SQL: a row is checked, and may come before its plan, as in a restore.
SELECT error_of($$INSERT INTO rl_config VALUES ('tp/bad', '', '{"plan": "tp/free"}')$$);
SELECT error_of($$INSERT INTO rl_config VALUES ('tp/bad', 'k', '{"plan": 5}')$$);
SELECT error_of($$UPDATE rl_config SET key = '' WHERE name = 'tp2'$$);
INSERT INTO rl_config (name, key, config) VALUES ('tp', 'g', '{"plan": "tp/later"}');
SELECT error_of($$SELECT rl_limit('tp', 'g')$$), error_of($$SELECT rl_limit('tp', 'g', config => rl_token_bucket(9, '1 minute'))$$);
SELECT rl_block('tp', 'g', '1 hour') > now(), rl_unblock('tp', 'g');
INSERT INTO rl_config (name, key, config) VALUES ('tp/later', '', rl_token_bucket(8, '1 minute'));
SELECT (rl_check('tp', 'g')).capacity;

DELETE FROM rl_config WHERE name ~ '^tp';
DELETE FROM rateLimits WHERE name ~ '^tp';

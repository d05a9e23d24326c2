-- Plans in other stores: a key has its plan's, and moves with it.
CREATE FUNCTION bucket(rate float8 DEFAULT 100) RETURNS jsonb IMMUTABLE RETURN rl_token_bucket(rate, '100000 days', capacity => 100);
CREATE FUNCTION saved(rate float8 DEFAULT 100) RETURNS jsonb IMMUTABLE RETURN bucket(rate) || '{"store": "memory", "save": "1 hour"}';

-- In memory.
SELECT rl_define('ps/memory', bucket() || '{"store": "memory"}'), rl_define('ps/rows', bucket());
SELECT rl_define('ps', '{"plan": "ps/memory"}', 'a');
SELECT round((rl_limit('ps', 'a', 60)).remaining), round((rl_check('ps', 'a')).remaining);
SELECT count(*) FROM rateLimits WHERE name = 'ps';
SELECT rl_reset('ps', 'a'), round((rl_check('ps', 'a')).remaining);
SELECT round((rl_limit('ps', 'a', 5)).remaining), rl_reset_all('ps'), round((rl_check('ps', 'a')).remaining);

-- Shards that differ: nothing extra.
SELECT rl_define('ps/shards', rl_token_bucket(1e-9, '1 day', capacity => 100, shards => 4)), rl_define('ps', '{"plan": "ps/rows"}', 'a');
SELECT round((rl_limit('ps', 'a', 60)).remaining);
SELECT rl_define('ps', '{"plan": "ps/shards"}', 'a');
SELECT round((rl_check('ps', 'a')).remaining), shards FROM rl_status('ps', 'a');
SELECT ok FROM rl_limit('ps', 'a', 41);
SELECT rl_define('ps/shards', rl_token_bucket(1e-9, '1 day', capacity => 100, shards => 2));
SELECT round((rl_limit('ps', 'a', 30)).remaining), shards FROM rl_status('ps', 'a');
SELECT rl_define('ps', '{"plan": "ps/rows"}', 'a');
SELECT round((rl_limit('ps', 'a', 5)).remaining), count(*) FROM rateLimits WHERE name = 'ps' GROUP BY name;
SELECT rl_reset_all('ps');

-- Saved: a change of plan moves the key, a change of the plan all keys that have it, and a rollback none.
SELECT rl_define('ps/saved', saved()), rl_define('ps', '{"plan": "ps/saved"}', key) FROM unnest('{a,b}'::text[]) AS key;
SELECT rl_define('ps2', '{"plan": "ps/saved"}', 'c'), rl_define('ps2', saved());
SELECT name, key, round((rl_limit(name, key, 60)).remaining) FROM (VALUES ('ps', 'a'), ('ps', 'b'), ('ps2', 'c'), ('ps2', 'd')) AS keys (name, key);
SELECT count(*) FROM rateLimits WHERE name ~ '^ps';
SELECT rl_define('ps', '{"plan": "ps/rows"}', 'a');
SELECT name, key, round(value) FROM rateLimits WHERE name ~ '^ps' ORDER BY name, key;
SELECT round((rl_limit('ps', 'a', 10)).remaining), round((rl_limit('ps', 'b', 10)).remaining);
BEGIN;
SELECT rl_define('ps/saved', bucket());
SELECT round((rl_limit('ps', 'b', 10)).remaining);
ROLLBACK;
SELECT name, key, round(remaining) FROM rl_status() WHERE name ~ '^ps' ORDER BY name, key;
SELECT rl_define('ps/saved', bucket());
SELECT name, key, round(value) FROM rateLimits WHERE name ~ '^ps' ORDER BY name, key;
SELECT name, key, round((rl_limit(name, key, 1)).remaining) FROM (VALUES ('ps', 'a'), ('ps', 'b'), ('ps2', 'c'), ('ps2', 'd')) AS keys (name, key);
-- Back into memory, where the row is read first.
SELECT rl_define('ps/saved', saved());
SELECT name, key, round((rl_limit(name, key, 1)).remaining) FROM (VALUES ('ps', 'a'), ('ps', 'b'), ('ps2', 'c'), ('ps2', 'd')) AS keys (name, key);
-- One statement that changes the plan and the key's row, and that deletes both.
UPDATE rl_config SET config = CASE key WHEN '' THEN bucket() ELSE '{"plan": "ps/rows"}' END WHERE name = 'ps/saved' OR key = 'c';
SELECT name, key, round(value) FROM rateLimits WHERE name ~ '^ps' ORDER BY name, key;
SELECT rl_define('ps/saved', saved()), rl_define('ps2', '{"plan": "ps/saved"}', 'c'), round((rl_limit('ps2', 'c', 1)).remaining);
DELETE FROM rl_config WHERE name = 'ps/saved' OR key = 'c';
SELECT name, key, round(value) FROM rateLimits WHERE name ~ '^ps' ORDER BY name, key;
-- A plan that was dropped by plain SQL: what is in memory stays there.
SELECT rl_save(), round((rl_limit('ps2', 'd', 1)).remaining);
SELECT rl_define('ps/saved', saved()), round((rl_limit('ps', 'b', 1)).remaining);
DELETE FROM rl_config WHERE name = 'ps/saved';
SELECT error_of($$SELECT rl_limit('ps', 'b')$$), rl_save();
SELECT key, round(value) FROM rateLimits WHERE name = 'ps' ORDER BY key;
SELECT rl_define('ps/saved', saved()), round((rl_limit('ps', 'b', 1)).remaining);

-- A key without a limit goes on afterwards.
SELECT rl_define('ps/saved', rl_unlimited()), (rl_limit('ps', 'b', 1000)).ok;
SELECT rl_define('ps/saved', saved()), round((rl_check('ps', 'b')).remaining);

DELETE FROM rl_config WHERE name ~ '^ps';
DELETE FROM rateLimits WHERE name ~ '^ps';
DROP FUNCTION saved, bucket;

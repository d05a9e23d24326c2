-- rl_config may be written by plain SQL: it is checked there too, and takes effect at once. A value
-- in rateLimits that no call writes is an error, never a pass.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
INSERT INTO rl_config VALUES ('ps', '', '{"kind": "token bucket", "rate": 10, "period": "1 minute"}');
INSERT INTO rl_config (name, config) VALUES ('ps/2', rl_sliding_log(2, '1 day'));
SELECT ok, remaining FROM rl_limit('ps');
SELECT ok, remaining FROM rl_limit('ps/2');
UPDATE rl_config SET config = config || '{"capacity": 50}' WHERE name = 'ps';
SELECT capacity FROM rl_check('ps');
INSERT INTO rl_config VALUES ('ps', 'vip', rl_token_bucket(100, '1 minute'));
SELECT capacity FROM rl_check('ps', 'vip');
UPDATE rl_config SET key = 'other' WHERE name = 'ps' AND key = 'vip';
SELECT key, capacity FROM unnest(ARRAY['vip', 'other']) key, LATERAL rl_check('ps', key);
UPDATE rl_config SET name = 'ps/renamed' WHERE name = 'ps/2';
SELECT capacity FROM rl_check('ps/renamed');
SELECT error_of($$SELECT rl_check('ps/2')$$);
DELETE FROM rl_config WHERE name = 'ps' AND key = 'other';
SELECT capacity FROM rl_check('ps', 'other');
-- Bad ones are refused, however they are written.
INSERT INTO rl_config VALUES ('ps/bad', '', '{"kind": "token bucket", "rate": 10}');
\echo :SQLSTATE
\a \t
SELECT sql, error_of(sql) FROM unnest(ARRAY[
    'INSERT INTO rl_config VALUES (''ps/bad'', '''', ''{}'')',
    'INSERT INTO rl_config VALUES (''ps/bad'', '''', ''null'')',
    'UPDATE rl_config SET config = config || ''{"rate": -1}'' WHERE name = ''ps''',
    'UPDATE rl_config SET config = config - ''rate'' WHERE name = ''ps''',
    'INSERT INTO rl_config VALUES ('''', '''', rl_sliding_log(1, ''1 s''))',
    'INSERT INTO rl_config VALUES (repeat(''n'', 201), '''', rl_sliding_log(1, ''1 s''))',
    'INSERT INTO rl_config VALUES (''ps/bad'', repeat(''k'', 1025), rl_sliding_log(1, ''1 s''))',
    'UPDATE rl_config SET key = repeat(''k'', 1025) WHERE name = ''ps''',
    'UPDATE rl_config SET config = ''[]'' WHERE name = ''ps''']) sql;
SELECT sql, left(error_of(sql), 6) FROM unnest(ARRAY[
    'INSERT INTO rl_config (name) VALUES (''ps/bad'')',
    'INSERT INTO rl_config (config) VALUES (rl_sliding_log(1, ''1 s''))',
    'INSERT INTO rl_config VALUES (''ps/bad'', NULL, rl_sliding_log(1, ''1 s''))',
    'UPDATE rl_config SET config = NULL',
    'INSERT INTO rl_config (name, config) VALUES (''ps'', rl_sliding_log(1, ''1 s''))']) sql;
\a \t
INSERT INTO rl_config VALUES ('ps', '', rl_token_bucket(11, '1 minute')) ON CONFLICT (name, key) DO UPDATE SET config = EXCLUDED.config;
MERGE INTO rl_config c USING (VALUES ('ps'), ('ps/merged')) v (name) ON c.name = v.name
    WHEN MATCHED THEN UPDATE SET config = rl_token_bucket(12, '1 minute')
    WHEN NOT MATCHED THEN INSERT VALUES (v.name, '', rl_token_bucket(13, '1 minute'));
SELECT name, capacity FROM unnest(ARRAY['ps', 'ps/merged']) name, LATERAL rl_check(name);
COPY rl_config (name, config) FROM stdin;
ps/copied	{"kind": "token bucket", "rate": 14, "period": 60000}
\.
SELECT capacity FROM rl_check('ps/copied');
\set VERBOSITY terse
COPY rl_config (name, config) FROM stdin;
ps/fine	{"kind": "token bucket", "rate": 14, "period": 60000}
ps/bad	{"kind": "token bucket", "rate": 0, "period": 60000}
\.
\set VERBOSITY default
-- Also where triggers are off, as in a restore or a subscriber.
SET session_replication_role = replica;
SELECT error_of($$INSERT INTO rl_config VALUES ('ps/bad', '', '{}')$$);
UPDATE rl_config SET config = rl_token_bucket(15, '1 minute') WHERE name = 'ps';
SELECT capacity FROM rl_check('ps');
RESET session_replication_role;
-- In a transaction: at once, and back at a rollback, whole or to a savepoint.
BEGIN;
UPDATE rl_config SET config = rl_token_bucket(16, '1 minute') WHERE name = 'ps';
SELECT capacity FROM rl_check('ps');
SAVEPOINT a;
DELETE FROM rl_config WHERE name = 'ps';
SELECT error_of($$SELECT rl_check('ps')$$);
ROLLBACK TO a;
SELECT capacity FROM rl_check('ps');
SAVEPOINT b;
TRUNCATE rl_config;
SELECT error_of($$SELECT rl_check('ps')$$);
ROLLBACK TO b;
SELECT capacity FROM rl_check('ps');
ROLLBACK;
SELECT capacity FROM rl_check('ps');
BEGIN;
TRUNCATE rl_config;
SET LOCAL session_replication_role = replica;
SELECT error_of($$SELECT rl_check('ps/copied')$$);
ROLLBACK;
SELECT capacity FROM rl_check('ps/copied');
-- A block that is undone in PL/pgSQL.
DO $$
BEGIN
    BEGIN
        UPDATE rl_config SET config = rl_token_bucket(17, '1 minute') WHERE name = 'ps';
        RAISE NOTICE 'inside %', (rl_check('ps')).capacity;
        RAISE EXCEPTION 'undo';
    EXCEPTION WHEN OTHERS THEN
        RAISE NOTICE 'after %', (rl_check('ps')).capacity;
    END;
END
$$;
-- Plain SQL on the state.
UPDATE rateLimits SET value = 3 WHERE name = 'ps';
SELECT ok, remaining FROM rl_check('ps');
-- More than the capacity is the capacity; a debt is a debt.
UPDATE rateLimits SET value = 1e300 WHERE name = 'ps';
SELECT ok, remaining FROM rl_check('ps');
UPDATE rateLimits SET value = -15 WHERE name = 'ps';
SELECT ok, retry_after, remaining FROM rl_check('ps');
-- A row that is deleted is a limit that is full.
DELETE FROM rateLimits WHERE name = 'ps';
SELECT ok, remaining FROM rl_check('ps', count => 15);
SELECT ok, remaining FROM rl_limit('ps');
-- No number: an error, for a check and a limit, whatever the count; a reset heals it.
UPDATE rateLimits SET value = 'NaN' WHERE name = 'ps';
SELECT * FROM rl_limit('ps');
\echo :SQLSTATE
\a \t
SELECT sql, error_of(sql) FROM unnest(ARRAY['SELECT rl_check(''ps'')', 'SELECT rl_limit(''ps'', count => 0)', 'SELECT rl_limit(''ps'', count => 1e15)',
    'SELECT rl_limit(''ps'', reserve => true)', 'SELECT rl_limit(''ps'', throws => true)']) sql;
UPDATE rateLimits SET value = '-Infinity' WHERE name = 'ps';
SELECT sql, error_of(sql) FROM unnest(ARRAY['SELECT rl_check(''ps'')', 'SELECT rl_limit(''ps'')', 'SELECT rl_limit(''ps'', count => 0)', 'SELECT rl_limit(''ps'', reserve => true)']) sql;
\a \t
SELECT rl_reset('ps');
SELECT ok, remaining FROM rl_limit('ps');
-- The other columns.
SELECT rl_define('ps/sw', rl_sliding_window(10, '1 minute')), rl_define('ps/sl', rl_sliding_log(10, '1 minute'));
INSERT INTO rateLimits (name, kind, value, ts, prior) VALUES ('ps/sw', 's', 'NaN', '2027-01-01 12:00:00+00', 0);
SELECT error_of($$SELECT rl_limit('ps/sw')$$);
UPDATE rateLimits SET value = 0, prior = 'NaN' WHERE name = 'ps/sw';
SELECT left(error_of($$SELECT rl_limit('ps/sw')$$), 5) AS sqlstate;
UPDATE rateLimits SET value = 0, prior = 'Infinity' WHERE name = 'ps/sw';
SELECT left(error_of($$SELECT rl_limit('ps/sw')$$), 5) AS sqlstate;
UPDATE rateLimits SET value = 0, prior = '-Infinity' WHERE name = 'ps/sw';
SELECT left(error_of($$SELECT rl_limit('ps/sw')$$), 5) AS sqlstate;
BEGIN;
SELECT rl_define('ps/fw', rl_fixed_window(10, '1 minute'));
INSERT INTO rateLimits (name, kind, value, ts, added) VALUES ('ps/fw', 't', 3, '2027-01-01 12:00:00+00', '-Infinity');
SELECT error_of($$SELECT rl_limit('ps/fw')$$);
ROLLBACK;
INSERT INTO rateLimits (name, kind, value, ts, log) VALUES ('ps/sl', 'l', 'NaN', '2027-01-01 12:00:00+00', '{}');
SELECT error_of($$SELECT rl_limit('ps/sl')$$);
-- A log in any order, with a NULL in it.
UPDATE rateLimits SET value = 3, log = ARRAY['2027-01-01 11:59:50+00', NULL, '2027-01-01 11:59:10+00', '2027-01-01 11:00:00+00']::timestamptz[] WHERE name = 'ps/sl';
SELECT ok, remaining, reset_at FROM rl_limit('ps/sl');
SELECT value, log FROM rateLimits WHERE name = 'ps/sl';
-- Infinite times, which no call writes either.
UPDATE rateLimits SET value = 4, ts = '-infinity' WHERE name = 'ps';
SELECT ok, remaining FROM rl_limit('ps');
UPDATE rateLimits SET value = 4, ts = 'infinity' WHERE name = 'ps';
SELECT ok, remaining FROM rl_limit('ps');
SELECT value, ts FROM rateLimits WHERE name = 'ps';
SELECT key FROM rateLimits WHERE name = 'ps' AND 'Infinity' = ts;
UPDATE rateLimits SET log = ARRAY['infinity']::timestamptz[] WHERE name = 'ps/sl';
SELECT ok, remaining FROM rl_limit('ps/sl');
SELECT key FROM rateLimits WHERE name = 'ps/sl' AND 'Infinity' = ANY (log);
SELECT rl_reset('ps/sl');
SELECT ok, rl_reset('ps') FROM rl_limit('ps/sl');
SELECT ok FROM rl_limit('ps');
-- Pruning leaves such a row for somebody to look at.
UPDATE rateLimits SET ts = '-infinity' WHERE name = 'ps';
SELECT rl_prune(), rl_reset_keys('ps');
-- NULLs are refused by the table.
SELECT left(error_of('UPDATE rateLimits SET value = NULL'), 6), left(error_of('UPDATE rateLimits SET ts = NULL'), 6);
-- TRUNCATE of the state makes everything full; of the definitions, undefined.
TRUNCATE rateLimits;
SELECT ok, remaining FROM rl_check('ps');
BEGIN;
TRUNCATE rl_config;
COMMIT;
SELECT error_of($$SELECT rl_limit('ps')$$);

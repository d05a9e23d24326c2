-- DROP EXTENSION and CREATE again: in one session, in one transaction, rolled back, with definitions
-- before and after; nothing of the old one is remembered.
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_reinstall;
\c regress_rl_reinstall
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE EXTENSION ratelimit;
SELECT rl_define('limit', rl_token_bucket(10, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
DROP EXTENSION ratelimit;
SELECT error FROM (VALUES (to_regclass('ratelimits')::text), (to_regtype('rl_result')::text), (to_regproc('rl_limit')::text)) v (error);
SELECT count(*) FROM pg_class WHERE relname IN ('ratelimits', 'rl_config', 'rl_result');
SELECT count(*) FROM pg_proc WHERE proname LIKE 'rl\_%';
CREATE EXTENSION ratelimit;
SELECT rl_limit('limit');
\echo :SQLSTATE
SELECT rl_define('limit', rl_token_bucket(5, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
-- In one transaction.
BEGIN;
DROP EXTENSION ratelimit;
CREATE EXTENSION ratelimit;
SELECT rl_define('limit', rl_sliding_log(3, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
COMMIT;
SELECT ok, remaining FROM rl_limit('limit');
-- Rolled back: the old one is back, its state too.
BEGIN;
DROP EXTENSION ratelimit;
CREATE EXTENSION ratelimit;
SELECT rl_define('limit', rl_token_bucket(100, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
ROLLBACK;
SELECT ok, remaining FROM rl_limit('limit');
BEGIN;
SAVEPOINT a;
DROP EXTENSION ratelimit;
ROLLBACK TO a;
SELECT ok, remaining FROM rl_limit('limit');
COMMIT;
-- Into another schema, and back.
DROP EXTENSION ratelimit;
CREATE SCHEMA limits;
CREATE EXTENSION ratelimit SCHEMA limits;
SELECT limits.rl_define('limit', limits.rl_token_bucket(7, '1 minute'));
SELECT ok, remaining FROM limits.rl_limit('limit');
DROP EXTENSION ratelimit;
CREATE EXTENSION ratelimit;
SELECT rl_define('limit', rl_token_bucket(8, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
-- Dependent objects keep it; CASCADE takes them along.
CREATE VIEW level AS SELECT remaining FROM rl_check('limit');
CREATE TABLE outcome (result rl_result);
\set VERBOSITY terse
DROP EXTENSION ratelimit;
\echo :SQLSTATE
SET client_min_messages = warning;
DROP EXTENSION ratelimit CASCADE;
RESET client_min_messages;
\set VERBOSITY default
SELECT to_regclass('level') AS level, count(*) AS outcome_columns FROM pg_attribute WHERE attrelid = 'outcome'::regclass AND attnum > 0 AND NOT attisdropped;
-- A prepared statement of the old one finds the new one.
CREATE EXTENSION ratelimit;
SELECT rl_define('limit', rl_token_bucket(6, '1 minute'));
PREPARE take AS SELECT ok, remaining FROM rl_limit('limit');
EXECUTE take;
DROP EXTENSION ratelimit;
CREATE EXTENSION ratelimit;
SELECT rl_define('limit', rl_token_bucket(4, '1 minute'));
EXECUTE take;
-- TRUNCATE, VACUUM FULL, CLUSTER and ALTER TABLE in between.
TRUNCATE rateLimits;
SELECT ok, remaining FROM rl_limit('limit');
VACUUM FULL rateLimits;
SELECT ok, remaining FROM rl_limit('limit');
ALTER TABLE rateLimits ADD COLUMN extra text;
SELECT ok, remaining FROM rl_limit('limit');
REINDEX TABLE rateLimits;
SELECT ok, remaining FROM rl_limit('limit');
DISCARD ALL;
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT ok, remaining FROM rl_limit('limit');
\c :home
DROP DATABASE regress_rl_reinstall;

-- The schema is chosen at install, may have any name, and may be renamed in mid session; the role
-- that calls needs USAGE on it.
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_schema;
\c regress_rl_schema
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE SCHEMA limits;
CREATE EXTENSION ratelimit SCHEMA limits;
\set VERBOSITY terse
SELECT rl_limit('limit');
\echo :SQLSTATE
\set VERBOSITY default
SELECT limits.rl_define('limit', limits.rl_token_bucket(10, '1 minute'));
SELECT ok, remaining FROM limits.rl_limit('limit');
SELECT limits.rl_check('limit');
SELECT name, value FROM limits.rateLimits;
SET search_path = limits, public;
SELECT ok, remaining FROM rl_limit('limit');
SELECT rl_limit('none');
SELECT rl_define('limit', '{"kind": "sliding log"}');
RESET search_path;
-- A call in a hint can be typed as it stands.
SELECT limits.rl_limit('none');
SELECT limits.rl_define('limit', '{"kind": "sliding log"}');
SELECT limits.rl_credit('none', 'k', 1, config => limits.rl_sliding_log(1, '1 s'));
INSERT INTO limits.rateLimits VALUES ('limit', 'bad', 0, 't', 'NaN', '2027-01-01Z');
SELECT limits.rl_limit('limit', 'bad');
SELECT limits.rl_reset('limit', 'bad');
CREATE TABLE written (author text);
CREATE TRIGGER a AFTER INSERT ON written FOR EACH ROW EXECUTE FUNCTION limits.rl_trigger('limit', 'key=author');
INSERT INTO written VALUES ('ada');
DROP TRIGGER a ON written;
CREATE TRIGGER a BEFORE INSERT ON written FOR EACH ROW EXECUTE FUNCTION limits.rl_trigger('limit', 'key=author');
-- The one GRANT, and USAGE; a trigger needs neither.
CREATE ROLE regress_rl_schema;
GRANT EXECUTE ON FUNCTION limits.rl_limit, limits.rl_check TO regress_rl_schema;
GRANT INSERT ON written TO regress_rl_schema;
SET ROLE regress_rl_schema;
INSERT INTO written VALUES ('ada');
\set VERBOSITY terse
SELECT ok FROM limits.rl_limit('limit');
\echo :SQLSTATE
\set VERBOSITY default
RESET ROLE;
GRANT USAGE ON SCHEMA limits TO regress_rl_schema;
SET ROLE regress_rl_schema;
SELECT ok, remaining FROM limits.rl_limit('limit');
SELECT limits.rl_limit('limit', config => limits.rl_sliding_log(1, '1 s'));
RESET ROLE;
-- Renamed between two calls, and within a transaction that is rolled back.
ALTER SCHEMA limits RENAME TO "Rate ""Limits"".x";
SELECT ok, remaining FROM "Rate ""Limits"".x".rl_limit('limit');
SELECT "Rate ""Limits"".x".rl_limit('none');
INSERT INTO written VALUES ('ada');
SELECT remaining FROM "Rate ""Limits"".x".rl_check('limit', 'ada');
DROP TABLE written;
BEGIN;
ALTER SCHEMA "Rate ""Limits"".x" RENAME TO limits;
SELECT ok, remaining FROM limits.rl_limit('limit');
SELECT limits.rl_define('limit', limits.rl_token_bucket(20, '1 minute'));
SELECT limits.rl_reset('limit'), limits.rl_reset_keys('limit');
ROLLBACK;
SELECT ok, remaining FROM "Rate ""Limits"".x".rl_limit('limit');
SELECT "Rate ""Limits"".x".rl_reset('limit'), "Rate ""Limits"".x".rl_reset_keys('limit'), "Rate ""Limits"".x".rl_undefine('limit');
-- Another schema takes the old name, with tables of the same name in it: they are not ours.
CREATE SCHEMA limits;
CREATE TABLE limits.ratelimits (name text, key text, shard int, value float8, ts timestamptz, prior float8, log timestamptz[]);
SELECT ok, remaining FROM "Rate ""Limits"".x".rl_limit('a', config => "Rate ""Limits"".x".rl_sliding_log(2, '1 day'));
SELECT count(*) FROM limits.ratelimits;
-- Objects don't wander, and what somebody moves by hand is missed, not replaced by another.
ALTER EXTENSION ratelimit SET SCHEMA public;
ALTER TABLE "Rate ""Limits"".x".rl_config SET SCHEMA public;
SELECT "Rate ""Limits"".x".rl_limit('a', config => "Rate ""Limits"".x".rl_sliding_log(2, '1 day'));
\echo :SQLSTATE
CREATE TABLE "Rate ""Limits"".x".rl_config (name text, key text, config jsonb);
SELECT "Rate ""Limits"".x".rl_limit('a', config => "Rate ""Limits"".x".rl_sliding_log(2, '1 day'));
DROP TABLE "Rate ""Limits"".x".rl_config;
ALTER TABLE public.rl_config SET SCHEMA "Rate ""Limits"".x";
SELECT ok, remaining FROM "Rate ""Limits"".x".rl_limit('a', config => "Rate ""Limits"".x".rl_sliding_log(2, '1 day'));
DROP EXTENSION ratelimit;
DROP SCHEMA "Rate ""Limits"".x";
-- A name that needs quotes from the start; one that does not exist.
CREATE SCHEMA "Rate Limits; x.y";
CREATE EXTENSION ratelimit SCHEMA "Rate Limits; x.y";
SELECT "Rate Limits; x.y".rl_define('limit', '{"kind": "token bucket", "rate": 2, "period": "1 s"}');
SELECT ok, remaining FROM "Rate Limits; x.y".rl_limit('limit');
SELECT "Rate Limits; x.y".rl_reset('limit');
DROP EXTENSION ratelimit;
CREATE EXTENSION ratelimit SCHEMA missing;
\echo :SQLSTATE
-- In the shadow of temporary tables of the same names.
CREATE EXTENSION ratelimit;
CREATE TEMP TABLE ratelimits (name text, key text, shard int, value float8, ts timestamptz, prior float8, log timestamptz[]);
CREATE TEMP TABLE rl_config (name text, key text, config jsonb);
SELECT rl_define('limit', rl_token_bucket(2, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
SELECT (SELECT count(*) FROM pg_temp.ratelimits) AS temp, (SELECT count(*) FROM public.ratelimits) AS ours;
\c :home
DROP DATABASE regress_rl_schema;
DROP ROLE regress_rl_schema;

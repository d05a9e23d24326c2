-- Nothing is found by search_path: operators, functions, types and tables of the same names in a
-- schema before pg_catalog and public change nothing.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('sp', rl_token_bucket(10, '1 minute'));
SELECT ok, remaining FROM rl_limit('sp', count => 9);
CREATE SCHEMA evil;
CREATE FUNCTION evil.always(text, text) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'fooled'; END$$;
CREATE FUNCTION evil.always(int, int) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'fooled'; END$$;
CREATE FUNCTION evil.always(float8, float8) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'fooled'; END$$;
CREATE FUNCTION evil.always(jsonb, jsonb) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'fooled'; END$$;
CREATE OPERATOR evil.= (FUNCTION = evil.always, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR evil.= (FUNCTION = evil.always, LEFTARG = int, RIGHTARG = int);
CREATE OPERATOR evil.= (FUNCTION = evil.always, LEFTARG = jsonb, RIGHTARG = jsonb);
CREATE OPERATOR evil.> (FUNCTION = evil.always, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR evil.<> (FUNCTION = evil.always, LEFTARG = float8, RIGHTARG = float8);
CREATE OPERATOR evil.<> (FUNCTION = evil.always, LEFTARG = jsonb, RIGHTARG = jsonb);
CREATE OPERATOR evil.<> (FUNCTION = evil.always, LEFTARG = text, RIGHTARG = text);
CREATE FUNCTION evil.count(text) RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'fooled'; END$$;
CREATE TABLE evil.ratelimits (LIKE public.ratelimits INCLUDING ALL);
INSERT INTO evil.ratelimits VALUES ('sp', '', 0, 't', 1000000, '2027-01-01 12:00:00+00');
CREATE TABLE evil.rl_config (LIKE public.rl_config INCLUDING ALL);
INSERT INTO evil.rl_config VALUES ('sp', '', '{"kind": "token bucket", "rate": 1000000, "period": 1}');
CREATE TYPE evil.rl_result AS (ok text);
CREATE TYPE evil.text AS (a int);
CREATE TYPE evil.jsonb AS (a int);
CREATE DOMAIN evil.timestamptz AS int;
CREATE FUNCTION evil.rl_define(name pg_catalog.text, config pg_catalog.jsonb, key pg_catalog.text DEFAULT '') RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION evil.rl_limit(name pg_catalog.text, key pg_catalog.text) RETURNS boolean LANGUAGE sql AS 'SELECT true';

SET search_path = evil, pg_catalog, public;
SELECT ok, remaining FROM public.rl_limit('sp', count => 2);
SELECT ok, remaining FROM public.rl_limit('sp');
SELECT ok, remaining FROM public.rl_check('sp');
SELECT public.rl_define('sp/2', public.rl_token_bucket(3, '1 minute')), public.rl_define('sp/2', public.rl_token_bucket(3, '1 minute')), public.rl_define('sp/2', public.rl_token_bucket(4, '1 minute'));
SELECT ok, remaining FROM public.rl_limit('sp/2', 'k');
SELECT public.rl_reset('sp/2', 'k'), public.rl_reset('sp/2', 'k');
SELECT ok, remaining FROM public.rl_limit('sp/2', 'k');
SELECT public.rl_reset_keys('sp/2');
SELECT public.rl_undefine('sp/2');
SELECT ok, remaining FROM public.rl_limit('sp/inline', config => public.rl_sliding_log(3, '1 minute'));
SELECT public.rl_limit('sp/none');
\echo :SQLSTATE
INSERT INTO public.rl_config VALUES ('sp/plain', '', public.rl_sliding_log(3, '1 minute'));
SELECT ok, remaining FROM public.rl_limit('sp/plain');
-- The right to define is that of our rl_define, not of the one that comes first.
CREATE ROLE regress_rl_path;
GRANT USAGE ON SCHEMA evil TO regress_rl_path;
GRANT EXECUTE ON FUNCTION public.rl_limit TO regress_rl_path;
SET ROLE regress_rl_path;
SELECT public.rl_limit('sp', config => public.rl_token_bucket(1000, '1 s'));
\echo :SQLSTATE
RESET ROLE;
-- With no path at all, and with temporary tables before everything.
SET search_path = '';
SELECT ok, remaining FROM public.rl_limit('sp', 'x');
CREATE TEMP TABLE ratelimits (name text, key text, shard int, value float8, ts timestamptz, prior float8, log timestamptz[]);
CREATE TEMP TABLE rl_config (name text, key text, config jsonb);
INSERT INTO pg_temp.rl_config VALUES ('sp', '', '{"kind": "token bucket", "rate": 1000000, "period": 1}');
SET search_path = pg_temp, evil, public;
SELECT ok, remaining FROM public.rl_limit('sp', 'x');
SELECT public.rl_define('sp/3', public.rl_token_bucket(3, '1 minute'));
SET search_path = public;
SELECT (SELECT pg_catalog.count(*) FROM pg_temp.ratelimits) AS temp_states, (SELECT pg_catalog.count(*) FROM pg_temp.rl_config) AS temp_definitions,
       (SELECT pg_catalog.count(*) FROM evil.ratelimits) AS evil_states, (SELECT pg_catalog.count(*) FROM evil.rl_config) AS evil_definitions;
SELECT name, key, value FROM public.ratelimits WHERE name IN ('sp', 'sp/plain', 'sp/inline') ORDER BY name, key;
DROP TABLE pg_temp.ratelimits, pg_temp.rl_config;
-- In a fresh session, whose plans are made under the hostile path.
\c
SET timezone = 'UTC'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SET search_path = evil, pg_catalog, public;
SELECT ok, remaining FROM public.rl_limit('sp', 'x');
SELECT public.rl_define('sp/3', public.rl_token_bucket(5, '1 minute'));
SELECT ok, remaining FROM public.rl_limit('sp/3');
SELECT public.rl_reset('sp/3'), public.rl_reset_keys('sp/3'), public.rl_undefine('sp/3');
SET search_path = public;
SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
REVOKE EXECUTE ON FUNCTION rl_limit FROM regress_rl_path;
DROP ROLE regress_rl_path;

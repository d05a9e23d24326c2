-- What the owner puts on our tables runs as the owner, and so under none of the caller's settings that
-- would let the caller choose what it runs: its names mean what they mean in pg_catalog.
CREATE ROLE regress_rl_owner;
CREATE ROLE regress_rl_caller;
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_code OWNER regress_rl_owner;
GRANT CREATE ON DATABASE regress_rl_code TO regress_rl_caller;
\c regress_rl_code
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set SHOW_CONTEXT never
SET ROLE regress_rl_owner;
CREATE SCHEMA limits;
GRANT USAGE ON SCHEMA limits TO regress_rl_caller;
CREATE EXTENSION ratelimit SCHEMA limits;
GRANT EXECUTE ON FUNCTION limits.rl_limit, limits.rl_define, limits.rl_token_bucket TO regress_rl_caller;
SELECT limits.rl_define('api', limits.rl_token_bucket(10, '1 minute'));
CREATE FUNCTION limits.note(a text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE NOTICE 'noted by the owner''s function, as %', current_user; END $$;
CREATE FUNCTION limits.noting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM note(NEW.name); RETURN NEW; END $$;
CREATE TRIGGER noting BEFORE INSERT OR UPDATE ON limits.rateLimits FOR EACH ROW EXECUTE FUNCTION limits.noting();
CREATE TRIGGER noting BEFORE INSERT OR UPDATE ON limits.rl_config FOR EACH ROW EXECUTE FUNCTION limits.noting();
-- The caller has a function of the name that the trigger uses.
SET ROLE regress_rl_caller;
CREATE SCHEMA mine;
GRANT USAGE ON SCHEMA mine TO PUBLIC;
CREATE FUNCTION mine.note(a text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE NOTICE 'caught: the caller''s function, as %', current_user; END $$;
SET search_path = mine, limits;
SELECT ok FROM rl_limit('api', 'k');
\echo :SQLSTATE
SELECT rl_define('other', rl_token_bucket(10, '1 minute'));
\echo :SQLSTATE
-- With names that are qualified, or a search_path of its own, the trigger does its work.
SET ROLE regress_rl_owner;
CREATE OR REPLACE FUNCTION limits.noting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM limits.note(NEW.name); RETURN NEW; END $$;
SET ROLE regress_rl_caller;
SELECT ok FROM rl_limit('api', 'k');
SET ROLE regress_rl_owner;
CREATE OR REPLACE FUNCTION limits.noting() RETURNS trigger LANGUAGE plpgsql SET search_path = limits, pg_temp AS $$
BEGIN PERFORM note(NEW.name); RETURN NEW; END $$;
SET ROLE regress_rl_caller;
SELECT ok FROM rl_limit('api', 'k');
SELECT rl_define('other', rl_token_bucket(10, '1 minute'));
-- A table of the caller's, even a temporary one, is not the owner's of that name.
SET ROLE regress_rl_owner;
CREATE TABLE limits.notes (a text);
CREATE OR REPLACE FUNCTION limits.noting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO notes VALUES (NEW.name); RETURN NEW; END $$;
SET ROLE regress_rl_caller;
CREATE FUNCTION mine.caught() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE NOTICE 'caught: the caller''s trigger, as %', current_user; RETURN NEW; END $$;
CREATE TABLE mine.notes (a text);
GRANT INSERT ON mine.notes TO PUBLIC;
CREATE TRIGGER caught BEFORE INSERT ON mine.notes FOR EACH ROW EXECUTE FUNCTION mine.caught();
SELECT ok FROM rl_limit('api', 'k');
\echo :SQLSTATE
-- What it sees, and what it sets, which ends with the call.
SET ROLE regress_rl_owner;
CREATE OR REPLACE FUNCTION limits.noting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'search_path: %', current_setting('search_path');
    PERFORM set_config('search_path', 'limits', false), set_config('statement_timeout', '12345', false);
    RETURN NEW;
END $$;
SET ROLE regress_rl_caller;
SELECT ok FROM rl_limit('api', 'k');
SHOW search_path;
SHOW statement_timeout;
-- A check is parsed when it is made, but a function in it looks for its names now.
SET ROLE regress_rl_owner;
DROP TRIGGER noting ON limits.rateLimits;
CREATE FUNCTION limits.allowed(a text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM note(a); RETURN true; END $$;
ALTER TABLE limits.rateLimits ADD CONSTRAINT allowed CHECK (limits.allowed(name)) NOT VALID;
SET ROLE regress_rl_caller;
SELECT ok FROM rl_limit('api', 'k');
\echo :SQLSTATE
SHOW search_path;
\c :home
DROP DATABASE regress_rl_code;
DROP ROLE regress_rl_owner, regress_rl_caller;

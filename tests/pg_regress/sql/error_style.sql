-- ratelimit.error_style: with pgrst a denial is raised in PostgREST's own form: SQLSTATE PGRST, the
-- body as JSON in MESSAGE, status and headers as JSON in DETAIL.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('es', rl_token_bucket(10, '1 minute'));
SHOW ratelimit.error_style;
SELECT ok FROM rl_limit('es', 'secret', count => 8.1);
SELECT rl_limit('es', 'secret', count => 4, throws => true);
\echo :SQLSTATE
SET ratelimit.error_style = pgrst;
SELECT rl_limit('es', 'secret', count => 4, throws => true);
\echo :SQLSTATE
SELECT rl_check('es', 'secret', count => 4, throws => true);
\echo :SQLSTATE
-- It can never succeed: no Retry-After, and the object that PostgREST wants all the same.
SELECT rl_limit('es', 'secret', count => 11, throws => true);
\echo :SQLSTATE
-- Both are JSON whatever the name is.
CREATE FUNCTION pgrst_error(statement text) RETURNS TABLE (state text, body jsonb, answer jsonb, hint text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
EXCEPTION WHEN SQLSTATE 'PGRST' THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, body = MESSAGE_TEXT, answer = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN NEXT;
END
$$;
SELECT state, body ->> 'code' AS code, body ->> 'message' AS message, (body ->> 'details')::jsonb ->> 'name' AS name, answer, hint
FROM pgrst_error(format('SELECT rl_limit(%L, count => 2, throws => true, config => rl_sliding_log(1, ''1 day''))', E'a "b" \\ ''c'' \n %s é'));
-- Only a denial, and only with throws.
SELECT ok, retry_after FROM rl_limit('es', 'secret', count => 4);
\a \t
SELECT error_of('SELECT rl_limit(''es'', NULL, throws => true)'), error_of('SELECT rl_limit(''es/undefined'', throws => true)'),
       error_of('SELECT rl_limit(''es'', count => -1, throws => true)', true);
\a \t
-- The SQLSTATE survives PL/pgSQL, SPI, a trigger and a subtransaction; by SQLSTATE it is caught, and
-- what is raised again stays it.
CREATE TABLE es (body text);
CREATE FUNCTION es() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rl_limit('es', NEW.body, count => 4, throws => true);
    RETURN NEW;
END
$$;
CREATE TRIGGER es BEFORE INSERT ON es FOR EACH ROW EXECUTE FUNCTION es();
INSERT INTO es VALUES ('a'), ('a'), ('a');
\echo :SQLSTATE
CREATE FUNCTION es_again() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO es VALUES ('a'), ('a'), ('a');
EXCEPTION
    WHEN SQLSTATE 'PT429' THEN RAISE NOTICE 'PT429';
    WHEN SQLSTATE 'PGRST' THEN RAISE NOTICE '%', sqlstate; RAISE;
END
$$;
SELECT es_again();
\echo :SQLSTATE
SELECT state, answer FROM pgrst_error('SELECT es_again()');
SELECT state, answer FROM pgrst_error('DO $do$ BEGIN EXECUTE ''SELECT rl_limit(''''es'''', count => 11, throws => true)''; END $do$');
-- Through a trigger on our own table, so through our own SPI.
CREATE FUNCTION es_nested() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM public.rl_limit('es/nested', count => 2, throws => true, config => public.rl_token_bucket(1, '1 minute'));
    RETURN NEW;
END
$$;
CREATE TRIGGER es_nested BEFORE INSERT ON rateLimits FOR EACH ROW WHEN (NEW.name = 'es') EXECUTE FUNCTION es_nested();
\set SHOW_CONTEXT never
SELECT rl_limit('es', 'new');
\echo :SQLSTATE
\set SHOW_CONTEXT errors
DROP TRIGGER es_nested ON rateLimits;
DROP TABLE es;
DROP FUNCTION es, es_again, es_nested;
-- For a function, for a session, by anybody; a word that it doesn't know.
RESET ratelimit.error_style;
CREATE FUNCTION send(tokens float8) RETURNS rl_result LANGUAGE sql SET ratelimit.error_style = 'pgrst' AS $$
SELECT rl_limit('es', 'secret', count => tokens, throws => true)
$$;
SELECT send(4);
\echo :SQLSTATE
SELECT rl_limit('es', 'secret', count => 4, throws => true);
\echo :SQLSTATE
SET ratelimit.error_style = 'PGRST';
SHOW ratelimit.error_style;
SET ratelimit.error_style = 'postgrest';
CREATE ROLE regress_rl_web LOGIN;
GRANT EXECUTE ON FUNCTION rl_limit TO regress_rl_web;
SET ROLE regress_rl_web;
SET ratelimit.error_style = pt429;
SELECT rl_limit('es', 'secret', count => 4, throws => true);
\echo :SQLSTATE
-- In a session that has not loaded the library: an ordinary role can't set for a role or a function
-- what is not known yet; after any call it can.
\c - regress_rl_web
ALTER ROLE regress_rl_web SET ratelimit.error_style = 'pgrst';
SELECT rl_sliding_log(1, '1 s') IS NOT NULL AS loaded;
ALTER ROLE regress_rl_web SET ratelimit.error_style = 'pgrst';
-- For a role, or for a function, before the first call of a session.
\c - regress_rl_web
SELECT rl_limit('es', count => 11, throws => true);
\echo :SQLSTATE
\c - postgres
SELECT send(11);
\echo :SQLSTATE
SHOW ratelimit.error_style;
SELECT send(11);
\echo :SQLSTATE
-- A word that it doesn't know, before the first call: a warning, and the default.
\c - postgres
SET ratelimit.error_style = 'postgrest';
SELECT rl_limit('es', count => 11, throws => true);
\echo :SQLSTATE
DROP FUNCTION send, pgrst_error;
DROP OWNED BY regress_rl_web;
DROP ROLE regress_rl_web;

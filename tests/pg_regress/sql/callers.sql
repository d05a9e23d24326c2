-- The limiter in a trigger, a policy, a function, a procedure, a DO block, a prepared statement, SQL
-- and SPI; PT429 can be caught by its SQLSTATE in each, and what was caught took nothing.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('ca', rl_token_bucket(3, '1 minute'));
\set SHOW_CONTEXT never
-- PL/pgSQL: what the error says.
CREATE FUNCTION try(key text, count float8) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
    hint text;
BEGIN
    PERFORM rl_limit('ca', key, count, throws => true);
    RETURN 'passed';
EXCEPTION WHEN SQLSTATE 'PT429' THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(', ', sqlstate, sqlerrm, detail::json ->> 'retryAfter', hint);
END
$$;
SELECT try('f', 2), try('f', 2), try('f', 1), try('f', 4);
-- Uncaught, through two levels.
CREATE FUNCTION outer_function() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM inner_function();
END
$$;
CREATE FUNCTION inner_function() RETURNS void LANGUAGE sql AS $$SELECT rl_limit('ca', 'f', throws => true); SELECT$$;
SELECT outer_function();
\echo :SQLSTATE
-- A trigger.
CREATE TABLE message (author text, body text);
CREATE FUNCTION limit_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rl_limit('ca', NEW.author, throws => true);
    RETURN NEW;
END
$$;
CREATE TRIGGER limit_message BEFORE INSERT ON message FOR EACH ROW EXECUTE FUNCTION limit_message();
INSERT INTO message SELECT 't', n FROM generate_series(1, 2) n;
INSERT INTO message SELECT 't', n FROM generate_series(3, 4) n;
\echo :SQLSTATE
INSERT INTO message VALUES ('t', '5');
INSERT INTO message VALUES (NULL, 'whose?');
SELECT count(*) FROM message;
DO $$
BEGIN
    INSERT INTO message VALUES ('t', '6');
EXCEPTION WHEN SQLSTATE 'PT429' THEN
    RAISE NOTICE 'caught %', sqlstate;
END
$$;
-- A policy.
CREATE TABLE post (user_id int, body text);
ALTER TABLE post ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON post FOR INSERT WITH CHECK ((rl_limit('ca', user_id::text, throws => true)).ok);
CREATE TABLE quiet (LIKE post);
ALTER TABLE quiet ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON quiet FOR INSERT WITH CHECK ((rl_limit('ca', 'quiet' || user_id)).ok);
CREATE ROLE regress_rl_author;
GRANT INSERT ON post, quiet TO regress_rl_author;
SET ROLE regress_rl_author;
INSERT INTO post VALUES (1, 'without EXECUTE');
RESET ROLE;
GRANT EXECUTE ON FUNCTION rl_limit TO regress_rl_author;
SET ROLE regress_rl_author;
INSERT INTO post SELECT 1, n FROM generate_series(1, 3) n;
INSERT INTO post VALUES (1, 'a fourth');
\echo :SQLSTATE
INSERT INTO post VALUES (NULL, 'whose?');
INSERT INTO quiet SELECT 1, n FROM generate_series(1, 4) n;
\echo :SQLSTATE
DO $$
BEGIN
    INSERT INTO post VALUES (1, 'a fourth');
EXCEPTION WHEN SQLSTATE 'PT429' THEN
    RAISE NOTICE 'caught %', sqlstate;
END
$$;
RESET ROLE;
SELECT (SELECT count(*) FROM post) AS posts, (SELECT count(*) FROM quiet) AS quiet;
SELECT remaining FROM rl_check('ca', 'quiet1');
-- A procedure that commits between its calls.
CREATE PROCEDURE batch() LANGUAGE plpgsql AS $$
DECLARE
    r rl_result;
BEGIN
    FOR n IN 1 .. 5 LOOP
        r := rl_limit('ca', 'p');
        RAISE NOTICE '% % %', n, r.ok, r.remaining;
        IF n = 2 THEN ROLLBACK; ELSE COMMIT; END IF;
        EXIT WHEN NOT r.ok;
    END LOOP;
    BEGIN
        PERFORM rl_limit('ca', 'p', throws => true);
    EXCEPTION WHEN SQLSTATE 'PT429' THEN
        RAISE NOTICE 'caught %', sqlstate;
    END;
END
$$;
CALL batch();
-- A DO block, with what it assigns.
DO $$
DECLARE
    granted boolean;
    wait float8;
BEGIN
    SELECT ok, retry_after INTO granted, wait FROM rl_limit('ca', 'do', count => 3);
    RAISE NOTICE '% %', granted, wait;
    SELECT ok, retry_after INTO granted, wait FROM rl_limit('ca', 'do', count => 3);
    RAISE NOTICE '% %', granted, wait;
    PERFORM rl_limit('ca', 'do', throws => true);
EXCEPTION WHEN SQLSTATE 'PT429' THEN
    RAISE NOTICE 'caught %: the take before it went too', sqlstate;
END
$$;
SELECT remaining FROM rl_check('ca', 'do');
-- Dynamic SQL.
DO $$
DECLARE
    r record;
BEGIN
    EXECUTE 'SELECT * FROM rl_limit($1, $2, $3)' INTO r USING 'ca', 'dynamic', 2;
    RAISE NOTICE '% %', r.ok, r.remaining;
END
$$;
-- A prepared statement, custom and generic plans.
PREPARE take(text, float8, boolean) AS SELECT ok, remaining FROM rl_limit('ca', $1, $2, throws => $3);
EXECUTE take('prepared', 1, false);
SET plan_cache_mode = force_generic_plan;
EXECUTE take('prepared', 1, false);
EXECUTE take('prepared', 2, false);
EXECUTE take('prepared', 2, true);
\echo :SQLSTATE
EXECUTE take(NULL, 2, true);
RESET plan_cache_mode;
DEALLOCATE take;
-- A function in SQL, inlined or not, and a view.
CREATE FUNCTION may(key text) RETURNS boolean LANGUAGE sql AS $$SELECT ok FROM rl_limit('ca', key)$$;
SELECT may('sql'), may('sql'), may('sql'), may('sql');
CREATE VIEW levels AS SELECT key, (rl_check('ca', key)).remaining FROM unnest(ARRAY['sql', 'new']) key;
SELECT * FROM levels;
-- A row each of a table, and a write guarded in one statement.
CREATE TABLE job (id int, owner text);
INSERT INTO job SELECT n, 'owner' || n % 2 FROM generate_series(1, 10) n;
SELECT job.id, r.ok FROM job, LATERAL rl_limit('ca', job.owner) r ORDER BY job.id;
WITH allowed AS (SELECT FROM rl_limit('ca', 'cte', count => 2) WHERE ok), done AS (INSERT INTO job SELECT 11, 'cte' FROM allowed RETURNING id) SELECT count(*) FROM done;
WITH allowed AS (SELECT FROM rl_limit('ca', 'cte', count => 2) WHERE ok), done AS (INSERT INTO job SELECT 12, 'cte' FROM allowed RETURNING id) SELECT count(*) FROM done;
-- A deferred constraint trigger takes at commit; its denial rolls back all.
CREATE FUNCTION limit_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rl_limit('ca', 'late', throws => true);
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION limit_job();
BEGIN;
INSERT INTO job SELECT 20 + n, 'late' FROM generate_series(1, 4) n;
SELECT remaining FROM rl_check('ca', 'late');
COMMIT;
\echo :SQLSTATE
SELECT count(*) FROM job WHERE owner = 'late';
SELECT remaining FROM rl_check('ca', 'late');
DROP VIEW levels;
DROP TABLE message, post, quiet, job;
DROP FUNCTION try, outer_function, inner_function, limit_message, limit_job, may;
DROP PROCEDURE batch;
REVOKE EXECUTE ON FUNCTION rl_limit FROM regress_rl_author;
DROP ROLE regress_rl_author;

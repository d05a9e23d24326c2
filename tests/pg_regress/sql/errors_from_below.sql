-- Errors of triggers that the tables' owner put there: they say where they come from, as they do without
-- us, and none that PostgreSQL words carries the key. Those of constraints: errors_of_constraints.
CREATE ROLE regress_rl_owner;
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_below OWNER regress_rl_owner;
\c regress_rl_below
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SET ROLE regress_rl_owner;
CREATE EXTENSION ratelimit;
SELECT rl_define('api', rl_token_bucket(10, '1 minute'));
-- Everything that an error says of itself.
CREATE FUNCTION caught(statement text) RETURNS TABLE (field text, value text) LANGUAGE plpgsql AS $$
DECLARE
    state text; message text; detail text; hint text; context text;
    schema_name text; table_name text; column_name text; constraint_name text; type_name text;
BEGIN
    EXECUTE statement;
    RETURN QUERY SELECT 'none', NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT,
        context = PG_EXCEPTION_CONTEXT, schema_name = SCHEMA_NAME, table_name = TABLE_NAME, column_name = COLUMN_NAME,
        constraint_name = CONSTRAINT_NAME, type_name = PG_DATATYPE_NAME;
    RETURN QUERY SELECT v.* FROM (VALUES
        ('sqlstate', state), ('message', message), ('detail', detail), ('hint', hint), ('context', regexp_replace(context, '(INSERT INTO|UPDATE) public.ratelimits [^"]*', '\1 rateLimits', 'g')), ('schema', schema_name),
        ('table', table_name), ('column', column_name), ('constraint', constraint_name), ('type', type_name)) AS v (field, value)
        WHERE v.value <> '';
END
$$;
\pset format unaligned
\pset tuples_only on

-- A key of another table.
CREATE TABLE accounts (account text PRIMARY KEY);
ALTER TABLE rateLimits ADD CONSTRAINT account FOREIGN KEY (key) REFERENCES accounts;
SELECT * FROM caught($$SELECT rl_limit('api', 'secret')$$);
ALTER TABLE rateLimits DROP CONSTRAINT account;
-- Those of a table that a trigger of the owner's writes to, in a partition that isn't there, through a view.
CREATE TABLE logged (key text NOT NULL, at timestamptz NOT NULL) PARTITION BY LIST (key);
CREATE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.logged VALUES (NEW.key);
    RETURN NEW;
END
$$;
CREATE TRIGGER logging BEFORE INSERT ON rateLimits FOR EACH ROW EXECUTE FUNCTION logging();
SELECT * FROM caught($$SELECT rl_limit('api', 'secret')$$);
CREATE TABLE logged_all PARTITION OF logged DEFAULT;
SELECT * FROM caught($$SELECT rl_limit('api', 'secret')$$);
ALTER TABLE logged ALTER at DROP NOT NULL;
CREATE VIEW some_logged AS SELECT * FROM logged WHERE at IS NOT NULL WITH CHECK OPTION;
CREATE OR REPLACE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.some_logged VALUES (NEW.key);
    RETURN NEW;
END
$$;
SELECT * FROM caught($$SELECT rl_limit('api', 'secret')$$);
-- Raised again by a handler it says no more, and what a trigger words itself arrives as it is.
CREATE OR REPLACE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.some_logged VALUES (NEW.key);
    RETURN NEW;
EXCEPTION WHEN with_check_option_violation THEN
    RAISE;
END
$$;
SELECT * FROM caught($$SELECT rl_limit('api', 'secret')$$);
CREATE OR REPLACE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = 'its message', DETAIL = 'its detail', HINT = 'its hint', DATATYPE = 'its type';
END
$$;
SELECT * FROM caught($$SELECT rl_limit('api', 'secret')$$);
CREATE OR REPLACE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'RL001', MESSAGE = '100% its message', DETAIL = 'its detail', HINT = 'its hint',
        SCHEMA = 'its schema', TABLE = 'its table', COLUMN = 'its column', CONSTRAINT = 'its constraint';
END
$$;
SELECT * FROM caught($$SELECT rl_limit('api', 'secret')$$);

-- The context is there once, innermost first, also through another function of ours, and through what
-- called us; and the query and the place in it.
CREATE FUNCTION calling() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rl_limit('api', 'secret');
END
$$;
CREATE OR REPLACE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.name = 'api' THEN
        PERFORM public.rl_limit('nested', config => public.rl_token_bucket(1, '1 s'));
    END IF;
    RETURN NEW.value / (NEW.value - NEW.value);
END
$$;
SELECT * FROM caught('SELECT calling()');
CREATE OR REPLACE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'SELECT nothing';
END
$$;
SELECT * FROM caught('SELECT calling()');
\set SHOW_CONTEXT never
SELECT calling();
\set SHOW_CONTEXT errors
-- In a subtransaction of ours.
SELECT * FROM caught($$SELECT rl_limit_all('[{"name": "api", "key": "a"}, {"name": "api", "key": "b"}]')$$);
-- One that a trigger caught has ended: what follows is a denial, an error of ours, or another of theirs.
CREATE OR REPLACE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        RAISE EXCEPTION USING ERRCODE = 'RL003', DETAIL = 'caught';
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    IF NEW.key = 'skipped' THEN
        RETURN NULL;
    ELSIF NEW.key = 'other' THEN
        RAISE EXCEPTION 'other';
    END IF;
    RETURN NEW;
END
$$;
SELECT * FROM caught($$SELECT rl_limit('api', 'fine', throws => true)$$);
SELECT * FROM caught($$SELECT rl_limit('api', 'skipped')$$);
SELECT * FROM caught($$SELECT rl_limit('api', 'other')$$);
SELECT * FROM caught($$SELECT rl_limit('api', 'fine', 100, throws => true)$$);
SELECT * FROM caught($$SELECT rl_limit('api', NULL)$$);
-- Many that are caught, in one call.
CREATE OR REPLACE FUNCTION logging() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN 1 .. 1000 LOOP
        BEGIN
            RAISE EXCEPTION 'number %', n;
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END LOOP;
    RAISE EXCEPTION 'last';
END
$$;
SELECT * FROM caught($$SELECT rl_limit('api', 'many')$$);
DROP TRIGGER logging ON rateLimits;

-- Our own errors about a list of requests don't show its contents either.
SELECT * FROM caught($$SELECT rl_limit_all('{"name": "api", "key": "secret"}')$$);
SELECT * FROM caught($$SELECT rl_limit_all('[{"name": "api", "key": 70123456}]')$$);
SELECT * FROM caught($$SELECT rl_limit_all('["secret"]')$$);
SELECT * FROM caught($$SELECT rl_check_all('[{"name": "api", "key": ["secret"]}]')$$);
\c :home
DROP DATABASE regress_rl_below;
DROP ROLE regress_rl_owner;

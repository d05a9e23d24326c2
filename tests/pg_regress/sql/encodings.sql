-- Databases that are not UTF-8: names, keys, schemas and messages of theirs work, and an error stays
-- the error that it is.
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0;
CREATE DATABASE regress_rl_ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0;
CREATE DATABASE regress_rl_mule ENCODING 'MULE_INTERNAL' LOCALE 'C' TEMPLATE template0;
\c regress_rl_latin1
SET client_min_messages = warning;
DO $$ BEGIN EXECUTE format('CREATE SCHEMA %I', 'gr' || chr(246) || chr(223) || 'e'); END $$;
DO $$ BEGIN EXECUTE format('CREATE EXTENSION ratelimit SCHEMA %I', 'gr' || chr(246) || chr(223) || 'e'); END $$;
SELECT set_config('search_path', format('%I', 'gr' || chr(246) || chr(223) || 'e'), false) <> '' AS set;
SELECT rl_define('caf' || chr(233), rl_token_bucket(1, '1 minute'));
SELECT ok, remaining FROM rl_limit('caf' || chr(233), chr(252));
DO $$
DECLARE
    detail text;
BEGIN
    PERFORM rl_limit('caf' || chr(233), chr(252), throws => true);
EXCEPTION WHEN SQLSTATE 'PT429' THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RAISE WARNING '% %', sqlstate, (detail::json ->> 'name') = 'caf' || chr(233);
END
$$;
-- Headers are ASCII everywhere: the name's UTF-8, percent-encoded.
SELECT rl_headers('caf' || chr(233), r), rl_headers('caf' || chr(233), r, style => 'github') ->> 'x-ratelimit-resource' AS resource
FROM rl_check('caf' || chr(233), 'new') r;
SET ratelimit.error_style = pgrst;
DO $$
BEGIN
    PERFORM rl_limit('caf' || chr(233), chr(252), throws => true);
EXCEPTION WHEN SQLSTATE 'PGRST' THEN
    RAISE WARNING '% %', sqlstate, (sqlerrm::json ->> 'details')::json ->> 'name' = 'caf' || chr(233);
END
$$;
RESET ratelimit.error_style;
-- A trigger's arguments, and a column's name and its text.
DO $$
DECLARE
    column_name text := 'gr' || chr(246) || chr(223) || 'e';
BEGIN
    EXECUTE format('CREATE TABLE written (%I text)', column_name);
    EXECUTE format('CREATE TRIGGER a BEFORE INSERT ON written FOR EACH ROW EXECUTE FUNCTION rl_trigger(%L, %L)', 'caf' || chr(233), 'key=' || column_name);
    INSERT INTO written VALUES (chr(228));
    RAISE WARNING '%', (SELECT ok FROM rl_check('caf' || chr(233), chr(228)));
    INSERT INTO written VALUES (NULL);
EXCEPTION WHEN null_value_not_allowed THEN
    RAISE WARNING '%', sqlerrm = format('key column "%s" of table "written" must not be NULL', column_name);
END
$$;
-- A message from below that pgrx can't read keeps its SQLSTATE.
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'gr%', chr(246) USING ERRCODE = 'ZZ123'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON rateLimits FOR EACH ROW EXECUTE FUNCTION refuse();
DO $$ BEGIN
    PERFORM rl_limit('caf' || chr(233), 'new');
EXCEPTION WHEN SQLSTATE 'ZZ123' THEN
    RAISE WARNING '%', sqlstate;
END $$;
\c regress_rl_ascii
SET client_min_messages = warning;
CREATE EXTENSION ratelimit;
SELECT rl_define(E'caf\351', rl_token_bucket(1, '1 minute'));
SELECT ok, remaining FROM rl_limit(E'caf\351', E'\374');
DO $$ BEGIN
    PERFORM rl_limit(E'caf\351', E'\374', throws => true);
EXCEPTION WHEN SQLSTATE 'PT429' THEN
    RAISE WARNING '%', sqlstate;
END $$;
DO $$ BEGIN
    PERFORM rl_limit(E'th\351');
EXCEPTION WHEN undefined_object THEN
    RAISE WARNING '%', sqlstate;
END $$;
-- Bytes of no known encoding stay the bytes that they are.
SELECT rl_headers(E'caf\351', r) FROM rl_check(E'caf\351') r;
-- Nor has this one a conversion to UTF-8: here é is two bytes, the first of which marks the second as Latin 1.
\c regress_rl_mule
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SET client_min_messages = warning;
CREATE EXTENSION ratelimit;
SELECT rl_define('cafe', rl_token_bucket(3, '1 minute')), rl_define(E'caf\201\351', rl_fixed_window(3, '1 day', timezone => 'Europe/Berlin')),
       rl_define('slots', rl_concurrency(2, '1 minute')), rl_define('mem', rl_sliding_window(2, '1 minute', store => 'memory'));
SELECT ok, remaining FROM rl_limit('cafe', 'k');
SELECT ok, remaining FROM rl_limit(E'caf\201\351', E'\201\374', 2), rl_block(E'caf\201\351', 'x', '1 hour');
SELECT count(*), min(remaining) FROM rl_status(E'caf\201\351', E'\201\374');
SELECT ok, remaining FROM rl_limit('mem', E'\201\374'), rl_release((rl_acquire('slots', E'\201\374')).lease);
SELECT n, ok, remaining FROM rl_limit_all('[{"name": "cafe", "key": "k"}, {"name": "mem", "key": "k"}]');
DO $$
DECLARE
    call text;
    detail text;
    hint text;
BEGIN
    FOREACH call IN ARRAY ARRAY[
        E'rl_limit(''caf\201\351'', '''', 4, throws => true)', E'rl_limit(''th\201\351'')', 'rl_define(''cafe'', ''{"kind": "caf"}'')',
        E'rl_define(''cafe'', jsonb_build_object(''kind'', ''caf\201\351''))',
        E'rl_limit_all(jsonb_build_array(jsonb_build_object(''name'', ''cafe'', ''key'', ''\201\351'')))'] LOOP
        BEGIN
            EXECUTE 'SELECT ' || call;
            RAISE WARNING 'no error';
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            RAISE WARNING '% % / % / %', sqlstate, sqlerrm, detail, hint;
        END;
    END LOOP;
END $$;
SELECT rl_headers(name, rl_check(name)) FROM unnest(ARRAY['cafe', E'caf\201\351']) name;
\c :home
DROP DATABASE regress_rl_latin1;
DROP DATABASE regress_rl_ascii;
DROP DATABASE regress_rl_mule;

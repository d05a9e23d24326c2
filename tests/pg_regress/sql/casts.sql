-- Casts, operators, types and domains that others made: their code runs as the role that would run it anyway, and
-- decides nothing. Each function of the attacker says what it is and who runs it.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set SHOW_CONTEXT never
CREATE ROLE regress_rl_caster;
CREATE ROLE regress_rl_writer;
CREATE SCHEMA caster AUTHORIZATION regress_rl_caster;
GRANT USAGE ON SCHEMA caster TO PUBLIC;
SELECT rl_define('casts', rl_token_bucket(10, '1 minute'));
GRANT EXECUTE ON FUNCTION rl_limit, rl_trigger TO regress_rl_caster;
SET ROLE regress_rl_caster;
CREATE TYPE caster.pair AS (a text);
-- From and to every type of our SQL, implicit; and operators on them.
DO $$
DECLARE
    type text;
BEGIN
    FOREACH type IN ARRAY ARRAY['text', 'jsonb', 'numeric', 'double precision', 'interval', 'timestamptz', 'boolean',
                                'integer', 'bigint', 'integer[]', 'timestamptz[]', 'tid', 'public.rl_result'] LOOP
        EXECUTE format('CREATE FUNCTION caster.%I(caster.pair) RETURNS %s LANGUAGE plpgsql AS
                        $f$BEGIN RAISE NOTICE ''cast to %s as %%'', current_user; RETURN NULL; END$f$', 'to ' || type, type, type);
        EXECUTE format('CREATE FUNCTION caster.%I(%s) RETURNS caster.pair LANGUAGE plpgsql AS
                        $f$BEGIN RAISE NOTICE ''cast from %s as %%'', current_user; RETURN NULL; END$f$', 'from ' || type, type, type);
        EXECUTE format('CREATE CAST (caster.pair AS %s) WITH FUNCTION caster.%I(caster.pair) AS IMPLICIT', type, 'to ' || type);
        EXECUTE format('CREATE CAST (%s AS caster.pair) WITH FUNCTION caster.%I(%s) AS IMPLICIT', type, 'from ' || type, type);
        EXECUTE format('CREATE FUNCTION caster.equal(%s, caster.pair) RETURNS boolean LANGUAGE plpgsql AS
                        $f$BEGIN RAISE NOTICE ''operator on %s as %%'', current_user; RETURN true; END$f$', type, type);
        EXECUTE format('CREATE OPERATOR caster.= (FUNCTION = caster.equal, LEFTARG = %s, RIGHTARG = caster.pair)', type);
    END LOOP;
END
$$;
-- In a session whose plans are all made now, for a superuser with that schema first: no code of the
-- attacker's runs. If a value of ours were not of the type that the SQL wants, his cast would come in.
RESET ROLE;
\c
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set SHOW_CONTEXT never
CREATE DOMAIN pg_temp.text AS pg_catalog.int4;
CREATE DOMAIN pg_temp.jsonb AS pg_catalog.int4;
CREATE DOMAIN pg_temp.float8 AS pg_catalog.int4;
CREATE DOMAIN pg_temp.timestamptz AS pg_catalog.int4;
SET search_path = pg_temp, caster, public, pg_catalog;
SELECT public.rl_define('casts', public.rl_token_bucket(11, '1 minute')), public.rl_define('casts/log', public.rl_sliding_log(5, '1 minute')),
       public.rl_define('casts/shards', public.rl_fixed_window(8, '1 minute', shards => 2)), public.rl_define('casts/gone', public.rl_sliding_window(2, '1 s'));
SELECT (public.rl_limit(name, 'k', 2)).remaining FROM unnest(ARRAY['casts', 'casts/log', 'casts/shards']) name;
SELECT (public.rl_limit(name, 'k', 2)).remaining FROM unnest(ARRAY['casts', 'casts/log', 'casts/shards']) name;
SELECT name, ok, remaining FROM public.rl_limit_all('[{"name": "casts", "key": "k"}, {"name": "casts/log", "key": "k", "count": 2}]');
SELECT remaining FROM public.rl_credit('casts', 'k', 1, '2027-01-01 12:00:00+00');
SELECT name, remaining FROM public.rl_status('casts');
SELECT header FROM public.rl_check('casts', 'k') AS result, jsonb_object_keys(public.rl_headers('casts', result)) header;
SELECT ok, remaining FROM public.rl_calculate(public.rl_token_bucket(3, '1 minute'), '{"value": 2, "ts": 0}', '1970-01-01 00:00:00+00', 1);
SELECT public.rl_reset('casts', 'k'), public.rl_reset_keys('casts/log'), public.rl_prune() > 0 AS pruned, public.rl_undefine('casts/gone');
-- A role that passes a value of such a type runs the cast itself; what it makes NULL is no shared limit.
SET ROLE regress_rl_caster;
SELECT public.rl_limit('casts', ROW('k')::caster.pair);
\echo :SQLSTATE
-- The right to define is that of our rl_define, also where there is an overload.
RESET ROLE;
GRANT CREATE ON SCHEMA public TO regress_rl_caster;
SET ROLE regress_rl_caster;
CREATE FUNCTION public.rl_define(name pg_catalog.text, config pg_catalog.jsonb, key anyelement) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION public.rl_define(name pg_catalog.text, config pg_catalog.jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
SELECT public.rl_limit('casts', config => public.rl_token_bucket(1000, '1 s'));
\echo :SQLSTATE
DROP FUNCTION public.rl_define(pg_catalog.text, pg_catalog.jsonb, anyelement), public.rl_define(pg_catalog.text, pg_catalog.jsonb);
RESET ROLE;
REVOKE CREATE ON SCHEMA public FROM regress_rl_caster;
RESET search_path;
DROP DOMAIN pg_temp.text, pg_temp.jsonb, pg_temp.float8, pg_temp.timestamptz;

-- rl_trigger on columns of such types, whose rows somebody else deletes: the keys are what the types
-- themselves put out, and nothing of the attacker's runs, neither as the writer nor as the owner of the
-- limiter's tables. By his casts and operators all rows would have one key.
SET ROLE regress_rl_caster;
CREATE FUNCTION caster.told(what anyelement) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'told of % as %', what, current_user;
    RETURN true;
END
$$;
CREATE TYPE caster.kind AS ENUM ('one', 'two');
CREATE FUNCTION caster.text(caster.kind) RETURNS text LANGUAGE plpgsql AS
    $$BEGIN RAISE NOTICE 'cast of an enum as %', current_user; RETURN 'same'; END$$;
CREATE CAST (caster.kind AS text) WITH FUNCTION caster.text(caster.kind) AS IMPLICIT;
CREATE CAST (caster.kind AS bytea) WITH INOUT AS IMPLICIT;
CREATE FUNCTION caster.equal(caster.kind, caster.kind) RETURNS boolean LANGUAGE plpgsql AS
    $$BEGIN RAISE NOTICE 'operator on an enum as %', current_user; RETURN true; END$$;
CREATE OPERATOR caster.= (FUNCTION = caster.equal, LEFTARG = caster.kind, RIGHTARG = caster.kind);
CREATE OPERATOR caster.< (FUNCTION = caster.equal, LEFTARG = caster.kind, RIGHTARG = caster.kind);
CREATE TYPE caster.span AS RANGE (SUBTYPE = caster.kind);
CREATE DOMAIN caster.word AS text;
CREATE DOMAIN caster.amount AS numeric;
CREATE DOMAIN caster.both AS caster.pair;
CREATE TABLE caster.posts (kind caster.kind, kinds caster.kind[], span caster.span, word caster.word, pair caster.pair, both_of caster.both, amount caster.amount DEFAULT 2);
INSERT INTO caster.posts VALUES ('one', '{one}', '[one,one]', 'one', '(one)', '(one)'), ('two', '{two}', '[two,two]', 'two', '(two)', '(two)');
ALTER DOMAIN caster.word ADD CHECK (caster.told(VALUE)) NOT VALID;
ALTER DOMAIN caster.amount ADD CHECK (caster.told(VALUE)) NOT VALID;
SELECT format('CREATE TRIGGER %I BEFORE DELETE ON caster.posts FOR EACH ROW EXECUTE FUNCTION rl_trigger(''casts'', ''key=%I'', ''count=amount'')', attname, attname)
FROM pg_attribute WHERE attrelid = 'caster.posts'::regclass AND attnum > 0 AND attname <> 'amount' ORDER BY attnum \gexec
CREATE TRIGGER all_kinds AFTER DELETE ON caster.posts REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('casts', 'key=kind', 'count=amount');
-- A type that only a cast of his makes a number is none.
CREATE TRIGGER "0" BEFORE DELETE ON caster.posts FOR EACH ROW EXECUTE FUNCTION rl_trigger('casts', 'count=pair');
DELETE FROM caster.posts;
\echo :SQLSTATE
DROP TRIGGER "0" ON caster.posts;
GRANT DELETE ON caster.posts TO regress_rl_writer;
SET ROLE regress_rl_writer;
SET search_path = caster, pg_catalog;
DELETE FROM posts;
RESET ROLE;
SET search_path = public;
SELECT key, 11 - value AS taken FROM rateLimits WHERE name = 'casts' AND value < 11 ORDER BY key;
SET client_min_messages = warning;
DROP OWNED BY regress_rl_caster, regress_rl_writer CASCADE;
DROP ROLE regress_rl_writer;
RESET client_min_messages;

-- The attacker has installed the extension and owns its tables: what his columns, casts and indexes bring
-- into our SQL when a superuser calls runs as himself. (table_triggers: it can't become anybody else.)
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_casts OWNER regress_rl_caster;
\c regress_rl_casts
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set SHOW_CONTEXT never
SET ROLE regress_rl_caster;
CREATE EXTENSION ratelimit;
SELECT rl_define('api', rl_token_bucket(10, '1 minute')), rl_define('api', rl_token_bucket(10, '1 minute'), 'two'), rl_limit('api', 'one');
CREATE FUNCTION told(what text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('casts.silent') = 'off' THEN
        RAISE EXCEPTION '% as %', what, current_user;
    END IF;
    RETURN true;
END
$$;
CREATE FUNCTION told_index(what text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN public.told('index'); END$$;
CREATE TYPE kind AS ENUM ('', 'one', 'two');
CREATE FUNCTION text(kind) RETURNS text LANGUAGE plpgsql AS $$BEGIN PERFORM public.told('cast to text'); RETURN textin(enum_out($1)); END$$;
CREATE FUNCTION kind(text) RETURNS kind LANGUAGE plpgsql AS $$BEGIN PERFORM public.told('cast to kind'); RETURN enum_in(textout($1), 'public.kind'::regtype); END$$;
CREATE CAST (kind AS text) WITH FUNCTION text(kind) AS IMPLICIT;
CREATE CAST (text AS kind) WITH FUNCTION kind(text) AS ASSIGNMENT;
CREATE DOMAIN word AS text COLLATE "C" CHECK (told('domain'));
RESET ROLE;
-- Each change is rolled back.
CREATE FUNCTION calls(alteration text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    call text;
    outcome text;
BEGIN
    SET LOCAL casts.silent = on;
    SET LOCAL ROLE regress_rl_caster;
    EXECUTE alteration;
    SET LOCAL ROLE NONE;
    SET LOCAL casts.silent = off;
    FOREACH call IN ARRAY ARRAY['rl_limit(''api'', ''two'')', 'rl_check(''api'', ''one'')', 'rl_reset(''api'', ''one'')', 'rl_status(''api'')',
                                'rl_prune()', 'rl_define(''api'', rl_token_bucket(20, ''1 minute''), ''one'')', 'rl_undefine(''api'')'] LOOP
        BEGIN
            EXECUTE 'SELECT ' || call INTO outcome;
        EXCEPTION WHEN OTHERS THEN
            outcome := sqlstate || ' ' || sqlerrm;
        END;
        RAISE NOTICE '%: %', call, outcome;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'RL000';
EXCEPTION WHEN SQLSTATE 'RL000' THEN
    NULL;
END
$$;
SELECT calls('ALTER TABLE rateLimits ALTER key TYPE word');
SELECT calls('ALTER TABLE rateLimits ALTER key DROP DEFAULT, ALTER key TYPE kind USING kind(key)');
SELECT calls('CREATE INDEX ON rateLimits (told_index(key)) WHERE told_index(name)');
SELECT calls('ALTER TABLE rl_config ALTER key DROP DEFAULT, ALTER key TYPE kind USING kind(key)');
\c :home
DROP DATABASE regress_rl_casts;
DROP ROLE regress_rl_caster;

-- The script of a trusted extension runs as a superuser, with the schema of the role that installs
-- it on its search path: nothing that is there already is used.
CREATE ROLE regress_rl_hostile;
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_hostile;
GRANT CREATE ON DATABASE regress_rl_hostile TO regress_rl_hostile;
\c regress_rl_hostile
SET ROLE regress_rl_hostile;
CREATE SCHEMA trap;
CREATE FUNCTION trap.sprung(a oid, b regrole) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'sprung by %', current_user; END $$;
CREATE FUNCTION trap.sprung(a oid, b regclass) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'sprung by %', current_user; END $$;
CREATE FUNCTION trap.sprung(a oid, b regproc) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'sprung by %', current_user; END $$;
CREATE FUNCTION trap.sprung(a name, b text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'sprung by %', current_user; END $$;
DO $$
DECLARE
    operator text;
    types text;
BEGIN
    FOREACH operator IN ARRAY ARRAY['=', '<>'] LOOP
        FOREACH types IN ARRAY ARRAY['oid regrole', 'oid regclass', 'oid regproc', 'name text'] LOOP
            EXECUTE format('CREATE OPERATOR trap.%s (FUNCTION = trap.sprung, LEFTARG = %s, RIGHTARG = %s)',
                           operator, split_part(types, ' ', 1), split_part(types, ' ', 2));
        END LOOP;
    END LOOP;
END
$$;
CREATE FUNCTION trap.current_database() RETURNS name LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'sprung by %', current_user; END $$;
CREATE FUNCTION trap.unnest(aclitem[]) RETURNS SETOF aclitem LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'sprung by %', current_user; END $$;
CREATE FUNCTION trap.aclexplode(aclitem[]) RETURNS TABLE (grantor oid, grantee oid, privilege_type text, is_grantable boolean) LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'sprung by %', current_user; END $$;
CREATE FUNCTION trap.format(text, regprocedure, name) RETURNS text LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'sprung by %', current_user; END $$;
DO $$
DECLARE
    type text;
BEGIN
    FOREACH type IN ARRAY ARRAY['text', 'int4', 'bool', 'float8', 'timestamptz', 'interval', 'jsonb', 'oid', 'name', 'char',
                                'regrole', 'regclass', 'regproc', 'regprocedure', 'trigger'] LOOP
        EXECUTE format('CREATE DOMAIN trap.%I AS pg_catalog.int4 CHECK (VALUE IS NULL)', type);
    END LOOP;
END
$$;
CREATE EXTENSION ratelimit SCHEMA trap;
SELECT trap.rl_define('t', trap.rl_token_bucket(3, '1 minute'));
SELECT ok, capacity FROM trap.rl_limit('t');
-- An object of that name is not adopted. PostgreSQL 18 also says where in the script.
\set SHOW_CONTEXT never
DROP EXTENSION ratelimit;
CREATE TABLE trap.rl_config (name text, key text, config jsonb);
CREATE EXTENSION ratelimit SCHEMA trap;
\c :home
DROP DATABASE regress_rl_hostile;
DROP ROLE regress_rl_hostile;

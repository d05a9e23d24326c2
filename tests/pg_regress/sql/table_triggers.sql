-- A trigger that the owner puts on our tables runs as the owner, not as the superuser who calls, and
-- cannot change that; one that swallows the row makes an error, not a pass; its errors arrive intact.
CREATE ROLE regress_rl_owner;
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_triggers OWNER regress_rl_owner;
\c regress_rl_triggers
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set SHOW_CONTEXT never
SET ROLE regress_rl_owner;
CREATE EXTENSION ratelimit;
CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE '% % % as %, session %', tg_when, tg_op, tg_table_name, current_user, session_user;
    RETURN CASE tg_op WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;
CREATE TRIGGER spy BEFORE INSERT OR UPDATE OR DELETE ON rateLimits FOR EACH ROW EXECUTE FUNCTION spy();
CREATE TRIGGER spy_after AFTER INSERT ON rateLimits FOR EACH ROW EXECUTE FUNCTION spy();
CREATE TRIGGER spy BEFORE INSERT OR UPDATE OR DELETE ON rl_config FOR EACH ROW EXECUTE FUNCTION spy();
RESET ROLE;
SELECT rl_define('limit', rl_token_bucket(9, '1 minute'));
SELECT rl_define('limit', rl_token_bucket(10, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
SELECT ok, remaining FROM rl_limit('limit');
SELECT ok, remaining FROM rl_check('limit');
SELECT ok, remaining FROM rl_limit('limit', count => 20);
SELECT rl_reset('limit');
SELECT rl_reset_keys('limit');
SELECT rl_undefine('limit');
SELECT current_user, session_user;
-- Nor can it become somebody else.
SET ROLE regress_rl_owner;
CREATE OR REPLACE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    attempt text;
BEGIN
    FOREACH attempt IN ARRAY ARRAY['RESET ROLE', 'SET ROLE postgres', 'SET LOCAL ROLE postgres', 'SET SESSION AUTHORIZATION postgres',
                                   'RESET SESSION AUTHORIZATION', 'SET SESSION AUTHORIZATION DEFAULT',
                                   'ALTER ROLE regress_rl_owner SUPERUSER', 'CREATE TEMP TABLE trap (a int)',
                                   'DECLARE trap CURSOR WITH HOLD FOR SELECT 1'] LOOP
        BEGIN
            EXECUTE attempt;
            RAISE NOTICE '%: done', attempt;
        EXCEPTION WHEN OTHERS THEN
            RAISE NOTICE '%: % as %', attempt, sqlstate, current_user;
        END;
    END LOOP;
    RETURN NEW;
END
$$;
DROP TRIGGER spy_after ON rateLimits;
RESET ROLE;
SELECT rl_define('limit', rl_token_bucket(10, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_rl_owner';
-- A deferred trigger would run at commit, out of reach: refused.
SET ROLE regress_rl_owner;
DROP TRIGGER spy ON rateLimits;
DROP TRIGGER spy ON rl_config;
CREATE CONSTRAINT TRIGGER spy AFTER INSERT OR UPDATE ON rateLimits DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION spy();
RESET ROLE;
BEGIN;
SELECT ok, remaining FROM rl_limit('limit');
\echo :SQLSTATE
COMMIT;
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_rl_owner';
DROP TRIGGER spy ON rateLimits;
-- A default and a check constraint run as the owner, too.
SET ROLE regress_rl_owner;
CREATE FUNCTION who() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'as %', current_user;
    RETURN current_user;
END
$$;
ALTER TABLE rateLimits ADD COLUMN note text DEFAULT who();
ALTER TABLE rateLimits ALTER COLUMN note SET DEFAULT who(), ADD CONSTRAINT noted CHECK (who() = 'regress_rl_owner') NOT VALID;
RESET ROLE;
SELECT ok, remaining FROM rl_limit('limit', 'noted');
SELECT note FROM rateLimits WHERE key = 'noted';
ALTER TABLE rateLimits DROP COLUMN note, DROP CONSTRAINT noted;

-- Swallowed rows: an error, not a pass, and over when the trigger or the rule is gone.
CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$;
CREATE TRIGGER swallow BEFORE INSERT ON rateLimits FOR EACH ROW EXECUTE FUNCTION swallow();
SELECT ok FROM rl_limit('limit', 'swallowed');
\echo :SQLSTATE
DROP TRIGGER swallow ON rateLimits;
SELECT ok, remaining FROM rl_limit('limit', 'swallowed');
CREATE TRIGGER swallow BEFORE UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION swallow();
SELECT ok FROM rl_limit('limit', 'swallowed');
\echo :SQLSTATE
DROP TRIGGER swallow ON rateLimits;
CREATE RULE swallow AS ON UPDATE TO rateLimits DO INSTEAD NOTHING;
SELECT ok FROM rl_limit('limit', 'swallowed');
\echo :SQLSTATE
DROP RULE swallow ON rateLimits;
SELECT ok, remaining FROM rl_limit('limit', 'swallowed');
CREATE RULE swallow AS ON INSERT TO rateLimits DO INSTEAD NOTHING;
SELECT ok FROM rl_limit('limit', 'ruled');
\echo :SQLSTATE
DROP RULE swallow ON rateLimits;
SELECT ok, remaining FROM rl_limit('limit', 'ruled');
-- A definition that is swallowed is not there either.
CREATE TRIGGER a_swallow BEFORE INSERT OR UPDATE ON rl_config FOR EACH ROW EXECUTE FUNCTION swallow();
DO $$
BEGIN
    PERFORM rl_define('swallowed', rl_token_bucket(1, '1 s'));
    RAISE NOTICE 'no error';
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE '%', sqlstate;
END
$$;
DROP TRIGGER a_swallow ON rl_config;
-- Row security that hides the row, forced on its owner.
ALTER TABLE rateLimits ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
SELECT ok FROM rl_limit('limit', 'swallowed');
\echo :SQLSTATE
SELECT ok FROM rl_limit('limit', 'hidden');
\echo :SQLSTATE
ALTER TABLE rateLimits DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
SELECT remaining FROM rl_check('limit', 'swallowed');

-- Its own errors arrive as they are, known SQLSTATEs and others.
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.key = 'division' THEN
        RETURN 1 / 0;
    END IF;
    RAISE EXCEPTION USING ERRCODE = NEW.key, MESSAGE = '100% of ' || NEW.key, DETAIL = 'its detail', HINT = 'its hint';
END
$$;
CREATE TRIGGER refuse BEFORE INSERT ON rateLimits FOR EACH ROW EXECUTE FUNCTION refuse();
SELECT rl_limit('limit', 'RL001');
\echo :SQLSTATE
SELECT rl_limit('limit', 'PT429');
\echo :SQLSTATE
SELECT rl_limit('limit', '23514');
\echo :SQLSTATE
SELECT rl_limit('limit', 'XX000');
\echo :SQLSTATE
SELECT rl_limit('limit', 'division');
\echo :SQLSTATE
DO $$
BEGIN
    PERFORM rl_limit('limit', 'RL002');
EXCEPTION WHEN SQLSTATE 'RL002' THEN
    RAISE NOTICE 'caught % %', sqlstate, sqlerrm;
END
$$;
-- One that it catches itself does not stick to the next.
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        RAISE EXCEPTION USING ERRCODE = 'RL003';
    EXCEPTION WHEN SQLSTATE 'RL003' THEN
        NULL;
    END;
    IF NEW.key = 'later' THEN
        RAISE EXCEPTION USING ERRCODE = 'XX000', MESSAGE = 'internal';
    END IF;
    RETURN NEW;
END
$$;
SELECT ok, remaining FROM rl_limit('limit', 'fine');
SELECT rl_limit('limit', 'later');
\echo :SQLSTATE
DROP TRIGGER refuse ON rateLimits;
-- A trigger may call the limiter itself.
CREATE FUNCTION nest() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.name = 'limit' THEN
        PERFORM public.rl_limit('nested', config => public.rl_sliding_log(2, '1 minute'));
        RAISE NOTICE 'nested';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER nest BEFORE UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION nest();
SELECT ok, remaining FROM rl_limit('limit', 'fine');
SELECT ok, remaining FROM rl_limit('limit', 'fine');
SELECT name, key, value FROM rateLimits WHERE key = 'fine' OR name = 'nested';
\c :home
DROP DATABASE regress_rl_triggers;
DROP ROLE regress_rl_owner;

-- Privileges: without a grant nothing but the pure functions; with the one GRANT rl_limit and
-- rl_check; a config over a defined name needs EXECUTE on rl_define.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT p.proname, a.grantee::regrole AS grantee, a.privilege_type, a.is_grantable
FROM pg_proc p, LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
WHERE p.oid IN (SELECT objid FROM pg_depend WHERE classid = 'pg_proc'::regclass AND deptype = 'e'
                AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit'))
ORDER BY p.proname COLLATE "C", a.grantee::regrole::text COLLATE "C";
SELECT c.relname, a.grantee::regrole AS grantee, string_agg(a.privilege_type, ', ' ORDER BY a.privilege_type) FILTER (WHERE a.privilege_type <> 'MAINTAIN') AS privileges
FROM pg_class c, LATERAL aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
WHERE c.oid IN ('ratelimits'::regclass, 'rl_config'::regclass) GROUP BY 1, 2 ORDER BY 1;
SELECT count(*) AS security_definers FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit') AND p.prosecdef;

SELECT rl_define('pv', rl_token_bucket(2, '1 minute'));
CREATE ROLE regress_rl_app;
CREATE ROLE regress_rl_other;
SET ROLE regress_rl_app;
\a \t
SELECT call, error_of(call) FROM unnest(ARRAY[
    'SELECT rl_limit(''pv'')', 'SELECT rl_check(''pv'')', 'SELECT rl_reset(''pv'')', 'SELECT rl_reset_keys(''pv'')',
    'SELECT rl_define(''pv'', rl_token_bucket(1, ''1 s''))', 'SELECT rl_undefine(''pv'')',
    'SELECT rl_limit(''pv/new'', config => rl_token_bucket(1, ''1 s''))',
    'SELECT FROM rateLimits', 'INSERT INTO rateLimits VALUES (''pv'', '''', 0, ''t'', 1000, now())', 'UPDATE rateLimits SET value = 1000',
    'DELETE FROM rateLimits', 'TRUNCATE rateLimits', 'LOCK TABLE rateLimits',
    'SELECT FROM rl_config', 'INSERT INTO rl_config VALUES (''pv/x'', '''', rl_token_bucket(1, ''1 s''))', 'DELETE FROM rl_config', 'TRUNCATE rl_config',
    'CREATE TRIGGER t BEFORE INSERT ON rateLimits FOR EACH ROW EXECUTE FUNCTION rl_config_changed()',
    'GRANT EXECUTE ON FUNCTION rl_limit TO regress_rl_other', 'DROP EXTENSION ratelimit']) call;
-- The pure functions are open.
SELECT call, error_of(call) FROM unnest(ARRAY[
    'SELECT rl_token_bucket(1, ''1 s'')', 'SELECT rl_fixed_window(1, ''1 s'')', 'SELECT rl_sliding_window(1, ''1 s'')',
    'SELECT rl_sliding_log(1, ''1 s'')', 'SELECT rl_calculate(rl_sliding_log(1, ''1 s''), NULL, ''2027-01-01Z'')']) call;
\a \t
-- The one line that an application needs.
RESET ROLE;
GRANT EXECUTE ON FUNCTION rl_limit, rl_check TO regress_rl_app;
SET ROLE regress_rl_app;
SELECT ok, remaining FROM rl_limit('pv', 'a');
SELECT ok, remaining FROM rl_limit('pv', 'a');
SELECT ok, retry_after FROM rl_check('pv', 'a');
SELECT rl_limit('pv', 'a', throws => true);
\echo :SQLSTATE
\a \t
SELECT call, error_of(call) FROM unnest(ARRAY[
    'SELECT rl_reset(''pv'')', 'SELECT rl_reset_keys(''pv'')', 'SELECT rl_undefine(''pv'')', 'SELECT rl_define(''pv'', rl_token_bucket(1, ''1 s''))',
    'SELECT FROM rateLimits', 'SELECT FROM rl_config', 'UPDATE rateLimits SET value = 1000']) call;
\a \t
GRANT EXECUTE ON FUNCTION rl_limit TO regress_rl_other;
SELECT has_function_privilege('regress_rl_other', p.oid, 'EXECUTE') AS granted_on FROM pg_proc p WHERE proname = 'rl_limit';
-- A config of its own for a name that is not defined; over a defined one it would be a reset.
SELECT ok, remaining FROM rl_limit('pv/new', config => rl_token_bucket(5, '1 s'));
SELECT ok, remaining FROM rl_limit('pv', 'a', config => rl_token_bucket(1e15, '1 ms'));
\echo :SQLSTATE
SELECT error_of('SELECT rl_check(''pv'', ''a'', config => rl_token_bucket(2, ''1 minute''))');
-- Where only one key is defined, the name is not: for the others a config is allowed.
RESET ROLE;
SELECT rl_define('pv/key', rl_token_bucket(2, '1 minute'), 'vip');
SET ROLE regress_rl_app;
SELECT error_of('SELECT rl_limit(''pv/key'', ''vip'', config => rl_token_bucket(5, ''1 s''))');
SELECT ok, remaining FROM rl_limit('pv/key', 'other', config => rl_token_bucket(5, '1 s'));
-- A role that can define can override.
RESET ROLE;
GRANT EXECUTE ON FUNCTION rl_define TO regress_rl_app;
SET ROLE regress_rl_app;
SELECT ok, capacity FROM rl_limit('pv', 'a', config => rl_token_bucket(3, '1 minute'));
SELECT rl_define('pv/mine', rl_token_bucket(4, '1 minute'));
SELECT ok, remaining FROM rl_limit('pv/mine');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION rl_define FROM regress_rl_app;
SET ROLE regress_rl_app;
SELECT error_of('SELECT rl_limit(''pv'', ''a'', config => rl_token_bucket(3, ''1 minute''))');
RESET ROLE;
-- Through a SECURITY DEFINER function the caller needs no grant, nor the right to see the schema.
CREATE FUNCTION guarded() RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = public AS $$SELECT ok FROM rl_limit('pv', 'definer')$$;
SET ROLE regress_rl_other;
SELECT guarded();
SELECT error_of('SELECT rl_limit(''pv'', ''definer'')');
SELECT current_user;
RESET ROLE;
DROP FUNCTION guarded;
-- With rights on the tables only, the functions stay closed.
GRANT SELECT, INSERT, UPDATE, DELETE ON rateLimits, rl_config TO regress_rl_other;
SET ROLE regress_rl_other;
SELECT error_of('SELECT rl_limit(''pv'')');
SELECT count(*) FROM rateLimits WHERE name = 'pv';
INSERT INTO rl_config VALUES ('pv/plain', '', rl_token_bucket(1, '1 s'));
RESET ROLE;
SELECT capacity FROM rl_check('pv/plain');
-- Role and settings of the caller are as they were, after a result and after an error.
SET ROLE regress_rl_app;
DO $$
BEGIN
    PERFORM rl_limit('pv', 'b');
    BEGIN
        PERFORM rl_limit('pv', 'b', count => 2, throws => true);
    EXCEPTION WHEN SQLSTATE 'PT429' THEN NULL;
    END;
    RAISE NOTICE '% %', current_user = 'regress_rl_app', error_of('SELECT FROM rateLimits');
END
$$;
RESET ROLE;
DROP OWNED BY regress_rl_app, regress_rl_other;
DROP ROLE regress_rl_app, regress_rl_other;

-- A role that may CREATE in the database installs the extension, owns its tables, uses it and grants
-- it on; so does the database's owner, and no role becomes a superuser by it.
CREATE ROLE regress_rl_installer;
CREATE ROLE regress_rl_owner;
CREATE ROLE regress_rl_app;
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_trusted OWNER regress_rl_owner;
\c regress_rl_trusted
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set VERBOSITY terse
SET ROLE regress_rl_installer;
CREATE EXTENSION ratelimit;
\echo :SQLSTATE
RESET ROLE;
GRANT CREATE ON DATABASE regress_rl_trusted TO regress_rl_installer;
-- The role that installs.
SET ROLE regress_rl_installer;
CREATE EXTENSION ratelimit;
SELECT extowner::regrole FROM pg_extension WHERE extname = 'ratelimit';
SELECT relname, relowner::regrole FROM pg_class WHERE oid IN ('ratelimits'::regclass, 'rl_config'::regclass) ORDER BY relname;
SELECT p.proname, a.grantee::regrole AS grantee, a.is_grantable
FROM pg_proc p, LATERAL aclexplode(p.proacl) a
WHERE p.oid IN (SELECT objid FROM pg_depend WHERE classid = 'pg_proc'::regclass AND deptype = 'e'
                AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit'))
  AND a.grantee <> p.proowner
ORDER BY p.proname COLLATE "C", a.grantee::regrole::text COLLATE "C";
SELECT rl_define('limit', rl_token_bucket(3, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
SELECT remaining FROM rl_check('limit');
SELECT rl_reset('limit'), rl_reset_keys('limit');
SELECT ok, remaining FROM rl_limit('limit', config => rl_token_bucket(5, '1 minute'));
SELECT name, value FROM rateLimits;
UPDATE rl_config SET config = rl_token_bucket(4, '1 minute');
SELECT ok, remaining, capacity FROM rl_limit('limit', 'a');
SELECT rl_undefine('limit');
GRANT EXECUTE ON FUNCTION rl_limit, rl_check TO regress_rl_app;
-- The code stays the superuser's.
ALTER FUNCTION rl_limit SECURITY DEFINER;
CREATE FUNCTION pg_temp.mine() RETURNS int LANGUAGE c AS '$libdir/ratelimit', 'rl_limit';
-- The role that it was granted to.
SET ROLE regress_rl_app;
SELECT ok, remaining FROM rl_limit('inline', config => rl_sliding_log(2, '1 day'));
SELECT rl_reset('inline');
SELECT FROM rateLimits;
-- The database's owner may use it and grant it on, too; the tables are not his.
SET ROLE regress_rl_owner;
SELECT rl_define('limit', rl_token_bucket(3, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
SELECT rl_reset('limit');
GRANT EXECUTE ON FUNCTION rl_reset TO regress_rl_app;
SELECT FROM rateLimits;
SET ROLE regress_rl_app;
SELECT rl_reset('inline');
-- The role that installed it drops it.
DROP EXTENSION ratelimit;
SET ROLE regress_rl_installer;
DROP EXTENSION ratelimit;

-- The database's owner installs: with a grant of his own, so that dumps say that he granted what he
-- grants on, and not pg_database_owner, as whom only a superuser can restore.
SET ROLE regress_rl_owner;
CREATE EXTENSION ratelimit;
SELECT relname, relowner::regrole FROM pg_class WHERE oid IN ('ratelimits'::regclass, 'rl_config'::regclass) ORDER BY relname;
SELECT a.grantee::regrole AS grantee, a.is_grantable, count(*)
FROM pg_proc p, LATERAL aclexplode(p.proacl) a
WHERE p.proname LIKE 'rl\_%' AND a.grantee <> p.proowner GROUP BY 1, 2 ORDER BY a.grantee::regrole::text COLLATE "C";
SELECT rl_define('limit', rl_token_bucket(3, '1 minute'));
SELECT ok, remaining FROM rl_limit('limit');
SELECT rl_reset('limit');
GRANT EXECUTE ON FUNCTION rl_limit, rl_check TO regress_rl_app;
SELECT a.grantor::regrole FROM pg_proc p, LATERAL aclexplode(p.proacl) a WHERE p.proname = 'rl_limit' AND a.grantee = 'regress_rl_app'::regrole;
SET ROLE regress_rl_app;
SELECT ok, remaining FROM rl_limit('limit');
SELECT rl_define('limit', rl_token_bucket(4, '1 minute'));
-- After REASSIGN OWNED the new owner has the tables, and the functions go on.
RESET ROLE;
REASSIGN OWNED BY regress_rl_owner TO regress_rl_installer;
SELECT relname, relowner::regrole FROM pg_class WHERE oid IN ('ratelimits'::regclass, 'rl_config'::regclass) ORDER BY relname;
SET ROLE regress_rl_app;
SELECT ok, remaining FROM rl_limit('limit');
RESET ROLE;
\c :home
DROP DATABASE regress_rl_trusted;
DROP ROLE regress_rl_installer, regress_rl_owner, regress_rl_app;

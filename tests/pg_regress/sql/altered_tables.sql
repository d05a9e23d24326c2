-- The owner of the tables, an ordinary role, changes their columns: every call is refused, and reads
-- no column as another type than it has; the trigger on rl_config works on rl_config only.
CREATE ROLE regress_rl_owner;
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_altered OWNER regress_rl_owner;
\c regress_rl_altered
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE FUNCTION refused(statement text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    RETURN false;
EXCEPTION WHEN OTHERS THEN
    RETURN true;
END
$$;
SET ROLE regress_rl_owner;
CREATE EXTENSION ratelimit;
SELECT rl_define('log', rl_sliding_log(5, '1 minute')), rl_define('bucket', rl_token_bucket(5, '1 minute'));
SELECT name, ok, remaining FROM unnest(ARRAY['log', 'bucket']) name, LATERAL rl_limit(name);
-- Each change is rolled back.
CREATE FUNCTION altered(name text, alteration text, OUT check_refused boolean, OUT limit_refused boolean, OUT define_refused boolean)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE alteration;
    check_refused := refused(format('SELECT rl_check(%L)', name));
    limit_refused := refused(format('SELECT rl_limit(%L)', name));
    define_refused := refused(format('SELECT rl_define(%L, rl_token_bucket(7, ''1 s''))', name));
    RAISE EXCEPTION USING ERRCODE = 'RL000';
EXCEPTION WHEN SQLSTATE 'RL000' THEN
    NULL;
END
$$;
SELECT alteration, check_refused, limit_refused FROM (VALUES
    ('bucket', 'ALTER TABLE rateLimits ALTER value TYPE real'), ('bucket', 'ALTER TABLE rateLimits ALTER value TYPE numeric'),
    ('bucket', 'ALTER TABLE rateLimits ALTER value TYPE text'), ('bucket', 'ALTER TABLE rateLimits ALTER ts TYPE timestamp'),
    ('bucket', 'ALTER TABLE rateLimits ALTER ts TYPE text'), ('bucket', 'ALTER TABLE rateLimits ALTER prior TYPE text USING ''x'''),
    ('bucket', 'ALTER TABLE rateLimits DROP COLUMN log'), ('bucket', 'ALTER TABLE rateLimits RENAME ts TO at'),
    ('log', 'ALTER TABLE rateLimits ALTER log TYPE date[] USING log::date[]'), ('log', 'ALTER TABLE rateLimits ALTER log TYPE int[] USING ''{1,2,3}'''),
    ('log', 'ALTER TABLE rateLimits ALTER log TYPE text USING ''text'''), ('log', 'ALTER TABLE rateLimits ALTER log TYPE bigint USING 12345')) v (name, alteration),
    LATERAL altered(name, alteration);
SELECT alteration, check_refused, limit_refused, define_refused FROM (VALUES
    ('ALTER TABLE rl_config ALTER config TYPE json'), ('ALTER TABLE rl_config ALTER config TYPE text'),
    ('ALTER TABLE rl_config ALTER config TYPE bigint USING 7'), ('ALTER TABLE rl_config DROP COLUMN key'),
    ('ALTER TABLE rl_config RENAME config TO "limit"')) v (alteration),
    LATERAL altered('bucket', alteration);
-- Nothing of that stayed.
SELECT name, ok, remaining FROM unnest(ARRAY['log', 'bucket']) name, LATERAL rl_limit(name);
-- The trigger elsewhere; only a superuser may put it there.
RESET ROLE;
CREATE TABLE elsewhere (a int, b int, c int);
CREATE TRIGGER elsewhere BEFORE INSERT OR DELETE ON elsewhere FOR EACH ROW EXECUTE FUNCTION rl_config_changed();
SELECT refused('INSERT INTO elsewhere VALUES (1, 2, 3)');
\c :home
DROP DATABASE regress_rl_altered;
DROP ROLE regress_rl_owner;
-- The type of the answers.
BEGIN;
ALTER TYPE rl_result ALTER ATTRIBUTE remaining TYPE text CASCADE;
SELECT error_of('SELECT rl_check(''at/type'', config => rl_token_bucket(1, ''1 s''))', true);
SELECT error_of('SELECT rl_limit(''at/type'', config => rl_token_bucket(1, ''1 s''))');
ROLLBACK;
BEGIN;
ALTER TYPE rl_result ADD ATTRIBUTE more text CASCADE;
SELECT ok, remaining, more FROM rl_check('at/type', config => rl_token_bucket(1, '1 s'));
ROLLBACK;
SELECT (rl_check('at/type', config => rl_token_bucket(1, '1 s'))).ok;

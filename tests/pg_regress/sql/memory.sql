-- Limits in memory: taken at once, whatever becomes of the transaction, and where nothing can be written.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE FUNCTION in_memory(config jsonb) RETURNS jsonb IMMUTABLE RETURN config || '{"store": "memory"}';
SELECT rl_define('mem', in_memory(rl_token_bucket(10, '10 seconds'))),
       rl_define('mem/window', in_memory(rl_fixed_window(10, '10 seconds', max_reserved => 5))),
       rl_define('mem/sliding', in_memory(rl_sliding_window(10, '10 seconds')));
SELECT config FROM rl_config WHERE name = 'mem';

-- In READ ONLY transactions of every isolation level.
BEGIN READ ONLY;
SELECT * FROM rl_limit('mem', 'a', 3);
SELECT rl_limit('mem/window', 'a', 12, reserve => true);
SELECT ok, remaining FROM rl_limit('mem/sliding', 'a', 4);
SELECT ok, remaining FROM rl_credit('mem', 'a', 1);
SELECT ok, remaining FROM rl_limit_all('[{"name": "mem", "key": "a"}, {"name": "mem/sliding", "key": "a", "count": 2}]');
SELECT ok, allows, remaining, retry_after FROM rl_limit_all('[{"name": "mem", "key": "a"}, {"name": "mem/sliding", "key": "a", "count": 5}]');
SELECT rl_reset('mem/window', 'a'), rl_reset('mem/window', 'nobody');
SELECT rl_reset_all('mem/window');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT ok, remaining FROM rl_limit('mem', 'a');
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT ok, remaining FROM rl_limit('mem', 'a');
COMMIT;
-- Without a transaction id, and without WAL.
CREATE FUNCTION wal_records(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE plan json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, WAL, FORMAT json) ' || statement INTO plan;
    RETURN plan -> 0 -> 'Plan' ->> 'WAL Records';
END $$;
BEGIN;
SELECT wal_records('SELECT rl_limit(''mem'', ''a'')'), remaining FROM rl_check('mem', 'a');
SELECT pg_current_xact_id_if_assigned();
CREATE TABLE mem_wal ();
SELECT wal_records('INSERT INTO mem_wal DEFAULT VALUES')::int > 0 AS it_would_be_seen;
ROLLBACK;
BEGIN;
SELECT ok FROM rl_limit('mem', 'locks');
SELECT relation::regclass, mode FROM pg_locks WHERE relation IN ('rateLimits'::regclass, 'rl_config'::regclass) AND pid = pg_backend_pid() AND mode NOT IN ('AccessShareLock', 'RowExclusiveLock');
COMMIT;
SELECT count(*) FROM rateLimits WHERE name LIKE 'mem%';

-- What is taken stays taken.
SELECT remaining FROM rl_check('mem', 'b');
BEGIN;
SELECT remaining FROM rl_limit('mem', 'b');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT remaining FROM rl_limit('mem', 'b');
ROLLBACK TO s;
SELECT remaining FROM rl_check('mem', 'b');
COMMIT;
DO $$ BEGIN PERFORM rl_limit('mem', 'b'); RAISE 'failed login'; EXCEPTION WHEN OTHERS THEN NULL; END $$;
SELECT remaining FROM rl_check('mem', 'b');
SELECT 1 / 0 FROM rl_limit('mem', 'b');
SELECT remaining FROM rl_check('mem', 'b');
BEGIN;
SELECT remaining FROM rl_limit('mem', 'b');
SELECT rl_define('mem/own', rl_token_bucket(1, '1 day'));
ROLLBACK;
SELECT remaining FROM rl_check('mem', 'b');

-- A limit in the table is refused where it can't be written; which it is may depend on the key.
SELECT rl_define('mem', rl_token_bucket(3, '10 seconds'), 'paying');
BEGIN READ ONLY;
SELECT ok FROM rl_limit('mem', 'b');
SAVEPOINT s;
SELECT ok FROM rl_limit('mem', 'paying');
ROLLBACK TO s;
SELECT ok FROM rl_check('mem', 'paying');
SELECT ok FROM rl_credit('mem', 'paying', 1);
ROLLBACK TO s;
SELECT rl_reset('mem', 'paying');
ROLLBACK TO s;
SELECT rl_reset_all('mem');
ROLLBACK TO s;
SELECT ok FROM rl_limit_all('[{"name": "mem", "key": "b"}, {"name": "mem", "key": "paying"}]');
ROLLBACK TO s;
SELECT ok FROM rl_check_all('[{"name": "mem", "key": "b"}, {"name": "mem", "key": "paying"}]');
SELECT rl_reset('mem/undefined');
ROLLBACK;

-- A key that is exempt has no state of its own in the table: what is reset is what holds again afterwards.
SELECT rl_define('mem/ex', in_memory(rl_token_bucket(3, '1 day'))), rl_define('mem/slots', in_memory(rl_concurrency(2, '1 hour')));
SELECT remaining FROM rl_limit('mem/ex', 'vip', 2);
SELECT ok, remaining FROM rl_acquire('mem/slots', 'vip', 2);
SELECT rl_define('mem/ex', rl_unlimited(), 'vip'), rl_define('mem/slots', rl_unlimited(), 'vip');
BEGIN READ ONLY;
SELECT ok, remaining FROM rl_limit('mem/ex', 'vip', 5);
SELECT rl_reset('mem/ex', 'vip'), rl_reset('mem/ex', 'vip'), rl_reset('mem/slots', 'vip'), rl_reset('mem/slots', 'vip');
SELECT ok FROM rl_limit('mem/ex', 'other');
SELECT rl_reset_all('mem/ex'), rl_reset_all('mem/slots');
COMMIT;
SELECT rl_undefine('mem/ex', 'vip'), rl_undefine('mem/slots', 'vip');
SELECT name, remaining FROM unnest(ARRAY['mem/ex', 'mem/slots']) name, rl_check(name, 'vip');
-- Where the name is exempt, what it was before is not known.
SELECT rl_define('mem/ex', rl_unlimited()) \g /dev/null
BEGIN READ ONLY;
SELECT rl_reset('mem/ex', 'vip');
ROLLBACK;
SELECT rl_undefine('mem/ex'), rl_undefine('mem/slots');

-- Both kinds in one call: all or nothing, and the rows with the transaction.
SELECT rl_reset('mem', 'c'), ok FROM rl_limit('mem', 'paying', 2);
BEGIN;
SELECT name, key, ok, allows, remaining FROM rl_limit_all('[{"name": "mem", "key": "paying"}, {"name": "mem", "key": "c", "count": 4}]');
SELECT name, key, ok, allows, remaining FROM rl_limit_all('[{"name": "mem", "key": "paying"}, {"name": "mem", "key": "c", "count": 4}]');
SELECT name, key, ok, allows, remaining FROM rl_limit_all('[{"name": "mem", "key": "paying", "count": 0}, {"name": "mem", "key": "c", "count": 7}, {"name": "mem", "key": "c", "count": 3}]');
ROLLBACK;
SELECT key, remaining FROM unnest(ARRAY['paying', 'c']) key, rl_check('mem', key);
-- Several requests for one, and with one that fails after it.
SELECT n, ok, remaining FROM rl_limit_all('[{"name": "mem", "key": "c", "count": 2}, {"name": "mem", "key": "c", "count": 4}]');
SELECT n, ok, allows, retry_after FROM rl_limit_all('[{"name": "mem", "key": "c", "count": 2}, {"name": "mem", "key": "c", "count": 11}]');
SELECT rl_limit_all('[{"name": "mem", "key": "c"}, {"name": "mem/undefined"}]');
SELECT remaining FROM rl_check('mem', 'c');

-- The most in one call; those in the table don't count.
SELECT rl_define('mem/rows', rl_token_bucket(1, '1 day'));
CREATE FUNCTION requests(name text, length int) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_agg(jsonb_build_object('name', name, 'key', 'r' || n % 600, 'count', 0)) FROM generate_series(1, length) n
$$;
SELECT call, error_of(format('SELECT count(*) FROM %s', call)) FROM unnest(ARRAY[
    'rl_limit_all(requests(''mem'', 1000) || requests(''mem/rows'', 10))', 'rl_limit_all(requests(''mem'', 1001))',
    'rl_check_all(requests(''mem'', 600) || requests(''mem/sliding'', 401))',
    'rl_limit_all(requests(''mem'', 1001) || requests(''mem/rows'', 1))']) call;
DROP FUNCTION requests;
SELECT rl_undefine('mem/rows');

-- In a trigger, with throws, as headers, and with a config in the call.
CREATE TABLE mem (who text);
CREATE TRIGGER limited AFTER INSERT ON mem REFERENCING NEW TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('mem', 'key=who');
INSERT INTO mem SELECT 'd' FROM generate_series(1, 10);
INSERT INTO mem VALUES ('d');
CREATE TEMP TABLE mem_temp (who text);
CREATE TRIGGER limited AFTER INSERT ON mem_temp REFERENCING NEW TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('mem', 'key=who');
BEGIN READ ONLY;
INSERT INTO mem_temp VALUES ('e');
SAVEPOINT s;
INSERT INTO mem_temp VALUES ('paying');
ROLLBACK;
SELECT rl_limit('mem', 'd', throws => true);
SET ratelimit.error_style = pgrst;
SELECT rl_limit('mem', 'd', throws => true);
RESET ratelimit.error_style;
SELECT jsonb_pretty(rl_headers('mem', rl_limit('mem', 'd')));
SELECT ok, remaining FROM rl_limit('mem/inline', 'x', config => in_memory(rl_token_bucket(2, '1 minute')));
SELECT ok, remaining FROM rl_check('mem/inline', 'x', config => in_memory(rl_token_bucket(2, '1 minute')));
SELECT rl_reset('mem/inline', 'x'), rl_reset('mem/inline', 'x');
CREATE FUNCTION may_post(who text) RETURNS boolean LANGUAGE sql RETURN (rl_limit('mem', who)).ok;
ALTER TABLE mem ENABLE ROW LEVEL SECURITY;
DROP TRIGGER limited ON mem;
CREATE POLICY limited ON mem FOR INSERT WITH CHECK (may_post(who));
CREATE ROLE regress_rl_poster;
GRANT INSERT ON mem TO regress_rl_poster;
GRANT EXECUTE ON FUNCTION rl_limit TO regress_rl_poster;
SET ROLE regress_rl_poster;
INSERT INTO mem SELECT 'f' FROM generate_series(1, 10);
INSERT INTO mem VALUES ('f');
RESET ROLE;
DROP TABLE mem;
DROP FUNCTION may_post;
REVOKE ALL ON FUNCTION rl_limit FROM regress_rl_poster;
DROP ROLE regress_rl_poster;

-- rl_status knows a limit in memory by its name and key; leftovers of another store are not shown.
SELECT key, kind, remaining, capacity, as_of, shards, limited FROM rl_status('mem', 'd');
SELECT * FROM rl_status('mem', 'nobody');
SELECT key, remaining FROM rl_status('mem');
SELECT ok, remaining FROM rl_limit('mem', 'paying', 1);
SELECT rl_define('mem', in_memory(rl_token_bucket(3, '10 seconds')), 'paying');
SELECT ok, remaining FROM rl_limit('mem', 'paying', 3);
SELECT key, remaining FROM rl_status('mem');
SELECT rl_undefine('mem', 'paying');
SELECT ok, remaining FROM rl_limit('mem', 'paying', 3);
SELECT rl_reset_all('mem') > 3, rl_reset_all('mem');
SELECT remaining FROM rl_check('mem', 'd');

-- Another definition: what the new kind has a meaning for is kept.
SELECT ok, remaining FROM rl_limit('mem', 'g', 6);
SELECT rl_define('mem', in_memory(rl_fixed_window(20, '10 seconds')));
SELECT ok, remaining FROM rl_check('mem', 'g');
SELECT rl_define('mem', in_memory(rl_sliding_window(20, '10 seconds')));
SELECT ok, remaining FROM rl_check('mem', 'g');
SELECT rl_credit('mem', 'g', 1);
SELECT rl_undefine('mem');
SELECT rl_limit('mem', 'g');

-- What has no place there.
SELECT error_of('SELECT rl_define(''mem'', in_memory(rl_sliding_log(10, ''1 minute'')))', true);
SELECT error_of('SELECT rl_define(''mem'', in_memory(rl_token_bucket(10, ''1 minute'', shards => 4)))', true);
SELECT error_of('SELECT rl_define(''mem'', in_memory(rl_token_bucket(10, ''1 minute'', shards => 1)))');
SELECT v, error_of(format('SELECT rl_define(''mem'', rl_token_bucket(10, ''1 minute'') || %L)', v))
FROM unnest(ARRAY['{"store": "redis"}', '{"store": null}', '{"store": 1}', '{"store": "table"}', '{"enforce": 0}', '{"enforce": "false"}', '{"enforce": null}', '{"enforce": true}']) v;
SELECT error_of('SELECT rl_calculate(''{"kind": "token bucket", "rate": 1, "period": 1000, "store": "disk"}'', NULL, now())');

-- Under a fixed clock states are states of their own.
SELECT rl_define('mem', in_memory(rl_token_bucket(10, '10 days')));
SELECT ok, remaining FROM rl_limit('mem', 'h', 10);
SET ratelimit.clock = '2027-01-03 12:00:00+00';
SELECT ok, remaining FROM rl_limit('mem', 'h', 1);
RESET ratelimit.clock;
SELECT ok, remaining FROM rl_limit('mem', 'h', 2);
SET ratelimit.clock = '2027-01-03 12:00:00+00';
SELECT ok, remaining FROM rl_check('mem', 'h');
-- A reset forgets the leases of configs in calls, too, whatever was defined since.
RESET ratelimit.clock;
SELECT ok FROM rl_acquire('mem/lease', 'k', config => rl_concurrency(2, '1 hour') || '{"store": "memory"}');
SELECT rl_define('mem/lease', rl_fixed_window(2, '1 hour') || '{"store": "memory"}');
SELECT rl_reset('mem/lease', 'k'), rl_reset('mem/lease', 'k');
SELECT rl_undefine('mem/lease');
SELECT remaining FROM rl_check('mem/lease', 'k', config => rl_concurrency(2, '1 hour') || '{"store": "memory"}');
DROP FUNCTION in_memory, wal_records;

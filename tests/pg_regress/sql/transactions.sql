-- Tokens are taken if and only if the transaction commits: rollback, savepoints, exceptions,
-- isolation levels, read-only and parallel transactions.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('tx', rl_token_bucket(10, '1 minute'));
BEGIN;
SELECT ok, remaining FROM rl_limit('tx', count => 4);
SELECT ok, remaining FROM rl_limit('tx', count => 4);
ROLLBACK;
SELECT remaining FROM rl_check('tx');
BEGIN;
SELECT ok, remaining FROM rl_limit('tx', count => 1);
SAVEPOINT a;
SELECT ok, remaining FROM rl_limit('tx', count => 2);
SAVEPOINT b;
SELECT ok, remaining FROM rl_limit('tx', count => 3);
ROLLBACK TO a;
SELECT ok, remaining FROM rl_limit('tx', count => 1);
RELEASE a;
COMMIT;
SELECT remaining FROM rl_check('tx');
-- A block whose exception is caught gives its tokens back, also of a key that was new.
DO $$
BEGIN
    PERFORM rl_limit('tx', count => 2);
    BEGIN
        PERFORM rl_limit('tx', count => 5), rl_limit('tx', 'new');
        RAISE EXCEPTION 'undo';
    EXCEPTION WHEN OTHERS THEN
        PERFORM rl_limit('tx', count => 1);
    END;
END
$$;
SELECT remaining FROM rl_check('tx');
SELECT count(*) FROM rateLimits WHERE name = 'tx' AND key = 'new';
-- An error of the statement does too.
SELECT 1 / (rl_limit('tx')).remaining::int * 0 + 1 / 0;
SELECT remaining FROM rl_check('tx');

-- A denial leaves no trace, and a check none: no transaction id.
BEGIN;
SELECT ok FROM rl_limit('tx', count => 6);
SELECT ok FROM rl_check('tx', count => 2);
SELECT ok FROM rl_limit('tx', count => 0);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_trace;
COMMIT;

-- The same at every isolation level; it sees what it wrote itself.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM rateLimits WHERE name = 'tx';
SELECT ok, remaining FROM rl_limit('tx');
SELECT ok, remaining FROM rl_limit('tx');
SELECT ok, remaining FROM rl_limit('tx', 'rr');
SELECT rl_define('tx/rr', rl_token_bucket(2, '1 minute'));
SELECT ok, remaining FROM rl_limit('tx/rr');
SELECT rl_reset('tx/rr'), rl_undefine('tx/rr');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM rateLimits WHERE name = 'tx';
SELECT ok, remaining FROM rl_limit('tx');
SELECT ok, remaining FROM rl_limit('tx', 'ser');
SELECT ok, remaining FROM rl_limit('tx', 'ser', count => 10);
COMMIT;
SELECT remaining FROM rl_check('tx');
-- Several calls in one statement count one after the other.
SELECT (rl_limit('tx', 'one')).remaining AS a, (rl_limit('tx', 'one')).remaining AS b, (rl_check('tx', 'one')).remaining AS c;

-- Read-only: what writes is refused, even where it would be denied; a check works.
BEGIN READ ONLY;
SELECT ok, remaining FROM rl_check('tx');
SELECT error_of(call) FROM unnest(ARRAY['SELECT rl_limit(''tx'')', 'SELECT rl_limit(''tx'', count => 11)', 'SELECT rl_reset(''tx'')', 'SELECT rl_reset_all(''tx'')',
    'SELECT rl_define(''tx'', rl_token_bucket(10, ''1 minute''))', 'SELECT rl_undefine(''tx'')']) call;
SELECT ok FROM rl_calculate(rl_token_bucket(10, '1 minute'), NULL, '2027-01-01Z');
ROLLBACK;

-- A parallel plan is refused, where somebody called a function parallel safe that is not.
CREATE FUNCTION not_safe(key text) RETURNS boolean LANGUAGE sql PARALLEL SAFE COST 1 AS $$SELECT ok FROM rl_limit('tx', key)$$;
CREATE FUNCTION not_safe_check(key text) RETURNS boolean LANGUAGE sql PARALLEL SAFE COST 1 AS $$SELECT ok FROM rl_check('tx', key)$$;
CREATE FUNCTION not_safe_memory(key text) RETURNS boolean LANGUAGE sql PARALLEL SAFE COST 1 AS $$SELECT ok FROM rl_limit('tx/memory', key)$$;
SELECT rl_define('tx/memory', rl_token_bucket(10, '1 minute') || '{"store": "memory"}');
CREATE TABLE many AS SELECT n::text AS key FROM generate_series(1, 1000) n;
ALTER TABLE many SET (parallel_workers = 2);
BEGIN;
SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0;
\set VERBOSITY terse
SAVEPOINT a;
SELECT count(*) FROM many WHERE not_safe(key);
\echo :SQLSTATE
ROLLBACK TO a;
SELECT count(*) FROM many WHERE not_safe_check(key);
\echo :SQLSTATE
ROLLBACK TO a;
SELECT count(*) FROM many WHERE not_safe_memory(key);
\echo :SQLSTATE
\set VERBOSITY default
ROLLBACK;
DROP TABLE many;
DROP FUNCTION not_safe, not_safe_check, not_safe_memory;

SET ratelimit.clock = '2027-01-01 13:00:00+00';
-- A savepoint in a cursor's loop, and a cursor that is held.
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT n, ok, remaining FROM generate_series(1, 3) n, LATERAL rl_limit('tx', 'cursor', count => sign(n));
FETCH 1 FROM c;
COMMIT;
FETCH ALL FROM c;
CLOSE c;
SELECT remaining FROM rl_check('tx', 'cursor');

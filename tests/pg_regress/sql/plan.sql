-- What a planner sees: the functions' signatures, volatility, parallel safety and cost; no two share
-- a name; and a limit is taken last, for the rows that everything else lets through.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\a \t
SELECT proname, pg_get_function_arguments(oid) AS arguments, pg_get_function_result(oid) AS result
FROM pg_proc WHERE oid IN (SELECT objid FROM pg_depend WHERE classid = 'pg_proc'::regclass AND deptype = 'e'
    AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit'))
ORDER BY proname COLLATE "C";
\a \t
SELECT proname, provolatile, proparallel, proisstrict, procost, prosecdef, proleakproof, proretset
FROM pg_proc WHERE oid IN (SELECT objid FROM pg_depend WHERE classid = 'pg_proc'::regclass AND deptype = 'e'
    AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit'))
ORDER BY proname COLLATE "C";
SELECT rl_define('pl', rl_token_bucket(10, '1 minute'));
-- Last, though it is written first.
CREATE FUNCTION is_even(n int) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$BEGIN RETURN n % 2 = 0; END$$;
SELECT n FROM generate_series(1, 6) n WHERE (rl_limit('pl')).ok AND is_even(n);
SELECT remaining FROM rl_check('pl');
EXPLAIN (COSTS OFF) SELECT n FROM generate_series(1, 6) n WHERE (rl_check('pl', n::text)).ok AND is_even(n) AND n::text LIKE '%2%' AND length(n::text) > 0;
-- Not dear enough for JIT to compile a statement that calls for each of 100,000 rows.
CREATE FUNCTION total_cost(statement text) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || statement INTO plan;
    RETURN plan -> 0 -> 'Plan' ->> 'Total Cost';
END
$$;
SELECT total_cost(format('SELECT count(*) FROM generate_series(1, 100000) n WHERE (%s).ok', call)) < 100000 AS without_jit, call
FROM (VALUES ($$rl_check('pl', n::text)$$), ($$rl_limit('pl', n::text)$$), ($$rl_acquire('pl', n::text)$$)) v (call);
DROP FUNCTION total_cost;
-- Once a row, once a call; all the same with a key of the row.
SELECT count(*) FROM generate_series(1, 3) n, LATERAL rl_limit('pl', 'row' || n);
SELECT (SELECT ok FROM rl_limit('pl', 'scalar')) AS ok FROM generate_series(1, 3);
SELECT remaining FROM rl_check('pl', 'scalar');
-- Expanded in the select list, once a column: write it in FROM.
SELECT (rl_limit('pl', 'expanded')).*;
SELECT remaining FROM rl_check('pl', 'expanded');
SELECT * FROM rl_limit('pl', 'from');
-- Not folded to a constant, not cached, not skipped for an unused result.
PREPARE p AS SELECT 1 AS one FROM rl_limit('pl', 'unused');
EXECUTE p;
EXECUTE p;
SELECT remaining FROM rl_check('pl', 'unused');
SELECT count(*) FROM (SELECT rl_limit('pl', 'subquery') OFFSET 0) s;
SELECT remaining FROM rl_check('pl', 'subquery');
DROP FUNCTION is_even;

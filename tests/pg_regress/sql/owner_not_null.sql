-- Columns that the owner of the tables made NOT NULL: a call that would store a NULL there ends with
-- 23502, as any statement, without the key in its error; other kinds of limits go on.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('set/bucket', rl_token_bucket(10, '1 minute')), rl_define('set/wide', rl_token_bucket(10, '1 minute', shards => 2)),
       rl_define('set/sliding', rl_sliding_window(10, '1 minute')), rl_define('set/log', rl_sliding_log(10, '1 minute'));
CREATE FUNCTION sqlstate_of(statement text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN error ~ 'secret' THEN 'with the key' WHEN error = 'no error' THEN 'none' ELSE left(error, 5) END FROM error_of(statement) error
$$;
CREATE FUNCTION calls_of_each(OUT name text, OUT take text, OUT again text, OUT look text, OUT credit text, OUT several text, OUT reset text) RETURNS SETOF record LANGUAGE plpgsql AS $$
BEGIN
    FOREACH name IN ARRAY ARRAY['set/bucket', 'set/wide', 'set/sliding', 'set/log'] LOOP
        take := sqlstate_of(format('SELECT rl_limit(%L, ''secret'')', name));
        again := sqlstate_of(format('SELECT rl_limit(%L, ''secret'')', name));
        look := sqlstate_of(format('SELECT rl_check(%L, ''secret'')', name));
        credit := sqlstate_of(format('SELECT rl_credit(%L, ''secret'', -1)', name));
        several := sqlstate_of(format('SELECT rl_limit_all(jsonb_build_array(jsonb_build_object(''name'', %L, ''key'', ''secret''), jsonb_build_object(''name'', %1$L, ''key'', ''secret, too'')))', name));
        reset := sqlstate_of(format('SELECT rl_reset(%L, ''secret'')', name));
        RETURN NEXT;
    END LOOP;
END
$$;
BEGIN;
DELETE FROM rateLimits;
ALTER TABLE rateLimits ALTER log SET NOT NULL;
SELECT * FROM calls_of_each();
SELECT name, count(*), bool_or(num_nulls(log) > 0) AS nulls FROM rateLimits GROUP BY name ORDER BY name;
SET LOCAL jit = on; SET LOCAL jit_above_cost = 0;
SELECT name, key, value, log FROM rateLimits WHERE value > -1 ORDER BY name, key;
ROLLBACK;
BEGIN;
DELETE FROM rateLimits;
ALTER TABLE rateLimits ALTER prior SET NOT NULL;
SELECT * FROM calls_of_each();
SELECT name, count(*), bool_or(num_nulls(prior) > 0) AS nulls FROM rateLimits GROUP BY name ORDER BY name;
ROLLBACK;
BEGIN;
DELETE FROM rateLimits;
ALTER TABLE rateLimits ALTER log SET NOT NULL, ALTER prior SET NOT NULL;
SELECT * FROM calls_of_each();
SELECT count(*) FROM rateLimits;
-- A row that has them is not written over with NULLs.
INSERT INTO rateLimits (name, key, kind, value, ts, prior, log) VALUES ('set/bucket', 'secret', 't', 5, '2027-01-01 12:00:00+00', 0, '{}');
SELECT sqlstate_of($$SELECT rl_limit('set/bucket', 'secret')$$), sqlstate_of($$SELECT rl_reset('set/bucket', 'secret')$$);
SELECT ok, remaining FROM rl_check('set/bucket', 'secret');
SELECT name, key, value, prior, log FROM rateLimits;
SELECT rl_reset_keys('set/bucket');
ALTER TABLE rateLimits ALTER log DROP NOT NULL, ALTER prior DROP NOT NULL;
SELECT ok, remaining FROM rl_limit('set/bucket', 'secret');
ROLLBACK;
DROP FUNCTION calls_of_each; DROP FUNCTION sqlstate_of;
SELECT rl_undefine('set/bucket'), rl_undefine('set/wide'), rl_undefine('set/sliding'), rl_undefine('set/log');

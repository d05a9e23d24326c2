-- rl_take on limits in memory and with shards, and how its calls are counted.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SET extra_float_digits = 0;
SELECT rl_stats_reset() \g /dev/null
CREATE FUNCTION batches(limit_name text, at_most float8, at_least float8 DEFAULT 1)
RETURNS TABLE (n int, ok boolean, taken float8, retry_after float8, remaining numeric) LANGUAGE plpgsql AS
$$ BEGIN
    FOR i IN 1..3 LOOP
        RETURN QUERY SELECT i, r.ok, r.taken, r.retry_after, round(r.remaining::numeric, 6)
                     FROM rl_take(limit_name, 'k', at_most, at_least) r;
    END LOOP;
END $$;
SELECT rl_define('ts/memory', rl_token_bucket(60, '1 minute', capacity => 100) || '{"store": "memory"}'),
       rl_define('ts/window', rl_sliding_window(100, '1 minute') || '{"store": "memory"}'),
       rl_define('ts/saved', rl_token_bucket(60, '1 minute', capacity => 100) || '{"store": "memory", "save": "1 second"}');
SELECT * FROM batches('ts/memory', 70);
SELECT * FROM batches('ts/window', 70);
SELECT * FROM batches('ts/saved', 70);
-- A rollback gives nothing back to memory.
BEGIN;
SELECT taken FROM rl_take('ts/memory', 'other', 500);
ROLLBACK;
SELECT ok, taken FROM rl_take('ts/memory', 'other', 500);

\echo shards: all of them together
SELECT rl_define('ts/shards', rl_token_bucket(60, '1 minute', capacity => 100, shards => 8));
SELECT * FROM batches('ts/shards', 70);
SELECT round(sum(value)::numeric, 6) AS left, count(*) FROM rateLimits WHERE name = 'ts/shards' AND key = 'k' AND shard > 0;
SET ratelimit.clock = '2027-01-01 12:00:04.5+00';
-- Four and a half tokens in eight rows, none of which has one.
SELECT max(round(value::numeric, 6)) < 1 FROM rateLimits WHERE name = 'ts/shards' AND key = 'k' AND shard > 0;
SELECT * FROM batches('ts/shards', 70, 5);
SELECT * FROM batches('ts/shards', 70, 4);
SELECT * FROM batches('ts/shards', 70, 0);
-- Few fit into one row.
SELECT ok, taken FROM rl_take('ts/shards', 'few', 3);
SELECT count(*) FROM rateLimits WHERE name = 'ts/shards' AND key = 'few' AND shard > 0 AND value < 12.5;
-- In a transaction that has a row already.
BEGIN;
SELECT ok FROM rl_limit('ts/shards', 'own');
SELECT ok, taken, round(remaining::numeric, 6) AS remaining FROM rl_take('ts/shards', 'own', 500);
SELECT ok, taken FROM rl_take('ts/shards', 'own', 500);
SELECT ok, taken FROM rl_take('ts/shards', 'own', 500, at_least => 0);
COMMIT;
-- Another number of shards.
SELECT taken FROM rl_take('ts/shards', 'more', 99);
SELECT rl_define('ts/shards', rl_token_bucket(60, '1 minute', capacity => 100, shards => 3));
SELECT ok, taken, round(remaining::numeric, 6) AS remaining FROM rl_take('ts/shards', 'more', 99);
SELECT ok, taken FROM rl_take('ts/shards', 'few', 99);
SELECT rl_define('ts/shards', rl_token_bucket(60, '1 minute', capacity => 100));
SET ratelimit.clock = '2027-01-01 12:00:07+00';
SELECT ok, taken, round(remaining::numeric, 6) AS remaining FROM rl_take('ts/shards', 'few', 99);
SELECT rl_define('ts/debt', rl_fixed_window(8, '1 minute', start => '2027-01-01 12:00:00+00', max_reserved => 20, shards => 2));
SELECT ok, remaining FROM rl_limit('ts/debt', count => 11, reserve => true);
SELECT ok, taken, retry_after, remaining FROM rl_take('ts/debt', at_most => 5);
SELECT ok, taken, retry_after, remaining FROM rl_take('ts/debt', at_most => 5, at_least => 0);

\echo counted as calls of rl_limit, with the tokens that were taken
SELECT rl_define('ts/dry', rl_token_bucket(5, '1 minute') || '{"enforce": false}'),
       rl_define('ts/exempt', rl_unlimited());
SELECT taken FROM batches('ts/dry', 3);
SELECT taken FROM batches('ts/exempt', 3);
SELECT name, allowed, denied, denied_in_dry_run, tokens FROM rl_stats() WHERE name LIKE 'ts/%' AND name <> 'ts/saved' ORDER BY name;
SELECT name, key, denied FROM rl_top_denied() WHERE name = 'ts/memory' ORDER BY 1, 2;
-- What a concurrency limit has instead.
SELECT rl_define('ts/slots', rl_concurrency(3, '1 minute') || '{"store": "memory"}');
SELECT error_of($$ SELECT rl_take('ts/slots') $$, true);
BEGIN READ ONLY;
SELECT ok, taken FROM rl_take('ts/memory', 'on a standby, too', 5);
ROLLBACK;
DROP FUNCTION batches;
SELECT rl_undefine('ts/dry');

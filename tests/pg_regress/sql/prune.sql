-- rl_prune deletes idle rows, and changes no answer.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- What other tests left would be pruned, too.
TRUNCATE rateLimits, rl_blocks;
VACUUM rateLimits;
SELECT rl_prune();
SELECT rl_define('bucket', rl_token_bucket(10, '10 seconds', max_reserved => 5)),
       rl_define('bucket', rl_token_bucket(10, '1 hour'), key => 'slow'),
       rl_define('window', rl_fixed_window(3, '1 minute', start => '2027-01-01 00:00:00+00')),
       rl_define('derived', rl_fixed_window(3, '1 minute')),
       rl_define('first', rl_fixed_window(3, '1 minute', first_request => true)),
       rl_define('sliding', rl_sliding_window(4, '1 minute')),
       rl_define('log', rl_sliding_log(2, '1 minute')),
       rl_define('shards', rl_token_bucket(40, '40 seconds', shards => 4));
CREATE FUNCTION take() RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FILTER (WHERE ok) FROM (VALUES ('bucket', 'a', 10), ('bucket', 'b', 1), ('bucket', 'c', 15), ('bucket', 'slow', 1), ('window', 'k', 3), ('derived', 'k', 3),
    ('first', 'k', 3), ('sliding', 'k', 4), ('log', 'k', 2), ('shards', 'k', 15), ('shards', 'all', 40)) v (name, key, count), LATERAL rl_limit(v.name, v.key, v.count, reserve => true) $$;
CREATE VIEW kept AS SELECT name, string_agg(DISTINCT key, ' ' ORDER BY key) AS keys FROM rateLimits GROUP BY 1;
CREATE FUNCTION kept_at(at text, OUT pruned bigint, OUT kept text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('ratelimit.clock', '2027-01-01 ' || at || '+00', true);
    pruned := rl_prune();
    SELECT string_agg(name || ': ' || keys, ', ' ORDER BY name) INTO kept FROM kept;
END $$;
SELECT take();
\echo what was just taken says something
SELECT rl_prune();
\echo as time passes, row by row
SELECT t, k.* FROM unnest(ARRAY['12:00:00.999', '12:00:01', '12:00:09.999', '12:00:10', '12:00:15', '12:00:39.999', '12:00:40', '12:00:59.999', '12:01:00', '12:01:59.999', '12:02:00', '12:05:59', '12:06:00']) t, LATERAL kept_at(t) k;
\echo a row ahead of the clock says something: the clock stepped back
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT take();
SET ratelimit.clock = '2027-01-01 12:30:00+00';
SELECT rl_prune();
SET ratelimit.clock = '2027-01-01 14:00:00+00';
SELECT rl_prune();
SELECT count(*) FROM rateLimits;
\echo so does a window in a phase of its own
SELECT ok FROM rl_limit('window', 'phase', 0.5);
UPDATE rateLimits SET ts = '2027-01-01 14:00:10+00' WHERE key = 'phase';
SET ratelimit.clock = '2027-01-01 14:05:00+00';
SELECT remaining, reset_at FROM rl_check('window', 'phase');
SELECT rl_prune();
DELETE FROM rateLimits;
\echo reset rows go, and rows of a kind that has nothing to carry over
SELECT take();
SELECT rl_reset('bucket', 'c'), rl_reset('shards', 'all'), rl_define('log', rl_token_bucket(2, '1 minute'));
SELECT rl_prune();
SELECT * FROM kept ORDER BY 1;
\echo one shard that is not full keeps all rows of its key; none, and all go, under another number of shards too
SET ratelimit.clock = '2027-01-01 14:05:39+00';
SELECT rl_define('shards', rl_token_bucket(40, '40 seconds', shards => 2));
UPDATE rateLimits SET value = CASE shard WHEN 40003 THEN 0 ELSE 10 END WHERE name = 'shards' AND shard > 0;
SELECT rl_prune() > 0;
SELECT count(*) FROM rateLimits WHERE name = 'shards';
SET ratelimit.clock = '2027-01-01 14:05:40+00';
SELECT rl_prune();
SELECT count(*) FROM rateLimits WHERE name = 'shards';
\echo names without a definition go by age only
DELETE FROM rateLimits;
SELECT ok FROM rl_limit('inline', 'old', config => rl_token_bucket(3, '1 s'));
SET ratelimit.clock = '2027-01-02 14:05:40+00';
SELECT ok FROM rl_limit('inline', 'new', config => rl_token_bucket(3, '1 s'));
SELECT ok FROM rl_limit('inline', 'spread', config => rl_token_bucket(3, '1 s', shards => 3));
SELECT rl_prune(), rl_prune(undefined_idle => '1 day 00:00:01'), rl_prune(undefined_idle => '1 day'), rl_prune(undefined_idle => '23:59:59'), rl_prune(undefined_idle => '1 mon');
SELECT * FROM kept;
SET ratelimit.clock = '2027-01-02 14:05:41+00';
SELECT rl_prune(undefined_idle => '0');
\echo batches: as many as asked for, until none is left
SELECT bool_and(ok) FROM generate_series(1, 25) n, LATERAL rl_limit('bucket', 'batch' || n);
SELECT bool_and(ok) FROM generate_series(1, 10) n, LATERAL rl_limit('bucket', 'live' || n, 10);
SET ratelimit.clock = '2027-01-02 14:05:43+00';
SELECT rl_prune(10), rl_prune(10), rl_prune(10), rl_prune(10);
SELECT count(*) FROM rateLimits;
\echo errors
\set VERBOSITY terse
SELECT rl_prune(0);
SELECT rl_prune(-5);
SELECT rl_prune(NULL);
SELECT rl_prune(10, '-1 second');
BEGIN READ ONLY;
SELECT rl_prune();
ROLLBACK;
\set VERBOSITY default
TRUNCATE rateLimits;
SELECT count(rl_undefine(name, key)) FROM rl_config WHERE name IN ('bucket', 'window', 'derived', 'first', 'sliding', 'log', 'shards');
DROP VIEW kept;
DROP FUNCTION take, kept_at;

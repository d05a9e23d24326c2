-- rl_status: a row a (name, key) that has state, judged now by its definition.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- What other tests left would be shown, too.
TRUNCATE rateLimits, rl_blocks;
DELETE FROM rl_config WHERE config ->> 'kind' = 'unlimited';
VACUUM rateLimits;
SELECT * FROM rl_status();
SELECT rl_define('bucket', rl_token_bucket(10, '10 seconds', max_reserved => 5)),
       rl_define('bucket', rl_token_bucket(100, '10 seconds'), key => 'vip'),
       rl_define('window', rl_fixed_window(3, '1 minute', start => '2027-01-01 00:00:00+00')),
       rl_define('sliding', rl_sliding_window(4, '1 minute')),
       rl_define('log', rl_sliding_log(2, '1 minute')),
       rl_define('shards', rl_token_bucket(40, '40 seconds', shards => 4));
SELECT count(*) FILTER (WHERE ok) FROM (VALUES ('bucket', 'a', 10), ('bucket', 'b', 4), ('bucket', 'c', 12), ('bucket', 'vip', 4), ('window', '', 3), ('window', 'k', 1),
    ('sliding', 'k', 4), ('log', 'k', 2), ('shards', '', 15), ('shards', 'k', 40)) v (name, key, count), LATERAL rl_limit(v.name, v.key, v.count, reserve => true);
SELECT ok FROM rl_limit('inline', 'x', config => rl_token_bucket(3, '1 s'));
SELECT ok FROM rl_limit('inline', 'y', config => rl_token_bucket(3, '1 s', shards => 3));
SELECT * FROM rl_status();
SELECT * FROM rl_status('bucket');
SELECT * FROM rl_status('bucket', 'a');
SELECT name, key FROM rl_status(key => 'k');
SELECT name, key FROM rl_status('window');
SELECT name, key FROM rl_status('window', '');
SELECT * FROM rl_status('nothing');
SELECT * FROM rl_status('bucket', 'nobody');
-- It is what rl_check says, at every time.
CREATE FUNCTION different(at text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('ratelimit.clock', at, true);
    RETURN (SELECT count(*) FROM (SELECT * FROM rl_status() WHERE kind IS NOT NULL OFFSET 0) s, LATERAL rl_check(s.name, s.key) c
            WHERE (s.remaining, s.capacity, s.retry_at, s.limited, s.as_of) IS DISTINCT FROM (c.remaining, c.capacity, c.retry_at, NOT c.ok, at::timestamptz));
END $$;
SELECT different('2027-01-01 12:00:00+00'), different('2027-01-01 12:00:07.5+00'), different('2027-01-01 12:00:33+00'), different('2027-01-01 12:03:00+00');
SELECT name, key, remaining, limited FROM rl_status() WHERE limited;
-- A reset key is full; so is one whose limit became of another kind.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_reset('bucket', 'a');
SELECT remaining, limited FROM rl_status('bucket', 'a');
SELECT rl_define('log', rl_token_bucket(7, '1 minute'));
SELECT kind, remaining, limited FROM rl_status('log');
-- A limit that is smaller than one token is always limited, and without a known end.
SELECT rl_define('small', rl_token_bucket(0.5, '1 minute'));
SELECT ok FROM rl_limit('small', '', 0.25);
SELECT remaining, retry_at, limited FROM rl_status('small');
-- More keys than are read at once, some with several rows.
SELECT bool_and(ok) FROM generate_series(1, 2500) n, LATERAL rl_limit('bucket', 'many' || n);
SELECT bool_and(ok) FROM generate_series(1, 700) n, LATERAL rl_limit('shards', 'many' || n);
SELECT name, count(*), count(DISTINCT key), min(remaining), max(remaining) FROM rl_status() WHERE key LIKE 'many%' GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM rl_status('shards');
SELECT array_agg(key ORDER BY n) = array_agg(key ORDER BY key COLLATE "C") AS in_order FROM rl_status('bucket') WITH ORDINALITY s(name, key, a, b, c, d, e, f, g, h, i, j, n);
-- What this transaction took counts; a rollback takes it back.
BEGIN;
SELECT ok FROM rl_limit('bucket', 'b', 3);
SELECT remaining FROM rl_status('bucket', 'b');
ROLLBACK;
SELECT remaining FROM rl_status('bucket', 'b');
-- Read-only is fine; errors.
BEGIN READ ONLY;
SELECT remaining FROM rl_status('bucket', 'b');
ROLLBACK;
\set VERBOSITY terse
SELECT rl_status('');
SELECT rl_status(repeat('n', 201));
SELECT rl_status('n', repeat('k', 1025));
UPDATE rateLimits SET value = 'NaN' WHERE name = 'bucket' AND key = 'b';
SELECT * FROM rl_status('bucket', 'b');
DROP FUNCTION different;
TRUNCATE rateLimits;
SELECT count(rl_undefine(name, key)) FROM unnest(ARRAY['bucket', 'bucket', 'window', 'sliding', 'log', 'shards', 'small'], ARRAY['', 'vip', '', '', '', '', '']) d (name, key);

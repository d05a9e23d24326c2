-- rl_value of limits in memory, of those that are saved, and of those with shards, whose state is their total.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('vs/memory', rl_sliding_window(3, '1 minute') || '{"store": "memory"}'),
       rl_define('vs/later', rl_token_bucket(3, '1 minute') || '{"applyUpdates": "asynchronously"}'),
       rl_define('vs/shards', rl_token_bucket(4, '1 minute', shards => 2)),
       rl_define('vs/window', rl_fixed_window(4, '1 hour', shards => 2)),
       rl_define('vs/slots', rl_concurrency(3, '1 minute') || '{"store": "memory"}');
CREATE VIEW vs AS SELECT unnest(ARRAY['vs/memory', 'vs/later', 'vs/shards', 'vs/window']) AS name;
SELECT name, rl_value(name, 'a') AS value FROM vs;
SELECT name, ok FROM vs, rl_limit(name, 'a', 3);
SET ratelimit.clock = '2027-01-01 12:00:15+00';
SELECT name, rl_value(name, 'a') AS value FROM vs;
-- From it rl_calculate answers as rl_check does.
SELECT name, n, c.ok, c.remaining, c.retry_at, (c.ok, c.remaining, c.retry_at) IS NOT DISTINCT FROM
    (r.ok, l.remaining, to_timestamp(ceil(extract(epoch FROM r.retry_at) * 1000) / 1000)) AS same
FROM vs, unnest(ARRAY[1, 2]) n, rl_value(name, 'a') v, rl_check(name, 'a', n) c,
    rl_calculate(v -> 'config', v -> 'state', '2027-01-01 12:00:15+00', n) r, rl_calculate(v -> 'config', v -> 'state', '2027-01-01 12:00:15+00', 0) l;
SELECT name, rl_reset(name, 'a'), rl_value(name, 'a') -> 'state' AS state FROM vs;
-- A config in the call.
SELECT ok FROM rl_limit('vs/call', 'a', config => '{"kind": "token bucket", "rate": 5, "period": 60000, "applyUpdates": "asynchronously"}');
SELECT rl_value('vs/call', 'a', '{"kind": "token bucket", "rate": 5, "period": 60000, "applyUpdates": "asynchronously"}') AS value;
-- What has expired in memory is none; leases are listed.
SELECT ok FROM rl_acquire('vs/slots', 'a');
SELECT rl_release(lease) FROM rl_acquire('vs/slots', 'a');
SELECT regexp_replace((rl_value('vs/slots', 'a') -> 'state')::text, '[[][0-9.]+, ', '[id, ') AS state;
SET ratelimit.clock = '2027-01-01 12:02:00+00';
SELECT rl_value('vs/slots', 'a') -> 'state' AS state;
-- Under the server's clock a saved limit is in memory and in the table.
RESET ratelimit.clock;
SELECT rl_define('vs/saved', rl_fixed_window(3, '1000 days', start => '2000-01-01Z') || '{"store": "memory", "save": "1 hour"}');
SELECT ok FROM rl_limit('vs/saved', 'a', 2);
SELECT rl_value('vs/saved', 'a') -> 'config' AS config, rl_value('vs/saved', 'a') #> '{state,value}' AS left,
       (rl_value('vs/saved', 'a') -> 'now')::float8 BETWEEN extract(epoch FROM now()) * 1000 AND extract(epoch FROM clock_timestamp()) * 1000 AS now;
SELECT error_of($$SELECT rl_value('vs/none', 'a')$$);
BEGIN READ ONLY;
SELECT rl_value('vs/later', 'b') -> 'state' AS state;
ROLLBACK;
DROP VIEW vs;

-- rl_state: what a limit remembers, as rl_calculate takes it.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('state/bucket', rl_token_bucket(3, '1 minute')), rl_define('state/window', rl_fixed_window(3, '1 minute', start => '2027-01-01 00:00:00+00')),
       rl_define('state/sliding', rl_sliding_window(3, '1 minute')), rl_define('state/log', rl_sliding_log(3, '1 minute')),
       rl_define('state/shards', rl_token_bucket(4, '1 minute', shards => 2)), rl_define('state/memory', rl_sliding_window(3, '1 minute') || '{"store": "memory"}'),
       rl_define('state/none', rl_unlimited());
CREATE VIEW st AS SELECT unnest(ARRAY['state/bucket', 'state/log', 'state/memory', 'state/none', 'state/shards', 'state/sliding', 'state/window']) AS name;
SELECT name, rl_state(name, 'a') FROM st;
SELECT name, ok FROM st, rl_limit(name, 'a', 2);
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT name, ok FROM st, rl_limit(name, 'a') ORDER BY name;
SELECT name, rl_state(name, 'a') FROM st;
-- From it rl_calculate answers as rl_check does.
SELECT name, (SELECT ok FROM rl_check(name, 'a', 2)) AS checked, (SELECT ok FROM rl_calculate(config, rl_state(name, 'a'), '2027-01-01 12:01:00+00', 2)) AS calculated
FROM st JOIN rl_config USING (name) WHERE name <> 'state/none' ORDER BY name;
SELECT name, rl_reset(name, 'a'), rl_state(name, 'a') FROM st;
-- By a config in the call.
SELECT ok FROM rl_limit('state/inline', 'a', config => rl_sliding_log(2, '1 minute'));
SELECT rl_state('state/inline', 'a', rl_sliding_log(2, '1 minute')), rl_state('state/inline', 'a', rl_token_bucket(2, '1 minute')), rl_state('state/inline', 'b', rl_sliding_log(2, '1 minute'));
-- What another kind left is none, as what has expired in memory is.
SELECT ok FROM rl_limit('state/bucket', 'left');
SELECT rl_define('state/bucket', rl_sliding_log(3, '1 minute'));
SELECT rl_state('state/bucket', 'left');
SELECT rl_define('state/bucket', rl_unlimited());
SELECT rl_state('state/bucket', 'left');
SELECT rl_define('state/bucket', rl_concurrency(3, '1 minute') || '{"store": "memory"}');
SELECT ok, regexp_replace(lease, '[0-9]+$', 'ID') AS lease FROM rl_acquire('state/bucket', 'left');
SELECT rl_release(lease) FROM rl_acquire('state/bucket', 'left');
SELECT regexp_replace(rl_state('state/bucket', 'left')::text, '[[][0-9.]+, ', '[id, ') AS rl_state;
SELECT error_of(call) FROM unnest(ARRAY[$$SELECT rl_state('state/inline', 'a')$$, $$SELECT rl_state('', 'a')$$, $$SELECT rl_state('state/bucket', NULL)$$]) call;
BEGIN READ ONLY;
SELECT rl_state('state/bucket', 'b');
ROLLBACK;
DROP VIEW st;

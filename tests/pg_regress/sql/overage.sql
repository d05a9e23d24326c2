-- A soft quota: the overage passes, shows as remaining below 0, and ends with its window.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('over', rl_fixed_window(10, '1 hour', start => '2027-01-01 00:00:00+00') || '{"overage": true}'),
       rl_define('over/roll', rl_fixed_window(10, '1 hour', capacity => 15, start => '2027-01-01 00:00:00+00') || '{"overage": true}'),
       rl_define('over/month', rl_fixed_window(10, '1 month', timezone => 'UTC') || '{"overage": true}'),
       rl_define('over/memory', rl_fixed_window(10, '1 hour', start => '2027-01-01 00:00:00+00') || '{"overage": true, "store": "memory"}');
CREATE VIEW over AS SELECT unnest(ARRAY['over', 'over/roll', 'over/month', 'over/memory']) AS name;
SELECT name, ok, retry_after, remaining, capacity, reset_at FROM over, rl_limit(name, 'a', 8);
SELECT name, ok, retry_after, remaining, capacity, reset_at FROM over, rl_limit(name, 'a', 8);
SELECT name, ok, retry_at, remaining FROM over, rl_limit(name, 'a', 25, reserve => true);
SELECT name, ok, remaining FROM over, rl_check(name, 'a', 1000);
SELECT name, ok, remaining FROM over, rl_limit(name, 'a', 0);
SELECT name, remaining, limited FROM over, LATERAL rl_status(over.name, 'a') AS status (n, k, kind, remaining, capacity, retry_at, as_of, shards, limited);
-- Given back: the debt first.
SELECT name, ok, retry_after, remaining FROM over, rl_credit(name, 'a', 2);
SELECT name, ok, allows, remaining FROM rl_limit_all('[{"name": "over", "key": "a", "count": 2}, {"name": "over/memory", "key": "a", "count": 2}]');
-- What is billed is read before the window ends, or added up call by call.
SELECT name, greatest(-remaining, 0) AS over FROM over, rl_check(name, 'a', 0);
SELECT rl_headers('over', r), rl_headers('over', r, 'github') FROM rl_check('over', 'a') r;
-- Not carried into the next window.
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT name, ok, remaining, reset_at FROM over, rl_check(name, 'a', 0);
SELECT name, ok, remaining FROM over, rl_limit(name, 'a', 3);
SET ratelimit.clock = '2027-02-01 00:00:00+00';
SELECT name, ok, remaining FROM over, rl_check(name, 'a', 0);
-- Without the field the same debt is one of reservations.
SELECT rl_define('over/less', rl_fixed_window(10, '1 hour', start => '2027-01-01 00:00:00+00') || '{"overage": true}');
SELECT ok, remaining FROM rl_limit('over/less', '', 25);
SELECT rl_define('over/less', rl_fixed_window(10, '1 hour', start => '2027-01-01 00:00:00+00'));
SELECT ok, retry_after, remaining FROM rl_limit('over/less');
SELECT ok, remaining, state FROM rl_calculate(rl_fixed_window(10, '1 hour') || '{"overage": true}', '{"value": 1, "ts": 0}', '1970-01-01 00:30:00+00', 5);
SELECT ok, remaining, state FROM rl_calculate(rl_fixed_window(10, '1 hour') || '{"overage": true}', '{"value": -4, "ts": 0}', '1970-01-01 01:30:00+00', 5);
-- A row is idle when its window has turned.
SELECT rl_reset_all(name) FROM over \g /dev/null
SELECT ok FROM rl_limit('over', 'idle', 100);
SELECT rl_prune() >= 0;
SELECT count(*) FROM rateLimits WHERE name = 'over' AND key = 'idle' AND value < 0;
SET ratelimit.clock = '2027-02-01 01:00:00+00';
SELECT rl_prune() > 0;
SELECT count(*) FROM rateLimits WHERE name = 'over' AND key = 'idle';
SELECT error_of(format('SELECT rl_define(%L, %s)', 'over/bad', config)) FROM unnest(ARRAY[
    $$rl_fixed_window(10, '1 hour', shards => 2) || '{"overage": true}'$$,
    $$rl_fixed_window(10, '1 hour', max_reserved => 2) || '{"overage": true}'$$,
    $$rl_fixed_window(10, '1 month', max_reserved => 2, timezone => 'UTC') || '{"overage": true}'$$,
    $$rl_fixed_window(10, '1 hour') || '{"overage": 1}'$$,
    $$rl_token_bucket(10, '1 hour') || '{"overage": true}'$$]) config;
SELECT rl_define('over/ok', rl_fixed_window(10, '1 hour', shards => 2, max_reserved => 2) || '{"overage": false}');
DROP VIEW over;

-- Fixed window: rate tokens arrive when a window begins, up to the capacity. start is the phase:
-- epoch milliseconds, a time with its offset, the first request, or derived from (name, key).
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:20:00+00';
SELECT rl_define('fw', rl_fixed_window(5, '1 hour', start => '2027-01-01 00:00:00+00'));
SELECT * FROM rl_limit('fw', count => 4);
SELECT * FROM rl_limit('fw', count => 2);
SELECT * FROM rl_limit('fw', count => 6);
SELECT ok, remaining FROM rl_limit('fw');
SELECT ok, retry_after, retry_at FROM rl_limit('fw');
-- The stored time is the start of the window.
SELECT value, ts, prior, log, added FROM rateLimits WHERE name = 'fw';
SET ratelimit.clock = '2027-01-01 12:59:59.999+00';
SELECT ok, retry_after FROM rl_limit('fw');
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT ok, remaining, reset_at FROM rl_limit('fw');
-- Unused tokens do not roll over, since the capacity is the rate.
SET ratelimit.clock = '2027-01-03 20:30:00+00';
SELECT ok, remaining, reset_at FROM rl_limit('fw', count => 5);

-- start: in every form the same, in the past or the future.
SET ratelimit.clock = '2027-01-01 12:20:00+00';
SELECT start, reset_at
FROM (VALUES ('1798761600000'), ('1798761600000.000'), ('0'), ('-3600000'),
             ('"2027-01-01T00:00:00Z"'), ('"2027-01-01T02:00:00+02:00"'), ('"2026-12-31T18:30:00-05:30"'),
             ('"2040-01-01T00:00:00Z"'), ('"2027-01-01 00:00:00+00"'), ('"2027-01-01T00:15:00Z"'),
             ('"1969-07-20T20:17:40Z"'), ('"2027-01-01T00:00:00.0005Z"')) v (start),
     LATERAL rl_limit('fw/start', start, config => ('{"kind": "fixed window", "rate": 1, "period": "1 hour", "start": ' || start || '}')::jsonb);

-- Without start the phase comes from name and key: the same on every machine, another for
-- another key, so that not all windows begin at once.
SET ratelimit.clock = '2027-01-01 12:20:00+00';
SELECT rl_define('fw/derived', rl_fixed_window(2, '1 hour'));
SELECT key, reset_at FROM (VALUES (''), ('a'), ('b'), ('user-1')) v (key), LATERAL rl_check('fw/derived', key);
SELECT count(DISTINCT reset_at) AS windows, min(reset_at) > '2027-01-01 12:20:00+00' AS later,
       max(reset_at) <= '2027-01-01 13:20:00+00' AS within_the_hour
FROM generate_series(1, 1000) n, LATERAL rl_check('fw/derived', 'user-' || n);

-- While a row lives, its time fixes the phase; start speaks for new rows.
SELECT rl_define('fw', rl_fixed_window(5, '1 hour', start => '2027-01-01 00:10:00+00'));
SET ratelimit.clock = '2027-01-03 20:40:00+00';
SELECT reset_at FROM rl_check('fw');
SELECT reset_at FROM rl_check('fw', 'new');
SELECT rl_reset('fw');
SELECT reset_at FROM rl_check('fw');

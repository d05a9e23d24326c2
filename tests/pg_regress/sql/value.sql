-- rl_value: what decides a key's calls, for a client that computes by rl_calculate.
SET timezone = 'UTC'; SET datestyle = 'ISO';
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define(name, config::jsonb) FROM (VALUES
    ('va/bucket', '{"kind": "token bucket", "rate": 3, "period": "1 minute"}'),
    ('va/calendar', '{"kind": "fixed window", "rate": 3, "period": "P1Y", "timezone": "Europe/Berlin", "capacity": 5}'),
    ('va/dry', '{"kind": "token bucket", "rate": 2.5, "period": 1500.5, "enforce": false, "keyed": true, "start": null}'),
    ('va/first', '{"kind": "fixed window", "rate": 3, "period": "PT1H", "start": "first request", "applyUpdates": "transactionally"}'),
    ('va/free', '{"kind": "unlimited", "enforce": true}'),
    ('va/log', '{"kind": "sliding log", "rate": 3, "period": "1 minute"}'),
    ('va/over', '{"kind": "fixed window", "rate": 3, "period": "1 day", "start": "2027-01-01T00:00:00+01:00", "overage": true}'),
    ('va/sliding', '{"kind": "sliding window", "rate": 3, "period": "1 minute", "store": "table"}'),
    ('va/slots', '{"kind": "concurrency", "slots": 2, "ttl": "1 minute"}'),
    ('va/weeks', '{"kind": "fixed window", "rate": 3, "period": "2 weeks", "timezone": "UTC", "start": "0000-02-29"}'),
    ('va/window', '{"kind": "fixed window", "rate": 3, "period": "1 hour", "maxReserved": 2, "shards": 1}')) AS l (name, config);
CREATE VIEW va AS SELECT name FROM rl_config WHERE name LIKE 'va/%' AND key = '' ORDER BY 1;
-- Full: the state is null. Windows without a start have one that is the key's own.
SELECT name, rl_value(name, 'a') AS value FROM va;
SELECT rl_value('va/window', 'b') #> '{config,start}' AS b, rl_value('va/window', '') #> '{config,start}' AS none;
SELECT name, ok FROM va, rl_limit(name, 'a', 2) WHERE name <> 'va/slots';
SELECT ok FROM rl_acquire('va/slots', 'a');
SET ratelimit.clock = '2027-01-01 12:00:10.0005+00';
SELECT ok, remaining FROM rl_limit('va/over', 'a', 2);
SELECT name, regexp_replace(rl_value(name, 'a')::text, '[[]{2}[0-9.]+, ', '[[id, ') AS value FROM va;
-- From it rl_calculate answers as rl_check does: now, later, and after the window.
CREATE FUNCTION va_same(name text, key text, at timestamptz, config jsonb DEFAULT NULL)
RETURNS TABLE (count int, ok boolean, remaining float8, retry_at timestamptz, same boolean) LANGUAGE plpgsql AS $$
DECLARE
    value CONSTANT jsonb := rl_value(name, key, config);
    clock CONSTANT text := current_setting('ratelimit.clock');
BEGIN
    PERFORM set_config('ratelimit.clock', at::text, false);
    RETURN QUERY SELECT n, c.ok, c.remaining, c.retry_at, (c.ok, c.remaining, c.retry_at) IS NOT DISTINCT FROM
            (r.ok, l.remaining, to_timestamp(ceil(extract(epoch FROM r.retry_at) * 1000) / 1000))
        FROM unnest(ARRAY[1, 3]) n, rl_check(name, key, n, config => config) c,
            rl_calculate(value -> 'config', value -> 'state', at, n) r, rl_calculate(value -> 'config', value -> 'state', at, 0) l;
    PERFORM set_config('ratelimit.clock', clock, false);
END
$$;
SELECT name, at, s.* FROM va, unnest(ARRAY['2027-01-01 12:00:10.0005+00', '2027-01-01 12:00:59+00', '2027-01-01 13:00:00+00', '2028-01-01 00:00:00+00']::timestamptz[]) at,
    va_same(name, 'a', at) s;
-- Until when the key is blocked; a block without an end is 9999-12-30, the latest time in results.
SELECT rl_block('va/bucket', 'a', '1 hour'), rl_block('va/free', 'a', until => 'infinity');
SELECT name, rl_value(name, 'a') -> 'blockedUntil' AS blocked FROM va WHERE name IN ('va/bucket', 'va/free', 'va/log');
SET ratelimit.clock = '2027-01-01 13:00:10.001+00';
SELECT rl_value('va/bucket', 'a') -> 'blockedUntil' AS blocked;
SELECT rl_unblock('va/bucket', 'a'), rl_unblock('va/free', 'a');
-- The key's own: an override, a plan, an exempt key; the state stays.
SET ratelimit.clock = '2027-01-01 12:00:10.0005+00';
SELECT rl_define('va/bucket', rl_token_bucket(30, '1 hour', capacity => 60), 'b'), rl_define('va/bucket', '{"plan": "va/first"}', 'c'),
       rl_define('va/bucket', rl_unlimited(), 'a');
SELECT key, rl_value('va/bucket', key) AS value FROM unnest(ARRAY['a', 'b', 'c', 'd']) key;
SELECT rl_undefine('va/bucket', 'a');
SELECT rl_value('va/bucket', 'a') -> 'state' AS state, rl_reset('va/bucket', 'a'), rl_value('va/bucket', 'a') -> 'state' AS after;
-- By a config in the call.
SELECT rl_value('va/call', 'a', '{"kind": "sliding log", "rate": 2, "period": 1000}') AS value;
SELECT ok FROM rl_limit('va/call', 'a', config => rl_sliding_log(2, '1 minute'));
SELECT rl_value('va/call', 'a', rl_sliding_log(2, '1 minute')) AS log, rl_value('va/call', 'a', rl_token_bucket(2, '1 minute')) AS bucket;
-- What has expired has come back, though no call has applied that; the row stays as it is.
SELECT ok, remaining FROM rl_hold('va/bucket', 'held', 2, '30 s', 'va/hold');
SELECT rl_value('va/bucket', 'held') -> 'state' AS state;
SET ratelimit.clock = '2027-01-01 12:00:41+00';
SELECT rl_value('va/bucket', 'held') -> 'state' AS state, s.* FROM va_same('va/bucket', 'held', '2027-01-01 12:00:42+00') s;
SELECT value, expires FROM rateLimits WHERE name = 'va/bucket' AND key = 'held';
-- A window whose config has changed: what it added is shown where what rolls over depends on it.
SELECT rl_define('va/roll', rl_fixed_window(10, '1 hour', capacity => 30, start => '2027-01-01Z'));
SELECT ok, remaining FROM rl_limit('va/roll', 'a', 25);
SELECT rl_define('va/roll', rl_fixed_window(14, '1 hour', capacity => 30, start => '2027-01-01Z'));
SELECT rl_value('va/roll', 'a') -> 'state' AS state;
SELECT at, s.* FROM unnest(ARRAY['2027-01-01 12:30:00+00', '2027-01-01 13:00:00+00', '2027-01-01 15:00:00+00']::timestamptz[]) at, va_same('va/roll', 'a', at) s;
SELECT rl_define('va/roll', rl_fixed_window(14, '1 hour', start => '2027-01-01Z'));
SELECT rl_value('va/roll', 'a') -> 'state' AS state;
SELECT at, s.* FROM unnest(ARRAY['2027-01-01 12:30:00+00', '2027-01-01 13:00:00+00']::timestamptz[]) at, va_same('va/roll', 'a', at) s;
SELECT ok, remaining, state FROM rl_calculate(rl_fixed_window(14, '1 hour'), '{"value": 5, "ts": 1798804800000, "added": 10}', '2027-01-01 12:30:00+00', 9);
-- The row's time fixes the phase of its windows, whatever the start is now.
SELECT rl_define('va/window', rl_fixed_window(3, '1 hour', start => '2027-01-01 00:30:00+00'));
SELECT rl_value('va/window', 'a') AS old, rl_value('va/window', 'new') AS new;
-- What another kind left is none.
SELECT rl_define('va/log', rl_token_bucket(3, '1 minute'));
SELECT rl_value('va/log', 'a') AS value;
-- Errors are those of rl_check.
\a \t
SELECT call, error_of('SELECT rl_value' || call) AS error, error_of('SELECT rl_value' || call) = error_of('SELECT rl_check' || call) AS same FROM unnest(ARRAY[
    '(NULL)', '('''')', '(''va/bucket'', NULL)', '(''va/dry'')', '(''va/none'')', '(''va/bucket'', repeat(''x'', 1025))',
    '(''va/none'', config => ''{}'')', '(''va/none'', config => ''{"kind": "fixed window", "rate": 1, "period": "1 month"}'')']) call;
UPDATE rateLimits SET value = 'NaN' WHERE name = 'va/first' AND key = 'a';
SELECT error_of('SELECT rl_value(''va/first'', ''a'')'), error_of('SELECT rl_value(''va/first'', ''a'')') = error_of('SELECT rl_check(''va/first'', ''a'')');
\a \t
SELECT rl_reset('va/first', 'a');
-- It reads only, and locks nothing.
BEGIN READ ONLY;
SELECT rl_value('va/bucket', 'b') -> 'state' AS state;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode ~ 'Exclusive' AND locktype IN ('relation', 'tuple', 'transactionid');
ROLLBACK;
DROP FUNCTION va_same;
DROP VIEW va;

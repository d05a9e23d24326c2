-- Every field of a config: missing, of a wrong type, out of range, unknown, or of another kind. The
-- error names the field, its value and what is allowed, wherever the config comes from.
SET timezone = 'UTC'; SET datestyle = 'ISO';
CREATE FUNCTION refusal(config text) RETURNS text LANGUAGE sql AS $$
    SELECT error_of(format('SELECT rl_calculate(%L, NULL, %L)', config, '2027-01-01 12:00:00+00'))
$$;
-- A good token bucket (tb) or fixed window (fw) with one field set to something else.
CREATE FUNCTION tb(field text, value text) RETURNS text LANGUAGE sql AS $$
    SELECT '{"kind": "token bucket", "rate": 1, "period": 1000' || format(', "%s": %s}', field, value)
$$;
CREATE FUNCTION fw(field text, value text) RETURNS text LANGUAGE sql AS $$
    SELECT '{"kind": "fixed window", "rate": 1, "period": 1000' || format(', "%s": %s}', field, value)
$$;
\a \t
\echo kind
SELECT v, refusal(v) FROM (VALUES ('{}'), ('{"rate": 1, "period": 1000}'), ('{"Kind": "token bucket", "rate": 1, "period": 1000}')) t (v);
SELECT v, refusal(tb('kind', v)) FROM unnest(ARRAY['null', '1', 'true', '""', '"leaky bucket"', '"Token Bucket"', '"token_bucket"', '" token bucket"', '[]', '{}', '["token bucket"]']) v;
\echo rate
SELECT v, refusal(v) FROM (VALUES ('{"kind": "token bucket", "period": 1000}'), ('{"kind": "sliding log", "period": 1000}')) t (v);
SELECT v, refusal(tb('rate', v)) FROM unnest(ARRAY['null', '"1"', '""', 'true', '[]', '{}', '0', '-0', '-1', '1000000000000001', '1.0000000000000001e15', '1e15', '1e-5']) v;
SELECT v, refusal(tb('rate', v)) FROM unnest(ARRAY['1e400', '-1e400', '1e-400']) v;
SELECT v, refusal('{"kind": "sliding log", "period": 1000, "rate": ' || v || '}') FROM unnest(ARRAY['0', '0.5', '1.5', '-1', '10001', '10000', '1', '1.0', '"3"']) v;
\echo period
SELECT v, refusal(v) FROM (VALUES ('{"kind": "sliding window", "rate": 1}')) t (v);
SELECT v, refusal(tb('period', v)) FROM unnest(ARRAY['null', 'true', '[]', '{}', '0', '0.999', '-1', '1e16', '1e400', '1', '1e15', '1.5']) v;
SELECT v, refusal(tb('period', v)) FROM unnest(ARRAY['""', '" "', '"1"', '"60000"', '"minute"', '"1 fortnight"', '"0 minutes"', '"0.9 ms"', '"-1 minute"', '"1 minute ago"', '"1 month"', '"1 year"', '"P1M"', '"P1Y1D"', '"PT"', '"P"', '"1e3 s"', '"infinity"', '"NaN"', '"99999999999999999999 days"', '"1:00"']) v;
\echo periods that are the same minute, day or week
SELECT v, (SELECT retry_after FROM rl_calculate(tb('period', v)::jsonb, '{"value": 0, "ts": 0}', '1970-01-01 00:00:00+00'))
FROM unnest(ARRAY['60000', '6e4', '"1 minute"', '"1 min"', '"1m"', '"60 seconds"', '"60s"', '"60000 ms"', '"PT1M"', '"pt60s"', '"PT0.5M"', '"00:01:00"', '"1 day"', '"24 hours"', '"P1D"', '"1 week"', '"7 days"', '"P1W"', '"1 hour 30 minutes"', '"1h30m"', '"PT1H30M"', '"1.5 hours"', '"1 ms"', '"1500 us"']) v;
\echo capacity
SELECT v, refusal(tb('capacity', v)) FROM unnest(ARRAY['null', '"1"', 'true', '[]', '{}', '-1', '-0.001', '1000000000000001', '1e400', '0', '0.5', '1e15']) v;
\echo maxReserved
SELECT v, refusal(tb('maxReserved', v)) FROM unnest(ARRAY['null', '"1"', 'false', '[]', '{}', '-1', '1000000000000001', '1e400', '0', '1e15']) v;
\echo shards
SELECT v, refusal(tb('shards', v)) FROM unnest(ARRAY['null', '"1"', 'true', '[]', '0', '-1', '1.5', '1025', '1e400', '2', '1024', '1', '1.0']) v;
\echo start
SELECT v, refusal(fw('start', v)) FROM unnest(ARRAY['null', 'true', '[]', '{}', '""', '"now"', '"first"', '"First Request"', '"2027-01-01"', '"2027-01-01T00:00:00"', '"2027-01-01 00:00:00"', '"01/02/2027 00:00:00Z"', '"2027-02-30T00:00:00Z"', '"2027-01-01T25:00:00Z"', '"1798761600000"', '"infinity"', '1e16', '-1e16', '1e400', '0', '-1', '0.5', '"first request"', '"2027-01-01T00:00:00Z"', '"2027-01-01T00:00:00.123456-08:00"']) v;
\echo fields that the kind does not take, and unknown ones
SELECT v, refusal(tb(v, '1')) FROM unnest(ARRAY['start', 'timezone', 'burst', 'Rate', 'max_reserved', '', 'rate ', 'a\"b']) v;
SELECT v, refusal(format('{"kind": "sliding window", "rate": 1, "period": 1000, "%s": 1}', v)) FROM unnest(ARRAY['capacity', 'maxReserved', 'shards', 'start', 'timezone']) v;
SELECT v, refusal(format('{"kind": "sliding log", "rate": 1, "period": 1000, "%s": 1}', v)) FROM unnest(ARRAY['capacity', 'maxReserved', 'shards', 'start', 'timezone']) v;
\echo no object
SELECT v, refusal(v) FROM unnest(ARRAY['null', '1', '"x"', '[]', 'true', '[{"kind": "token bucket"}]']) v;
\echo long values are cut
SELECT refusal(tb('capacity', '"' || repeat('x', 500) || '"'));
SELECT refusal(tb(repeat('y', 500), '1'));
SELECT refusal(tb('kind', '"' || repeat('ü', 500) || '"'));
\a \t
-- Everywhere the same.
SELECT count(DISTINCT e) AS messages, count(*) AS ways FROM (
    VALUES (error_of($$SELECT rl_define('ce', '{"kind": "token bucket", "rate": -1, "period": 1}')$$, true)),
           (error_of($$SELECT rl_limit('ce', config => '{"kind": "token bucket", "rate": -1, "period": 1}')$$, true)),
           (error_of($$SELECT rl_check('ce', config => '{"kind": "token bucket", "rate": -1, "period": 1}')$$, true)),
           (error_of($$INSERT INTO rl_config VALUES ('ce', '', '{"kind": "token bucket", "rate": -1, "period": 1}')$$, true)),
           (error_of($$SELECT rl_calculate('{"kind": "token bucket", "rate": -1, "period": 1}', NULL, now())$$, true)),
           (error_of($$SELECT rl_token_bucket(-1, '1 ms')$$, true))) t (e);
SELECT rl_define('ce', '{"kind": "token bucket", "rate": -1, "period": 1}');
\echo :SQLSTATE
-- The example has the same kind if that is known, whatever else is wrong.
\a \t
SELECT v, error_of(format('SELECT rl_define(%L, %L)', 'ce', v), true) FROM unnest(ARRAY[
    '{}', '{"kind": "leaky bucket"}', '{"kind": "token bucket"}', '{"kind": "fixed window"}', '{"kind": "fixed window", "timezone": "UTC"}',
    '{"kind": "sliding window", "shards": 1}', '{"kind": "sliding log", "rate": 0.5}']) v;
SELECT error_of('SELECT rl_sliding_log(0.5, ''1 s'')', true);
SELECT error_of($$SELECT rl_limit_all('[{"name": "ce", "config": {"kind": "sliding window"}}]')$$, true);
\a \t
DROP FUNCTION refusal, tb, fw;
-- None is longer than sensible ones are, as it is stored or as text.
SELECT error_of($$SELECT rl_define('ce', jsonb_build_object('kind', repeat('x', 10000)))$$);
SELECT error_of($$SELECT rl_check('ce', config => '{"kind": "token bucket", "rate": 1e10000, "period": 1}')$$);
SELECT error_of($$SELECT rl_calculate(rl_sliding_log(1, '1 s'), jsonb_build_object('log', repeat('x', 1000000)), now())$$);
SELECT error_of($$SELECT rl_fixed_window(1, '1 day', timezone => repeat('x', 10001))$$);

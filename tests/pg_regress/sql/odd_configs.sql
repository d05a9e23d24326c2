-- Periods as text, dates from year 0 on, days that a zone skipped, and numbers at the end of a float's range.
SET timezone = 'UTC'; SET datestyle = 'ISO';
CREATE FUNCTION first_turn(config jsonb, at timestamptz DEFAULT '1970-01-01 00:00:00+00') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
BEGIN
    RETURN (SELECT coalesce(retry_at::text, 'never') FROM rl_calculate(config, jsonb_build_object('value', 0, 'ts', extract(epoch FROM at) * 1000), at));
EXCEPTION WHEN OTHERS THEN
    RETURN sqlstate || ': ' || sqlerrm;
END $$;
SELECT to_json(period) AS period, first_turn(jsonb_build_object('kind', 'fixed window', 'rate', 1, 'period', period)) AS fixed,
       first_turn(jsonb_build_object('kind', 'fixed window', 'rate', 1, 'period', period, 'timezone', 'UTC')) AS calendar
FROM unnest(ARRAY['1 day 00:01:00', '1 day, 1:2:3', '1 week 00:00:01.5', '1 day 00:61:00', '00:00:61', '1:2:3', '1:2', '1 hour 00:01:00', '0 days 00:01:00',
    '1 day 00:00:00', '2 years 00:00:00', '1 mon 00:00:00', '1 day -00:01:00', '+1 hour', '+PT1M', '-PT1M', 'PT1M ', '1 s ', ' 1 s', '1 second 1 minute',
    '1' || chr(8195) || 's', '1' || chr(160) || 's', '1' || chr(9) || 's', '1' || chr(11) || 's', '1500000 ns', '1 ms 1500 ns', '1 nanosecond', '1.5 hours', '1 hour ago']) period;
-- Years before the first are counted with a year 0.
SELECT start, at, first_turn(jsonb_build_object('kind', 'fixed window', 'rate', 1, 'period', period, 'timezone', 'Europe/Berlin', 'start', start), at) AS turn
FROM (VALUES ('0000-01-01', '5 months'), ('0000-12-31', '1 year'), ('0001-01-15', '1 month')) c (start, period),
     unnest(ARRAY[timestamptz '2027-02-17Z', '0003-05-05Z', '0001-06-30Z BC', '0002-03-01Z BC']) at;
-- Samoa had no 30th of December 2011, and Enderbury no 31st of December 1994.
SELECT zone, days, first_turn(jsonb_build_object('kind', 'fixed window', 'rate', 1, 'period', days || ' days', 'timezone', zone), at) AS turn
FROM (VALUES ('Pacific/Apia', timestamptz '2011-12-29 10:00:00+00'), ('Pacific/Apia', '2011-12-30 10:00:00+00'), ('Pacific/Enderbury', '1994-12-30 11:00:00+00')) d (zone, at),
     generate_series(1, 4) days;
SELECT left(number, 8) AS number, first_turn(format('{"kind": "token bucket", "rate": %s, "period": 1000}', number)::jsonb) LIKE '22023: %' AS rate,
       first_turn(format('{"kind": "token bucket", "rate": 1, "period": 1000, "capacity": %s}', number)::jsonb) AS capacity,
       first_turn(format('{"kind": "token bucket", "rate": 1, "period": 1000, "maxReserved": %s}', number)::jsonb) AS max_reserved
FROM unnest(ARRAY['1e-400', '4e-324', '2e-324', '-1e-400', '1e-310']) number;
-- One limit of a tiny rate keeps no other from being listed and pruned.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('odd/tiny', '{"kind": "token bucket", "rate": 5e-324, "period": 1e12}'), rl_define('odd/sliding', '{"kind": "sliding window", "rate": 1, "period": 1e12}'),
       rl_define('odd/other', rl_token_bucket(1, '1 minute'));
SELECT ok, remaining FROM rl_limit('odd/tiny', 'k', 1e-320);
SELECT ok FROM rl_limit('odd/sliding', 'k', 1e-320);
SELECT ok FROM rl_limit('odd/other', 'k');
SET ratelimit.clock = '2040-01-01 12:00:00+00';
SELECT name, remaining FROM rl_status() WHERE name LIKE 'odd/%' ORDER BY 1;
SELECT rl_prune() > 0 AS pruned;
SELECT name FROM rateLimits WHERE name LIKE 'odd/%' ORDER BY 1;
-- Nothing is read of a list or a lease that is too long.
SELECT ok FROM rl_limit_all((SELECT jsonb_agg(jsonb_build_object('name', 'odd/other', 'key', 'k' || n)) FROM generate_series(1, 10001) n));
SELECT rl_extend(repeat('x', 5000));

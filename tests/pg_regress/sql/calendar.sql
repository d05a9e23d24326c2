-- Calendar windows: with a timezone, a fixed window begins at the first instant of a local date.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-03-13 17:30:00+00';
SELECT rl_fixed_window(100, '1 day', timezone => 'America/New_York');
SELECT rl_fixed_window(100, '2 weeks', capacity => 150, timezone => 'UTC', start => '2027-01-01 12:00:00+00');
-- start is an instant here, and the date that it has in the zone.
SELECT rl_fixed_window(5, '1 year 6 months', timezone => 'Asia/Tokyo', start => '2026-12-31 15:00:00+00', max_reserved => 5);
SELECT rl_fixed_window(5, '1 month', timezone => 'America/New_York', start => '2026-12-31 15:00:00+00', shards => 1);
SELECT rl_fixed_window(5, '1 day', timezone => 'Asia/Tokyo', start => '4713-01-02 00:00:00+00 BC') ->> 'start' AS start;

-- A day of 23 hours.
SELECT rl_define('cal', rl_fixed_window(5, '1 day', timezone => 'America/New_York'));
SELECT * FROM rl_limit('cal', count => 4);
SELECT * FROM rl_limit('cal', count => 2);
SELECT value, ts, prior, log, added FROM rateLimits WHERE name = 'cal';
SET ratelimit.clock = '2027-03-14 04:59:59.999+00';
SELECT ok, retry_after FROM rl_limit('cal', count => 2);
SET ratelimit.clock = '2027-03-14 05:00:00+00';
SELECT ok, remaining, reset_at, reset_at - '2027-03-14 05:00:00+00' AS length FROM rl_limit('cal', count => 2);
SET ratelimit.clock = '2027-11-07 20:00:00+00';
SELECT ok, remaining, reset_at, reset_at - '2027-11-07 04:00:00+00' AS length FROM rl_limit('cal', count => 2);

-- What is not used rolls over up to the capacity, and a debt is repaid by whole windows.
SELECT rl_define('cal/month', rl_fixed_window(10, '1 month', capacity => 25, max_reserved => 20, timezone => 'Europe/Berlin', start => '2027-01-30 23:00:00+00'));
SET ratelimit.clock = '2027-02-10 12:00:00+00';
SELECT ok, remaining, reset_at FROM rl_limit('cal/month', count => 25);
SELECT ok, retry_at, remaining FROM rl_limit('cal/month', count => 12, reserve => true);
SELECT ok, retry_at, remaining FROM rl_limit('cal/month', count => 9, reserve => true);
SELECT ok, retry_at FROM rl_limit('cal/month', count => 25);
SET ratelimit.clock = '2027-03-30 21:59:59.999+00';
SELECT ok, remaining, reset_at FROM rl_check('cal/month', count => 0);
SET ratelimit.clock = '2027-03-30 22:00:00+00';
SELECT ok, remaining, reset_at FROM rl_check('cal/month', count => 0);
SET ratelimit.clock = '2027-07-30 22:00:00+00';
SELECT ok, remaining, reset_at FROM rl_limit('cal/month', count => 1);
-- What an earlier window gave ended with it.
SELECT remaining FROM rl_credit('cal/month', '', 1, taken_at => '2027-07-30 21:59:59+00');
SELECT remaining FROM rl_credit('cal/month', '', 1, taken_at => '2027-07-30 22:00:00+00');
-- A clock behind refills nothing; a row further ahead than a whole refill counts as none.
SET ratelimit.clock = '2027-06-15 00:00:00+00';
SELECT ok, remaining, reset_at FROM rl_limit('cal/month', count => 5);
SET ratelimit.clock = '2027-01-15 00:00:00+00';
SELECT ok, remaining, reset_at FROM rl_limit('cal/month', count => 1);

-- rl_calculate: the start of the window is in the state.
CREATE FUNCTION begun(config jsonb, at timestamptz) RETURNS timestamptz LANGUAGE sql
RETURN to_timestamp(((rl_calculate(config, NULL, at)).state ->> 'ts')::float8 / 1000);
-- Weeks from a Sunday; quarters.
SELECT at::date, begun('{"kind": "fixed window", "rate": 1, "period": "P1W", "timezone": "Etc/UTC", "start": "2027-01-03"}', at)
FROM unnest(ARRAY['2026-12-31', '2027-01-02', '2027-01-03', '2027-01-09']::timestamptz[]) at;
SELECT at::date, begun('{"kind": "fixed window", "rate": 1, "period": "3 months", "timezone": "Etc/UTC"}', at)
FROM unnest(ARRAY['2027-03-31', '2027-04-01', '1969-12-31']::timestamptz[]) at;
-- PostgreSQL has the same days, weeks, months and years, where its zones know no second midnight.
SELECT unit, count(*), count(*) FILTER (WHERE begun <> date_trunc(unit, at, zone)) AS different
FROM unnest(ARRAY['America/New_York', 'America/Los_Angeles', 'America/Sao_Paulo', 'America/Santiago', 'Europe/London',
        'Europe/Berlin', 'Europe/Lisbon', 'Europe/Moscow', 'Europe/Istanbul', 'Africa/Casablanca', 'Africa/Johannesburg',
        'Asia/Beirut', 'Asia/Dubai', 'Asia/Kolkata', 'Asia/Kathmandu', 'Asia/Shanghai', 'Asia/Tokyo', 'Asia/Tehran',
        'Australia/Sydney', 'Australia/Lord_Howe', 'Pacific/Apia', 'Pacific/Auckland', 'Pacific/Chatham', 'Antarctica/Troll']) zone,
    (VALUES ('day', '1 day'), ('week', '1 week'), ('month', '1 month'), ('year', '1 year')) v (unit, period),
    generate_series(timestamptz '2000-01-01 00:30:00+00', '2022-12-31 00:00:00+00', interval '307 hours') at,
    LATERAL (SELECT jsonb_build_object('kind', 'fixed window', 'rate', 1, 'period', period, 'timezone', zone) AS config) c,
    LATERAL begun(config, at) begun
GROUP BY unit ORDER BY unit;

-- The same under every setting of the session; the rate differs, so that no config is remembered.
CREATE TEMP TABLE seen (setting text, config jsonb, state text, reset float8);
CREATE PROCEDURE see(name text, value text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config(name, value, true);
    INSERT INTO seen SELECT name || ' ' || value, config - 'rate', state::jsonb ->> 'ts', extract(epoch FROM reset_at)
    FROM rl_fixed_window((SELECT 2 + count(*) FROM seen), interval '1 month', timezone => 'America/New_York', start => to_timestamp(1798776000)) config,
        LATERAL rl_calculate(config, NULL, to_timestamp(1809000000)),
        LATERAL rl_check('cal/settings', config => config);
END
$$;
CALL see('timezone', 'UTC'); CALL see('timezone', 'Asia/Tokyo'); CALL see('timezone', 'America/New_York'); CALL see('timezone', '<+05>-5');
CALL see('datestyle', 'German, DMY'); CALL see('datestyle', 'SQL, MDY'); CALL see('datestyle', 'Postgres, YMD');
CALL see('intervalstyle', 'iso_8601'); CALL see('intervalstyle', 'sql_standard'); CALL see('intervalstyle', 'postgres_verbose');
CALL see('lc_time', 'C'); CALL see('timezone_abbreviations', 'India');
SELECT config, state, reset, count(*) FROM seen GROUP BY config, state, reset;

-- A definition that changes over a live row: the window that has begun lasts a period at least.
SET ratelimit.clock = '2027-06-15 22:30:00+00';
SELECT rl_define('cal/live', rl_fixed_window(1, '1 day', timezone => 'Europe/Berlin'));
SELECT ok, reset_at FROM rl_limit('cal/live');
SELECT rl_define('cal/live', rl_fixed_window(1, '1 day', timezone => 'America/New_York'));
SELECT ok, retry_at, reset_at FROM rl_limit('cal/live');
SELECT rl_define('cal/live', rl_fixed_window(1, '1 day', timezone => 'Asia/Tokyo'));
SELECT ok, retry_at, reset_at FROM rl_limit('cal/live');
SELECT rl_define('cal/live', rl_fixed_window(1, '1 month', timezone => 'Europe/Berlin'));
SELECT ok, retry_at, reset_at FROM rl_limit('cal/live');
SELECT rl_define('cal/live', rl_fixed_window(1, '1 hour', start => '2027-01-01 00:00:00+00'));
SELECT ok, retry_at, reset_at FROM rl_limit('cal/live');
SELECT rl_define('cal/live', rl_fixed_window(1, '1 day', timezone => 'America/New_York'));
SELECT rl_reset('cal/live');
SELECT ok, retry_at, reset_at FROM rl_limit('cal/live');
-- To and from a token bucket, whose time is that of the last take.
SELECT rl_define('cal/kinds', rl_token_bucket(10, '1 day'));
SELECT ok, remaining FROM rl_limit('cal/kinds', count => 10);
SELECT rl_define('cal/kinds', rl_fixed_window(10, '1 day', timezone => 'UTC'));
SELECT ok, retry_at, remaining, reset_at FROM rl_limit('cal/kinds');

-- Years end with 9999: no window begins after that, and nothing fails.
SELECT at, ok, retry_at, remaining, state
FROM unnest(ARRAY['4713-01-02 00:00:00+00 BC', '0001-06-01 00:00:00+00', '9999-12-30 12:00:00+00', '9999-12-31 12:00:00+00', '294276-12-31 23:59:59+00']::timestamptz[]) at,
    LATERAL rl_calculate(rl_fixed_window(1, '1 day', timezone => 'UTC'), '{"value": 0, "ts": -8640000000000000}', at) calculated;
SELECT at, ok, retry_at, remaining, state
FROM unnest(ARRAY['9999-12-30 12:00:00+00', '9999-12-31 12:00:00+00', '294276-12-31 23:59:59+00']::timestamptz[]) at,
    LATERAL rl_calculate(rl_fixed_window(1, '1 month', timezone => 'UTC'), '{"value": 0, "ts": 253399622400000}', at) calculated;

\a \t
\echo timezone, with it period, and with it start
CREATE FUNCTION fw(fields text) RETURNS text LANGUAGE sql RETURN
    error_of(format('SELECT rl_calculate(%L, NULL, %L)', '{"kind": "fixed window", "rate": 1, ' || fields || '}', '2027-01-01 12:00:00+00'));
SELECT v, fw('"period": "1 day", "timezone": ' || v) FROM unnest(ARRAY['null', '1', 'true', '[]', '{}', '""', '" "', '"Berlin"', '"europe/berlin"', '"Europe/Berlin "', '"CEST"', '"+01:00"', '"UTC+1"', '"<+01>-1"', '"../Europe/Berlin"', '"Etc/Unknown"', '"utc"', '"posix/UTC"', '"EST5EDT"', '"Etc/GMT+5"', '"UTC"', '"America/Argentina/Buenos_Aires"']) v;
SELECT v, fw('"timezone": "UTC", "period": ' || v) FROM unnest(ARRAY['null', '86400000', '0', 'true', '""', '"day"', '"0 days"', '"-1 day"', '"1 day ago"', '"1.5 days"', '"0.5 weeks"', '"24 hours"', '"1 day 1 hour"', '"1 day 1 ms"', '"PT24H"', '"1 month 1 day"', '"P1M1D"', '"1 month -1 day"', '"36526 days"', '"1201 months"', '"101 years"', '"99999999999999 days"', '"1 minute"', '"00:01:00"', '"1m"', '"1 day"', '"P1D"', '"3 days"', '"2 weeks"', '"1 week 3 days"', '"36525 days"', '"1 mo"', '"P1Y6M"', '"100 years"']) v;
SELECT fw('"timezone": "UTC"');
SELECT v, fw('"period": "1 month", "timezone": "UTC", "start": ' || v) FROM unnest(ARRAY['null', '0', '1798761600000', 'true', '""', '"first request"', '"2027-01-01T00:00:00Z"', '"2027-01-01 00:00:00"', '"2027-01-01Z"', '"20270101"', '"2027-1-1"', '"2027-02-29"', '"2027-13-01"', '"01/31/2027"', '"today"', '"10000-01-01"', '"2027-W01-1"', '"2027-01-31"', '"2028-02-29"', '"0001-01-01"', '"9999-12-31"']) v;
\echo months without a timezone, and a timezone in another kind
SELECT fw('"period": "1 month"'), fw('"period": "P1Y"');
SELECT fw('"period": "1 day", "timezone": "UTC", "shards": 2'), fw('"period": "1 day", "timezone": "UTC", "shards": 0');
SELECT error_of($$SELECT rl_define('cal/bad', '{"kind": "token bucket", "rate": 1, "period": "1 day", "timezone": "UTC"}')$$, true);
\echo the builder
SELECT call, error_of('SELECT rl_fixed_window(1, ' || call || ')') FROM unnest(ARRAY[
    '''1 day'', timezone => ''Nowhere''', '''1 day'', timezone => ''''', '''24:00'', timezone => ''UTC''', '''1 day 00:00:01'', timezone => ''UTC''',
    '''1 month 1 day'', timezone => ''UTC''', '''-1 month'', timezone => ''UTC''', '''1 month -1 day'', timezone => ''UTC''', '''0'', timezone => ''UTC''',
    '''101 years'', timezone => ''UTC''', '''100000 days'', timezone => ''UTC''', '''1 month''', '''1 year 2 days 00:00:00.5''',
    '''1 day'', timezone => ''UTC'', first_request => true', '''1 day'', timezone => ''UTC'', first_request => false',
    '''1 day'', timezone => ''UTC'', start => ''infinity''', '''1 day'', timezone => ''UTC'', start => ''10000-01-01Z''',
    '''1 day'', timezone => ''UTC'', start => ''2027-01-01Z'', first_request => true', '''1 day'', timezone => ''Nowhere'', start => ''2027-01-01Z''',
    'NULL, timezone => ''UTC''', '''1 day'', timezone => NULL']) call;
\a \t
-- Immutable by right.
CREATE TEMP TABLE plan (zone text, config jsonb GENERATED ALWAYS AS (rl_fixed_window(1, '1 day', timezone => zone)) STORED);
INSERT INTO plan VALUES ('Europe/Berlin');
CREATE INDEX ON plan (rl_fixed_window(1, '1 month', timezone => zone));
SELECT * FROM plan;
DROP FUNCTION begun, fw;
DROP PROCEDURE see;

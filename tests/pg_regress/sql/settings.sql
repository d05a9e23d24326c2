-- The same results under every TimeZone, DateStyle and IntervalStyle, and whatever else changes how
-- values are read and shown.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- What the functions make of text and times, in a form that no setting changes.
CREATE FUNCTION results() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rl_define('se', '{"kind": "fixed window", "rate": 5, "period": "PT1H30M", "start": "2027-03-28T02:30:00+01:00"}');
    RETURN concat_ws(E'\n',
        (SELECT string_agg(config::text, E'\n') FROM rl_config WHERE name = 'se'),
        rl_fixed_window(1.5, interval '1 day 02:03:04.5', capacity => 1e15, start => timestamptz '2027-03-28 02:30:00+01'),
        rl_token_bucket(0.1, interval 'P1DT1H', max_reserved => 1e-7),
        (SELECT concat_ws(' ', ok, retry_after, remaining, capacity, extract(epoch FROM reset_at)) FROM rl_check('se')),
        (SELECT concat_ws(' ', ok, retry_after, extract(epoch FROM retry_at), remaining, state)
         FROM rl_calculate('{"kind": "token bucket", "rate": 3, "period": "1 day 1 hour"}', '{"value": 0.25, "ts": 1798804800000.5}',
                           timestamptz '2027-01-01 12:00:00.123456+00', 2)),
        (SELECT string_agg(concat_ws(' ', p, ok, retry_after, extract(epoch FROM retry_at)), E'\n')
         FROM unnest(ARRAY['1 day', '1 week', 'P1D', '1 minute', '00:01:00', '1h30m']) p,
              LATERAL rl_calculate(jsonb_build_object('kind', 'sliding log', 'rate', 1, 'period', p),
                                   '{"value": 1, "ts": 1798804800000, "log": [1798804800000]}', timestamptz '2027-01-01 12:00:00+00')),
        (SELECT string_agg(concat_ws(' ', s, extract(epoch FROM retry_at)), E'\n')
         FROM unnest(ARRAY['2027-01-01T00:00:00Z', '2027-03-28T02:30:00+01:00', '1970-01-01 00:00:00-08']) s,
              LATERAL rl_calculate(jsonb_build_object('kind', 'fixed window', 'rate', 1, 'period', 1e9, 'start', s), NULL,
                                   timestamptz '2027-01-01 12:00:00+00', 2, true)),
        -- What only some settings would read.
        (SELECT string_agg(error_of(format('SELECT rl_calculate(%L, NULL, %L)',
                jsonb_build_object('kind', 'fixed window', 'rate', 1, 'period', 1, 'start', s), 'epoch')), E'\n')
         FROM unnest(ARRAY['01/02/2027 00:00:00Z', '2027-01-01 00:00:00', '2027-01-01 00:00:00 PST', 'epoch']) s),
        error_of($q$SELECT rl_calculate('{"kind": "token bucket", "rate": 1, "period": "-1 00:00:01"}', NULL, 'epoch')$q$),
        error_of($q$SELECT rl_limit('se', count => 1e15, throws => true)$q$, true));
END
$$;
CREATE TEMP TABLE seen (settings text, results text);
DO $$
DECLARE
    zone text;
    style text;
    spans text;
BEGIN
    FOREACH zone IN ARRAY ARRAY['UTC', 'America/New_York', 'Europe/Berlin', 'Asia/Kathmandu', 'Pacific/Apia', 'PST8PDT', '<+14>-14'] LOOP
        FOREACH style IN ARRAY ARRAY['ISO, MDY', 'ISO, DMY', 'SQL, MDY', 'SQL, DMY', 'Postgres, YMD', 'German'] LOOP
            FOREACH spans IN ARRAY ARRAY['postgres', 'postgres_verbose', 'sql_standard', 'iso_8601'] LOOP
                PERFORM set_config('TimeZone', zone, true), set_config('DateStyle', style, true), set_config('IntervalStyle', spans, true);
                INSERT INTO seen VALUES (concat_ws(' ', zone, style, spans), results());
            END LOOP;
        END LOOP;
    END LOOP;
    -- Back to one zone, and the others.
    PERFORM set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true), set_config('IntervalStyle', 'postgres', true);
    PERFORM set_config('standard_conforming_strings', 'on', true), set_config('escape_string_warning', 'off', true);
    INSERT INTO seen VALUES ('plain', results());
    PERFORM set_config('bytea_output', 'escape', true), set_config('xmlbinary', 'hex', true),
            set_config('backslash_quote', 'on', true), set_config('array_nulls', 'off', true),
            set_config('quote_all_identifiers', 'on', true), set_config('timezone_abbreviations', 'India', true),
            set_config('search_path', 'pg_catalog, public', true), set_config('enable_indexscan', 'off', true),
            set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), set_config('row_security', 'off', true);
    INSERT INTO seen VALUES ('others', results());
END
$$;
SELECT count(*) AS settings, count(DISTINCT results) AS results FROM seen;
\a \t
SELECT results FROM seen LIMIT 1;
\a \t
DROP FUNCTION results;

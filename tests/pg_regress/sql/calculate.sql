-- rl_calculate: the algorithm with the clock as an argument, exact to the microsecond; the state
-- goes in and comes out; IMMUTABLE, touches no table.
SET timezone = 'UTC'; SET datestyle = 'ISO';
-- NULL is a new limit. The state that comes out goes in again.
SELECT * FROM rl_calculate(rl_token_bucket(10, '1 minute'), NULL, '2027-01-01 12:00:00+00', 4);
SELECT * FROM rl_calculate(rl_token_bucket(10, '1 minute'), '{"value": 6, "ts": 1798804800000}', '2027-01-01 12:00:06+00', 7);
SELECT * FROM rl_calculate(rl_token_bucket(10, '1 minute'), '{"value": 6, "ts": 1798804800000}', '2027-01-01 12:00:06+00', 7.5);
-- Denied, or a count of zero: the state stays as it was given.
SELECT * FROM rl_calculate(rl_token_bucket(10, '1 minute'), '{"ts": 1798804800000.0, "value": 6.00}', '2027-01-01 12:00:06+00', 0);
SELECT * FROM rl_calculate(rl_token_bucket(10, '1 minute'), NULL, '2027-01-01 12:00:06+00', 0);
SELECT * FROM rl_calculate(rl_token_bucket(10, '1 minute'), NULL, '2027-01-01 12:00:06+00', 11);
-- count and reserve.
SELECT * FROM rl_calculate(rl_token_bucket(10, '1 minute', max_reserved => 5), '{"value": 1, "ts": 1798804800000}', '2027-01-01 12:00:00+00', 3, true);
SELECT * FROM rl_calculate(rl_token_bucket(10, '1 minute', max_reserved => 5), '{"value": 1, "ts": 1798804800000}', '2027-01-01 12:00:00+00', count => 7, reserve => true);
SELECT ok, state FROM rl_calculate(rl_token_bucket(10, '1 minute'), NULL, '2027-01-01 12:00:00+00');
-- To the microsecond: a third of a second is 333334 of them.
SELECT retry_after, retry_at FROM rl_calculate(rl_token_bucket(3, '1 second'), '{"value": 0, "ts": 1798804800000}', '2027-01-01 12:00:00+00');
SELECT at, ok FROM (VALUES (timestamptz '2027-01-01 12:00:00.333332+00'), ('2027-01-01 12:00:00.333334+00')) v (at),
    LATERAL rl_calculate(rl_token_bucket(3, '1 second'), '{"value": 0, "ts": 1798804800000}', at);
SELECT state FROM rl_calculate(rl_token_bucket(1, '1 second'), NULL, '2027-01-01 12:00:00.000001+00');
-- Fixed window: a new one without a start begins at the time given, one with a start in its phase.
SELECT * FROM rl_calculate(rl_fixed_window(5, '1 hour'), NULL, '2027-01-01 12:20:00+00', 2);
SELECT * FROM rl_calculate(rl_fixed_window(5, '1 hour', start => '2027-01-01 00:00:00+00'), NULL, '2027-01-01 12:20:00+00', 2);
SELECT * FROM rl_calculate(rl_fixed_window(5, '1 hour'), '{"value": 0, "ts": 1798804800000}', '2027-01-01 12:20:00+00');
SELECT * FROM rl_calculate(rl_fixed_window(5, '1 hour'), '{"value": -7, "ts": 1798804800000}', '2027-01-01 14:20:00+00');
-- Sliding log.
SELECT * FROM rl_calculate(rl_sliding_log(3, '1 minute'), NULL, '2027-01-01 12:00:00+00', 2);
SELECT * FROM rl_calculate(rl_sliding_log(3, '1 minute'), '{"value": 2, "ts": 1798804800000, "log": [1798804800000, 1798804800000]}', '2027-01-01 12:00:59.999999+00', 2);
SELECT * FROM rl_calculate(rl_sliding_log(3, '1 minute'), '{"value": 2, "ts": 1798804800000, "log": [1798804800000, 1798804830000]}', '2027-01-01 12:01:00+00', 2);
-- Far away in time.
SELECT ok, retry_at FROM rl_calculate(rl_token_bucket(1, '1 day'), '{"value": 0, "ts": -210866803200000}', '4713-01-02 00:00:00+00 BC');
SELECT ok, retry_at FROM rl_calculate(rl_token_bucket(1, '1 day'), '{"value": 0, "ts": 8640000000000000}', '294276-12-31 23:59:59+00');

\a \t
SELECT call, error_of('SELECT rl_calculate(' || call || ')') FROM unnest(ARRAY[
    'NULL, NULL, ''2027-01-01Z''', '''{}'', NULL, ''2027-01-01Z''',
    'rl_sliding_log(1, ''1 s''), NULL, NULL', 'rl_sliding_log(1, ''1 s''), NULL, ''2027-01-01Z'', NULL',
    'rl_sliding_log(1, ''1 s''), NULL, ''2027-01-01Z'', 1, NULL',
    'rl_sliding_log(1, ''1 s''), NULL, ''infinity''', 'rl_sliding_log(1, ''1 s''), NULL, ''-infinity''',
    'rl_sliding_log(1, ''1 s''), NULL, ''2027-01-01Z'', 0.5', 'rl_token_bucket(1, ''1 s''), NULL, ''2027-01-01Z'', -1',
    'rl_token_bucket(1, ''1 s''), NULL, ''2027-01-01Z'', ''NaN''', 'rl_token_bucket(1, ''1 s''), NULL, ''2027-01-01Z'', ''Infinity''']) call;
SELECT kind, state, error_of(format('SELECT rl_calculate(%L, %L, %L)', '{"kind": "' || kind || '", "rate": 1, "period": 1000}', state, '2027-01-01Z'))
FROM (VALUES ('token bucket', 'null'), ('token bucket', '{}'), ('token bucket', '[]'), ('token bucket', '1'),
    ('token bucket', '{"value": 1}'), ('token bucket', '{"ts": 0}'), ('token bucket', '{"value": "1", "ts": 0}'),
    ('token bucket', '{"value": null, "ts": 0}'), ('token bucket', '{"value": 1e400, "ts": 0}'),
    ('token bucket', '{"value": 1, "ts": 1e16}'), ('token bucket', '{"value": 1, "ts": "2027-01-01Z"}'),
    ('token bucket', '{"value": 1, "ts": 0, "prior": 1}'), ('fixed window', '{"value": 1, "ts": 0, "log": []}'),
    ('fixed window', '{"value": 1, "ts": 0, "shards": 1}'),
    ('sliding window', '{"value": 1, "ts": 0}'), ('sliding window', '{"value": 1, "ts": 0, "prior": "1"}'),
    ('sliding log', '{"value": 1, "ts": 0}'), ('sliding log', '{"value": 1, "ts": 0, "log": 1}'),
    ('sliding log', '{"value": 1, "ts": 0, "log": [2, 1]}'), ('sliding log', '{"value": 1, "ts": 0, "log": ["1"]}'),
    ('sliding log', '{"value": 1, "ts": 0, "log": [null]}')) v (kind, state);
\a \t
-- Immutable by right.
CREATE TEMP TABLE preview (at timestamptz, ok boolean GENERATED ALWAYS AS ((rl_calculate(rl_token_bucket(1, '1 minute'), '{"value": 0, "ts": 1798804800000}', at)).ok) STORED);
INSERT INTO preview VALUES ('2027-01-01 12:00:59+00'), ('2027-01-01 12:01:00+00');
SELECT * FROM preview;
-- It takes every state that it gives, up to the end of time.
SELECT at, config ->> 'kind' AS kind, again.ok, again.remaining, again.state
FROM unnest(ARRAY['4713-01-02 00:00:00+00 BC', '275761-01-01 00:00:00+00', '294276-12-31 23:59:59.999999+00']::timestamptz[]) at,
     unnest(ARRAY[rl_token_bucket(5, '1 minute'), rl_fixed_window(5, '1 minute'), rl_sliding_window(5, '1 minute'),
                  rl_sliding_log(5, '1 minute')]) config,
     LATERAL rl_calculate(config, NULL, at, 2) once, LATERAL rl_calculate(config, once.state, at, 2) again;
SELECT error_of(format('SELECT rl_calculate(rl_token_bucket(5, ''1 minute''), ''{"value": 1, "ts": %s}'', ''2027-01-01Z'')', ts))
FROM unnest(ARRAY['9223372036854776000', '-9223372036854778']) ts;

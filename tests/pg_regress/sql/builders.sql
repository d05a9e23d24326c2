-- The builders make the config from named, typed arguments, and refuse what a config may not be.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_token_bucket(10, '1 minute');
SELECT rl_token_bucket(0.5, '36:00', capacity => 0, max_reserved => 1e15, shards => 1);
SELECT rl_fixed_window(100, '1 day', capacity => 150.25, max_reserved => 0, start => '2027-01-01 00:00:00+00');
SELECT rl_fixed_window(rate => 1e15, period => '1 ms', first_request => true);
SELECT rl_fixed_window(1, '1 s', first_request => false);
SELECT rl_sliding_window(1e-9, '1 week');
SELECT rl_sliding_log(10000, '1 day 01:00:00.5');
-- Microseconds are fractions of the milliseconds; a day has 24 hours.
SELECT rl_token_bucket(1, interval '1001 microseconds') ->> 'period' AS period,
       rl_token_bucket(1, interval '1 day') = rl_token_bucket(1, interval '24 hours') AS day,
       rl_token_bucket(1, interval '2 days -1 hours') ->> 'period' AS mixed,
       rl_fixed_window(1, '1 s', start => '1969-12-31 23:59:59.9995+00') ->> 'start' AS start;
-- What they make is what the limiter takes.
SELECT ok FROM rl_check('bd', config => rl_token_bucket(0.5, '36:00', capacity => 0, max_reserved => 1e15, shards => 1));
-- A bare NULL for an optional argument is as if it were left out.
SELECT rl_token_bucket(1, '1 s', NULL, NULL, NULL) = rl_token_bucket(1, '1 s') AS same,
       rl_fixed_window(1, '1 s', NULL, NULL, NULL, NULL, NULL, NULL) = rl_fixed_window(1, '1 s') AS same;

\a \t
SELECT call, error_of('SELECT ' || call) FROM (VALUES
    ('rl_token_bucket(NULL, ''1 s'')'), ('rl_token_bucket(1, NULL)'),
    ('rl_fixed_window(NULL, ''1 s'')'), ('rl_sliding_window(1, NULL)'), ('rl_sliding_log(NULL, ''1 s'')'),
    ('rl_token_bucket(0, ''1 s'')'), ('rl_token_bucket(-1, ''1 s'')'), ('rl_token_bucket(''NaN'', ''1 s'')'),
    ('rl_token_bucket(''Infinity'', ''1 s'')'), ('rl_token_bucket(''-Infinity'', ''1 s'')'),
    ('rl_token_bucket(1.1e15, ''1 s'')'), ('rl_token_bucket(1e300, ''1 s'')'), ('rl_token_bucket(5e-324, ''1 s'')'),
    ('rl_token_bucket(1, ''0'')'), ('rl_token_bucket(1, ''-1 s'')'), ('rl_token_bucket(1, ''0.9 ms'')'),
    ('rl_token_bucket(1, ''1 month'')'), ('rl_token_bucket(1, ''1 year 1 day'')'), ('rl_token_bucket(1, ''40000 years'')'),
    ('rl_token_bucket(1, 2147483647 * interval ''1 day'')'),
    ('rl_token_bucket(1, ''1 s'', capacity => -1)'), ('rl_token_bucket(1, ''1 s'', capacity => ''NaN'')'),
    ('rl_token_bucket(1, ''1 s'', capacity => ''Infinity'')'), ('rl_token_bucket(1, ''1 s'', capacity => 1.1e15)'),
    ('rl_token_bucket(1, ''1 s'', max_reserved => -1)'), ('rl_token_bucket(1, ''1 s'', max_reserved => ''Infinity'')'),
    ('rl_token_bucket(1, ''1 s'', shards => 0)'), ('rl_token_bucket(1, ''1 s'', shards => -1)'),
    ('rl_token_bucket(1, ''1 s'', shards => 1025)'), ('rl_token_bucket(1, ''1 s'', shards => 2)'),
    ('rl_fixed_window(1, ''1 s'', start => ''infinity'')'), ('rl_fixed_window(1, ''1 s'', start => ''-infinity'')'),
    ('rl_fixed_window(1, ''1 s'', start => ''2027-01-01Z'', first_request => true)'),
    ('rl_sliding_log(1.5, ''1 s'')'), ('rl_sliding_log(10001, ''1 s'')'), ('rl_sliding_log(0, ''1 s'')')) v (call);
\a \t
-- Immutable by right: a generated column and an index can use them.
CREATE TEMP TABLE plan (rate float8, config jsonb GENERATED ALWAYS AS (rl_token_bucket(rate, '1 minute')) STORED);
INSERT INTO plan VALUES (5), (2.5);
CREATE INDEX ON plan (rl_sliding_window(rate, '1 minute'));
SELECT * FROM plan;

-- rl_headers: an outcome as HTTP headers, in three styles. Tokens are rounded down, waits and times
-- up, a name is quoted or percent-encoded, and every value is text.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('he', rl_token_bucket(10, '1 minute', max_reserved => 10));
\a \t
-- Full: nothing to wait for.
SELECT rl_headers('he', r) FROM rl_check('he', 'a') r;
SELECT rl_headers('he', r, 'github') FROM rl_check('he', 'a') r;
SELECT rl_headers('he', r, 'postgrest') FROM rl_check('he', 'a') r;
-- Taken, with a fraction left.
SELECT rl_headers('he', r) FROM rl_limit('he', 'a', count => 2.5) r;
SELECT rl_headers('he', r, 'github') FROM rl_check('he', 'a') r;
-- Denied: Retry-After. The reset is not later than it, as the draft wants, though full again only
-- in 15 seconds.
SELECT ok, retry_after, remaining, reset_at FROM rl_limit('he', 'a', count => 8.2);
SELECT rl_headers('he', r) FROM rl_limit('he', 'a', count => 8.2) r;
SELECT rl_headers('he', r, style => 'github') FROM rl_limit('he', 'a', count => 8.2) r;
SELECT rl_headers('he', r, 'postgrest') FROM rl_limit('he', 'a', count => 8.2) r;
-- It can never succeed: no Retry-After.
SELECT rl_headers('he', r), rl_headers('he', r, 'github') FROM rl_limit('he', 'a', count => 11) r;
-- Reserved: the wait is for the work, not for another call; a debt leaves nothing.
SELECT ok, retry_after, remaining FROM rl_limit('he', 'a', count => 12, reserve => true);
SELECT ok, retry_after, rl_headers('he', r), rl_headers('he', r, 'github') FROM rl_limit('he', 'a', count => 1, reserve => true) r;
SELECT rl_headers('he', r) FROM rl_limit('he', 'a') r;
-- The time of the outcome counts, if it has one, or else the limiter's clock.
CREATE TEMP TABLE denied AS SELECT r FROM rl_limit('he', 'a', count => 0) r;
CREATE TEMP TABLE taken AS SELECT r FROM rl_limit('he', 'b', count => 6) r;
SET ratelimit.clock = '2027-01-01 12:00:30.001+00';
SELECT rl_headers('he', r) FROM denied;
SELECT rl_headers('he', r) FROM taken;
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT rl_headers('he', r) FROM taken;
-- Between two milliseconds, too, a minute is a minute.
SET ratelimit.clock = '2027-01-01 12:00:00.0004+00';
SELECT rl_headers('he', r) FROM rl_limit('he', 'ms', count => 10) r;
SELECT rl_headers('he', r) FROM rl_limit('he', 'ms', count => 10) r;
SET ratelimit.clock = '2027-01-01 12:00:00+00';

-- All four kinds; rates below one, periods with a fraction, the largest numbers.
SELECT rl_headers('he/kind', r, config => c), rl_headers('he/kind', r, 'github', c)
FROM unnest(ARRAY[rl_token_bucket(100, '1 hour', capacity => 20), rl_fixed_window(5, '1 day', start => '2027-01-01Z'),
                  rl_sliding_window(7, '1 minute'), rl_sliding_log(3, '90 seconds')]) WITH ORDINALITY c (c, n),
     LATERAL rl_limit('he/kind' || n, config => c) r;
SELECT rl_headers('he/number', r, config => c), rl_headers('he/number', r, 'github', c)
FROM unnest(ARRAY[rl_token_bucket(0.5, '1 minute', capacity => 3.7), rl_sliding_window(2.9, '1.5 seconds'),
                  rl_token_bucket(0.3, '1 minute', capacity => 0), rl_token_bucket(1e15, interval '1 ms'),
                  jsonb '{"kind": "token bucket", "rate": 1e-300, "period": 1e15, "capacity": 1}']) WITH ORDINALITY c (c, n),
     LATERAL rl_limit('he/number' || n, config => c) r;
-- A period that is no whole number of seconds is rounded up, and what comes in meanwhile down.
SELECT rl_headers('he/period', r, config => c) ->> 'RateLimit-Policy'
FROM unnest(ARRAY[rl_token_bucket(100, '100 ms'), rl_sliding_log(1, '300 ms'), rl_fixed_window(5, '1.5 seconds'),
                  rl_token_bucket(0.01, '100 ms')]) WITH ORDINALITY c (c, n),
     LATERAL rl_check('he/period' || n, config => c) r;

-- Whatever the name is: quotes, backslashes, line ends, percent signs, letters beyond ASCII, spaces.
SELECT jsonb_pretty(jsonb_build_array(rl_headers(name, r, config => c), rl_headers(name, r, 'github', c)))
FROM unnest(ARRAY[E'say "hi" \\', E'x\r\nSet-Cookie: a=b', '100%22', 'café – ☕', E' \t;q=9,\x7f ']) name,
     LATERAL (SELECT rl_sliding_log(1, '1 day')) config (c), LATERAL rl_check(name, config => c) r;
SELECT length(header ->> 'RateLimit') FROM rl_check(repeat('☕', 66), config => rl_sliding_log(1, '1 day')) r,
     LATERAL rl_headers(repeat('☕', 66), r, config => rl_sliding_log(1, '1 day')) header;

-- The definition is the name's own; that of a key has to be brought. The outcome has the key's.
SELECT rl_define('he', rl_token_bucket(500, '1 minute'), 'vip');
SELECT rl_headers('he', r), rl_headers('he', r, 'github'), rl_headers('he', r, config => rl_token_bucket(500, '1 minute'))
FROM rl_limit('he', 'vip') r;
SELECT rl_define('he/key', rl_token_bucket(5, '1 minute'), 'vip');
SELECT rl_headers('he/key', r) FROM rl_limit('he/key', 'vip') r;
-- A new definition counts at once, at every isolation level.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT rl_headers('he', r) ->> 'RateLimit-Policy' FROM rl_check('he') r;
SELECT rl_define('he', rl_token_bucket(20, '1 minute'));
SELECT rl_headers('he', r) ->> 'RateLimit-Policy' FROM rl_check('he') r;
ROLLBACK;
SELECT rl_headers('he', r) ->> 'RateLimit-Policy' FROM rl_check('he') r;

-- Bad input.
SELECT call, error_of(call, true) FROM unnest(ARRAY[
    'SELECT rl_headers(NULL, r) FROM rl_check(''he'') r', 'SELECT rl_headers(''he'', NULL)',
    'SELECT rl_headers(''he'', r, NULL) FROM rl_check(''he'') r',
    'SELECT rl_headers(''he'', r, ''IETF'') FROM rl_check(''he'') r', 'SELECT rl_headers(''he'', r, ''x'' || repeat(''y'', 99)) FROM rl_check(''he'') r',
    'SELECT rl_headers('''', r) FROM rl_check(''he'') r', 'SELECT rl_headers(repeat(''x'', 201), r) FROM rl_check(''he'') r',
    'SELECT rl_headers(''he/undefined'', r) FROM rl_check(''he'') r', 'SELECT rl_headers(''he/undefined'', r, ''github'') FROM rl_check(''he'') r',
    'SELECT rl_headers(''he'', r, config => ''{"kind": "bucket"}'') FROM rl_check(''he'') r', 'SELECT rl_headers(''he'', r, config => ''null'') FROM rl_check(''he'') r']) call;
-- An outcome made by hand: what is missing or makes no sense is refused, what is not needed left out.
SELECT result, error_of(format('SELECT rl_headers(''he'', %L)', result)) FROM unnest(ARRAY[
    '(,,,,,)', '(,,,1,1,)', '(t,,,,1,)', '(t,,,1,,)', '(t,,,NaN,1,)', '(t,,,Infinity,1,)', '(t,,,-Infinity,1,)',
    '(t,,,1,NaN,)', '(t,,,1,Infinity,)', '(t,,,1,-1,)', '(t,,,1,1e16,)', '(f,NaN,,1,1,)', '(f,-1,,1,1,)', '(f,Infinity,,1,1,)',
    '(f,1e14,,1,1,)', '(f,,infinity,1,1,)', '(t,,,1,1,-infinity)']) result;
SELECT result, rl_headers('he', result::rl_result), rl_headers('he', result::rl_result, 'github') FROM unnest(ARRAY[
    '(t,,,1,1,)', '(f,,,0,0,)', '(f,0,,0,1,)', '(f,,2027-01-01Z,0,1,2027-01-01Z)', '(f,5,,0,1,2027-01-01 13:00Z)',
    '(f,1e13,4713-01-01Z BC,-1e300,1e15,294276-12-31Z)', '(f,0.001,294276-12-31Z,1e300,1,4713-01-01Z BC)']) result;
-- The outcome as a domain, as a stored row, as a variable, and of a row without a match.
CREATE DOMAIN outcome AS rl_result CHECK ((VALUE).ok IS NOT NULL);
SELECT rl_headers('he', r::outcome) FROM rl_check('he') r;
CREATE TEMP TABLE outcomes (filler text, r rl_result);
INSERT INTO outcomes SELECT repeat('x', 3), r FROM rl_check('he') r;
SELECT rl_headers('he', r) FROM outcomes;
DO $$
DECLARE
    outcome rl_result := rl_limit('he', 'variable', count => 4);
BEGIN
    outcome.ok := false;
    RAISE NOTICE '%', rl_headers('he', outcome);
END
$$;
SELECT error_of('SELECT rl_headers(''he'', r) FROM (SELECT) one LEFT JOIN LATERAL rl_check(''he'') r ON false');
DROP DOMAIN outcome;

-- Reads only: it works in a read-only transaction, and no row is written.
BEGIN READ ONLY;
SELECT rl_headers('he', r) FROM rl_check('he', 'c') r;
COMMIT;
SELECT count(*) FROM rateLimits WHERE name = 'he' AND key = 'c';
-- It reads definitions: no one may call it before it is granted, and no table has to be.
CREATE ROLE regress_rl_headers;
GRANT EXECUTE ON FUNCTION rl_limit TO regress_rl_headers;
SET ROLE regress_rl_headers;
SELECT error_of('SELECT rl_headers(''he'', r) FROM rl_limit(''he'', ''d'') r');
RESET ROLE;
GRANT EXECUTE ON FUNCTION rl_headers TO regress_rl_headers;
SET ROLE regress_rl_headers;
SELECT rl_headers('he', r) FROM rl_limit('he', 'd') r;
-- A config for a defined name consumes nothing, so it needs no right to define.
SELECT rl_headers('he', r, config => rl_sliding_log(1, '1 day')) FROM rl_limit('he', 'd') r;
SELECT error_of('SELECT FROM rl_config');
RESET ROLE;
DROP OWNED BY regress_rl_headers;
DROP ROLE regress_rl_headers;

-- A type that was altered is refused, not read as what it was.
DROP TABLE denied, taken, outcomes;
BEGIN;
ALTER TYPE rl_result ALTER ATTRIBUTE remaining TYPE text CASCADE;
SELECT error_of('SELECT rl_headers(''he'', ''(t,,,1,1,)'')', true);
ROLLBACK;
BEGIN;
ALTER TYPE rl_result RENAME ATTRIBUTE reset_at TO full_at CASCADE;
SELECT error_of('SELECT rl_headers(''he'', ''(t,,,1,1,)'')', true);
ROLLBACK;
BEGIN;
ALTER TYPE rl_result ADD ATTRIBUTE shards int CASCADE;
SELECT rl_headers('he', '(t,,,1,1,,7)');
ROLLBACK;

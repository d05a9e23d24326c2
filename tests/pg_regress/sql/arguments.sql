-- name, key, count and the flags: NULL is 22004, what is out of range 22023, in every function;
-- names and keys are data whatever they contain.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('ar', rl_token_bucket(10, '1 minute'));
\a \t
SELECT call, error_of('SELECT ' || call, true) FROM unnest(ARRAY[
    'rl_limit(NULL)', 'rl_limit(''ar'', NULL)', 'rl_limit(''ar'', ''k'', NULL)',
    'rl_limit(''ar'', reserve => NULL)', 'rl_limit(''ar'', throws => NULL)',
    'rl_check(NULL)', 'rl_check(''ar'', NULL)', 'rl_check(''ar'', count => NULL)',
    'rl_check(''ar'', reserve => NULL)', 'rl_check(''ar'', throws => NULL)',
    'rl_reset(NULL)', 'rl_reset(''ar'', NULL)', 'rl_reset_all(NULL)']) call;
SELECT call, error_of('SELECT ' || call, true) FROM unnest(ARRAY[
    'rl_limit(''ar'', count => -1)', 'rl_limit(''ar'', count => -1e-300)', 'rl_limit(''ar'', count => ''NaN'')',
    'rl_limit(''ar'', count => ''Infinity'')', 'rl_limit(''ar'', count => ''-Infinity'')',
    'rl_limit(''ar'', count => 1e15 + 1)', 'rl_limit(''ar'', count => 1e300)',
    'rl_check(''ar'', count => -1)', 'rl_check(''ar'', count => ''NaN'')', 'rl_check(''ar'', count => 1e15 + 1)',
    'rl_limit(''ar'', count => -1, reserve => true, throws => true)']) call;
\a \t
-- 1e15 is the largest; -0 is zero; the smallest there is counts.
SELECT ok, retry_after FROM rl_limit('ar', count => 1e15);
SELECT ok, remaining FROM rl_limit('ar', count => '-0');
SELECT ok, remaining FROM rl_limit('ar', count => 5e-324);
-- An error took nothing.
SELECT remaining FROM rl_check('ar');

-- Lengths in bytes: name 1 to 200, key up to 1024.
SELECT n, error_of(format('SELECT rl_limit(%L, %L, config => rl_sliding_log(1, ''1 s''))', repeat('n', n), repeat('k', k)))
FROM (VALUES (0, 0), (1, 0), (200, 1024), (201, 0), (1, 1025), (201, 1025), (0, 100000)) v (n, k);
SELECT error_of(format('SELECT rl_check(%L, %L, config => rl_sliding_log(1, ''1 s''))', repeat('é', 100), repeat('é', 512))) AS fits,
       error_of(format('SELECT rl_check(%L, config => rl_sliding_log(1, ''1 s''))', repeat('é', 101))) AS long_name;
SELECT error_of(format('SELECT rl_check(%L, %L, config => rl_sliding_log(1, ''1 s''))', 'ar', repeat('é', 513))) AS long_key;
\a \t
SELECT call, error_of('SELECT ' || replace(replace(call, 'N', quote_literal(repeat('n', 201))), 'K', quote_literal(repeat('k', 1025))), true)
FROM unnest(ARRAY['rl_check(N)', 'rl_check(''ar'', K)', 'rl_reset(N)', 'rl_reset(''ar'', K)', 'rl_reset_all(N)',
    'rl_undefine(N)', 'rl_undefine(''ar'', K)', 'rl_define(N, rl_sliding_log(1, ''1 s''))',
    'rl_define(''ar'', rl_sliding_log(1, ''1 s''), K)', 'rl_define('''', rl_sliding_log(1, ''1 s''))',
    'rl_reset('''')', 'rl_reset_all('''')', 'rl_undefine('''')', 'rl_check('''')']) call;
\a \t

-- Data, not SQL, and not a pattern: each is a limit of its own.
CREATE TEMP TABLE odd (s text);
INSERT INTO odd VALUES ('it''s'), ('"quoted"'), (E'back\\slash'), ('$1'), ('%'), ('_'), ('a b'), (' a b'), ('a b '), (E'tab\tline\n'),
    ('''; DROP TABLE ratelimits; --'), ('😀'), ('👩‍👩‍👧'), ('é'), (E'e\u0301'), ('名前'), ('A'), ('a'), ('@schema@'), ('NULL'), ('');
SELECT bool_and(rl_define('ar/' || s, rl_token_bucket(2, '1 minute'))) AS defined FROM odd;
SELECT count(*) AS calls, bool_and(ok) AS ok, min(remaining), max(remaining)
FROM odd n CROSS JOIN odd k, LATERAL rl_limit('ar/' || n.s, k.s);
SELECT count(*) AS rows, count(DISTINCT name) AS names, count(DISTINCT key) AS keys FROM rateLimits WHERE name LIKE 'ar/%';
SELECT count(*) AS read_back FROM odd n CROSS JOIN odd k JOIN rateLimits r ON r.name = 'ar/' || n.s AND r.key = k.s WHERE r.value = 1;
SELECT sum((rl_reset('ar/' || n.s, k.s))::int) FROM odd n CROSS JOIN odd k;
SELECT bool_and(rl_undefine('ar/' || s)) AS undefined FROM odd;
SELECT name = 'ar' AS left_over FROM rl_config WHERE name LIKE 'ar%';
-- The empty key is the limit without keys.
SELECT ok, remaining FROM rl_limit('ar', '', count => 4);
SELECT ok, remaining FROM rl_limit('ar', count => 4);
-- Untyped literals, positions, and types that cast to text or float.
SELECT ok, remaining FROM rl_limit('ar', '42', 1);
SELECT ok, remaining FROM rl_limit('ar'::varchar, 42::text, 1::numeric, false, false, NULL);
SELECT ok, remaining FROM rl_limit('ar'::name, '42'::char(2), 1::bigint);
-- Not compressed away: a long key of one row is found again.
SELECT ok, remaining FROM rl_limit('ar', repeat('z', 1024), 3);
SELECT ok, remaining FROM rl_limit('ar', repeat('z', 1024), 3);
CREATE TEMP TABLE toasted (k text);
INSERT INTO toasted VALUES (repeat('q', 1024)), (repeat('long ', 200000));
SELECT length(k), error_of(format('SELECT rl_limit(%L, k) FROM toasted WHERE length(k) = %s', 'ar', length(k))) FROM toasted;

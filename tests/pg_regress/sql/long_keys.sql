-- Rows that the owner inserted, with names and keys longer than any call takes: rl_status shows them
-- whole and rl_prune deletes those that say nothing, each of them once, and both come to an end.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- What never ends is cut off, instead of holding up the tests.
SET statement_timeout = '10s';
-- What other tests left would be counted, too.
TRUNCATE rateLimits, rl_blocks;
DELETE FROM rl_config WHERE config ->> 'kind' = 'unlimited';
VACUUM rateLimits;
SELECT rl_define('api', rl_token_bucket(10, '10 seconds'));
-- Keys that differ after 1,024 bytes, more of them than are read at once; some too large for
-- their row, some whose 1,024th byte is not the last of a letter.
CREATE TABLE long (key text);
INSERT INTO long
SELECT repeat('x', 1020) || to_char(n, 'fm0000') || repeat('y', n) FROM generate_series(1, 300) n
UNION ALL SELECT repeat('é', 600) || to_char(n, 'fm000') FROM generate_series(1, 300) n
UNION ALL SELECT repeat('k', 1023) || 'é' || to_char(n, 'fm000') FROM generate_series(1, 10) n
UNION ALL SELECT repeat('z', 30000 + n) FROM generate_series(1, 10) n
UNION ALL SELECT (SELECT string_agg(md5(n::text || m), '' ORDER BY m) FROM generate_series(1, 75) m) FROM generate_series(1, 10) n
UNION ALL SELECT 'short ' || n FROM generate_series(1, 10) n;
INSERT INTO rateLimits (name, key, value, ts)
SELECT 'api', key, length(key) % 10, timestamptz '2027-01-01 12:00:00+00' FROM long
UNION ALL SELECT repeat('n', 2000 + n), key, 5, '2027-01-01 12:00:00+00' FROM generate_series(1, 3) n, (SELECT key FROM long WHERE key LIKE 'short%') k;
\echo each of them once, and whole
SELECT count(*), count(DISTINCT (name, key)), max(octet_length(name)), max(octet_length(key)), bool_and(remaining = length(key) % 10) FROM rl_status();
SELECT count(*), count(DISTINCT key), max(octet_length(key)) FROM rl_status('api');
SELECT count(*) FROM rl_status('api') FULL JOIN long USING (key) WHERE name IS NULL OR long.key IS NULL;
SELECT count(*) FROM (SELECT key, lag(key) OVER () AS before FROM rl_status('api')) s WHERE NOT before < key COLLATE "C";
\echo what may not be passed is still refused
\set VERBOSITY sqlstate
SELECT rl_limit('api', repeat('x', 1025));
SELECT rl_check(repeat('x', 201));
\set VERBOSITY default
\echo what still says something stays
SET ratelimit.clock = '2027-01-01 12:00:05+00';
SELECT count(*) FROM long WHERE length(key) % 10 >= 5;
SELECT rl_prune();
SELECT count(*), min(value), max(value), max(octet_length(key)) FROM rateLimits WHERE name = 'api';
\echo a batch goes on where the last one ended
SET ratelimit.clock = '2027-01-01 12:00:10+00';
SELECT rl_prune(100), rl_prune(100);
SELECT count(*) FROM rateLimits;
SELECT rl_prune();
SELECT count(*), bool_and(octet_length(name) > 200) FROM rateLimits;
SET ratelimit.clock = '2027-01-03 12:00:10+00';
SELECT rl_prune(undefined_idle => '1 day');
SELECT count(*) FROM rateLimits;
\echo a name is forgotten with all its keys
INSERT INTO rateLimits (name, key, value, ts) SELECT 'api', key, 5, '2027-01-01 12:00:00+00' FROM long;
SELECT rl_reset_all('api');
SELECT count(*) FROM rateLimits;
SELECT rl_undefine('api');
DROP TABLE long;

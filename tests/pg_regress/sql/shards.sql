-- A limit spread over several rows: together they hold what the limit holds, never more; any count
-- that they hold together passes; changing their number hands out nothing extra.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SET extra_float_digits = 0;
-- What a key's rows hold, however many there are.
CREATE FUNCTION held(limit_name text, OUT rows bigint, OUT tokens numeric, OUT lowest numeric, OUT highest numeric) LANGUAGE plpgsql AS
$$ BEGIN
    SELECT count(*), round(sum(value)::numeric, 6), round(min(value)::numeric, 6), round(max(value)::numeric, 6) INTO rows, tokens, lowest, highest
    FROM rateLimits WHERE name = limit_name AND shard > 0;
END $$;
-- How many of these single calls pass.
CREATE FUNCTION passed(limit_name text, calls int) RETURNS int LANGUAGE plpgsql AS
$$ DECLARE passed int := 0; BEGIN
    FOR n IN 1..calls LOOP IF (rl_limit(limit_name)).ok THEN passed := passed + 1; END IF; END LOOP; RETURN passed;
END $$;

\echo exactly the capacity, one by one
SELECT rl_define('sh', rl_token_bucket(100, '100 seconds', shards => 10));
SELECT * FROM rl_check('sh');
SELECT count(*) FROM rateLimits WHERE name = 'sh';
SELECT passed('sh', 100);
SELECT * FROM rl_limit('sh');
SELECT ok, remaining FROM rl_check('sh', '', 0);
SELECT shard, value, ts FROM rateLimits WHERE name = 'sh' AND shard = 0;
SELECT shard, round(value::numeric, 6) AS value FROM rateLimits WHERE name = 'sh' AND shard > 0 ORDER BY shard;
\echo a retry time is true: empty rows refill together
SELECT retry_after, retry_at FROM rl_limit('sh', count => 7);
SET ratelimit.clock = '2027-01-01 12:00:06.999+00';
SELECT ok FROM rl_check('sh', '', 7);
SET ratelimit.clock = '2027-01-01 12:00:07+00';
SELECT ok, round(remaining::numeric, 6) AS remaining FROM rl_limit('sh', '', 7);
\echo any count that the rows together hold, up to all of it
SET ratelimit.clock = '2027-01-01 12:10:00+00';
SELECT ok, remaining FROM rl_check('sh', '', 100);
SELECT ok, remaining FROM rl_limit('sh', '', 40);
SELECT * FROM held('sh');
SELECT ok, retry_after, round(remaining::numeric, 6) AS remaining FROM rl_limit('sh', '', 60.5);
SELECT ok, round(remaining::numeric, 6) AS remaining FROM rl_limit('sh', '', 60);
SELECT ok, retry_after FROM rl_limit('sh', '', 100.5);
\echo on fresh rows too
SELECT rl_define('sh2', rl_token_bucket(100, '100 seconds', shards => 10));
SELECT ok, remaining FROM rl_limit('sh2', '', 40);
SELECT * FROM held('sh2');
SELECT rl_define('sh3', rl_token_bucket(100, '100 seconds', shards => 1024));
SELECT ok, remaining FROM rl_limit('sh3', '', 100);
SELECT ok, remaining FROM rl_limit('sh3', '', 0.1);
\echo a full row loses its refill, so the wait can be longer than for one row, and is still true
UPDATE rateLimits SET value = 0 WHERE name = 'sh2' AND shard > 0;
UPDATE rateLimits SET value = 10 WHERE name = 'sh2' AND shard IN (100001, 100002, 100003, 100004, 100005);
SELECT ok, retry_after, retry_at, remaining FROM rl_limit('sh2', '', 60);
SET ratelimit.clock = '2027-01-01 12:10:19.999+00';
SELECT ok FROM rl_check('sh2', '', 60);
SET ratelimit.clock = '2027-01-01 12:10:20+00';
SELECT ok, remaining FROM rl_check('sh2', '', 60);
\echo a share below one token: several rows give it
SELECT rl_define('sh4', rl_token_bucket(10, '10 seconds', shards => 16));
SELECT passed('sh4', 20);
SELECT round(tokens, 6) AS tokens FROM held('sh4');
\echo fixed window, roll-over included
SELECT rl_define('shw', rl_fixed_window(30, '1 minute', capacity => 40, shards => 4, start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining, capacity, reset_at FROM rl_limit('shw', '', 35);
SELECT passed('shw', 10);
SET ratelimit.clock = '2027-01-01 12:10:59.999+00';
SELECT ok, retry_at FROM rl_limit('shw', '', 31);
SELECT ok, retry_at FROM rl_limit('shw', '', 41);
SET ratelimit.clock = '2027-01-01 12:11:00+00';
SELECT ok, remaining FROM rl_check('shw', '', 30);
SET ratelimit.clock = '2027-01-01 12:12:00+00';
SELECT ok, remaining FROM rl_check('shw', '', 40);
SELECT passed('shw', 45);
\echo reserve: the debt is shared, so the wait is that of one row
SELECT rl_define('shr', rl_token_bucket(60, '1 minute', shards => 6, max_reserved => 30));
SELECT ok, remaining, retry_after FROM rl_limit('shr', '', 50, reserve => true);
SELECT ok, round(remaining::numeric, 6) AS remaining, retry_after, retry_at FROM rl_limit('shr', '', 25, reserve => true);
SELECT * FROM held('shr');
SELECT ok, retry_after FROM rl_limit('shr', '', 20, reserve => true);
SELECT ok, retry_after FROM rl_limit('shr', '', 91, reserve => true);
SELECT ok, round(remaining::numeric, 6) AS remaining FROM rl_limit('shr', '', 15, reserve => true);
SELECT ok, retry_after FROM rl_limit('shr');
SELECT ok FROM rl_limit('shr', '', 0);
\echo credit: debt first, never above the capacity; a negative one takes unconditionally
SELECT ok, round(remaining::numeric, 6) AS remaining, retry_after FROM rl_credit('shr', '', 10);
SELECT ok, round(remaining::numeric, 6) AS remaining, retry_after FROM rl_credit('shr', '', 50);
SELECT * FROM held('shr');
SELECT ok, round(remaining::numeric, 6) AS remaining, retry_after FROM rl_credit('shr', '', -2);
SELECT ok, round(remaining::numeric, 6) AS remaining, retry_after FROM rl_credit('shr', '', 1e6);
SELECT * FROM held('shr');
SELECT ok, round(remaining::numeric, 6) AS remaining, retry_after FROM rl_credit('shr', '', -100);
SELECT * FROM held('shr');
SELECT remaining FROM rl_credit('shw', '', 5, '2027-01-01 12:11:59+00');
SELECT remaining FROM rl_credit('shw', '', 5, '2027-01-01 12:12:00+00');
SELECT remaining FROM rl_credit('sh5', '', 5, config => rl_token_bucket(1, '1 s', shards => 2));
SELECT count(*) FROM rateLimits WHERE name = 'sh5';

\echo more shards, fewer, one: nothing extra from an exhausted limit
SELECT rl_define('shn', rl_token_bucket(100, '100 seconds'));
SELECT passed('shn', 101);
SELECT n, rl_define('shn', rl_token_bucket(100, '100 seconds', shards => n)), passed('shn', 20)
FROM unnest(ARRAY[10, 3, 1024, 1, 2, 10, 1]) n;
SELECT count(*), sum(value) FROM rateLimits WHERE name = 'shn';
\echo what is there goes along, debts too
SELECT ok, remaining FROM rl_credit('shn', '', 50);
SELECT n, rl_define('shn', rl_token_bucket(100, '100 seconds', shards => n)), (rl_limit('shn')).ok,
       (SELECT round(remaining::numeric, 6) FROM rl_check('shn')) AS remaining, (SELECT rows FROM held('shn')) AS rows
FROM unnest(ARRAY[10, 3, 1, 7, 1]) n;
SELECT remaining, retry_after FROM rl_credit('shn', '', -60);
SELECT rl_define('shn', rl_token_bucket(100, '100 seconds', shards => 5));
SELECT round(remaining::numeric, 6) AS remaining FROM rl_check('shn');
SELECT round(remaining::numeric, 6) AS remaining, retry_after FROM rl_credit('shn', '', 5);
SELECT * FROM held('shn');
SELECT rl_define('shn', rl_token_bucket(100, '100 seconds'));
SELECT round(remaining::numeric, 6) AS remaining, retry_after FROM rl_check('shn');
\echo a denial under the new number of shards writes nothing
SELECT ok FROM rl_limit('shn');
SELECT rows FROM held('shn');
\echo to another kind of window, and to a sliding kind, which starts fresh
SELECT rl_define('shk', rl_token_bucket(100, '100 seconds', shards => 4));
SELECT ok FROM rl_limit('shk', '', 70);
SELECT rl_define('shk', rl_fixed_window(100, '100 seconds', shards => 4));
SELECT ok, remaining FROM rl_check('shk', '', 31);
SELECT ok, remaining FROM rl_limit('shk', '', 30);
SELECT rl_define('shk', rl_sliding_window(100, '100 seconds'));
SELECT ok, remaining FROM rl_limit('shk', '', 60);
SELECT shard, value FROM rateLimits WHERE name = 'shk';
SELECT rl_define('shk', rl_token_bucket(100, '100 seconds', shards => 4));
SELECT ok, remaining FROM rl_limit('shk', '', 60);
\echo rows of a bucket as windows turn apart: the first turn that brings enough is the retry time
SELECT rl_define('sht', rl_fixed_window(10, '10 seconds', shards => 2));
INSERT INTO rateLimits (name, shard, value, ts) VALUES ('sht', 0, 0, '-infinity'),
    ('sht', 20001, 0, '2027-01-01 12:12:03+00'), ('sht', 20002, 0, '2027-01-01 12:12:07+00');
SET ratelimit.clock = '2027-01-01 12:12:08+00';
SELECT count, ok, retry_after FROM unnest(ARRAY[5, 6]) count, rl_limit('sht', '', count);
SELECT n, ok, allows, retry_after FROM rl_limit_all('[{"name":"sht","count":2},{"name":"sht","count":3},{"name":"sh3","count":0}]');
SELECT n, ok, allows, retry_after FROM rl_limit_all('[{"name":"sht","count":5},{"name":"sht","count":5}]');
SET ratelimit.clock = '2027-01-01 12:12:13+00';
SELECT count, ok, retry_after FROM unnest(ARRAY[6, 5]) count, rl_limit('sht', '', count);
SET ratelimit.clock = '2027-01-01 12:12:00+00';
\echo a row that is missing holds nothing
UPDATE rateLimits SET value = 10 WHERE name = 'shk' AND shard > 0;
DELETE FROM rateLimits WHERE name = 'shk' AND shard IN (40001, 40002);
SELECT remaining FROM rl_check('shk');
SELECT ok FROM rl_limit('shk', '', 1);
SELECT remaining FROM rl_check('shk');

\echo reset, reset_all
SELECT rl_reset('sh'), rl_reset('sh');
SELECT ok, remaining FROM rl_limit('sh', '', 100);
SELECT rl_reset_all('sh'), rl_reset_all('sh');
SELECT ok, remaining FROM rl_limit('sh', '', 100);
\echo transactions: one row for all calls of one, and back with a rollback
SELECT rl_reset('sh2');
SET ratelimit.clock = '2027-01-01 13:00:00+00';
BEGIN;
SELECT passed('sh2', 8);
SELECT count(*) AS rows_taken_from FROM rateLimits WHERE name = 'sh2' AND shard > 0 AND value < 10;
SAVEPOINT s;
SELECT passed('sh2', 8);
ROLLBACK TO s;
SELECT remaining FROM rl_check('sh2');
SELECT passed('sh2', 8);
ROLLBACK;
SELECT remaining FROM rl_check('sh2');
\echo until a take rearranges the rows, they refill as they stand, and every answer is about that
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('shc', rl_token_bucket(100, '1 minute', shards => 2));
SELECT ok, remaining FROM rl_limit('shc', '', 50);
SELECT rl_define('shc', rl_token_bucket(100, '1 minute'));
SELECT ok, retry_after, retry_at, remaining, reset_at FROM rl_limit('shc', '', 100);
SET ratelimit.clock = '2027-01-01 12:00:30+00';
SELECT ok, retry_after, retry_at, remaining, reset_at FROM rl_limit('shc', '', 100);
SELECT ok, retry_after, retry_at, remaining, reset_at FROM rl_check('shc', '', 100);
SELECT n, ok, retry_at, remaining FROM rl_limit_all('[{"name": "shc", "count": 40}, {"name": "shc", "count": 60}]');
SELECT n, ok, retry_at, remaining FROM rl_check_all('[{"name": "shc", "count": 100}]');
SELECT remaining, limited, retry_at, shards FROM rl_status('shc');
SELECT remaining, retry_after FROM rl_credit('shc', '', 0);
SET ratelimit.clock = '2027-01-01 12:00:59.999+00';
SELECT ok, retry_at FROM rl_limit('shc', '', 100);
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT ok, remaining FROM rl_limit('shc', '', 100);
SELECT shard, value, ts FROM rateLimits WHERE name = 'shc';
\echo one to two: the one row refills as a whole
SELECT rl_define('shc', rl_token_bucket(100, '1 minute', shards => 2));
SELECT ok, retry_at, remaining, reset_at FROM rl_limit('shc', '', 25);
SET ratelimit.clock = '2027-01-01 12:01:15+00';
SELECT ok, round(remaining::numeric, 6) AS remaining FROM rl_limit('shc', '', 25);
SELECT * FROM held('shc');
\echo four to three, one of them empty, also with reserve
SELECT rl_define('shd', rl_token_bucket(60, '1 minute', shards => 4, max_reserved => 60));
SELECT ok, remaining FROM rl_limit('shd', '', 15);
SELECT rl_define('shd', rl_token_bucket(60, '1 minute', shards => 3, max_reserved => 60));
SELECT count, reserve, ok, retry_at, remaining
FROM (VALUES (60, false), (110, true), (121, true)) v (count, reserve), rl_limit('shd', '', count, reserve);
SET ratelimit.clock = '2027-01-01 12:01:34.999+00';
SELECT ok, retry_at FROM rl_limit('shd', '', 110, reserve => true);
SET ratelimit.clock = '2027-01-01 12:01:35+00';
SELECT ok, retry_after, remaining FROM rl_limit('shd', '', 110, reserve => true);
SELECT * FROM held('shd');
\echo three to two, all in debt; a take together with another limit
SELECT rl_define('shd', rl_token_bucket(60, '1 minute', shards => 2, max_reserved => 60));
SELECT ok, retry_at, remaining, reset_at FROM rl_limit('shd', '', 0);
SELECT remaining, limited, retry_at FROM rl_status('shd');
SET ratelimit.clock = '2027-01-01 12:02:36+00';
SELECT n, ok, round(remaining::numeric, 6) AS remaining FROM rl_limit_all('[{"name": "shd"}, {"name": "sh3", "count": 0}]');
SELECT * FROM held('shd');
\echo windows that turn apart, and calendar windows
SELECT rl_define('shu', rl_fixed_window(10, '10 seconds'));
INSERT INTO rateLimits (name, shard, value, ts) VALUES ('shu', 0, 0, '-infinity'),
    ('shu', 20001, 0, '2027-01-01 12:02:33+00'), ('shu', 20002, 0, '2027-01-01 12:02:37+00');
SET ratelimit.clock = '2027-01-01 12:02:38+00';
SELECT count, ok, retry_at, remaining, reset_at FROM unnest(ARRAY[5, 6, 10]) count, rl_limit('shu', '', count);
SELECT rl_define('shv', rl_fixed_window(10, '1 day', capacity => 20, timezone => 'UTC', shards => 2));
SELECT ok, remaining FROM rl_limit('shv', '', 10);
SELECT rl_define('shv', rl_fixed_window(10, '1 day', capacity => 20, timezone => 'UTC'));
SELECT ok, retry_at, remaining, reset_at FROM rl_limit('shv', '', 20);
SET ratelimit.clock = '2027-01-01 12:02:47+00';
SELECT count, ok, remaining FROM unnest(ARRAY[6, 5]) count, rl_limit('shu', '', count);
SET ratelimit.clock = '2027-01-03 00:00:00+00';
SELECT ok, remaining FROM rl_limit('shv', '', 20);
\echo of rows that are missing, nothing is expected
SELECT rl_define('shm', rl_token_bucket(100, '1 minute', shards => 4));
SELECT ok FROM rl_limit('shm', '', 100);
DELETE FROM rateLimits WHERE name = 'shm' AND shard IN (40001, 40002);
SELECT count, ok, retry_after FROM unnest(ARRAY[50, 51]) count, rl_check('shm', '', count);
SELECT ok, retry_after FROM rl_limit('shm', '', 0.5);

\echo errors
SELECT error_of('SELECT rl_fixed_window(1, ''1 s'', shards => 2, first_request => true)');
SELECT error_of('SELECT rl_define(''sh'', ''{"kind": "sliding log", "rate": 1, "period": 1, "shards": 2}'')');
UPDATE rateLimits SET value = 'NaN' WHERE name = 'sh' AND shard = 100003;
SELECT error_of('SELECT rl_limit(''sh'', '''', 20)');
SELECT error_of('SELECT rl_check(''sh'', '''', 20)');
DROP FUNCTION passed, held;

-- NULLs in kind, value or ts, which the owner let in: every call that needs the row ends with 55000, however
-- the rows are reached; what needs no such row works, and so does everything once it is gone.
-- What had a trigger in an earlier test no longer has, as far as PostgreSQL remembers.
VACUUM rateLimits;
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('nulls', rl_token_bucket(100, '1 minute')), rl_define('nulls/wide', rl_token_bucket(100, '1 minute', shards => 2));
BEGIN;
ALTER TABLE rateLimits ALTER kind DROP NOT NULL, ALTER value DROP NOT NULL, ALTER ts DROP NOT NULL;
INSERT INTO rateLimits (name, key, shard, kind, value, ts) VALUES
    ('nulls', 'value', 0, 't', NULL, '2027-01-01 12:00:00+00'), ('nulls', 'ts', 0, 't', 5, NULL), ('nulls', 'both', 0, 't', NULL, NULL), ('nulls', 'kind', 0, NULL, 5, '2027-01-01 12:00:00+00'),
    ('nulls', 'fine', 0, 't', 5, '2027-01-01 12:00:00+00'),
    ('nulls/wide', 'shard', 0, '#', 0, 'epoch'), ('nulls/wide', 'shard', 20001, 't', 50, NULL), ('nulls/wide', 'shard', 20002, 't', NULL, '2027-01-01 12:00:00+00'),
    ('nulls/wide', 'ts', 0, '#', 0, NULL), ('nulls/wide', 'value', 0, '#', NULL, 'epoch');
SELECT name, key, c.call, left(error_of(format(c.call, name, key)), 5) AS error FROM rateLimits, (VALUES
    ('SELECT rl_limit(%L, %L)'), ('SELECT rl_check(%L, %L)'), ('SELECT rl_credit(%L, %L, 1)'), ('SELECT rl_reset(%L, %L)'),
    ('SELECT rl_limit_all(jsonb_build_array(jsonb_build_object(''name'', %L, ''key'', %L)))'),
    ('SELECT rl_status(%L, %L)')) c (call)
WHERE name LIKE 'nulls%' AND key <> 'fine' AND shard < 20002 AND NOT (key = 'shard' AND (shard = 0 OR c.call LIKE '%reset%'))
ORDER BY c.call, name, key;
SELECT left(error_of('SELECT rl_status(''nulls'')'), 5), left(error_of('SELECT rl_status()'), 5), left(error_of('SELECT rl_prune()'), 5);
SELECT ok, remaining FROM rl_limit('nulls', 'fine');
SELECT ok, remaining FROM rl_limit('nulls', 'new');
SELECT ok, remaining FROM rl_limit('nulls/wide', 'new');
-- A superuser's settings.
SET LOCAL ratelimit.access = sql;
SELECT left(error_of('SELECT rl_limit(''nulls'', ''value'')'), 5);
SET LOCAL ratelimit.access = heap;
SELECT left(error_of('SELECT rl_limit(''nulls'', ''value'')'), 5), left(error_of('SELECT rl_limit(''nulls'', ''fine'')'), 5);
RESET ratelimit.access;
-- Written over by hand, and deleted as the hint says.
UPDATE rateLimits SET value = 7, ts = '2027-01-01 12:00:00+00' WHERE name = 'nulls' AND key = 'value';
SELECT ok, remaining FROM rl_limit('nulls', 'value');
SELECT left(error_of('SELECT rl_reset_keys(''nulls'')'), 5), left(error_of('SELECT rl_reset_keys(''nulls/wide'')'), 5);
SAVEPOINT a;
SELECT rl_check('nulls', 'both');
ROLLBACK TO a;
DELETE FROM rateLimits WHERE kind IS NULL OR value IS NULL OR ts IS NULL;
SELECT rl_reset_keys('nulls') > 0, rl_reset_keys('nulls/wide') > 0;
SELECT ok, remaining FROM rl_limit('nulls', 'both');
SELECT ok, remaining FROM rl_limit('nulls/wide', 'shard');
ALTER TABLE rateLimits ALTER kind SET NOT NULL, ALTER value SET NOT NULL, ALTER ts SET NOT NULL;
SET LOCAL ratelimit.access = heap;
SELECT ok, remaining FROM rl_limit('nulls', 'both');
ROLLBACK;
SELECT rl_undefine('nulls'), rl_undefine('nulls/wide');

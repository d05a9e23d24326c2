-- Limits in memory that are saved to the table: by the real clock, so that they refill within years.
CREATE FUNCTION saved(config jsonb) RETURNS jsonb IMMUTABLE RETURN config || '{"store": "memory", "save": "1 hour"}';
SELECT rl_define('saved', saved(rl_token_bucket(1e-300, '1 day', capacity => 10))),
       rl_define('saved/window', saved(rl_fixed_window(100, '3000 days', max_reserved => 50))),
       rl_define('saved/sliding', saved(rl_sliding_window(10, '3000 days'))),
       rl_define('saved/leases', saved(rl_concurrency(3, '1 hour')));
SELECT config FROM rl_config WHERE name = 'saved';

-- What "save" may be.
SELECT rl_define('x', rl_token_bucket(1, '1 s') || '{"save": "1 second"}');
SELECT rl_define('x', rl_token_bucket(1, '1 s') || '{"store": "memory", "save": "99 ms"}');
SELECT rl_define('x', rl_token_bucket(1, '1 s') || '{"store": "memory", "save": 3600001}');
SELECT rl_define('x', rl_token_bucket(1, '1 s') || '{"store": "memory", "save": true}');
SELECT rl_define('x', rl_sliding_log(1, '1 s') || '{"store": "memory", "save": 100}');
SELECT rl_limit('x', config => rl_token_bucket(1, '1 s') || '{"store": "memory", "save": 100}');

-- As the Convex rate limiter says it.
SELECT rl_define('saved/later', rl_token_bucket(1e-300, '1 day', capacity => 10) || '{"applyUpdates": "asynchronously"}');
BEGIN READ ONLY;
SELECT ok, remaining FROM rl_limit('saved/later');
COMMIT;
SELECT rl_undefine('saved/later');
SELECT key, value FROM rateLimits WHERE name = 'saved/later';
SELECT rl_reset_all('saved/later');
SELECT rl_define('x', rl_token_bucket(1, '1 s') || '{"applyUpdates": "asynchronously", "store": "table"}');
SELECT rl_define('x', rl_token_bucket(1, '1 s') || '{"applyUpdates": "transactionally", "save": "1 second"}');
SELECT rl_define('x', rl_token_bucket(1, '1 s') || '{"applyUpdates": true}');
SELECT rl_define('x', rl_sliding_log(1, '1 s') || '{"applyUpdates": "asynchronously"}');

-- Counted at once, in any transaction; written later.
BEGIN READ ONLY;
SELECT ok, remaining FROM rl_limit('saved', 'a', 3);
SELECT ok, remaining FROM rl_limit('saved/window', 'a', 30);
SELECT ok, remaining FROM rl_limit('saved/sliding', 'a', 4);
SELECT ok, remaining FROM rl_credit('saved', 'a', 1);
SELECT ok, remaining FROM rl_limit_all('[{"name": "saved", "key": "a"}, {"name": "saved/sliding", "key": "a", "count": 2}]');
SELECT ok, allows, remaining FROM rl_limit_all('[{"name": "saved", "key": "a"}, {"name": "saved/sliding", "key": "a", "count": 5}]');
ROLLBACK;
BEGIN;
SELECT ok, remaining FROM rl_limit('saved', 'b');
SELECT pg_current_xact_id_if_assigned();
ROLLBACK;
SELECT count(*) FROM rateLimits WHERE name LIKE 'saved%';
SELECT name, key, remaining, limited FROM rl_status() WHERE name LIKE 'saved%';
SELECT rl_save();
SELECT name, key, shard, value, ts <= now() AS past, prior, added FROM rateLimits WHERE name LIKE 'saved%' ORDER BY name, key;
SELECT unsaved_keys, unsaved_since, save_error, saved_keys FROM rl_memory();

-- Leases.
SELECT ok, remaining, lease AS one FROM rl_acquire('saved/leases', 'a', 2) \gset
SELECT :'ok' AS ok, :remaining AS remaining;
SELECT rl_save();
SELECT value, cardinality(log) FROM rateLimits WHERE name = 'saved/leases';
SELECT ok, remaining FROM rl_acquire('saved/leases', 'a', 2);
SELECT ok, remaining FROM rl_check('saved/leases', 'a');
SELECT rl_extend(:'one') IS NOT NULL AS extended;
SELECT rl_release(:'one');
SELECT rl_save();
SELECT value, cardinality(log) FROM rateLimits WHERE name = 'saved/leases';

-- Another state of a row is not read while the key is in memory, whatever its definition is then.
UPDATE rateLimits SET value = 1 WHERE name = 'saved' AND key = 'a';
SELECT remaining FROM rl_check('saved', 'a');
SELECT rl_define('saved', saved(rl_token_bucket(1e-300, '1 day', capacity => 20)));
SELECT remaining FROM rl_check('saved', 'a');

-- Resets.
SELECT rl_reset('saved', 'a'), rl_reset('saved', 'a'), rl_reset('saved', 'nobody');
SELECT remaining FROM rl_check('saved', 'a');
SELECT ok, remaining FROM rl_limit('saved', 'a', 5);
SELECT rl_reset_all('saved');
SELECT key, remaining FROM rl_status('saved');
SELECT rl_save();
SELECT key, value FROM rateLimits WHERE name = 'saved' ORDER BY key;

-- From the table into memory and back, with what was taken; also with shards. The session that changes it counts in the row.
CREATE FUNCTION bucket(shards integer DEFAULT NULL) RETURNS jsonb IMMUTABLE RETURN rl_token_bucket(1e-300, '1 day', capacity => 10, shards => shards);
SELECT rl_define('moved', bucket(4));
SELECT ok, remaining FROM rl_limit('moved', 'k', 3);
SELECT rl_define('moved', saved(bucket()));
SELECT ok, remaining FROM rl_limit('moved', 'k', 3);
BEGIN;
SELECT rl_define('moved', bucket());
SELECT ok, remaining FROM rl_limit('moved', 'k', 1);
SELECT rl_define('moved', saved(bucket()));
SELECT ok, remaining FROM rl_limit('moved', 'k', 1);
ROLLBACK;
SELECT remaining FROM rl_check('moved', 'k');
SELECT rl_define('moved', bucket());
SELECT ok, remaining FROM rl_limit('moved', 'k', 3);
SELECT shard, value FROM rateLimits WHERE name = 'moved' ORDER BY shard;
SELECT rl_define('moved', saved(bucket()));
SELECT ok, remaining FROM rl_limit('moved', 'k', 1);
SELECT rl_define('moved', bucket(2));
SELECT ok, remaining FROM rl_limit('moved', 'k', 1);

-- What is prepared is committed by another session, which can't write it.
SELECT rl_define('moved', saved(bucket()));
BEGIN;
SELECT rl_define('moved', bucket());
PREPARE TRANSACTION 'moved';
SELECT config ->> 'store' AS store FROM rl_config WHERE name = 'moved';

-- A fixed clock has states of its own, which are never saved.
BEGIN;
SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT ok, remaining FROM rl_limit('saved', 'a', 20);
SELECT ok, remaining FROM rl_limit('saved', 'a', 1);
SELECT rl_save();
SELECT unsaved_keys FROM rl_memory();
COMMIT;
SELECT ok, remaining FROM rl_limit('saved', 'a', 5);
SELECT rl_save();

-- Blocks, and idle rows.
SELECT rl_block('saved', 'a', '1 hour') > now() AS blocked;
SELECT ok, retry_after BETWEEN 3500 AND 3600 AS hour FROM rl_limit('saved', 'a');
SELECT rl_unblock('saved', 'a');
SELECT ok FROM rl_limit('saved', 'a');
SELECT rl_define('saved/quick', saved(rl_token_bucket(1000, '1 second')));
SELECT ok FROM rl_limit('saved/quick', 'a');
SELECT rl_save();
SELECT count(*) FROM rateLimits WHERE name = 'saved/quick';
SELECT pg_sleep(0.01);
SELECT rl_prune() > 0 AS pruned;
SELECT count(*) FROM rateLimits WHERE name = 'saved/quick';
SELECT ok FROM rl_limit('saved/quick', 'a', 1000);

-- Not in the way of those who drop it.
SELECT rl_undefine('saved'), rl_undefine('saved/window'), rl_undefine('saved/sliding'), rl_undefine('saved/leases'), rl_undefine('saved/quick'), rl_undefine('moved');
SELECT name, key FROM rl_status() WHERE name LIKE 'saved%';
DROP FUNCTION saved, bucket;
DELETE FROM rateLimits WHERE name LIKE 'saved%' OR name = 'moved';

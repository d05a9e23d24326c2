-- Limits in memory that are saved, whose definitions change: nothing that was taken is lost.
CREATE FUNCTION bucket(rate float8 DEFAULT 100) RETURNS jsonb IMMUTABLE RETURN rl_token_bucket(rate, '100000 days', capacity => 100);
CREATE FUNCTION saved(rate float8 DEFAULT 100) RETURNS jsonb IMMUTABLE RETURN bucket(rate) || '{"store": "memory", "save": "1 hour"}';

-- From saved to saved calls and resets stay in memory, in the transaction that changes it too; it can be prepared.
SELECT rl_define('sr', saved()), (rl_limit('sr', 'a', 60)).ok, (rl_limit('sr', 'b', 60)).ok;
BEGIN;
SELECT rl_define('sr', saved(101));
SELECT ok, round(remaining) FROM rl_limit('sr', 'a', 50);
SELECT rl_reset('sr', 'b');
COMMIT;
SELECT key, round(remaining) FROM rl_status('sr') ORDER BY key;
BEGIN;
SELECT rl_define('sr', saved(102)), rl_define('sr', saved(103), 'vip'), rl_define('sr', rl_unlimited(), 'free');
PREPARE TRANSACTION 'sr';
COMMIT PREPARED 'sr';
SELECT key, round(remaining) FROM rl_status('sr') ORDER BY key;

-- Without a limit meanwhile.
SELECT (rl_limit('sr', 'vip', 30)).ok;
SELECT rl_undefine('sr', 'vip'), rl_undefine('sr', 'free');
SELECT rl_define('sr', rl_unlimited());
SELECT rl_define('sr', bucket());
SELECT key, round(value) FROM rateLimits WHERE name = 'sr' ORDER BY key;

-- An override moves its key alone, and the rest of its name without it.
SELECT rl_define('sr', saved());
SELECT (rl_limit('sr', 'a', 1)).ok, (rl_limit('sr', 'c', 1)).ok;
SELECT rl_define('sr', bucket(), 'c');
SELECT key, round(value) FROM rateLimits WHERE name = 'sr' ORDER BY key;
SELECT (rl_limit('sr', 'a', 1)).ok, (rl_limit('sr', 'c', 1)).ok;
SELECT rl_define('sr', saved(), 'a');
SELECT rl_define('sr', bucket());
SELECT (rl_limit('sr', 'a', 1)).ok, rl_save();
SELECT key, round(value) FROM rateLimits WHERE name = 'sr' ORDER BY key;

-- A clock that is fixed for a database, and so for its writer, doesn't keep what others take from being saved.
SELECT rl_define('sr', saved());
SELECT (rl_limit('sr', 'd', 10)).ok;
ALTER DATABASE regress SET ratelimit.clock = '2040-01-01 00:00:00+00';
SELECT rl_save();
ALTER DATABASE regress RESET ratelimit.clock;
SELECT key, round(value) FROM rateLimits WHERE name = 'sr' AND key = 'd';

SELECT rl_undefine('sr'), rl_undefine('sr', 'a'), rl_undefine('sr', 'c');
DELETE FROM rateLimits WHERE name = 'sr';
DROP FUNCTION saved, bucket;

-- How many at once: leases that are taken, extended, released, or lapse; in the table and in memory alike.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_stats_reset() \g /dev/null
SELECT rl_concurrency(3, '5 minutes');
SELECT rl_define('co', rl_concurrency(3, '5 minutes')), rl_define('co-memory', rl_concurrency(3, '5 minutes') || '{"store": "memory"}');
CREATE VIEW co AS SELECT unnest(ARRAY['co', 'co-memory']) AS name;
SELECT taken.* FROM co, rl_acquire(name, 'a') taken;
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT taken.* FROM co, rl_acquire(name, 'a', 2) taken;
SELECT taken.* FROM co, rl_acquire(name, 'a') taken;
SELECT taken.* FROM co, rl_acquire(name, 'a', 2) taken;
SELECT taken.* FROM co, rl_acquire(name, 'a', 4) taken;
SELECT taken.* FROM co, rl_acquire(name, 'b', 0) taken;
SELECT result.* FROM co, rl_check(name, 'a') result;
SELECT result.* FROM co, rl_check(name, 'nobody', 3) result;
SELECT name, rl_state(name, 'a') FROM co;
SELECT status.* FROM co, LATERAL rl_status(name, 'a') status;
SELECT name, rl_headers(name, r) FROM co, rl_check(name, 'a') r;
-- Extended, so that it outlives the others; released once.
SET ratelimit.clock = '2027-01-01 12:04:00+00';
SELECT name, rl_extend(name || '/a/1798804800000000') FROM co;
SET ratelimit.clock = '2027-01-01 12:06:00+00';
SELECT name, rl_extend(name || '/a/1798804860000000'), rl_release(name || '/a/1798804860000000') FROM co;
SELECT taken.* FROM co, rl_acquire(name, 'a', 2) taken;
SELECT name, rl_release(name || '/a/1798804800000000') AS first, rl_release(name || '/a/1798804800000000') AS again FROM co;
SELECT name, rl_extend(name || '/a/1798804800000000') FROM co;
SELECT ok, remaining FROM co, rl_check(name, 'a', 1);
-- An id is given once: also at one instant, after a release.
SELECT name, (one).ok, split_part((one).lease, '/', 3) AS one, rl_release((one).lease) FROM (SELECT name, rl_acquire(name, 'c') AS one FROM co OFFSET 0) s;
SELECT name, split_part((two).lease, '/', 3) AS two, rl_release((two).lease) FROM (SELECT name, rl_acquire(name, 'c') AS two FROM co OFFSET 0) s;
-- With the transaction, or without it.
BEGIN;
SELECT ok, remaining FROM co, rl_acquire(name, 'd', 3);
SAVEPOINT s;
SELECT name, rl_release(name || '/d/1798805160000000') FROM co;
SELECT ok, remaining FROM co, rl_check(name, 'd');
ROLLBACK TO s;
SELECT ok, remaining FROM co, rl_check(name, 'd');
ROLLBACK;
SELECT name, ok, remaining FROM co, rl_check(name, 'd');
-- The clock steps back: nothing is given twice, and what lies ahead lapses there.
SELECT name, ok FROM co, rl_acquire(name, 'e', 3);
SET ratelimit.clock = '2027-01-01 11:00:00+00';
SELECT name, ok, retry_at FROM co, rl_acquire(name, 'e');
SELECT name, rl_extend(name || '/e/1798805160000000') FROM co;
SELECT name, rl_release(name || '/e/1798805160000000') FROM co;
SELECT name, ok, lease FROM co, rl_acquire(name, 'e', 3);
SET ratelimit.clock = '2027-01-01 12:06:00+00';
-- Fewer slots than are taken, and more again.
SELECT name, ok FROM co, rl_acquire(name, 'f', 3);
SELECT rl_define(name, rl_concurrency(2, '5 minutes') || jsonb_build_object('store', CASE name WHEN 'co' THEN 'table' ELSE 'memory' END)) FROM co;
SELECT name, ok, remaining, retry_at FROM co, rl_acquire(name, 'f');
SELECT rl_define(name, rl_concurrency(4, '5 minutes') || jsonb_build_object('store', CASE name WHEN 'co' THEN 'table' ELSE 'memory' END)) FROM co;
SELECT name, ok, remaining FROM co, rl_acquire(name, 'f');
SELECT name, ok, retry_at FROM co, rl_acquire(name, 'f');
-- Reset forgets the leases; a lease of before is of no use.
SELECT name, rl_reset(name, 'f'), rl_reset(name, 'f') FROM co;
SELECT name, ok, remaining FROM co, rl_check(name, 'f');
SELECT name, rl_release(name || '/f/1798805160000000') FROM co;
SELECT name, rl_reset_all(name) > 0 FROM co;
-- Blocked, in a dry run, exempt, thrown.
SELECT rl_block(name, 'g', '1 hour') FROM co;
SELECT ok, lease, retry_after FROM co, rl_acquire(name, 'g');
SELECT rl_define('co/dry', rl_concurrency(1, '1 minute') || '{"enforce": false}');
SELECT ok, lease, retry_after FROM generate_series(1, 3) n, rl_acquire('co/dry', substr('h', 1, n));
SELECT error_of($$SELECT rl_acquire('co', 'g', throws => true)$$);
-- An exempt key gets no lease, and needs none.
SELECT rl_define('co', rl_unlimited(), 'vip');
SELECT ok, lease, remaining, rl_extend(lease), rl_release(lease) FROM rl_acquire('co', 'vip', 100);
SELECT rl_release('co/vip/1798805160000000'), rl_extend('co/vip/1798805160000000');
SELECT rl_undefine('co', 'vip');
SELECT name, allowed, denied, denied_in_dry_run FROM rl_stats() WHERE name LIKE 'co%';
SELECT rl_unblock(name, 'g') FROM co;
-- By a config in the call, which release and extend are given too.
SELECT lease FROM rl_acquire('co-inline', 'k', config => rl_concurrency(1, '1 minute')),
LATERAL (SELECT error_of(format('SELECT rl_release(%L)', lease))) AS without,
LATERAL (SELECT rl_extend(lease, rl_concurrency(1, '1 minute')), rl_release(lease, config => rl_concurrency(1, '1 minute'))) AS with_config;
SELECT rl_release('co-inline/k/1798805160000000', rl_concurrency(1, '1 minute'));
-- Names and keys of any text.
SELECT rl_define('co/ü /%', rl_concurrency(1, '1 minute'));
SELECT lease, rl_release(lease) FROM rl_acquire('co/ü /%', E'a/b%2F\n ''"');
-- Of a limit that is another kind now, and of leftovers of another kind.
SELECT ok, lease FROM rl_acquire('co', 'i', 2);
SELECT rl_define('co', rl_sliding_log(3, '5 minutes'));
SELECT ok, remaining FROM rl_limit('co', 'i');
SELECT error_of($$SELECT rl_release('co/i/1798805160000000')$$);
SELECT rl_define('co', rl_concurrency(3, '5 minutes'));
SELECT ok, remaining FROM rl_acquire('co', 'i');
SELECT rl_define('co', rl_token_bucket(4, '5 minutes', shards => 4));
SELECT ok FROM rl_limit('co', 'i', 4);
SELECT rl_define('co', rl_concurrency(3, '5 minutes'));
SELECT rl_release('co/i/1798805160000000');
SELECT ok, lease, remaining FROM rl_acquire('co', 'i');
SELECT rl_release('co/i/1798805160000000');
-- Read-only transactions.
BEGIN READ ONLY;
SELECT ok, lease FROM rl_acquire('co-memory', 'ro');
SELECT rl_release('co-memory/ro/1798805160000000');
SELECT error_of($$SELECT rl_acquire('co', 'ro')$$), error_of($$SELECT rl_release('co/ro/1798805160000000')$$);
ROLLBACK;
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT rl_prune() > 0;
SELECT count(*) FROM rateLimits WHERE name LIKE 'co%';
-- Of a name without a definition too a lease that is extended stays, though it was given long ago.
SELECT ok FROM rl_acquire('co-inline', 'a', config => rl_concurrency(1, '1 hour'));
SET ratelimit.clock = '2027-01-01 13:30:00+00';
SELECT rl_extend('co-inline/a/1798808400000000', rl_concurrency(1, '1 hour'));
SET ratelimit.clock = '2027-01-01 14:29:59+00';
SELECT rl_prune(undefined_idle => '1 hour') >= 0;
SELECT ok FROM rl_acquire('co-inline', 'a', config => rl_concurrency(1, '1 hour'));
SET ratelimit.clock = '2027-01-01 14:30:00+00';
SELECT rl_prune(undefined_idle => '1 hour') > 0;
SELECT count(*) FROM rateLimits WHERE name = 'co-inline';
SELECT error_of(call) FROM unnest(ARRAY[
    $$SELECT rl_limit('co', 'a')$$,
    $$SELECT rl_credit('co', 'a', 1)$$,
    $$SELECT rl_limit_all('[{"name": "co", "key": "a"}]')$$,
    $$SELECT rl_check_all('[{"name": "co", "key": "a"}]')$$,
    $$SELECT rl_acquire('co', 'a', 1.5)$$,
    $$SELECT rl_acquire('co', 'a', -1)$$,
    $$SELECT rl_acquire('co/undefined', 'a')$$,
    $$SELECT rl_release('co/undefined/a/1')$$,
    $$SELECT rl_release('co')$$,
    $$SELECT rl_extend('')$$,
    $$SELECT rl_concurrency(0, '1 minute')$$,
    $$SELECT rl_concurrency(1001, '1 minute')$$,
    $$SELECT rl_define('co', rl_concurrency(101, '1 minute') || '{"store": "memory"}')$$,
    $$SELECT rl_concurrency(1, '1 month')$$,
    $$SELECT rl_concurrency(1, '-1 minute')$$,
    $$SELECT rl_concurrency(NULL, '1 minute')$$,
    $$SELECT rl_define('co', rl_concurrency(1, '1 minute') || '{"shards": 2}')$$,
    $$SELECT rl_define('co', rl_concurrency(1, '1 minute') || '{"slots": 1.5}')$$]) call;
DROP VIEW co;

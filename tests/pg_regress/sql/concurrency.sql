-- Concurrency limits: leases that are taken, extended, released, or expire; in the table and in memory alike.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_stats_reset() \g /dev/null
SELECT rl_concurrency(3, '5 minutes');
SELECT rl_define('co', rl_concurrency(3, '5 minutes')), rl_define('co-memory', rl_concurrency(3, '5 minutes') || '{"store": "memory"}');
CREATE VIEW co AS SELECT unnest(ARRAY['co', 'co-memory']) AS name;
-- Ids are random: a lease is remembered by a word, and shown without its id.
CREATE TABLE co_leases (name text, word text, lease text, PRIMARY KEY (name, word));
CREATE FUNCTION without_id(lease text) RETURNS text IMMUTABLE RETURN regexp_replace(lease, '/[1-9][0-9]{0,15}$', '/ID');
CREATE FUNCTION acquire(word text, name text, key text, count float8 DEFAULT 1, OUT ok boolean, OUT lease text, OUT expires_at timestamptz, OUT retry_after float8, OUT retry_at timestamptz, OUT remaining float8, OUT capacity float8) LANGUAGE plpgsql AS $$
BEGIN
    SELECT taken.* INTO ok, lease, expires_at, retry_after, retry_at, remaining, capacity FROM rl_acquire(name, key, count) taken;
    INSERT INTO co_leases VALUES (name, word, lease);
    lease := without_id(lease);
END $$;
SET client_min_messages = error; -- Citus warns that it knows no such table
CREATE FUNCTION lease(word text, name text) RETURNS text STABLE BEGIN ATOMIC SELECT lease FROM co_leases l WHERE (l.name, l.word) = ($2, $1); END;
RESET client_min_messages;
SELECT taken.* FROM co, acquire('first', name, 'a') taken;
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT taken.* FROM co, acquire('second', name, 'a', 2) taken;
SELECT taken.* FROM co, rl_acquire(name, 'a') taken;
SELECT taken.* FROM co, rl_acquire(name, 'a', 2) taken;
SELECT taken.* FROM co, rl_acquire(name, 'a', 4) taken;
SELECT taken.* FROM co, rl_acquire(name, 'b', 0) taken;
SELECT result.* FROM co, rl_check(name, 'a') result;
SELECT result.* FROM co, rl_check(name, 'nobody', 3) result;
SELECT name, regexp_replace((rl_value(name, 'a') -> 'state')::text, '[[][0-9.]+, ', '[id, ', 'g') FROM co;
SELECT status.* FROM co, LATERAL rl_status(name, 'a') status;
SELECT name, rl_headers(name, r) FROM co, rl_check(name, 'a') r;
-- Extended, so that it outlives the others; released once.
SET ratelimit.clock = '2027-01-01 12:04:00+00';
SELECT name, rl_extend(lease('first', name)) FROM co;
SET ratelimit.clock = '2027-01-01 12:06:00+00';
SELECT name, rl_extend(lease('second', name)), rl_release(lease('second', name)) FROM co;
SELECT taken.* FROM co, acquire('third', name, 'a', 2) taken;
SELECT name, rl_release(lease('first', name)) AS first, rl_release(lease('first', name)) AS again FROM co;
SELECT name, rl_extend(lease('first', name)) FROM co;
SELECT ok, remaining FROM co, rl_check(name, 'a', 1);
-- An id is given once, though the clock stands, whatever becomes of the state: the holder of an old one frees no other's slot.
SELECT name, (one).ok FROM (SELECT name, acquire('one', name, 'c', 3) AS one FROM co OFFSET 0) s;
SELECT name, rl_release(lease('one', name)) FROM co;
SELECT name, (two).ok FROM (SELECT name, acquire('two', name, 'c', 3) AS two FROM co OFFSET 0) s;
SELECT name, rl_reset(name, 'c') FROM co;
SELECT name, (three).ok FROM (SELECT name, acquire('three', name, 'c', 3) AS three FROM co OFFSET 0) s;
SELECT name, rl_reset_all(name) FROM co;
SELECT name, (four).ok FROM (SELECT name, acquire('four', name, 'c', 3) AS four FROM co OFFSET 0) s;
TRUNCATE rateLimits;
SELECT rl_reset('co-memory', 'c');
SELECT name, (five).ok FROM (SELECT name, acquire('five', name, 'c', 3) AS five FROM co OFFSET 0) s;
SELECT name, rl_undefine(name), rl_reset(name, 'c') FROM co;
SELECT name, rl_define(name, rl_concurrency(3, '5 minutes') || jsonb_build_object('store', CASE name WHEN 'co' THEN 'table' ELSE 'memory' END)) FROM co;
SELECT name, (six).ok FROM (SELECT name, acquire('six', name, 'c', 3) AS six FROM co OFFSET 0) s;
SET ratelimit.clock = '2027-01-01 12:11:00+00';
SELECT rl_prune() > 0;
SET ratelimit.clock = '2027-01-01 12:06:00+00';
SELECT name, (seven).ok FROM (SELECT name, acquire('seven', name, 'c', 3) AS seven FROM co WHERE name = 'co' OFFSET 0) s;
BEGIN;
SELECT count(DISTINCT lease) FROM generate_series(1, 200) n, LATERAL rl_acquire('co/many', n::text, config => rl_concurrency(1, '1 minute'));
ROLLBACK;
SELECT count(*), count(DISTINCT lease) FROM co_leases WHERE word IN ('one', 'two', 'three', 'four', 'five', 'six', 'seven');
SELECT word, name, rl_extend(lease), rl_release(lease), remaining FROM co_leases, rl_check(name, 'c') WHERE word IN ('one', 'two', 'three', 'four', 'five') ORDER BY word, name;
SELECT name, rl_release(lease(CASE name WHEN 'co' THEN 'seven' ELSE 'six' END, name)), remaining FROM co, LATERAL rl_check(name, 'c') ORDER BY name;
-- With the transaction, or without it.
BEGIN;
SELECT ok, remaining FROM co, acquire('d', name, 'd', 3);
SAVEPOINT s;
SELECT name, rl_release(lease('d', name)) FROM co;
SELECT ok, remaining FROM co, rl_check(name, 'd');
ROLLBACK TO s;
SELECT ok, remaining FROM co, rl_check(name, 'd');
ROLLBACK;
SELECT name, ok, remaining FROM co, rl_check(name, 'd');
-- The clock steps back: nothing is given twice, and what lies ahead expires there.
SELECT name, ok FROM co, acquire('e', name, 'e', 3);
SET ratelimit.clock = '2027-01-01 11:00:00+00';
SELECT name, ok, retry_at FROM co, rl_acquire(name, 'e');
SELECT name, rl_extend(lease('e', name)) FROM co;
SELECT name, rl_release(lease('e', name)) FROM co;
SELECT name, ok, lease FROM co, acquire('e again', name, 'e', 3);
SET ratelimit.clock = '2027-01-01 12:06:00+00';
-- What was released, or has expired and made room, does not live again before.
SELECT name, ok FROM co, acquire('e1', name, 'e1', 2);
SELECT name, rl_release(lease('e1', name)) FROM co;
SET ratelimit.clock = '2027-01-01 12:05:59+00';
SELECT name, ok, remaining, rl_release(lease('e1', name)), rl_extend(lease('e1', name)) FROM co, LATERAL rl_check(name, 'e1') ORDER BY name;
SELECT name, ok FROM co, acquire('e2', name, 'e2', 2);
SET ratelimit.clock = '2027-01-01 12:10:59+00';
SELECT name, ok FROM co, acquire('e3', name, 'e2', 1);
SET ratelimit.clock = '2027-01-01 12:06:00+00';
SELECT name, ok, remaining, rl_release(lease('e2', name)) FROM co, LATERAL rl_check(name, 'e2') ORDER BY name;
-- Fewer slots than are taken, and more again.
SELECT name, ok FROM co, acquire('f', name, 'f', 3);
SELECT rl_define(name, rl_concurrency(2, '5 minutes') || jsonb_build_object('store', CASE name WHEN 'co' THEN 'table' ELSE 'memory' END)) FROM co;
SELECT name, ok, remaining, retry_at FROM co, rl_acquire(name, 'f');
SELECT rl_define(name, rl_concurrency(4, '5 minutes') || jsonb_build_object('store', CASE name WHEN 'co' THEN 'table' ELSE 'memory' END)) FROM co;
SELECT name, ok, remaining FROM co, rl_acquire(name, 'f');
SELECT name, ok, retry_at FROM co, rl_acquire(name, 'f');
-- All slots of a lease that has more than there are now are extended, and released.
SELECT rl_define(name, rl_concurrency(1, '5 minutes') || jsonb_build_object('store', CASE name WHEN 'co' THEN 'table' ELSE 'memory' END)) FROM co;
SET ratelimit.clock = '2027-01-01 12:08:00+00';
SELECT name, rl_extend(lease('f', name)) FROM co;
SELECT rl_define(name, rl_concurrency(4, '5 minutes') || jsonb_build_object('store', CASE name WHEN 'co' THEN 'table' ELSE 'memory' END)) FROM co;
SET ratelimit.clock = '2027-01-01 12:11:00+00';
SELECT name, ok, remaining, retry_at FROM co, rl_check(name, 'f', 2);
SELECT rl_define(name, rl_concurrency(1, '5 minutes') || jsonb_build_object('store', CASE name WHEN 'co' THEN 'table' ELSE 'memory' END)) FROM co;
SELECT name, rl_release(lease('f', name)) FROM co;
SELECT rl_define(name, rl_concurrency(4, '5 minutes') || jsonb_build_object('store', CASE name WHEN 'co' THEN 'table' ELSE 'memory' END)) FROM co;
SELECT name, ok, remaining FROM co, rl_check(name, 'f', 4);
SET ratelimit.clock = '2027-01-01 12:06:00+00';
SELECT name, ok FROM co, acquire('f again', name, 'f', 3);
-- Reset forgets the leases; a lease of before is of no use.
SELECT name, rl_reset(name, 'f'), rl_reset(name, 'f') FROM co;
SELECT name, ok, remaining FROM co, rl_check(name, 'f');
SELECT name, rl_release(lease('f again', name)) FROM co;
-- A key counts once.
SELECT name, rl_reset_all(name) > 0 FROM co;
SELECT name, ok FROM co, rl_acquire(name, 'f', 3);
SELECT name, rl_reset_all(name) FROM co;
-- Blocked, in a dry run, exempt, thrown.
SELECT rl_block(name, 'g', '1 hour') FROM co;
SELECT ok, lease, retry_after FROM co, rl_acquire(name, 'g');
SELECT rl_define('co/dry', rl_concurrency(1, '1 minute') || '{"enforce": false}');
SELECT ok, without_id(lease), retry_after FROM generate_series(1, 3) n, rl_acquire('co/dry', substr('h', 1, n));
SELECT error_of($$SELECT rl_acquire('co', 'g', throws => true)$$);
-- An exempt key gets no lease, and needs none.
SELECT rl_define('co', rl_unlimited(), 'vip');
SELECT ok, lease, remaining, rl_extend(lease), rl_release(lease) FROM rl_acquire('co', 'vip', 100);
SELECT rl_release('co/vip/1'), rl_extend('co/vip/1');
SELECT rl_undefine('co', 'vip');
SELECT name, allowed, denied, denied_in_dry_run FROM rl_stats() WHERE name LIKE 'co%';
SELECT rl_unblock(name, 'g') FROM co;
-- By a config in the call, which release and extend are given too.
SELECT without_id(lease) FROM rl_acquire('co-inline', 'k', config => rl_concurrency(1, '1 minute')),
LATERAL (SELECT error_of(format('SELECT rl_release(%L)', lease))) AS without,
LATERAL (SELECT rl_extend(lease, rl_concurrency(1, '1 minute')), rl_release(lease, config => rl_concurrency(1, '1 minute'))) AS with_config;
SELECT rl_release('co-inline/k/1', rl_concurrency(1, '1 minute'));
-- An error never carries the key.
SELECT call, error_of(call, true) FROM unnest(ARRAY[
    $$SELECT rl_release('co/user@example.com/abc')$$, $$SELECT rl_extend('co/user@example.com')$$,
    $$SELECT rl_release('user@example.com')$$, $$SELECT rl_acquire('co-inline', 'user@example.com')$$,
    format($$SELECT rl_release(%L)$$, replace((SELECT lease FROM rl_acquire('co-inline', 'user@example.com', config => rl_concurrency(1, '1 minute'))), 'co-', 'no-'))]) call
WHERE error_of(call, true) LIKE '%user@%' OR call LIKE '%co-inline%';
-- Names and keys of any text.
SELECT rl_define('co/ü /%', rl_concurrency(1, '1 minute'));
SELECT without_id(lease), rl_release(lease) FROM rl_acquire('co/ü /%', E'a/b%2F\n ''"');
-- A limit that is another kind now, and leftovers of another kind.
SELECT ok, lease FROM acquire('i', 'co', 'i', 2);
SELECT rl_define('co', rl_sliding_log(3, '5 minutes'));
SELECT ok, remaining FROM rl_limit('co', 'i');
SELECT error_of($$SELECT rl_release(lease('i', 'co'))$$);
SELECT rl_define('co', rl_concurrency(3, '5 minutes'));
SELECT ok, remaining FROM rl_acquire('co', 'i');
SELECT rl_define('co', rl_token_bucket(4, '5 minutes', shards => 4));
SELECT ok FROM rl_limit('co', 'i', 4);
SELECT rl_define('co', rl_concurrency(3, '5 minutes'));
SELECT rl_release(lease('i', 'co'));
SELECT ok, lease, remaining FROM acquire('i again', 'co', 'i');
SELECT rl_release(lease('i', 'co')), rl_release(lease('i again', 'co'));
-- Read-only transactions.
BEGIN READ ONLY;
SELECT ok, lease FROM rl_acquire('co-memory', 'ro') \gset
SELECT :'ok' AS ok, rl_release(:'lease');
SELECT error_of($$SELECT rl_acquire('co', 'ro')$$), error_of($$SELECT rl_release('co/ro/1')$$);
ROLLBACK;
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT rl_prune() > 0;
SELECT count(*) FROM rateLimits WHERE name LIKE 'co%';
-- An extended lease stays, also without a definition, though it was given long ago.
SELECT ok, lease FROM rl_acquire('co-inline', 'a', config => rl_concurrency(1, '1 hour')) \gset
SET ratelimit.clock = '2027-01-01 13:30:00+00';
SELECT :'ok' AS ok, rl_extend(:'lease', rl_concurrency(1, '1 hour'));
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
DROP TABLE co_leases;
DROP FUNCTION lease, acquire, without_id;

-- A blocked key is denied until then, however many tokens are left, in each store.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_stats_reset() \g /dev/null
SELECT rl_define('bl', rl_token_bucket(3, '1 minute')),
       rl_define('bl/memory', rl_token_bucket(3, '1 minute') || '{"store": "memory"}'),
       rl_define('bl/shards', rl_token_bucket(4, '1 minute', shards => 2)),
       rl_define('bl/log', rl_sliding_log(3, '1 minute')),
       rl_define('bl/dry', rl_fixed_window(3, '1 minute') || '{"enforce": false}'),
       rl_define('bl/no', rl_unlimited());
CREATE VIEW bl AS SELECT unnest(ARRAY['bl', 'bl/dry', 'bl/log', 'bl/memory', 'bl/no', 'bl/shards']) AS name;
SELECT name, ok FROM bl, rl_limit(name, 'a');
SELECT name, rl_block(name, 'a', '1 hour') FROM bl;
SELECT name, ok, retry_after, retry_at, remaining, capacity FROM bl, rl_limit(name, 'a');
SELECT name, ok, retry_after FROM bl, rl_check(name, 'a');
SELECT name, ok, retry_after FROM bl, rl_limit(name, 'a', 0);
SELECT name, ok, retry_after FROM bl, rl_limit(name, 'a', reserve => true);
SELECT name, ok, retry_after FROM bl, rl_limit(name, 'b');
SELECT name, error_of(format('SELECT rl_limit(%L, %L, throws => true)', name, 'a')) FROM bl;
SELECT bl.name, n, ok, allows, retry_after FROM bl, rl_limit_all(jsonb_build_array(jsonb_build_object('name', bl.name, 'key', 'b'), jsonb_build_object('name', bl.name, 'key', 'a'))) WHERE bl.name <> 'bl/dry' ORDER BY 1, 2;
SELECT bl.name, n, ok, allows, retry_after FROM bl, rl_check_all(jsonb_build_array(jsonb_build_object('name', bl.name, 'key', 'b'), jsonb_build_object('name', bl.name, 'key', 'a'))) WHERE bl.name = 'bl/dry' ORDER BY 1, 2;
SELECT error_of($$SELECT rl_limit_all('[{"name": "bl/no", "key": "a"}, {"name": "bl", "key": "b"}]', throws => true)$$);
SELECT name, rl_headers(name, r), rl_headers(name, r, 'github') FROM bl, rl_check(name, 'a') r;
-- After the block the limit still counts: of a take that was more than is there then.
SELECT name, ok, retry_after FROM bl, rl_check(name, 'a', 4);
SELECT rl_limit('bl', 'a', 4, throws => true);
-- A dry run admits all that comes after the block.
SELECT ok, retry_after FROM rl_limit('bl/dry', 'a', 4);
SELECT ok, retry_after FROM rl_limit_all('[{"name": "bl/dry", "key": "a", "count": 4}]');
-- rl_check goes on telling what would be denied, and says true at the time that it named.
SELECT ok, remaining FROM rl_limit('bl/dry', 'e', 3);
SELECT rl_block('bl/dry', 'e', '1 second') IS NOT NULL AS blocked;
SELECT ok, retry_after FROM rl_limit('bl/dry', 'e');
BEGIN;
SELECT ok, remaining, set_config('ratelimit.clock', (extract(epoch FROM retry_at) * 1000)::text, true) <> '' AS set
FROM rl_check('bl/dry', 'e');
SELECT ok FROM rl_check('bl/dry', 'e');
COMMIT;
SELECT rl_block('bl', 'c', '1 second');
SELECT ok FROM rl_limit('bl', 'd', 3), rl_block('bl', 'd', '1 second');
SELECT ok, retry_after, remaining FROM rl_check('bl', 'c', 3);
SELECT ok, retry_after, remaining FROM rl_check('bl', 'd', 3);
-- It outlives reset, redefinition and undefinition; what is given back is taken.
SELECT name, rl_reset(name, 'a'), rl_reset_all(name) >= 0 FROM bl;
SELECT ok, remaining FROM rl_credit('bl', 'a', 1);
SELECT rl_define('bl', rl_fixed_window(9, '1 minute') || '{"store": "memory"}'), rl_define('bl/memory', rl_token_bucket(9, '1 minute'));
SELECT name, ok, retry_after FROM bl, rl_limit(name, 'a');
SELECT rl_undefine('bl');
SELECT ok, retry_after FROM rl_limit('bl', 'a', config => rl_token_bucket(1, '1 minute'));
SELECT rl_define('bl', rl_token_bucket(3, '1 minute')), rl_define('bl/memory', rl_token_bucket(3, '1 minute') || '{"store": "memory"}');
SELECT rl_define('bl', rl_token_bucket(5, '1 minute'), 'a');
SELECT ok, retry_after, capacity FROM rl_limit('bl', 'a');
-- rl_status shows it, with or without a state.
SELECT name, key, kind, remaining, capacity, retry_at, shards, limited FROM rl_status() WHERE name LIKE 'bl%';
SELECT name, key, retry_at, limited FROM rl_status('bl');
SELECT name, key, retry_at, limited FROM rl_status('bl/memory', 'a');
SELECT name, key, retry_at, limited FROM rl_status(key => 'a') WHERE name LIKE 'bl%';
SELECT rl_block('bl/undefined', 'x', '1 hour');
-- A notice, since the name may be mistyped; not where the key has a definition of its own.
SELECT rl_define('bl/undefined', rl_unlimited(), 'own');
SELECT rl_block('bl/undefined', 'own', '1 hour'), rl_unblock('bl/undefined', 'own'), rl_undefine('bl/undefined', 'own');
SELECT * FROM rl_status('bl/undefined');
SELECT * FROM rl_status('bl/undefined', 'x');
SELECT error_of($$SELECT rl_limit('bl/undefined', 'x')$$);
-- A later one replaces it, longer or shorter; indefinitely; to the microsecond.
SELECT rl_block('bl', 'a', until => 'infinity');
SELECT ok, retry_after, retry_at FROM rl_limit('bl', 'a');
SELECT rl_limit('bl', 'a', throws => true);
SELECT ok FROM rl_limit('bl/shards', 'z', 4);
SELECT rl_limit_all('[{"name": "bl", "key": "a"}, {"name": "bl/shards", "key": "z"}]', throws => true);
SELECT name, key, retry_at, limited FROM rl_status('bl', 'a');
SELECT until FROM rl_blocks WHERE name = 'bl' AND key = 'a';
SELECT rl_block('bl', 'a', until => '2027-01-01 12:30:00+00');
SET ratelimit.clock = '2027-01-01 12:29:59.999999+00';
SELECT ok, retry_after, retry_at FROM rl_limit('bl', 'a');
SET ratelimit.clock = '2027-01-01 12:30:00+00';
SELECT ok, remaining FROM rl_limit('bl', 'a');
-- Ended by hand, and by a rollback.
SELECT rl_unblock('bl/no', 'a'), rl_unblock('bl/no', 'a'), rl_unblock('bl/no', 'nobody'), rl_unblock('bl', 'a');
SELECT ok FROM rl_limit('bl/no', 'a');
BEGIN;
SELECT rl_block('bl/no', 'a', '1 hour');
SELECT ok FROM rl_limit('bl/no', 'a');
ROLLBACK;
SELECT ok FROM rl_limit('bl/no', 'a');
-- The limit without keys.
-- Months and days are those of the calendar.
BEGIN;
SET LOCAL timezone = 'Europe/Berlin';
SELECT rl_block('bl/no', duration => '3 months');
ROLLBACK;
SELECT rl_block('bl/no', duration => '1 month');
SELECT ok, retry_at FROM rl_limit('bl/no');
SELECT ok FROM rl_limit('bl/no', 'a');
-- Denials by a block are counted, and a trigger refuses.
SELECT name, allowed, denied, denied_in_dry_run FROM rl_stats() WHERE name = 'bl/dry';
SELECT rl_block('bl/log', 'a', '1 hour');
CREATE TABLE bl_rows (who text);
CREATE TRIGGER limited BEFORE INSERT ON bl_rows FOR EACH ROW EXECUTE FUNCTION rl_trigger('bl/log', 'key=who');
SELECT error_of($$INSERT INTO bl_rows VALUES ('a')$$);
INSERT INTO bl_rows VALUES ('b');
-- Read-only transactions see it.
BEGIN READ ONLY;
SELECT ok, retry_after FROM rl_limit('bl/memory', 'a');
SELECT error_of($$SELECT rl_block('bl', 'a', '1 hour')$$), error_of($$SELECT rl_unblock('bl', 'a')$$);
ROLLBACK;
-- By plain SQL, as an operator would; pruned when over.
INSERT INTO rl_blocks SELECT 'bl', 'plain' || n, '2027-01-01 13:00:00+00' FROM generate_series(1, 5) n;
SELECT ok, retry_after FROM rl_limit('bl', 'plain3');
DELETE FROM rl_blocks WHERE key = 'plain3';
SELECT ok FROM rl_limit('bl', 'plain3');
UPDATE rl_blocks SET until = '2027-01-01 12:45:00+00' WHERE key = 'plain4';
SELECT ok, retry_after FROM rl_limit('bl', 'plain4');
SELECT error_of($$INSERT INTO rl_blocks VALUES ('', 'k', 'infinity')$$), error_of($$INSERT INTO rl_blocks VALUES ('bl', repeat('k', 1025), 'infinity')$$);
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT ok FROM rl_limit('bl', 'plain1');
SELECT rl_prune(2) >= 2, (SELECT count(*) FROM rl_blocks WHERE key LIKE 'plain%');
SELECT rl_prune() > 0;
SELECT name, key, until FROM rl_blocks ORDER BY 1, 2;
-- The end of a block is returned whatever the limiter's clock shows.
SET ratelimit.clock = '2026-01-01 12:00:00+00';
SELECT rl_block('bl/no', 'past', '1 hour') IS NOT NULL;
SELECT ok FROM rl_limit('bl/no', 'past');
SELECT rl_unblock('bl/no', 'past');
SELECT ok FROM rl_limit('bl/no', 'past');
SET ratelimit.clock = '2027-01-01 13:00:00+00';
TRUNCATE rl_blocks;
SELECT ok FROM rl_limit('bl/no');
SELECT error_of(call) FROM unnest(ARRAY[
    $$SELECT rl_block('bl', 'a')$$,
    $$SELECT rl_block('bl', 'a', '1 hour', '2028-01-01')$$,
    $$SELECT rl_block('bl', 'a', '0')$$,
    $$SELECT rl_block('bl', 'a', '-1 day')$$,
    $$SELECT rl_block('bl', 'a', until => '2027-01-01 13:00:00+00')$$,
    $$SELECT rl_block('bl', 'a', until => '-infinity')$$,
    $$SELECT rl_block('', 'a', '1 hour')$$,
    $$SELECT rl_block('bl', repeat('k', 1025), '1 hour')$$,
    $$SELECT rl_block(NULL, 'a', '1 hour')$$,
    $$SELECT rl_block('bl', NULL, '1 hour')$$,
    $$SELECT rl_block('bl', 'a', '300000 years')$$,
    $$SELECT rl_unblock('bl', NULL)$$]) call;
DROP VIEW bl;

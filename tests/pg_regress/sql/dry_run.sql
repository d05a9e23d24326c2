-- A dry run: what would be denied passes, changes nothing, and is counted.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_stats_reset() \g /dev/null
CREATE FUNCTION dry(config jsonb) RETURNS jsonb IMMUTABLE RETURN config || '{"enforce": false}';
SELECT rl_define('dry', dry(rl_token_bucket(2, '1 day'))),
       rl_define('dry/memory', dry(rl_fixed_window(2, '1 day', start => '2027-01-01 00:00:00+00')) || '{"store": "memory"}'),
       rl_define('dry/shards', dry(rl_token_bucket(2, '1 day', shards => 2))),
       rl_define('dry/log', dry(rl_sliding_log(2, '1 day')));
SELECT name, n, result.* FROM unnest(ARRAY['dry', 'dry/memory', 'dry/shards', 'dry/log']) name, generate_series(1, 4) n, rl_limit(name, substr('a', 1, n)) result ORDER BY name, n;
SELECT name, allowed, denied, denied_in_dry_run, tokens FROM rl_stats() WHERE name LIKE 'dry%';
SELECT name, key, denied FROM rl_top_denied() WHERE name LIKE 'dry%' ORDER BY 1, 2;
-- rl_check and headers show what it would have been; with throws nothing is raised.
SELECT name, result.* FROM unnest(ARRAY['dry', 'dry/memory']) name, rl_check(name, 'a') result;
SELECT rl_headers('dry', rl_check('dry', 'a')), rl_headers('dry', rl_limit('dry', 'a'));
SELECT ok FROM rl_limit('dry', 'a', throws => true);
SELECT ok FROM rl_check('dry', 'a', throws => true);
-- rl_status shows it, too.
SELECT name, remaining, retry_at, limited FROM rl_status(key => 'a') WHERE name LIKE 'dry%';
SELECT remaining, limited FROM rl_status('dry/memory', 'a');
-- A reservation that is allowed still returns its wait; one that is not passes.
SELECT ok, retry_after, remaining FROM rl_limit('dry', 'b', 3, reserve => true);
SELECT rl_define('dry/debt', dry(rl_token_bucket(2, '1 day', max_reserved => 1)));
SELECT ok, retry_after, remaining FROM rl_limit('dry/debt', 'b', 4, reserve => true);
-- Of several limits it refuses nothing, and takes what it has.
SELECT rl_define('dry/not', rl_token_bucket(2, '1 day'));
SELECT name, ok, allows, retry_after, remaining FROM rl_limit_all('[{"name": "dry", "key": "a"}, {"name": "dry/not", "key": "a"}, {"name": "dry/memory", "key": "a"}]');
SELECT name, ok, allows, retry_after, remaining FROM rl_check_all('[{"name": "dry", "key": "a"}, {"name": "dry/not", "key": "a"}, {"name": "dry", "key": "c"}]');
SELECT name, ok, allows, retry_after, remaining FROM rl_limit_all('[{"name": "dry", "key": "a", "count": 9}, {"name": "dry/not", "key": "a", "count": 2}, {"name": "dry", "key": "c"}]');
SELECT name, ok, allows FROM rl_limit_all('[{"name": "dry", "key": "a"}, {"name": "dry", "key": "a"}]', throws => true);
SELECT error_of($$SELECT rl_limit_all('[{"name": "dry", "key": "a", "count": 9}, {"name": "dry/not", "key": "a", "count": 2}]', throws => true)$$);
SELECT name, allowed, denied, denied_in_dry_run, tokens FROM rl_stats() WHERE name LIKE 'dry%';
-- A trigger admits, and the log of denials shows what would be denied.
SET ratelimit.log_denials = 1;
SET client_min_messages = log;
CREATE TABLE dry_rows (who text);
CREATE TRIGGER limited BEFORE INSERT ON dry_rows FOR EACH ROW EXECUTE FUNCTION rl_trigger('dry', 'key=who');
INSERT INTO dry_rows SELECT 'a' FROM generate_series(1, 3);
SELECT name, ok, allows FROM rl_limit_all('[{"name": "dry", "key": "a"}]');
SELECT count(*) FROM dry_rows;
RESET client_min_messages;
RESET ratelimit.log_denials;
-- Then it bites.
SELECT rl_define('dry', rl_token_bucket(2, '1 day'));
SELECT ok, retry_after FROM rl_limit('dry', 'a');
DROP TABLE dry_rows;
DROP FUNCTION dry;

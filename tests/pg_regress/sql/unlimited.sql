-- An exempt key, and an exempt name: always ok, nothing is written, calls are counted.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_stats_reset() \g /dev/null
SELECT rl_unlimited();
SELECT rl_define('ex', rl_token_bucket(2, '1 minute')), rl_define('ex', rl_unlimited(), 'vip'), rl_define('ex/all', rl_unlimited());
SELECT * FROM rl_limit('ex', 'vip', 1000000);
SELECT * FROM rl_check('ex', 'vip', 0.5, reserve => true);
SELECT * FROM rl_credit('ex', 'vip', 3);
SELECT ok, remaining FROM rl_limit('ex', 'other');
SELECT name, key, ok, allows, remaining, capacity FROM rl_limit_all('[{"name": "ex", "key": "vip"}, {"name": "ex", "key": "other"}, {"name": "ex/all", "count": 9}]');
SELECT name, key, ok, allows, retry_after FROM rl_limit_all('[{"name": "ex", "key": "vip"}, {"name": "ex", "key": "other"}]');
SELECT name, ok FROM rl_check_all('[{"name": "ex", "key": "vip"}, {"name": "ex/all", "count": 9}]');
SELECT name, key FROM rateLimits WHERE name LIKE 'ex%';
SELECT name, allowed, denied, tokens FROM rl_stats() WHERE name LIKE 'ex%';
SELECT * FROM rl_status('ex', 'vip');
SELECT rl_value('ex', 'vip') -> 'state', rl_reset('ex', 'vip');
-- Headers show no limit.
SELECT rl_headers('ex', r), rl_headers('ex', r, 'github'), rl_headers('ex', r, 'postgrest') FROM rl_limit('ex', 'vip') r;
-- In a read-only transaction, alone and with others.
BEGIN READ ONLY;
SELECT ok FROM rl_limit('ex', 'vip');
SELECT name, ok FROM rl_limit_all('[{"name": "ex", "key": "vip"}, {"name": "ex/all"}]');
SELECT error_of($$SELECT rl_limit_all('[{"name": "ex", "key": "vip"}, {"name": "ex", "key": "other"}]')$$);
ROLLBACK;
SELECT rl_define('ex/memory', rl_token_bucket(1, '1 minute') || '{"store": "memory"}');
BEGIN READ ONLY;
SELECT name, ok, remaining FROM rl_limit_all('[{"name": "ex", "key": "vip"}, {"name": "ex/memory"}]');
SELECT name, ok, remaining FROM rl_limit_all('[{"name": "ex", "key": "vip"}, {"name": "ex/memory"}]');
ROLLBACK;
-- What was taken before is there again afterwards, also if rl_prune came by.
SELECT rl_undefine('ex', 'vip');
SELECT ok, remaining FROM rl_limit('ex', 'vip');
SELECT rl_define('ex', rl_unlimited() || '{"store": "memory"}', 'vip');
SELECT ok, remaining FROM rl_limit('ex', 'vip', 5);
SELECT rl_define('ex', rl_unlimited() || '{"enforce": false}', 'vip');
SELECT ok, remaining FROM rl_limit('ex', 'vip', 5);
SELECT rl_undefine('ex', 'vip');
SELECT ok, remaining FROM rl_limit('ex', 'vip');
SELECT rl_define('ex', rl_unlimited(), 'vip');
SELECT name, kind, remaining, capacity, limited FROM rl_status('ex', 'vip');
SELECT rl_prune() >= 0;
SELECT count(*) FROM rateLimits WHERE name = 'ex' AND key = 'vip';
SELECT rl_undefine('ex', 'vip');
SELECT ok, remaining FROM rl_limit('ex', 'vip');
SELECT rl_define('ex', rl_unlimited(), 'vip');
-- In a trigger, and alone.
CREATE TABLE ex_rows (who text);
CREATE TRIGGER limited BEFORE INSERT ON ex_rows FOR EACH ROW EXECUTE FUNCTION rl_trigger('ex', 'key=who');
INSERT INTO ex_rows SELECT 'vip' FROM generate_series(1, 100);
SELECT * FROM rl_calculate(rl_unlimited(), NULL, '2027-01-01 00:00:00+00', 5);
SELECT ok FROM rl_limit('ex', 'vip', throws => true);
SELECT error_of(call) FROM unnest(ARRAY[
    $$SELECT rl_define('ex/bad', rl_unlimited() || '{"rate": 1}')$$,
    $$SELECT rl_define('ex/bad', rl_unlimited() || '{"store": "disk"}')$$,
    $$SELECT rl_limit('ex', 'vip', -1)$$,
    $$SELECT rl_limit('ex', 'vip', 'NaN')$$,
    $$SELECT * FROM rl_calculate(rl_unlimited(), '{"value": 1, "ts": 0}', now())$$]) call;
SELECT ok, lease FROM rl_acquire('ex', 'vip');
-- An earlier lease goes on.
SELECT rl_extend('ex/vip/1798804800000000'), rl_release('ex/vip/1798804800000000');
-- A name that is exempt, but for one key: its headers are those of its own limit.
SELECT rl_define('ex/all', rl_token_bucket(5, '1 minute'), 'one');
SELECT rl_headers('ex/all', r) FROM rl_limit('ex/all', 'one') r;

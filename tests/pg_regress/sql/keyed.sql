-- "keyed": true refuses the empty key, which is everybody's, wherever a call is made for a key.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('kd', rl_token_bucket(3, '1 minute') || '{"keyed": true}'),
       rl_define('kd/memory', rl_token_bucket(3, '1 minute') || '{"keyed": true, "store": "memory"}'),
       rl_define('kd/slots', rl_concurrency(3, '1 minute') || '{"keyed": true}'),
       rl_define('kd/slots/memory', rl_concurrency(3, '1 minute') || '{"keyed": true, "store": "memory"}'),
       rl_define('kd/shards', rl_fixed_window(8, '1 minute', shards => 2) || '{"keyed": true}'),
       rl_define('kd/free', rl_unlimited() || '{"keyed": true}'),
       rl_define('kd/dry', rl_sliding_window(3, '1 minute') || '{"keyed": true, "enforce": false}'),
       rl_define('open', rl_token_bucket(3, '1 minute') || '{"keyed": false}');
\a \t
-- Each function, without a key and with the empty one.
SELECT call, error_of(call, true) FROM unnest(ARRAY[
    'SELECT rl_limit(''kd'')', 'SELECT rl_limit(''kd'', '''')', 'SELECT rl_limit(''kd'', '''', 0)', 'SELECT rl_check(''kd'')',
    'SELECT rl_credit(''kd'', '''', 1)', 'SELECT rl_value(''kd'')', 'SELECT rl_reset(''kd'')',
    'SELECT rl_limit_all(''[{"name": "open"}, {"name": "kd"}]'')', 'SELECT rl_check_all(''[{"name": "kd", "key": ""}]'')',
    'SELECT rl_block(''kd'', duration => ''1 hour'')', 'SELECT rl_block(''kd'', '''', until => ''infinity'')',
    'SELECT rl_limit(''kd/memory'')', 'SELECT rl_limit_all(''[{"name": "kd/memory"}]'')', 'SELECT rl_reset(''kd/memory'')',
    'SELECT rl_acquire(''kd/slots'')', 'SELECT rl_acquire(''kd/slots/memory'')', 'SELECT rl_reset(''kd/slots/memory'')', 'SELECT rl_limit(''kd/shards'')', 'SELECT rl_limit(''kd/free'')', 'SELECT rl_limit(''kd/dry'')',
    'SELECT rl_limit(''kd/mine'', config => rl_unlimited() || ''{"keyed": true}'')',
    'SELECT rl_limit(''kd'', config => rl_token_bucket(3, ''1 minute''))', 'SELECT rl_limit(''open'', config => rl_token_bucket(3, ''1 minute'') || ''{"keyed": true}'')']) call;
-- What is written without a key of the rows.
CREATE TABLE kd_rows (author text);
CREATE TRIGGER a BEFORE INSERT ON kd_rows FOR EACH ROW EXECUTE FUNCTION rl_trigger('kd');
SELECT error_of('INSERT INTO kd_rows VALUES (''ada'')', true);
DROP TRIGGER a ON kd_rows;
CREATE TRIGGER a AFTER INSERT ON kd_rows REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('kd', 'key=author');
SELECT error_of('INSERT INTO kd_rows VALUES (''ada''), ('''')');
SELECT error_of('INSERT INTO kd_rows VALUES (''ada'')');
DROP TABLE kd_rows;
-- Nothing was taken, and with a key all is as it was.
SELECT remaining FROM rl_limit('kd', 'ada');
SELECT remaining FROM rl_limit('kd/memory', 'ada');
SELECT name, remaining FROM rl_limit_all('[{"name": "open"}, {"name": "kd", "key": "bo"}]');
SELECT rl_reset('kd', 'ada'), rl_block('kd', 'ada', '1 hour'), rl_unblock('kd', 'ada');
SELECT count(*) FROM rateLimits WHERE name LIKE 'kd%' AND key = '';
-- '' is for all keys, or all rows, in definitions, in rl_status and where every key is meant.
SELECT rl_define('kd', rl_token_bucket(4, '1 minute') || '{"keyed": true}', ''), rl_define('kd', rl_token_bucket(9, '1 minute'), 'vip'), rl_reset_all('kd'), rl_unblock('kd');
SELECT remaining FROM rl_check('kd', 'vip');
SELECT error_of('SELECT rl_check(''kd'')');
SELECT key FROM rl_status('kd', '');
SELECT rl_headers('kd', (true, NULL, NULL, 3, 4, NULL)::rl_result);
-- What was held before goes on to its end: a lease is given with its key.
SELECT rl_define('kd/slots', rl_concurrency(3, '1 minute'));
SELECT lease AS held FROM rl_acquire('kd/slots') \gset
SELECT rl_define('kd/slots', rl_concurrency(3, '1 minute') || '{"keyed": true}');
SELECT rl_extend(:'held'), rl_release(:'held');
SELECT rl_undefine('kd', '');
-- A name that is no boolean.
SELECT error_of('SELECT rl_define(''kd'', rl_unlimited() || ''{"keyed": 1}'')');
\a \t

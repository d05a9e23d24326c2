-- Several limits in one call: all or nothing, a row a request in the order given.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('la/user', rl_token_bucket(10, '10 seconds', max_reserved => 5)),
       rl_define('la/window', rl_fixed_window(5, '1 minute', start => '2027-01-01 00:00:00+00')),
       rl_define('la/sliding', rl_sliding_window(8, '1 minute')),
       rl_define('la/log', rl_sliding_log(4, '1 minute')),
       rl_define('la/global', rl_token_bucket(100, '100 seconds', shards => 4));
\echo all pass
SELECT * FROM rl_limit_all('[{"name":"la/user","key":"u1","count":2},{"name":"la/global"},{"name":"la/log","count":3},{"name":"la/window","key":"u1"},{"name":"la/sliding"}]');
SELECT name, key, sum(value) FROM rateLimits WHERE name LIKE 'la/%' GROUP BY 1, 2 ORDER BY 1, 2;
\echo one refuses: nothing is taken, and the rows say which
SELECT * FROM rl_limit_all('[{"name":"la/user","key":"u1","count":2},{"name":"la/log","count":2},{"name":"la/global"},{"name":"la/window","key":"u1","count":9}]');
SELECT ok, max(retry_after) FROM rl_limit_all('[{"name":"la/user","key":"u1","count":9},{"name":"la/log","count":2}]') GROUP BY ok;
SELECT name, key, sum(value) FROM rateLimits WHERE name LIKE 'la/%' GROUP BY 1, 2 ORDER BY 1, 2;
\echo the retry time is when all pass
SET ratelimit.clock = '2027-01-01 12:00:59.999+00';
SELECT bool_and(ok) FROM rl_check_all('[{"name":"la/user","key":"u1","count":9},{"name":"la/log","count":2}]');
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT bool_and(ok) FROM rl_check_all('[{"name":"la/user","key":"u1","count":9},{"name":"la/log","count":2}]');
\echo a refused call on new keys leaves no row; nor does rl_check_all
SELECT count(*) FROM rl_limit_all('[{"name":"la/user","key":"new"},{"name":"la/user","key":"newer","count":11}]');
SELECT ok, allows, remaining FROM rl_check_all('[{"name":"la/user","key":"new","count":4},{"name":"la/user","key":"newer"}]');
SELECT count(*) FROM rateLimits WHERE key LIKE 'new%';
\echo the same limit twice counts together
SELECT n, ok, allows, retry_after, remaining FROM rl_limit_all('[{"name":"la/user","key":"u2","count":6},{"name":"la/user","key":"u2","count":4}]');
SELECT rl_reset('la/user', 'u2');
SELECT n, ok, allows, retry_after, remaining FROM rl_limit_all('[{"name":"la/user","key":"u2","count":6},{"name":"la/user","key":"u3"},{"name":"la/user","key":"u2","count":5}]');
SELECT n, ok, allows, retry_after, remaining FROM rl_limit_all('[{"name":"la/user","key":"u2","count":3},{"name":"la/user","key":"u2","count":5}]');
SELECT n, ok, allows, retry_after, remaining FROM rl_limit_all('[{"name":"la/user","key":"u2","count":3},{"name":"la/user","key":"u2","count":6},{"name":"la/user","key":"u2","count":1}]');
SET ratelimit.clock = '2027-01-01 12:01:07.999+00';
SELECT DISTINCT ok FROM rl_check_all('[{"name":"la/user","key":"u2","count":3},{"name":"la/user","key":"u2","count":6},{"name":"la/user","key":"u2","count":1}]');
SET ratelimit.clock = '2027-01-01 12:01:08+00';
SELECT DISTINCT ok FROM rl_check_all('[{"name":"la/user","key":"u2","count":3},{"name":"la/user","key":"u2","count":6},{"name":"la/user","key":"u2","count":1}]');
\echo reserve
SELECT n, ok, retry_after, remaining FROM rl_limit_all('[{"name":"la/user","key":"u4","count":12,"reserve":true},{"name":"la/user","key":"u5"}]');
SELECT n, ok, allows, retry_after, remaining FROM rl_limit_all('[{"name":"la/user","key":"u4","count":4,"reserve":true},{"name":"la/user","key":"u5"}]');
\echo more than one row of a sharded limit
SELECT rl_reset('la/global');
SELECT n, ok, remaining FROM rl_limit_all('[{"name":"la/global","count":60},{"name":"la/global","count":30}]');
SELECT n, ok, allows, retry_after FROM rl_limit_all('[{"name":"la/global","count":11},{"name":"la/user","key":"u5"}]');
SELECT n, ok, remaining FROM rl_limit_all('[{"name":"la/global","count":10},{"name":"la/user","key":"u5"}]');
\echo a count of 0 asks and writes nothing
SELECT ok, allows, remaining FROM rl_limit_all('[{"name":"la/user","key":"zero","count":0},{"name":"la/user","key":"u4","count":0}]');
SELECT count(*) FROM rateLimits WHERE key = 'zero';
\echo its own config
SELECT ok, remaining FROM rl_limit_all(jsonb_build_array(jsonb_build_object('name', 'la/inline', 'key', 'ü', 'config', rl_sliding_log(3, '1 minute'))));
SELECT name, key FROM rateLimits WHERE name = 'la/inline';
\echo where one can never pass, the call never can
SELECT name, key, allows, retry_after FROM rl_limit_all('[{"name":"la/user","key":"u4"},{"name":"la/user","key":"u9","count":11},{"name":"la/user","key":"u8"}]');
\echo throws: the limit to wait for longest is named
SELECT error_of($$SELECT rl_limit_all('[{"name":"la/user","key":"u1"},{"name":"la/window","key":"u1","count":5},{"name":"la/log","count":4}]', throws => true)$$, true);
SELECT error_of($$SELECT rl_limit_all('[{"name":"la/user","key":"u4"},{"name":"la/log","count":4},{"name":"la/window","key":"u1"}]', throws => true)$$, true);
SELECT error_of($$SELECT rl_limit_all('[{"name":"la/window","key":"u1"},{"name":"la/user","key":"u4","count":14}]', throws => true)$$, true);
SELECT error_of($$SELECT rl_check_all('[{"name":"la/user","key":"u4","count":3}]', throws => true)$$, true);
SELECT error_of($$SELECT rl_limit_all('[{"name":"la/user","key":"u9"}]', throws => true)$$);
\echo rolled back with the transaction, and with a savepoint
BEGIN;
SELECT ok FROM rl_limit_all('[{"name":"la/user","key":"tx"},{"name":"la/window","key":"tx"}]');
SAVEPOINT s;
SELECT ok FROM rl_limit_all('[{"name":"la/user","key":"tx"},{"name":"la/window","key":"tx"}]');
ROLLBACK TO s;
SELECT key, name, value FROM rateLimits WHERE key = 'tx' ORDER BY name;
ROLLBACK;
SELECT count(*) FROM rateLimits WHERE key = 'tx';
\echo more than 1,000 requests in one call
SELECT count(*), bool_and(ok), min(remaining), count(DISTINCT key) FROM rl_limit_all((SELECT jsonb_agg(jsonb_build_object('name', 'la/user', 'key', 'many' || n % 1500)) FROM generate_series(1, 3000) n));
SELECT count(*), bool_or(ok), count(*) FILTER (WHERE NOT allows) AS refusals FROM rl_limit_all((SELECT jsonb_agg(jsonb_build_object('name', 'la/user', 'key', 'many' || n, 'count', CASE WHEN n = 7 THEN 9 ELSE 1 END)) FROM generate_series(1, 1500) n));
SELECT count(*), min(value), max(value) FROM rateLimits WHERE key LIKE 'many%';
\echo in the target list, in PL/pgSQL
SELECT (rl_limit_all('[{"name":"la/user","key":"u6"},{"name":"la/user","key":"u7"}]')).ok;
DO $$ DECLARE r record; BEGIN
    FOR r IN SELECT name, key, ok FROM rl_limit_all('[{"name":"la/user","key":"u6"},{"name":"la/user","key":"u7"}]') LOOP
        RAISE NOTICE '% % %', r.name, r.key, r.ok;
    END LOOP;
END $$;
SELECT r.name, c.remaining FROM (VALUES ('la/user', 'u6')) r (name, key), rl_check_all(jsonb_build_array(jsonb_build_object('name', r.name, 'key', r.key))) c;
\echo errors
SELECT requests || ' | ' || error_of(format('SELECT rl_limit_all(%L)', requests)) AS error FROM unnest(ARRAY[
    '[]', '{}', '{"name": "la/user"}', '"la/user"', 'null', '[1]', '[null]', '[[]]', '[{}]', '[{"key": "k"}]',
    '[{"name": null}]', '[{"name": 5}]', '[{"name": ""}]', '[{"name": "la/user", "key": null}]',
    '[{"name": "la/user"}, {"name": "la/user", "key": 7}]', '[{"name": "la/user", "count": "1"}]',
    '[{"name": "la/user", "count": null}]', '[{"name": "la/user", "count": -1}]', '[{"name": "la/user", "count": 1e400}]',
    '[{"name": "la/user", "count": 2e15}]', '[{"name": "la/log", "count": 1.5}]', '[{"name": "la/user", "reserve": 1}]',
    '[{"name": "la/user", "reserve": null}]', '[{"name": "la/user", "throws": true}]', '[{"name": "la/user"}, {"name": "la/none"}]',
    '[{"name": "la/none", "config": {"kind": "token bucket"}}]', '[{"name": "la/none", "config": 1}]',
    '[{"name": "la/none", "config": {"kind": "token bucket", "rate": 1, "period": 1}}, {"name": "la/none", "config": {"kind": "token bucket", "rate": 2, "period": 1}}]',
    '[{"name": "la/user", "name ": "x"}]']) requests;
SELECT error_of('SELECT rl_limit_all(NULL)');
SELECT error_of('SELECT rl_limit_all(''[{"name": "la/user"}]'', NULL)');
SELECT error_of(format('SELECT rl_limit_all(%L)', jsonb_build_array(jsonb_build_object('name', repeat('n', 201)))));
SELECT error_of(format('SELECT rl_limit_all(%L)', jsonb_build_array(jsonb_build_object('name', 'la/user', 'key', repeat('k', 1025)))));
-- The list has bounds, and so have its items.
SELECT error_of($$SELECT rl_limit_all((SELECT jsonb_agg('{"name": "la/user", "count": 0}'::jsonb) FROM generate_series(1, 10001)))$$);
SELECT count(*) FROM rl_limit_all((SELECT jsonb_agg('{"name": "la/user", "count": 0}'::jsonb) FROM generate_series(1, 10000)));
SELECT error_of($$SELECT rl_check_all(jsonb_build_array(jsonb_build_object('name', 'la/user', 'key', repeat('k', 2000000))))$$);
SELECT error_of($$SELECT rl_check_all(jsonb_build_array(jsonb_build_object('name', 'la/user', 'key', repeat('k', 7000))))$$);
SELECT error_of($$SELECT rl_check_all(jsonb_build_array(jsonb_build_object('name', repeat('n', 2000))))$$);
SELECT error_of($$SELECT rl_check_all(jsonb_build_array(jsonb_build_object('name', 'la/none', 'config', jsonb_build_object('kind', repeat('k', 10000)))))$$);
BEGIN READ ONLY;
SELECT ok FROM rl_check_all('[{"name": "la/user", "key": "u6"}]');
SELECT rl_limit_all('[{"name": "la/user", "key": "u6"}]');
ROLLBACK;

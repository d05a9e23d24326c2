-- Numbers about all limits: what is counted, by whom it can be seen, and how it is forgotten.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_stats_reset() \g /dev/null
SELECT rl_define('st/table', rl_token_bucket(3, '1 day')),
       rl_define('st/memory', rl_token_bucket(3, '1 day') || '{"store": "memory"}'),
       rl_define('st/shards', rl_token_bucket(8, '1 day', shards => 4)),
       rl_define('st/log', rl_sliding_log(2, '1 day'));
CREATE VIEW st AS SELECT name, allowed, denied, denied_in_dry_run, tokens FROM rl_stats() WHERE name LIKE 'st/%';
SELECT * FROM st;
SELECT name, count(*) FILTER (WHERE ok) AS allowed, count(*) FILTER (WHERE NOT ok) AS denied
FROM generate_series(1, 5) n, unnest(ARRAY['st/table', 'st/memory', 'st/shards', 'st/log']) name, rl_limit(name, substr('a', 1, n))
GROUP BY name ORDER BY name;
SELECT * FROM st;
-- What rolls back was asked all the same; what only asks, gives back or is refused by an error is no call.
BEGIN;
SELECT ok FROM rl_limit('st/table', 'b', 2.5);
ROLLBACK;
SELECT ok FROM rl_check('st/table', 'a');
SELECT ok FROM rl_credit('st/table', 'b', -1);
SELECT error_of('SELECT rl_limit(''st/table'', ''b'', -1)');
SELECT error_of('SELECT rl_limit(''st/undefined'', ''b'')');
SELECT error_of('SELECT rl_limit(''st/table'', ''a'', throws => true)');
SELECT * FROM st WHERE name = 'st/table';
-- Of several, those that refuse; a trigger's calls; a config in the call.
SELECT name, ok, allows FROM rl_limit_all('[{"name": "st/table", "key": "c"}, {"name": "st/memory", "key": "c", "count": 9}, {"name": "st/log", "key": "a"}]');
SELECT name, ok, allows FROM rl_limit_all('[{"name": "st/table", "key": "c", "count": 0}, {"name": "st/memory", "key": "c", "count": 2}]');
CREATE TABLE st_rows (who text, tokens int);
CREATE TRIGGER limited AFTER INSERT ON st_rows REFERENCING NEW TABLE AS limited FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('st/table', 'key=who', 'count=tokens');
INSERT INTO st_rows VALUES ('d', 1), ('d', 1), ('e', 3);
SELECT ok FROM rl_limit('st/inline', config => rl_token_bucket(1, '1 day'));
SELECT * FROM st;
-- The keys that are denied most.
SELECT rl_limit('st/memory', 'often', 4) FROM generate_series(1, 20) \g /dev/null
SELECT rl_limit('st/table', E'h\u00fcbsch', 4) FROM generate_series(1, 7) \g /dev/null
SELECT * FROM rl_top_denied('st/memory');
SELECT * FROM rl_top_denied('st/table', 1);
SELECT * FROM rl_top_denied(max_rows => 3) WHERE name LIKE 'st/%';
SELECT * FROM rl_top_denied('st/shards', 2147483647);
SELECT error_of('SELECT rl_top_denied(max_rows => 0)'), error_of('SELECT rl_top_denied('''')');
-- A key that is too long for the list is cut between two characters; its count is right.
SELECT rl_limit('st/table', repeat('ü', 500), 4) FROM generate_series(1, 9) \g /dev/null
SELECT rl_limit('st/table', repeat('ü', 501), 4) FROM generate_series(1, 8) \g /dev/null
SELECT name, left(key, 3) AS key, length(key), denied, error FROM rl_top_denied('st/table', 2);
-- Forgotten by name, and all.
SELECT rl_stats_reset('st/table'), rl_stats_reset('st/nobody');
SELECT * FROM st;
SELECT name, key, denied FROM rl_top_denied() WHERE name LIKE 'st/%' ORDER BY 3 DESC, 1, 2;
SELECT since > now() - interval '1 hour' AND since <= clock_timestamp() AS since FROM rl_stats() WHERE name = 'st/table';
SELECT rl_stats_reset() > 4;
SELECT * FROM rl_top_denied();
SELECT sum(allowed + denied + denied_in_dry_run) FROM rl_stats();
-- Not counted.
SET ratelimit.track = off;
SELECT ok FROM rl_limit('st/table', 'f');
SELECT * FROM st WHERE name = 'st/table';
RESET ratelimit.track;
-- How much room there is.
SELECT keys >= 0, room, bytes BETWEEN 5000000 AND 20000000, dropped_idle, dropped_live, since <= clock_timestamp(), configured, dropped_calls >= 0 FROM rl_memory();
-- The setting is known to a new session that has loaded the library.
\c
LOAD 'ratelimit';
ALTER SYSTEM SET ratelimit.memory_keys = 2000;
ALTER SYSTEM RESET ratelimit.memory_keys;
-- The privileges to see it, and to set what is counted.
CREATE ROLE regress_rl_watcher;
SET ROLE regress_rl_watcher;
SELECT error_of(call) FROM unnest(ARRAY['SELECT rl_stats()', 'SELECT rl_top_denied()', 'SELECT rl_memory()', 'SELECT rl_stats_reset()', 'SET ratelimit.track = off', 'SET ratelimit.memory_keys = 2000']) call;
RESET ROLE;
GRANT EXECUTE ON FUNCTION rl_stats, rl_memory TO regress_rl_watcher;
SET ROLE regress_rl_watcher;
SELECT count(*) > 4 FROM rl_stats();
SELECT count(*) FROM rl_memory();
RESET ROLE;
REVOKE ALL ON FUNCTION rl_stats, rl_memory FROM regress_rl_watcher;
DROP ROLE regress_rl_watcher;
-- In a READ ONLY transaction, but not in a parallel query.
BEGIN READ ONLY;
SELECT count(*) > 4 FROM rl_stats();
COMMIT;
DROP VIEW st;
DROP TABLE st_rows;

-- How rl_prune reads and writes the rows of this node, and what it does where a definition is bad.
\set home :DBNAME
CREATE DATABASE regress_rl_prune TEMPLATE template0;
\c regress_rl_prune
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-02 14:05:43+00';
CREATE EXTENSION ratelimit;
SELECT rl_define('bucket', rl_token_bucket(10, '10 seconds')), rl_define('window', rl_fixed_window(3, '1 minute', start => '2027-01-01 00:00:00+00'));
\echo a batch goes on where the last one ended: 20 of them read the table about once, not 20 times from its start
INSERT INTO rateLimits (name, key, kind, value, ts) SELECT 'bucket', n, 't', CASE n % 3 WHEN 0 THEN 9 ELSE 0 END, '2027-01-02 14:05:43+00' FROM generate_series(1, 21000) n;
VACUUM ANALYZE rateLimits;
SET ratelimit.clock = '2027-01-02 14:05:44+00';
BEGIN;
SELECT sum(pruned), count(*) FROM generate_series(1, 20) n, LATERAL (SELECT rl_prune(350) AS pruned, n) p;
-- A row that is deleted is read again to lock it, and to delete it.
SELECT pg_stat_get_xact_tuples_returned('ratelimits_pkey'::regclass) BETWEEN 21000 AND 21000 + 20 * 2048 + 3 * 7000 AS about_once;
COMMIT;
SELECT count(*), count(*) FILTER (WHERE key::int % 3 = 0) AS idle FROM rateLimits;
SELECT rl_prune();
\echo a bad definition keeps its rows
ALTER TABLE rl_config DISABLE TRIGGER ALL;
UPDATE rl_config SET config = '{}' WHERE name = 'bucket' AND key = '';
ALTER TABLE rl_config ENABLE ALWAYS TRIGGER rl_config_check, ENABLE ALWAYS TRIGGER rl_config_changed, ENABLE ALWAYS TRIGGER rl_config_truncated;
\c
SET ratelimit.clock = '2027-01-02 14:05:44+00';
SELECT ok FROM rl_limit('window', 'k');
SET ratelimit.clock = '2027-01-02 15:00:00+00';
SELECT rl_prune();
SELECT count(*) FROM rateLimits;
\echo where rows are reached directly, a key in one row takes no subtransaction: its id would stand in the row
SET ratelimit.access = heap;
SELECT rl_define('once', rl_token_bucket(10, '1 second'));
SELECT count(ok) FROM generate_series(1, 100) n, LATERAL rl_limit('once', n::text);
SET ratelimit.clock = '2027-01-02 16:00:00+00';
BEGIN;
SELECT pg_current_xact_id()::xid AS xid, rl_prune() \gset
ROLLBACK;
SELECT :rl_prune AS pruned, count(*) FROM rateLimits WHERE name = 'once' AND xmax = :'xid';
RESET ratelimit.access;
\c :home
DROP DATABASE regress_rl_prune;

-- rl_trigger AFTER an event FOR EACH STATEMENT: the rows of the transition table are added up, and
-- each key takes its tokens once, in byte order.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set SHOW_CONTEXT never
CREATE FUNCTION taken(name text) RETURNS TABLE (key text, taken float8) LANGUAGE sql AS $$
    SELECT s.key, s.capacity - s.remaining FROM rl_status(taken.name) s
$$;
SELECT rl_define('ts', rl_token_bucket(10, '1 minute'));
CREATE TABLE ts (author text, body text, tokens int DEFAULT 1);
CREATE TRIGGER a AFTER INSERT ON ts REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts', 'key=author', 'count=tokens');
INSERT INTO ts VALUES ('bob', 'x', 1), ('ada', 'x', 2), ('bob', 'x', 3), ('ada', 'x', 4), ('', 'x', 5) RETURNING author, tokens;
SELECT * FROM taken('ts');
-- The sum decides: each row alone would fit.
INSERT INTO ts VALUES ('cyd', 'x', 4), ('cyd', 'x', 4), ('cyd', 'x', 4);
\echo :SQLSTATE
SELECT count(*) FROM ts WHERE author = 'cyd';
-- One key that is denied denies the statement; the others get back theirs.
INSERT INTO ts VALUES ('dan', 'x', 10), ('ada', 'x', 5);
SELECT * FROM taken('ts');
-- No rows, nothing happens.
INSERT INTO ts SELECT 'eve' WHERE false;
SELECT rl_undefine('ts');
INSERT INTO ts SELECT 'eve' WHERE false;
INSERT INTO ts VALUES ('eve');
SELECT rl_define('ts', rl_token_bucket(10, '1 minute'));
COPY ts (author) FROM stdin;
zoe
yan
zoe
\.
SELECT * FROM taken('ts') WHERE key > 'u';
-- Without a key, without a count.
CREATE TABLE ts_options (author text, tokens numeric);
SELECT rl_define('ts/options', rl_token_bucket(100, '1 minute'));
CREATE TRIGGER a AFTER INSERT ON ts_options REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/options');
INSERT INTO ts_options SELECT 'x', 5 FROM generate_series(1, 7);
DROP TRIGGER a ON ts_options;
CREATE TRIGGER a AFTER INSERT ON ts_options REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/options', 'count=tokens');
INSERT INTO ts_options VALUES ('x', 0.5), ('y', 0.25), ('z', 0);
SELECT * FROM taken('ts/options');
-- Every row's count must be one; a sum can't hide that it is not.
INSERT INTO ts_options VALUES ('x', 5), ('y', -1);
INSERT INTO ts_options VALUES ('x', 5), ('y', 'NaN');
INSERT INTO ts_options VALUES ('x', 5), ('y', NULL);
INSERT INTO ts_options VALUES ('x', 1e15), ('y', 1e15);
-- UPDATE and DELETE, which see the rows that were updated or deleted; two triggers on one table.
CREATE TABLE ts_events (id int PRIMARY KEY, author text, size int GENERATED ALWAYS AS (length(author)) STORED);
SELECT rl_define('ts/update', rl_token_bucket(100, '1 minute'));
SELECT rl_define('ts/again', rl_token_bucket(100, '1 minute'));
SELECT rl_define('ts/delete', rl_token_bucket(100, '1 minute'));
SELECT rl_define('ts/insert', rl_token_bucket(100, '1 minute'));
CREATE TRIGGER a AFTER UPDATE ON ts_events REFERENCING NEW TABLE AS n OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/update', 'key=author');
CREATE TRIGGER b AFTER UPDATE ON ts_events REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/again', 'key=author', 'count=size');
CREATE TRIGGER c AFTER DELETE ON ts_events REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/delete', 'key=author', 'count=size');
CREATE TRIGGER d AFTER INSERT ON ts_events REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/insert', 'key=author', 'count=size');
INSERT INTO ts_events SELECT n, 'old' FROM generate_series(1, 5) n;
UPDATE ts_events SET author = 'updated' WHERE id <= 3;
DELETE FROM ts_events WHERE id <= 4;
SELECT 'insert' AS event, * FROM taken('ts/insert') UNION ALL SELECT 'update', * FROM taken('ts/update')
UNION ALL SELECT 'again', * FROM taken('ts/again') UNION ALL SELECT 'delete', * FROM taken('ts/delete');
-- ON CONFLICT: a row counts as what became of it.
INSERT INTO ts_events VALUES (5, 'nothing'), (6, 'inserted') ON CONFLICT DO NOTHING;
INSERT INTO ts_events VALUES (5, 'proposed'), (7, 'inserted') ON CONFLICT (id) DO UPDATE SET author = 'by conflict';
SELECT 'insert' AS event, * FROM taken('ts/insert') WHERE key <> 'old' UNION ALL SELECT 'update', * FROM taken('ts/update') WHERE key <> 'updated';
-- A trigger that reads the same transition table, before and after ours.
CREATE FUNCTION ts_read() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE '%: % rows', tg_name, (SELECT count(*) FROM n);
    RETURN NULL;
END
$$;
CREATE TRIGGER "0" AFTER INSERT ON ts_events REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION ts_read();
CREATE TRIGGER e AFTER INSERT ON ts_events REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION ts_read();
INSERT INTO ts_events SELECT n, 'read' FROM generate_series(11, 13) n;
SELECT * FROM taken('ts/insert') WHERE key = 'read';
-- Columns as a later row trigger leaves them: all BEFORE triggers have run.
CREATE FUNCTION rename() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.author := 'renamed'; RETURN NEW; END$$;
CREATE TRIGGER z BEFORE INSERT ON ts_events FOR EACH ROW EXECUTE FUNCTION rename();
INSERT INTO ts_events VALUES (21, 'x');
SELECT * FROM taken('ts/insert') WHERE key IN ('renamed', 'x');
-- With columns that older rows, and rows of partitions and of children, have elsewhere or not at all.
CREATE TABLE ts_parts (gone int, region text, author text) PARTITION BY LIST (region);
ALTER TABLE ts_parts DROP COLUMN gone;
CREATE TABLE ts_parts_eu PARTITION OF ts_parts FOR VALUES IN ('eu');
CREATE TABLE ts_parts_us (author text, region text);
ALTER TABLE ts_parts ATTACH PARTITION ts_parts_us FOR VALUES IN ('us');
INSERT INTO ts_parts VALUES ('eu', 'ada'), ('us', 'ada'), ('us', 'bob');
ALTER TABLE ts_parts ADD COLUMN tokens int NOT NULL DEFAULT 3;
SELECT rl_define('ts/parts', rl_token_bucket(100, '1 minute'));
CREATE TRIGGER a AFTER INSERT ON ts_parts REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/parts', 'key=author', 'count=tokens');
CREATE TRIGGER b AFTER UPDATE ON ts_parts REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/parts', 'key=author', 'count=tokens');
CREATE TRIGGER c AFTER DELETE ON ts_parts REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/parts', 'key=author', 'count=tokens');
INSERT INTO ts_parts VALUES ('eu', 'inserted', 1), ('us', 'inserted', 2);
-- A row that moves is one update.
UPDATE ts_parts SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END, author = 'moved' WHERE author = 'ada';
DELETE FROM ts_parts WHERE author = 'bob';
-- A statement that names the partition does not fire the trigger of the whole.
INSERT INTO ts_parts_eu VALUES ('eu', 'past it', 1);
SELECT * FROM taken('ts/parts');
CREATE TABLE ts_child (extra text) INHERITS (ts_options);
INSERT INTO ts_child VALUES ('child', 30, 'x');
CREATE TRIGGER b AFTER UPDATE ON ts_options REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/options', 'key=author', 'count=tokens');
UPDATE ts_options SET tokens = tokens + 1 WHERE author = 'child';
SELECT * FROM taken('ts/options') WHERE key = 'child';
-- MERGE: what it inserted, what it updated, what it deleted.
SELECT rl_reset_keys('ts/insert'), rl_reset_keys('ts/update'), rl_reset_keys('ts/delete');
DROP TRIGGER z ON ts_events;
MERGE INTO ts_events t USING (VALUES (5, 'u'), (6, 'd'), (31, 'i'), (32, 'i')) s (id, author) ON t.id = s.id
    WHEN MATCHED AND s.author = 'd' THEN DELETE
    WHEN MATCHED THEN UPDATE SET author = s.author
    WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.author);
SELECT 'insert' AS event, * FROM taken('ts/insert') UNION ALL SELECT 'update', * FROM taken('ts/update') UNION ALL SELECT 'delete', * FROM taken('ts/delete');
-- The writing role needs no grant.
CREATE ROLE regress_rl_writer;
GRANT INSERT ON ts TO regress_rl_writer;
SET ROLE regress_rl_writer;
INSERT INTO ts VALUES ('writer', 'x', 10);
INSERT INTO ts VALUES ('writer', 'x', 1);
RESET ROLE;
REVOKE INSERT ON ts FROM regress_rl_writer;
DROP ROLE regress_rl_writer;
-- Settings of the client make no other key, for any row.
CREATE TABLE ts_set (at timestamptz);
SELECT rl_define('ts/set', rl_token_bucket(100, '1 minute'));
CREATE TRIGGER a AFTER INSERT ON ts_set REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/set', 'key=at');
INSERT INTO ts_set SELECT '2027-01-01 00:00:00+00' FROM generate_series(1, 3);
SET timezone = 'Asia/Kolkata'; SET datestyle = 'SQL';
INSERT INTO ts_set SELECT '2027-01-01 00:00:00+00' FROM generate_series(1, 3);
SELECT at FROM ts_set LIMIT 1;
SET timezone = 'UTC'; SET datestyle = 'ISO';
SELECT * FROM taken('ts/set');

-- 100,000 rows with 100 keys; those that are too many are denied, and nothing stays.
CREATE TABLE ts_bulk (author text, body text);
SELECT rl_define('ts/bulk', rl_token_bucket(3000, '1 day'));
CREATE TRIGGER a AFTER INSERT ON ts_bulk REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/bulk', 'key=author');
INSERT INTO ts_bulk SELECT 'user-' || n % 100, 'x' FROM generate_series(1, 100000) n;
INSERT INTO ts_bulk SELECT 'user-' || n % 100, 'x' FROM generate_series(1, 200001) n;
SELECT count(*) AS keys, min(taken), max(taken) FROM taken('ts/bulk');
-- Spilled to disk, and with values that are detoasted row by row.
SET work_mem = '64kB';
INSERT INTO ts_bulk SELECT repeat('k', 1000) || n % 3, repeat(md5(n::text), 100) FROM generate_series(1, 3000) n;
RESET work_mem;
SELECT left(key, 3) || '...' || right(key, 2) AS key, length(key), taken FROM taken('ts/bulk') WHERE key LIKE 'kkk%';

-- Rows are checked one after the other, and all before the first call.
CREATE TABLE ts_rows (author text, tokens float8);
CREATE TRIGGER a AFTER INSERT ON ts_rows REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('ts/bulk', 'key=author', 'count=tokens');
SELECT rows, error_of('INSERT INTO ts_rows VALUES ' || rows) FROM unnest(ARRAY[
    '(''x'', -1), (NULL, 1)', '(''x'', NULL), (NULL, 1)', '(NULL, -1), (''x'', NULL)', '(''x'', 1e300), (repeat(''k'', 2000), 1)',
    '(repeat(''k'', 2000), NULL), (''x'', 1e300)', '(''a'', 4000), (''x'', ''NaN'')', '(''a'', 4000), (''x'', NULL)', '(''a'', 4000), (''x'', 1e300)',
    '(''a'', 1e15), (''a'', 1e15)', '(''a'', 4000), (''b'', 1e15), (''b'', 1e15)']) rows;

SET client_min_messages = warning;
DROP TABLE ts, ts_options, ts_events, ts_parts, ts_child, ts_set, ts_bulk, ts_rows CASCADE;
DROP FUNCTION taken, ts_read, rename;
RESET client_min_messages;

-- rl_trigger BEFORE an event FOR EACH ROW: a row takes tokens from the limit of its first argument,
-- of the key and as many as the options say; a denial is PT429.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set SHOW_CONTEXT never
CREATE FUNCTION taken(name text) RETURNS TABLE (key text, taken float8) LANGUAGE sql AS $$
    SELECT s.key, s.capacity - s.remaining FROM rl_status(taken.name) s
$$;
SELECT rl_define('tr', rl_token_bucket(10, '1 minute'));
CREATE TABLE tr (author text, body text, tokens int DEFAULT 1);
CREATE TRIGGER tr BEFORE INSERT ON tr FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr', 'key=author', 'count=tokens');
INSERT INTO tr VALUES ('ada', 'hello', 2), ('bob', 'hi', 1), ('ada', 'again', 3) RETURNING *;
SELECT * FROM taken('tr');
-- Denied, the statement takes nothing.
INSERT INTO tr VALUES ('cyd', 'x', 1), ('ada', 'more', 6);
\echo :SQLSTATE
SELECT * FROM taken('tr');
INSERT INTO tr VALUES ('ada', 'never', 11);
SET ratelimit.clock = '2027-01-01 12:00:06+00';
INSERT INTO tr VALUES ('ada', 'more', 6);
SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- As with throws: caught by its SQLSTATE, and what was taken comes back with the savepoint.
DO $$
BEGIN
    INSERT INTO tr VALUES ('dan', 'x', 4), ('dan', 'x', 7);
EXCEPTION WHEN SQLSTATE 'PT429' THEN
    RAISE NOTICE 'caught % %', sqlstate, sqlerrm;
END
$$;
BEGIN;
INSERT INTO tr VALUES ('dan', 'x', 10);
ROLLBACK;
INSERT INTO tr VALUES ('dan', 'x', 10) RETURNING *;
-- A count of 0 takes nothing, and writes no row.
INSERT INTO tr VALUES ('eve', 'free', 0);
SELECT count(*) FROM rateLimits WHERE name = 'tr' AND key = 'eve';
-- An override for a key holds here, too.
SELECT rl_define('tr', rl_token_bucket(3, '1 minute'), key => 'small');
INSERT INTO tr VALUES ('small', 'x', 4);
-- The options in the other order; one of them; none: everybody's limit, a token a row.
CREATE TABLE tr_options (author text, tokens int);
SELECT rl_define('tr/options', rl_token_bucket(100, '1 minute'));
CREATE TRIGGER a BEFORE INSERT ON tr_options FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/options', 'count=tokens', 'key=author');
INSERT INTO tr_options VALUES ('both', 5);
DROP TRIGGER a ON tr_options;
CREATE TRIGGER a BEFORE INSERT ON tr_options FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/options', 'key=author');
INSERT INTO tr_options VALUES ('key', 5);
DROP TRIGGER a ON tr_options;
CREATE TRIGGER a BEFORE INSERT ON tr_options FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/options', 'count=tokens');
INSERT INTO tr_options VALUES ('count', 5);
DROP TRIGGER a ON tr_options;
CREATE TRIGGER a BEFORE INSERT ON tr_options FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/options');
INSERT INTO tr_options VALUES ('neither', 5), ('neither', 5);
SELECT * FROM taken('tr/options');

-- UPDATE takes the key and the count of the new row, DELETE of the old; the rows go on as they are.
CREATE TABLE tr_events (id int PRIMARY KEY, author text, tokens int);
INSERT INTO tr_events VALUES (1, 'ada', 1), (2, 'bob', 2), (3, 'cyd', 3);
SELECT rl_define('tr/events', rl_token_bucket(100, '1 minute'));
CREATE TRIGGER a BEFORE UPDATE OR DELETE ON tr_events FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/events', 'key=author', 'count=tokens');
UPDATE tr_events SET author = 'new', tokens = 10 WHERE id = 1 RETURNING *;
DELETE FROM tr_events WHERE id = 2 RETURNING *;
SELECT * FROM taken('tr/events');
SELECT * FROM tr_events ORDER BY id;
MERGE INTO tr_events t USING (VALUES (1, 'merged'), (3, NULL), (4, 'other')) s (id, author) ON t.id = s.id
    WHEN MATCHED AND s.author IS NULL THEN DELETE
    WHEN MATCHED THEN UPDATE SET author = s.author
    WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.author, 1);
SELECT * FROM taken('tr/events');
-- The columns as an earlier trigger leaves them; those of a later one are not seen.
CREATE FUNCTION rename() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.author := tg_argv[0]; NEW.tokens := 7; RETURN NEW; END$$;
CREATE TRIGGER "0" BEFORE UPDATE ON tr_events FOR EACH ROW EXECUTE FUNCTION rename('earlier');
CREATE TRIGGER z BEFORE UPDATE ON tr_events FOR EACH ROW EXECUTE FUNCTION rename('later');
UPDATE tr_events SET author = 'x', tokens = 1 WHERE id = 4 RETURNING *;
SELECT * FROM taken('tr/events') WHERE key IN ('earlier', 'later', 'x');
DROP TRIGGER "0" ON tr_events;
DROP TRIGGER z ON tr_events;
-- With WHEN, and for some columns only.
DROP TRIGGER a ON tr_events;
CREATE TRIGGER a BEFORE UPDATE OF author ON tr_events FOR EACH ROW WHEN (NEW.author <> 'root')
    EXECUTE FUNCTION rl_trigger('tr/events', 'key=author');
UPDATE tr_events SET tokens = 1;
UPDATE tr_events SET author = 'root';
UPDATE tr_events SET author = 'when';
SELECT * FROM taken('tr/events') WHERE key IN ('root', 'when');

-- COPY, and an INSERT from a query.
CREATE TABLE tr_copy (author text, body text);
SELECT rl_define('tr/copy', rl_token_bucket(3, '1 minute'));
CREATE TRIGGER a BEFORE INSERT ON tr_copy FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/copy', 'key=author');
COPY tr_copy FROM stdin;
ada	1
bob	2
ada	3
\.
SELECT * FROM taken('tr/copy');
\set SHOW_CONTEXT errors
COPY tr_copy FROM stdin;
bob	4
ada	5
ada	6
\.
\set SHOW_CONTEXT never
INSERT INTO tr_copy SELECT 'cyd', n FROM generate_series(1, 4) n;
INSERT INTO tr_copy SELECT 'cyd', n FROM generate_series(1, 3) n;
SELECT * FROM taken('tr/copy');

-- ON CONFLICT: the INSERT trigger is fired before a conflict is looked for, so the row takes tokens
-- also when it is then updated (and again with a trigger for UPDATE), or passed over.
CREATE TABLE tr_conflict (id int PRIMARY KEY, author text);
INSERT INTO tr_conflict VALUES (1, 'old');
SELECT rl_define('tr/conflict', rl_token_bucket(10, '1 minute'));
CREATE TRIGGER a BEFORE INSERT ON tr_conflict FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/conflict', 'key=author');
INSERT INTO tr_conflict VALUES (1, 'nothing') ON CONFLICT DO NOTHING;
INSERT INTO tr_conflict VALUES (1, 'update') ON CONFLICT (id) DO UPDATE SET author = 'updated';
CREATE TRIGGER b BEFORE UPDATE ON tr_conflict FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/conflict', 'key=author');
INSERT INTO tr_conflict VALUES (1, 'both') ON CONFLICT (id) DO UPDATE SET author = 'both';
SELECT * FROM taken('tr/conflict');

-- Partitions, one of them with other column numbers. Writes to a partition are limited, too.
CREATE TABLE tr_parts (gone int, region text, author text, tokens int) PARTITION BY LIST (region);
ALTER TABLE tr_parts DROP COLUMN gone;
CREATE TABLE tr_parts_eu PARTITION OF tr_parts FOR VALUES IN ('eu');
CREATE TABLE tr_parts_us (tokens int, author text, region text);
ALTER TABLE tr_parts ATTACH PARTITION tr_parts_us FOR VALUES IN ('us');
SELECT rl_define('tr/parts', rl_token_bucket(100, '1 minute'));
CREATE TRIGGER a BEFORE INSERT ON tr_parts FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/parts', 'key=author', 'count=tokens');
INSERT INTO tr_parts VALUES ('eu', 'ada', 1), ('us', 'ada', 2);
INSERT INTO tr_parts_us VALUES (4, 'ada', 'us');
SELECT * FROM taken('tr/parts');
-- A row that moves is deleted here and inserted there: it fires UPDATE, DELETE and INSERT triggers.
UPDATE tr_parts SET region = 'us', author = 'moved' WHERE region = 'eu';
SELECT * FROM taken('tr/parts');
CREATE TRIGGER b BEFORE UPDATE OR DELETE ON tr_parts FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/parts', 'key=author', 'count=tokens');
UPDATE tr_parts SET region = 'eu', author = 'all three' WHERE author = 'moved';
SELECT * FROM taken('tr/parts');

-- A table of another schema; the writing role has no grant on the function, nor on the tables.
CREATE ROLE regress_rl_writer;
CREATE SCHEMA tr_app;
GRANT USAGE, CREATE ON SCHEMA tr_app TO regress_rl_writer;
CREATE TABLE tr_app.posts (author name DEFAULT current_user, body text);
GRANT INSERT, SELECT ON tr_app.posts TO regress_rl_writer;
SELECT rl_define('tr/posts', rl_token_bucket(2, '1 minute'));
CREATE TRIGGER a BEFORE INSERT ON tr_app.posts FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/posts', 'key=author');
SET ROLE regress_rl_writer;
INSERT INTO tr_app.posts (body) VALUES ('one'), ('two') RETURNING *;
INSERT INTO tr_app.posts (body) VALUES ('three');
\echo :SQLSTATE
SELECT current_user, error_of('SELECT rl_limit(''tr/posts'')') AS rl_limit, error_of('TABLE rateLimits') AS "rateLimits";
-- It can't put the trigger on a table of its own to use up, or to try out, a limit.
CREATE TABLE tr_app.mine (author text);
CREATE TRIGGER a BEFORE INSERT ON tr_app.mine FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/posts', 'key=author');
\echo :SQLSTATE
SELECT rl_trigger();
RESET ROLE;
GRANT EXECUTE ON FUNCTION rl_trigger TO regress_rl_writer;
SET ROLE regress_rl_writer;
CREATE TRIGGER a BEFORE INSERT ON tr_app.mine FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/posts', 'key=author');
INSERT INTO tr_app.mine VALUES ('x');
RESET ROLE;
-- Nothing is found by the writer's search_path.
CREATE FUNCTION tr_app.always(text, text) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'fooled'; END$$;
CREATE OPERATOR tr_app.= (FUNCTION = tr_app.always, LEFTARG = text, RIGHTARG = text);
CREATE FUNCTION tr_app.text(inet) RETURNS text LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'fooled'; END$$;
CREATE FUNCTION tr_app.trim_scale(numeric) RETURNS numeric LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'fooled'; END$$;
CREATE TABLE tr_app.ratelimits (LIKE public.ratelimits);
CREATE TABLE tr_app.rl_config (LIKE public.rl_config);
CREATE TEMP TABLE rl_config (LIKE public.rl_config);
CREATE TABLE tr_app.typed (n numeric, i inet);
CREATE TRIGGER a BEFORE INSERT ON tr_app.typed FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/posts', 'key=n');
CREATE TRIGGER b BEFORE INSERT ON tr_app.typed FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/posts', 'key=i');
SET search_path = pg_temp, tr_app, pg_catalog, public;
INSERT INTO posts VALUES ('path', 'x');
INSERT INTO typed VALUES (1.50, '10.0.0.1');
SET search_path = '';
INSERT INTO tr_app.posts VALUES ('path', 'x');
SET search_path = public;
DROP TABLE pg_temp.rl_config;
SELECT * FROM taken('tr/posts');
SET client_min_messages = warning;
DROP SCHEMA tr_app CASCADE;
RESET client_min_messages;
REVOKE EXECUTE ON FUNCTION rl_trigger FROM regress_rl_writer;
DROP ROLE regress_rl_writer;

-- Column names are those of the catalog, whatever they contain.
CREATE TABLE tr_names (dropped text, "User Id" text, "a=b" text, "key=" text, "quote""d'" text, "Größe" int);
ALTER TABLE tr_names DROP COLUMN dropped;
INSERT INTO tr_names VALUES ('before', 'the', 'default', 'was', 1);
ALTER TABLE tr_names ADD COLUMN late text DEFAULT 'the default';
SELECT rl_define('tr/names', rl_token_bucket(100, '1 minute'));
CREATE TRIGGER a BEFORE INSERT ON tr_names FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/names', 'key=User Id');
CREATE TRIGGER b BEFORE INSERT ON tr_names FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/names', 'key=a=b');
CREATE TRIGGER c BEFORE INSERT ON tr_names FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/names', 'key=key=');
CREATE TRIGGER d BEFORE INSERT ON tr_names FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/names', 'key=quote"d''', 'count=Größe');
CREATE TRIGGER e BEFORE DELETE ON tr_names FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/names', 'key=late');
INSERT INTO tr_names VALUES ('user id', 'a=b', 'key=', 'quote', 5);
DELETE FROM tr_names WHERE "User Id" = 'before';
SELECT * FROM taken('tr/names');
ALTER TABLE tr_names RENAME late TO later;
DELETE FROM tr_names;
\echo :SQLSTATE

-- The key is the column's text, as a cast gives it; a numeric without trailing zeros.
CREATE TYPE tr_enum AS ENUM ('one', 'Two words');
CREATE TYPE tr_pair AS (a int, b timestamptz);
CREATE DOMAIN tr_domain AS tr_enum;
CREATE DOMAIN tr_domain_2 AS tr_domain NOT NULL;
CREATE DOMAIN tr_numeric AS numeric CHECK (VALUE > 0);
CREATE DOMAIN tr_time AS timestamptz;
SELECT rl_define('tr/types', rl_token_bucket(100, '1 minute'));
CREATE FUNCTION key_of(type text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    key text;
BEGIN
    EXECUTE format('CREATE TEMP TABLE typed (k %s); CREATE TRIGGER a BEFORE INSERT ON typed FOR EACH ROW EXECUTE FUNCTION rl_trigger(''tr/types'', ''key=k'')', type);
    EXECUTE format('INSERT INTO typed VALUES (%L)', value);
    DROP TABLE typed;
    DELETE FROM rateLimits WHERE name = 'tr/types' RETURNING rateLimits.key INTO STRICT key;
    RETURN key;
END
$$;
CREATE FUNCTION text_of(type text, value text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('SELECT %L::%s::text', value, type) INTO value;
    RETURN value;
END
$$;
SELECT type, key, key = text_of(type, value) AS as_cast
FROM (VALUES ('text', 'a b '), ('text', ''), ('varchar(5)', 'äö'), ('char(5)', 'ab'), ('char(5)', ' a'), ('bpchar', 'c  '), ('"char"', 'x'), ('name', 'n'),
             ('int2', '-7'), ('int4', '-70000'), ('int8', '-9223372036854775808'), ('oid', '4294967295'),
             ('numeric', '1.00'), ('numeric(9,2)', '1.5'), ('numeric', '1000'), ('numeric', '0.000'), ('numeric', '-12345678901234567890.0123456789000'), ('numeric', 'NaN'), ('numeric', 'Infinity'), ('tr_numeric', '2.50'),
             ('real', '0.1'), ('float8', '0.1'), ('float8', '1e100'), ('float8', '-Infinity'),
             ('bool', 'yes'), ('bool', 'no'), ('uuid', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'),
             ('inet', '10.0.0.1'), ('inet', '10.0.0.1/8'), ('inet', '::1'), ('cidr', '10.0.0.0/8'), ('macaddr', '08-00-2b-01-02-03'),
             ('tr_enum', 'Two words'), ('tr_domain', 'one'), ('tr_domain_2', 'one'),
             ('date', '2027-01-02'), ('timestamp', '2027-01-02 03:04:05.6'), ('timestamptz', '2027-01-02 03:04:05.6+00'), ('tr_time', '2027-01-02 03:04:05.6+00'), ('timetz', '03:04:05+01'), ('interval', '1 year 2 days 03:04:05'),
             ('bytea', '\xdeadbeef'), ('json', '{"a" : 1}'), ('jsonb', '{"a" : 1}'), ('money', '1234.5'), ('regclass', 'rl_config'), ('bit(3)', '101'), ('point', '(0.1,2)'),
             ('int[]', '{1,2}'), ('text[]', '{a,"b c"}'), ('timestamptz[]', '{2027-01-02 03:04:05+00}'), ('tstzrange', '[2027-01-02 03:04:05+00,)'), ('tr_pair', '(1,2027-01-02 03:04:05+00)')) v (type, value), key_of(type, value) key;
-- Nothing that a client can set makes another key of the same value. Nor does the key change what
-- was set.
CREATE TABLE tr_set (day date, at timestamptz, span interval, data bytea, ratio float8, price money, class regclass, system regclass, list tr_time[], pair tr_pair);
SELECT format('CREATE TRIGGER %I BEFORE INSERT ON tr_set FOR EACH ROW EXECUTE FUNCTION rl_trigger(''tr/types'', ''key=%I'')', attname, attname)
FROM pg_attribute WHERE attrelid = 'tr_set'::regclass AND attnum > 0 ORDER BY attnum \gexec
CREATE TABLE tr_value AS SELECT '2027-01-02'::date AS day, '2027-01-02 03:04:05+00'::timestamptz AS at, '1 year 2 days 03:04:05'::interval AS span, '\xdeadbeef'::bytea AS data,
    1 / 3::float8 AS ratio, '1'::money AS price, 'rl_config'::regclass AS class, 'pg_class'::regclass AS system, '{2027-01-02 03:04:05+00}'::tr_time[] AS list, '(1,2027-01-02 03:04:05+00)'::tr_pair AS pair;
INSERT INTO tr_set TABLE tr_value;
SET datestyle = 'SQL, DMY';
SET timezone = 'Asia/Kolkata';
SET intervalstyle = 'iso_8601';
SET bytea_output = 'escape';
SET extra_float_digits = -5;
SET lc_monetary = 'POSIX';
SET quote_all_identifiers = on;
CREATE TEMP TABLE pg_class (a int);
SET search_path = pg_catalog;
INSERT INTO public.tr_set TABLE public.tr_value;
TABLE public.tr_value;
DROP TABLE pg_temp.pg_class;
SET search_path = public;
SET datestyle = 'ISO'; SET timezone = 'UTC'; RESET intervalstyle; RESET bytea_output; RESET extra_float_digits; RESET lc_monetary; RESET quote_all_identifiers;
SELECT * FROM taken('tr/types');
DROP TABLE tr_set, tr_value;
-- Long keys: 1,024 bytes, also where they are stored compressed or out of line.
CREATE TABLE tr_long (k text, pad text);
CREATE TRIGGER a BEFORE INSERT OR DELETE ON tr_long FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/types', 'key=k');
ALTER TABLE tr_long ALTER k SET STORAGE EXTERNAL;
INSERT INTO tr_long VALUES (repeat('k', 1024), repeat('x', 1500));
DELETE FROM tr_long;
SELECT length(key), key = repeat('k', 1024) AS same, taken FROM taken('tr/types') WHERE key LIKE 'kk%';
INSERT INTO tr_long VALUES (repeat('k', 1025));
INSERT INTO tr_long VALUES (repeat('k', 100000));
\echo :SQLSTATE
DROP TABLE tr_long;

-- The count: any number, and domains over one.
SELECT rl_define('tr/counts', rl_token_bucket(100, '1 minute'));
CREATE FUNCTION count_of(type text, value text) RETURNS float8 LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TEMP TABLE typed (k %s); CREATE TRIGGER a BEFORE INSERT ON typed FOR EACH ROW EXECUTE FUNCTION rl_trigger(''tr/counts'', ''count=k'')', type);
    EXECUTE format('INSERT INTO typed VALUES (%L)', value);
    DROP TABLE typed;
    DELETE FROM rateLimits WHERE name = 'tr/counts' RETURNING 100 - rateLimits.value INTO value;
    RETURN value;
END
$$;
SELECT type, value, count_of(type, value) AS taken
FROM (VALUES ('int2', '7'), ('int4', '7'), ('int8', '7'), ('real', '0.5'), ('float8', '0.25'), ('numeric', '7.125'), ('numeric', '0.000'), ('tr_numeric', '1.50'), ('int4', '0')) v (type, value);
\a \t
SELECT type, value, error_of(format('SELECT count_of(%L, %L)', type, value))
FROM (VALUES ('int4', '-1'), ('int8', '9223372036854775807'), ('int4', '101'), ('float8', 'NaN'), ('float8', 'Infinity'), ('real', '-0.5'), ('numeric', 'NaN'), ('numeric', '-Infinity'), ('numeric', '1e400'),
             ('text', '1'), ('bool', 'true'), ('money', '1'), ('interval', '1 s'), ('jsonb', '1'), ('int[]', '{1}'), ('oid', '1'), ('"char"', '1'), ('tr_enum', 'one')) v (type, value);
\a \t
SELECT rl_define('tr/counts', rl_sliding_log(100, '1 minute'));
SELECT error_of('SELECT count_of(''numeric'', ''0.5'')');

-- NULL: neither everybody's limit nor a free pass.
CREATE TABLE tr_null (author text, tokens int);
CREATE TRIGGER a BEFORE INSERT OR UPDATE ON tr_null FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr', 'key=author', 'count=tokens');
INSERT INTO tr_null VALUES (NULL, 1);
\echo :SQLSTATE
INSERT INTO tr_null VALUES ('ada', NULL);
\echo :SQLSTATE
-- A generated column is computed after BEFORE triggers; the row that a DELETE finds has it.
CREATE TABLE tr_generated (author text, lower_author text GENERATED ALWAYS AS (lower(author)) STORED, size int GENERATED ALWAYS AS (length(author)) STORED);
CREATE TRIGGER a BEFORE INSERT OR DELETE ON tr_generated FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/events', 'key=lower_author', 'count=size');
INSERT INTO tr_generated VALUES ('GENERATED');
\echo :SQLSTATE
ALTER TABLE tr_generated DISABLE TRIGGER a;
INSERT INTO tr_generated VALUES ('GENERATED');
ALTER TABLE tr_generated ENABLE TRIGGER a;
DELETE FROM tr_generated;
SELECT * FROM taken('tr/events') WHERE key = 'generated';
CREATE TRIGGER b BEFORE UPDATE ON tr_generated FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/events', 'count=size');
ALTER TABLE tr_generated DISABLE TRIGGER a;
INSERT INTO tr_generated VALUES ('GENERATED');
UPDATE tr_generated SET author = 'x';

-- Misuse: a clear error at the first firing.
CREATE TABLE tr_wrong (author text, body text, id int DEFAULT 1);
SET client_min_messages = error; -- Citus warns of a view.
CREATE VIEW tr_view AS SELECT * FROM tr_wrong;
RESET client_min_messages;
CREATE FUNCTION misused(trigger text, statement text DEFAULT 'INSERT INTO tr_wrong (author, body) VALUES (''ada'', ''x'')') RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'CREATE TRIGGER a ' || trigger;
    RETURN error_of(statement, with_hint => true);
END
$$;
SELECT error_of('SELECT rl_trigger()', with_hint => true);
BEGIN;
INSERT INTO tr_wrong VALUES ('ada');
SAVEPOINT s;
\a \t
SELECT misused('AFTER INSERT ON tr_wrong FOR EACH ROW EXECUTE FUNCTION rl_trigger(''tr'', ''key=author'')');
ROLLBACK TO s;
SELECT misused('AFTER DELETE ON tr_wrong FOR EACH ROW EXECUTE FUNCTION rl_trigger(''tr'', ''key=author'')', 'DELETE FROM tr_wrong');
ROLLBACK TO s;
SELECT misused('BEFORE UPDATE ON tr_wrong FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger(''tr'', ''key=author'')', 'UPDATE tr_wrong SET id = 2');
ROLLBACK TO s;
SELECT misused('AFTER INSERT ON tr_wrong FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger(''tr'', ''key=author'')');
ROLLBACK TO s;
SELECT misused('AFTER DELETE ON tr_wrong FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger(''tr'', ''key=author'')', 'DELETE FROM tr_wrong');
ROLLBACK TO s;
SELECT misused('AFTER UPDATE ON tr_wrong REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger(''tr'', ''key=author'')', 'UPDATE tr_wrong SET id = 2');
ROLLBACK TO s;
SELECT misused('BEFORE TRUNCATE ON tr_wrong FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger(''tr'', ''key=author'')', 'TRUNCATE tr_wrong');
ROLLBACK TO s;
SELECT misused('AFTER TRUNCATE ON tr_wrong FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger(''tr'', ''key=author'')', 'TRUNCATE tr_wrong');
ROLLBACK TO s;
SELECT misused('INSTEAD OF UPDATE ON tr_view FOR EACH ROW EXECUTE FUNCTION rl_trigger(''tr'', ''key=author'')', 'UPDATE tr_view SET id = 2');
ROLLBACK TO s;
-- A constraint trigger is an AFTER ROW one.
CREATE CONSTRAINT TRIGGER a AFTER INSERT ON tr_wrong DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr');
INSERT INTO tr_wrong VALUES ('ada');
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK;
CREATE FUNCTION misused_options(arguments text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text := misused(format('BEFORE INSERT ON tr_wrong FOR EACH ROW EXECUTE FUNCTION rl_trigger(%s)', arguments));
BEGIN
    DROP TRIGGER a ON tr_wrong;
    RETURN answer;
END
$$;
SELECT arguments, misused_options(arguments) FROM unnest(ARRAY[
    '', '''''', quote_literal(repeat('n', 201)), '''tr/undefined''', 'tr',
    '''tr'', ''author''', '''tr'', ''''', '''tr'', ''Key=author''', '''tr'', '' key=author''', '''tr'', ''key =author''', '''tr'', ''column=author''', '''tr'', ''reserve=true''',
    '''tr'', ''key=author'', ''key=body''', '''tr'', ''count=id'', ''key=author'', ''count=id''', '''tr'', ''key=author'', ''tokens''',
    '''tr'', ''key=''', '''tr'', ''key=nobody''', '''tr'', ''key=Author''', '''tr'', ''key="author"''', '''tr'', ''key= author''', '''tr'', ''key=ctid''', '''tr'', ''key=tableoid''', '''tr'', ''count=xmin''',
    '''tr'', ''count=nothing''', '''tr'', ''count=body''', '''tr'', ''count=1''']) arguments;
\a \t
DROP VIEW tr_view;
ALTER TABLE tr_wrong DROP COLUMN id;
SELECT misused_options('''tr'', ''count=id''');
SELECT misused_options('''tr'', ''count=........pg.dropped.3........''');
-- Where nothing can be taken: a temporary table in a read-only transaction.
CREATE TEMP TABLE tr_temp (author text);
CREATE TRIGGER a BEFORE INSERT ON tr_temp FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr', 'key=author');
BEGIN READ ONLY;
INSERT INTO tr_temp VALUES ('ada');
\echo :SQLSTATE
ROLLBACK;

-- Under session_replication_role = replica it fires where it is enabled to, as any trigger.
CREATE TABLE tr_replica (author text);
SELECT rl_define('tr/replica', rl_token_bucket(10, '1 minute'));
CREATE TRIGGER a BEFORE INSERT ON tr_replica FOR EACH ROW EXECUTE FUNCTION rl_trigger('tr/replica', 'key=author');
SET session_replication_role = replica;
INSERT INTO tr_replica VALUES ('origin');
ALTER TABLE tr_replica ENABLE REPLICA TRIGGER a;
INSERT INTO tr_replica VALUES ('replica');
RESET session_replication_role;
INSERT INTO tr_replica VALUES ('not replica');
ALTER TABLE tr_replica ENABLE ALWAYS TRIGGER a;
SET session_replication_role = replica;
INSERT INTO tr_replica VALUES ('always replica');
RESET session_replication_role;
INSERT INTO tr_replica VALUES ('always origin');
SELECT * FROM taken('tr/replica');

-- Without a definition a table with the trigger takes no row; nor is the function dropped under it.
SELECT rl_undefine('tr/replica');
INSERT INTO tr_replica VALUES ('ada');
\set VERBOSITY terse
DROP EXTENSION ratelimit;
\set VERBOSITY default
SET client_min_messages = warning;
DROP TABLE tr, tr_options, tr_events, tr_copy, tr_conflict, tr_parts, tr_names, tr_null, tr_generated, tr_wrong, tr_temp, tr_replica CASCADE;
DROP FUNCTION taken, rename, key_of, text_of, count_of, misused, misused_options;
DROP TYPE tr_enum, tr_pair, tr_numeric, tr_time CASCADE;
RESET client_min_messages;

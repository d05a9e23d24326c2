-- What the owner of the tables can do so that a call never finds what it wrote, or writes what it found:
-- each ends, with an answer or with 55000, and none goes on for ever. Where a BEFORE trigger of the
-- owner's has changed or deleted the very row that it fires for, PostgreSQL says 27000.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- What never ends is cut off, instead of holding up the tests.
SET statement_timeout = '15s'; SET jit = off;
SELECT rl_define('loop', rl_token_bucket(10, '1 minute')), rl_define('loop/wide', rl_token_bucket(10, '1 minute', shards => 2));
-- Each call under each change, in a statement of its own; then the change is rolled back.
CREATE TABLE changes (n int GENERATED ALWAYS AS IDENTITY, note text, change text);
CREATE TABLE calls (m int GENERATED ALWAYS AS IDENTITY, call text);
CREATE TABLE outcomes (n int, m int, outcome text);
CREATE FUNCTION outcome(change text, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    outcome text;
BEGIN
    DELETE FROM rateLimits;
    PERFORM rl_limit('loop', '1'), rl_limit('loop/wide', '1');
    EXECUTE change;
    EXECUTE call INTO outcome;
    RAISE EXCEPTION USING errcode = 'RB000';
EXCEPTION WHEN SQLSTATE 'RB000' THEN
    RETURN CASE WHEN outcome IS NULL THEN 'nothing' ELSE 'answered' END;
WHEN query_canceled THEN
    RETURN 'endless';
WHEN OTHERS THEN
    RETURN sqlstate;
END
$$;
CREATE FUNCTION delete_it() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    DELETE FROM rateLimits r WHERE r.name = OLD.name AND r.key = OLD.key AND r.shard = OLD.shard;
    RETURN NEW;
END
$$;
CREATE FUNCTION delete_new() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    DELETE FROM rateLimits r WHERE r.name = NEW.name AND r.key = NEW.key AND r.shard = NEW.shard;
    RETURN NEW;
END
$$;
CREATE FUNCTION change_it() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    UPDATE rateLimits r SET value = r.value - 1 WHERE r.name = OLD.name AND r.key = OLD.key AND r.shard = OLD.shard AND pg_trigger_depth() < 2;
    RETURN CASE tg_op WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;
CREATE FUNCTION rename_it() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    NEW.key := NEW.key || 'x';
    RETURN NEW;
END
$$;
CREATE FUNCTION put_back() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO rateLimits SELECT OLD.*;
    RETURN NULL;
END
$$;
CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
INSERT INTO changes (note, change) VALUES
    ('nothing is changed', 'SELECT'),
    ('a child with rows of the same key', 'CREATE TABLE child () INHERITS (rateLimits); INSERT INTO child SELECT * FROM ONLY rateLimits'),
    ('a child with rows of another key', 'CREATE TABLE child () INHERITS (rateLimits); INSERT INTO child (name, key, kind, value, ts) SELECT n, ''2'', ''t'', 3, ''2027-01-01 12:00:00+00'' FROM unnest(''{loop,loop/wide}''::text[]) n'),
    ('a child with a key of other shards', 'CREATE TABLE child () INHERITS (rateLimits); INSERT INTO child (name, key, shard, kind, value, ts) SELECT n, k, s, ''t'', 3, ''2027-01-01 12:00:00+00''
        FROM unnest(''{loop,loop/wide}''::text[]) n, unnest(''{1,2}''::text[]) k, unnest(''{30001,30002,30003}''::int[]) s'),
    ('a child with a row for shards', 'CREATE TABLE child () INHERITS (rateLimits); INSERT INTO child (name, key, kind, value, ts) SELECT n, k, ''#'', 0, ''epoch'' FROM unnest(''{loop,loop/wide}''::text[]) n, unnest(''{1,2}''::text[]) k'),
    ('a row is deleted before it is updated', 'CREATE TRIGGER t BEFORE UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION delete_it()'),
    ('a row is deleted before it is deleted', 'CREATE TRIGGER t BEFORE DELETE ON rateLimits FOR EACH ROW WHEN (pg_trigger_depth() < 1) EXECUTE FUNCTION delete_it()'),
    ('a row is deleted when it is there', 'CREATE TRIGGER t AFTER INSERT OR UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION delete_new()'),
    ('a row is changed before it is updated', 'CREATE TRIGGER t BEFORE UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION change_it()'),
    ('a row is changed before it is deleted', 'CREATE TRIGGER t BEFORE DELETE ON rateLimits FOR EACH ROW EXECUTE FUNCTION change_it()'),
    ('a new row gets another key', 'CREATE TRIGGER t BEFORE INSERT ON rateLimits FOR EACH ROW EXECUTE FUNCTION rename_it()'),
    ('a row gets another key', 'CREATE TRIGGER t BEFORE UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION rename_it()'),
    ('all rows are swallowed', 'CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON rateLimits FOR EACH ROW EXECUTE FUNCTION swallow()'),
    ('no row is deleted', 'CREATE TRIGGER t BEFORE DELETE ON rateLimits FOR EACH ROW EXECUTE FUNCTION swallow()'),
    ('a deleted row is put back', 'CREATE TRIGGER t AFTER DELETE ON rateLimits FOR EACH ROW EXECUTE FUNCTION put_back()');
INSERT INTO calls (call) VALUES
    ('SELECT remaining FROM rl_limit(''loop'', ''1'')'),
    ('SELECT remaining FROM rl_limit(''loop'', ''2'')'),
    ('SELECT remaining FROM rl_limit(''loop/wide'', ''1'')'),
    ('SELECT remaining FROM rl_limit(''loop/wide'', ''2'')'),
    ('SELECT remaining FROM rl_limit(''loop/wide'', ''1'', 6)'),
    ('SELECT max(remaining) FROM rl_limit_all(''[{"name": "loop", "key": "1"}, {"name": "loop/wide", "key": "1"}, {"name": "loop/wide", "key": "2"}]'')'),
    ('SELECT remaining FROM rl_check(''loop/wide'', ''1'')'),
    ('SELECT remaining FROM rl_credit(''loop'', ''1'', -1)'),
    ('SELECT remaining FROM rl_credit(''loop/wide'', ''1'', -1)'),
    ('SELECT rl_reset(''loop'', ''1'')'),
    ('SELECT rl_reset(''loop/wide'', ''1'')'),
    ('SELECT rl_reset_keys(''loop'')'),
    ('SELECT rl_reset_keys(''loop/wide'')'),
    ('SELECT rl_prune() FROM set_config(''ratelimit.clock'', ''2027-01-02 12:00:00+00'', true)'),
    ('SELECT l.remaining FROM rl_define(''loop/wide'', rl_token_bucket(10, ''1 minute'', shards => 3)), LATERAL rl_limit(''loop/wide'', ''1'') l'),
    ('SELECT l.remaining FROM rl_define(''loop/wide'', rl_token_bucket(10, ''1 minute'')), LATERAL rl_limit(''loop/wide'', ''1'') l'),
    ('SELECT l.remaining FROM rl_define(''loop/wide'', rl_token_bucket(10, ''1 minute'', shards => 64)), LATERAL rl_limit(''loop/wide'', ''1'', 5) l');
-- Their echo would be longer than what they answer.
\set ECHO none
SELECT format('INSERT INTO outcomes VALUES (%s, %s, outcome(%L, %L))', n, m, change, call) FROM changes, calls ORDER BY n, m \gexec
\set ECHO all
\pset format unaligned
SELECT note, string_agg(outcome, ' ' ORDER BY m) AS outcomes FROM changes JOIN outcomes USING (n) GROUP BY n, note ORDER BY n;
\pset format aligned
DROP TABLE changes, calls, outcomes;
DROP FUNCTION outcome, delete_it, delete_new, change_it, rename_it, put_back, swallow;
SELECT rl_undefine('loop'), rl_undefine('loop/wide');

-- rl_trigger with a key of several columns, with the limit's name in a column, and with a message for end users.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set SHOW_CONTEXT never
CREATE FUNCTION taken(name text) RETURNS TABLE (key text, taken float8) LANGUAGE sql AS $$
    SELECT s.key, s.capacity - s.remaining FROM rl_status(taken.name) s
$$;
SELECT rl_define('tc', rl_token_bucket(3, '1 minute'));
CREATE TABLE tc (tenant text, author text, posted timestamptz, amount numeric);

-- A JSON array of the columns' texts: what rl_key makes of them, so that every function has the same key.
CREATE TRIGGER a BEFORE INSERT OR UPDATE OR DELETE ON tc FOR EACH ROW EXECUTE FUNCTION rl_trigger('tc', 'key=tenant,author');
INSERT INTO tc VALUES ('acme', 'ada'), ('acme', 'bob'), ('acme', 'ada'), ('a","b', 'c'), ('a', 'b","c'), ('', E'\\ \t\n\x01\x7f "é"');
SELECT * FROM taken('tc');
SELECT s.key = rl_key(VARIADIC ARRAY(SELECT jsonb_array_elements_text(s.key::jsonb))) AS same, count(*) FROM rl_status('tc') s GROUP BY 1;
SELECT remaining FROM rl_check('tc', rl_key('acme', 'ada'));
INSERT INTO tc VALUES ('acme', 'bob'), ('acme', 'ada'), ('acme', 'ada');
\echo :SQLSTATE
SELECT rl_reset('tc', rl_key('acme', 'ada')), rl_block('tc', rl_key('acme', 'bob'), '10 seconds');
INSERT INTO tc VALUES ('acme', 'ada'), ('acme', 'bob');
SELECT rl_unblock('tc', rl_key('acme', 'bob'));
-- UPDATE takes the key from the new row, DELETE from the old.
UPDATE tc SET author = 'eve' WHERE author = 'bob';
DELETE FROM tc WHERE author = 'eve';
SELECT * FROM taken('tc') WHERE key LIKE '%eve%';
-- An override and an exemption of such a key.
SELECT rl_define('tc', rl_unlimited(), key => rl_key('acme', 'root'));
INSERT INTO tc SELECT 'acme', 'root' FROM generate_series(1, 10);
SELECT rl_undefine('tc', rl_key('acme', 'root'));
DROP TRIGGER a ON tc;
-- Times and numbers as in a key of one column, whatever the client has set; three columns.
CREATE TRIGGER a BEFORE INSERT ON tc FOR EACH ROW EXECUTE FUNCTION rl_trigger('tc', 'key=tenant,posted,amount');
SELECT rl_reset_keys('tc') > 0 AS reset;
INSERT INTO tc VALUES ('x', NULL, '2027-01-01 00:00:00+00', 1.50);
SET timezone = 'Asia/Kolkata'; SET datestyle = 'SQL, DMY';
INSERT INTO tc VALUES ('x', NULL, '2027-01-01 00:00:00+00', 1.5);
SET timezone = 'UTC'; SET datestyle = 'ISO';
SELECT * FROM taken('tc');
DROP TRIGGER a ON tc;
-- FOR EACH STATEMENT: one call a key, in byte order.
SELECT rl_reset_keys('tc') > 0 AS reset;
CREATE TRIGGER a AFTER INSERT ON tc REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('tc', 'key=tenant,author', 'count=amount');
INSERT INTO tc (tenant, author, amount) VALUES ('acme', 'bob', 1), ('acme', 'ada', 1), ('acme', 'bob', 0.5), ('Z', '', 2);
SELECT * FROM taken('tc');
INSERT INTO tc (tenant, author, amount) VALUES ('acme', 'cyd', 1), ('acme', 'bob', 1), ('acme', 'bob', 1);
\echo :SQLSTATE
-- NULL in any of them; a key that is too long as a whole.
\a \t
SELECT error_of($$INSERT INTO tc (tenant, author, amount) VALUES ('acme', 'ada', 1), ('acme', NULL, 1)$$, true);
SELECT error_of($$INSERT INTO tc (tenant, author, amount) VALUES (NULL, 'ada', 1)$$, true);
SELECT error_of($$INSERT INTO tc (tenant, author, amount) VALUES (repeat('"', 300), repeat('x', 417), 1)$$);
SELECT error_of($$INSERT INTO tc (tenant, author, amount) VALUES (repeat('"', 300), repeat('x', 418), 1)$$);
DROP TRIGGER a ON tc;
CREATE TRIGGER a BEFORE INSERT ON tc FOR EACH ROW EXECUTE FUNCTION rl_trigger('tc', 'key=tenant,author');
SELECT error_of($$INSERT INTO tc VALUES ('acme', NULL)$$, true);
SELECT error_of($$INSERT INTO tc VALUES (NULL, NULL)$$);
SELECT error_of($$INSERT INTO tc VALUES (repeat('"', 300), repeat('x', 418))$$);
\a \t
-- A name with a comma is that column, as long as there is one; in a list it can't be one of several. An equals sign is
-- a letter like any other.
CREATE TABLE tc_names (a text, b text, "a,b" text, "c=d" text, "e,f" text);
CREATE TRIGGER a BEFORE INSERT ON tc_names FOR EACH ROW EXECUTE FUNCTION rl_trigger('tc', 'key=a,b');
CREATE TRIGGER b BEFORE INSERT ON tc_names FOR EACH ROW EXECUTE FUNCTION rl_trigger('tc', 'key=c=d,a');
SELECT rl_reset_keys('tc') > 0 AS reset;
INSERT INTO tc_names VALUES ('1', '2', 'one column', '=');
ALTER TABLE tc_names DROP "a,b";
INSERT INTO tc_names VALUES ('1', '2', '=');
SELECT * FROM taken('tc');
CREATE TRIGGER c BEFORE INSERT ON tc_names FOR EACH ROW EXECUTE FUNCTION rl_trigger('tc', 'key=a,e,f');
INSERT INTO tc_names VALUES ('1', '2', '=');
\echo :SQLSTATE
DROP TABLE tc_names;
DROP TRIGGER a ON tc;

-- The limit's name in a column.
CREATE TABLE tc_jobs (plan text, customer text, tokens int DEFAULT 1);
SELECT rl_define('tc/free', rl_token_bucket(2, '1 minute')), rl_define('tc/pro', rl_token_bucket(100, '1 minute'));
CREATE TRIGGER a BEFORE INSERT ON tc_jobs FOR EACH ROW EXECUTE FUNCTION rl_trigger('name=plan', 'key=customer', 'count=tokens');
INSERT INTO tc_jobs VALUES ('tc/free', 'ada', 1), ('tc/pro', 'ada', 50), ('tc/pro', 'bob', 1), ('tc/free', 'ada', 1);
INSERT INTO tc_jobs VALUES ('tc/pro', 'ada'), ('tc/free', 'ada');
\echo :SQLSTATE
SELECT 'free' AS plan, * FROM taken('tc/free') UNION ALL SELECT 'pro', * FROM taken('tc/pro');
\a \t
SELECT plan, error_of(format('INSERT INTO tc_jobs VALUES (%L, %L)', plan, 'ada'), true) FROM unnest(ARRAY[NULL, '', repeat('x', 201), 'tc/undefined']) plan;
\a \t
DROP TRIGGER a ON tc_jobs;
-- FOR EACH STATEMENT: a call for each name and key; names and keys that only together would be the same.
CREATE TRIGGER a AFTER INSERT ON tc_jobs REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('name=plan', 'key=customer');
SELECT rl_define('tc/a', rl_token_bucket(100, '1 minute')), rl_define('tc/ab', rl_token_bucket(100, '1 minute'));
INSERT INTO tc_jobs VALUES ('tc/ab', 'c'), ('tc/a', 'bc'), ('tc/pro', 'cyd'), ('tc/ab', 'c'), ('tc/free', 'cyd'), ('tc/free', 'cyd'), ('tc/a', '');
SELECT 'free' AS plan, * FROM taken('tc/free') UNION ALL SELECT 'pro', * FROM taken('tc/pro')
UNION ALL SELECT 'a', * FROM taken('tc/a') UNION ALL SELECT 'ab', * FROM taken('tc/ab');
INSERT INTO tc_jobs VALUES ('tc/pro', 'cyd'), ('tc/free', 'cyd');
INSERT INTO tc_jobs VALUES ('tc/pro', 'cyd'), (NULL, 'cyd');
\echo :SQLSTATE
DROP TRIGGER a ON tc_jobs;
-- Without a key.
CREATE TRIGGER a AFTER INSERT ON tc_jobs REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('name=plan');
INSERT INTO tc_jobs VALUES ('tc/pro', 'x'), ('tc/pro', 'y'), ('tc/ab', 'x');
SELECT 'pro' AS plan, * FROM taken('tc/pro') WHERE key = '' UNION ALL SELECT 'ab', * FROM taken('tc/ab') WHERE key = '';
DROP TRIGGER a ON tc_jobs;

-- A message for end users takes the hint's place: no capacity, nor anything else for developers.
CREATE TRIGGER a BEFORE INSERT ON tc_jobs FOR EACH ROW
    EXECUTE FUNCTION rl_trigger('tc/free', 'key=customer', 'count=tokens', 'message=You have used up your messages. "Plus" has 50% more: é = ☕');
\a \t
SELECT error_of($$INSERT INTO tc_jobs VALUES ('', 'dan'), ('', 'dan'), ('', 'dan')$$, true);
SELECT error_of($$INSERT INTO tc_jobs VALUES ('', 'dan', 3)$$, true);
SELECT rl_block('tc/free', 'dan', until => 'infinity') IS NOT NULL AS blocked;
SELECT error_of($$INSERT INTO tc_jobs VALUES ('', 'dan')$$, true);
SET ratelimit.error_style = 'pgrst';
SELECT error_of($$INSERT INTO tc_jobs VALUES ('', 'dan')$$, true);
SELECT rl_unblock('tc/free', 'dan');
SELECT error_of($$INSERT INTO tc_jobs VALUES ('', 'dan'), ('', 'dan'), ('', 'dan')$$, true);
RESET ratelimit.error_style;
-- Not so for other errors.
SELECT error_of($$INSERT INTO tc_jobs VALUES ('', NULL)$$, true);
-- What is no option.
CREATE FUNCTION misused(VARIADIC arguments text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    EXECUTE 'CREATE TRIGGER b BEFORE INSERT ON tc_jobs FOR EACH ROW EXECUTE FUNCTION rl_trigger('
        || (SELECT string_agg(quote_literal(a), ', ') FROM unnest(arguments) a) || ')';
    answer := error_of('INSERT INTO tc_jobs VALUES (''tc/pro'', ''x'')', true);
    DROP TRIGGER b ON tc_jobs;
    RETURN answer;
END
$$;
SELECT misused('tc', 'message=');
SELECT misused('tc', 'message=a', 'message=b');
SELECT misused('tc', 'name=plan');
SELECT misused('tc', 'key=plan,customer', 'key=plan');
SELECT misused('name=');
SELECT misused('name=nothing');
SELECT misused('tc', 'key=plan,');
SELECT misused('tc', 'key=plan,Customer');
SELECT misused('tc', 'count=tokens,tokens');
\a \t

SET client_min_messages = warning;
DROP TABLE tc, tc_jobs;
DROP FUNCTION taken, misused;
RESET client_min_messages;
SELECT count(rl_reset_keys(name)) AS reset, count(rl_undefine(name)) AS undefined FROM unnest('{tc,tc/free,tc/pro,tc/a,tc/ab}'::text[]) name;

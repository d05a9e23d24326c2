-- rl_trigger on a limit in memory: what is taken stays taken, so a row takes when nothing can refuse it any more.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
\set SHOW_CONTEXT never
SELECT rl_define('tm', rl_token_bucket(3, '1 day', store => 'memory')),
       rl_define('tm/table', rl_token_bucket(3, '1 day'));
CREATE TABLE tm_authors (author text PRIMARY KEY);
INSERT INTO tm_authors VALUES ('victim'), ('regress_rl_writer');
CREATE TABLE tm (author text REFERENCES tm_authors, body text CHECK (body <> ''), UNIQUE (author, body));
INSERT INTO tm VALUES ('victim', 'first');
ALTER TABLE tm ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON tm USING (author = current_user);
SET client_min_messages = error; -- Citus warns that it knows no such table
CREATE VIEW tm_own AS SELECT * FROM tm WHERE author <> 'victim' WITH CHECK OPTION;
RESET client_min_messages;
CREATE ROLE regress_rl_writer;
GRANT SELECT, INSERT, UPDATE, DELETE ON tm, tm_own TO regress_rl_writer;

-- Every row that is refused after BEFORE triggers would have taken: of a policy, view, constraint, key or reference.
CREATE PROCEDURE refused() LANGUAGE plpgsql AS $$
DECLARE
    statement text;
BEGIN
    SET LOCAL ROLE regress_rl_writer;
    FOREACH statement IN ARRAY ARRAY[
        'INSERT INTO tm VALUES (''victim'', ''spam'')', 'INSERT INTO tm VALUES (''victim'', ''spam''), (''victim'', ''more'')',
        'UPDATE tm SET author = ''victim'''] LOOP
        RAISE NOTICE '%', error_of(statement);
    END LOOP;
    RESET ROLE;
    FOREACH statement IN ARRAY ARRAY[
        'INSERT INTO tm_own VALUES (''victim'', ''spam'')', 'INSERT INTO tm VALUES (''victim'', '''')',
        'INSERT INTO tm VALUES (''victim'', ''first'')', 'INSERT INTO tm VALUES (''nobody'', ''x'')'] LOOP
        RAISE NOTICE '%', error_of(statement);
    END LOOP;
    RAISE NOTICE '% and % remain', (rl_check('tm', 'victim')).remaining, (rl_check('tm', 'nobody')).remaining;
END $$;
INSERT INTO tm VALUES ('regress_rl_writer', 'first');
CREATE TRIGGER limited BEFORE INSERT OR UPDATE OR DELETE ON tm FOR EACH ROW EXECUTE FUNCTION rl_trigger('tm', 'key=author');
CALL refused();
-- All writes: also the rows that nothing refuses, an upsert and COPY.
SELECT error_of($$INSERT INTO tm VALUES ('victim', 'second')$$, true);
SELECT error_of($$INSERT INTO tm VALUES ('victim', 'first') ON CONFLICT DO NOTHING$$, true);
SELECT error_of($$UPDATE tm SET body = 'other' WHERE author = 'victim'$$, true);
SELECT error_of($$DELETE FROM tm WHERE author = 'victim'$$, true);
COPY tm FROM stdin;
victim	second
\.
SELECT remaining FROM rl_check('tm', 'victim');
-- A key that is exempt, or kept in the table, takes nothing from memory; a dry run does.
SELECT rl_define('tm', rl_unlimited(), 'victim');
SELECT error_of($$INSERT INTO tm VALUES ('victim', 'second')$$);
SELECT rl_define('tm', rl_token_bucket(3, '1 day'), 'victim');
SELECT error_of($$INSERT INTO tm VALUES ('victim', 'third')$$);
SELECT remaining FROM rl_check('tm', 'victim');
SELECT rl_undefine('tm', 'victim'), rl_reset('tm', 'victim');
SELECT rl_define('tm/dry', rl_token_bucket(3, '1 day', store => 'memory', enforce => false));
DROP TRIGGER limited ON tm;
CREATE TRIGGER limited BEFORE INSERT ON tm FOR EACH ROW EXECUTE FUNCTION rl_trigger('tm/dry', 'key=author');
SELECT error_of($$INSERT INTO tm VALUES ('victim', 'fourth')$$);
DROP TRIGGER limited ON tm;

-- AFTER the statement, when all of that has been checked.
CREATE TRIGGER inserted AFTER INSERT ON tm REFERENCING NEW TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('tm', 'key=author');
CREATE TRIGGER updated AFTER UPDATE ON tm REFERENCING NEW TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('tm', 'key=author');
CALL refused();
SET ROLE regress_rl_writer;
INSERT INTO tm VALUES ('regress_rl_writer', 'second'), ('regress_rl_writer', 'third');
INSERT INTO tm VALUES ('regress_rl_writer', 'first') ON CONFLICT DO NOTHING;
INSERT INTO tm VALUES ('regress_rl_writer', 'fourth'), ('regress_rl_writer', 'fifth');
INSERT INTO tm VALUES ('regress_rl_writer', 'sixth');
INSERT INTO tm VALUES ('regress_rl_writer', 'seventh');
RESET ROLE;
SELECT key, remaining FROM unnest(ARRAY['regress_rl_writer', 'victim']) AS key, rl_check('tm', key);
-- What is undone later stays taken: by a ROLLBACK, or a deferred constraint.
ALTER TABLE tm ALTER CONSTRAINT tm_author_fkey DEFERRABLE INITIALLY DEFERRED;
SET client_min_messages = warning;
BEGIN;
INSERT INTO tm VALUES ('nobody', 'x');
COMMIT;
SELECT remaining FROM rl_check('tm', 'nobody');

SELECT rl_reset_keys('tm');
DROP VIEW tm_own;
DROP TABLE tm, tm_authors;
DROP PROCEDURE refused;
DROP ROLE regress_rl_writer;

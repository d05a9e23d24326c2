-- A call inside a command that writes rows itself, of rateLimits or of a table of the caller's: it
-- goes by what the command has written so far, and what it takes is taken.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('same', rl_token_bucket(100, '1 minute'));
CREATE VIEW same AS SELECT key, value FROM rateLimits WHERE name = 'same' ORDER BY key;
SELECT ok, remaining FROM rl_limit('same', 'a', 10);
\echo in what an UPDATE, INSERT or DELETE of rateLimits returns
UPDATE rateLimits SET value = 50 WHERE name = 'same' RETURNING key, (SELECT remaining FROM rl_limit('same', key));
SELECT * FROM same;
UPDATE rateLimits SET value = 40 WHERE name = 'same' RETURNING key, (SELECT remaining FROM rl_limit('same', 'other'));
SELECT * FROM same;
UPDATE rateLimits SET value = 30 WHERE name = 'same' RETURNING key, (SELECT sum(remaining) FROM generate_series(1, 2) n, LATERAL rl_limit('same', rateLimits.key, n)) AS two;
SELECT * FROM same;
INSERT INTO rateLimits (name, key, value, ts) VALUES ('same', 'b', 20, '2027-01-01 12:00:00+00') RETURNING key, (SELECT remaining FROM rl_limit('same', key));
SELECT * FROM same;
DELETE FROM rateLimits WHERE name = 'same' AND key = 'b' RETURNING key, (SELECT remaining FROM rl_limit('same', key));
SELECT * FROM same;
UPDATE rateLimits SET key = 'c' WHERE name = 'same' AND key = 'b' RETURNING key, (SELECT remaining FROM rl_limit('same', 'b')), (SELECT remaining FROM rl_limit('same', key));
SELECT * FROM same;
INSERT INTO rateLimits (name, key, value, ts) VALUES ('same', 'c', 77, '2027-01-01 12:00:00+00')
ON CONFLICT (name, key, shard) DO UPDATE SET value = EXCLUDED.value RETURNING key, (SELECT remaining FROM rl_limit('same', key));
SELECT * FROM same;
\echo the other functions
UPDATE rateLimits SET value = 60 WHERE name = 'same' AND key = 'a' RETURNING
    (SELECT remaining FROM rl_check('same', key)), (SELECT remaining FROM rl_credit('same', key, 5)),
    (SELECT remaining FROM rl_limit_all(jsonb_build_array(jsonb_build_object('name', 'same', 'key', key)))), rl_reset('same', key);
SELECT * FROM same;
UPDATE rateLimits SET value = 60 WHERE name = 'same' AND key = 'a' RETURNING rl_reset_all('same');
SELECT * FROM same;
\echo in a WITH beside the write
SELECT count(ok) FROM unnest(ARRAY['a', 'b', 'c']) k, LATERAL rl_limit('same', k, 50);
WITH u AS (UPDATE rateLimits SET value = value + 10 WHERE name = 'same' RETURNING key)
SELECT key, ok, remaining FROM u, LATERAL rl_limit('same', u.key) ORDER BY key;
SELECT * FROM same;
WITH d AS (DELETE FROM rateLimits WHERE name = 'same' AND key = 'c' RETURNING key),
     i AS (INSERT INTO rateLimits (name, key, value, ts) VALUES ('same', 'd', 4, '2027-01-01 12:00:00+00') RETURNING key)
SELECT key, ok, remaining FROM (SELECT key FROM d UNION ALL SELECT key FROM i) k, LATERAL rl_limit('same', k.key) ORDER BY key;
SELECT * FROM same;
\echo above READ COMMITTED, too
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE rateLimits SET value = 33 WHERE name = 'same' AND key = 'a' RETURNING (SELECT remaining FROM rl_limit('same', key));
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE rateLimits SET value = 33 WHERE name = 'same' AND key = 'a' RETURNING (SELECT remaining FROM rl_limit('same', key));
ROLLBACK;
\echo triggers of another table, in the command that writes it: before and after, for the row and the statement
CREATE TABLE written (key text, remaining float8);
CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tg_op = 'UPDATE' AND tg_when = 'BEFORE' AND tg_level = 'ROW' THEN
        UPDATE rateLimits SET value = value - 10 WHERE name = 'same' AND key = NEW.key;
    END IF;
    IF tg_level = 'ROW' THEN
        NEW.remaining := (rl_limit('same', NEW.key)).remaining;
        RETURN NEW;
    END IF;
    PERFORM rl_limit('same', 'statement');
    RETURN NULL;
END
$$;
CREATE TRIGGER a BEFORE INSERT OR UPDATE ON written FOR EACH ROW EXECUTE FUNCTION take();
CREATE TRIGGER b AFTER INSERT OR UPDATE ON written FOR EACH ROW EXECUTE FUNCTION take();
CREATE TRIGGER c AFTER INSERT OR UPDATE ON written FOR EACH STATEMENT EXECUTE FUNCTION take();
INSERT INTO written SELECT k FROM unnest(ARRAY['a', 'a', 'new']) k RETURNING *;
SELECT * FROM same;
UPDATE written SET key = key RETURNING *;
SELECT * FROM same;
WITH w AS (INSERT INTO written VALUES ('a') RETURNING key), u AS (UPDATE rateLimits SET value = 90 WHERE name = 'same' AND key = 'b' RETURNING key)
SELECT key, remaining FROM (SELECT key FROM w UNION ALL SELECT key FROM u) k, LATERAL rl_limit('same', k.key) ORDER BY key;
SELECT * FROM same;
\echo a call that writes the row that its command is about to write: an error of that command, and nothing is taken
SELECT error_of($$UPDATE rateLimits SET value = (rl_limit('same', key)).remaining WHERE name = 'same' AND key = 'a'$$);
SELECT error_of($$DELETE FROM rateLimits WHERE name = 'same' AND key = 'a' AND (rl_limit('same', key)).ok$$);
SELECT * FROM same WHERE key = 'a';
DROP TABLE written; DROP FUNCTION take; DROP VIEW same;
SELECT rl_reset_all('same') > 0, rl_undefine('same');

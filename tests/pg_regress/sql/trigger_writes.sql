-- What rl_trigger AFTER an event FOR EACH STATEMENT writes: a row a key, in byte order.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE FUNCTION taken(name text) RETURNS TABLE (key text, taken float8) LANGUAGE sql AS $$
    SELECT s.key, s.capacity - s.remaining FROM rl_status(taken.name) s
$$;
-- 100,000 rows with 100 keys: 100 calls, each of which writes one row of rateLimits.
CREATE TABLE tw_bulk (author text, body text);
SELECT rl_define('tw/bulk', rl_token_bucket(3000, '1 day'));
CREATE TRIGGER a AFTER INSERT ON tw_bulk REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('tw/bulk', 'key=author');
BEGIN;
SELECT pg_stat_get_xact_tuples_inserted('rateLimits'::regclass) AS inserted, pg_stat_get_xact_tuples_updated('rateLimits'::regclass) AS updated \gset
INSERT INTO tw_bulk SELECT 'user-' || n % 100, 'x' FROM generate_series(1, 100000) n;
SELECT pg_stat_get_xact_tuples_inserted('rateLimits'::regclass) - :inserted AS inserted, pg_stat_get_xact_tuples_updated('rateLimits'::regclass) - :updated AS updated;
COMMIT;
SELECT count(*) AS keys, min(taken), max(taken) FROM taken('tw/bulk');
BEGIN;
SELECT pg_stat_get_xact_tuples_inserted('rateLimits'::regclass) AS inserted, pg_stat_get_xact_tuples_updated('rateLimits'::regclass) AS updated \gset
INSERT INTO tw_bulk SELECT 'user-' || n % 100, 'x' FROM generate_series(1, 100000) n;
SELECT pg_stat_get_xact_tuples_inserted('rateLimits'::regclass) - :inserted AS inserted, pg_stat_get_xact_tuples_updated('rateLimits'::regclass) - :updated AS updated;
COMMIT;
-- The keys are taken in byte order, whatever the order of the rows or the collation.
SELECT rl_define('tw', rl_token_bucket(10, '1 minute'));
CREATE TABLE tw (author text);
CREATE TRIGGER a AFTER INSERT ON tw REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('tw', 'key=author');
CREATE TABLE tw_order (seen serial, key text);
CREATE FUNCTION tw_note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.tw_order (key) VALUES (NEW.key); RETURN NULL; END$$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION tw_note();
INSERT INTO tw (author) VALUES ('b'), ('ä'), ('B'), ('a'), ('Z'), ('aa'), ('10'), ('9'), ('-'), (' ');
DROP TRIGGER note ON rateLimits;
SELECT array_agg(key ORDER BY seen) AS taken_in_order FROM tw_order;
-- More keys than are added up in memory, by number and by size: in the same order, each key once, and its
-- counts in the order of the rows, which of fractions shows in the sum.
SELECT rl_define('tw/many', rl_token_bucket(1e-300, '1 day', capacity => 1000));
CREATE TABLE tw_many (n serial, who text, tokens float8);
CREATE TRIGGER many AFTER INSERT ON tw_many REFERENCING NEW TABLE AS seen FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('tw/many', 'key=who', 'count=tokens');
CREATE TRIGGER note AFTER INSERT OR UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION tw_note();
SET work_mem = '64kB';
CREATE FUNCTION tw_take(keys int, prefix text) RETURNS TABLE (keys_taken bigint, once boolean, in_order boolean, exact boolean) LANGUAGE plpgsql AS $$
BEGIN
    TRUNCATE tw_order, tw_many;
    PERFORM rl_reset_keys('tw/many');
    INSERT INTO tw_many (who, tokens) SELECT prefix || md5((n % keys)::text), 0.1 * (n % 7) FROM generate_series(1, keys * 3) n;
    RETURN QUERY SELECT count(*), count(DISTINCT o.key) = count(*), bool_and(o.ordered),
        (SELECT bool_and(r.value = 1000 - t.sum) FROM rateLimits r JOIN (SELECT who, sum(tokens ORDER BY n) FROM tw_many GROUP BY who) t ON r.key = t.who WHERE r.name = 'tw/many')
        FROM (SELECT key, coalesce(key COLLATE "C" > lag(key) OVER (ORDER BY seen), true) AS ordered FROM tw_order) o;
END
$$;
SELECT * FROM tw_take(11000, '');
SELECT * FROM tw_take(1100, repeat('k', 980));
RESET work_mem;
DROP TRIGGER note ON rateLimits;
SELECT rl_reset_keys('tw/many');

SET client_min_messages = warning;
DROP TABLE tw, tw_bulk, tw_order, tw_many CASCADE;
DROP FUNCTION taken, tw_note, tw_take;
RESET client_min_messages;
SELECT rl_undefine('tw'), rl_undefine('tw/bulk'), rl_undefine('tw/many');

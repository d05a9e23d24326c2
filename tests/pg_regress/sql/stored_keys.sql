-- Name and key as a row has them: compressed, or moved to TOAST, where its owner lets that be. An update takes them as
-- they are stored, as SQL does: so the key is unchanged, and the update HOT.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- Long enough for the rows to be toasted, the key first.
SELECT repeat('n', 200) AS name, repeat('x', 1000) AS alike, (SELECT left(string_agg(md5(n::text), ''), 1000) FROM generate_series(1, 32) n) AS random \gset
SELECT rl_define(:'name', rl_sliding_log(1000, '1 day'));
-- What a call remains, and how many updates it makes, HOT ones among them.
CREATE FUNCTION counted(call text, VARIADIC texts text[], OUT remaining float8, OUT updates bigint, OUT hot bigint) LANGUAGE plpgsql AS $$
DECLARE
    rows CONSTANT oid := 'rateLimits'::regclass;
BEGIN
    updates := pg_stat_get_xact_tuples_updated(rows);
    hot := pg_stat_get_xact_tuples_hot_updated(rows);
    EXECUTE 'SELECT remaining FROM ' || call INTO remaining USING texts[1], texts[2];
    updates := pg_stat_get_xact_tuples_updated(rows) - updates;
    hot := pg_stat_get_xact_tuples_hot_updated(rows) - hot;
END
$$;
CREATE FUNCTION toasted() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    chunks bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM %s', (SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'rateLimits'::regclass)) INTO chunks;
    RETURN chunks;
END
$$;
SELECT remaining FROM rl_limit(:'name', :'alike', 100);
SELECT pg_column_size(key) < 100 AS compressed FROM rateLimits WHERE name = :'name';
SELECT * FROM counted('rl_limit($1, $2)', :'name', :'alike');
SELECT * FROM counted('rl_limit_all(jsonb_build_array(jsonb_build_object(''name'', $1, ''key'', $2)))', :'name', :'alike');
SELECT pg_column_size(key) < 100 AS compressed FROM rateLimits WHERE name = :'name';
-- Out of line.
ALTER TABLE rateLimits SET (toast_tuple_target = 128);
SELECT toasted() AS before \gset
SELECT remaining FROM rl_limit(:'name', :'random', 100);
SELECT toasted() > :before AS out_of_line;
SELECT * FROM counted('rl_limit($1, $2)', :'name', :'random');
-- Where the page has no room, a new index entry is made of them.
BEGIN;
SELECT count(*) FROM generate_series(1, 100) n, rl_limit(CASE WHEN n > 0 THEN :'name' END, :'random');
SELECT count(*) FROM generate_series(1, 100) n, rl_limit(CASE WHEN n > 0 THEN :'name' END, :'alike');
COMMIT;
SELECT remaining FROM rl_check(:'name', :'random');
SELECT remaining FROM rl_check(:'name', :'alike');
SELECT key = :'random' AS random, key = :'alike' AS alike, value FROM rateLimits WHERE name = :'name' ORDER BY key;
REINDEX TABLE rateLimits;
SELECT remaining FROM rl_limit(:'name', :'random');
SELECT remaining FROM rl_limit(:'name', :'alike');
SELECT rl_reset_keys(:'name');
SELECT count(*) FROM rateLimits WHERE name = :'name';
ALTER TABLE rateLimits RESET (toast_tuple_target);
SELECT rl_undefine(:'name');
DROP FUNCTION counted, toasted;

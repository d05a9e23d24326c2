-- A call where PostgreSQL has no snapshot active: in a domain's CHECK, right after a COMMIT in PL/pgSQL. It
-- works as any other, also where a row has to be read from out of line.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('bare', rl_token_bucket(100, '1 minute')), rl_define('bare/log', rl_sliding_log(6000, '1 minute')),
       rl_define('bare/wide', rl_token_bucket(100, '1 minute', shards => 4));
-- A log too large for its row, which is read from where PostgreSQL has put it.
INSERT INTO rateLimits (name, key, kind, value, ts, log)
SELECT 'bare/log', 'k', 'l', count(*), max(t), array_agg(t ORDER BY t)
FROM (SELECT timestamptz '2027-01-01 11:59:30+00' + interval '1 us' * (abs(hashint4(n)) % 30000000) AS t FROM generate_series(1, 5000) n) s;
SELECT pg_column_size(log) > 8000 AS out_of_line FROM rateLimits WHERE name = 'bare/log';
CREATE DOMAIN checked AS text CHECK (CASE WHEN VALUE IS NOT NULL THEN (rl_check('bare', VALUE)).ok END);
CREATE DOMAIN limited AS text CHECK (CASE WHEN VALUE IS NOT NULL THEN (rl_limit('bare', VALUE)).ok END);
CREATE DOMAIN logged AS text CHECK (CASE WHEN VALUE IS NOT NULL THEN (rl_limit('bare/log', VALUE)).ok END);
CREATE DOMAIN widely AS text CHECK (CASE WHEN VALUE IS NOT NULL THEN (rl_limit('bare/wide', VALUE, 30)).ok END);
CREATE DOMAIN credited AS text CHECK (CASE WHEN VALUE IS NOT NULL THEN (rl_credit('bare', VALUE, 1)).ok END);
CREATE DOMAIN emptied AS text CHECK (CASE WHEN VALUE IS NOT NULL THEN rl_reset('bare', VALUE) END);
CREATE DOMAIN forgotten AS text CHECK (CASE WHEN VALUE IS NOT NULL THEN rl_reset_keys('bare') = VALUE::int END);
CREATE DOMAIN pruned AS text CHECK (CASE WHEN VALUE IS NOT NULL THEN rl_prune(VALUE::int) >= 0 END);
CREATE DOMAIN inline AS text CHECK (CASE WHEN VALUE IS NOT NULL THEN (rl_limit('bare/inline', VALUE, config => rl_token_bucket(2, '1 minute'))).ok END);
CREATE FUNCTION left_of(name text, key text) RETURNS float8 LANGUAGE sql AS 'SELECT remaining FROM rl_check($1, $2)';
\echo a read, a new row, the same row again, a later one, an older one
DO $$DECLARE a checked; BEGIN COMMIT; a := 'k'; END$$;
DO $$DECLARE b limited; BEGIN COMMIT; b := 'k'; b := 'k'; COMMIT; b := 'k'; b := 'l'; END$$;
SELECT left_of('bare', 'k'), left_of('bare', 'l');
DO $$DECLARE c logged; BEGIN COMMIT; c := 'k'; c := 'k'; COMMIT; c := 'k'; c := 'l'; END$$;
SELECT left_of('bare/log', 'k'), left_of('bare/log', 'l');
DO $$DECLARE d widely; BEGIN COMMIT; d := 'k'; d := 'k'; COMMIT; d := 'k'; END$$;
SELECT left_of('bare/wide', 'k');
DO $$DECLARE d widely; BEGIN COMMIT; d := 'k'; END$$;
DO $$DECLARE e credited; BEGIN COMMIT; e := 'k'; COMMIT; e := 'k'; END$$;
SELECT left_of('bare', 'k');
DO $$DECLARE i inline; BEGIN COMMIT; i := 'k'; COMMIT; i := 'k'; COMMIT; i := 'k'; END$$;
DO $$DECLARE f emptied; BEGIN COMMIT; f := 'k'; END$$;
SELECT left_of('bare', 'k');
DO $$DECLARE h pruned; BEGIN COMMIT; h := '1'; COMMIT; h := '100'; END$$;
DO $$DECLARE g forgotten; BEGIN COMMIT; g := '1'; COMMIT; g := '0'; END$$;
\echo as FOREACH assigns, for which PL/pgSQL makes no snapshot
SELECT rl_reset_keys('bare') + rl_reset_keys('bare/wide') >= 0;
DO $$DECLARE a checked; BEGIN FOREACH a IN ARRAY ARRAY['k', 'k', 'l'] LOOP COMMIT; END LOOP; END$$;
DO $$DECLARE b limited; BEGIN FOREACH b IN ARRAY ARRAY['k', 'k', 'k', 'l', 'l'] LOOP COMMIT; END LOOP; END$$;
SELECT left_of('bare', 'k'), left_of('bare', 'l');
DO $$DECLARE c logged; BEGIN FOREACH c IN ARRAY ARRAY['k', 'k', 'k', 'l', 'k'] LOOP COMMIT; END LOOP; END$$;
SELECT left_of('bare/log', 'k'), left_of('bare/log', 'l');
DO $$DECLARE c logged; BEGIN FOREACH c IN ARRAY ARRAY['k', 'k'] LOOP ROLLBACK; END LOOP; END$$;
SELECT left_of('bare/log', 'k');
DO $$DECLARE d widely; BEGIN FOREACH d IN ARRAY ARRAY['k', 'k', 'k'] LOOP COMMIT; END LOOP; END$$;
SELECT left_of('bare/wide', 'k');
DO $$DECLARE e credited; BEGIN FOREACH e IN ARRAY ARRAY['k', 'k'] LOOP COMMIT; END LOOP; END$$;
SELECT left_of('bare', 'k');
DO $$DECLARE f emptied; BEGIN FOREACH f IN ARRAY ARRAY['k', 'l'] LOOP COMMIT; END LOOP; END$$;
DO $$DECLARE h pruned; BEGIN FOREACH h IN ARRAY ARRAY['1', '100', '100'] LOOP COMMIT; END LOOP; END$$;
DO $$DECLARE g forgotten; BEGIN FOREACH g IN ARRAY ARRAY['0', '0'] LOOP COMMIT; END LOOP; END$$;
\echo after a ROLLBACK
DO $$DECLARE b limited; BEGIN b := 'r'; ROLLBACK; b := 'r'; COMMIT; b := 'r'; END$$;
SELECT left_of('bare', 'r');
DROP FUNCTION left_of;
DROP DOMAIN checked, limited, logged, widely, credited, emptied, forgotten, pruned, inline;
DELETE FROM rateLimits WHERE name LIKE 'bare%';
SELECT rl_undefine('bare'), rl_undefine('bare/log'), rl_undefine('bare/wide');

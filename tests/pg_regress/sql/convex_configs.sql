-- Every config that the validator of @convex-dev/rate-limiter 0.4.0 allows, but for shards with
-- "asynchronously", which its types refuse: with and without each field, defined and passed with a call.
CREATE TABLE convex AS SELECT row_number() OVER () AS n, kind || rate || period || capacity || reserved || shards || updates || start AS config
FROM unnest(ARRAY['{"kind": "token bucket"', '{"kind": "fixed window"']) kind, unnest(ARRAY[', "rate": 10', ', "rate": 0.5']) rate,
    unnest(ARRAY[', "period": 60000', ', "period": 1']) period, unnest(ARRAY['', ', "capacity": 3']) capacity,
    unnest(ARRAY['', ', "maxReserved": 5']) reserved, unnest(ARRAY['', ', "shards": 1', ', "shards": 4']) shards,
    unnest(ARRAY['', ', "applyUpdates": "transactionally"', ', "applyUpdates": "asynchronously"']) updates,
    unnest(ARRAY['}', ', "start": null}', ', "start": 0}']) start
WHERE NOT (shards LIKE '%4' AND updates LIKE '%async%')
  AND CASE start WHEN ', "start": null}' THEN kind LIKE '%bucket"' WHEN ', "start": 0}' THEN kind LIKE '%window"' ELSE true END;
SELECT count(*) FROM convex;
SELECT count(*) AS defined FROM convex WHERE rl_define('zz/' || n, config::jsonb);
-- capacity 0.5 has no whole token
SELECT count(*) AS defined, count(*) FILTER (WHERE l.ok) AS admitted FROM convex, rl_limit('zz/' || n, 'k', 0.25) l;
SELECT count(*) AS passed, count(*) FILTER (WHERE l.ok) AS admitted FROM convex, rl_limit('inline zz/' || n, 'k', 0.25, config => config::jsonb) l;
-- where they are: in the table, in memory saved each second, and without save where the config is passed
SELECT config::jsonb ->> 'applyUpdates' AS updates, count(*) FILTER (WHERE r.name LIKE 'zz%') AS defined, count(*) FILTER (WHERE r.name LIKE 'inline%') AS passed
FROM convex LEFT JOIN rateLimits r ON r.name IN ('zz/' || n, 'inline zz/' || n) AND r.shard = 0 GROUP BY 1 ORDER BY 1;
SELECT rl_save();
SELECT count(*) AS saved FROM convex JOIN rateLimits r ON r.name = 'zz/' || n WHERE config LIKE '%asynchronously%';
-- the same limits as without the two fields
SELECT a.config FROM convex a, rl_calculate(a.config::jsonb, '{"value": 0.25, "ts": 1798804800000}', '2027-01-01 12:00:01+00') x,
    rl_calculate(a.config::jsonb - 'applyUpdates' - CASE WHEN a.config LIKE '%null}' THEN 'start' ELSE '' END, '{"value": 0.25, "ts": 1798804800000}', '2027-01-01 12:00:01+00') y
WHERE x IS DISTINCT FROM y;
-- a limit that is saved takes such a config in a call
SELECT rl_define('zz saved', '{"kind": "token bucket", "rate": 10, "period": 60000, "applyUpdates": "asynchronously"}');
SELECT ok, remaining FROM rl_limit('zz saved', 'k', config => '{"kind": "token bucket", "rate": 5, "period": 60000, "start": null, "applyUpdates": "asynchronously"}');
\set VERBOSITY terse
SELECT rl_define('x', '{"kind": "token bucket", "rate": 1, "period": 1000, "shards": 2, "applyUpdates": "asynchronously"}');
SELECT rl_define('x', '{"kind": "token bucket", "rate": 1, "period": 1000, "applyUpdates": "synchronously"}');
SELECT rl_define('x', '{"kind": "token bucket", "rate": 1, "period": 1000, "applyUpdates": null}');
SELECT rl_define('x', '{"kind": "fixed window", "rate": 1, "period": 1000, "start": null}');
SELECT rl_define('x', '{"kind": "token bucket", "rate": 1, "period": 1000, "start": 0}');
SELECT sum(rl_reset_all('zz/' || n)) + sum(rl_reset_all('inline zz/' || n)) + rl_reset_all('zz saved') AS reset FROM convex;
DROP TABLE convex;
SELECT count(rl_undefine(name)) > 0 FROM rl_config WHERE name LIKE 'zz%' AND key = '';
SELECT rl_save();
SELECT count(rl_stats_reset(name)) > 0 AS cleared FROM rl_stats() WHERE name LIKE '%zz%';

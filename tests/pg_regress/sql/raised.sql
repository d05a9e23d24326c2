-- A limit that is raised or lowered in the middle of a window: what was used of it stays used. In both stores.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-10 12:00:00+00';
CREATE FUNCTION plan(rate float8, capacity float8 DEFAULT NULL) RETURNS TABLE (name text, config jsonb) LANGUAGE sql AS $$
    SELECT 'ra/' || how || '/' || store, config || jsonb_build_object('store', store) FROM (VALUES
        ('hour', rl_fixed_window(rate, '1 hour', capacity, start => '2027-01-01 00:00:00+00')),
        ('first', rl_fixed_window(rate, '1 hour', capacity, first_request => true)),
        ('month', rl_fixed_window(rate, '1 month', capacity, timezone => 'Europe/Berlin')),
        ('over', rl_fixed_window(rate, '1 month', capacity, timezone => 'UTC') || '{"overage": true}')) v (how, config),
        unnest(ARRAY['table', 'memory']) AS store
$$;
CREATE FUNCTION plans(rate float8, capacity float8 DEFAULT NULL) RETURNS bigint LANGUAGE sql AS
    $$SELECT count(*) FROM plan($1, $2) AS p, LATERAL rl_define(p.name, p.config)$$;
CREATE VIEW ra AS SELECT 'ra/' || how || '/' || store AS name
    FROM unnest(ARRAY['hour', 'first', 'month', 'over']) how, unnest(ARRAY['table', 'memory']) store;
SELECT plans(1000);
SELECT name, ok, remaining FROM ra, rl_limit(name, 'acme', 1000);
SELECT name, ok, remaining FROM ra, rl_limit(name, 'acme');
-- Raised, the difference is there at once; the state shows what was used.
SELECT plans(100000);
SELECT name, ok, remaining, capacity FROM ra, rl_limit(name, 'acme', 0);
SELECT name, remaining, limited FROM ra, LATERAL rl_status(ra.name, 'acme') AS s (n, k, kind, remaining, capacity, retry_at, as_of, shards, limited);
SELECT name, ok, remaining FROM ra, rl_limit(name, 'acme');
SELECT name, key, value, added FROM rateLimits WHERE name LIKE 'ra/%' ORDER BY name;
-- Lowered, what is left is less by the difference, and no debt; raised again, nothing was given twice.
SELECT plans(2000);
SELECT name, ok, remaining FROM ra, rl_check(name, 'acme');
SELECT plans(500);
SELECT name, ok, remaining FROM ra, rl_check(name, 'acme');
SELECT name, ok, remaining FROM ra, rl_limit(name, 'acme', 10);
SELECT plans(1001);
SELECT name, ok, remaining FROM ra, rl_check(name, 'acme');
SELECT plans(100000);
SELECT name, ok, remaining FROM ra, rl_check(name, 'acme');
-- Given back under a smaller plan, it counts against what was used beyond that.
SELECT plans(500);
SELECT name, remaining FROM ra, rl_credit(name, 'acme', 5) WHERE name NOT LIKE '%over%';
SELECT name, remaining FROM ra, rl_check(name, 'acme') WHERE name NOT LIKE '%over%';
-- The next window is a whole one.
SET ratelimit.clock = '2027-02-01 00:00:00+00';
SELECT name, remaining FROM ra, rl_check(name, 'acme');
-- What rolled over is kept; a capacity alone is about windows to come.
SELECT plans(100, 300);
SELECT name, remaining FROM ra, rl_limit(name, 'rolled', 280);
SELECT plans(100, 600);
SELECT name, remaining FROM ra, rl_check(name, 'rolled');
SELECT plans(1000, 3000);
SELECT name, remaining FROM ra, rl_check(name, 'rolled');
-- An override for a key, as of a plan, and back.
SELECT rl_define('ra/api', rl_fixed_window(1000, '1 month', timezone => 'UTC'));
SELECT ok, remaining FROM rl_limit('ra/api', 'acme', 1000);
SELECT rl_define('ra/api', rl_fixed_window(100000, '1 month', timezone => 'UTC'), key => 'acme');
SELECT ok, remaining FROM rl_limit('ra/api', 'acme');
SELECT rl_undefine('ra/api', 'acme');
SELECT ok, remaining, retry_at FROM rl_check('ra/api', 'acme');
SELECT name, ok, remaining FROM rl_limit_all('[{"name": "ra/api", "key": "b", "count": 1000}, {"name": "ra/hour/memory", "key": "b", "count": 1000}]');
SELECT rl_define('ra/api', rl_fixed_window(1500, '1 month', timezone => 'UTC'));
SELECT plans(1500);
SELECT name, ok, remaining FROM rl_limit_all('[{"name": "ra/api", "key": "b", "count": 100}, {"name": "ra/hour/memory", "key": "b", "count": 100}]');
-- Shards, also where their number changes with the rate.
SELECT rl_define('ra/shards', rl_fixed_window(1000, '1 hour', shards => 4, start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining FROM rl_limit('ra/shards', count => 1000);
SELECT rl_define('ra/shards', rl_fixed_window(3000, '1 hour', shards => 4, start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining FROM rl_check('ra/shards');
SELECT ok FROM rl_limit('ra/shards', count => 1500);
SELECT rl_define('ra/shards', rl_fixed_window(5000, '1 hour', shards => 2, start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining FROM rl_check('ra/shards');
SELECT ok FROM rl_limit('ra/shards', count => 100);
SELECT rl_define('ra/shards', rl_fixed_window(6000, '1 hour', start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining FROM rl_limit('ra/shards', count => 100);
SELECT rl_define('ra/shards', rl_fixed_window(1000, '1 hour', shards => 2, start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining FROM rl_check('ra/shards');
-- Where more was used than the smaller plan has, also by a number of shards that is another by then.
SELECT rl_define('ra/fewer', rl_fixed_window(1000, '1 hour', shards => 4, start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining FROM rl_limit('ra/fewer', count => 1000);
SELECT rl_define('ra/fewer', rl_fixed_window(500, '1 hour', shards => 2, start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining FROM rl_limit('ra/fewer', count => 1, reserve => true);
SELECT rl_define('ra/fewer', rl_fixed_window(500, '1 hour', start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining FROM rl_limit('ra/fewer', count => 1, reserve => true);
SELECT rl_define('ra/fewer', rl_fixed_window(1010, '1 hour', start => '2027-01-01 00:00:00+00'));
SELECT ok, remaining FROM rl_check('ra/fewer');
-- A state that does not show what was used, as rl_calculate's and those of 1.0.0, keeps its tokens.
SELECT rl_define('ra/old', rl_fixed_window(100000, '1 month', timezone => 'UTC'));
INSERT INTO rateLimits (name, key, value, ts) VALUES ('ra/old', '', 10, '2027-02-01 00:00:00+00');
SELECT ok, remaining FROM rl_limit('ra/old');
SELECT rl_value('ra/old') -> 'state';
SELECT remaining, state FROM rl_calculate(rl_fixed_window(500, '1 hour'), '{"value": 4, "ts": 0}', 'epoch', 1);
-- To and from other kinds as before: a bucket takes the tokens, a sliding window begins again.
SELECT rl_define('ra/old', rl_token_bucket(1, '1 day', capacity => 100000)), (rl_check('ra/old')).remaining,
       rl_define('ra/old', rl_sliding_window(7, '1 day')), (rl_check('ra/old')).remaining;
-- In memory a window in debt is a key.
SELECT rl_define('ra/debt', rl_fixed_window(10, '1 hour') || '{"overage": true, "store": "memory"}');
SELECT remaining FROM rl_limit('ra/debt', 'a', 15);
SELECT rl_reset_all('ra/debt');
SELECT count(rl_reset_all(name)) FROM ra;
DELETE FROM rl_config WHERE name LIKE 'ra/%';
DELETE FROM rateLimits WHERE name LIKE 'ra/%';
DROP VIEW ra;
DROP FUNCTION plans;
DROP FUNCTION plan;

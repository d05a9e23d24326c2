-- Rows of holds that the owner of the tables has written, as no call does: what reads one ends with 55000, without its
-- key, and rl_reset ends it. And rows of limits that the owner has deleted, whose holds stay.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('hh', rl_token_bucket(1, '1 hour', capacity => 100));
CREATE TABLE hh_values (n int, columns text);
INSERT INTO hh_values VALUES (1, 'count = ''NaN'''), (2, 'count = ''Infinity'''), (3, 'count = -5'), (4, 'count = 10, old = ''NaN'''),
    (5, 'old = ''-Infinity'''), (6, 'old = 10.5'), (7, 'back = ''NaN'''), (8, 'back = -1'), (9, 'taken_at = ''infinity'''),
    (10, 'taken_at = ''-infinity'''), (11, 'expires_at = ''infinity''');
CREATE FUNCTION hh_error(call text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN error ~ 'secret' THEN 'with the key' ELSE replace(replace(error, 'public.', ''), 'ratelimit.', '') END FROM error_of('SELECT ' || call, true) error
$$;
DO $$
DECLARE
    v record;
BEGIN
    FOR v IN SELECT * FROM hh_values LOOP
        PERFORM rl_hold('hh', 'secret ' || v.n, 10, id => 'h-' || v.n);
        EXECUTE format('UPDATE rl_holds SET %s WHERE id = %L', v.columns, 'h-' || v.n);
    END LOOP;
END $$;
SELECT v.columns, hh_error(format('rl_settle(''h-%s'', 1)', n)) AS error FROM hh_values v ORDER BY n;
SELECT v.columns, call, left(hh_error(format(call, n)), 5) AS error FROM hh_values v, unnest(ARRAY[
    'rl_hold(''hh'', ''secret %1$s'', 20, id => ''h-%1$s'')', 'rl_settle_all(''h-%1$s'', ''1'')',
    'rl_hold_all(jsonb_build_array(jsonb_build_object(''name'', ''hh'', ''key'', ''secret %1$s'')), id => ''h-%1$s'')']) call
ORDER BY n, call;
-- What needs no such row works, and what ends it.
SELECT ok, remaining FROM rl_limit('hh', 'secret 1', 1);
SELECT ok, held, remaining FROM rl_hold('hh', 'secret 1', 5, id => 'fine');
SELECT ok, remaining FROM rl_settle('fine', 1);
SELECT count(rl_reset('hh', 'secret ' || n)) FROM hh_values WHERE n > 2;
SELECT id, rl_settle(id, 1) FROM rl_holds WHERE id = 'h-3';
-- When it expires, too: every call of its key needs it then. rl_prune leaves it.
SELECT hh_error('rl_status(''hh'', ''secret 1'')');
SELECT hh_error('rl_limit(''hh'', ''secret 1'', 100)');
SET ratelimit.clock = '2027-01-01 12:10:00+00';
SELECT call, left(hh_error(call), 5) AS error FROM unnest(ARRAY['rl_limit(''hh'', ''secret 1'')', 'rl_check(''hh'', ''secret 1'')',
    'rl_take(''hh'', ''secret 1'')', 'rl_credit(''hh'', ''secret 1'', 1)', 'rl_limit_all(''[{"name": "hh", "key": "secret 1"}]'')',
    'rl_hold(''hh'', ''secret 1'')', 'rl_status(''hh'', ''secret 1'')']) call;
SELECT rl_prune() >= 0;
SELECT id, count, old FROM rl_holds WHERE name = 'hh' ORDER BY id;
SELECT rl_reset('hh', 'secret 1'), rl_reset('hh', 'secret 2');
SELECT ok, remaining FROM rl_limit('hh', 'secret 1', 100);
DROP TABLE hh_values;

\echo rows of limits deleted
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('hh/rows', rl_token_bucket(1, '1000 days', capacity => 100)), rl_define('hh/slots', rl_concurrency(3, '1 hour'));
CREATE VIEW hh_rows AS SELECT h.id, h.count, h.old, h.back, h.expires_at FROM rl_holds h WHERE name LIKE 'hh/%' ORDER BY id;
CREATE FUNCTION hh_deleted(id text, key text DEFAULT 'k', ttl interval DEFAULT '10 minutes') RETURNS boolean LANGUAGE sql AS $$
    SELECT count(rl_hold('hh/rows', $2, 40, $3, $1)) = 1;
    WITH deleted AS (DELETE FROM rateLimits WHERE name = 'hh/rows' AND key = $2 RETURNING key) SELECT count(*) = 1 FROM deleted
$$;
-- The limit is full.
SELECT hh_deleted('settled');
SELECT ok, remaining FROM rl_check('hh/rows', 'k');
SELECT remaining, held FROM rl_status('hh/rows', 'k');
SELECT ok, remaining FROM rl_settle('settled', 10);
SELECT hh_deleted('beyond');
SELECT ok, remaining FROM rl_settle('beyond', 50);
SELECT rl_reset('hh/rows', 'k');
SELECT hh_deleted('taken');
SELECT ok, remaining FROM rl_limit('hh/rows', 'k', 100);
SELECT remaining, held FROM rl_status('hh/rows', 'k');
SELECT ok, remaining, retry_at FROM rl_limit('hh/rows', 'k', 5);
SELECT ok, remaining FROM rl_settle('taken', 10);
SELECT rl_reset('hh/rows', 'k');
SELECT hh_deleted('again');
SELECT ok, hold, held, remaining FROM rl_hold('hh/rows', 'k', 60, id => 'again');
SELECT ok, remaining FROM rl_settle('again', 0);
SELECT rl_reset('hh/rows', 'k');
-- Expired.
SELECT hh_deleted('expired'), hh_deleted('first', 'l', '5 minutes'), hh_deleted('next', 'm', '8 minutes');
SELECT ok, remaining FROM unnest('{k,l,m}'::text[]) key, LATERAL rl_limit('hh/rows', key, 60);
SELECT ok, held FROM rl_hold('hh/rows', 'm', 10, '5 minutes', 'm-2');
SET ratelimit.clock = '2027-01-01 12:06:00+00';
SELECT key, floor(remaining) AS remaining FROM unnest('{k,l,m}'::text[]) key, LATERAL rl_limit('hh/rows', key, 1);
SET ratelimit.clock = '2027-01-01 12:10:00+00';
SELECT key, floor(remaining) AS remaining FROM unnest('{k,l,m}'::text[]) key, LATERAL rl_limit('hh/rows', key, 1);
SELECT key, floor(remaining) AS remaining, held FROM rl_status('hh/rows');
SELECT * FROM hh_rows;
SELECT ok, hold, held, floor(remaining) AS remaining FROM rl_hold('hh/rows', 'k', 45, id => 'expired');
SELECT ok, floor(remaining) AS remaining FROM rl_settle('expired', 10);
SELECT rl_prune() >= 0;
SELECT * FROM hh_rows;
SELECT key, floor(remaining) AS remaining FROM unnest('{k,l,m}'::text[]) key, LATERAL rl_check('hh/rows', key);
SELECT ok, floor(remaining) AS remaining FROM rl_settle('first', 10);
-- A later hold, whose expiry the new row names: rl_prune finds the earlier one, and ends with 0.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_reset_all('hh/rows') > 0, hh_deleted('before', 'n', '5 minutes');
SELECT ok, held FROM rl_hold('hh/rows', 'n', 90, '1 hour', 'after');
SET ratelimit.clock = '2027-01-01 12:06:00+00';
SELECT rl_prune() > 0;
SELECT rl_prune();
SELECT * FROM hh_rows;
SELECT floor(remaining) AS remaining, held FROM rl_status('hh/rows', 'n');
-- The next expiry, of a hold that was settled, leaves a value that no call writes as it is.
SELECT ok FROM rl_hold('hh/rows', 'o', 90, '5 minutes', 'settled');
SELECT ok FROM rl_settle('settled', 90);
UPDATE rateLimits SET value = '-Infinity' WHERE name = 'hh/rows' AND key = 'o';
SET ratelimit.clock = '2027-01-01 12:12:00+00';
SELECT hh_error(f || '(''hh/rows'', ''o'')') FROM unnest('{rl_limit,rl_check,rl_hold}'::text[]) f;
SELECT rl_reset('hh/rows', 'o');
-- Slots.
SELECT ok, hold, held, remaining FROM rl_hold_all('[{"name": "hh/slots", "count": 2}]', id => 'slots');
DELETE FROM rateLimits WHERE name = 'hh/slots';
SELECT ok, remaining FROM rl_check('hh/slots');
SELECT ok, hold, held, remaining FROM rl_hold_all('[{"name": "hh/slots", "count": 2}]', id => 'slots');
DELETE FROM rateLimits WHERE name = 'hh/slots';
SELECT name, remaining FROM rl_settle_all('slots');
SELECT count(*) FROM hh_rows WHERE id = 'slots';
-- Nothing is left for other files.
DROP VIEW hh_rows; DROP FUNCTION hh_deleted; DROP FUNCTION hh_error;
DELETE FROM rl_holds WHERE name LIKE 'hh%';
DELETE FROM rateLimits WHERE name LIKE 'hh%';
SELECT rl_undefine('hh'), rl_undefine('hh/rows'), rl_undefine('hh/slots');

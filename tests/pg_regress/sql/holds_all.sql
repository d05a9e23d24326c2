-- Holds of several limits: rl_hold_all takes from all or none, rl_settle_all settles each. Slots of concurrency limits
-- among them.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
TRUNCATE rl_holds;
SELECT rl_define('ha/requests', rl_token_bucket(100, '1 minute') || '{"keyed": true}'),
       rl_define('ha/tokens', rl_token_bucket(40000, '1 minute') || '{"keyed": true}'),
       rl_define('ha/usd', rl_fixed_window(30000000, '1 month', timezone => 'UTC') || '{"keyed": true}');
SELECT * FROM rl_hold_all('[{"name": "ha/requests", "key": "ada"}, {"name": "ha/tokens", "key": "ada", "count": 4000},
    {"name": "ha/usd", "key": "acme", "count": 120000}]', id => 'req-3');
SELECT name, key, count, taken_at, expires_at, charge FROM rl_holds WHERE id = 'req-3' ORDER BY name;
SELECT * FROM rl_settle_all('req-3', '{"ha/tokens": 2750, "ha/usd": 82500}');
SELECT * FROM rl_settle_all('req-3', '{"ha/tokens": 2750, "ha/usd": 82500}');
SELECT count(*) FROM rl_settle_all('never'), rl_settle_all(NULL) AS of_null;
SELECT count(*) FROM rl_holds;
-- One of them denies: nothing is held. The wait is for that one.
SELECT n, name, ok, allows, hold, held, expires_at, retry_after, remaining FROM rl_hold_all('[{"name": "ha/usd", "key": "acme"},
    {"name": "ha/tokens", "key": "ada", "count": 38000}]', id => 'req-4');
SELECT count(*) FROM rl_holds;
SELECT replace(error_of($$ SELECT rl_hold_all('[{"name": "ha/tokens", "key": "ada", "count": 38000}]', throws => true) $$, true), 'public.', '') AS error;
-- Without an id one random one for all.
SELECT count(DISTINCT hold), min(length(hold)), bool_and(ok) FROM rl_hold_all('[{"name": "ha/tokens", "key": "uuid"}, {"name": "ha/requests", "key": "uuid"}]');
SELECT count(*) FROM (SELECT DISTINCT id FROM rl_holds WHERE key = 'uuid') h, LATERAL rl_settle_all(h.id, '0');

\echo used
SELECT ok, held FROM rl_hold_all('[{"name": "ha/tokens", "key": "user", "count": 1000}, {"name": "ha/tokens", "key": "tenant", "count": 2000},
    {"name": "ha/requests", "key": "user", "count": 3}]', id => 'u-1');
-- A number counts for all of them, a name for each of its keys; what isn't named was used up, and other names are ignored.
BEGIN;
SELECT name, key, remaining FROM rl_settle_all('u-1', '1.5');
ROLLBACK;
BEGIN;
SELECT name, key, remaining FROM rl_settle_all('u-1', '{"ha/tokens": 500, "none": 7}');
ROLLBACK;
BEGIN;
SELECT name, key, remaining FROM rl_settle_all('u-1', '{}');
ROLLBACK;
BEGIN;
SELECT name, key, remaining FROM rl_settle_all('u-1');
ROLLBACK;
-- More than was held: a debt, and until when it denies.
SELECT name, key, retry_after, retry_at, remaining FROM rl_settle_all('u-1', '{"ha/tokens": 60000, "ha/requests": 0}');
SELECT call || '|' || replace(error_of('SELECT ' || call, true), 'public.', '') AS error FROM unnest(ARRAY[
    'rl_settle_all(''x'', ''-1'')', 'rl_settle_all(''x'', ''1e16'')', 'rl_settle_all(''x'', ''"5"'')', 'rl_settle_all(''x'', ''[5]'')',
    'rl_settle_all(''x'', ''true'')', 'rl_settle_all(''x'', ''null'')', 'rl_settle_all(''x'', ''{"a": "5"}'')',
    'rl_settle_all(''x'', ''{"a": 1, "b": -5}'')', 'rl_settle_all(''x'', ''{"a": null}'')']) call;

\echo again
-- The same id: each limit takes what is missing. One that is new is added.
SELECT name, ok, held, expires_at, remaining FROM rl_hold_all('[{"name": "ha/tokens", "key": "bob", "count": 1000}, {"name": "ha/usd", "key": "bob", "count": 50}]', '1 minute', 'a-1');
SET ratelimit.clock = '2027-01-01 12:00:30+00';
SELECT name, ok, held, expires_at, remaining FROM rl_hold_all('[{"name": "ha/tokens", "key": "bob", "count": 1000}, {"name": "ha/usd", "key": "bob", "count": 50}]', '1 minute', 'a-1');
SELECT name, ok, held, expires_at, remaining FROM rl_hold_all('[{"name": "ha/tokens", "key": "bob", "count": 3000}, {"name": "ha/usd", "key": "bob", "count": 10},
    {"name": "ha/requests", "key": "bob"}]', '1 minute', 'a-1');
-- Denied: all keep what they had, and when they expire.
SELECT name, ok, allows, hold, held, expires_at, retry_after, remaining FROM rl_hold_all('[{"name": "ha/tokens", "key": "bob", "count": 90000},
    {"name": "ha/usd", "key": "bob", "count": 100}]', '1 hour', 'a-1');
SELECT name, count, expires_at FROM rl_holds WHERE id = 'a-1' ORDER BY name;
-- rl_hold with the same id is of the same hold.
SELECT ok, held, expires_at FROM rl_hold('ha/tokens', 'bob', 5000, '1 minute', 'a-1');
SELECT ok, held FROM rl_hold('ha/tokens', 'carl', 500, '1 minute', 'a-1');
SELECT replace(error_of($$ SELECT rl_settle('a-1') $$, true), 'public.', '') AS error;
SELECT name, key, remaining FROM rl_settle_all('a-1', '{"ha/tokens": 100, "ha/usd": 0}');
-- A hold of one limit may be settled by either.
SELECT ok FROM rl_hold_all('[{"name": "ha/tokens", "key": "bob", "count": 10}]', id => 'a-2');
SELECT ok, remaining FROM rl_settle('a-2', 5);
SELECT ok FROM rl_hold('ha/tokens', 'bob', 10, id => 'a-3');
SELECT name, remaining FROM rl_settle_all('a-3', '5');

\echo expiry
SELECT ok, held, remaining FROM rl_hold_all('[{"name": "ha/tokens", "key": "dies", "count": 40000}, {"name": "ha/usd", "key": "dies", "count": 300}]', '1 second', 'e-1');
SELECT ok, held, remaining FROM rl_hold_all('[{"name": "ha/tokens", "key": "pays", "count": 40000}, {"name": "ha/usd", "key": "pays", "count": 300}]', '1 second', 'e-2', 'charge');
-- A denial knows when they expire.
SELECT name, allows, retry_after FROM rl_limit_all('[{"name": "ha/tokens", "key": "dies", "count": 20000}, {"name": "ha/tokens", "key": "pays", "count": 10000}]');
SELECT name, allows, retry_after FROM rl_hold_all('[{"name": "ha/tokens", "key": "dies", "count": 20000}, {"name": "ha/usd", "key": "dies"}]');
SET ratelimit.clock = '2027-01-01 12:00:31+00';
SELECT name, remaining FROM rl_check_all('[{"name": "ha/usd", "key": "dies"}, {"name": "ha/usd", "key": "pays"}]');
SELECT name, ok, remaining FROM rl_hold_all('[{"name": "ha/tokens", "key": "dies", "count": 100}, {"name": "ha/usd", "key": "dies", "count": 1}]', '1 minute', 'e-3');
-- Settled late: what came back is taken again.
SELECT name, key, remaining FROM rl_settle_all('e-1', '{"ha/tokens": 1000, "ha/usd": 20}');
SELECT name, key, remaining FROM rl_settle_all('e-2', '{"ha/tokens": 1000, "ha/usd": 20}');
-- The same id after the expiry takes again what has come back.
SELECT name, held, remaining FROM rl_hold_all('[{"name": "ha/usd", "key": "again", "count": 40}, {"name": "ha/tokens", "key": "again", "count": 400}]', '1 second', 'e-4');
SET ratelimit.clock = '2027-01-01 12:00:32+00';
SELECT name, held, expires_at, remaining FROM rl_hold_all('[{"name": "ha/usd", "key": "again", "count": 10}, {"name": "ha/tokens", "key": "again", "count": 500}]', '1 second', 'e-4');
SELECT name, count, old, back, taken_at FROM rl_holds WHERE id = 'e-4' ORDER BY name;
SELECT name, remaining FROM rl_settle_all('e-4', '0');
SET ratelimit.clock = '2027-01-01 12:00:31+00';
-- A key that is reset meanwhile is no more of the hold.
SELECT rl_reset('ha/tokens', 'dies');
SELECT name, key, remaining FROM rl_settle_all('e-3', '{"ha/tokens": 10, "ha/usd": 0}');
SELECT count(*) FROM rl_holds;

\echo blocked, exempt, dry runs, reserved
SELECT rl_define('ha/usd', rl_unlimited(), 'free');
SELECT name, ok, allows, hold, held, expires_at, remaining FROM rl_hold_all('[{"name": "ha/usd", "key": "free", "count": 9}, {"name": "ha/tokens", "key": "free", "count": 9}]', id => 'b-1');
SELECT name FROM rl_settle_all('b-1', '4');
SELECT rl_block('ha/usd', 'free', '1 minute');
SELECT name, ok, allows, hold, held, retry_after FROM rl_hold_all('[{"name": "ha/usd", "key": "free", "count": 9}, {"name": "ha/tokens", "key": "free", "count": 9}]', id => 'b-1');
SELECT rl_unblock('ha/usd', 'free');
SELECT ok FROM rl_hold_all('[{"name": "ha/tokens", "key": "bad", "count": 9}]', id => 'b-2');
SELECT rl_block('ha/tokens', 'bad', '1 minute');
SELECT name, ok, allows, hold, held, retry_after FROM rl_hold_all('[{"name": "ha/tokens", "key": "bad", "count": 9}, {"name": "ha/requests", "key": "bad"}]', '1 hour', 'b-2');
SELECT name, remaining FROM rl_settle_all('b-2', '4');
SELECT rl_unblock('ha/tokens', 'bad');
SELECT rl_define('ha/dry', rl_token_bucket(5, '1 minute') || '{"enforce": false}');
SELECT name, ok, allows, held FROM rl_hold_all('[{"name": "ha/dry", "count": 4}, {"name": "ha/tokens", "key": "dry"}]', id => 'b-3');
SELECT name, ok, allows, held FROM rl_hold_all('[{"name": "ha/dry", "count": 4}, {"name": "ha/tokens", "key": "dry"}]', id => 'b-4');
SELECT id, name, count FROM rl_holds WHERE id IN ('b-3', 'b-4') ORDER BY id, name;
SELECT name, remaining FROM rl_settle_all('b-3', '1');
SELECT name, remaining FROM rl_settle_all('b-4', '0');
SELECT rl_define('ha/batch', rl_token_bucket(60, '1 minute', max_reserved => 60));
SELECT name, ok, held, expires_at, retry_after, remaining FROM rl_hold_all('[{"name": "ha/batch", "count": 90, "reserve": true}, {"name": "ha/tokens", "key": "batch"}]', '1 minute', 'b-5');
SELECT name, remaining FROM rl_settle_all('b-5', '0');
SELECT name, ok, held FROM rl_hold_all('[{"name": "ha/inline", "key": "k", "count": 3, "config": {"kind": "token bucket", "rate": 5, "period": 60000}}]', id => 'b-6');
SELECT name, remaining, capacity FROM rl_settle_all('b-6', '1');

\echo slots
SELECT rl_define('ha/at once', rl_concurrency(3, '1 minute') || '{"keyed": true}');
SELECT name, ok, allows, hold, held, expires_at, remaining, capacity, reset_at FROM rl_hold_all('[{"name": "ha/at once", "key": "acme"},
    {"name": "ha/tokens", "key": "acme", "count": 4000}]', '5 minutes', 's-1');
SELECT ok FROM rl_hold_all('[{"name": "ha/at once", "key": "acme", "count": 2}]', '2 minutes', 's-2', 'charge');
-- No slot is left, for leases neither; the tokens of the denied call stay. It waits for the slot that expires first.
SELECT name, ok, allows, hold, held, retry_after, remaining FROM rl_hold_all('[{"name": "ha/tokens", "key": "acme", "count": 4000}, {"name": "ha/at once", "key": "acme"}]', id => 's-3');
SELECT ok, retry_after FROM rl_acquire('ha/at once', 'acme');
SELECT ok, remaining, retry_after FROM rl_check('ha/at once', 'acme');
SELECT kind, remaining, held FROM rl_status('ha/at once', 'acme');
SELECT name, key, remaining FROM rl_status('ha/tokens', 'acme');
-- A slot comes back with the settlement, whatever was used.
SELECT name, remaining FROM rl_settle_all('s-1', '{"ha/at once": 0, "ha/tokens": 1000}');
SELECT ok, remaining FROM rl_check('ha/at once', 'acme');
-- The same id extends it; a larger count takes what is missing.
SET ratelimit.clock = '2027-01-01 12:01:31+00';
SELECT name, ok, held, expires_at, remaining FROM rl_hold_all('[{"name": "ha/at once", "key": "acme", "count": 2}]', '2 minutes', 's-2');
SELECT name, ok, held, expires_at, remaining FROM rl_hold_all('[{"name": "ha/at once", "key": "acme", "count": 3}]', '1 second', 's-2');
SELECT name, ok, allows, held FROM rl_hold_all('[{"name": "ha/at once", "key": "acme", "count": 4}]', '1 hour', 's-2');
SELECT name, remaining FROM rl_settle_all('s-2', '500');
-- It expires, on_expiry or not; late settlements are ok, and free nothing.
SELECT ok FROM rl_hold_all('[{"name": "ha/at once", "key": "acme", "count": 3}, {"name": "ha/tokens", "key": "slots", "count": 10}]', '1 minute', 's-4', 'charge');
SET ratelimit.clock = '2027-01-01 12:02:31+00';
SELECT ok, remaining FROM rl_check('ha/at once', 'acme', 3);
SELECT ok FROM rl_acquire('ha/at once', 'acme', count => 3);
SELECT name, remaining FROM rl_settle_all('s-4', '10');
SELECT ok, remaining FROM rl_check('ha/at once', 'acme');
-- A reset of it frees its slots, and leaves the rest of the hold.
SELECT rl_reset('ha/at once', 'acme');
SELECT ok FROM rl_hold_all('[{"name": "ha/at once", "key": "acme", "count": 3}, {"name": "ha/tokens", "key": "reset", "count": 10}]', '1 minute', 's-5');
SELECT rl_reset('ha/at once', 'acme');
SELECT name, count FROM rl_holds WHERE id = 's-5';
SELECT ok, remaining FROM rl_check('ha/at once', 'acme');
SELECT name, remaining FROM rl_settle_all('s-5', '0');
-- Leases and holds together.
SELECT ok FROM rl_acquire('ha/at once', 'acme');
SELECT ok, remaining FROM rl_hold_all('[{"name": "ha/at once", "key": "acme", "count": 2}]', id => 's-6');
SELECT remaining FROM rl_settle_all('s-6');
SELECT remaining FROM rl_check('ha/at once', 'acme');
-- Rolled back.
BEGIN;
SELECT ok FROM rl_hold_all('[{"name": "ha/at once", "key": "acme", "count": 2}]', id => 's-7');
ROLLBACK;
SELECT remaining, (SELECT count(*) FROM rl_settle_all('s-7')) AS settled FROM rl_check('ha/at once', 'acme');
-- Exempt, undefined, of another kind by now.
SELECT ok FROM rl_hold_all('[{"name": "ha/at once", "key": "x"}, {"name": "ha/at once", "key": "y"}, {"name": "ha/at once", "key": "z"}]', id => 's-8');
SELECT rl_define('ha/at once', rl_unlimited(), 'x'), rl_define('ha/at once', rl_token_bucket(10, '1 minute'), 'y');
SELECT name, key, remaining FROM rl_settle_all('s-8', '5');
SELECT count(*) FROM rl_holds;
-- rl_hold is of one limit of tokens, rl_limit_all knows no slots.
SELECT call || '|' || replace(error_of('SELECT ' || call, true), 'public.', '') AS error FROM unnest(ARRAY[
    'rl_hold(''ha/at once'', ''k'')', 'rl_limit_all(''[{"name": "ha/at once", "key": "k"}]'')',
    'rl_hold_all(''[{"name": "ha/at once", "key": "k", "count": 1.5}]'')', 'rl_hold_all(''[{"name": "ha/at once"}]'')']) call;

\echo errors
SELECT rl_define('ha/sliding', rl_sliding_window(5, '1 minute')), rl_define('ha/log', rl_sliding_log(5, '1 minute'));
SELECT call || '|' || replace(error_of('SELECT ' || call, true), 'public.', '') AS error FROM unnest(ARRAY[
    'rl_hold_all(NULL)', 'rl_hold_all(''{}'')', 'rl_hold_all(''[]'')', 'rl_hold_all(''[{}]'')', 'rl_hold_all(''[{"name": "ha/none"}]'')',
    'rl_hold_all(''[{"name": "ha/batch"}, {"name": "ha/tokens", "key": "k"}, {"name": "ha/batch", "key": ""}]'')',
    'rl_hold_all(''[{"name": "ha/batch", "count": -1}]'')', 'rl_hold_all(''[{"name": "ha/batch", "used": 1}]'')',
    'rl_hold_all(''[{"name": "ha/sliding"}]'')', 'rl_hold_all(''[{"name": "ha/batch"}, {"name": "ha/log"}]'')',
    'rl_hold_all(''[{"name": "ha/batch"}]'', NULL)', 'rl_hold_all(''[{"name": "ha/batch"}]'', ''0'')', 'rl_hold_all(''[{"name": "ha/batch"}]'', ''400 days'')',
    'rl_hold_all(''[{"name": "ha/batch"}]'', id => '''')', 'rl_hold_all(''[{"name": "ha/batch"}]'', on_expiry => ''none'')',
    'rl_hold_all(''[{"name": "ha/batch"}]'', on_expiry => NULL)', 'rl_hold_all(''[{"name": "ha/batch"}]'', throws => NULL)']) call;
SELECT ok FROM rl_hold_all('[{"name": "ha/batch"}]', id => 'only');
BEGIN READ ONLY;
SELECT error_of($$ SELECT rl_hold_all('[{"name": "ha/batch"}]') $$) AS hold, error_of($$ SELECT rl_settle_all('only') $$) AS settle;
ROLLBACK;
SELECT remaining FROM rl_settle_all('only', '0');
-- Nothing is left for other files.
TRUNCATE rl_holds;
DELETE FROM rateLimits WHERE name LIKE 'ha/%';

-- Holds of one limit: rl_hold takes an estimate, rl_settle takes or returns the difference to what was used, once.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('hd', rl_token_bucket(40000, '1 minute') || '{"keyed": true}');
SELECT * FROM rl_hold('hd', 'acme', 12000, id => 'req-1');
SELECT * FROM rl_settle('req-1', used => 8500);
-- A second settlement changes nothing, nor do those of a hold that was never there.
SELECT * FROM rl_settle('req-1', used => 8500);
SELECT * FROM rl_settle('req-0', 1);
SELECT * FROM rl_settle(NULL, 1);
SELECT remaining FROM rl_check('hd', 'acme');
SELECT count(*) FROM rl_holds WHERE name = 'hd';
-- The row of a hold, and of its key: no later than the first expiry.
SELECT ok, hold, held, remaining FROM rl_hold('hd', 'row', 100, id => 'row', ttl => '90 seconds');
SELECT * FROM rl_holds WHERE id = 'row';
SELECT value, expires FROM rateLimits WHERE name = 'hd' AND key = 'row';
-- Without an id it is a random UUID.
SELECT ok, hold ~ '^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' AS uuid, held FROM rl_hold('hd', 'uuid', 3);
SELECT count(DISTINCT hold) FROM generate_series(1, 5) n, LATERAL rl_hold('hd', 'uuid', n);
SELECT count(*), sum(count) FROM rl_holds WHERE name = 'hd' AND key = 'uuid';
SELECT count(*) FROM (SELECT id FROM rl_holds WHERE name = 'hd' AND key = 'uuid' OFFSET 0) h, LATERAL rl_settle(h.id, 1) s WHERE s.ok;
SELECT remaining FROM rl_check('hd', 'uuid');

\echo what was used
-- All, nothing, a part, a fraction.
SELECT ok, held, remaining FROM unnest(ARRAY['all', 'nothing', 'part', 'fraction']) id, LATERAL rl_hold('hd', 'used', 1000, id => id);
SELECT ok, remaining FROM rl_settle('all');
SELECT ok, remaining FROM rl_settle('nothing', 0);
SELECT ok, remaining FROM rl_settle('part', 400);
SELECT ok, remaining FROM rl_settle('fraction', 0.5);
-- Up to the capacity: what flowed in meanwhile has its place.
SELECT remaining FROM rl_hold('hd', 'full', 1000, id => 'full');
SET ratelimit.clock = '2027-01-01 12:00:01+00';
SELECT remaining FROM rl_settle('full', 0);
SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- More than was held is taken unconditionally: a debt, and when it is paid.
SELECT remaining FROM rl_hold('hd', 'debt', 40000, id => 'debt');
SELECT * FROM rl_settle('debt', 60000);
SELECT ok, retry_after FROM rl_limit('hd', 'debt');
SELECT ok, retry_after FROM rl_hold('hd', 'debt', 0, id => 'none');
SELECT ok, remaining FROM rl_hold('hd', 'ten years', 1, id => 'ten years');
SELECT ok, remaining, retry_at FROM rl_settle('ten years', 1e15);
SELECT ok, remaining FROM rl_settle('none', 5);
-- A hold of nothing: what it settles is taken.
SELECT ok, hold, held, remaining FROM rl_hold('hd', 'later', 0, id => 'later');
SELECT count, old, back FROM rl_holds WHERE id = 'later';
SELECT ok, remaining FROM rl_settle('later', 700);
-- A denial holds nothing and writes nothing.
SELECT rl_define('hd/five', rl_token_bucket(5, '1 minute'));
SELECT * FROM rl_hold('hd/five', count => 6, id => 'six');
SELECT count(*) FROM rateLimits WHERE name = 'hd/five';
SELECT * FROM rl_hold('hd/five', count => 3, id => 'three');
SELECT * FROM rl_hold('hd/five', count => 3, id => 'six');
SELECT id FROM rl_holds WHERE name = 'hd/five';
SELECT replace(error_of($$ SELECT rl_hold('hd/five', '', 3, throws => true) $$, true), 'public.', '') AS error;
SELECT replace(error_of($$ SELECT rl_hold('hd/five', '', 6, throws => true) $$, true), 'public.', '') AS error;

\echo at least
SELECT ok, held, remaining FROM rl_hold('hd', 'some', 30000, id => 'most');
SELECT ok, hold, held, retry_after, remaining FROM rl_hold('hd', 'some', 30000, id => 'some', at_least => 10001);
SELECT ok, hold, held, remaining FROM rl_hold('hd', 'some', 30000, id => 'some', at_least => 1000);
SELECT ok, hold, held, retry_after FROM rl_hold('hd', 'some', 30000, id => 'none', at_least => 1);
SELECT ok, remaining FROM rl_settle('some', 2500.5);
-- Whole tokens, if not all of them are there.
SELECT ok, held, remaining FROM rl_hold('hd', 'some', 30000, id => 'some', at_least => 1);
-- In a top-up it is the total.
SELECT ok, remaining FROM rl_settle('most', 26000);
SELECT ok, held, remaining FROM rl_hold('hd', 'some', 20000, id => 'some', at_least => 11500.5);
SELECT ok, held, remaining FROM rl_hold('hd', 'some', 20000, id => 'some', at_least => 11499);
SELECT count FROM rl_holds WHERE id = 'some';
-- Nothing at least: a hold of nothing.
SELECT ok, hold, held FROM rl_hold('hd', 'some', 20000, id => 'zero', at_least => 0);
SELECT ok, hold, held, retry_after FROM rl_hold('hd', 'some', 20000, id => 'zero', at_least => 0);

\echo the same id again
SELECT ok, hold, held, expires_at, remaining FROM rl_hold('hd', 'again', 1000, id => 'again', ttl => '1 minute');
SELECT ok, hold, held, expires_at, remaining FROM rl_hold('hd', 'again', 1000, id => 'again', ttl => '1 minute');
-- A top-up, and a heartbeat: it expires ttl from now, if that is later. A smaller count gives nothing back.
SET ratelimit.clock = '2027-01-01 12:00:30+00';
SELECT ok, held, expires_at, remaining FROM rl_hold('hd', 'again', 1500, id => 'again', ttl => '1 minute');
SELECT ok, held, expires_at, remaining FROM rl_hold('hd', 'again', 10, id => 'again', ttl => '1 second');
SELECT ok, held, expires_at, remaining FROM rl_hold('hd', 'again', 10, id => 'again', ttl => '2 minutes');
-- A top-up that is denied takes nothing and extends nothing.
SELECT ok, hold, held, expires_at, retry_after FROM rl_hold('hd', 'again', 41400, id => 'again', ttl => '1 hour');
SELECT ok, hold, held, expires_at, retry_after FROM rl_hold('hd', 'again', 60000, id => 'again', ttl => '1 hour');
SELECT count, taken_at, expires_at, charge FROM rl_holds WHERE id = 'again';
-- on_expiry stays that of the first call.
SELECT ok FROM rl_hold('hd', 'again', 1500, id => 'again', on_expiry => 'charge');
SELECT charge, expires_at FROM rl_holds WHERE id = 'again';
-- After its settlement the id is free.
SELECT ok, remaining FROM rl_settle('again', 700);
SELECT ok, hold, held, remaining FROM rl_hold('hd', 'again', 5, id => 'again', on_expiry => 'charge');
SELECT count, charge FROM rl_holds WHERE id = 'again';
-- An id belongs to one key here, and to another there: calls for several limits make one hold.
SELECT ok, held FROM rl_hold('hd', 'other', 7, id => 'again');
SELECT name, key, count FROM rl_holds WHERE id = 'again' ORDER BY key;
SELECT replace(error_of($$ SELECT rl_settle('again', 1) $$, true), 'public.', '') AS error;
SELECT name, key, remaining FROM rl_settle_all('again', '1');
SELECT count(*) FROM rl_settle_all('again');

\echo windows
SELECT rl_define('hd/window', rl_fixed_window(100, '1 hour', start => '2027-01-01 00:00:00+00'));
SET ratelimit.clock = '2027-01-01 12:50:00+00';
SELECT ok, remaining, reset_at FROM unnest(ARRAY['w-1', 'w-2', 'w-3', 'w-4']) id, LATERAL rl_hold('hd/window', '', 20, id => id, ttl => '1 hour');
-- Within the window it comes back.
SELECT remaining FROM rl_settle('w-1', 5);
-- In the next nothing does, and what was used beyond is taken from the current one.
SET ratelimit.clock = '2027-01-01 13:10:00+00';
SELECT remaining FROM rl_check('hd/window');
SELECT remaining FROM rl_settle('w-2', 5);
SELECT remaining FROM rl_settle('w-3', 25);
-- A top-up in a later window: use counts against the old first, which comes back never.
SELECT ok, held, remaining FROM rl_hold('hd/window', '', 50, id => 'w-4', ttl => '1 hour');
SELECT count, old, back, taken_at FROM rl_holds WHERE id = 'w-4';
SELECT remaining FROM rl_settle('w-4', 30);
SELECT ok, held, remaining FROM rl_hold('hd/window', '', 10, id => 'w-5', ttl => '3 hours');
SET ratelimit.clock = '2027-01-01 14:10:00+00';
SELECT ok, held, remaining FROM rl_hold('hd/window', '', 30, id => 'w-5', ttl => '3 hours');
SELECT remaining FROM rl_settle('w-5', 4);
-- Rolled over tokens are back up to the capacity; in a calendar of months it is the same.
SELECT rl_define('hd/month', rl_fixed_window(1000, '1 month', timezone => 'Europe/Berlin', capacity => 1500));
SET ratelimit.clock = '2027-01-31 22:50:00+00';
SELECT ok, remaining, reset_at FROM unnest(ARRAY['m-1', 'm-2']) id, LATERAL rl_hold('hd/month', 'k', 300, id => id, ttl => '1 hour');
SELECT remaining FROM rl_settle('m-1', 100);
SET ratelimit.clock = '2027-01-31 23:10:00+00';
SELECT remaining FROM rl_settle('m-2', 100);
SELECT remaining FROM rl_check('hd/month', 'k');
-- An overage.
SELECT rl_define('hd/over', rl_fixed_window(10, '1 hour', start => '2027-01-01 00:00:00+00') || '{"overage": true}');
SELECT ok, held, remaining FROM rl_hold('hd/over', '', 15, id => 'o-1');
SELECT ok, remaining, retry_at FROM rl_settle('o-1', 25);
SELECT ok, held, remaining FROM rl_hold('hd/over', '', 5, id => 'o-2');
SELECT ok, remaining FROM rl_settle('o-2', 0);

\echo reserved
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('hd/batch', rl_token_bucket(60, '1 minute', max_reserved => 60));
SELECT ok, held, expires_at, retry_after, remaining FROM rl_hold('hd/batch', '', 60, id => 'b-1', reserve => true);
SELECT ok, held, expires_at, retry_after, retry_at, remaining FROM rl_hold('hd/batch', '', 40, id => 'b-2', reserve => true);
SELECT ok, hold, held, retry_after FROM rl_hold('hd/batch', '', 40, id => 'b-3', reserve => true);
SELECT remaining FROM rl_settle('b-2', 10);
SELECT remaining FROM rl_settle('b-1', 60);

\echo blocked, exempt, dry runs
SELECT ok, held FROM rl_hold('hd', 'bad', 10, id => 'bad', ttl => '5 minutes');
SELECT rl_block('hd', 'bad', '1 minute');
SELECT ok, hold, held, expires_at, retry_after FROM rl_hold('hd', 'bad', 10, id => 'bad', ttl => '1 hour');
SELECT ok, hold, held, expires_at, retry_after FROM rl_hold('hd', 'bad', 10, id => 'worse');
SELECT expires_at FROM rl_holds WHERE key = 'bad';
SELECT ok, remaining FROM rl_settle('bad', 4);
SELECT rl_unblock('hd', 'bad');
SELECT remaining FROM rl_check('hd', 'bad');
SELECT rl_define('hd', rl_unlimited(), 'vip');
SELECT * FROM rl_hold('hd', 'vip', 1e6, id => 'vip');
SELECT ok FROM rl_settle('vip', 5);
SELECT rl_block('hd', 'vip', '1 minute');
SELECT ok, hold, held, retry_after FROM rl_hold('hd', 'vip', 5, id => 'vip');
SELECT count(*) FROM rl_holds WHERE key = 'vip';
SELECT rl_define('hd/dry', rl_token_bucket(5, '1 minute') || '{"enforce": false}');
SELECT ok, hold, held, remaining FROM rl_hold('hd/dry', '', 4, id => 'd-1');
SELECT ok, hold, held, retry_after, remaining FROM rl_hold('hd/dry', '', 4, id => 'd-2', throws => true);
SELECT ok, hold, held, remaining FROM rl_hold('hd/dry', '', 4, id => 'd-3', at_least => 1);
SELECT id, count FROM rl_holds WHERE name = 'hd/dry' ORDER BY id;
SELECT remaining FROM rl_settle('d-1', 1);

\echo a config of the call
SELECT ok, hold, held, remaining FROM rl_hold('hd/inline', 'k', 3, id => 'i-1', config => rl_token_bucket(5, '1 minute'));
SELECT config->>'kind' AS kind FROM rl_holds WHERE id = 'i-1';
SELECT ok, remaining, capacity FROM rl_settle('i-1', 1);
SELECT ok, hold FROM rl_hold('hd/inline', 'k', 2, id => 'i-2', config => rl_token_bucket(5, '1 minute'));
SELECT rl_define('hd/inline', rl_token_bucket(50, '1 minute'));
SELECT ok, remaining, capacity FROM rl_settle('i-2', 1);
-- A plan.
SELECT rl_define('hd/pro', rl_token_bucket(100, '1 minute')), rl_define('hd', '{"plan": "hd/pro"}', 'pro');
SELECT ok, held, remaining FROM rl_hold('hd', 'pro', 70, id => 'pro');
SELECT remaining FROM rl_settle('pro', 10);

\echo as all else of a transaction
BEGIN;
SELECT ok, remaining FROM rl_hold('hd', 'tx', 100, id => 'tx-1');
SAVEPOINT s;
SELECT ok, remaining FROM rl_hold('hd', 'tx', 300, id => 'tx-1');
SELECT ok, remaining FROM rl_hold('hd', 'tx', 1000, id => 'tx-2');
ROLLBACK TO s;
SELECT ok, remaining FROM rl_settle('tx-2', 1);
SELECT ok, remaining FROM rl_settle('tx-1', 1);
ROLLBACK TO s;
SELECT ok, remaining FROM rl_hold('hd', 'tx', 100, id => 'tx-1');
COMMIT;
SELECT count FROM rl_holds WHERE key = 'tx';
BEGIN;
SELECT ok, remaining FROM rl_settle('tx-1', 1);
ROLLBACK;
SELECT ok, remaining FROM rl_settle('tx-1', 1);
SELECT ok, remaining FROM rl_settle('tx-1', 1);
DO $$
BEGIN
    PERFORM rl_hold('hd', 'tx', 5000, id => 'tx-3');
    RAISE EXCEPTION 'undo';
EXCEPTION WHEN raise_exception THEN
    PERFORM rl_hold('hd', 'tx', 1, id => 'tx-4');
END $$;
SELECT id FROM rl_holds WHERE key = 'tx';
SELECT remaining FROM rl_check('hd', 'tx');
-- A procedure commits the hold before its work, which fails: the hold is settled in its handler.
CREATE PROCEDURE hd_call(estimate int, used int, fails boolean) LANGUAGE plpgsql AS $$
DECLARE
    mine text;
BEGIN
    SELECT hold INTO mine FROM rl_hold('hd', 'procedure', estimate);
    COMMIT;
    BEGIN
        PERFORM 1 / (NOT fails)::int;
    EXCEPTION WHEN division_by_zero THEN
        PERFORM rl_settle(mine, used => 0);
        RETURN;
    END;
    PERFORM rl_settle(mine, used);
END $$;
CALL hd_call(1000, 400, false);
CALL hd_call(1000, 400, true);
SELECT remaining FROM rl_check('hd', 'procedure');
DROP PROCEDURE hd_call;
-- One statement: the rows and what is held of each.
SELECT n, ok, held FROM generate_series(1, 3) n, LATERAL rl_hold('hd/five', 'each', 2, id => 'each-' || n, at_least => 1);

\echo with the other functions
-- A hold's tokens are taken for all of them.
SELECT ok, remaining FROM rl_hold('hd/five', 'with', 4, id => 'with');
SELECT ok, retry_after FROM rl_limit('hd/five', 'with', 2);
SELECT ok, taken FROM rl_take('hd/five', 'with', 5);
SELECT ok, allows, retry_after FROM rl_limit_all('[{"name": "hd/five", "key": "with"}]');
SELECT remaining FROM rl_credit('hd/five', 'with', 1);
SELECT ok, remaining FROM rl_limit('hd/five', 'with', 1);
CREATE TABLE hd_rows (key text);
CREATE TRIGGER hd_rows BEFORE INSERT ON hd_rows FOR EACH ROW EXECUTE FUNCTION rl_trigger('hd/five', 'key=key');
SELECT error_of($$ INSERT INTO hd_rows VALUES ('with') $$);
SELECT remaining FROM rl_settle('with', 2);
INSERT INTO hd_rows VALUES ('with'), ('with');
SELECT remaining FROM rl_check('hd/five', 'with');
-- Holds are made and settled by triggers, too.
CREATE FUNCTION hd_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rl_settle('row ' || NEW.key, 1);
    PERFORM rl_hold('hd/five', 'trigger', 2, id => 'row ' || NEW.key, throws => true);
    RETURN NEW;
END $$;
CREATE TABLE hd_holds (key text);
CREATE TRIGGER hd_holds BEFORE INSERT ON hd_holds FOR EACH ROW EXECUTE FUNCTION hd_hold();
INSERT INTO hd_holds VALUES ('a'), ('a');
SELECT error_of($$ INSERT INTO hd_holds VALUES ('b'), ('c') $$);
SELECT count(*), (SELECT remaining FROM rl_check('hd/five', 'trigger')) FROM hd_holds;
DROP TABLE hd_rows, hd_holds;
DROP FUNCTION hd_hold;

\echo errors
SELECT rl_define('hd/slots', rl_concurrency(3, '1 minute')), rl_define('hd/sliding', rl_sliding_window(5, '1 minute')),
       rl_define('hd/log', rl_sliding_log(5, '1 minute'));
SELECT call || '|' || replace(error_of('SELECT ' || call, true), 'public.', '') AS error FROM unnest(ARRAY[
    'rl_hold(NULL)', 'rl_hold('''', ''k'')', 'rl_hold(''hd'')', 'rl_hold(''hd'', NULL)', 'rl_hold(''hd'', repeat(''k'', 1025))',
    'rl_hold(''hd'', ''k'', NULL)', 'rl_hold(''hd'', ''k'', -1)', 'rl_hold(''hd'', ''k'', ''NaN'')', 'rl_hold(''hd'', ''k'', 1e16)',
    'rl_hold(''hd'', ''k'', ttl => NULL)', 'rl_hold(''hd'', ''k'', ttl => ''0'')', 'rl_hold(''hd'', ''k'', ttl => ''999 microseconds'')',
    'rl_hold(''hd'', ''k'', ttl => ''-1 s'')', 'rl_hold(''hd'', ''k'', ttl => ''367 days'')', 'rl_hold(''hd'', ''k'', ttl => ''13 months'')',
    'rl_hold(''hd'', ''k'', id => '''')', 'rl_hold(''hd'', ''k'', id => repeat(''i'', 201))',
    'rl_hold(''hd'', ''k'', on_expiry => NULL)', 'rl_hold(''hd'', ''k'', on_expiry => ''Refund'')', 'rl_hold(''hd'', ''k'', on_expiry => ''it''''s'')',
    'rl_hold(''hd'', ''k'', reserve => NULL)', 'rl_hold(''hd'', ''k'', throws => NULL)',
    'rl_hold(''hd'', ''k'', at_least => 1.5)', 'rl_hold(''hd'', ''k'', at_least => -1)', 'rl_hold(''hd'', ''k'', at_least => ''NaN'')',
    'rl_hold(''hd/none'', ''k'')', 'rl_hold(''hd'', ''k'', config => ''{}'')',
    'rl_hold(''hd/slots'', ''k'')', 'rl_hold(''hd/sliding'', ''k'')', 'rl_hold(''hd/log'', ''k'')',
    'rl_hold(''hd/i'', ''k'', config => rl_sliding_window(5, ''1 minute''))',
    'rl_settle(''x'', -1)', 'rl_settle(''x'', ''NaN'')', 'rl_settle(''x'', ''Infinity'')', 'rl_settle(''x'', 1.5e15)', 'rl_settle(NULL, -1)']) call;
BEGIN READ ONLY;
SELECT error_of($$ SELECT rl_hold('hd', 'k') $$) AS hold, error_of($$ SELECT rl_settle('each-1') $$) AS settle;
ROLLBACK;
-- 1 ms, 366 days, 1 and 200 bytes, and any count are allowed.
SELECT ok, expires_at FROM rl_hold('hd', 'k', ttl => '1 millisecond', id => 'i');
SELECT ok, expires_at FROM rl_hold('hd', 'k', ttl => '366 days', id => repeat('ü', 100));
SELECT ok, held, retry_after FROM rl_hold('hd', 'k', 1e15);
SELECT rl_unblock('hd', 'vip');

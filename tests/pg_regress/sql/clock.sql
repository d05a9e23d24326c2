-- ratelimit.clock is the time that every function takes for now; only a superuser, or who was
-- granted SET on it, may set it. A clock that steps back neither gives nor takes.
SET timezone = 'UTC'; SET datestyle = 'ISO';
SELECT rl_define('cl', rl_token_bucket(10, '1 minute'));
-- Without it: the server's clock.
SELECT reset_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 ms' AS now FROM rl_check('cl');
-- In each form, whatever TimeZone says.
SET timezone = 'Asia/Kathmandu';
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT to_char(reset_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS now FROM rl_check('cl');
SET ratelimit.clock = '2027-01-01T12:00:00.000001Z';
SELECT to_char(reset_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS now FROM rl_check('cl');
SET ratelimit.clock = '2027-01-01 17:45:00+05:45';
SELECT to_char(reset_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS now FROM rl_check('cl');
SET ratelimit.clock = 1798804800000;
SELECT to_char(reset_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS now FROM rl_check('cl');
SHOW ratelimit.clock;
SET timezone = 'UTC';
-- As a time says itself.
SELECT set_config('ratelimit.clock', (timestamptz '2027-01-01 12:00:00+00' + interval '90 seconds')::text, false);
SELECT reset_at FROM rl_check('cl');
-- Empty, or RESET: the server's clock again.
SET ratelimit.clock = '';
SELECT reset_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 ms' AS now FROM rl_check('cl');
RESET ratelimit.clock;
SELECT reset_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 ms' AS now FROM rl_check('cl');
-- What is no time with its offset is refused, and the clock stays.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SET ratelimit.clock = '2027-01-01 12:00:00';
SELECT v, error_of(format('SET ratelimit.clock = %L', v)) LIKE '22023: %' AS refused
FROM unnest(ARRAY['now', 'noon', 'NaN', 'Infinity', '-infinity', '1e300', '2027-02-30 00:00:00+00', '2027-01-01', '12:00:00+00', ' ']) v;
SHOW ratelimit.clock;
-- A typo is no setting of ours.
SELECT error_of('SET ratelimit.clocks = 1') LIKE '42602: invalid configuration parameter name "ratelimit.clocks"%' AS refused;

-- SET LOCAL ends with the transaction, SET goes with a rollback, a function may carry its own.
BEGIN;
SET LOCAL ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT reset_at FROM rl_check('cl');
COMMIT;
SELECT reset_at FROM rl_check('cl');
BEGIN;
SET ratelimit.clock = '2027-01-01 14:00:00+00';
SAVEPOINT a;
SET ratelimit.clock = '2027-01-01 15:00:00+00';
SELECT reset_at FROM rl_check('cl');
ROLLBACK TO a;
SELECT reset_at FROM rl_check('cl');
ROLLBACK;
SELECT reset_at FROM rl_check('cl');
CREATE FUNCTION at_four() RETURNS timestamptz LANGUAGE sql SET ratelimit.clock = '2027-01-01 16:00:00+00' AS $$SELECT reset_at FROM rl_check('cl')$$;
SELECT at_four(), reset_at FROM rl_check('cl');

-- A clock step back refills nothing and takes nothing, and the stored time does not move back.
SELECT ok, remaining FROM rl_limit('cl', count => 8);
SET ratelimit.clock = '2027-01-01 11:59:40+00';
SELECT ok, remaining FROM rl_check('cl');
SELECT ok, remaining FROM rl_limit('cl');
SELECT value, ts FROM rateLimits WHERE name = 'cl';
-- One is left; two come when the clock is 6 seconds past the stored time.
SELECT ok, retry_after, retry_at FROM rl_limit('cl', count => 2);
SET ratelimit.clock = '2027-01-01 12:00:06+00';
SELECT ok, remaining FROM rl_limit('cl', count => 2);
-- A time ahead of the clock by more than an hour and a whole refill was a wrong clock: the state counts as none.
SET ratelimit.clock = '2028-01-01 00:00:00+00';
SELECT ok, remaining FROM rl_limit('cl', count => 4);
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT ok, remaining FROM rl_limit('cl', count => 1);
SELECT value, ts FROM rateLimits WHERE name = 'cl';
SET ratelimit.clock = '2027-01-01 12:01:06+00';
SELECT ok, remaining FROM rl_check('cl');
-- So an empty one, whose denials write nothing, passes again; within the bound it waits for the clock.
SET ratelimit.clock = '2028-01-01 00:00:00+00';
SELECT ok, remaining FROM rl_limit('cl', count => 10);
SET ratelimit.clock = '2027-12-31 23:30:00+00';
SELECT ok, retry_at FROM rl_limit('cl');
SELECT remaining, retry_at, as_of FROM rl_status('cl', '');
SET ratelimit.clock = '2027-12-31 22:59:59+00';
SELECT ok, remaining FROM rl_check('cl');
-- Or all is made full at once, in both stores; also by one statement for all names.
SET ratelimit.clock = '2027-12-31 23:30:00+00';
SELECT rl_define('cl/memory', rl_token_bucket(10, '1 minute', store => 'memory'));
SELECT ok FROM rl_limit('cl/memory', 'k', count => 10);
SELECT count(rl_reset_keys(name)) > 1 AS done FROM (SELECT DISTINCT name FROM rl_config WHERE name LIKE 'cl%') names;
SELECT remaining FROM rl_check('cl') UNION ALL SELECT remaining FROM rl_check('cl/memory', 'k');
-- Calls that alternate between two instants take what came in up to the later one, and no more.
SELECT rl_define('cl/' || store, rl_token_bucket(10, '1 second', capacity => 10) || jsonb_build_object('store', store))
FROM unnest(ARRAY['table', 'memory']) store;
CREATE FUNCTION alternate(name text, OUT passed int) LANGUAGE plpgsql AS $$
BEGIN
    passed := 0;
    FOR n IN 0..199 LOOP
        PERFORM set_config('ratelimit.clock', (1830297600000 + n % 2 * 1000)::text, true);
        passed := passed + (rl_limit(name, 'alternating')).ok::int;
    END LOOP;
END $$;
SELECT store, alternate('cl/' || store) FROM unnest(ARRAY['table', 'memory']) store;
DROP FUNCTION alternate;
-- The window kinds: back into the window before.
SELECT rl_define('cl/fw', rl_fixed_window(5, '1 hour', start => '2027-01-01 00:00:00+00'));
SELECT rl_define('cl/sw', rl_sliding_window(5, '1 hour')), rl_define('cl/sl', rl_sliding_log(5, '1 hour'));
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT name, ok, remaining FROM unnest(ARRAY['cl/fw', 'cl/sw', 'cl/sl']) name, LATERAL rl_limit(name, count => 3);
SET ratelimit.clock = '2027-01-01 11:59:00+00';
SELECT name, ok, remaining FROM unnest(ARRAY['cl/fw', 'cl/sw', 'cl/sl']) name, LATERAL rl_limit(name, count => 1);
SELECT name, ok, retry_at FROM unnest(ARRAY['cl/fw', 'cl/sw', 'cl/sl']) name, LATERAL rl_limit(name, count => 2);
SELECT name, value, ts FROM rateLimits WHERE name LIKE 'cl/%' ORDER BY name;

-- The privilege to set it.
CREATE ROLE regress_rl_clock;
SET ROLE regress_rl_clock;
SELECT error_of('SET ratelimit.clock = 0');
RESET ROLE;
GRANT SET ON PARAMETER ratelimit.clock TO regress_rl_clock;
SET ROLE regress_rl_clock;
SELECT error_of('SET ratelimit.clock = 0');
SHOW ratelimit.clock;
RESET ROLE;
REVOKE SET ON PARAMETER ratelimit.clock FROM regress_rl_clock;
SELECT error_of('SELECT rl_check(''cl'')', true);
RESET ratelimit.clock;
-- Also where it is set before the library is loaded, which PostgreSQL doesn't check: no call then takes the server's
-- clock for it, as long as the setting lasts.
ALTER ROLE regress_rl_clock LOGIN;
GRANT EXECUTE ON FUNCTION rl_check, rl_limit, rl_define TO regress_rl_clock;
SELECT rl_define('cl/real', rl_token_bucket(10, '1 minute')) AS defined;
CREATE TABLE posts (author text);
CREATE TRIGGER limit_posts BEFORE INSERT ON posts FOR EACH ROW EXECUTE FUNCTION rl_trigger('cl/real', 'key=author');
GRANT INSERT ON posts TO regress_rl_clock;
CREATE VIEW real AS
SELECT reset_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 ms' AS clock FROM rl_check('cl/real', 'new');
GRANT SELECT ON real TO regress_rl_clock;
\set me :USER
-- SET LOCAL, to the end of its transaction.
\c - regress_rl_clock
BEGIN;
SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT * FROM rl_check('cl/real');
ROLLBACK;
SELECT clock FROM real;
-- In a savepoint, to its end.
\c - regress_rl_clock
BEGIN;
SAVEPOINT s;
SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT error_of('SELECT rl_check(''cl/real'')');
ROLLBACK TO s;
SELECT clock FROM real;
COMMIT;
-- SET, in every call, until the session is reset. Other queries don't mind, in parallel neither.
\c - regress_rl_clock
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT call, error_of(call) FROM unnest(ARRAY['SELECT rl_limit(''cl/real'')', 'SELECT rl_check(''cl/real'')',
    'SELECT rl_define(''cl/real'', rl_unlimited())', 'INSERT INTO posts VALUES (''ada'')']) call;
SHOW ratelimit.clock;
SELECT error_of('RESET ratelimit.clock');
SELECT set_config(name, 'on', false) AS parallel FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT count(*) > 0 AS counted FROM pg_class;
RESET ALL;
SELECT clock FROM real;
-- Under a value of the transaction's own that is allowed, as that of the session is not.
\c - regress_rl_clock
SET ratelimit.clock = '2027-01-01 12:00:00+00';
BEGIN;
SET LOCAL ratelimit.clock = '';
SELECT clock FROM real;
COMMIT;
SELECT error_of('SELECT rl_check(''cl/real'')');
DISCARD ALL;
SELECT clock FROM real;
-- By the options of a connection: it counts who sets it, not who calls.
\c - :me
\c -reuse-previous=on "options='-c ratelimit.clock=0'"
SET ROLE regress_rl_clock;
SELECT extract(epoch FROM reset_at)::int AS reset_at FROM rl_check('cl/real', 'new');
\c - regress_rl_clock
SELECT error_of('SELECT rl_check(''cl/real'')');
\c - :me
GRANT SET ON PARAMETER ratelimit.clock TO regress_rl_clock;
\c - regress_rl_clock
SELECT extract(epoch FROM reset_at)::int AS reset_at FROM rl_check('cl/real', 'new');
\c -reuse-previous=on "options=''"
\c - :me
REVOKE SET ON PARAMETER ratelimit.clock FROM regress_rl_clock;
-- Set for the role by a privileged one.
ALTER ROLE regress_rl_clock SET ratelimit.clock = 0;
\c - regress_rl_clock
SELECT extract(epoch FROM reset_at)::int AS reset_at FROM rl_check('cl/real', 'new');
-- What is no time, of anybody's.
\c - :me
SET ratelimit.clock = 'nonsense';
SELECT * FROM rl_check('cl/real');
\echo :SQLSTATE
BEGIN;
SET LOCAL ratelimit.clock = 0;
SELECT extract(epoch FROM reset_at)::int AS reset_at FROM rl_check('cl/real', 'new');
COMMIT;
SELECT error_of('SELECT rl_check(''cl/real'')');
SELECT error_of('UPDATE rl_config SET config = rl_unlimited() WHERE name = ''cl/real''');
RESET ratelimit.clock;
SELECT clock FROM real;
DROP VIEW real;
DROP TABLE posts;
DROP OWNED BY regress_rl_clock;
DROP ROLE regress_rl_clock;
DROP FUNCTION at_four;

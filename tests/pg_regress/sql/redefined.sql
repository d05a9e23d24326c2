-- A definition that changes over what is stored.
SET timezone = 'UTC'; SET datestyle = 'ISO';
SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- A window that has ended keeps what it had: 10 of this window, and the 40 of the raise; and what was left, of a cut.
SELECT rl_define('rd/raise', rl_fixed_window(10, '1 hour', capacity => 100, start => '2027-01-01Z')),
       rl_define('rd/cut', rl_fixed_window(50, '1 hour', capacity => 100, start => '2027-01-01Z')),
       rl_define('rd/month', rl_fixed_window(10, '1 month', capacity => 100, timezone => 'UTC'));
SELECT name, ok, remaining FROM unnest(ARRAY['rd/raise', 'rd/month']) name, rl_limit(name, 'k', 100);
SELECT ok, remaining FROM rl_limit('rd/cut', 'k', 40);
SELECT rl_define('rd/raise', rl_fixed_window(50, '1 hour', capacity => 100, start => '2027-01-01Z')),
       rl_define('rd/cut', rl_fixed_window(10, '1 hour', capacity => 100, start => '2027-01-01Z')),
       rl_define('rd/month', rl_fixed_window(50, '1 month', capacity => 100, timezone => 'UTC'));
SELECT name, remaining FROM unnest(ARRAY['rd/raise', 'rd/cut', 'rd/month']) name, rl_check(name, 'k');
-- A denial in the window of the change waits for the window that has enough.
SELECT name, ok, retry_at, remaining FROM unnest(ARRAY['rd/raise', 'rd/cut']) name, rl_limit(name, 'k', 75);
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT name, ok, remaining FROM unnest(ARRAY['rd/raise', 'rd/cut']) name, rl_check(name, 'k');
SELECT ok, retry_at FROM rl_check('rd/raise', 'k', 75);
SET ratelimit.clock = '2027-01-01 14:00:00+00';
SELECT ok, remaining FROM rl_limit('rd/raise', 'k', 75);
SET ratelimit.clock = '2027-02-01 00:00:00+00';
SELECT ok, remaining FROM rl_limit('rd/month', 'k', 20);
-- A cut that is undone gives back what it took, and what was returned meanwhile, no more.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('rd/undone', rl_fixed_window(10, '1 hour'));
SELECT remaining FROM rl_limit('rd/undone', 'k', 8);
SELECT rl_define('rd/undone', rl_fixed_window(5, '1 hour'));
SELECT remaining FROM rl_credit('rd/undone', 'k', 1);
SELECT remaining FROM rl_credit('rd/undone', 'k', 0);
SELECT rl_define('rd/undone', rl_fixed_window(10, '1 hour'));
SELECT remaining FROM rl_check('rd/undone', 'k');
SELECT rl_define('rd/undone', rl_fixed_window(5, '1 hour'));
-- Seven were used, so three more give one back.
SELECT remaining FROM rl_credit('rd/undone', 'k', 3);
SELECT ok, remaining FROM rl_limit('rd/undone', 'k');
SELECT rl_define('rd/undone', rl_fixed_window(10, '1 hour'));
SELECT remaining FROM rl_check('rd/undone', 'k');
-- A debt first.
SELECT rl_define('rd/debt', rl_fixed_window(10, '1 hour'));
SELECT remaining FROM rl_limit('rd/debt', 'k', 13, reserve => true);
SELECT rl_define('rd/debt', rl_fixed_window(5, '1 hour'));
SELECT remaining FROM rl_credit('rd/debt', 'k', 2);
SELECT remaining FROM rl_credit('rd/debt', 'k', 2);
SELECT rl_define('rd/debt', rl_fixed_window(10, '1 hour'));
SELECT remaining FROM rl_check('rd/debt', 'k');
-- A lease never ends before the time that it was promised, also where the ttl is cut.
SELECT rl_define('rd/slots', rl_concurrency(2, '1 hour'));
SELECT lease, expires_at FROM rl_acquire('rd/slots', 'k') \gset
SELECT rl_define('rd/slots', rl_concurrency(2, '1 minute'));
SELECT rl_extend(:'lease'), :'expires_at'::timestamptz AS promised;
SET ratelimit.clock = '2027-01-01 12:59:30+00';
SELECT rl_extend(:'lease'), rl_release(:'lease');
-- A full bucket is full now, also with a clock behind its state.
SELECT rl_define('rd/full', rl_token_bucket(10, '1 hour'));
SET ratelimit.clock = '2027-01-01 13:00:00+00';
SELECT ok FROM rl_limit('rd/full', 'k', 1);
SELECT remaining, reset_at FROM rl_credit('rd/full', 'k', 1);
SET ratelimit.clock = '2027-01-01 12:50:00+00';
SELECT ok, remaining, reset_at FROM rl_check('rd/full', 'k', 1);
SELECT ok, remaining, reset_at FROM rl_limit('rd/full', 'k', 1);

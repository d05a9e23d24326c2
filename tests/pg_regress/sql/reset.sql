-- rl_reset and rl_reset_all: full again, debt forgotten; whether, or for how many keys, there was
-- anything to forget.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('rs', rl_token_bucket(10, '1 minute'));
SELECT rl_reset('rs', 'nobody');
SELECT ok, remaining FROM rl_limit('rs', 'a', count => 9);
SELECT rl_reset('rs', 'a');
SELECT * FROM rl_check('rs', 'a');
-- There is nothing to forget a second time.
SELECT rl_reset('rs', 'a');
SELECT ok, remaining FROM rl_limit('rs', 'a', count => 10);
-- Debt is forgotten.
SELECT ok, remaining FROM rl_limit('rs', 'a', count => 50, reserve => true);
SELECT rl_reset('rs', 'a');
SELECT ok, remaining FROM rl_limit('rs', 'a');
-- Used and reset a hundred times, the row stays where it is, for the sake of the index.
SELECT count(*) FILTER (WHERE NOT ok) AS denied, count(*) FILTER (WHERE NOT reset) AS not_reset
FROM generate_series(1, 100) n, LATERAL (SELECT (rl_limit('rs', 'hot', count => 10 * sign(n))).ok, rl_reset('rs', 'hot') AS reset) r;
SELECT count(*) AS rows FROM rateLimits WHERE name = 'rs' AND key = 'hot';
-- A key, not all of them; the empty key is one of its own.
SELECT count(*) FROM unnest(ARRAY['', 'a', 'b', 'c']) key, LATERAL rl_limit('rs', key);
SELECT rl_reset('rs');
SELECT key, remaining FROM unnest(ARRAY['', 'a', 'b', 'c']) key, LATERAL rl_check('rs', key);
-- All of a name, that is not a pattern; how many had something to forget.
SELECT ok FROM rl_limit('rs%', 'x', config => rl_sliding_log(1, '1 day'));
SELECT ok FROM rl_limit('rsx', 'x', config => rl_sliding_log(1, '1 day'));
SELECT rl_reset_all('rs%');
SELECT rl_reset_all('rs');
SELECT rl_reset_all('rs');
SELECT key, remaining FROM unnest(ARRAY['', 'a', 'b', 'c']) key, LATERAL rl_check('rs', key);
SELECT ok, remaining FROM rl_check('rsx', 'x', config => rl_sliding_log(1, '1 day'));
-- Every kind.
SELECT rl_define('rs/fw', rl_fixed_window(2, '1 hour', first_request => true)),
       rl_define('rs/sw', rl_sliding_window(2, '1 hour')), rl_define('rs/sl', rl_sliding_log(2, '1 hour'));
SELECT name, ok, remaining FROM unnest(ARRAY['rs/fw', 'rs/sw', 'rs/sl']) name, LATERAL rl_limit(name, count => 2);
SELECT name, rl_reset(name) FROM unnest(ARRAY['rs/fw', 'rs/sw', 'rs/sl']) name;
SET ratelimit.clock = '2027-01-01 12:30:00+00';
SELECT name, ok, remaining, reset_at FROM unnest(ARRAY['rs/fw', 'rs/sw', 'rs/sl']) name, LATERAL rl_check(name, count => 2);
SELECT name, ok, remaining, reset_at FROM unnest(ARRAY['rs/fw', 'rs/sw', 'rs/sl']) name, LATERAL rl_limit(name, count => 2);
-- A name that is not defined has nothing to forget; state of an undefined one has.
SELECT rl_reset('rs/never'), rl_reset_all('rs/never');
SELECT rl_undefine('rs/sl'), rl_reset('rs/sl'), rl_reset('rs/sl');
-- It rolls back.
BEGIN;
SELECT rl_reset('rs/sw');
SELECT remaining FROM rl_check('rs/sw');
ROLLBACK;
SELECT remaining FROM rl_check('rs/sw');
BEGIN;
SELECT rl_reset_all('rs/sw');
SELECT ok, remaining FROM rl_limit('rs/sw');
ROLLBACK;
SELECT remaining FROM rl_check('rs/sw');

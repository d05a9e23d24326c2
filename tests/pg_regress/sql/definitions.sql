-- rl_define and rl_undefine: what they return, that a definition takes effect at once, and what a
-- new one does to live state.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_limit('df');
\echo :SQLSTATE
SELECT rl_check(E'it''s "undefined" \\');
SELECT rl_define('df', rl_token_bucket(10, '1 minute'));
-- The same again writes nothing, in whatever way it is spelled.
SELECT xmin AS before FROM rl_config WHERE name = 'df' \gset
SELECT rl_define('df', rl_token_bucket(10, '1 minute')),
       rl_define('df', '{"period": 60000.0, "rate": 1e1, "kind": "token bucket"}');
SELECT xmin = :'before' AS untouched FROM rl_config WHERE name = 'df';
SELECT rl_define('df', rl_token_bucket(10, '1 minute', capacity => 20));
SELECT name, key, config FROM rl_config WHERE name = 'df';
SELECT rl_undefine('df'), rl_undefine('df');
SELECT error_of($$SELECT rl_limit('df')$$, true);

-- Within a transaction at once, and gone with it.
BEGIN;
SELECT rl_define('df', rl_token_bucket(3, '1 minute'));
SELECT ok, remaining FROM rl_limit('df');
SELECT rl_define('df', rl_token_bucket(5, '1 minute'));
SELECT capacity FROM rl_check('df');
SAVEPOINT a;
SELECT rl_undefine('df');
SELECT error_of($$SELECT rl_check('df')$$);
ROLLBACK TO a;
SELECT capacity FROM rl_check('df');
ROLLBACK;
SELECT error_of($$SELECT rl_check('df')$$);
-- Within one statement each call sees what the one before it wrote.
SELECT rl_define('df', rl_token_bucket(3, '1 minute')), (rl_limit('df')).remaining, rl_define('df', rl_token_bucket(2, '1 minute')), (rl_limit('df')).capacity;

-- The next call uses the new config on what is stored, cut to the new capacity.
SELECT rl_define('df/live', rl_token_bucket(10, '1 minute'));
SELECT ok, remaining FROM rl_limit('df/live', count => 2);
SELECT rl_define('df/live', rl_token_bucket(10, '1 minute', capacity => 5));
SELECT ok, remaining, capacity FROM rl_check('df/live');
SELECT rl_define('df/live', rl_token_bucket(60, '1 minute', capacity => 100));
SELECT ok, remaining, capacity FROM rl_check('df/live');
SET ratelimit.clock = '2027-01-01 12:00:10+00';
SELECT ok, remaining FROM rl_check('df/live');
-- Token bucket to fixed window and back: tokens and time carry over.
SELECT rl_define('df/live', rl_fixed_window(60, '1 minute', capacity => 100, start => '2027-01-01 00:00:30+00'));
SELECT ok, remaining, reset_at FROM rl_check('df/live');
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT ok, remaining, reset_at FROM rl_limit('df/live', count => 50);
SELECT rl_define('df/live', rl_token_bucket(60, '1 minute', capacity => 100));
SELECT ok, remaining, reset_at FROM rl_limit('df/live');
-- To a sliding kind, between them and back: fresh.
SELECT rl_define('df/live', rl_sliding_window(7, '1 minute'));
SELECT ok, remaining FROM rl_limit('df/live', count => 7);
SELECT rl_define('df/live', rl_sliding_log(6, '1 minute'));
SELECT ok, remaining FROM rl_limit('df/live', count => 2);
SELECT value, ts, prior, log FROM rateLimits WHERE name = 'df/live';
SELECT rl_define('df/live', rl_sliding_window(7, '1 minute'));
SELECT ok, remaining FROM rl_limit('df/live', count => 3);
SELECT value, ts, prior, log FROM rateLimits WHERE name = 'df/live';
SELECT rl_define('df/live', rl_token_bucket(10, '1 minute'));
SELECT ok, remaining FROM rl_limit('df/live');
SELECT value, ts, prior, log FROM rateLimits WHERE name = 'df/live';

-- State survives rl_undefine, until it is reset.
SELECT rl_undefine('df/live');
SELECT error_of($$SELECT rl_limit('df/live')$$);
SELECT rl_define('df/live', rl_token_bucket(10, '1 minute'));
SELECT remaining FROM rl_check('df/live');
-- Bad ones leave the good one alone; NULLs are refused.
SELECT error_of($$SELECT rl_define('df/live', '{"kind": "token bucket", "rate": 0, "period": 1}')$$);
SELECT error_of($$SELECT rl_define('df/live', NULL)$$);
SELECT error_of($$SELECT rl_define(NULL, rl_token_bucket(1, '1 s'))$$);
SELECT error_of($$SELECT rl_define('df/live', rl_token_bucket(1, '1 s'), NULL)$$, true);
SELECT error_of($$SELECT rl_undefine(NULL)$$);
SELECT error_of($$SELECT rl_undefine('df/live', NULL)$$);
SELECT capacity FROM rl_check('df/live');

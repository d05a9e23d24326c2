-- rl_headers with the key of the call.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('hk', rl_token_bucket(10, '1 minute')), rl_define('hk', rl_token_bucket(500, '1 minute'), 'vip'), rl_define('hk', rl_unlimited(), 'exempt');
\a \t
-- rl_headers of a key: its override's policy, or that of the name.
SELECT key, rl_headers('hk', r, key => key) FROM unnest('{vip,u,exempt}'::text[]) key, rl_check('hk', key) r;
SELECT rl_headers('hk', r, 'github', key => 'vip'), rl_headers('hk', r), rl_headers('hk', r, key => NULL), rl_headers('hk', r, key => '') FROM rl_check('hk', 'vip') r;
SELECT rl_define('hk/only', rl_token_bucket(5, '1 minute'), 'vip');
SELECT rl_headers('hk/only', r, key => 'vip'), error_of($$SELECT rl_headers('hk/only', '(t,,,1,1,)', key => 'u')$$) FROM rl_check('hk/only', 'vip') r;
-- A config comes first; a limit that requires a key doesn't require it here.
SELECT rl_headers('hk', r, config => rl_sliding_log(1, '1 day'), key => 'vip') FROM rl_check('hk', 'vip') r;
SELECT rl_define('hk/keyed', rl_token_bucket(5, '1 minute') || '{"keyed": true}');
SELECT rl_headers('hk/keyed', r), rl_headers('hk/keyed', r, key => 'u') FROM rl_check('hk/keyed', 'u') r;
SELECT error_of($$SELECT rl_headers('hk', '(t,,,1,1,)', key => repeat('x', 1025))$$);
\a \t
SELECT rl_undefine('hk'), rl_undefine('hk', 'vip'), rl_undefine('hk', 'exempt'), rl_undefine('hk/only', 'vip'), rl_undefine('hk/keyed');

-- A definition with a key overrides the name's for that key: (name, key), then name.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('pk', rl_token_bucket(10, '1 minute'));
SELECT rl_define('pk', rl_token_bucket(100, '1 minute'), 'big');
SELECT rl_define('pk', rl_sliding_log(2, '1 minute'), key => 'small');
SELECT key, capacity FROM (VALUES (''), ('any'), ('big'), ('small'), ('BIG'), ('big ')) v (key), LATERAL rl_limit('pk', key);
SELECT key, value, cardinality(log) FROM rateLimits WHERE name = 'pk' ORDER BY key;
-- It counts on its own: full elsewhere does not matter.
SELECT ok, remaining FROM rl_limit('pk', 'small');
SELECT ok, remaining FROM rl_limit('pk', 'small');
SELECT ok, remaining FROM rl_limit('pk', 'any');
-- The same again, another one, gone: back to the name's, on the same row.
SELECT rl_define('pk', rl_token_bucket(100, '1 minute'), 'big'), rl_define('pk', rl_token_bucket(200, '1 minute'), 'big');
SELECT capacity, remaining FROM rl_check('pk', 'big');
SELECT rl_undefine('pk', 'big'), rl_undefine('pk', 'big'), rl_undefine('pk', 'any');
SELECT capacity, remaining FROM rl_check('pk', 'big');
-- The name's goes, the key's stays.
SELECT rl_undefine('pk');
SELECT capacity FROM rl_check('pk', 'small');
SELECT error_of($$SELECT rl_check('pk', 'any')$$);
SELECT error_of($$SELECT rl_check('pk')$$);
-- And is no default for the others.
SELECT rl_define('pk/only', rl_token_bucket(7, '1 minute'), 'a');
SELECT capacity FROM rl_check('pk/only', 'a');
SELECT error_of($$SELECT rl_check('pk/only', 'b')$$);
-- A first override, after calls that saw none, counts at once.
SELECT rl_define('pk/late', rl_token_bucket(5, '1 minute'));
SELECT capacity FROM rl_check('pk/late', 'k');
SELECT rl_define('pk/late', rl_token_bucket(6, '1 minute'), 'k');
SELECT capacity FROM rl_check('pk/late', 'k');
SELECT capacity FROM rl_check('pk/late', 'other');

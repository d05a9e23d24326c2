-- Tokens are taken if and only if a prepared transaction commits; of a limit in memory at once.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('pt', rl_token_bucket(10, '1 minute')), rl_define('pt/memory', rl_token_bucket(10, '1 minute', store => 'memory'));
SELECT ok FROM rl_limit('pt');
SET ratelimit.clock = '2027-01-01 13:00:00+00';
-- PREPARE TRANSACTION keeps the lock, and the tokens in suspense: a call for more than is
-- committed waits, a denial and a check do not.
BEGIN;
SELECT ok, remaining FROM rl_limit('pt', count => 4);
PREPARE TRANSACTION 'regress_pt';
SET lock_timeout = '20ms';
SELECT remaining FROM rl_check('pt');
SELECT ok FROM rl_limit('pt', count => 11);
SELECT error_of($$SELECT rl_limit('pt')$$);
SELECT error_of($$SELECT rl_reset('pt')$$);
SELECT error_of($$SELECT 1 FROM rateLimits WHERE name = 'pt' AND key = '' FOR UPDATE$$);
SELECT ok, remaining FROM rl_limit('pt', 'other');
RESET lock_timeout;
COMMIT PREPARED 'regress_pt';
SELECT ok, remaining FROM rl_limit('pt');
BEGIN;
SELECT ok, remaining FROM rl_limit('pt', count => 4);
PREPARE TRANSACTION 'regress_pt';
ROLLBACK PREPARED 'regress_pt';
SELECT ok, remaining FROM rl_limit('pt');
-- statement_timeout is honoured while it waits.
BEGIN;
SELECT ok FROM rl_limit('pt');
PREPARE TRANSACTION 'regress_pt';
SET statement_timeout = '20ms';
\set SHOW_CONTEXT never
SELECT rl_limit('pt');
\echo :SQLSTATE
\set SHOW_CONTEXT errors
RESET statement_timeout;
ROLLBACK PREPARED 'regress_pt';
-- In memory nothing waits, and what was taken stays taken.
BEGIN;
SELECT remaining FROM rl_limit('pt/memory');
SELECT rl_define('pt/own', rl_token_bucket(1, '1 day'));
PREPARE TRANSACTION 'regress_pt';
SELECT remaining FROM rl_limit('pt/memory');
ROLLBACK PREPARED 'regress_pt';
SELECT remaining FROM rl_check('pt/memory');
SELECT rl_undefine('pt'), rl_undefine('pt/memory'), rl_undefine('pt/own');

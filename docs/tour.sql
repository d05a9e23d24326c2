-- The tour of `make run`: the main jobs of a rate limiter as real calls with their
-- real output. Runs in an empty database, as a superuser, through psql -q.
-- Must say each thing once, in a line or two before the call that shows it.
\pset pager off
\pset null '(null)'
\pset footer off
\set ECHO none
SET client_min_messages = warning;
CREATE EXTENSION ratelimit;
\set ECHO queries

\echo
\echo '--- 1. Failed logins: 3 in a row, then 1 every 20 minutes -------------------'
\echo
\echo 'Say once what the limit is; an application may do so at every start.'
SELECT rl_define('failedLogins', rl_token_bucket(rate => 3, period => '1 hour'));
\echo 'Before looking at the password, take a token, committed in a statement of its own.'
SELECT ok, remaining FROM rl_limit('failedLogins', 'alice@example.com');
\echo 'The password was right: forget the failures.'
SELECT rl_reset('failedLogins', 'alice@example.com');
\echo 'Somebody guesses. The fourth attempt is denied; retry_after is how many seconds to wait.'
SELECT attempt, (rl_limit('failedLogins', 'bob@example.com')).ok FROM generate_series(1, 3) AS attempt;
SELECT ok, retry_after, retry_at FROM rl_limit('failedLogins', 'bob@example.com');
\echo 'Each key is a limit of its own: Alice still has all her attempts.'
SELECT ok, remaining, capacity FROM rl_check('failedLogins', 'alice@example.com');

\echo
\echo '--- 2. Sign-ups: one limit for everybody, 100 an hour ------------------------'
\echo
\echo 'A fixed window; without a key the limit is global.'
SELECT rl_define('signUps', rl_fixed_window(rate => 100, period => '1 hour'));
SELECT ok, remaining, reset_at FROM rl_limit('signUps');
\echo 'Several at once, all or none.'
SELECT ok, remaining FROM rl_limit('signUps', count => 99);
\echo 'A denial can be an error instead: it rolls back, and PostgREST answers HTTP 429.'
\set ON_ERROR_STOP off
SELECT ok FROM rl_limit('signUps', throws => true);
\set ON_ERROR_STOP on
\echo 'SQLSTATE:  ' :LAST_ERROR_SQLSTATE

\echo
\echo '--- 3. Messages: 10 a minute for each user, 3 at once ------------------------'
\echo
\echo 'A token bucket: the capacity is the burst, the rate is what refills it.'
SELECT rl_define('sendMessage', rl_token_bucket(rate => 10, period => '1 minute', capacity => 3));
SELECT message, (rl_limit('sendMessage', 'user-7')).ok FROM generate_series(1, 4) AS message;
\echo 'Ask without taking: what is there, when does the next one fit, when is it full?'
SELECT ok, round(remaining) AS remaining, retry_after, reset_at FROM rl_check('sendMessage', 'user-7');
\echo 'A customer with a larger plan: the same limit, defined for one key.'
SELECT rl_define('sendMessage', rl_token_bucket(rate => 100, period => '1 minute', capacity => 50), key => 'user-8');
SELECT ok, remaining, capacity FROM rl_limit('sendMessage', 'user-8');

\echo
\echo '--- 4. LLM tokens: 40,000 a minute, work beyond them is scheduled ------------'
\echo
SELECT rl_define('llmTokens', rl_token_bucket(rate => 40000, period => '1 minute', max_reserved => 80000));
SELECT ok, remaining FROM rl_limit('llmTokens', count => 30000);
\echo 'The next job wants more than there is. Reserved, the tokens are its own: it runs at retry_at.'
SELECT ok, round(remaining) AS remaining, retry_at FROM rl_limit('llmTokens', count => 25000, reserve => true);
\echo 'The job after it is scheduled behind it.'
SELECT ok, round(remaining) AS remaining, retry_at FROM rl_limit('llmTokens', count => 25000, reserve => true);
\echo 'The debt may not pass max_reserved: this one takes nothing, and can try again in so many seconds.'
SELECT ok, round(remaining) AS remaining, retry_after FROM rl_limit('llmTokens', count => 60000, reserve => true);

\echo
\echo '--- 5. Transactions: a limit is taken if and only if your own writes commit --'
\echo
CREATE TABLE messages (author text, body text);
SELECT remaining FROM rl_check('sendMessage', 'user-9');
BEGIN;
INSERT INTO messages VALUES ('user-9', 'hello');
SELECT ok, remaining FROM rl_limit('sendMessage', 'user-9');
\echo 'Something goes wrong after all. The message is gone, and the token is back.'
ROLLBACK;
SELECT (SELECT count(*) FROM messages) AS messages, remaining FROM rl_check('sendMessage', 'user-9');
\echo 'The same, committed: both stay.'
BEGIN;
INSERT INTO messages VALUES ('user-9', 'hello again');
SELECT ok, remaining FROM rl_limit('sendMessage', 'user-9');
COMMIT;
SELECT (SELECT count(*) FROM messages) AS messages, round(remaining) AS remaining FROM rl_check('sendMessage', 'user-9');

\echo
\echo 'All of it is in one table (the value Infinity: reset, so full whatever the capacity):'
SELECT name, key, round(value) AS value, ts FROM rateLimits ORDER BY name, key;

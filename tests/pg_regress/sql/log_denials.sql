-- Denials in the server's log: of all calls, of none, and the privilege to set it. The client sees them here.
SET client_min_messages = log;
SELECT rl_define('ld', rl_token_bucket(2, '1 minute')), rl_define('l"d', rl_fixed_window(1, '1 minute', start => '2027-01-01 00:00:00+00'));
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT ok FROM rl_limit('ld', 'secret-1', 2);
SELECT ok FROM rl_limit('ld', 'secret-1');
SET ratelimit.log_denials = 1;
SELECT ok FROM rl_limit('ld', 'secret-1');
SELECT ok FROM rl_limit('ld', 'secret-1', 3);
SELECT ok FROM rl_limit('l"d', 'secret-2');
-- What passes, or only asks, or gives back, is no denial.
SELECT ok FROM rl_check('ld', 'secret-1');
SELECT ok FROM rl_check_all('[{"name": "ld", "key": "secret-1"}]');
SELECT ok FROM rl_credit('ld', 'secret-1', -1);
-- Of several, those that refuse.
SELECT name, ok, limited_by FROM rl_limit_all('[{"name": "ld", "key": "secret-1"}, {"name": "ld", "key": "secret-3"}, {"name": "l\"d", "key": "secret-2"}]');
-- Before an error, from a trigger, and for the role that calls.
\set VERBOSITY terse
SELECT rl_limit('ld', 'secret-1', throws => true);
CREATE TABLE ld (who text);
CREATE TRIGGER limited BEFORE INSERT ON ld FOR EACH ROW EXECUTE FUNCTION rl_trigger('ld', 'key=who');
INSERT INTO ld VALUES ('secret-1');
CREATE ROLE "a ""role""";
GRANT EXECUTE ON FUNCTION rl_limit TO "a ""role""";
SET ROLE "a ""role""";
SELECT ok FROM rl_limit('ld', 'secret-1');
SET ratelimit.log_denials = 0;
RESET ROLE;
SET ratelimit.log_denials = 1.5;
SET ratelimit.log_denials = 'NaN';
RESET ratelimit.log_denials;
SELECT ok FROM rl_limit('ld', 'secret-1');
REVOKE EXECUTE ON FUNCTION rl_limit FROM "a ""role""";
DROP ROLE "a ""role""";
DROP TABLE ld;

-- The privileges that holds need: each function has its own, the table is its owner's.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
TRUNCATE rl_holds;
SELECT rl_define('hr', rl_token_bucket(60, '1 minute'));
CREATE ROLE regress_rl_holder;
SET ROLE regress_rl_holder;
SELECT call || '|' || error_of('SELECT ' || call) AS error FROM unnest(ARRAY[
    'rl_hold(''hr'')', 'rl_settle(''x'')', 'rl_hold_all(''[]'')', 'rl_settle_all(''x'')', 'rl_take(''hr'')']) call;
SELECT error_of('SELECT FROM rl_holds') AS read, error_of('DELETE FROM rl_holds') AS write;
RESET ROLE;
GRANT EXECUTE ON FUNCTION rl_hold, rl_hold_all TO regress_rl_holder;
SET ROLE regress_rl_holder;
SELECT ok, held FROM rl_hold('hr', 'role', 5, id => 'r-1');
SELECT ok, held FROM rl_hold_all('[{"name": "hr", "key": "role", "count": 6}]', id => 'r-1');
SELECT error_of($$ SELECT rl_settle('r-1') $$);
SELECT error_of($$ SELECT rl_hold('hr', 'role', config => rl_token_bucket(50, '1 s')) $$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION rl_settle, rl_settle_all TO regress_rl_holder;
SET ROLE regress_rl_holder;
SELECT ok, remaining FROM rl_settle('r-1', 2);
SELECT count(*) FROM rl_settle_all('r-1');
SELECT error_of('SELECT FROM rl_holds');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION rl_hold, rl_hold_all, rl_settle, rl_settle_all FROM regress_rl_holder;
-- What monitoring reads: no id and no key.
RESET ratelimit.clock;
SELECT ok FROM rl_hold('hr', 'secret', 7, '1 hour', 'secret');
GRANT SELECT (name, count, spent, expires_at, charge) ON rl_holds TO regress_rl_holder;
SET ROLE regress_rl_holder;
SELECT name, sum(count - spent) FILTER (WHERE expires_at > clock_timestamp()) AS held,
    count(*) FILTER (WHERE NOT charge AND expires_at <= clock_timestamp()) AS expired FROM rl_holds GROUP BY name;
SELECT error_of('SELECT id FROM rl_holds') AS id, error_of('SELECT key FROM rl_holds') AS key, error_of('SELECT count(*) FROM rl_holds') AS count;
RESET ROLE;
REVOKE SELECT (name, count, spent, expires_at, charge) ON rl_holds FROM regress_rl_holder;
DROP ROLE regress_rl_holder;

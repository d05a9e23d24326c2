-- Rules that the owner puts on rateLimits: which calls still work, and with which SQLSTATE the others
-- end. rl_check, which writes nothing, always works; a call never passes without having taken.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('rules', rl_token_bucket(10, '1 minute'));
CREATE TABLE rule_log (event text);
CREATE FUNCTION outcome(VARIADIC statements text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    statement text;
    outcome text;
BEGIN
    DELETE FROM rateLimits;
    PERFORM rl_limit('rules', 'old');
    FOREACH statement IN ARRAY statements LOOP
        IF statement LIKE 'SELECT%' THEN
            EXECUTE statement INTO outcome;
        ELSE
            EXECUTE statement;
        END IF;
    END LOOP;
    RAISE EXCEPTION USING errcode = 'RB000';
EXCEPTION WHEN SQLSTATE 'RB000' THEN
    RETURN outcome;
WHEN OTHERS THEN
    RETURN sqlstate;
END
$$;
-- On new rows, on rows that are there, and on all of a name; what the rule's own action did.
SELECT event, action,
    outcome(rule, 'SELECT remaining FROM rl_limit(''rules'', ''old'')') AS old,
    outcome(rule, 'SELECT remaining FROM rl_limit(''rules'', ''new'')') AS new,
    outcome(rule, 'SELECT max(remaining) FROM rl_limit_all(''[{"name": "rules", "key": "old"}]'')') AS several,
    outcome(rule, 'SELECT remaining FROM rl_credit(''rules'', ''old'', -1)') AS credit,
    outcome(rule, 'SELECT remaining FROM rl_check(''rules'', ''old'')') AS look,
    outcome(rule, 'SELECT ok FROM rl_limit(''rules'', ''old'', 11)') AS denied,
    outcome(rule, 'SELECT rl_reset(''rules'', ''old'')') AS reset,
    outcome(rule, 'SELECT rl_reset_keys(''rules'')') AS reset_all,
    outcome(rule, 'SELECT rl_prune() FROM set_config(''ratelimit.clock'', ''2027-01-02 12:00:00+00'', true)') AS prune,
    outcome(rule, 'SELECT remaining FROM rl_limit(''rules'', ''old'')', 'SELECT count(*) FROM rule_log') AS done,
    outcome(rule, 'SET LOCAL ratelimit.access = heap', 'SELECT rl_limit(''rules'', ''old'')') AS heap
FROM (SELECT event, action, format('CREATE RULE r AS ON %s TO rateLimits %s', event, action) AS rule
      FROM (VALUES (1, 'INSERT'), (2, 'UPDATE'), (3, 'DELETE')) e (n, event),
           (VALUES (1, 'DO INSTEAD NOTHING'), (2, 'WHERE false DO INSTEAD NOTHING'), (3, 'DO ALSO NOTHING'), (4, 'DO ALSO INSERT INTO rule_log VALUES (''written'')'),
                   (5, 'DO INSTEAD INSERT INTO rule_log VALUES (''written'')'), (6, 'WHERE false DO INSTEAD INSERT INTO rule_log VALUES (''written'')')) a (m, action)
      ORDER BY n, m) rules;
-- Only the heap store minds a rule that was dropped, until VACUUM has looked.
SELECT outcome('CREATE RULE r AS ON DELETE TO rateLimits DO INSTEAD NOTHING', 'DROP RULE r ON rateLimits', 'SELECT remaining FROM rl_limit(''rules'', ''old'')');
DROP FUNCTION outcome; DROP TABLE rule_log;
SELECT rl_undefine('rules');

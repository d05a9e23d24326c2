-- A statement on many keys reads definitions once, not for each of them: its scans of rl_config are a few.
CREATE FUNCTION scans_of(statement text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    at_first bigint;
BEGIN
    SELECT idx_scan + seq_scan INTO at_first FROM pg_stat_xact_user_tables WHERE relid = 'rl_config'::regclass;
    EXECUTE statement;
    RETURN (SELECT idx_scan + seq_scan - at_first FROM pg_stat_xact_user_tables WHERE relid = 'rl_config'::regclass);
END
$$;
SELECT rl_define('scans/free', rl_token_bucket(10, '1 hour')), rl_define('scans/pro', rl_token_bucket(20, '1 hour'));
BEGIN;
SELECT rl_define('scans', '{"plan": "scans/free"}', 'first');
-- Keys get a plan, get another, and lose it.
SELECT scans_of($$INSERT INTO rl_config (name, key, config) SELECT 'scans', n, '{"plan": "scans/free"}' FROM generate_series(1, 500) n$$) < 20;
SELECT count(DISTINCT capacity), min(capacity) FROM generate_series(1, 500) n, rl_check('scans', n::text);
SELECT scans_of($$UPDATE rl_config SET config = '{"plan": "scans/pro"}' WHERE name = 'scans'$$) < 20;
SELECT count(DISTINCT capacity), min(capacity) FROM generate_series(1, 500) n, rl_check('scans', n::text);
-- The plan changes with its keys.
SELECT scans_of($$UPDATE rl_config SET config = CASE key WHEN '' THEN rl_token_bucket(30, '1 hour') ELSE '{"plan": "scans/free"}' END
                  WHERE name IN ('scans', 'scans/free')$$) < 20;
SELECT count(DISTINCT capacity), min(capacity) FROM generate_series(1, 500) n, rl_check('scans', n::text);
SELECT scans_of($$DELETE FROM rl_config WHERE name = 'scans'$$) < 20;
SELECT error_of($$SELECT rl_check('scans', '1')$$);
-- rl_status lists exempt keys.
INSERT INTO rl_config (name, key, config) SELECT 'scans', n, rl_unlimited() FROM generate_series(1, 500) n;
SELECT scans_of($$SELECT * FROM rl_status('scans')$$) < 20;
SELECT count(*), min(kind), bool_or(limited) FROM rl_status('scans');
ROLLBACK;
DROP FUNCTION scans_of;
SELECT rl_undefine('scans/free'), rl_undefine('scans/pro');

-- What monitoring.py finds in each of its databases, with the extension and with the SQL file: two limits, and what
-- docs/monitoring.md grants the exporter's role.
SELECT rl_define('watched', rl_fixed_window(rate => 3, period => '1 day', first_request => true, keyed => true)),
       rl_define('held', rl_fixed_window(rate => 1000, period => '1 day', first_request => true, keyed => true));
GRANT EXECUTE ON FUNCTION rl_limit, rl_hold TO client;
GRANT EXECUTE ON FUNCTION rl_stats, rl_memory, rl_status TO client;
GRANT SELECT (name, count, spent, expires_at, charge) ON rl_holds TO client;

-- rl_trigger on the extension's own tables.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE FUNCTION taken(name text) RETURNS TABLE (key text, taken float8) LANGUAGE sql AS $$
    SELECT s.key, s.capacity - s.remaining FROM rl_status(taken.name) s
$$;
SELECT rl_define('to', rl_token_bucket(10, '1 minute'));
-- On the limiter's own table it would limit itself without end.
BEGIN;
CREATE TRIGGER a BEFORE INSERT ON rateLimits FOR EACH ROW EXECUTE FUNCTION rl_trigger('to', 'key=key');
SET LOCAL max_stack_depth = '500kB';
SELECT error_of('SELECT rl_limit(''to'', ''recursion'')');
ROLLBACK;
SELECT ok, remaining FROM rl_limit('to', 'recursion');
-- On the table of the definitions it may stand.
BEGIN;
CREATE TRIGGER a BEFORE INSERT ON rl_config FOR EACH ROW EXECUTE FUNCTION rl_trigger('to', 'key=name');
SELECT rl_define('to/defined', rl_token_bucket(1, '1 minute'));
SELECT * FROM taken('to') WHERE key = 'to/defined';
ROLLBACK;
DROP FUNCTION taken;
SELECT rl_undefine('to');

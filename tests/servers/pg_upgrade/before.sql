-- Limits, their state and what uses them, in the database that scripts/pg_upgrade takes over.
CREATE SCHEMA limits;
CREATE EXTENSION ratelimit SCHEMA limits;
CREATE ROLE app;
GRANT USAGE ON SCHEMA limits TO app;
GRANT EXECUTE ON FUNCTION limits.rl_limit, limits.rl_check TO app;
CREATE TABLE messages (author text);
CREATE TRIGGER messages BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION limits.rl_trigger('messages', 'key=author');
SELECT limits.rl_define('messages', limits.rl_token_bucket(5, '365 days'));
SELECT limits.rl_define('log', limits.rl_sliding_log(5, '365 days'));
SELECT limits.rl_define('shards', limits.rl_token_bucket(40, '365 days', shards => 4));
SELECT limits.rl_define('window', limits.rl_fixed_window(5, '365 days'));
SELECT limits.rl_define('sliding', limits.rl_sliding_window(5, '365 days'));
INSERT INTO messages VALUES ('ada'), ('ada');
SELECT limits.rl_limit('log', 'ada', 3), limits.rl_limit('shards', 'ada', 30);
SELECT limits.rl_limit('window', 'ada', 3), limits.rl_limit('sliding', 'ada', 3);

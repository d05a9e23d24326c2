-- Prepares a new database for the playground: the extension, and a role that may call what it calls, and no more.
CREATE EXTENSION ratelimit;
CREATE ROLE playground LOGIN;
GRANT EXECUTE ON FUNCTION rl_limit, rl_check, rl_reset, rl_headers TO playground;

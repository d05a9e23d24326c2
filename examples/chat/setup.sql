-- What the chat needs in its database: the extension, its tables, and a role that may call four functions.
CREATE EXTENSION ratelimit;

CREATE TABLE users (
    id text PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 40)
);
CREATE TABLE messages (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    author text NOT NULL,
    body text NOT NULL CHECK (length(body) BETWEEN 1 AND 2000)
);

CREATE ROLE chat LOGIN;
GRANT SELECT, INSERT ON users, messages TO chat;
GRANT EXECUTE ON FUNCTION rl_limit, rl_limit_each, rl_hold, rl_settle, rl_value TO chat;

-- What the chat needs in its database: the extension, its tables, and a role that may call five functions.
CREATE EXTENSION ratelimit;

CREATE TABLE users (
    id text PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 40)
);
-- Questions to the model, by the ids that their pages chose.
CREATE TABLE questions (
    id uuid PRIMARY KEY,
    asker text NOT NULL REFERENCES users,
    number bigint GENERATED ALWAYS AS IDENTITY, -- their order in the asker's line
    asked_at timestamptz NOT NULL DEFAULT now(), -- last: a page that waits in line asks every second
    begun_at timestamptz
);
CREATE INDEX ON questions (asker) WHERE begun_at IS NULL;
CREATE TABLE messages (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    author text NOT NULL,
    body text NOT NULL CHECK (length(body) BETWEEN 1 AND 2000),
    question uuid UNIQUE REFERENCES questions -- if it is the answer
);

CREATE ROLE chat LOGIN;
GRANT SELECT, INSERT ON users, messages TO chat;
GRANT SELECT, INSERT, UPDATE, DELETE ON questions TO chat;
GRANT EXECUTE ON FUNCTION rl_limit, rl_limit_each, rl_hold_all, rl_settle_all, rl_value TO chat;

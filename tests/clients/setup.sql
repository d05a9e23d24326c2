-- What the programs of this folder find: the limits, two tables, and the ordinary role that they
-- connect as. A migration would run this once, as the owner of the database; here tests/clients/run
-- does, in a database of its own. The windows are long, so that nothing refills while a test runs.
CREATE EXTENSION ratelimit;

-- 3 messages a day for each user; the day begins with the first of them. A call without a user fails.
SELECT rl_define('sendMessage', rl_fixed_window(rate => 3, period => '1 day', first_request => true, keyed => true));
-- 1,000 tokens a day, and as many ahead of time for work that is done later.
SELECT rl_define('llmTokens',
    rl_fixed_window(rate => 1000, period => '1 day', max_reserved => 1000, first_request => true, keyed => true));
-- 100 for each key, for many sessions at once.
SELECT rl_define('quota', rl_fixed_window(rate => 100, period => '1 day', first_request => true, keyed => true));

CREATE TABLE users (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL);
CREATE TABLE messages (author bigint REFERENCES users, body text NOT NULL CHECK (body <> ''));
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner bigint REFERENCES users,
    estimate double precision NOT NULL, -- tokens taken for it in advance
    run_at timestamptz NOT NULL);       -- not before

-- What PostGraphile shows: a table with the limit in a trigger, and a function that takes from it itself.
CREATE SCHEMA blog;
CREATE TABLE blog.posts (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, author text NOT NULL, body text NOT NULL);
CREATE TRIGGER limit_posts BEFORE INSERT ON blog.posts FOR EACH ROW EXECUTE FUNCTION rl_trigger('sendMessage', 'key=author');
CREATE FUNCTION blog.poke(person text) RETURNS double precision LANGUAGE sql VOLATILE AS
    $$ SELECT remaining FROM public.rl_limit('sendMessage', person, throws => true) $$;

CREATE ROLE client LOGIN;
GRANT EXECUTE ON FUNCTION rl_limit, rl_limit_all, rl_check, rl_credit TO client;
GRANT SELECT, INSERT ON users, messages TO client;
GRANT SELECT, INSERT, DELETE ON jobs TO client;
GRANT USAGE ON SCHEMA blog TO client;
GRANT SELECT, INSERT ON blog.posts TO client;
-- For what docs/testing.md says of tests without the fixtures.
GRANT SET ON PARAMETER ratelimit.clock TO client;
GRANT EXECUTE ON FUNCTION rl_reset_keys TO client;
GRANT SELECT ON rl_config TO client;

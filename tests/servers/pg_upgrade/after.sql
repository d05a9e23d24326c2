-- What has come over, and goes on.
SET ROLE app;
DO $$
BEGIN
    ASSERT (SELECT floor(remaining + 0.5) = 2 FROM limits.rl_limit('messages', 'ada')), 'the token bucket';
    ASSERT (SELECT remaining = 1 FROM limits.rl_limit('log', 'ada')), 'the sliding log';
    ASSERT (SELECT remaining = 1 FROM limits.rl_limit('window', 'ada')), 'the fixed window';
    ASSERT (SELECT remaining = 1 FROM limits.rl_limit('sliding', 'ada')), 'the sliding window';
    ASSERT (SELECT NOT ok FROM limits.rl_limit('shards', 'ada', 11)), 'more than the shards hold';
    ASSERT (SELECT ok FROM limits.rl_limit('shards', 'ada', 10)), 'what the shards hold';
END $$;
RESET ROLE;
INSERT INTO messages VALUES ('ada'), ('ada');
DO $$
BEGIN
    INSERT INTO messages VALUES ('ada');
    RAISE 'the trigger takes nothing';
EXCEPTION WHEN SQLSTATE 'PT429' THEN NULL;
END $$;
ALTER EXTENSION ratelimit UPDATE;

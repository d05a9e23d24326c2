-- Types and tables. Scripts never say CREATE OR REPLACE or IF NOT EXISTS: they must not adopt an
-- object that somebody else put there.

CREATE TYPE @extschema@.rl_result AS (
    ok           boolean,
    retry_after  double precision,
    retry_at     timestamptz,
    remaining    double precision,
    capacity     double precision,
    reset_at     timestamptz
);
COMMENT ON TYPE @extschema@.rl_result IS 'the outcome of a call of the rate limiter';
COMMENT ON COLUMN @extschema@.rl_result.ok IS 'the tokens were taken (rl_check: would be); never NULL';
COMMENT ON COLUMN @extschema@.rl_result.retry_after IS 'seconds: until the same call can succeed, or until reserved work may be done; NULL: nothing to wait for, or where ok is false it can never succeed';
COMMENT ON COLUMN @extschema@.rl_result.retry_at IS 'retry_after as a time; both rounded up to a whole millisecond';
COMMENT ON COLUMN @extschema@.rl_result.remaining IS 'tokens in the limit after this call; negative: debt or overage; NULL without a limit';
COMMENT ON COLUMN @extschema@.rl_result.capacity IS 'the most that the limit holds; NULL without a limit';
COMMENT ON COLUMN @extschema@.rl_result.reset_at IS 'when the limit is full again if nobody consumes; window kinds: when the window turns';

-- Nothing but the primary key is indexed, so that every update can be a HOT one; the fill factor
-- leaves it room on the page, and autovacuum doesn't wait for a share of the whole table.
CREATE TABLE @extschema@.rateLimits (
    name   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL DEFAULT '',
    shard  int NOT NULL DEFAULT 0,
    value  double precision NOT NULL,
    ts     timestamptz NOT NULL,
    prior  double precision,
    log    timestamptz[],
    PRIMARY KEY (name, key, shard)
) WITH (
    fillfactor = 40,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE @extschema@.rateLimits OWNER TO @extowner@;
COMMENT ON TABLE @extschema@.rateLimits IS 'rate limiter: the state of every limit in use, a row a (name, key, shard)';
COMMENT ON COLUMN @extschema@.rateLimits.name IS 'which limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rateLimits.key IS 'whose; up to 1024 bytes, empty for the limit without keys';
COMMENT ON COLUMN @extschema@.rateLimits.shard IS 'which part of a sharded limit, from 0';
COMMENT ON COLUMN @extschema@.rateLimits.value IS 'tokens at ts, negative in debt; sliding kinds: tokens used; concurrency: slots taken; Infinity: reset, as if the row were not there';
COMMENT ON COLUMN @extschema@.rateLimits.ts IS 'when value was counted; window kinds: the start of the window';
COMMENT ON COLUMN @extschema@.rateLimits.prior IS 'sliding window: tokens that the window before used; fixed window: minus those that the window brought; concurrency: 0';
COMMENT ON COLUMN @extschema@.rateLimits.log IS 'sliding log: when each token was taken, oldest first; concurrency: of each slot when its lease was given, and when that expires';

CREATE TABLE @extschema@.rl_config (
    name    text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL DEFAULT '',
    config  jsonb NOT NULL,
    PRIMARY KEY (name, key)
);
ALTER TABLE @extschema@.rl_config OWNER TO @extowner@;
COMMENT ON TABLE @extschema@.rl_config IS 'rate limiter: the named limits; a row with a key overrides the limit for that key';
COMMENT ON COLUMN @extschema@.rl_config.name IS 'which limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_config.key IS 'for whom, up to 1024 bytes; empty: for every key without a row of its own';
COMMENT ON COLUMN @extschema@.rl_config.config IS 'the limit, as rl_token_bucket() and the other builders make it';

CREATE TABLE @extschema@.rl_blocks (
    name   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL DEFAULT '',
    until  timestamptz NOT NULL,
    PRIMARY KEY (name, key)
);
ALTER TABLE @extschema@.rl_blocks OWNER TO @extowner@;
COMMENT ON TABLE @extschema@.rl_blocks IS 'rate limiter: who is denied until when, whatever is in the limit';
COMMENT ON COLUMN @extschema@.rl_blocks.name IS 'which limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_blocks.key IS 'whose; up to 1024 bytes, empty for the limit without keys';
COMMENT ON COLUMN @extschema@.rl_blocks.until IS 'when it is over; infinity: never';

-- Dumps carry limits, state and blocks.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.ratelimits', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.rl_config', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.rl_blocks', '');

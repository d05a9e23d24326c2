-- Types and tables. Scripts never use CREATE OR REPLACE or IF NOT EXISTS, which would adopt an object of another owner.

CREATE TYPE @extschema@.rl_result AS (
    ok           boolean,
    retry_after  double precision,
    retry_at     timestamptz,
    remaining    double precision,
    capacity     double precision,
    reset_at     timestamptz,
    limited_by   text
);
COMMENT ON TYPE @extschema@.rl_result IS 'result of a call of the rate limiter';
COMMENT ON COLUMN @extschema@.rl_result.ok IS 'whether the tokens were taken (rl_check: could be taken); never NULL';
COMMENT ON COLUMN @extschema@.rl_result.retry_after IS 'seconds until the same call can succeed, or until reserved work may start; NULL: no wait, or, if ok is false, the call can never succeed';
COMMENT ON COLUMN @extschema@.rl_result.retry_at IS 'retry_after as a time; both are rounded up to a whole millisecond';
COMMENT ON COLUMN @extschema@.rl_result.remaining IS 'tokens left after this call; negative: debt or overage; NULL: no limit applies';
COMMENT ON COLUMN @extschema@.rl_result.capacity IS 'the most tokens that the limit can hold; NULL: no limit applies';
COMMENT ON COLUMN @extschema@.rl_result.reset_at IS 'when the limit is full again if nobody takes from it; window kinds: end of the current window; concurrency: when the last lease expires';
COMMENT ON COLUMN @extschema@.rl_result.limited_by IS 'what denies the call: block, the key is blocked; slots, too few are free; tokens, too few are left; NULL: nothing, or, if ok is false, there is no such hold; with ok, only a dry run admitted it';

-- The other results, each named for its function, where its columns are described.
CREATE TYPE @extschema@.rl_take_result AS (
    ok boolean, taken double precision, retry_after double precision, retry_at timestamptz,
    remaining double precision, capacity double precision, reset_at timestamptz, limited_by text
);
COMMENT ON TYPE @extschema@.rl_take_result IS 'result of rl_take';

CREATE TYPE @extschema@.rl_limit_all_result AS (
    n integer, name text, key text, ok boolean, retry_after double precision, retry_at timestamptz,
    remaining double precision, capacity double precision, reset_at timestamptz, limited_by text, error jsonb
);
COMMENT ON TYPE @extschema@.rl_limit_all_result IS 'result of rl_limit_all, rl_check_all and rl_limit_each, for one request';

CREATE TYPE @extschema@.rl_hold_result AS (
    ok boolean, hold text, held double precision, expires_at timestamptz, retry_after double precision,
    retry_at timestamptz, remaining double precision, capacity double precision, reset_at timestamptz, limited_by text
);
COMMENT ON TYPE @extschema@.rl_hold_result IS 'result of rl_hold';

CREATE TYPE @extschema@.rl_hold_all_result AS (
    n integer, name text, key text, ok boolean, hold text, held double precision,
    expires_at timestamptz, retry_after double precision, retry_at timestamptz, remaining double precision,
    capacity double precision, reset_at timestamptz, limited_by text
);
COMMENT ON TYPE @extschema@.rl_hold_all_result IS 'result of rl_hold_all, for one request';

CREATE TYPE @extschema@.rl_settle_all_result AS (
    name text, key text, retry_after double precision, retry_at timestamptz, remaining double precision,
    capacity double precision, reset_at timestamptz
);
COMMENT ON TYPE @extschema@.rl_settle_all_result IS 'result of rl_settle_all, for one limit of the hold';

CREATE TYPE @extschema@.rl_acquire_result AS (
    ok boolean, lease text, expires_at timestamptz, retry_after double precision, retry_at timestamptz,
    remaining double precision, capacity double precision, reset_at timestamptz, limited_by text
);
COMMENT ON TYPE @extschema@.rl_acquire_result IS 'result of rl_acquire';

CREATE TYPE @extschema@.rl_status_result AS (
    name text, key text, kind text, remaining double precision, capacity double precision, retry_at timestamptz,
    as_of timestamptz, shards integer, limited boolean, limited_by text, block_reason text, held double precision
);
COMMENT ON TYPE @extschema@.rl_status_result IS 'result of rl_status, for one name and key';

CREATE TYPE @extschema@.rl_stats_result AS (
    name text, allowed bigint, denied bigint, denied_in_dry_run bigint, tokens double precision, since timestamptz
);
COMMENT ON TYPE @extschema@.rl_stats_result IS 'result of rl_stats, for one name';

CREATE TYPE @extschema@.rl_top_denied_result AS (
    name text, key text, denied bigint, overcount bigint
);
COMMENT ON TYPE @extschema@.rl_top_denied_result IS 'result of rl_top_denied, for one name and key';

CREATE TYPE @extschema@.rl_memory_result AS (
    keys bigint, room bigint, inline_keys bigint, inline_room bigint, bytes bigint, dropped_idle bigint,
    dropped_live bigint, since timestamptz, configured bigint, dropped_calls bigint, saved_keys bigint,
    saved_room bigint, saved_bytes bigint, unsaved_keys bigint, unsaved_since timestamptz, save_error text,
    writer_pid integer, writer_since timestamptz
);
COMMENT ON TYPE @extschema@.rl_memory_result IS 'result of rl_memory';

CREATE TYPE @extschema@.rl_calculate_result AS (
    ok boolean, retry_after double precision, retry_at timestamptz, remaining double precision,
    capacity double precision, reset_at timestamptz, state jsonb
);
COMMENT ON TYPE @extschema@.rl_calculate_result IS 'result of rl_calculate';

-- Only the primary key is indexed, and the fill factor leaves space on the page, so that updates are HOT.
-- Autovacuum doesn't wait for a share of the whole table. New columns come last: ALTER EXTENSION adds them.
CREATE TABLE @extschema@.rateLimits (
    name   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL DEFAULT '',
    shard  int NOT NULL DEFAULT 0,
    kind   "char" NOT NULL,
    value  double precision NOT NULL,
    ts     timestamptz NOT NULL,
    added  double precision,
    prior  double precision,
    log    timestamptz[],
    leases bigint[],
    holds_due timestamptz,
    PRIMARY KEY (name, key, shard)
) WITH (
    fillfactor = 40,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE @extschema@.rateLimits OWNER TO @extowner@;
COMMENT ON TABLE @extschema@.rateLimits IS 'rate limiter: state of every limit in use, one row per (name, key, shard)';
COMMENT ON COLUMN @extschema@.rateLimits.name IS 'name of the limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rateLimits.key IS 'key, such as a user or a tenant; up to 1024 bytes, empty for a limit without keys';
COMMENT ON COLUMN @extschema@.rateLimits.shard IS 'number of the row of a limit with shards; 0: the only row of a limit without them, or a marker';
COMMENT ON COLUMN @extschema@.rateLimits.kind IS 'what the row is: t tokens of a token bucket or fixed window, s sliding window, l sliding log, c concurrency; - was reset, the same as no row; # marks a key with shards, = one that was reset';
COMMENT ON COLUMN @extschema@.rateLimits.value IS 'tokens left at ts, negative in debt; sliding kinds: tokens used; concurrency: slots taken';
COMMENT ON COLUMN @extschema@.rateLimits.ts IS 'time at which value was counted; window kinds: start of the window';
COMMENT ON COLUMN @extschema@.rateLimits.added IS 'fixed window: tokens that this window has added since it began; NULL: unknown';
COMMENT ON COLUMN @extschema@.rateLimits.prior IS 'sliding window: tokens used in the previous window';
COMMENT ON COLUMN @extschema@.rateLimits.log IS 'sliding log: time of each token taken, oldest first';
COMMENT ON COLUMN @extschema@.rateLimits.leases IS 'concurrency: for each slot that is taken the id of its lease and when that expires, in microseconds since 1970, in the order of expiry';
COMMENT ON COLUMN @extschema@.rateLimits.holds_due IS 'no later than when the first hold of the key expires that then gives tokens back; NULL: there is none';

CREATE TABLE @extschema@.rl_config (
    name    text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL DEFAULT '',
    config  jsonb NOT NULL,
    PRIMARY KEY (name, key)
);
ALTER TABLE @extschema@.rl_config OWNER TO @extowner@;
COMMENT ON TABLE @extschema@.rl_config IS 'rate limiter: defined limits; a row with a key overrides the limit for that key';
COMMENT ON COLUMN @extschema@.rl_config.name IS 'name of the limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_config.key IS 'key that this row applies to; up to 1024 bytes, empty: every key without a row of its own';
COMMENT ON COLUMN @extschema@.rl_config.config IS 'config of the limit, as rl_token_bucket() and the other builders return it; of a key also {"plan": name}';

CREATE TABLE @extschema@.rl_blocks (
    name   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL DEFAULT '',
    until  timestamptz NOT NULL,
    reason text,
    PRIMARY KEY (name, key)
);
ALTER TABLE @extschema@.rl_blocks OWNER TO @extowner@;
COMMENT ON TABLE @extschema@.rl_blocks IS 'rate limiter: keys that are denied until a given time, however many tokens are left';
COMMENT ON COLUMN @extschema@.rl_blocks.name IS 'name of the limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_blocks.key IS 'key that is blocked; up to 1024 bytes, empty for a limit without keys';
COMMENT ON COLUMN @extschema@.rl_blocks.until IS 'end of the block; infinity: blocked indefinitely';
COMMENT ON COLUMN @extschema@.rl_blocks.reason IS 'why the key is blocked, for rl_status; at most 200 bytes';

-- A row of a hold is inserted and deleted, and seldom updated between: most of a page is used.
CREATE TABLE @extschema@.rl_holds (
    id          text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL DEFAULT '',
    count       double precision NOT NULL,
    spent       double precision NOT NULL DEFAULT 0,
    returned    double precision NOT NULL DEFAULT 0,
    taken_at    timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    charge      boolean NOT NULL,
    lease       bigint,
    config      jsonb,
    PRIMARY KEY (id, name, key)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX rl_holds_of_key ON @extschema@.rl_holds (name, key, charge, expires_at);
ALTER TABLE @extschema@.rl_holds OWNER TO @extowner@;
COMMENT ON TABLE @extschema@.rl_holds IS 'rate limiter: tokens that are held until it is known how many were used, one row per hold, name and key';
COMMENT ON COLUMN @extschema@.rl_holds.id IS 'id of the hold; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_holds.name IS 'name of the limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_holds.key IS 'key, such as a user or a tenant; up to 1024 bytes, empty for a limit without keys';
COMMENT ON COLUMN @extschema@.rl_holds.count IS 'tokens that the hold has taken and not given back; concurrency: slots';
COMMENT ON COLUMN @extschema@.rl_holds.spent IS 'of these, tokens that can''t come back: of ended windows, or after its expiry; slots, which come back with their lease';
COMMENT ON COLUMN @extschema@.rl_holds.returned IS 'tokens that came back when it expired';
COMMENT ON COLUMN @extschema@.rl_holds.taken_at IS 'when the tokens beyond spent were taken; of a reservation, when all are there';
COMMENT ON COLUMN @extschema@.rl_holds.expires_at IS 'when it expires; a settlement counts for a day more';
COMMENT ON COLUMN @extschema@.rl_holds.charge IS 'whether its tokens stay taken when it expires';
COMMENT ON COLUMN @extschema@.rl_holds.lease IS 'concurrency: the id of the lease that has the slots';
COMMENT ON COLUMN @extschema@.rl_holds.config IS 'config that the call passed; NULL: the name is defined';

-- Dumps include limits, state, blocks and holds.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.ratelimits', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.rl_config', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.rl_blocks', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.rl_holds', '');

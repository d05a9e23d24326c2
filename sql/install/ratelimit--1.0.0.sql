-- What CREATE EXTENSION ran in version 1.0.0, kept to be upgraded from. Never changed.

-- bootstrap
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
COMMENT ON COLUMN @extschema@.rl_result.remaining IS 'tokens in the limit after this call; negative: debt';
COMMENT ON COLUMN @extschema@.rl_result.capacity IS 'the most that the limit holds';
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
    fillfactor = 70,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE @extschema@.rateLimits OWNER TO @extowner@;
COMMENT ON TABLE @extschema@.rateLimits IS 'rate limiter: the state of every limit in use, a row a (name, key, shard)';
COMMENT ON COLUMN @extschema@.rateLimits.name IS 'which limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rateLimits.key IS 'whose; up to 1024 bytes, empty for the limit without keys';
COMMENT ON COLUMN @extschema@.rateLimits.shard IS 'which part of a sharded limit, from 0';
COMMENT ON COLUMN @extschema@.rateLimits.value IS 'tokens at ts, negative in debt; sliding kinds: tokens used; Infinity: reset, as if the row were not there';
COMMENT ON COLUMN @extschema@.rateLimits.ts IS 'when value was counted; window kinds: the start of the window';
COMMENT ON COLUMN @extschema@.rateLimits.prior IS 'sliding window only: tokens that the window before used';
COMMENT ON COLUMN @extschema@.rateLimits.log IS 'sliding log only: when each token was taken, oldest first';

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

-- Dumps carry limits and state.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.ratelimits', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.rl_config', '');

-- requires:
--   bootstrap

-- The SQL functions. Signatures are frozen within a major version; defaults are constants, so
-- that a distributed planner can delegate a call. The cost makes a planner evaluate them last.

CREATE FUNCTION @extschema@.rl_limit(
    name text, key text DEFAULT '', count double precision DEFAULT 1, reserve boolean DEFAULT false,
    throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS @extschema@.rl_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_limit';
COMMENT ON FUNCTION @extschema@.rl_limit IS 'takes count tokens from a rate limit, inside the caller''s transaction';

CREATE FUNCTION @extschema@.rl_check(
    name text, key text DEFAULT '', count double precision DEFAULT 1, reserve boolean DEFAULT false,
    throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS @extschema@.rl_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_check';
COMMENT ON FUNCTION @extschema@.rl_check IS 'tells whether rl_limit would pass: consumes, locks and writes nothing';

CREATE FUNCTION @extschema@.rl_credit(
    name text, key text, count double precision, taken_at timestamptz DEFAULT NULL, config jsonb DEFAULT NULL)
RETURNS @extschema@.rl_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_credit';
COMMENT ON FUNCTION @extschema@.rl_credit IS 'gives back count tokens that were taken and not used; a negative count takes without asking';

CREATE FUNCTION @extschema@.rl_limit_all(requests jsonb, throws boolean DEFAULT false)
RETURNS TABLE (
    n integer, name text, key text, ok boolean, allows boolean, retry_after double precision,
    retry_at timestamptz, remaining double precision, capacity double precision, reset_at timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 10
AS 'MODULE_PATHNAME', 'rl_limit_all';
COMMENT ON FUNCTION @extschema@.rl_limit_all IS 'takes tokens from several rate limits, from all or from none; a row a request';

CREATE FUNCTION @extschema@.rl_check_all(requests jsonb, throws boolean DEFAULT false)
RETURNS TABLE (
    n integer, name text, key text, ok boolean, allows boolean, retry_after double precision,
    retry_at timestamptz, remaining double precision, capacity double precision, reset_at timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 10
AS 'MODULE_PATHNAME', 'rl_check_all';
COMMENT ON FUNCTION @extschema@.rl_check_all IS 'tells whether rl_limit_all would pass: consumes, locks and writes nothing';

CREATE FUNCTION @extschema@.rl_reset(name text, key text DEFAULT '')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_reset';
COMMENT ON FUNCTION @extschema@.rl_reset IS 'makes a rate limit full again, debt forgotten; false if there was nothing to forget';

CREATE FUNCTION @extschema@.rl_reset_all(name text)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_reset_all';
COMMENT ON FUNCTION @extschema@.rl_reset_all IS 'makes a rate limit full again for every key; returns for how many there was something to forget';

CREATE FUNCTION @extschema@.rl_define(name text, config jsonb, key text DEFAULT '')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_define';
COMMENT ON FUNCTION @extschema@.rl_define IS 'creates or replaces a named rate limit, or its override for one key; false if it stood there already';

CREATE FUNCTION @extschema@.rl_undefine(name text, key text DEFAULT '')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_undefine';
COMMENT ON FUNCTION @extschema@.rl_undefine IS 'drops a named rate limit, or its override for one key; false if there was none; state stays until reset';

CREATE FUNCTION @extschema@.rl_status(name text DEFAULT NULL, key text DEFAULT NULL)
RETURNS TABLE (
    name text, key text, kind text, remaining double precision, capacity double precision,
    retry_at timestamptz, as_of timestamptz, shards integer, limited boolean)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_status';
COMMENT ON FUNCTION @extschema@.rl_status IS 'what every rate limit in use holds now, a row a name and key; of one name or key if given';

CREATE FUNCTION @extschema@.rl_prune(max_rows integer DEFAULT 10000, undefined_idle interval DEFAULT NULL)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_prune';
COMMENT ON FUNCTION @extschema@.rl_prune IS 'deletes a batch of rows that say no more than no row would; returns how many';

CREATE FUNCTION @extschema@.rl_token_bucket(
    rate double precision, period interval, capacity double precision DEFAULT NULL,
    max_reserved double precision DEFAULT NULL, shards integer DEFAULT NULL)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'rl_token_bucket';
COMMENT ON FUNCTION @extschema@.rl_token_bucket IS 'config of a token bucket: rate tokens a period flow in steadily, up to capacity';

CREATE FUNCTION @extschema@.rl_fixed_window(
    rate double precision, period interval, capacity double precision DEFAULT NULL,
    max_reserved double precision DEFAULT NULL, shards integer DEFAULT NULL,
    start timestamptz DEFAULT NULL, first_request boolean DEFAULT NULL, timezone text DEFAULT NULL)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'rl_fixed_window';
COMMENT ON FUNCTION @extschema@.rl_fixed_window IS 'config of a fixed window: rate tokens arrive when each window turns, up to capacity';

CREATE FUNCTION @extschema@.rl_sliding_window(rate double precision, period interval)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'rl_sliding_window';
COMMENT ON FUNCTION @extschema@.rl_sliding_window IS 'config of a sliding window: about rate tokens in any period, from two counters';

CREATE FUNCTION @extschema@.rl_sliding_log(rate double precision, period interval)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'rl_sliding_log';
COMMENT ON FUNCTION @extschema@.rl_sliding_log IS 'config of a sliding log: at most rate tokens in any period, exactly';

-- Volatile: it reads the latest definitions, and the clock.
CREATE FUNCTION @extschema@.rl_headers(
    name text, result @extschema@.rl_result, style text DEFAULT 'ietf', config jsonb DEFAULT NULL)
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_headers';
COMMENT ON FUNCTION @extschema@.rl_headers IS 'the outcome of a call as HTTP headers: style ietf, github or postgrest';

CREATE FUNCTION @extschema@.rl_calculate(
    config jsonb, state jsonb, at timestamptz, count double precision DEFAULT 1, reserve boolean DEFAULT false,
    OUT ok boolean, OUT retry_after double precision, OUT retry_at timestamptz,
    OUT remaining double precision, OUT state jsonb)
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'rl_calculate';
COMMENT ON FUNCTION @extschema@.rl_calculate IS 'the algorithm alone: what a limit in this state answers at that time, and its state afterwards';

CREATE FUNCTION @extschema@.rl_trigger()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'rl_trigger';
COMMENT ON FUNCTION @extschema@.rl_trigger IS 'trigger: takes tokens from the rate limit of its first argument, for the rows of the event; options key=<column>, count=<column>';

-- Definitions written by plain SQL are checked before they are stored; after it every session's
-- memory of them is cleared. Row triggers that fire always: logical replication and restores write
-- here as well. Told only afterwards, so that nothing remembers the old row in between.
CREATE FUNCTION @extschema@.rl_config_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'rl_config_changed';
COMMENT ON FUNCTION @extschema@.rl_config_changed IS 'rate limiter, internal: checks a definition and tells every session';

CREATE TRIGGER rl_config_check BEFORE INSERT OR UPDATE ON @extschema@.rl_config
    FOR EACH ROW EXECUTE FUNCTION @extschema@.rl_config_changed();
ALTER TABLE @extschema@.rl_config ENABLE ALWAYS TRIGGER rl_config_check;
COMMENT ON TRIGGER rl_config_check ON @extschema@.rl_config IS 'checks a definition';

CREATE TRIGGER rl_config_changed AFTER INSERT OR UPDATE OR DELETE ON @extschema@.rl_config
    FOR EACH ROW EXECUTE FUNCTION @extschema@.rl_config_changed();
ALTER TABLE @extschema@.rl_config ENABLE ALWAYS TRIGGER rl_config_changed;
COMMENT ON TRIGGER rl_config_changed ON @extschema@.rl_config IS 'tells every session that definitions changed';

CREATE TRIGGER rl_config_truncated AFTER TRUNCATE ON @extschema@.rl_config
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.rl_config_changed();
ALTER TABLE @extschema@.rl_config ENABLE ALWAYS TRIGGER rl_config_truncated;
COMMENT ON TRIGGER rl_config_truncated ON @extschema@.rl_config IS 'tells every session that definitions changed';

-- finalize
-- Who may do what: nobody but the database's owner, and the role that installs, who may grant it
-- on. The pure functions (builders, rl_calculate) stay open.

REVOKE ALL ON FUNCTION
    @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_credit, @extschema@.rl_limit_all,
    @extschema@.rl_check_all, @extschema@.rl_reset, @extschema@.rl_reset_all, @extschema@.rl_define,
    @extschema@.rl_undefine, @extschema@.rl_status, @extschema@.rl_prune, @extschema@.rl_headers,
    @extschema@.rl_trigger, @extschema@.rl_config_changed
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_credit, @extschema@.rl_limit_all,
    @extschema@.rl_check_all, @extschema@.rl_reset, @extschema@.rl_reset_all, @extschema@.rl_define,
    @extschema@.rl_undefine, @extschema@.rl_status, @extschema@.rl_prune, @extschema@.rl_headers,
    @extschema@.rl_trigger
    TO pg_database_owner WITH GRANT OPTION;

-- A direct grant where it is needed. It is taken out of the extension's initial privileges again:
-- as one of those it would be missing from dumps, and once the role is dropped it would stand in
-- them as a REVOKE that fails on restore.
-- Operators are qualified and their operands cast: the schema to install into is on the search path
-- here, and this runs as a superuser.
DO LANGUAGE plpgsql $$
DECLARE
    installer oid := $installer$@extowner@$installer$::pg_catalog.regrole::pg_catalog.oid;
BEGIN
    IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE oid OPERATOR(pg_catalog.=) installer)
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_database
                       WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
                         AND datdba OPERATOR(pg_catalog.=) installer) THEN
        GRANT EXECUTE ON FUNCTION
            @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_credit, @extschema@.rl_limit_all,
            @extschema@.rl_check_all, @extschema@.rl_reset, @extschema@.rl_reset_all, @extschema@.rl_define,
            @extschema@.rl_undefine, @extschema@.rl_status, @extschema@.rl_prune, @extschema@.rl_headers,
            @extschema@.rl_trigger
            TO @extowner@ WITH GRANT OPTION;
        UPDATE pg_catalog.pg_init_privs AS init
        SET initprivs = (
            SELECT pg_catalog.array_agg(item)
            FROM pg_catalog.unnest(init.initprivs) AS item,
                 LATERAL pg_catalog.aclexplode(ARRAY[item]) AS acl
            WHERE acl.grantee OPERATOR(pg_catalog.<>) installer)
        WHERE init.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
          AND init.objoid OPERATOR(pg_catalog.=) ANY (ARRAY[
            '@extschema@.rl_limit'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_check'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_credit'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_limit_all'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_check_all'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_reset'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_reset_all'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_define'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_undefine'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_status'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_prune'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_headers'::pg_catalog.regproc::pg_catalog.oid,

            '@extschema@.rl_trigger'::pg_catalog.regproc::pg_catalog.oid]);
    END IF;
END
$$;


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

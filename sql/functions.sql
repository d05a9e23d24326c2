-- The SQL functions, by subject; their bodies are in src/functions/, a file for each subject, under the same names.
-- Signatures are frozen within a major version, except that the types of results get attributes at their end; defaults
-- are constants, so that a distributed planner can delegate a call.
--
-- A function that writes, or reads the latest state, is VOLATILE and PARALLEL UNSAFE; one that only computes is
-- IMMUTABLE. The cost is about that of a call, and above a PL/pgSQL function's (100), so that the planner evaluates it
-- after plain conditions. A cost of thousands would turn JIT on for a statement that calls once for some thousand rows.

-- The calls of one limit.

CREATE FUNCTION @extschema@.rl_limit(
    name text, key text DEFAULT '', count double precision DEFAULT 1, reserve boolean DEFAULT false,
    throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS @extschema@.rl_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_limit IS 'takes count tokens from a rate limit, inside the caller''s transaction';

CREATE FUNCTION @extschema@.rl_check(
    name text, key text DEFAULT '', count double precision DEFAULT 1, reserve boolean DEFAULT false,
    throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS @extschema@.rl_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_check IS 'reports whether rl_limit would succeed; takes no tokens, locks and writes nothing';

CREATE FUNCTION @extschema@.rl_take(
    name text, key text DEFAULT '', count double precision DEFAULT 1, at_least double precision DEFAULT 1,
    throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS @extschema@.rl_take_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_take IS 'takes as many tokens as a rate limit has, up to count, or none if it has fewer than at_least; returns how many';

CREATE FUNCTION @extschema@.rl_credit(
    name text, key text DEFAULT '', count double precision DEFAULT 1, taken_at timestamptz DEFAULT NULL,
    config jsonb DEFAULT NULL)
RETURNS @extschema@.rl_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_credit IS 'gives back count tokens that were taken but not used; a negative count takes tokens unconditionally';

-- Several limits at once: all or nothing.

CREATE FUNCTION @extschema@.rl_limit_all(requests jsonb, throws boolean DEFAULT false)
RETURNS SETOF @extschema@.rl_limit_all_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 ROWS 10 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_limit_all IS 'takes tokens from several rate limits, all or nothing; returns one row per request';

CREATE FUNCTION @extschema@.rl_check_all(requests jsonb, throws boolean DEFAULT false)
RETURNS SETOF @extschema@.rl_limit_all_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 ROWS 10 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_check_all IS 'reports whether rl_limit_all would succeed; takes no tokens, locks and writes nothing';

-- Several requests in one call, each on its own.

CREATE FUNCTION @extschema@.rl_limit_each(requests jsonb, lock_wait interval DEFAULT NULL)
RETURNS SETOF @extschema@.rl_limit_all_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 ROWS 100 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_limit_each IS 'takes tokens for each request on its own, as rl_limit; a request that is wrong, or whose row is locked for longer than lock_wait, has its error; returns one row per request';

-- Holds: takes of as many tokens as a call may use, which give back the unused ones.

CREATE FUNCTION @extschema@.rl_hold(
    name text, key text DEFAULT '', count double precision DEFAULT 1, ttl interval DEFAULT '10 minutes',
    id text DEFAULT NULL, at_least double precision DEFAULT NULL, on_expiry text DEFAULT 'refund',
    reserve boolean DEFAULT false, throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS @extschema@.rl_hold_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_hold IS 'takes count tokens from a rate limit until rl_settle says how many of them were used, or ttl has passed; the same id again is the same hold';

CREATE FUNCTION @extschema@.rl_settle(hold text, used double precision DEFAULT NULL)
RETURNS @extschema@.rl_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_settle IS 'ends a hold: gives back what was not used, or takes what was used beyond it; used NULL: all of it; ok is false if there is no such hold, true without one';

CREATE FUNCTION @extschema@.rl_hold_all(
    requests jsonb, ttl interval DEFAULT '10 minutes', id text DEFAULT NULL, on_expiry text DEFAULT 'refund',
    throws boolean DEFAULT false)
RETURNS SETOF @extschema@.rl_hold_all_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 ROWS 10 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_hold_all IS 'holds tokens of several rate limits and slots of concurrency limits, all or nothing, as one hold; returns one row per request';

CREATE FUNCTION @extschema@.rl_settle_all(hold text, used jsonb DEFAULT NULL)
RETURNS SETOF @extschema@.rl_settle_all_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 ROWS 10 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_settle_all IS 'ends a hold of several rate limits; used is a number for all, or an object by name; no rows if there is no such hold';

-- Leases of concurrency limits.

CREATE FUNCTION @extschema@.rl_acquire(
    name text, key text DEFAULT '', count double precision DEFAULT 1, throws boolean DEFAULT false,
    config jsonb DEFAULT NULL)
RETURNS @extschema@.rl_acquire_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_acquire IS 'takes count slots of a concurrency limit; returns a lease, or when to retry';

CREATE FUNCTION @extschema@.rl_extend(lease text, config jsonb DEFAULT NULL)
RETURNS timestamptz
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_extend IS 'extends a lease to its full ttl from now; returns when it expires, NULL if it had expired or was released; without a lease the latest time';

CREATE FUNCTION @extschema@.rl_release(lease text, config jsonb DEFAULT NULL)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_release IS 'releases the slots of a lease; false if it had expired or was released; true without a lease';

-- Named limits.

CREATE FUNCTION @extschema@.rl_define(name text, config jsonb, key text DEFAULT '')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_define IS 'creates or replaces a rate limit, or its override for one key; false if nothing changed';

CREATE FUNCTION @extschema@.rl_undefine(name text, key text DEFAULT '')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_undefine IS 'drops a rate limit, or its override for one key; keeps the state; false if there was none';

-- Check definitions written by plain SQL, and clear the caches of all sessions. They fire for each row and ALWAYS,
-- because logical replication and restores write here as well. AFTER, so that no session caches the old row in between.

CREATE FUNCTION @extschema@.rl_config_changed()
RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_config_changed IS 'rate limiter, internal: checks a definition and invalidates every session''s definition cache';

CREATE TRIGGER rl_config_check BEFORE INSERT OR UPDATE ON @extschema@.rl_config
    FOR EACH ROW EXECUTE FUNCTION @extschema@.rl_config_changed();
ALTER TABLE @extschema@.rl_config ENABLE ALWAYS TRIGGER rl_config_check;
COMMENT ON TRIGGER rl_config_check ON @extschema@.rl_config IS 'checks a definition';

CREATE TRIGGER rl_config_changed AFTER INSERT OR UPDATE OR DELETE ON @extschema@.rl_config
    FOR EACH ROW EXECUTE FUNCTION @extschema@.rl_config_changed();
ALTER TABLE @extschema@.rl_config ENABLE ALWAYS TRIGGER rl_config_changed;
COMMENT ON TRIGGER rl_config_changed ON @extschema@.rl_config IS 'invalidates every session''s definition cache';

CREATE TRIGGER rl_config_truncated AFTER TRUNCATE ON @extschema@.rl_config
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.rl_config_changed();
ALTER TABLE @extschema@.rl_config ENABLE ALWAYS TRIGGER rl_config_truncated;
COMMENT ON TRIGGER rl_config_truncated ON @extschema@.rl_config IS 'invalidates every session''s definition cache';

-- Blocks: keys that are denied however many tokens are left.

CREATE FUNCTION @extschema@.rl_block(
    name text, key text DEFAULT '', duration interval DEFAULT NULL, until timestamptz DEFAULT NULL,
    reason text DEFAULT NULL)
RETURNS timestamptz
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_block IS 'blocks a key of a rate limit for a duration or until a time (infinity: indefinitely), for a reason that rl_status shows; returns the end of the block';

CREATE FUNCTION @extschema@.rl_unblock(name text, key text DEFAULT '')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_unblock IS 'ends the block of a key; false if it was not blocked';

-- As on rl_config: ALWAYS, because logical replication and restores write here as well.

CREATE FUNCTION @extschema@.rl_blocks_changed()
RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_blocks_changed IS 'rate limiter, internal: checks a block and invalidates every session''s definition cache';

CREATE TRIGGER rl_blocks_changed AFTER INSERT OR UPDATE OR DELETE ON @extschema@.rl_blocks
    FOR EACH ROW EXECUTE FUNCTION @extschema@.rl_blocks_changed();
ALTER TABLE @extschema@.rl_blocks ENABLE ALWAYS TRIGGER rl_blocks_changed;
COMMENT ON TRIGGER rl_blocks_changed ON @extschema@.rl_blocks IS 'checks a block and invalidates every session''s definition cache';

CREATE TRIGGER rl_blocks_truncated AFTER TRUNCATE ON @extschema@.rl_blocks
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.rl_blocks_changed();
ALTER TABLE @extschema@.rl_blocks ENABLE ALWAYS TRIGGER rl_blocks_truncated;
COMMENT ON TRIGGER rl_blocks_truncated ON @extschema@.rl_blocks IS 'invalidates every session''s definition cache';

-- Delete state.

CREATE FUNCTION @extschema@.rl_reset(name text, key text DEFAULT '')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_reset IS 'makes a rate limit full again and cancels its debt; false if there was nothing to reset';

CREATE FUNCTION @extschema@.rl_reset_keys(name text)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_reset_keys IS 'makes a rate limit full again for every key; returns how many were reset';

CREATE FUNCTION @extschema@.rl_forget(key text)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_forget IS 'erases a key of all rate limits: state, leases, overrides, blocks and counters; returns how many states, overrides and blocks';

CREATE FUNCTION @extschema@.rl_prune(max_rows integer DEFAULT 10000, undefined_idle interval DEFAULT NULL)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_prune IS 'gives back the tokens of expired holds, and deletes a batch of expired blocks, holds that expired a day ago and idle rows; returns how many';

-- The current state of limits.

CREATE FUNCTION @extschema@.rl_status(
    name text DEFAULT NULL, key text DEFAULT NULL, limited boolean DEFAULT false, max_rows integer DEFAULT NULL,
    after_name text DEFAULT NULL, after_key text DEFAULT NULL)
RETURNS SETOF @extschema@.rl_status_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_status IS 'current state of the rate limits in use, one row per name and key, in their order; of one name or key if given; limited: only of keys that are denied now; at most max_rows, after the last name and key of the page before';

CREATE FUNCTION @extschema@.rl_value(name text, key text DEFAULT '', config jsonb DEFAULT NULL)
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_value IS 'config and state of a rate limit, as rl_calculate accepts them; the time, and until when the key is blocked';

-- Numbers about all limits.

CREATE FUNCTION @extschema@.rl_stats()
RETURNS SETOF @extschema@.rl_stats_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_stats IS 'calls that each rate limit allowed and denied, and tokens taken';

CREATE FUNCTION @extschema@.rl_stats_reset(name text DEFAULT NULL)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_stats_reset IS 'resets the counters of one rate limit, or of all; returns how many were reset';

CREATE FUNCTION @extschema@.rl_top_denied(name text DEFAULT NULL, max_rows integer DEFAULT 10)
RETURNS SETOF @extschema@.rl_top_denied_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 ROWS 10 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_top_denied IS 'most-denied keys of one rate limit, or of all; the exact number of denials is from denied - overcount to denied';

CREATE FUNCTION @extschema@.rl_memory()
RETURNS @extschema@.rl_memory_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_memory IS 'shared memory of limits in memory: keys stored, capacity, keys evicted, and the configured ratelimit.memory_keys';

CREATE FUNCTION @extschema@.rl_save() RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_save IS 'saves limits in memory to the table now; returns how many keys could not be saved, such as those whose row is locked';

-- Outcomes as HTTP headers.

CREATE FUNCTION @extschema@.rl_headers(
    name text, result record, key text DEFAULT '', style text DEFAULT 'ietf', config jsonb DEFAULT NULL)
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_headers IS 'HTTP headers for the result of a call, any row with its columns; style ietf, github or postgrest';

CREATE FUNCTION @extschema@.rl_headers_all(results jsonb, style text DEFAULT 'ietf')
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_headers_all IS 'HTTP headers for the rows of rl_limit_all or rl_check_all, as a JSON array; style ietf, github or postgrest';

-- Limits on the rows that statements write.

CREATE FUNCTION @extschema@.rl_trigger()
RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_trigger IS 'trigger: takes tokens for the rows written from the rate limit named by its first argument, or by a column (name=<column>); options key=<column>[,<column>], count=<column>, message=<text>';

CREATE FUNCTION @extschema@.rl_key(VARIADIC parts text[])
RETURNS text
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_key IS 'key made of several texts, as a JSON array: that of a trigger with several columns';

-- Computed by PostgreSQL's functions for network addresses; a query inlines it.
CREATE FUNCTION @extschema@.rl_address_key(address inet, masklen integer DEFAULT 64)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN abbrev(CASE
        WHEN set_masklen(address, -1) <<= inet '::ffff:0:0/96' THEN inet '0.0.0.0' + (address - inet '::ffff:0:0')
        WHEN family(address) = 6 THEN network(set_masklen(address, masklen))::inet
        ELSE set_masklen(address, -1) END);
COMMENT ON FUNCTION @extschema@.rl_address_key IS 'key of a client''s address: IPv4, also where IPv6 maps it, as it is; of IPv6, the network of masklen bits';

-- The algorithm alone, for one call and for a log.

CREATE FUNCTION @extschema@.rl_calculate(
    config jsonb, state jsonb, at timestamptz, count double precision DEFAULT 1, reserve boolean DEFAULT false)
RETURNS @extschema@.rl_calculate_result
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_calculate IS 'evaluates a call on a given state at a given time, without side effects; returns the result and the new state';

CREATE FUNCTION @extschema@.rl_replay(
    config jsonb, at timestamptz, count double precision DEFAULT 1, reserve boolean DEFAULT false)
RETURNS @extschema@.rl_result
LANGUAGE c WINDOW IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_replay IS 'window function: replays a log of requests against a limit, OVER (PARTITION BY key ORDER BY at)';

-- The builders of configs: one function per kind.

CREATE FUNCTION @extschema@.rl_token_bucket(
    rate double precision, period interval, capacity double precision DEFAULT NULL,
    max_reserved double precision DEFAULT NULL, shards integer DEFAULT NULL,
    keyed boolean DEFAULT NULL, store text DEFAULT NULL, save interval DEFAULT NULL, enforce boolean DEFAULT NULL)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_token_bucket IS 'config of a token bucket: rate tokens per period, refilled continuously up to capacity';

CREATE FUNCTION @extschema@.rl_fixed_window(
    rate double precision, period interval, capacity double precision DEFAULT NULL,
    max_reserved double precision DEFAULT NULL, shards integer DEFAULT NULL, start timestamptz DEFAULT NULL,
    first_request boolean DEFAULT NULL, timezone text DEFAULT NULL, overage boolean DEFAULT NULL,
    keyed boolean DEFAULT NULL, store text DEFAULT NULL, save interval DEFAULT NULL, enforce boolean DEFAULT NULL)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_fixed_window IS 'config of a fixed window: rate tokens are added at the start of each window, up to capacity';

CREATE FUNCTION @extschema@.rl_sliding_window(
    rate double precision, period interval,
    keyed boolean DEFAULT NULL, store text DEFAULT NULL, save interval DEFAULT NULL, enforce boolean DEFAULT NULL)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_sliding_window IS 'config of a sliding window: about rate tokens in any period, from two counters';

CREATE FUNCTION @extschema@.rl_sliding_log(
    rate double precision, period interval, keyed boolean DEFAULT NULL, enforce boolean DEFAULT NULL)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_sliding_log IS 'config of a sliding log: at most rate tokens in any period, exactly';

CREATE FUNCTION @extschema@.rl_concurrency(
    slots integer, ttl interval,
    keyed boolean DEFAULT NULL, store text DEFAULT NULL, save interval DEFAULT NULL, enforce boolean DEFAULT NULL)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_concurrency IS 'config of a concurrency limit: at most slots leases at a time, each of which expires after ttl';

CREATE FUNCTION @extschema@.rl_unlimited(keyed boolean DEFAULT NULL)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION @extschema@.rl_unlimited IS 'config without a limit, for exempt keys and names';

-- The version.

CREATE FUNCTION @extschema@.rl_version()
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN '1.0.0';
COMMENT ON FUNCTION @extschema@.rl_version IS 'version of the rate limiter';

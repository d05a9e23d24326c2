-- Functions that grow: what PostgreSQL has stored as an expression would call them as they were. Nothing has changed yet.
DO LANGUAGE plpgsql $$
DECLARE
    users text := (
        SELECT pg_catalog.string_agg(pg_catalog.format('%s uses %s', what.name, grows.function), E'\n' ORDER BY what.name)
        FROM pg_catalog.unnest(ARRAY[
            '@extschema@.rl_status(text, text)', '@extschema@.rl_headers(text, @extschema@.rl_result, text, jsonb)'
        ]::pg_catalog.regprocedure[]) AS grows (function)
        JOIN pg_catalog.pg_depend AS depends
             ON depends.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
            AND depends.refobjid OPERATOR(pg_catalog.=) grows.function::pg_catalog.oid
        LEFT JOIN pg_catalog.pg_rewrite AS rule
             ON depends.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid
            AND rule.oid OPERATOR(pg_catalog.=) depends.objid AND rule.rulename OPERATOR(pg_catalog.=) '_RETURN'::pg_catalog.name
        CROSS JOIN LATERAL (
            SELECT coalesce(pg_catalog.pg_describe_object('pg_catalog.pg_class'::pg_catalog.regclass, rule.ev_class, 0),
                            pg_catalog.pg_describe_object(depends.classid, depends.objid, depends.objsubid))
        ) AS what (name));
BEGIN
    IF users IS NOT NULL THEN
        RAISE EXCEPTION 'functions have more arguments or columns in 1.1.0, and other objects use them'
            USING ERRCODE = 'dependent_objects_still_exist', DETAIL = users,
                  HINT = 'Drop these objects, update the extension, and create them again.';
    END IF;
END
$$;

-- One statement: no weaker lock comes before its own. It rewrites no row.
-- At a fill factor of 70, a thousand hot rows outgrew their pages.
ALTER TABLE @extschema@.rateLimits ADD COLUMN added double precision, ADD COLUMN expires timestamptz, SET (fillfactor = 40);

-- At a cost of 10000 the calls of one statement over some thousand rows turned JIT on.
ALTER FUNCTION @extschema@.rl_limit(text, text, float8, boolean, boolean, jsonb) COST 200;
ALTER FUNCTION @extschema@.rl_check(text, text, float8, boolean, boolean, jsonb) COST 200;
ALTER FUNCTION @extschema@.rl_credit(text, text, float8, timestamptz, jsonb) COST 200;
ALTER FUNCTION @extschema@.rl_limit_all(jsonb, boolean) COST 200;
ALTER FUNCTION @extschema@.rl_check_all(jsonb, boolean) COST 200;
ALTER FUNCTION @extschema@.rl_reset(text, text) COST 200;
ALTER FUNCTION @extschema@.rl_reset_all(text) COST 200;
ALTER FUNCTION @extschema@.rl_define(text, jsonb, text) COST 200;
ALTER FUNCTION @extschema@.rl_undefine(text, text) COST 200;
ALTER FUNCTION @extschema@.rl_status(text, text) COST 200;
ALTER FUNCTION @extschema@.rl_prune(integer, interval) COST 200;
ALTER FUNCTION @extschema@.rl_headers(text, @extschema@.rl_result, text, jsonb) COST 200;

-- Numbers about all limits.
CREATE FUNCTION @extschema@.rl_memory(OUT keys bigint, OUT room bigint, OUT inline_keys bigint, OUT inline_room bigint, OUT bytes bigint, OUT dropped_idle bigint, OUT dropped_live bigint, OUT since timestamptz, OUT configured bigint, OUT dropped_calls bigint, OUT saved_keys bigint, OUT saved_room bigint, OUT saved_bytes bigint, OUT unsaved_keys bigint, OUT unsaved_since timestamptz, OUT save_error text,
    OUT writer_pid integer, OUT writer_since timestamptz)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_memory';
COMMENT ON FUNCTION @extschema@.rl_memory() IS 'shared memory of limits in memory: keys stored, capacity, keys evicted, and the configured ratelimit.memory_keys';

CREATE FUNCTION @extschema@.rl_save() RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_save';
COMMENT ON FUNCTION @extschema@.rl_save() IS 'saves limits in memory to the table now; returns how many keys could not be saved, such as those whose row is locked';
CREATE FUNCTION @extschema@.rl_stats()
RETURNS TABLE (name text, allowed bigint, denied bigint, denied_in_dry_run bigint, tokens double precision, since timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_stats';
COMMENT ON FUNCTION @extschema@.rl_stats() IS 'calls that each rate limit allowed and denied, and tokens taken';
CREATE FUNCTION @extschema@.rl_stats_reset(name text DEFAULT NULL)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_stats_reset';
COMMENT ON FUNCTION @extschema@.rl_stats_reset(text) IS 'resets the counters of one rate limit, or of all; returns how many were reset';
CREATE FUNCTION @extschema@.rl_top_denied(name text DEFAULT NULL, max_rows integer DEFAULT 10)
RETURNS TABLE (name text, key text, denied bigint, error bigint)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 ROWS 10
AS 'MODULE_PATHNAME', 'rl_top_denied';
COMMENT ON FUNCTION @extschema@.rl_top_denied(text, integer) IS 'most-denied keys of one rate limit, or of all; the exact number of denials is from denied - error to denied';

-- Functions that grow take over the arguments and columns of one that is declared as they are now. So they keep their
-- owner and grants, which others than the owner may have given.
CREATE FUNCTION @extschema@.rl_status_1_1_0(name text DEFAULT NULL, key text DEFAULT NULL)
RETURNS TABLE (
    name text, key text, kind text, remaining double precision, capacity double precision, retry_at timestamptz,
    as_of timestamptz, shards integer, limited boolean, limited_by text, block_reason text, held double precision)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_status';
CREATE FUNCTION @extschema@.rl_headers_1_1_0(
    name text, result @extschema@.rl_result, style text DEFAULT 'ietf', config jsonb DEFAULT NULL,
    key text DEFAULT NULL)
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_headers';
UPDATE pg_catalog.pg_proc AS function
SET (pronargs, pronargdefaults, proargtypes, proallargtypes, proargmodes, proargnames, proargdefaults)
  = (SELECT new.pronargs, new.pronargdefaults, new.proargtypes, new.proallargtypes, new.proargmodes, new.proargnames,
            new.proargdefaults
     FROM pg_catalog.pg_proc AS new WHERE new.oid OPERATOR(pg_catalog.=) grows.as_in::pg_catalog.oid)
FROM (VALUES
    ('@extschema@.rl_status(text, text)'::pg_catalog.regprocedure, '@extschema@.rl_status_1_1_0(text, text)'::pg_catalog.regprocedure),
    ('@extschema@.rl_headers(text, @extschema@.rl_result, text, jsonb)'::pg_catalog.regprocedure, '@extschema@.rl_headers_1_1_0(text, @extschema@.rl_result, text, jsonb, text)'::pg_catalog.regprocedure)
) AS grows (function, as_in)
WHERE function.oid OPERATOR(pg_catalog.=) grows.function::pg_catalog.oid;
DROP FUNCTION @extschema@.rl_status_1_1_0(text, text), @extschema@.rl_headers_1_1_0(text, @extschema@.rl_result, text, jsonb, text);

-- Keys that are denied however many tokens are left.
CREATE TABLE @extschema@.rl_blocks (
    name   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL DEFAULT '',
    until  timestamptz NOT NULL,
    reason text,
    PRIMARY KEY (name, key)
);
-- The role that updates may not be the one that installed.
DO LANGUAGE plpgsql $$
BEGIN
    EXECUTE pg_catalog.format('ALTER TABLE @extschema@.rl_blocks OWNER TO %I',
                              (SELECT pg_catalog.pg_get_userbyid(relowner) FROM pg_catalog.pg_class
                               WHERE oid OPERATOR(pg_catalog.=) '@extschema@.rl_config'::pg_catalog.regclass::pg_catalog.oid));
END
$$;
COMMENT ON TABLE @extschema@.rl_blocks IS 'rate limiter: keys that are denied until a given time, however many tokens are left';
COMMENT ON COLUMN @extschema@.rl_blocks.name IS 'name of the limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_blocks.key IS 'key that is blocked; up to 1024 bytes, empty for a limit without keys';
COMMENT ON COLUMN @extschema@.rl_blocks.until IS 'end of the block; infinity: blocked indefinitely';
COMMENT ON COLUMN @extschema@.rl_blocks.reason IS 'why the key is blocked, for rl_status; at most 200 bytes';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.rl_blocks', '');
CREATE FUNCTION @extschema@.rl_block(name text, key text DEFAULT '', duration interval DEFAULT NULL, until timestamptz DEFAULT NULL, reason text DEFAULT NULL)
RETURNS timestamptz
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_block';
COMMENT ON FUNCTION @extschema@.rl_block(text, text, interval, timestamptz, text) IS 'blocks a key of a rate limit for a duration or until a time (infinity: indefinitely), for a reason that rl_status shows; returns the end of the block';
CREATE FUNCTION @extschema@.rl_unblock(name text, key text DEFAULT '')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_unblock';
COMMENT ON FUNCTION @extschema@.rl_unblock(text, text) IS 'ends the block of a key; false if it was not blocked';
CREATE FUNCTION @extschema@.rl_forget(key text)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_forget';
COMMENT ON FUNCTION @extschema@.rl_forget(text) IS 'erases a key of all rate limits: state, leases, overrides, blocks and counters; returns how many states, overrides and blocks';
CREATE FUNCTION @extschema@.rl_blocks_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'rl_blocks_changed';
COMMENT ON FUNCTION @extschema@.rl_blocks_changed() IS 'rate limiter, internal: checks a block and invalidates every session''s definition cache';
CREATE TRIGGER rl_blocks_changed AFTER INSERT OR UPDATE OR DELETE ON @extschema@.rl_blocks
    FOR EACH ROW EXECUTE FUNCTION @extschema@.rl_blocks_changed();
ALTER TABLE @extschema@.rl_blocks ENABLE ALWAYS TRIGGER rl_blocks_changed;
COMMENT ON TRIGGER rl_blocks_changed ON @extschema@.rl_blocks IS 'checks a block and invalidates every session''s definition cache';

CREATE TRIGGER rl_blocks_truncated AFTER TRUNCATE ON @extschema@.rl_blocks
    FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.rl_blocks_changed();
ALTER TABLE @extschema@.rl_blocks ENABLE ALWAYS TRIGGER rl_blocks_truncated;
COMMENT ON TRIGGER rl_blocks_truncated ON @extschema@.rl_blocks IS 'invalidates every session''s definition cache';

-- Takes of as many tokens as there are.
CREATE FUNCTION @extschema@.rl_take(name text, key text DEFAULT '', at_most double precision DEFAULT 1, at_least double precision DEFAULT 1, throws boolean DEFAULT false, config jsonb DEFAULT NULL, OUT ok boolean, OUT taken double precision, OUT retry_after double precision, OUT retry_at timestamptz, OUT remaining double precision, OUT capacity double precision, OUT reset_at timestamptz)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_take';
COMMENT ON FUNCTION @extschema@.rl_take(text, text, float8, float8, boolean, jsonb) IS 'takes as many tokens as a rate limit has, up to at_most, or none if it has fewer than at_least; returns how many';

-- Holds: takes of as many tokens as a call may use, of which it gives back what it did not use.
-- A row of a hold is inserted and deleted, and seldom updated between: most of a page is used.
CREATE TABLE @extschema@.rl_holds (
    id          text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL DEFAULT '',
    count       double precision NOT NULL,
    old         double precision NOT NULL DEFAULT 0,
    back        double precision NOT NULL DEFAULT 0,
    taken_at    timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    charge      boolean NOT NULL,
    config      jsonb,
    PRIMARY KEY (id, name, key)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX rl_holds_of_key ON @extschema@.rl_holds (name, key, charge, expires_at);
DO LANGUAGE plpgsql $$
BEGIN
    EXECUTE pg_catalog.format('ALTER TABLE @extschema@.rl_holds OWNER TO %I',
                              (SELECT pg_catalog.pg_get_userbyid(relowner) FROM pg_catalog.pg_class
                               WHERE oid OPERATOR(pg_catalog.=) '@extschema@.rl_config'::pg_catalog.regclass::pg_catalog.oid));
END
$$;
COMMENT ON TABLE @extschema@.rl_holds IS 'rate limiter: tokens that are held until it is known how many were used, one row per hold, name and key';
COMMENT ON COLUMN @extschema@.rl_holds.id IS 'id of the hold; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_holds.name IS 'name of the limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_holds.key IS 'key, such as a user or a tenant; up to 1024 bytes, empty for a limit without keys';
COMMENT ON COLUMN @extschema@.rl_holds.count IS 'tokens that the hold has taken and not given back; concurrency: slots';
COMMENT ON COLUMN @extschema@.rl_holds.old IS 'of these, tokens that can''t come back: of ended windows, or after its expiry';
COMMENT ON COLUMN @extschema@.rl_holds.back IS 'tokens that came back when it expired';
COMMENT ON COLUMN @extschema@.rl_holds.taken_at IS 'when the tokens beyond old were taken; concurrency: the id of its lease (a number, stored as a time)';
COMMENT ON COLUMN @extschema@.rl_holds.expires_at IS 'when it expires; a settlement counts for a day more';
COMMENT ON COLUMN @extschema@.rl_holds.charge IS 'whether its tokens stay taken when it expires';
COMMENT ON COLUMN @extschema@.rl_holds.config IS 'config that the call passed; NULL: the name is defined';
SELECT pg_catalog.pg_extension_config_dump('@extschema@.rl_holds', '');
CREATE FUNCTION @extschema@.rl_hold(
    name text, key text DEFAULT '', count double precision DEFAULT 1, ttl interval DEFAULT '10 minutes', id text DEFAULT NULL,
    at_least double precision DEFAULT NULL, on_expiry text DEFAULT 'refund', reserve boolean DEFAULT false,
    throws boolean DEFAULT false, config jsonb DEFAULT NULL,
    OUT ok boolean, OUT hold text, OUT held double precision, OUT expires_at timestamptz, OUT retry_after double precision,
    OUT retry_at timestamptz, OUT remaining double precision, OUT capacity double precision, OUT reset_at timestamptz)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_hold';
COMMENT ON FUNCTION @extschema@.rl_hold(text, text, float8, interval, text, float8, text, boolean, boolean, jsonb) IS 'takes count tokens from a rate limit until rl_settle says how many of them were used, or ttl has passed; the same id again is the same hold';

CREATE FUNCTION @extschema@.rl_settle(hold text, used double precision DEFAULT NULL)
RETURNS @extschema@.rl_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_settle';
COMMENT ON FUNCTION @extschema@.rl_settle(text, float8) IS 'ends a hold: gives back what was not used, or takes what was used beyond it; used NULL: all of it; ok is false if there is no such hold';

CREATE FUNCTION @extschema@.rl_hold_all(
    requests jsonb, ttl interval DEFAULT '10 minutes', id text DEFAULT NULL, on_expiry text DEFAULT 'refund',
    throws boolean DEFAULT false)
RETURNS TABLE (
    n integer, name text, key text, ok boolean, allows boolean, hold text, held double precision, expires_at timestamptz,
    retry_after double precision, retry_at timestamptz, remaining double precision, capacity double precision,
    reset_at timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 ROWS 10
AS 'MODULE_PATHNAME', 'rl_hold_all';
COMMENT ON FUNCTION @extschema@.rl_hold_all(jsonb, interval, text, text, boolean) IS 'holds tokens of several rate limits and slots of concurrency limits, all or nothing, as one hold; returns one row per request';

CREATE FUNCTION @extschema@.rl_settle_all(hold text, used jsonb DEFAULT NULL)
RETURNS TABLE (
    name text, key text, retry_after double precision, retry_at timestamptz, remaining double precision,
    capacity double precision, reset_at timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200 ROWS 10
AS 'MODULE_PATHNAME', 'rl_settle_all';
COMMENT ON FUNCTION @extschema@.rl_settle_all(text, jsonb) IS 'ends a hold of several rate limits; used is a number for all, or an object by name; no rows if there is no such hold';

-- Concurrency, exemptions, states, and limits over a log.
CREATE FUNCTION @extschema@.rl_concurrency(slots integer, ttl interval)
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'rl_concurrency';
COMMENT ON FUNCTION @extschema@.rl_concurrency(integer, interval) IS 'config of a concurrency limit: at most slots leases at a time, each of which expires after ttl';
CREATE FUNCTION @extschema@.rl_unlimited()
RETURNS jsonb
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'rl_unlimited';
COMMENT ON FUNCTION @extschema@.rl_unlimited() IS 'config without a limit, for exempt keys and names';
CREATE FUNCTION @extschema@.rl_acquire(name text, key text DEFAULT '', count double precision DEFAULT 1, throws boolean DEFAULT false, config jsonb DEFAULT NULL, OUT ok boolean, OUT lease text, OUT expires_at timestamptz, OUT retry_after double precision, OUT retry_at timestamptz, OUT remaining double precision, OUT capacity double precision)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_acquire';
COMMENT ON FUNCTION @extschema@.rl_acquire(text, text, float8, boolean, jsonb) IS 'takes count slots of a concurrency limit; returns a lease, or when to retry';
CREATE FUNCTION @extschema@.rl_extend(lease text, config jsonb DEFAULT NULL)
RETURNS timestamptz
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_extend';
COMMENT ON FUNCTION @extschema@.rl_extend(text, jsonb) IS 'extends a lease to its full ttl from now; returns when it expires, NULL if it had expired or was released';
CREATE FUNCTION @extschema@.rl_release(lease text, config jsonb DEFAULT NULL)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_release';
COMMENT ON FUNCTION @extschema@.rl_release(text, jsonb) IS 'releases the slots of a lease; false if it had expired or was released';
CREATE FUNCTION @extschema@.rl_value(name text, key text DEFAULT '', config jsonb DEFAULT NULL)
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_value';
COMMENT ON FUNCTION @extschema@.rl_value(text, text, jsonb) IS 'config and state of a rate limit, as rl_calculate accepts them; the time, and until when the key is blocked';
CREATE FUNCTION @extschema@.rl_replay(config jsonb, at timestamptz, count double precision DEFAULT 1, reserve boolean DEFAULT false)
RETURNS @extschema@.rl_result
LANGUAGE c WINDOW IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'rl_replay';
COMMENT ON FUNCTION @extschema@.rl_replay(jsonb, timestamptz, float8, boolean) IS 'window function: replays a log of requests against a limit, OVER (PARTITION BY key ORDER BY at)';
CREATE FUNCTION @extschema@.rl_headers_all(results jsonb, style text DEFAULT 'ietf')
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 200
AS 'MODULE_PATHNAME', 'rl_headers_all';
COMMENT ON FUNCTION @extschema@.rl_headers_all(jsonb, text) IS 'HTTP headers for the rows of rl_limit_all or rl_check_all, as a JSON array; style ietf, github or postgrest';
CREATE FUNCTION @extschema@.rl_key(VARIADIC parts text[])
RETURNS text
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'rl_key';
COMMENT ON FUNCTION @extschema@.rl_key(text[]) IS 'key made of several texts, as a JSON array: that of a trigger with several columns';

-- Move the tables to the nodes of Citus, and back. Only their owner may: the owner's triggers and constraints run here.
-- Functions of Citus are looked up at the call, since Citus need not be installed.

CREATE FUNCTION @extschema@.rl_distribute(shard_count integer DEFAULT 32, colocate_with regclass DEFAULT NULL)
RETURNS SETOF text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000 ROWS 10
SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    home text := (SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
                  WHERE extname = 'ratelimit');
    definitions regclass := home || '.rl_config';
    blocks regclass := home || '.rl_blocks';
    states regclass := home || '.ratelimits';
    holds regclass := home || '.rl_holds';
    held boolean;
    reference regclass;
    owner name;
    permission text;
    on_worker text;
    worker_with_rows text;
    triggers_allowed text := current_setting('citus.enable_unsafe_triggers', true);
    told text := current_setting('client_min_messages');
    already integer;
    apart text;
    in_memory boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
        RAISE EXCEPTION 'rl_distribute() requires the extension citus, which is not installed in this database'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'On every node: CREATE EXTENSION citus; then on the coordinator: SELECT citus_set_coordinator_host(''10.0.0.1''); SELECT citus_add_node(''10.0.0.2'', 5432);';
    ELSIF shard_count IS NULL THEN
        RAISE EXCEPTION 'shard_count must not be NULL' USING ERRCODE = 'null_value_not_allowed';
    ELSIF shard_count NOT BETWEEN 1 AND 64000 THEN
        RAISE EXCEPTION 'shard_count is %', shard_count
            USING ERRCODE = 'invalid_parameter_value', DETAIL = 'Allowed: 1 to 64000.';
    END IF;

    owner := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = definitions);
    IF current_user <> owner THEN
        RAISE EXCEPTION 'rl_distribute() can be called only by the owner of the tables, role %', quote_ident(owner)
            USING ERRCODE = 'insufficient_privilege', HINT = format('SET ROLE %I; SELECT rl_distribute();', owner);
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rl_distribute() requires isolation level READ COMMITTED, but this transaction is %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF (SELECT groupid FROM pg_dist_local_group) <> 0 THEN
        RAISE EXCEPTION 'rl_distribute() must be called on the coordinator' USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF current_setting('citus.shard_replication_factor') <> '1' AND NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = states) THEN
        RAISE EXCEPTION 'citus.shard_replication_factor is %, but limits need 1', current_setting('citus.shard_replication_factor')
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = 'With several copies of each shard, rl_trigger fails.',
                  HINT = 'SET citus.shard_replication_factor = 1; for copies, give each node a streaming replica.';
    END IF;

    -- The owner creates the triggers of the copies. On other nodes the extension belongs to a superuser.
    permission := format('GRANT EXECUTE ON FUNCTION %1$s.rl_config_changed, %1$s.rl_blocks_changed TO %2$I', home, owner);
    on_worker := format('SELECT has_function_privilege(%1$L, to_regprocedure(%2$L), %4$L) AND has_function_privilege(%1$L, to_regprocedure(%3$L), %4$L)',
                        owner, home || '.rl_config_changed()', home || '.rl_blocks_changed()', 'EXECUTE');
    IF EXISTS (SELECT FROM run_command_on_workers(on_worker) AS worker WHERE worker.success AND worker.result = 'f') THEN
        RAISE EXCEPTION 'role %, the owner of the tables, is not allowed to create the triggers of rl_config and rl_blocks on other nodes', quote_ident(owner)
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('A superuser can grant it: SELECT * FROM run_command_on_all_nodes(%L);', permission);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid IN (definitions, blocks, states)) THEN
        -- Uses other connections, which would wait forever for what rl_undistribute has locked in this transaction.
        on_worker := format($sql$
            SELECT CASE WHEN EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
                                     WHERE granted AND mode = 'AccessExclusiveLock' AND relation = to_regclass(%3$L) AND application_name = %4$L)
                   THEN false
                   ELSE pg_relation_size(to_regclass(%1$L)) + pg_relation_size(to_regclass(%2$L)) + pg_relation_size(to_regclass(%3$L)) > 0 END
            $sql$, definitions, blocks, states, 'citus_internal gpid=' || citus_backend_gpid());
        worker_with_rows := (SELECT worker.nodename FROM run_command_on_workers(on_worker) AS worker
                             WHERE worker.success AND worker.result = 't' LIMIT 1);
        IF worker_with_rows IS NOT NULL THEN
            RAISE EXCEPTION 'node % has limits of its own', worker_with_rows
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = 'They would be hidden while the limits are distributed, and reappear afterwards.',
                      HINT = format('On that node: TRUNCATE %s, %s, %s;', definitions, blocks, states);
        END IF;
    END IF;

    -- Calls wait for this to the end. Locks in the order of calls: the states first.
    EXECUTE format('LOCK TABLE %s, %s, %s, %s IN ACCESS EXCLUSIVE MODE', states, definitions, blocks, holds);
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', holds) INTO held;
    IF held THEN
        RAISE EXCEPTION 'rl_holds has rows, and holds are not distributed'
            USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = 'The tokens that they hold would never come back.',
                  HINT = format('Settle them, or let them expire: SELECT rl_prune(); DELETE FROM %s;', holds);
    END IF;
    -- Hides the notices of Citus about copied rows and their truncation, which follows below.
    IF told <> 'error' THEN
        PERFORM set_config('client_min_messages', 'warning', true);
    END IF;
    FOREACH reference IN ARRAY ARRAY[definitions, blocks] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = reference);
        -- Its triggers check what is written and notify the sessions of a node, so every copy has them.
        PERFORM set_config('citus.enable_unsafe_triggers', 'on', true);
        PERFORM create_reference_table(reference);
        PERFORM set_config('citus.enable_unsafe_triggers', triggers_allowed, true);
        PERFORM truncate_local_data_after_distributing_table(reference);
    END LOOP;
    already := (SELECT colocationid FROM pg_dist_partition WHERE logicalrelid = states);
    IF already IS NULL AND colocate_with IS NOT NULL THEN
        PERFORM create_distributed_table(states, 'key', colocate_with => colocate_with::text);
    ELSIF already IS NULL THEN
        -- Not colocated with other tables distributed by text: their collation may differ.
        PERFORM create_distributed_table(states, 'key', shard_count => shard_count, colocate_with => 'none');
    END IF;
    PERFORM truncate_local_data_after_distributing_table(states) WHERE already IS NULL;
    PERFORM set_config('client_min_messages', told, true);

    IF already <> (SELECT colocationid FROM pg_dist_partition WHERE logicalrelid = colocate_with) THEN
        RAISE EXCEPTION 'rateLimits is already distributed, and not co-located with %', colocate_with
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('BEGIN; SELECT rl_undistribute(); SELECT rl_distribute(colocate_with => %L); COMMIT;', colocate_with);
    ELSIF already IS NOT NULL THEN
        RAISE NOTICE 'rateLimits is already distributed, in % shards',
            (SELECT count(*) FROM pg_dist_shard WHERE logicalrelid = states);
    END IF;
    apart := (SELECT string_agg(table_of.logicalrelid::text, ', ' ORDER BY table_of.logicalrelid::text)
              FROM pg_dist_partition AS table_of
              WHERE table_of.colocationid <> (SELECT colocationid FROM pg_dist_partition WHERE logicalrelid = states)
                AND EXISTS (SELECT FROM pg_trigger WHERE tgrelid = table_of.logicalrelid AND tgparentid = 0
                                                     AND tgfoid = to_regprocedure(home || '.rl_trigger()')));
    IF apart IS NOT NULL THEN
        RAISE WARNING 'rl_trigger fails on tables that are not co-located with rateLimits: %', apart
            USING HINT = format('For each, with the column of its keys: SET citus.enable_unsafe_triggers = on; SELECT alter_distributed_table(''messages'', distribution_column => ''author'', colocate_with => %L);', states);
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE config ->> ''store'' = ''memory'')', definitions) INTO in_memory;
    IF in_memory THEN
        RAISE NOTICE 'limits in memory still count on each node separately';
    END IF;

    -- Citus copies no grants on the functions of an extension.
    RETURN QUERY
        SELECT format('SELECT * FROM run_command_on_all_nodes(%L);',
                      format('GRANT EXECUTE ON FUNCTION %s TO %s%s',
                             string_agg(function.oid::regprocedure::text, ', ' ORDER BY function.proname),
                             CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END,
                             CASE WHEN acl.is_grantable THEN ' WITH GRANT OPTION' END))
        FROM pg_extension AS extension
        JOIN pg_depend AS member ON member.refclassid = 'pg_extension'::regclass AND member.refobjid = extension.oid
                                AND member.classid = 'pg_proc'::regclass AND member.deptype = 'e'
        JOIN pg_proc AS function ON function.oid = member.objid
        CROSS JOIN aclexplode(function.proacl) AS acl
        LEFT JOIN pg_init_privs AS initial ON initial.classoid = member.classid AND initial.objoid = member.objid
        WHERE extension.extname = 'ratelimit' AND acl.grantee <> function.proowner
          AND acl.grantee NOT IN (SELECT grantee FROM aclexplode(initial.initprivs))
        GROUP BY acl.grantee, acl.is_grantable
        ORDER BY acl.grantee::regrole::text;
END
$$;
COMMENT ON FUNCTION @extschema@.rl_distribute(integer, regclass) IS 'distributes the rate limits across the Citus nodes; returns the statements that copy the grants of this node to all nodes';

CREATE FUNCTION @extschema@.rl_undistribute()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    home text := (SELECT nspname FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
                  WHERE extname = 'ratelimit');
    definitions regclass := quote_ident(home) || '.rl_config';
    blocks regclass := quote_ident(home) || '.rl_blocks';
    states regclass := quote_ident(home) || '.ratelimits';
    distributed boolean := false;
    owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = states);
    shell record;
    kept bigint;
    copied bigint;
    truncation text;
    beside text;
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
        distributed := EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid IN (definitions, blocks, states));
    END IF;
    IF NOT distributed THEN
        RAISE EXCEPTION 'the rate limits are not distributed by Citus'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF current_user <> owner THEN
        RAISE EXCEPTION 'rl_undistribute() can be called only by the owner of the tables, role %', quote_ident(owner)
            USING ERRCODE = 'insufficient_privilege', HINT = format('SET ROLE %I; SELECT rl_undistribute();', owner);
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        -- Its snapshot would miss later commits.
        RAISE EXCEPTION 'rl_undistribute() requires isolation level READ COMMITTED, but this transaction is %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'object_not_in_prerequisite_state';
    ELSIF (SELECT groupid FROM pg_dist_local_group) <> 0 THEN
        RAISE EXCEPTION 'rl_undistribute() must be called on the coordinator' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;

    -- Calls wait for this to the end. Locks in the order of calls: the states first.
    EXECUTE format('LOCK TABLE %s, %s, %s IN ACCESS EXCLUSIVE MODE', states, definitions, blocks);
    beside := (SELECT string_agg(table_of.logicalrelid::text, ', ' ORDER BY table_of.logicalrelid::text)
               FROM pg_dist_partition AS table_of JOIN pg_class AS class ON class.oid = table_of.logicalrelid
               WHERE table_of.colocationid = (SELECT colocationid FROM pg_dist_partition WHERE logicalrelid = states)
                 AND table_of.logicalrelid <> states AND NOT class.relispartition);
    FOR shell IN
        SELECT table_of.logicalrelid AS oid, class.relname AS name
        FROM pg_dist_partition AS table_of JOIN pg_class AS class ON class.oid = table_of.logicalrelid
        WHERE table_of.logicalrelid IN (definitions, blocks, states)
    LOOP
        EXECUTE format('CREATE TEMPORARY TABLE rl_undistribute_rows AS SELECT * FROM %s', shell.oid::regclass);
        GET DIAGNOSTICS kept = ROW_COUNT;
        -- Removes copies that a manual create_distributed_table left behind.
        PERFORM truncate_local_data_after_distributing_table(shell.oid);
        -- Does what Citus does for DROP TABLE, but keeps the table, a member of the extension.
        PERFORM master_remove_distributed_table_metadata_from_workers(shell.oid, home, shell.name);
        PERFORM citus_drop_all_shards(shell.oid, home, shell.name);
        PERFORM master_remove_partition_metadata(shell.oid, home, shell.name);
        FOR truncation IN
            SELECT tgname FROM pg_trigger WHERE tgrelid = shell.oid AND tgfoid = 'citus_truncate_trigger()'::regprocedure
        LOOP
            EXECUTE format('DROP TRIGGER %I ON %s', truncation, shell.oid::regclass);
        END LOOP;
        EXECUTE format('INSERT INTO %s SELECT * FROM pg_temp.rl_undistribute_rows', shell.oid::regclass);
        GET DIAGNOSTICS copied = ROW_COUNT;
        IF copied <> kept THEN
            RAISE EXCEPTION 'only % of the % rows of % could be moved back', copied, kept, shell.oid::regclass
                USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = 'A trigger or a rule on the table prevents rows from being written.';
        END IF;
        DROP TABLE pg_temp.rl_undistribute_rows;
    END LOOP;
    RAISE NOTICE 'the rate limits are on this node alone, with its grants; the other nodes no longer have any';
    IF beside IS NOT NULL THEN
        RAISE NOTICE 'rl_trigger now fails on the tables that were co-located with rateLimits: %', beside
            USING HINT = format('To co-locate them again: SELECT rl_distribute(colocate_with => %L);', split_part(beside, ', ', 1));
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.rl_undistribute() IS 'moves distributed rate limits back to this node, with definitions, blocks and state';

CREATE FUNCTION @extschema@.rl_node(name text, key text)
RETURNS TABLE (host text, port integer)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE COST 100 ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    states regclass := (SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
                        WHERE extname = 'ratelimit') || '.ratelimits';
    argument text := CASE WHEN $1 IS NULL THEN 'name' WHEN $2 IS NULL THEN 'key' END;
BEGIN
    IF argument IS NOT NULL THEN
        RAISE EXCEPTION '% must not be NULL', argument USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
        RETURN QUERY
            SELECT node.nodename, node.nodeport
            FROM pg_dist_partition AS distributed, pg_dist_placement AS placement JOIN pg_dist_node AS node USING (groupid)
            WHERE distributed.logicalrelid = states AND node.noderole = 'primary'
              AND placement.shardid = get_shard_id_for_distribution_column(states, $2);
    END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.rl_node(text, text) IS 'Citus node that stores a key of a rate limit, where calls for it are cheapest; no row if the limits are not distributed';

-- Takes back what default privileges granted: all of it on new objects; on functions of 1.0.0 what their initial
-- privileges have; on its tables, which have none, also what default privileges of the role that created them grant
-- today. Later grants stay, out of the initial privileges, to which REVOKE adds them.
DO LANGUAGE plpgsql $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT member.classid, member.objid, object.what, taken.privileges, object.initprivs,
               pg_catalog.string_agg(CASE WHEN taken.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
                                          ELSE pg_catalog.quote_ident(role.rolname::pg_catalog.text) END, ', ') AS roles
        FROM pg_catalog.pg_extension AS extension
        JOIN pg_catalog.pg_depend AS member
             ON member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
            AND member.refobjid OPERATOR(pg_catalog.=) extension.oid
            AND member.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
        CROSS JOIN LATERAL (
            SELECT pg_catalog.format('FUNCTION %s', function.oid::pg_catalog.regprocedure), function.proname, function.proowner,
                   function.proacl, init.initprivs
            FROM pg_catalog.pg_proc AS function
            LEFT JOIN pg_catalog.pg_init_privs AS init
                 ON init.classoid OPERATOR(pg_catalog.=) member.classid AND init.objoid OPERATOR(pg_catalog.=) member.objid
            WHERE member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
              AND function.oid OPERATOR(pg_catalog.=) member.objid
            UNION ALL
            SELECT pg_catalog.format('TABLE %s', oid::pg_catalog.regclass), relname, relowner, relacl, NULL
            FROM pg_catalog.pg_class
            WHERE member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
              AND oid OPERATOR(pg_catalog.=) member.objid
        ) AS object (what, name, owner, acl, initprivs)
        CROSS JOIN LATERAL (
            SELECT object.name OPERATOR(pg_catalog.<>) ALL (ARRAY[
                'rl_limit', 'rl_check', 'rl_credit', 'rl_limit_all', 'rl_check_all', 'rl_reset', 'rl_reset_all',
                'rl_define', 'rl_undefine', 'rl_status', 'rl_prune', 'rl_headers', 'rl_trigger', 'rl_config_changed',
                'rl_token_bucket', 'rl_fixed_window', 'rl_sliding_window', 'rl_sliding_log', 'rl_calculate',
                'ratelimits', 'rl_config', 'rl_result']::pg_catalog.name[])
        ) AS this (is_new)
        CROSS JOIN LATERAL (
            SELECT DISTINCT grantee, 'ALL' FROM pg_catalog.aclexplode(object.acl)
            WHERE this.is_new AND grantee OPERATOR(pg_catalog.<>) object.owner
              AND (grantee OPERATOR(pg_catalog.<>) 0::pg_catalog.oid OR object.what OPERATOR(pg_catalog.~~) 'TABLE %')
            UNION ALL
            SELECT grantee, 'ALL' FROM pg_catalog.aclexplode(object.initprivs)
            WHERE NOT this.is_new AND grantee OPERATOR(pg_catalog.<>) grantor
              AND grantee OPERATOR(pg_catalog.<>) 'pg_database_owner'::pg_catalog.regrole::pg_catalog.oid
            UNION ALL
            SELECT acl.grantee, pg_catalog.string_agg(acl.privilege_type, ', ')
            FROM pg_catalog.aclexplode(object.acl) AS acl
            WHERE NOT this.is_new AND object.what OPERATOR(pg_catalog.~~) 'TABLE %'
              AND acl.grantee OPERATOR(pg_catalog.<>) object.owner
              AND EXISTS (
                  SELECT FROM pg_catalog.pg_proc AS maker, pg_catalog.pg_default_acl AS standard,
                              pg_catalog.aclexplode(standard.defaclacl) AS default_acl
                  WHERE maker.oid OPERATOR(pg_catalog.=) '@extschema@.rl_limit(text, text, float8, boolean, boolean, jsonb)'::pg_catalog.regprocedure::pg_catalog.oid
                    AND standard.defaclrole OPERATOR(pg_catalog.=) maker.proowner
                    AND standard.defaclobjtype OPERATOR(pg_catalog.=) 'r'::pg_catalog."char"
                    AND (standard.defaclnamespace OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                         OR standard.defaclnamespace OPERATOR(pg_catalog.=) extension.extnamespace)
                    AND default_acl.grantee OPERATOR(pg_catalog.=) acl.grantee
                    AND default_acl.grantee OPERATOR(pg_catalog.<>) maker.proowner
                    AND default_acl.privilege_type OPERATOR(pg_catalog.=) acl.privilege_type)
            GROUP BY acl.grantee
        ) AS taken (grantee, privileges)
        LEFT JOIN pg_catalog.pg_roles AS role ON role.oid OPERATOR(pg_catalog.=) taken.grantee
        WHERE extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
        GROUP BY member.classid, member.objid, object.what, taken.privileges, object.initprivs
    LOOP
        IF given.roles IS NOT NULL THEN -- otherwise they were dropped
            EXECUTE pg_catalog.format('REVOKE %s ON %s FROM %s CASCADE', given.privileges, given.what, given.roles);
        END IF;
        DELETE FROM pg_catalog.pg_init_privs AS init
        WHERE init.classoid OPERATOR(pg_catalog.=) given.classid AND init.objoid OPERATOR(pg_catalog.=) given.objid
          AND given.initprivs IS NULL;
        UPDATE pg_catalog.pg_init_privs AS init
        SET initprivs = ARRAY(
            SELECT item FROM pg_catalog.unnest(given.initprivs) AS item, pg_catalog.aclexplode(ARRAY[item]) AS acl
            WHERE acl.grantee OPERATOR(pg_catalog.=) acl.grantor
               OR acl.grantee OPERATOR(pg_catalog.=) 'pg_database_owner'::pg_catalog.regrole::pg_catalog.oid)
        WHERE init.classoid OPERATOR(pg_catalog.=) given.classid AND init.objoid OPERATOR(pg_catalog.=) given.objid;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION
    @extschema@.rl_hold(text, text, float8, interval, text, float8, text, boolean, boolean, jsonb), @extschema@.rl_settle(text, float8),
    @extschema@.rl_hold_all(jsonb, interval, text, text, boolean), @extschema@.rl_settle_all(text, jsonb),
    @extschema@.rl_memory(), @extschema@.rl_save(), @extschema@.rl_stats(), @extschema@.rl_stats_reset(text), @extschema@.rl_top_denied(text, integer),
    @extschema@.rl_distribute(integer, regclass), @extschema@.rl_undistribute(), @extschema@.rl_node(text, text), @extschema@.rl_value(text, text, jsonb), @extschema@.rl_acquire(text, text, float8, boolean, jsonb),
    @extschema@.rl_extend(text, jsonb), @extschema@.rl_release(text, jsonb), @extschema@.rl_block(text, text, interval, timestamptz, text), @extschema@.rl_unblock(text, text),
    @extschema@.rl_headers_all(jsonb, text), @extschema@.rl_take(text, text, float8, float8, boolean, jsonb), @extschema@.rl_forget(text), @extschema@.rl_blocks_changed()
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    @extschema@.rl_hold(text, text, float8, interval, text, float8, text, boolean, boolean, jsonb), @extschema@.rl_settle(text, float8),
    @extschema@.rl_hold_all(jsonb, interval, text, text, boolean), @extschema@.rl_settle_all(text, jsonb),
    @extschema@.rl_memory(), @extschema@.rl_save(), @extschema@.rl_stats(), @extschema@.rl_stats_reset(text), @extschema@.rl_top_denied(text, integer),
    @extschema@.rl_distribute(integer, regclass), @extschema@.rl_undistribute(), @extschema@.rl_node(text, text), @extschema@.rl_value(text, text, jsonb), @extschema@.rl_acquire(text, text, float8, boolean, jsonb),
    @extschema@.rl_extend(text, jsonb), @extschema@.rl_release(text, jsonb), @extschema@.rl_block(text, text, interval, timestamptz, text), @extschema@.rl_unblock(text, text),
    @extschema@.rl_headers_all(jsonb, text), @extschema@.rl_take(text, text, float8, float8, boolean, jsonb), @extschema@.rl_forget(text)
    TO pg_database_owner WITH GRANT OPTION;

-- Grants directly to the installer: on new objects, and on all if it is the database's owner, which lacked that. The
-- grant stays out of the initial privileges, to which GRANT adds all, the application's grants too.
DO LANGUAGE plpgsql $$
DECLARE
    installer record;
    granted record;
BEGIN
    SELECT extension.oid AS extension, role.rolname, here.datdba OPERATOR(pg_catalog.=) role.oid AS is_owner
    INTO installer
    FROM pg_catalog.pg_extension AS extension, pg_catalog.pg_roles AS role, pg_catalog.pg_database AS here
    WHERE extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
      AND role.oid OPERATOR(pg_catalog.=) extension.extowner
      AND NOT role.rolsuper
      AND here.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();
    FOR granted IN
        SELECT init.objoid, init.initprivs
        FROM pg_catalog.pg_depend AS member, pg_catalog.pg_init_privs AS init
        WHERE member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          AND member.refobjid OPERATOR(pg_catalog.=) installer.extension
          AND member.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
          AND member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
          AND init.classoid OPERATOR(pg_catalog.=) member.classid
          AND init.objoid OPERATOR(pg_catalog.=) member.objid
          AND (installer.is_owner OR init.objoid OPERATOR(pg_catalog.=) ANY (ARRAY[
                  '@extschema@.rl_memory()'::pg_catalog.regprocedure, '@extschema@.rl_save()'::pg_catalog.regprocedure, '@extschema@.rl_stats()'::pg_catalog.regprocedure,
                  '@extschema@.rl_stats_reset(text)'::pg_catalog.regprocedure, '@extschema@.rl_top_denied(text, integer)'::pg_catalog.regprocedure,
                  '@extschema@.rl_distribute(integer, regclass)'::pg_catalog.regprocedure, '@extschema@.rl_undistribute()'::pg_catalog.regprocedure,
                  '@extschema@.rl_node(text, text)'::pg_catalog.regprocedure,
                  '@extschema@.rl_value(text, text, jsonb)'::pg_catalog.regprocedure, '@extschema@.rl_acquire(text, text, float8, boolean, jsonb)'::pg_catalog.regprocedure,
                  '@extschema@.rl_extend(text, jsonb)'::pg_catalog.regprocedure, '@extschema@.rl_release(text, jsonb)'::pg_catalog.regprocedure,
                  '@extschema@.rl_block(text, text, interval, timestamptz, text)'::pg_catalog.regprocedure, '@extschema@.rl_unblock(text, text)'::pg_catalog.regprocedure,
                  '@extschema@.rl_hold(text, text, float8, interval, text, float8, text, boolean, boolean, jsonb)'::pg_catalog.regprocedure,
                  '@extschema@.rl_settle(text, float8)'::pg_catalog.regprocedure,
                  '@extschema@.rl_hold_all(jsonb, interval, text, text, boolean)'::pg_catalog.regprocedure,
                  '@extschema@.rl_settle_all(text, jsonb)'::pg_catalog.regprocedure,
                  '@extschema@.rl_forget(text)'::pg_catalog.regprocedure,
                  '@extschema@.rl_take(text, text, float8, float8, boolean, jsonb)'::pg_catalog.regprocedure, '@extschema@.rl_headers_all(jsonb, text)'::pg_catalog.regprocedure
              ]::pg_catalog.oid[]))
          AND EXISTS (SELECT FROM pg_catalog.aclexplode(init.initprivs) AS acl
                      WHERE acl.grantee OPERATOR(pg_catalog.=) 'pg_database_owner'::pg_catalog.regrole::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %I WITH GRANT OPTION',
                                  granted.objoid::pg_catalog.regprocedure, installer.rolname);
        UPDATE pg_catalog.pg_init_privs AS init SET initprivs = granted.initprivs
        WHERE init.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
          AND init.objoid OPERATOR(pg_catalog.=) granted.objoid;
    END LOOP;
    -- Grants of the database's owner came from pg_database_owner, and could be restored only where that role has
    -- USAGE on the schema. Now they come from the owner, as where one installs 1.1.0.
    UPDATE pg_catalog.pg_proc AS function
    SET proacl = ARRAY(
        SELECT pg_catalog.makeaclitem(acl.grantee, giver.oid, acl.privilege_type, pg_catalog.bool_or(acl.is_grantable))
        FROM pg_catalog.aclexplode(function.proacl) AS acl, pg_catalog.pg_roles AS giver
        WHERE CASE WHEN acl.grantor OPERATOR(pg_catalog.=) 'pg_database_owner'::pg_catalog.regrole::pg_catalog.oid
                   THEN giver.rolname OPERATOR(pg_catalog.=) installer.rolname AND giver.oid OPERATOR(pg_catalog.<>) acl.grantee
                   ELSE giver.oid OPERATOR(pg_catalog.=) acl.grantor END
        GROUP BY acl.grantee, giver.oid, acl.privilege_type)
    FROM pg_catalog.pg_depend AS member
    WHERE installer.is_owner
      AND member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
      AND member.refobjid OPERATOR(pg_catalog.=) installer.extension
      AND member.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
      AND member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
      AND function.oid OPERATOR(pg_catalog.=) member.objid
      AND EXISTS (SELECT FROM pg_catalog.aclexplode(function.proacl) AS acl
                  WHERE acl.grantor OPERATOR(pg_catalog.=) 'pg_database_owner'::pg_catalog.regrole::pg_catalog.oid);
END
$$;

-- 1.0.0 removed the installer's grants from the initial privileges, but from PostgreSQL 17 on not these dependencies,
-- which kept the role from being dropped.
DELETE FROM pg_catalog.pg_shdepend AS dependency
USING pg_catalog.pg_database AS here, pg_catalog.pg_extension AS extension, pg_catalog.pg_depend AS member
WHERE here.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
  AND extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
  AND member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
  AND member.refobjid OPERATOR(pg_catalog.=) extension.oid
  AND dependency.dbid OPERATOR(pg_catalog.=) here.oid
  AND dependency.classid OPERATOR(pg_catalog.=) member.classid
  AND dependency.objid OPERATOR(pg_catalog.=) member.objid
  AND dependency.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_authid'::pg_catalog.regclass::pg_catalog.oid
  AND dependency.deptype OPERATOR(pg_catalog.=) 'i'::pg_catalog."char"
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_init_privs AS init, pg_catalog.aclexplode(init.initprivs) AS acl
                  WHERE init.classoid OPERATOR(pg_catalog.=) member.classid
                    AND init.objoid OPERATOR(pg_catalog.=) member.objid
                    AND acl.grantee OPERATOR(pg_catalog.=) dependency.refobjid);

-- Comments with new wording.
COMMENT ON TYPE @extschema@.rl_result IS 'result of a call of the rate limiter';
COMMENT ON COLUMN @extschema@.rl_result.ok IS 'whether the tokens were taken (rl_check: could be taken); never NULL';
COMMENT ON COLUMN @extschema@.rl_result.retry_after IS 'seconds until the same call can succeed, or until reserved work may start; NULL: no wait, or, if ok is false, the call can never succeed';
COMMENT ON COLUMN @extschema@.rl_result.retry_at IS 'retry_after as a time; both are rounded up to a whole millisecond';
COMMENT ON COLUMN @extschema@.rl_result.remaining IS 'tokens left after this call; negative: debt or overage; NULL: no limit applies';
COMMENT ON COLUMN @extschema@.rl_result.capacity IS 'the most tokens that the limit can hold; NULL: no limit applies';
COMMENT ON COLUMN @extschema@.rl_result.reset_at IS 'when the limit is full again if nobody takes from it; window kinds: end of the current window; concurrency: when the last lease expires';
COMMENT ON TABLE @extschema@.rateLimits IS 'rate limiter: state of every limit in use, one row per (name, key, shard)';
COMMENT ON COLUMN @extschema@.rateLimits.name IS 'name of the limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rateLimits.key IS 'key, such as a user or a tenant; up to 1024 bytes, empty for a limit without keys';
COMMENT ON COLUMN @extschema@.rateLimits.shard IS 'number of the row of a limit with shards; 0: the only row of a limit without them, or with ts -infinity a marker without tokens: the key has shards';
COMMENT ON COLUMN @extschema@.rateLimits.value IS 'tokens left at ts, negative in debt; sliding kinds: tokens used; concurrency: slots taken; Infinity: reset, the same as no row';
COMMENT ON COLUMN @extschema@.rateLimits.ts IS 'time at which value was counted; window kinds: start of the window; -infinity: marker of a limit with shards';
COMMENT ON COLUMN @extschema@.rateLimits.prior IS 'sliding window: tokens used in the previous window; concurrency: 0, which says that log has leases';
COMMENT ON COLUMN @extschema@.rateLimits.log IS 'sliding log: time of each token taken, oldest first; concurrency: for each slot, the id of its lease (a number, stored as a time) and when it expires';
COMMENT ON COLUMN @extschema@.rateLimits.added IS 'fixed window: tokens that this window has added since it began; NULL: unknown, as in rows of 1.0.0';
COMMENT ON COLUMN @extschema@.rateLimits.expires IS 'no later than when the first hold of the key expires that then gives tokens back; NULL: there is none';
COMMENT ON TABLE @extschema@.rl_config IS 'rate limiter: defined limits; a row with a key overrides the limit for that key';
COMMENT ON COLUMN @extschema@.rl_config.name IS 'name of the limit; 1 to 200 bytes';
COMMENT ON COLUMN @extschema@.rl_config.key IS 'key that this row applies to; up to 1024 bytes, empty: every key without a row of its own';
COMMENT ON COLUMN @extschema@.rl_config.config IS 'config of the limit, as rl_token_bucket() and the other builders return it; of a key also {"plan": name}';
COMMENT ON FUNCTION @extschema@.rl_check(text, text, float8, boolean, boolean, jsonb) IS 'reports whether rl_limit would succeed; takes no tokens, locks and writes nothing';
COMMENT ON FUNCTION @extschema@.rl_credit(text, text, float8, timestamptz, jsonb) IS 'gives back count tokens that were taken but not used; a negative count takes tokens unconditionally';
COMMENT ON FUNCTION @extschema@.rl_limit_all(jsonb, boolean) IS 'takes tokens from several rate limits, all or nothing; returns one row per request';
COMMENT ON FUNCTION @extschema@.rl_check_all(jsonb, boolean) IS 'reports whether rl_limit_all would succeed; takes no tokens, locks and writes nothing';
COMMENT ON FUNCTION @extschema@.rl_reset(text, text) IS 'makes a rate limit full again and cancels its debt; false if there was nothing to reset';
COMMENT ON FUNCTION @extschema@.rl_reset_all(text) IS 'makes a rate limit full again for every key; returns how many were reset';
COMMENT ON FUNCTION @extschema@.rl_define(text, jsonb, text) IS 'creates or replaces a rate limit, or its override for one key; false if nothing changed';
COMMENT ON FUNCTION @extschema@.rl_undefine(text, text) IS 'drops a rate limit, or its override for one key; keeps the state; false if there was none';
COMMENT ON FUNCTION @extschema@.rl_status(text, text) IS 'current state of the rate limits in use, one row per name and key; of one name or key if given';
COMMENT ON FUNCTION @extschema@.rl_prune(integer, interval) IS 'gives back the tokens of expired holds, and deletes a batch of expired blocks, holds that expired a day ago and idle rows; returns how many';
COMMENT ON FUNCTION @extschema@.rl_token_bucket(float8, interval, float8, float8, integer) IS 'config of a token bucket: rate tokens per period, refilled continuously up to capacity';
COMMENT ON FUNCTION @extschema@.rl_fixed_window(float8, interval, float8, float8, integer, timestamptz, boolean, text) IS 'config of a fixed window: rate tokens are added at the start of each window, up to capacity';
COMMENT ON FUNCTION @extschema@.rl_headers(text, @extschema@.rl_result, text, jsonb, text) IS 'HTTP headers for the result of a call; style ietf, github or postgrest';
COMMENT ON FUNCTION @extschema@.rl_calculate(jsonb, jsonb, timestamptz, float8, boolean) IS 'evaluates a call on a given state at a given time, without side effects; returns the result and the new state';
COMMENT ON FUNCTION @extschema@.rl_trigger() IS 'trigger: takes tokens for the rows written from the rate limit named by its first argument, or by a column (name=<column>); options key=<column>[,<column>], count=<column>, message=<text>';
COMMENT ON FUNCTION @extschema@.rl_config_changed() IS 'rate limiter, internal: checks a definition and invalidates every session''s definition cache';
COMMENT ON TRIGGER rl_config_changed ON @extschema@.rl_config IS 'invalidates every session''s definition cache';
COMMENT ON TRIGGER rl_config_truncated ON @extschema@.rl_config IS 'invalidates every session''s definition cache';

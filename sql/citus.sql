-- Move the tables to the nodes of Citus, and back. Only their owner may: the owner's triggers and constraints run here.
-- Functions of Citus are looked up at the call, because Citus need not be installed.

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
    saved text;
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
        -- Uses other connections, which would wait forever for locks of rl_undistribute in this transaction.
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

    -- Calls wait until the end. Locks in the order of calls: the states first.
    EXECUTE format('LOCK TABLE %s, %s, %s, %s IN ACCESS EXCLUSIVE MODE', states, definitions, blocks, holds);
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', holds) INTO held;
    IF held THEN
        RAISE EXCEPTION 'rl_holds has rows, and holds are not distributed'
            USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = 'The tokens that they hold would never come back.',
                  HINT = format('Settle them, or let them expire: SELECT rl_prune(); DELETE FROM %s;', holds);
    END IF;
    EXECUTE format('SELECT min(name) FROM %s WHERE config ->> ''save'' IS NOT NULL', definitions) INTO saved;
    IF saved IS NOT NULL THEN
        RAISE EXCEPTION 'rate limit "%" has a "save", and saved limits are not distributed', saved
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = 'Each node counts for itself in memory, and would overwrite what others saved.',
                  HINT = format('UPDATE %s SET config = config - ''save'' WHERE name = %L;', definitions, saved);
    END IF;
    -- Hides the notices of Citus about copied rows and their truncation, which follows below.
    IF told <> 'error' THEN
        PERFORM set_config('client_min_messages', 'warning', true);
    END IF;
    FOREACH reference IN ARRAY ARRAY[definitions, blocks] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = reference);
        -- Its triggers check writes and notify the sessions of a node, so every copy has them.
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
COMMENT ON FUNCTION @extschema@.rl_distribute IS 'distributes the rate limits across the Citus nodes; returns the statements that copy the grants of this node to all nodes';

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

    -- Calls wait until the end. Locks in the order of calls: the states first.
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
COMMENT ON FUNCTION @extschema@.rl_undistribute IS 'moves distributed rate limits back to this node, with definitions, blocks and state';

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
COMMENT ON FUNCTION @extschema@.rl_node IS 'Citus node that stores a key of a rate limit, where calls for it are cheapest; no row if the limits are not distributed';

-- Moves from the extension to ratelimit.sql, in the same folder as this script, and to the same schema: limits,
-- overrides, state, leases, holds, blocks, grants, settings, and what names the functions. Run it as the owner of both:
--     psql -1 -v ON_ERROR_STOP=1 -f ratelimit-from-extension.sql
-- It adds up the rows of shards. Limits in memory move to the table: with "save" as they are, others full. Calls of the
-- extension that wait for the move fail.
\ir move.sql

-- Moves limits with "save" from memory into the table, as a change of their store does. Calls on them until this
-- commits are lost. Fails if keys can't be saved.
CREATE FUNCTION pg_temp.rl_leave_memory(home text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    forgotten text;
    unsaved bigint;
BEGIN
    EXECUTE format($q$SELECT string_agg(DISTINCT quote_literal(c.name), ', ') FROM ONLY %1$s.rl_config AS c
                      LEFT JOIN ONLY %1$s.rl_config AS p ON p.name = c.config ->> 'plan' AND p.key = ''
                      CROSS JOIN LATERAL (SELECT coalesce(p.config, c.config)) AS own (config)
                      WHERE own.config ->> 'store' = 'memory' AND NOT own.config ? 'save'$q$, home) INTO forgotten;
    IF forgotten IS NOT NULL THEN
        RAISE NOTICE 'these limits were in memory without "save", and begin with all their tokens: %', forgotten;
    END IF;
    -- Holds of such a limit have tokens of the rows that it had before.
    EXECUTE format($q$UPDATE ONLY %1$s.rl_holds AS h SET spent = count WHERE count > spent AND EXISTS (
                      SELECT FROM ONLY %1$s.rl_config AS c WHERE c.name = h.name AND c.key IN ('', h.key)
                      AND c.config ->> 'store' = 'memory')$q$, home);
    EXECUTE format($q$UPDATE ONLY %1$s.rl_config SET config = config - 'store' - 'save'
                      WHERE config ? 'store'$q$, home);
    EXECUTE format('SELECT %s.rl_save()', home) INTO unsaved;
    IF unsaved > 0 THEN
        RAISE EXCEPTION '% keys of limits in memory could not be saved', unsaved
            USING ERRCODE = '55P03', HINT = 'SELECT save_error FROM rl_memory(); says why. '
                'Move when their rows are free and no call takes from them.';
    END IF;
END
$$;

-- Copies what the extension has, into temporary tables.
CREATE FUNCTION pg_temp.rl_keep(home text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format($q$CREATE TEMP TABLE kept_rl_config ON COMMIT DROP AS
        SELECT name, key, config - 'shards' AS config FROM ONLY %1$s.rl_config$q$, home);
    EXECUTE format('CREATE TEMP TABLE kept_rl_blocks ON COMMIT DROP AS SELECT * FROM ONLY %s.rl_blocks', home);
    EXECUTE format('CREATE TEMP TABLE kept_rl_holds ON COMMIT DROP AS SELECT * FROM ONLY %s.rl_holds', home);
    EXECUTE format($q$
        CREATE TEMP TABLE kept_ratelimits ON COMMIT DROP AS
        SELECT name, key, kind, value, ts, added, prior, log, leases, holds_due FROM ONLY %1$s.ratelimits AS r
        WHERE shard = 0
          AND NOT EXISTS (SELECT FROM ONLY %1$s.ratelimits AS o WHERE o.name = r.name AND o.key = r.key AND o.shard > 0)
        UNION ALL
        -- The total of shards, as the extension adds it up. Without a definition, since calls passed the config, it is
        -- the plain sum, which may be too low.
        SELECT k.name, k.key, 't', coalesce((s.state ->> 'value')::float8, k.value),
               coalesce(timestamptz 'epoch' + (s.state ->> 'ts')::float8 * interval '1 millisecond', k.ts),
               k.added, NULL, NULL, NULL,
               (SELECT min(h.expires_at) FROM ONLY %1$s.rl_holds AS h
                WHERE h.name = k.name AND h.key = k.key AND NOT h.charge AND h.count > h.spent)
        FROM (SELECT name, key, sum(value) AS value, max(ts) AS ts, sum(added) AS added
              FROM ONLY %1$s.ratelimits AS r WHERE shard > 0 AND kind = 't' GROUP BY name, key) AS k
        LEFT JOIN LATERAL (SELECT c.config FROM ONLY %1$s.rl_config AS c WHERE c.name = k.name AND c.key IN ('', k.key)
                           ORDER BY c.key DESC LIMIT 1) AS own ON true
        LEFT JOIN ONLY %1$s.rl_config AS plan ON plan.name = own.config ->> 'plan' AND plan.key = ''
        CROSS JOIN LATERAL (SELECT plan.name IS NOT NULL OR NOT own.config ? 'plan') AS known (defined)
        CROSS JOIN LATERAL (
            SELECT CASE WHEN known.defined THEN nullif(%1$s.rl_value(k.name, k.key) -> 'state', 'null') END
        ) AS s (state)
        WHERE s.state IS NOT NULL OR known.defined IS NOT TRUE
        $q$, home);
    CREATE TEMP TABLE kept_rl_settings ON COMMIT DROP AS
    SELECT split_part(split_part(item, '=', 1), '.', 2) AS name,
           CASE split_part(item, '=', 1) WHEN 'ratelimit.log_denials' -- as a decimal number
                THEN trim_scale(round(split_part(item, '=', 2)::numeric, 15))::text
                ELSE substr(item, strpos(item, '=') + 1) END AS value
    FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS item
    WHERE s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()) AND s.setrole = 0
      AND split_part(item, '=', 1) IN ('ratelimit.error_style', 'ratelimit.log_denials');
END
$$;

DO LANGUAGE plpgsql $do$
DECLARE
    home text := quote_ident(current_setting('rl_move.home'));
    aside text := quote_ident(current_setting('rl_move.home') || '_moved');
    extension pg_extension;
    owner oid;
    items text;
BEGIN
    SELECT * INTO extension FROM pg_extension WHERE extname = 'ratelimit';
    IF extension.extname IS NULL THEN
        RAISE EXCEPTION 'the extension ratelimit is not installed';
    ELSIF extension.extnamespace <> coalesce(to_regnamespace(home), 0) THEN
        RAISE EXCEPTION 'the extension is in schema %, and this script for schema %',
            extension.extnamespace::regnamespace, home
            USING HINT = 'Make the script for its schema: SCHEMA=name make plain.';
    ELSIF to_regnamespace(aside) IS NOT NULL THEN
        RAISE EXCEPTION 'schema % is left from a move to the extension', aside
            USING HINT = 'Run ratelimit-to-extension.sql once more, which drops it.';
    ELSIF to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
        EXECUTE format('SELECT string_agg(logicalrelid::text, '', '') FROM pg_dist_partition
                        WHERE logicalrelid IN (%1$L::regclass, %2$L::regclass)',
                       home || '.ratelimits', home || '.rl_config') INTO items;
        IF items IS NOT NULL THEN
            RAISE EXCEPTION 'the limits are distributed by Citus'
                USING HINT = format('SELECT %s.rl_undistribute();', home);
        END IF;
    END IF;
    owner := (SELECT relowner FROM pg_class WHERE oid = (home || '.ratelimits')::regclass);
    PERFORM pg_temp.rl_list_members(extension.oid);
    PERFORM pg_temp.rl_list_plan();
    PERFORM pg_temp.rl_refuse();
    PERFORM pg_temp.rl_leave_memory(home);
    PERFORM pg_temp.rl_lock('{ratelimits,rl_config,rl_blocks,rl_holds}');
    PERFORM pg_temp.rl_list_plan();
    PERFORM pg_temp.rl_refuse();
    PERFORM pg_temp.rl_list_grants();
    PERFORM pg_temp.rl_keep(home);
    PERFORM pg_temp.rl_rewrite(off => true);
    DROP EXTENSION ratelimit;
    -- The file belongs to the schema's owner: make that the owner of the tables.
    IF owner <> current_user::regrole THEN
        EXECUTE format('ALTER SCHEMA %s OWNER TO %s', home, owner::regrole);
        GRANT ALL ON kept_rl_config, kept_rl_blocks, kept_ratelimits, kept_rl_holds, kept_rl_settings, rl_grant, rl_plan
            TO PUBLIC;
        PERFORM set_config('role', pg_get_userbyid(owner), true);
    END IF;
END
$do$;

\ir ratelimit.sql

DO LANGUAGE plpgsql $do$
DECLARE
    home text := quote_ident(current_setting('rl_move.home'));
    name text;
    copied bigint[];
BEGIN
    SET LOCAL search_path = pg_catalog, pg_temp;
    PERFORM pg_temp.rl_made(home); -- or ratelimit.sql is of another version
    FOREACH name IN ARRAY '{rl_config,rl_blocks,ratelimits,rl_holds,rl_settings}'::text[] LOOP
        copied := copied || pg_temp.rl_copy(format('pg_temp.kept_%s', name), format('%s.%s', home, name));
    END LOOP;
    PERFORM pg_temp.rl_grant_again();
    PERFORM pg_temp.rl_rewrite(off => false);
    PERFORM pg_temp.rl_recompile();
    RAISE NOTICE 'moved to ratelimit.sql: % definitions, % blocks, % rows of state, % of holds', copied[1], copied[2],
        copied[3], copied[4];
END
$do$;

-- Moves from ratelimit.sql to the extension, in the same schema: limits, overrides, state, leases, holds, blocks,
-- grants, settings, and what names the functions. Run it as the owner of the limits, with the right to create the
-- extension:
--     psql -1 -v ON_ERROR_STOP=1 -f ratelimit-to-extension.sql
-- Calls wait for it. Calls that had begun still need what the file has made: that stays, as names that begin with _ and
-- in "ratelimit_moved", until the script runs a second time, later.
\ir move.sql

-- Sets the extension's settings by ALTER DATABASE, which only the database's owner may use.
CREATE FUNCTION pg_temp.rl_settings_to_database(home text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    item record;
    statement text;
BEGIN
    -- Load the library, which declares the settings.
    EXECUTE format('SELECT count(*) FROM (SELECT %s.rl_unlimited()) AS loaded', home);
    FOR item IN EXECUTE format('SELECT name, value FROM ONLY %s.rl_settings', home) LOOP
        statement := format('ALTER DATABASE %I SET ratelimit.%s = %L', current_database(), item.name, item.value);
        BEGIN
            EXECUTE statement;
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE WARNING 'the setting % is not moved: %', item.name, SQLERRM USING HINT = statement;
        END;
    END LOOP;
END
$$;

-- Drops what the file has made.
CREATE FUNCTION pg_temp.rl_drop_old(extension oid, home text, aside text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    messages text := current_setting('client_min_messages');
    kind text;
    names text;
BEGIN
    PERFORM pg_temp.rl_list_members(extension, home);
    PERFORM pg_temp.rl_list_plan();
    DELETE FROM rl_plan WHERE object LIKE '% of table ' || home || '.rl_config'; -- that column of the extension's
    PERFORM pg_temp.rl_refuse();
    PERFORM pg_temp.rl_lock('{ratelimits,rl_config,rl_blocks,rl_holds}'); -- until the file's calls have ended
    SET LOCAL client_min_messages = warning;
    EXECUTE format('ALTER TABLE %s.rl_config DROP COLUMN IF EXISTS parsed', home);
    FOR kind, names IN
        SELECT 'FUNCTION', string_agg(oid::regprocedure::text, ', ') FROM pg_proc JOIN rl_member ON objid = oid
        WHERE classid = 'pg_proc'::regclass
        UNION ALL
        SELECT 'TABLE', string_agg(oid::regclass::text, ', ') FROM pg_class JOIN rl_member ON objid = oid
        WHERE classid = 'pg_class'::regclass AND relkind = 'r'
        UNION ALL
        SELECT 'TYPE', string_agg(typ.oid::regtype::text, ', ') FROM pg_type typ JOIN rl_member ON objid = typ.oid
        JOIN pg_class c ON c.oid = typ.typrelid
        WHERE classid = 'pg_type'::regclass AND c.relkind = 'c'
    LOOP
        EXECUTE coalesce(format('DROP %s %s', kind, nullif(names, '')) || ' CASCADE', 'SELECT');
    END LOOP;
    EXECUTE format('DROP SCHEMA %s', aside);
    PERFORM set_config('client_min_messages', messages, true);
    RAISE NOTICE 'what ratelimit.sql had made is dropped';
END
$$;

DO LANGUAGE plpgsql $do$
DECLARE
    home text := quote_ident(current_setting('rl_move.home'));
    aside text := quote_ident(current_setting('rl_move.home') || '_moved');
    extension pg_extension;
    owner regrole;
    tables CONSTANT text[] := '{rl_config,rl_blocks,ratelimits,rl_holds}';
    item record;
    name text;
    copied bigint[];
BEGIN
    SELECT * INTO extension FROM pg_extension WHERE extname = 'ratelimit';
    IF extension.extname IS NOT NULL AND to_regnamespace(aside) IS NULL THEN
        RAISE EXCEPTION 'the extension ratelimit is installed already, in schema %',
            extension.extnamespace::regnamespace;
    ELSIF extension.extname IS NOT NULL THEN
        PERFORM pg_temp.rl_drop_old(extension.oid, home, aside);
        RETURN;
    ELSIF to_regclass(home || '.rl_installed') IS NULL THEN
        RAISE EXCEPTION 'there are no limits of ratelimit.sql in schema %', home;
    ELSIF to_regnamespace(aside) IS NOT NULL THEN
        RAISE EXCEPTION 'schema % exists already', aside USING HINT = 'Drop or rename it.';
    END IF;
    owner := (SELECT relowner FROM pg_class WHERE oid = to_regclass(home || '.ratelimits'));

    PERFORM pg_temp.rl_list_members(NULL, home);
    PERFORM pg_temp.rl_list_plan();
    PERFORM pg_temp.rl_refuse();
    PERFORM pg_temp.rl_lock('{rl_blocks,rl_config,ratelimits,rl_holds}');
    PERFORM pg_temp.rl_list_members(NULL, home);
    PERFORM pg_temp.rl_list_plan();
    PERFORM pg_temp.rl_refuse();
    PERFORM pg_temp.rl_list_grants();
    PERFORM pg_temp.rl_rewrite(off => true);

    -- Move aside only what has the extension's names. Waiting calls look tables up by name again: they find the
    -- extension's, and all other objects where they were.
    EXECUTE format('CREATE SCHEMA %s AUTHORIZATION %s', aside, owner);
    EXECUTE format('COMMENT ON SCHEMA %s IS %L', aside,
                   'rate limiter: what ratelimit.sql had made, until no call uses it');
    FOR item IN SELECT objid::regprocedure AS name FROM rl_member
                WHERE classid = 'pg_proc'::regclass AND NOT internal LOOP
        EXECUTE format('ALTER FUNCTION %s SET SCHEMA %s', item.name, aside);
    END LOOP;
    FOR item IN SELECT t.oid::regtype AS name FROM rl_member m JOIN pg_type t ON t.oid = m.objid
                JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c'
                WHERE m.classid = 'pg_type'::regclass AND NOT m.internal LOOP
        EXECUTE format('ALTER TYPE %s SET SCHEMA %s', item.name, aside);
    END LOOP;
    FOREACH name IN ARRAY tables LOOP EXECUTE format('ALTER TABLE %s.%s SET SCHEMA %s', home, name, aside); END LOOP;

    EXECUTE format('CREATE EXTENSION ratelimit SCHEMA %s', home);
    FOREACH name IN ARRAY tables LOOP
        copied := copied || pg_temp.rl_copy(format('%s.%s', aside, name), format('%s.%s', home, name));
    END LOOP;
    -- Waiting calls read this column.
    FOR item IN
        SELECT a.attname, format_type(a.atttypid, a.atttypmod) AS type, pg_get_expr(d.adbin, d.adrelid) AS expression
        FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = (aside || '.rl_config')::regclass AND a.attgenerated = 's'
    LOOP
        EXECUTE format('ALTER TABLE %s.rl_config ADD COLUMN %I %s GENERATED ALWAYS AS (%s) STORED',
                       home, item.attname, item.type, item.expression);
    END LOOP;
    IF owner <> (SELECT relowner FROM pg_class WHERE oid = (home || '.ratelimits')::regclass) THEN
        FOREACH name IN ARRAY tables LOOP EXECUTE format('ALTER TABLE %s.%s OWNER TO %s', home, name, owner); END LOOP;
        INSERT INTO rl_grant
        SELECT format('FUNCTION %s', oid::regprocedure), owner, 'EXECUTE', true FROM pg_proc
        WHERE pronamespace = home::regnamespace AND proname ~ '^rl_[a-z]';
    END IF;
    PERFORM pg_temp.rl_grant_again();
    PERFORM pg_temp.rl_rewrite(off => false);
    PERFORM pg_temp.rl_recompile();
    PERFORM pg_temp.rl_settings_to_database(home);
    RAISE NOTICE 'moved to the extension: % definitions, % blocks, % rows of state, % of holds', copied[1], copied[2],
        copied[3], copied[4]
        USING HINT = 'When transactions that began before have ended, run this script again: it drops what they need.';
END
$do$;

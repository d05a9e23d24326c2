-- Lets one session at a time run this file. This lock ends with the transaction.
DO LANGUAGE plpgsql $do$
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(1381257001, 1);
    PERFORM pg_catalog.set_config('rl_file.transaction', 'on', true);
END
$do$;

-- Run statement by statement, the file has lost that lock and the setting by now. So the session takes a lock, unless a
-- failed run has left it one; the last statement releases it.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF coalesce(current_setting('rl_file.transaction', true), '') <> 'on' AND NOT EXISTS (
           SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted
           AND classid = 1381257001 AND objid = 1 AND objsubid = 2
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) THEN
        PERFORM pg_advisory_lock(1381257001, 1);
    END IF;
    PERFORM set_config('search_path', path, true);
END
$do$;

-- Checks where this file runs, and creates the schema.
DO LANGUAGE plpgsql $do$
DECLARE
    version CONSTANT int := 1;
    path text := pg_catalog.current_setting('search_path');
    home oid;
    installed int;
    stranger text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF current_setting('server_version_num')::int < 140000 THEN
        RAISE EXCEPTION 'PostgreSQL % is too old', current_setting('server_version')
            USING HINT = 'It must be 14 or later.';
    END IF;
    IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'ratelimit'
               AND e.extnamespace = to_regnamespace('"ratelimit"')) THEN
        RAISE EXCEPTION 'the extension ratelimit is installed in schema "%"',
            (SELECT nspname FROM pg_namespace WHERE oid = to_regnamespace('"ratelimit"'))
            USING HINT = 'This file is for databases without it.';
    END IF;
    IF to_regnamespace('"ratelimit"') IS NULL THEN
        CREATE SCHEMA "ratelimit";
        COMMENT ON SCHEMA "ratelimit" IS 'rate limiter';
        EXECUTE coalesce((SELECT format('REVOKE ALL ON SCHEMA "ratelimit" FROM %s CASCADE', string_agg(DISTINCT
                CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ', '))
            FROM pg_namespace n, aclexplode(n.nspacl) a
            WHERE n.oid = to_regnamespace('"ratelimit"') AND a.grantee <> n.nspowner HAVING count(*) > 0), 'SELECT');
    END IF;
    -- An object of another role there would run with this role's rights, or be read.
    home := to_regnamespace('"ratelimit"');
    SELECT object INTO stranger FROM (
        SELECT format('schema "%s"', nspname), nspowner FROM pg_namespace WHERE oid = home
        UNION ALL SELECT format('relation "%s"', relname), relowner FROM pg_class WHERE relnamespace = home
        UNION ALL SELECT format('function "%s"', proname), proowner FROM pg_proc WHERE pronamespace = home
        UNION ALL SELECT format('type "%s"', typname), typowner FROM pg_type WHERE typnamespace = home
        UNION ALL SELECT format('operator "%s"', oprname), oprowner FROM pg_operator WHERE oprnamespace = home
    ) AS objects (object, owner)
    WHERE owner <> (SELECT oid FROM pg_roles WHERE rolname = current_user) LIMIT 1;
    IF stranger IS NOT NULL THEN
        RAISE EXCEPTION '% belongs to another role', stranger
            USING HINT = 'Run this file as its owner, or install into another schema.';
    END IF;
    IF to_regclass('ratelimit.rl_installed') IS NOT NULL THEN
        EXECUTE 'SELECT max(version) FROM ONLY ratelimit.rl_installed' INTO installed;
        IF installed > version THEN
            RAISE EXCEPTION 'version % is installed, and this file is version %', installed, version
                USING HINT = 'Run the newer file.';
        END IF;
    END IF;
    PERFORM set_config('search_path', path, true);
END
$do$;

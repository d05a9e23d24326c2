-- Checks where this file may run, and makes the schema and the types.
DO LANGUAGE plpgsql $do$
DECLARE
    version CONSTANT int := 1;
    path text := pg_catalog.current_setting('search_path');
    installed int;
    stranger text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF current_setting('server_version_num')::int < 140000 THEN
        RAISE EXCEPTION 'PostgreSQL % is too old', current_setting('server_version')
            USING HINT = 'It must be 14 or later.';
    END IF;
    IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'ratelimit'
               AND e.extnamespace = to_regnamespace('ratelimit')) THEN
        RAISE EXCEPTION 'the extension ratelimit is installed in schema "ratelimit"'
            USING HINT = 'This file is for databases without it.';
    END IF;

    -- What another role has made there would run as this one, or be read.
    IF to_regnamespace('ratelimit') IS NULL THEN
        CREATE SCHEMA ratelimit;
        COMMENT ON SCHEMA ratelimit IS 'rate limiter';
        EXECUTE coalesce((SELECT format('REVOKE ALL ON SCHEMA ratelimit FROM %s CASCADE', string_agg(DISTINCT
                CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ', '))
            FROM pg_namespace n, aclexplode(n.nspacl) a
            WHERE n.oid = 'ratelimit'::regnamespace AND a.grantee <> n.nspowner HAVING count(*) > 0), 'SELECT');
    END IF;
    SELECT object INTO stranger FROM (
        SELECT 'schema "ratelimit"', nspowner FROM pg_namespace WHERE nspname = 'ratelimit'
        UNION ALL SELECT format('relation "%s"', relname), relowner FROM pg_class
        WHERE relnamespace = 'ratelimit'::regnamespace
        UNION ALL SELECT format('function "%s"', proname), proowner FROM pg_proc
        WHERE pronamespace = 'ratelimit'::regnamespace
        UNION ALL SELECT format('type "%s"', typname), typowner FROM pg_type
        WHERE typnamespace = 'ratelimit'::regnamespace
        UNION ALL SELECT format('operator "%s"', oprname), oprowner FROM pg_operator
        WHERE oprnamespace = 'ratelimit'::regnamespace
    ) AS objects (object, owner)
    WHERE owner <> (SELECT oid FROM pg_roles WHERE rolname = current_user) LIMIT 1;
    IF stranger IS NOT NULL THEN
        RAISE EXCEPTION '% belongs to another role', stranger
            USING HINT = 'Run this file as its owner, or install into another schema.';
    END IF;
    IF EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'ratelimit'
               AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) THEN
        RAISE EXCEPTION 'other roles can create objects in schema "ratelimit"'
            USING HINT = 'Revoke that, or install into another schema.';
    END IF;

    IF to_regclass('ratelimit.rl_version') IS NOT NULL THEN
        EXECUTE 'SELECT max(version) FROM ONLY ratelimit.rl_version' INTO installed;
        IF installed > version THEN
            RAISE EXCEPTION 'version % is installed, and this file is version %', installed, version
                USING HINT = 'Run the newer file.';
        END IF;
    END IF;

    IF to_regtype('ratelimit.rl_result') IS NULL THEN
        CREATE TYPE ratelimit.rl_result AS (
            ok boolean, retry_after double precision, retry_at timestamptz,
            remaining double precision, capacity double precision, reset_at timestamptz
        );
        COMMENT ON TYPE ratelimit.rl_result IS 'result of a call of the rate limiter';
    END IF;
    IF to_regtype('ratelimit._limit') IS NULL THEN
        -- A config as calls read it. Kinds: 1 token bucket, 2 fixed window, 3 sliding window, 4 sliding log,
        -- 5 concurrency, 6 unlimited. Tokens; periods and times in microseconds, since 1970.
        CREATE TYPE ratelimit._limit AS (
            kind smallint, rate double precision, period bigint, capacity double precision, tolerance double precision,
            max_reserved double precision, enforce boolean, keyed boolean, overage boolean, start bigint,
            first_request boolean, zone text, months boolean, every int, first_date date,
            usual boolean, fresh_prior double precision -- of a token bucket or a fixed window without options
        );
        COMMENT ON TYPE ratelimit._limit IS 'rate limiter, internal';
    END IF;
    IF to_regtype('ratelimit._state') IS NULL THEN
        CREATE TYPE ratelimit._state AS (value double precision, ts bigint, prior double precision, log timestamptz[]);
        COMMENT ON TYPE ratelimit._state IS 'rate limiter, internal';
    END IF;
    IF to_regtype('ratelimit._decision') IS NULL THEN
        CREATE TYPE ratelimit._decision AS (
            ok boolean, wait bigint, remaining double precision, capacity double precision, reset_at bigint, at bigint,
            changed boolean, enforced boolean, blocked boolean, forever boolean,
            value double precision, ts bigint, prior double precision, log timestamptz[]
        );
        COMMENT ON TYPE ratelimit._decision IS 'rate limiter, internal';
    END IF;
    PERFORM set_config('search_path', path, true);
END
$do$;

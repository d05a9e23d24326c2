-- The parsed config of a name and key as text, for rl_config: so its type can change. The same under any settings. NULL
-- for a plan. An error says which name's config it is.
CREATE OR REPLACE FUNCTION ratelimit._written(name text, key text, config jsonb) RETURNS text
IMMUTABLE STRICT LANGUAGE plpgsql SET extra_float_digits = 1 SET datestyle = 'ISO' AS $$
DECLARE
    problem text;
    detail text;
    hint text;
BEGIN
    IF ratelimit._plan_name(config, key) IS NOT NULL THEN RETURN NULL; END IF;
    RETURN ratelimit._parse(config)::text;
EXCEPTION WHEN invalid_parameter_value THEN
    GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    PERFORM ratelimit._raise('22023', regexp_replace(problem, '^invalid rate limit config',
        replace(format('invalid config for rate limit "%s"', name), E'\\', E'\\\\')), nullif(detail, ''),
        nullif(hint, ''));
    RETURN NULL;
END
$$;

-- The tables, as the extension has them. Only their owner has rights on them, whatever default privileges grant.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    t text;
    defined record;
    stale boolean := false;
    detail text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOREACH t IN ARRAY '{rateLimits,rl_config,rl_blocks,rl_holds,rl_settings,rl_installed}'::text[] LOOP
        CONTINUE WHEN to_regclass(format('"ratelimit".%s', t)) IS NOT NULL;
        CASE t
@tables@
        WHEN 'rl_settings' THEN
            CREATE TABLE ratelimit.rl_settings (
                name   text COLLATE "C" PRIMARY KEY,
                value  text NOT NULL,
                CONSTRAINT rl_settings_values CHECK (CASE name WHEN 'error_style' THEN value IN ('pt429', 'pgrst')
                    WHEN 'log_denials' THEN value ~ '^(0?[.][0-9]{1,15}|[01]([.]0*)?)$' ELSE false END)
            );
            COMMENT ON TABLE ratelimit.rl_settings IS
                'rate limiter: settings of the database';
        ELSE
            CREATE TABLE ratelimit.rl_installed (version int NOT NULL, since timestamptz NOT NULL DEFAULT now());
            COMMENT ON TABLE ratelimit.rl_installed IS 'rate limiter: versions of the file that made this';
        END CASE;
        -- Check what triggers of the extension check, and that no key has shards.
        CASE t
        WHEN 'rateLimits' THEN ALTER TABLE ratelimit.rateLimits ADD CHECK (shard = 0);
        WHEN 'rl_config' THEN
            ALTER TABLE ratelimit.rl_config ADD CHECK (ratelimit._valid(name, key)),
                ADD parsed text GENERATED ALWAYS AS (ratelimit._written(name, key, config)) STORED;
        WHEN 'rl_blocks' THEN
            ALTER TABLE ratelimit.rl_blocks ADD CHECK (ratelimit._valid(name, key)),
                ADD CHECK (octet_length(reason) <= 200);
        WHEN 'rl_holds' THEN
            COMMENT ON INDEX ratelimit.rl_holds_of_key IS 'finds a key''s holds in the order in which they expire';
        ELSE NULL;
        END CASE;
        PERFORM ratelimit._close('table', lower(t));
    END LOOP;
    INSERT INTO ratelimit.rl_installed (version) SELECT 1 WHERE NOT EXISTS (
        SELECT FROM ONLY ratelimit.rl_installed v WHERE v.version = 1);

    -- Parse what another version has parsed.
    BEGIN
        FOR defined IN SELECT c.name, c.key, c.config, c.parsed FROM ONLY ratelimit.rl_config c LOOP
            stale := stale OR defined.parsed
                IS DISTINCT FROM ratelimit._written(defined.name, defined.key, defined.config);
        END LOOP;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
        RAISE EXCEPTION 'the config of rate limit "%" is no longer allowed: %', defined.name,
            replace(SQLERRM, format('invalid config for rate limit "%s": ', defined.name), '')
            USING ERRCODE = SQLSTATE, DETAIL = detail, HINT = 'Define it otherwise, and run this file again.';
    END;
    IF stale THEN
        UPDATE ONLY ratelimit.rl_config SET config = config;
    END IF;
    PERFORM set_config('search_path', path, true);
END
$do$;

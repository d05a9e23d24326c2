-- The tables, as the extension has them. Nobody but their owner has a right on them, also where default privileges
-- grant some.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    granted record;
    t text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOREACH t IN ARRAY '{ratelimits,rl_config,rl_blocks,rl_settings,rl_version}'::text[] LOOP
        CONTINUE WHEN to_regclass('ratelimit.' || t) IS NOT NULL;
        CASE t
        WHEN 'ratelimits' THEN
            CREATE TABLE ratelimit.rateLimits (
                name   text COLLATE "C" NOT NULL,
                key    text COLLATE "C" NOT NULL DEFAULT '',
                shard  int NOT NULL DEFAULT 0 CHECK (shard = 0),
                value  double precision NOT NULL,
                ts     timestamptz NOT NULL,
                prior  double precision,
                log    timestamptz[],
                PRIMARY KEY (name, key, shard)
            ) WITH (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
                    autovacuum_vacuum_cost_delay = 0);
            COMMENT ON TABLE ratelimit.rateLimits IS
                'rate limiter: state of every limit in use, one row per (name, key)';
        WHEN 'rl_config' THEN
            CREATE TABLE ratelimit.rl_config (
                name    text COLLATE "C" NOT NULL,
                key     text COLLATE "C" NOT NULL DEFAULT '',
                config  jsonb NOT NULL,
                parsed  ratelimit._limit GENERATED ALWAYS AS (ratelimit._parse(config)) STORED,
                PRIMARY KEY (name, key), CHECK (ratelimit._valid(name, key))
            );
            COMMENT ON TABLE ratelimit.rl_config IS
                'rate limiter: defined limits, and overrides for a key';
        WHEN 'rl_blocks' THEN
            CREATE TABLE ratelimit.rl_blocks (
                name   text COLLATE "C" NOT NULL,
                key    text COLLATE "C" NOT NULL DEFAULT '',
                until  timestamptz NOT NULL,
                PRIMARY KEY (name, key), CHECK (ratelimit._valid(name, key))
            );
            COMMENT ON TABLE ratelimit.rl_blocks IS
                'rate limiter: keys that are blocked, and until when';
        WHEN 'rl_settings' THEN
            CREATE TABLE ratelimit.rl_settings (
                name   text COLLATE "C" PRIMARY KEY,
                value  text NOT NULL
            );
            COMMENT ON TABLE ratelimit.rl_settings IS
                'rate limiter: settings of the database';
        ELSE
            CREATE TABLE ratelimit.rl_version (version int NOT NULL, since timestamptz NOT NULL DEFAULT now());
            COMMENT ON TABLE ratelimit.rl_version IS 'rate limiter: installed versions';
        END CASE;
        FOR granted IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
                       FROM pg_class c, aclexplode(c.relacl) a
                       WHERE c.oid = to_regclass('ratelimit.' || t) AND a.grantee <> c.relowner LOOP
            EXECUTE format('REVOKE ALL ON ratelimit.%I FROM %s CASCADE', t, granted.role);
        END LOOP;
    END LOOP;
    -- Of version 1, which had fewer settings, in place of its own.
    IF NOT EXISTS (SELECT FROM pg_constraint
                   WHERE conrelid = 'ratelimit.rl_settings'::regclass AND conname = 'rl_settings_values') THEN
        ALTER TABLE ratelimit.rl_settings DROP CONSTRAINT IF EXISTS rl_settings_name_check,
            DROP CONSTRAINT IF EXISTS rl_settings_value_check,
            ADD CONSTRAINT rl_settings_values CHECK (CASE name WHEN 'error_style' THEN value IN ('pt429', 'pgrst')
                WHEN 'log_denials' THEN value ~ '^(0?[.][0-9]{1,15}|[01]([.]0*)?)$' ELSE false END);
    END IF;
    INSERT INTO ratelimit.rl_version (version) SELECT 1 WHERE NOT EXISTS (
        SELECT FROM ONLY ratelimit.rl_version v WHERE v.version = 1);
    PERFORM set_config('search_path', path, true);
END
$do$;

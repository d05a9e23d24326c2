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
    FOREACH t IN ARRAY '{ratelimits,rl_config,rl_blocks,rl_holds,rl_settings,rl_installed}'::text[] LOOP
        CONTINUE WHEN to_regclass(format('"ratelimit".%s', t)) IS NOT NULL;
        CASE t
        WHEN 'ratelimits' THEN
            CREATE TABLE ratelimit.rateLimits (
                name   text COLLATE "C" NOT NULL,
                key    text COLLATE "C" NOT NULL DEFAULT '',
                shard  int NOT NULL DEFAULT 0 CHECK (shard = 0),
                -- t tokens of a token bucket or fixed window, s sliding window, l sliding log, c concurrency; - was
                -- reset, the same as no row; # and =, which only the extension writes, are the same here
                kind   "char" NOT NULL,
                value  double precision NOT NULL, -- tokens left at ts; sliding kinds: used; concurrency: slots taken
                ts     timestamptz NOT NULL, -- when value was counted; window kinds: start of the window
                added  double precision, -- fixed window: tokens that this one has added; NULL: unknown
                prior  double precision, -- sliding window: tokens used in the one before
                log    timestamptz[], -- sliding log: when each token was taken
                leases bigint[], -- concurrency: for each slot its lease's id, and when that expires, in us since 1970
                holds_due timestamptz, -- no later than the first hold that gives tokens back; NULL: there is none
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
                parsed  text GENERATED ALWAYS AS (ratelimit._written(name, key, config)) STORED,
                PRIMARY KEY (name, key), CHECK (ratelimit._valid(name, key))
            );
            COMMENT ON TABLE ratelimit.rl_config IS
                'rate limiter: defined limits, and overrides for a key';
        WHEN 'rl_blocks' THEN
            CREATE TABLE ratelimit.rl_blocks (
                name   text COLLATE "C" NOT NULL,
                key    text COLLATE "C" NOT NULL DEFAULT '',
                until  timestamptz NOT NULL,
                reason text CHECK (octet_length(reason) <= 200),
                PRIMARY KEY (name, key), CHECK (ratelimit._valid(name, key))
            );
            COMMENT ON TABLE ratelimit.rl_blocks IS
                'rate limiter: keys that are blocked, and until when';
        WHEN 'rl_holds' THEN
            CREATE TABLE ratelimit.rl_holds (
                id         text COLLATE "C" NOT NULL,
                name       text COLLATE "C" NOT NULL,
                key        text COLLATE "C" NOT NULL DEFAULT '',
                count      double precision NOT NULL, -- taken, and not given back
                spent      double precision NOT NULL DEFAULT 0, -- the part of count that can't come back, or is slots
                returned   double precision NOT NULL DEFAULT 0, -- came back when it expired
                taken_at   timestamptz NOT NULL, -- when those beyond spent were taken; of a reservation, its start
                expires_at timestamptz NOT NULL,
                charge     boolean NOT NULL, -- whether they stay taken when it expires
                lease      bigint, -- of slots: the id of their lease; NULL: it has tokens
                config     jsonb, -- the call's, where the name isn't defined for the key
                PRIMARY KEY (id, name, key)
            ) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
                    autovacuum_vacuum_cost_delay = 0);
            CREATE INDEX rl_holds_of_key ON ratelimit.rl_holds (name, key, charge, expires_at);
            COMMENT ON TABLE ratelimit.rl_holds IS
                'rate limiter: tokens that are held until they are settled or expire';
            COMMENT ON INDEX ratelimit.rl_holds_of_key IS 'finds a key''s holds in the order in which they expire';
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
        PERFORM ratelimit._close('table', t);
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

-- Gives the functions their rights, in one statement: until then a new function runs as its caller, who has no right
-- on the tables. Nobody but the owner may call it then, also where default privileges grant that; what needs no
-- rights, anybody. What was granted since an earlier run stays: a function that has a comment was closed by that.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    entry CONSTANT jsonb := jsonb_build_object(
        'rl_limit', 'takes tokens from a rate limit, inside the caller''s transaction',
        'rl_check', 'reports whether rl_limit would succeed; locks and writes nothing',
        'rl_credit', 'gives back tokens that were not used; a negative count takes tokens unconditionally',
        'rl_limit_all', 'takes tokens from several rate limits, all or nothing',
        'rl_check_all', 'reports whether rl_limit_all would succeed; locks and writes nothing',
        'rl_acquire', 'takes slots of a concurrency limit; returns a lease, or when to retry',
        'rl_extend', 'extends a lease; returns when it expires, NULL if it had expired or was released',
        'rl_release', 'releases the slots of a lease; false if it had expired or was released',
        'rl_define', 'defines a rate limit, or its override for one key; false if nothing changed',
        'rl_undefine', 'drops a rate limit, or its override for one key; keeps the state',
        'rl_block', 'blocks a key of a rate limit for a duration or until a time; returns the end',
        'rl_unblock', 'ends the block of a key; false if it was not blocked',
        'rl_reset', 'makes a rate limit full again; false if there was nothing to reset',
        'rl_reset_all', 'makes a rate limit full again for every key; returns how many were reset',
        'rl_prune', 'deletes a batch of expired blocks and idle rows; returns how many',
        'rl_status', 'current state of the rate limits in use, one row per name and key',
        'rl_calculate', 'evaluates a call on a state at a time, without side effects',
        'rl_state', 'state of a rate limit, as rl_calculate accepts it; NULL: the limit is full',
        'rl_headers', 'HTTP headers for the result of a call; style ietf, github or postgrest',
        'rl_trigger', 'trigger: takes tokens for the rows written; arguments: name, key=<column>, count=<column>');
    pure CONSTANT jsonb := '["rl_token_bucket", "rl_fixed_window", "rl_sliding_window", "rl_sliding_log",
        "rl_concurrency", "rl_unlimited", "rl_calculate", "_parse", "_valid"]';
    -- What only errors, definitions and log lines need: there a path of their own costs no call anything.
    seldom CONSTANT text := '^_(a|allowed|bad|bad_config|bad_state|build|check_fields|check_support|dates|denied|'
        'duration|example|first_date|keyed|kinds|literal|log|misuse|not_written|null|period|policy|raise|set_clock|'
        'short|start|type_of|unsupported|with_flag|wrong_kind|zones)$';
    f record;
    roles text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOR f IN SELECT p.oid, p.proname AS name, p.oid::regprocedure AS signature,
                    obj_description(p.oid, 'pg_proc') AS known
             FROM pg_proc p WHERE p.pronamespace = 'ratelimit'::regnamespace LOOP
        IF f.known IS NULL THEN
            SELECT string_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ', ')
            INTO roles FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
            WHERE p.oid = f.oid AND a.grantee <> p.proowner;
            IF roles IS NOT NULL THEN
                EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %s CASCADE', f.signature, roles);
            END IF;
            IF pure ? f.name THEN EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', f.signature); END IF;
            EXECUTE format('COMMENT ON FUNCTION %s IS %L', f.signature, coalesce(entry ->> f.name,
                CASE WHEN pure ? f.name AND f.name ~ '^rl_'
                     THEN 'config of a limit: ' || replace(substr(f.name, 4), '_', ' ')
                     WHEN f.name ~ '^rl_' THEN 'only in the extension ratelimit' ELSE 'rate limiter, internal' END));
        END IF;
        IF entry ? f.name OR pure ? f.name OR f.name ~ '^rl_' THEN
            -- Rows are found by their keys, also while statistics say that the tables are small.
            EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp%s', f.signature,
                CASE WHEN entry ? f.name THEN ' SET enable_seqscan = off' ELSE '' END);
        END IF;
        IF f.name ~ seldom THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', f.signature);
        END IF;
        IF f.name = 'rl_trigger' THEN
            -- What the text of a key can depend on.
            EXECUTE format('ALTER FUNCTION %s SET datestyle = ''ISO, MDY'' SET intervalstyle = postgres '
                'SET timezone = ''GMT'' SET bytea_output = hex SET extra_float_digits = 1 SET lc_monetary = ''C'' '
                'SET quote_all_identifiers = off', f.signature);
        END IF;
    END LOOP;
    PERFORM set_config('search_path', path, true);
END
$do$;

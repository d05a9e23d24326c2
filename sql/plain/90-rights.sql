-- Gives the functions their rights, in one statement: until then new functions run as their caller, without rights on
-- the tables. Only the owner may call them, whatever default privileges grant, and PUBLIC those that need no rights.
-- Grants made since an earlier run stay.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    entry CONSTANT jsonb := jsonb_build_object(
        'rl_limit', 'takes tokens from a rate limit, inside the caller''s transaction',
        'rl_check', 'reports whether rl_limit would succeed; locks and writes nothing',
        'rl_take', 'takes as many tokens as a rate limit has, up to count, or none if it has fewer than at_least',
        'rl_hold', 'takes tokens and holds them until they are settled or expire; the same id extends the hold',
        'rl_settle', 'settles a hold: gives back what was not used, takes what was used beyond; false if it is settled',
        'rl_hold_all', 'holds tokens of several rate limits, and slots of concurrency limits, all or nothing',
        'rl_settle_all', 'settles a hold of several limits; used is a number for all, or an object by name',
        'rl_credit', 'gives back tokens that were not used; a negative count takes tokens unconditionally',
        'rl_limit_all', 'takes tokens from several rate limits, all or nothing',
        'rl_limit_each', 'takes tokens for each request on its own; a wrong or locked one has an error in its row',
        'rl_check_all', 'reports whether rl_limit_all would succeed; locks and writes nothing',
        'rl_acquire', 'takes slots of a concurrency limit; returns a lease, or when to retry',
        'rl_extend', 'extends a lease; returns when it expires, NULL if it had expired or was released',
        'rl_release', 'releases the slots of a lease; false if it had expired or was released',
        'rl_define', 'defines a rate limit, or its override for one key; false if nothing changed',
        'rl_undefine', 'drops a rate limit, or its override for one key; keeps the state',
        'rl_block', 'blocks a key of a rate limit for a duration or until a time, for a reason; returns the end',
        'rl_unblock', 'ends the block of a key; false if it was not blocked',
        'rl_reset', 'makes a rate limit full again; false if there was nothing to reset',
        'rl_reset_keys', 'makes a rate limit full again for every key; returns how many were reset',
        'rl_forget', 'erases a key of all rate limits: state, leases, overrides and blocks; returns how many',
        'rl_prune', 'deletes a batch of expired blocks and idle rows; returns how many',
        'rl_status', 'current state of the rate limits in use, one row per name and key',
        'rl_calculate', 'evaluates a call on a state at a time, without side effects',
        'rl_value', 'config and state of a rate limit, as rl_calculate accepts them, the time, and the end of a block',
        'rl_headers', 'HTTP headers for the result of a call; style ietf, github or postgrest',
        'rl_headers_all', 'HTTP headers for the rows of rl_limit_all; style ietf, github or postgrest',
        'rl_trigger', 'trigger: takes tokens for the rows written; arguments: name, key=<column>, count=<column>',
        'rl_version', 'version of the rate limiter',
        'rl_key', 'key made of several texts, as a JSON array: that of a trigger with several columns',
        'rl_address_key', 'key of a client''s address: IPv4, also where IPv6 maps it, as it is; of IPv6, '
            'the network of masklen bits');
    -- Used by errors, definitions and log lines only, where a search_path of their own costs no call anything.
    seldom CONSTANT text := '^_(allowed|bad|bad_config|bad_hold|bad_row|bad_state|build|called|check_fields|'
        'check_support|dates|denied|duration|example|first_date|keyed|literal|log|misuse|not_written|null|period|raise|'
        'set_clock|short|start|type_of|unsupported|with_flag|wrong_kind|zones)$';
    f record;
    taken text[] := '{}';
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOR f IN SELECT m.name, split_part(m.name, '(', 1) AS short, m.oid IS NULL AS is_new,
                    o.object::regprocedure AS function, ratelimit._is_open(m.name) AS is_open
             FROM ONLY ratelimit.rl_made m CROSS JOIN LATERAL ratelimit._object(m.kind, m.name) o
             WHERE m.kind = 'function' ORDER BY m.name LOOP
        IF f.function IS NULL THEN
            RAISE EXCEPTION 'the file makes no function %, which it lists', f.name;
        END IF;
        taken := taken || ratelimit._close('function', f.name);
        IF f.is_open AND f.is_new THEN EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', f.function); END IF;
        IF obj_description(f.function, 'pg_proc') IS NULL THEN
            EXECUTE format('COMMENT ON FUNCTION %s IS %L', f.function, coalesce(entry ->> f.short,
                CASE WHEN f.is_open AND f.short ~ '^rl_'
                     THEN 'config of a limit: ' || replace(substr(f.short, 4), '_', ' ')
                     WHEN f.short ~ '^rl_' THEN 'only in the extension ratelimit' ELSE 'rate limiter, internal' END));
        END IF;
        IF entry ? f.short OR f.is_open OR f.short ~ '^rl_' THEN
            -- Find rows by key, even if statistics say that the tables are small.
            EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp%s', f.function,
                CASE WHEN entry ? f.short THEN ' SET enable_seqscan = off' ELSE '' END);
        END IF;
        IF f.short ~ seldom THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', f.function);
        END IF;
        IF f.short = 'rl_trigger' THEN
            -- Settings on which the text of a key can depend.
            EXECUTE format('ALTER FUNCTION %s SET datestyle = ''ISO, MDY'' SET intervalstyle = postgres '
                'SET timezone = ''GMT'' SET bytea_output = hex SET extra_float_digits = 1 SET lc_monetary = ''C'' '
                'SET quote_all_identifiers = off', f.function);
        END IF;
    END LOOP;
    PERFORM ratelimit._say_taken(taken);
    -- The next run compares with this.
    UPDATE ONLY ratelimit.rl_made AS m SET server = ratelimit._server(), oid = o.object, acl = o.grants
    FROM ONLY ratelimit.rl_made AS same CROSS JOIN LATERAL ratelimit._object(same.kind, same.name) o
    WHERE same.kind = m.kind AND same.name = m.name
      AND (m.server, m.oid, m.acl) IS DISTINCT FROM (ratelimit._server(), o.object, o.grants);
    DELETE FROM ONLY ratelimit.rl_made m USING ONLY ratelimit.rl_made same
    WHERE same.kind = m.kind AND same.name = m.name AND same.ctid < m.ctid;
    PERFORM set_config('search_path', path, true);
END
$do$;

-- Lets the next session run the file.
DO LANGUAGE plpgsql $do$
BEGIN
    IF coalesce(pg_catalog.current_setting('rl_file.transaction', true), '') OPERATOR(pg_catalog.<>) 'on' THEN
        PERFORM pg_catalog.pg_advisory_unlock(1381257001, 1);
    END IF;
END
$do$;

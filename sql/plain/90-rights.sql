-- Gives the functions their rights, in one statement: until then new functions run as their caller, without rights on
-- the tables. Only the owner may call them, whatever default privileges grant, and PUBLIC those that need no rights.
-- Grants made since an earlier run stay.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    -- One a line: a name, and what the extension says of it; an indented line continues the one above.
    comments CONSTANT text := replace('
@comments@
', E'\n    ', '');
    -- Used by errors, definitions and log lines only, where a search_path of their own costs no call anything.
    seldom CONSTANT text := '^_(allowed|bad|bad_config|bad_hold|bad_row|bad_state|build|called|check_fields|'
        'denied|duration|example|first_date|keyed|literal|log|not_written|null|raise|'
        'set_clock|short|start|type_of|unsupported|wrong_kind|zones)$';
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
            EXECUTE format('COMMENT ON FUNCTION %s IS %L', f.function, CASE
                WHEN f.short !~ '^rl_' THEN 'rate limiter, internal'
                WHEN EXISTS (SELECT FROM pg_proc p WHERE p.oid = f.function AND p.prosrc ~ '[.]_unsupported[(]')
                THEN 'only in the extension ratelimit'
                ELSE substring(comments FROM format(E'\n%s ([^\n]+)', f.short)) END);
        END IF;
        IF f.is_open OR f.short ~ '^rl_' THEN
            -- Find rows by key, even if statistics say that the tables are small.
            EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp%s', f.function,
                CASE WHEN f.is_open THEN '' ELSE ' SET enable_seqscan = off' END);
        END IF;
        IF f.short ~ seldom THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', f.function);
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

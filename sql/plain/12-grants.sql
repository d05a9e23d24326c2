-- Grants of a file that runs again. Each run records the oid and grants of what it has made. An object that is still
-- the recorded one keeps its grants, PUBLIC's too: its owner gave them. Another one has been restored or copied by
-- pg_upgrade, perhaps without grants, or where default privileges opened it.

-- Functions that every role may call: they need no rights.
CREATE OR REPLACE FUNCTION ratelimit._is_open(name text) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
    SELECT name ~ '^(rl_(token_bucket|fixed_window|sliding_window|sliding_log|concurrency|unlimited|calculate|key'
                  '|address_key|version|(\w+_)?result)|_parse|_plan_name|_written|_valid)([(]|$)'
$$;

-- Identifies the cluster, since oids may repeat in another one that restores a dump; 0 where the host hides it.
CREATE OR REPLACE FUNCTION ratelimit._server() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT s.system_identifier FROM pg_catalog.pg_control_system() AS s);
EXCEPTION WHEN OTHERS THEN
    RETURN 0;
END
$$;

-- Finds an object of the file: its oid, owner and grants, such as {"role": ["EXECUTE"]}, with a * for the grant option
-- and '' for PUBLIC. Names are without the schema.
CREATE OR REPLACE FUNCTION ratelimit._object(kind text, name text, OUT letter "char", OUT object oid, OUT owner oid,
    OUT items aclitem[], OUT grants jsonb) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF kind = 'schema' THEN
        SELECT 'n', n.oid, n.nspowner, coalesce(n.nspacl, acldefault('n', n.nspowner))
        INTO letter, object, owner, items FROM pg_namespace n WHERE n.oid = to_regnamespace('"ratelimit"');
    ELSIF kind = 'table' THEN
        SELECT 'r', c.oid, c.relowner, coalesce(c.relacl, acldefault('r', c.relowner))
        INTO letter, object, owner, items FROM pg_class c WHERE c.oid = to_regclass(format('"ratelimit".%s', name));
    ELSIF kind = 'type' THEN
        SELECT 'T', t.oid, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner))
        INTO letter, object, owner, items FROM pg_type t WHERE t.oid = to_regtype(format('"ratelimit".%s', name));
    ELSIF EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = to_regnamespace('"ratelimit"')
                  AND p.proname = split_part($2, '(', 1)) THEN
        BEGIN
            SELECT 'f', p.oid, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
            INTO letter, object, owner, items
            FROM pg_proc p WHERE p.oid = to_regprocedure(format('"ratelimit".%s', name)) AND p.prokind IN ('f', 'w');
        EXCEPTION WHEN undefined_object THEN
            NULL; -- an argument is of a type that isn't there yet
        END;
    END IF;
    SELECT coalesce(jsonb_object_agg(g.role, g.privileges), '{}') INTO grants FROM (
        SELECT CASE a.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(a.grantee) END,
               jsonb_agg(a.privilege_type)
               || coalesce(jsonb_agg(a.privilege_type || '*') FILTER (WHERE a.is_grantable), '[]')
        FROM aclexplode(items) a WHERE a.grantee <> owner GROUP BY a.grantee
    ) AS g (role, privileges);
END
$$;

-- Revokes what no role granted on an object that isn't the recorded one, and returns a list of it. Without a record
-- that is everything; with one, grants to PUBLIC and those of default privileges, unless the record has them.
CREATE OR REPLACE FUNCTION ratelimit._close(kind text, name text) RETURNS text[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o record := ratelimit._object(kind, name);
    made record;
    a record;
    had jsonb;
    only_option boolean;
    taken text[] := ARRAY[]::text[];
BEGIN
    SELECT m.* INTO made FROM ONLY ratelimit.rl_made m WHERE m.kind = $1 AND m.name = $2
    ORDER BY m.oid = o.object AND m.server = ratelimit._server() DESC NULLS LAST LIMIT 1;
    IF made.oid = o.object AND made.server = ratelimit._server() THEN RETURN taken; END IF;
    FOR a IN SELECT i.*, CASE i.grantee WHEN 0 THEN 'PUBLIC' ELSE i.grantee::regrole::text END AS role
             FROM aclexplode(o.items) i WHERE i.grantee <> o.owner LOOP
        CONTINUE WHEN a.grantee = 0 AND made.acl IS NULL AND ratelimit._is_open(name) OR made.oid IS NOT NULL
            AND a.grantee <> 0 AND NOT EXISTS (
                SELECT FROM pg_default_acl d, aclexplode(d.defaclacl) g
                WHERE d.defaclobjtype = o.letter AND d.defaclnamespace IN (0, to_regnamespace('"ratelimit"'))
                  AND g.grantee = a.grantee AND g.privilege_type = a.privilege_type);
        had := made.acl -> CASE a.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(a.grantee) END;
        only_option := coalesce(had ? a.privilege_type, false);
        CONTINUE WHEN only_option AND (NOT a.is_grantable OR had ? (a.privilege_type || '*'));
        EXECUTE format('REVOKE %s%s ON %s FROM %s CASCADE', CASE WHEN only_option THEN 'GRANT OPTION FOR ' ELSE '' END,
            a.privilege_type, CASE kind WHEN 'schema' THEN 'SCHEMA "ratelimit"'
                                        ELSE format('%s "ratelimit".%s', upper(kind), name) END, a.role);
        IF made.oid IS NOT NULL THEN
            taken := taken || format('%s%s on %s from %s',
                CASE WHEN only_option THEN 'the grant option of ' ELSE '' END, a.privilege_type,
                CASE WHEN name ~ '^_' THEN format('internal %ss', kind)
                    ELSE concat_ws(' ', kind, nullif(split_part(name, '(', 1), '')) END, a.role);
        END IF;
    END LOOP;
    RETURN taken;
END
$$;

-- Reports what was revoked.
CREATE OR REPLACE FUNCTION ratelimit._say_taken(taken text[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(taken) > 0 THEN
        RAISE NOTICE 'revoked what a restore or default privileges had granted' USING DETAIL =
            (SELECT string_agg(privileges || what, E'\n' ORDER BY what)
             FROM (SELECT substr(t, strpos(t, ' on ')), string_agg(DISTINCT split_part(t, ' on ', 1), ', ')
                   FROM unnest(taken) t GROUP BY 1) AS g (what, privileges));
    END IF;
END
$$;

-- Lists what the file makes, drops what only earlier versions made, and revokes grants on restored objects, before
-- anything is made. Other objects in the schema are their owner's: no run changes them.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    -- One a line; an indented line continues the one above. A test compares the list with the catalogs.
    own text := '
@made@
schema
';
    m record;
    first_run boolean;
    taken text[] := '{}';
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    own := replace(own, E'\n    ', '');
    first_run := to_regclass('ratelimit.rl_made') IS NULL;
    IF first_run THEN
        CREATE TABLE ratelimit.rl_made (
            kind    text COLLATE "C" NOT NULL,
            name    text COLLATE "C" NOT NULL, -- without the schema
            server  bigint,
            oid     oid,   -- NULL: not yet closed; 0: of a restore without this row
            acl     jsonb  -- at the end of the last run; NULL: unknown
        ); -- No key: a dump of the data alone adds the rows of another database.
        COMMENT ON TABLE ratelimit.rl_made IS 'rate limiter: what the file has made, and the grants when it last ran';
        PERFORM ratelimit._close('table', 'rl_made');
    END IF;
    INSERT INTO ratelimit.rl_made (kind, name)
    SELECT split_part(line, ' ', 1), substr(line, strpos(line || ' ', ' ') + 1)
    FROM string_to_table(btrim(own, E'\n'), E'\n') AS made (line)
    WHERE NOT EXISTS (SELECT FROM ONLY ratelimit.rl_made old WHERE btrim(concat_ws(' ', old.kind, old.name)) = line);

    -- Objects without a record: those restored without these rows, but not those of an interrupted run, of which no
    -- function is SECURITY DEFINER yet. A schema made before the first run keeps its grants, unless PUBLIC has one.
    UPDATE ONLY ratelimit.rl_made AS made
    SET server = ratelimit._server(), acl = CASE WHEN was.known THEN o.grants END,
        oid = CASE WHEN was.known THEN o.object ELSE 0 END
    FROM ONLY ratelimit.rl_made AS same CROSS JOIN LATERAL ratelimit._object(same.kind, same.name) o
    LEFT JOIN pg_proc p ON same.kind = 'function' AND p.oid = o.object
    CROSS JOIN LATERAL (SELECT first_run AND NOT o.grants ? '') AS was (known)
    WHERE same.kind = made.kind AND same.name = made.name AND made.oid IS NULL AND o.object IS NOT NULL
      AND same.kind <> 'type' AND CASE WHEN first_run THEN same.kind = 'schema' ELSE p.oid IS NULL OR p.prosecdef END;

    FOR m IN SELECT made.kind, made.name FROM ONLY ratelimit.rl_made made
             WHERE (ratelimit._object(made.kind, made.name)).object IS NOT NULL ORDER BY made.kind, made.name LOOP
        taken := taken || ratelimit._close(m.kind, m.name);
    END LOOP;
    PERFORM ratelimit._say_taken(taken);
    -- Drops what is no longer made.
    FOR m IN SELECT DISTINCT made.name, o.object FROM ONLY ratelimit.rl_made AS made
             CROSS JOIN LATERAL ratelimit._object('function', made.name) o
             WHERE made.kind = 'function' AND strpos(own, format(E'\nfunction %s\n', made.name)) = 0 LOOP
        IF m.object IS NOT NULL THEN EXECUTE format('DROP FUNCTION %s', m.object::regprocedure); END IF;
        DELETE FROM ONLY ratelimit.rl_made old WHERE old.kind = 'function' AND old.name = m.name;
    END LOOP;
    IF EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.oid = to_regnamespace('"ratelimit"')
               AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) THEN
        RAISE EXCEPTION 'other roles can create objects in schema "%"',
            (SELECT nspname FROM pg_namespace WHERE oid = to_regnamespace('"ratelimit"'))
            USING HINT = 'Revoke that, or install into another schema.';
    END IF;
    PERFORM set_config('search_path', path, true);
END
$do$;

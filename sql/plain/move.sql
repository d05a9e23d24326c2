-- Common to both moves: checks, locks, and all that names the functions: triggers, policies, views, defaults, checks,
-- functions. If one of these can't be moved, the move fails as a whole, with a list.
SET LOCAL rl_move.home = 'ratelimit'; -- the schema
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL check_function_bodies = off;

DO LANGUAGE plpgsql $do$
BEGIN
    IF coalesce(current_setting('rl_move.home', true), '') = '' THEN
        RAISE EXCEPTION 'the move must run in one transaction'
            USING HINT = 'psql -1 -v ON_ERROR_STOP=1 -f, or BEGIN before it and COMMIT after it.';
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the move requires isolation level READ COMMITTED, but this transaction is %',
            upper(current_setting('transaction_isolation'))
            USING HINT = 'SET default_transaction_isolation = ''read committed''; before it.';
    END IF;
END
$do$;

CREATE TEMP TABLE rl_member (classid oid, objid oid, internal boolean, PRIMARY KEY (classid, objid)) ON COMMIT DROP;
CREATE TEMP TABLE rl_plan (
    object text,
    lock   text, -- the statement that locks its table
    off    text, -- the statement that takes the limiter's names out of it
    again  text, -- the statements that put them back
    why    text  -- it can't be moved
) ON COMMIT DROP;
CREATE TEMP TABLE rl_grant (object text, grantee oid, privilege text, with_option boolean) ON COMMIT DROP;

-- The objects that the file has recorded. Others in the schema are their owner's.
CREATE FUNCTION pg_temp.rl_made(home text) RETURNS TABLE (kind text, objid oid, name text) LANGUAGE plpgsql AS $$
DECLARE
    version CONSTANT int := 1;
    installed int;
    restored boolean := true;
BEGIN
    EXECUTE format('SELECT max(version) FROM ONLY %s.rl_installed', home) INTO installed;
    IF installed <> version THEN
        RAISE EXCEPTION 'version % of ratelimit.sql is installed, and this script is for version %',
            installed, version USING HINT = CASE WHEN installed > version THEN 'Run the newer script.'
                WHEN EXISTS (SELECT FROM pg_extension WHERE extname = 'ratelimit')
                THEN 'Run the older script once more.'
                ELSE 'Run the newer ratelimit.sql first.' END;
    END IF;
    IF to_regclass(home || '.rl_made') IS NOT NULL THEN
        EXECUTE format('SELECT coalesce(bool_or(m.oid IS NULL OR NOT EXISTS (
            SELECT FROM pg_proc p WHERE m.kind <> ''function'' OR p.oid = m.oid
            AND p.proname = split_part(m.name, ''('', 1))), true) FROM ONLY %s.rl_made m', home) INTO restored;
    END IF;
    IF restored THEN
        RAISE EXCEPTION 'ratelimit.sql has not run to its end here' USING HINT = 'Run it again first.';
    END IF;
    RETURN QUERY EXECUTE format('SELECT m.kind, m.oid, split_part(m.name, ''('', 1) FROM ONLY %s.rl_made m', home);
END
$$;

-- Every object of the limiter: the extension's, or those that the file has made.
CREATE FUNCTION pg_temp.rl_list_members(extension oid, of_file text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    TRUNCATE rl_member;
    IF of_file IS NULL THEN
        INSERT INTO rl_member SELECT classid, objid, false FROM pg_depend
        WHERE refclassid = 'pg_extension'::regclass AND refobjid = extension AND deptype = 'e';
    ELSE
        INSERT INTO rl_member
        SELECT CASE kind WHEN 'function' THEN 'pg_proc'::regclass WHEN 'table' THEN 'pg_class'::regclass
                         ELSE 'pg_type'::regclass END, objid,
               name !~ '^(rl_[a-z]|ratelimits$)' OR name IN ('rl_installed', 'rl_settings', 'rl_made')
        FROM pg_temp.rl_made(of_file) WHERE kind <> 'schema';
    END IF;
    -- Their row types and tables, arrays, keys and defaults.
    INSERT INTO rl_member
    SELECT 'pg_type'::regclass, t.oid, m.internal FROM rl_member m JOIN pg_type t ON t.typrelid = m.objid
    WHERE m.classid = 'pg_class'::regclass
    UNION ALL
    SELECT 'pg_class'::regclass, t.typrelid, m.internal FROM rl_member m JOIN pg_type t ON t.oid = m.objid
    WHERE m.classid = 'pg_type'::regclass AND t.typrelid <> 0
    ON CONFLICT DO NOTHING;
    INSERT INTO rl_member
    SELECT 'pg_type'::regclass, t.typarray, m.internal FROM rl_member m JOIN pg_type t ON t.oid = m.objid
    WHERE m.classid = 'pg_type'::regclass AND t.typarray <> 0
    UNION ALL
    SELECT 'pg_constraint'::regclass, c.oid, m.internal FROM rl_member m JOIN pg_constraint c ON c.conrelid = m.objid
    WHERE m.classid = 'pg_class'::regclass AND c.contype IN ('p', 'c', 'n')
    UNION ALL
    SELECT 'pg_class'::regclass, i.indexrelid, m.internal FROM rl_member m JOIN pg_index i ON i.indrelid = m.objid
    JOIN pg_class c ON c.oid = i.indexrelid
    WHERE m.classid = 'pg_class'::regclass AND (i.indisprimary OR c.relname = 'rl_holds_of_key')
    UNION ALL
    SELECT 'pg_attrdef'::regclass, d.oid, m.internal FROM rl_member m JOIN pg_attrdef d ON d.adrelid = m.objid
    WHERE m.classid = 'pg_class'::regclass
    UNION ALL
    SELECT 'pg_trigger'::regclass, t.oid, m.internal
    FROM rl_member m JOIN pg_trigger t ON t.tgrelid = m.objid
    JOIN rl_member f ON f.classid = 'pg_proc'::regclass AND f.objid = t.tgfoid
    WHERE m.classid = 'pg_class'::regclass
    ON CONFLICT DO NOTHING;
END
$$;

-- Locks a table; a view by an ALTER that changes nothing, since LOCK TABLE would lock the tables that it reads.
CREATE FUNCTION pg_temp.rl_lock_of(relation oid) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN relkind IN ('r', 'p') THEN format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', oid::regclass)
                WHEN relkind = 'v' THEN format('ALTER VIEW %s OWNER TO %s', oid::regclass, relowner::regrole) END
    FROM pg_class WHERE oid = relation
$$;

-- The comment of an object that is dropped and created again.
CREATE FUNCTION pg_temp.rl_comment_of(class regclass, object oid, what text) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce((SELECT format('; COMMENT ON %s IS %L', what, description) FROM pg_description
                     WHERE classoid = class AND objoid = object AND objsubid = 0), '')
$$;

-- Takes the place of the limiter's trigger function during the move.
CREATE FUNCTION pg_temp.rl_nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;

-- off: takes the limiter's names out of a trigger. again: restores them, on the table and its partitions.
CREATE FUNCTION pg_temp.rl_plan_trigger(of_trigger oid, OUT off text, OUT again text) LANGUAGE sql AS $$
    WITH RECURSIVE family AS (
        SELECT oid, tgrelid, tgname, tgenabled FROM pg_trigger WHERE oid = of_trigger
        UNION ALL
        SELECT t.oid, t.tgrelid, t.tgname, t.tgenabled FROM pg_trigger t JOIN family f ON t.tgparentid = f.oid
    ), enabled AS (
        SELECT coalesce(string_agg(format('; ALTER TABLE ONLY %s %s TRIGGER %I', tgrelid::regclass, CASE tgenabled
                   WHEN 'D' THEN 'DISABLE' WHEN 'A' THEN 'ENABLE ALWAYS' ELSE 'ENABLE REPLICA' END, tgname), ''), '')
                   AS them
        FROM family WHERE tgenabled <> 'O'
    )
    SELECT CASE WHEN t.tgconstraint <> 0 THEN format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass)
                ELSE format('CREATE OR REPLACE TRIGGER %I %s INSERT ON %s FOR EACH %s '
                            'EXECUTE FUNCTION pg_temp.rl_nothing()', t.tgname,
                    CASE t.tgtype & 66 WHEN 0 THEN 'AFTER' WHEN 2 THEN 'BEFORE' ELSE 'INSTEAD OF' END,
                    t.tgrelid::regclass, CASE WHEN t.tgtype & 1 <> 0 THEN 'ROW' ELSE 'STATEMENT' END) END,
           CASE WHEN t.tgconstraint <> 0 THEN pg_get_triggerdef(t.oid)
                     || pg_temp.rl_comment_of('pg_trigger', t.oid,
                                              format('TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass))
                ELSE regexp_replace(pg_get_triggerdef(t.oid), '^CREATE ', 'CREATE OR REPLACE ') END || enabled.them
    FROM pg_trigger t, enabled WHERE t.oid = of_trigger
$$;

CREATE FUNCTION pg_temp.rl_plan_view(of_view oid, OUT off text, OUT again text) LANGUAGE sql AS $$
    SELECT format('CREATE OR REPLACE VIEW %s AS SELECT %s', c.oid::regclass, (
               SELECT string_agg(format('NULL::%s%s AS %I', format_type(a.atttypid, a.atttypmod),
                   (SELECT format(' COLLATE %I.%I', n.nspname, l.collname)
                    FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace
                    WHERE l.oid = a.attcollation AND l.oid <> t.typcollation), a.attname), ', ' ORDER BY a.attnum)
               FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = c.oid AND a.attnum > 0)),
           format('CREATE OR REPLACE VIEW %s%s AS %s', c.oid::regclass,
                  ' WITH (' || array_to_string(c.reloptions, ', ') || ')', pg_get_viewdef(c.oid))
    FROM pg_class c WHERE c.oid = of_view
$$;

CREATE FUNCTION pg_temp.rl_plan_function(of_function oid, OUT off text, OUT again text) LANGUAGE sql AS $$
    SELECT replace(pg_get_functiondef(oid), coalesce(pg_get_function_sqlbody(oid), ''), $q$AS 'SELECT'$q$),
           pg_get_functiondef(oid)
    FROM pg_proc WHERE oid = of_function AND prokind <> 'a'
      AND NOT EXISTS (SELECT FROM unnest(coalesce(proallargtypes, proargtypes::oid[]) || prorettype) AS a (type)
                      JOIN rl_member m ON m.classid = 'pg_type'::regclass AND m.objid = a.type)
$$;

-- A check. Created again, it runs on every row: only if that changes nothing.
CREATE FUNCTION pg_temp.rl_plan_check(of_check oid, is_volatile boolean, OUT off text, OUT again text)
LANGUAGE sql AS $$
    SELECT format('ALTER %s DROP CONSTRAINT %I', owned.what, k.conname),
           format('ALTER %s ADD CONSTRAINT %I %s', owned.what, k.conname, pg_get_constraintdef(k.oid))
           || pg_temp.rl_comment_of('pg_constraint', k.oid, format('CONSTRAINT %I ON %s', k.conname,
                                    regexp_replace(owned.what, '^TABLE ', '')))
    FROM pg_constraint k CROSS JOIN LATERAL (
        SELECT CASE WHEN k.contypid <> 0 THEN format('DOMAIN %s', k.contypid::regtype)
                    ELSE format('TABLE %s', k.conrelid::regclass) END
    ) AS owned (what)
    WHERE k.oid = of_check AND k.contype = 'c' AND k.coninhcount = 0 AND NOT is_volatile
$$;

-- Lists what names the limiter's functions, types or tables. The statements have the names as they are now.
CREATE FUNCTION pg_temp.rl_list_plan() RETURNS void LANGUAGE sql AS $$
    TRUNCATE rl_plan;
    INSERT INTO rl_plan
    WITH named AS (
        SELECT d.classid, d.objid, max(d.objsubid) AS objsubid, bool_or(m.internal) AS internal,
               coalesce(bool_or(p.provolatile <> 'i'), false) AS is_volatile
        FROM pg_depend d JOIN rl_member m ON m.classid = d.refclassid AND m.objid = d.refobjid
        LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
        WHERE d.deptype IN ('n', 'a', 'x')
          AND NOT EXISTS (SELECT FROM rl_member o WHERE o.classid = d.classid AND o.objid = d.objid)
        GROUP BY d.classid, d.objid
    ), made AS (
        SELECT n.*, t.tgrelid AS relation, NULL::oid AS owner, a.off, a.again
        FROM named n JOIN pg_trigger t ON n.classid = 'pg_trigger'::regclass AND t.oid = n.objid
        CROSS JOIN LATERAL pg_temp.rl_plan_trigger(t.oid) a
        WHERE t.tgparentid = 0 AND NOT t.tgisinternal
        UNION ALL
        SELECT n.*, p.polrelid, NULL, format('ALTER POLICY %I ON %s', p.polname, p.polrelid::regclass)
                   || CASE WHEN p.polqual IS NULL THEN '' ELSE ' USING (false)' END
                   || CASE WHEN p.polwithcheck IS NULL THEN '' ELSE ' WITH CHECK (false)' END,
               format('ALTER POLICY %I ON %s', p.polname, p.polrelid::regclass)
                   || coalesce(' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')', '')
                   || coalesce(' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', '')
        FROM named n JOIN pg_policy p ON n.classid = 'pg_policy'::regclass AND p.oid = n.objid
        UNION ALL
        SELECT n.*, c.oid, NULL, a.off, a.again
        FROM named n JOIN pg_rewrite r ON n.classid = 'pg_rewrite'::regclass AND r.oid = n.objid
        JOIN pg_class c ON c.oid = r.ev_class
        LEFT JOIN LATERAL pg_temp.rl_plan_view(c.oid) a ON c.relkind = 'v'
        WHERE r.rulename = '_RETURN'
        UNION ALL
        SELECT n.*, r.ev_class, NULL, format('CREATE OR REPLACE RULE %I AS ON %s TO %s DO ALSO NOTHING',
                   r.rulename, (ARRAY['UPDATE', 'INSERT', 'DELETE'])[r.ev_type::text::int - 1], r.ev_class::regclass),
               regexp_replace(pg_get_ruledef(r.oid), '^CREATE ', 'CREATE OR REPLACE ')
        FROM named n JOIN pg_rewrite r ON n.classid = 'pg_rewrite'::regclass AND r.oid = n.objid
        WHERE r.rulename <> '_RETURN'
        UNION ALL
        SELECT n.*, d.adrelid, NULL, column_of.what || ' DROP DEFAULT',
               CASE WHEN a.attgenerated = ''
                    THEN format('%s SET DEFAULT %s', column_of.what, pg_get_expr(d.adbin, d.adrelid)) END
        FROM named n JOIN pg_attrdef d ON n.classid = 'pg_attrdef'::regclass AND d.oid = n.objid
        JOIN pg_class c ON c.oid = d.adrelid JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        CROSS JOIN LATERAL (
            SELECT format('ALTER %s %s ALTER COLUMN %I', CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE ONLY' END,
                          c.oid::regclass, a.attname)
        ) AS column_of (what)
        UNION ALL
        SELECT n.*, NULLIF(k.conrelid, 0), t.typowner, a.off, a.again
        FROM named n JOIN pg_constraint k ON n.classid = 'pg_constraint'::regclass AND k.oid = n.objid
        LEFT JOIN pg_type t ON t.oid = k.contypid
        LEFT JOIN LATERAL pg_temp.rl_plan_check(k.oid, n.is_volatile) a ON true
        WHERE k.conislocal OR k.contype <> 'c' -- its parent's makes it again
        UNION ALL
        SELECT n.*, NULL, p.proowner, a.off, a.again
        FROM named n JOIN pg_proc p ON n.classid = 'pg_proc'::regclass AND p.oid = n.objid
        LEFT JOIN LATERAL pg_temp.rl_plan_function(p.oid) a ON true
        UNION ALL
        SELECT n.*, NULL, NULL, NULL, NULL FROM named n
        WHERE n.classid NOT IN ('pg_trigger'::regclass, 'pg_policy'::regclass, 'pg_rewrite'::regclass,
                                'pg_attrdef'::regclass, 'pg_constraint'::regclass, 'pg_proc'::regclass)
    )
    SELECT pg_describe_object(classid, objid, objsubid), pg_temp.rl_lock_of(relation), off, again,
           CASE WHEN on_limiter THEN 'is on the limiter''s own table'
                WHEN internal THEN 'names what is internal'
                WHEN again IS NULL THEN 'can''t be replaced in place'
                WHEN NOT pg_has_role(coalesce(owner, c.relowner), 'USAGE')
                THEN format('belongs to role %s', coalesce(owner, c.relowner)::regrole) END
    FROM made LEFT JOIN pg_class c ON c.oid = made.relation CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM rl_member WHERE classid = 'pg_class'::regclass AND objid = relation)
    ) AS own (on_limiter)
    UNION ALL
    SELECT format('column %I of %s', a.attname, c.oid::regclass), NULL, NULL, NULL, 'is on the limiter''s own table'
    FROM rl_member m JOIN pg_attribute a ON m.classid = 'pg_class'::regclass AND a.attrelid = m.objid
    JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.relname IN ('ratelimits', 'rl_config', 'rl_blocks', 'rl_holds') AND c.relkind = 'r' AND a.attnum > 0
      AND NOT a.attisdropped
      AND a.attname <> ALL ('{name,key,shard,kind,value,ts,added,prior,log,leases,holds_due,config,until,reason,'
                            'parsed,id,count,spent,returned,taken_at,expires_at,charge,lease}')
$$;

-- Locks all that names the limiter, and its tables in the order in which calls lock them. It gives all locks up before
-- a session has waited long enough to look for a deadlock, and tries again in another order: the application's
-- transactions may lock in any.
CREATE FUNCTION pg_temp.rl_lock(tables text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    home text := quote_ident(current_setting('rl_move.home'));
    patience text := current_setting('lock_timeout');
    most int := (SELECT setting::int * 0.8 FROM pg_settings WHERE name = 'deadlock_timeout');
    locks text[] := (SELECT array_agg(DISTINCT lock) FROM rl_plan WHERE lock IS NOT NULL);
    own text := (SELECT string_agg(format('LOCK TABLE %s.%I IN ACCESS EXCLUSIVE MODE', home, name), ';')
                 FROM unnest(tables) AS name);
    ends timestamptz;
    statement text;
BEGIN
    FOR attempt IN 1..300 LOOP
        BEGIN
            ends := clock_timestamp() + most * interval '1 millisecond';
            FOREACH statement IN ARRAY regexp_split_to_array(array_to_string(CASE WHEN attempt % 3 = 1 THEN locks || own
                WHEN attempt % 3 = 2 THEN own || locks
                ELSE ARRAY(SELECT lock FROM unnest(locks || own) AS lock ORDER BY random()) END, ';'), ';')
            LOOP
                PERFORM set_config('lock_timeout', (extract(epoch FROM greatest(ends - clock_timestamp(),
                    interval '1 millisecond')) * 1000)::int::text, true);
                EXECUTE statement;
            END LOOP;
            PERFORM set_config('lock_timeout', patience, true);
            RETURN;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(0.2 * random());
        END;
    END LOOP;
    RAISE EXCEPTION 'the tables could not be locked: other transactions hold them' USING ERRCODE = 'lock_not_available',
        HINT = 'SELECT * FROM pg_stat_activity WHERE xact_start < now() - interval ''10 seconds'';';
END
$$;

-- Refuses what can't be moved: these objects with reasons, one a line, or those of the plan.
CREATE FUNCTION pg_temp.rl_refuse(others text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    others := coalesce(others, (SELECT string_agg(format('%s (%s)', object, why), E'\n' ORDER BY object) FROM rl_plan
                                WHERE why IS NOT NULL));
    IF others IS NOT NULL THEN
        RAISE EXCEPTION 'these name the rate limiter and can''t be moved'
            USING ERRCODE = 'dependent_objects_still_exist',
            DETAIL = others, HINT = 'Drop them, run this again, and create them again. Nothing has been changed.';
    END IF;
END
$$;

-- Copies the rows of a table by the names of the columns that both have. Returns how many.
CREATE FUNCTION pg_temp.rl_copy(source regclass, target regclass) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    columns text := (SELECT string_agg(quote_ident(s.attname), ', ') FROM pg_attribute s JOIN pg_attribute t
                     ON t.attname = s.attname AND t.attrelid = target AND t.attnum > 0 AND t.attgenerated = ''
                     WHERE s.attrelid = source AND s.attnum > 0 AND NOT s.attisdropped AND NOT t.attisdropped);
    copied bigint;
BEGIN
    EXECUTE format('INSERT INTO %1$s (%2$s) SELECT %2$s FROM ONLY %3$s', target, columns, source);
    GET DIAGNOSTICS copied = ROW_COUNT;
    RETURN copied;
END
$$;

-- Lists the grants on functions and tables, by name.
CREATE FUNCTION pg_temp.rl_list_grants() RETURNS void LANGUAGE sql AS $$
    INSERT INTO rl_grant
    SELECT format('FUNCTION %s', p.oid::regprocedure), a.grantee, a.privilege_type, a.is_grantable
    FROM rl_member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid AND NOT m.internal
    CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    WHERE a.grantee NOT IN (p.proowner, 'pg_database_owner'::regrole)
    UNION ALL
    SELECT format('TABLE %s', c.oid::regclass), a.grantee, a.privilege_type, a.is_grantable
    FROM rl_member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
    CROSS JOIN aclexplode(c.relacl) a
    WHERE NOT m.internal AND c.relkind = 'r' AND a.grantee <> c.relowner
    UNION ALL
    SELECT format('TABLE %s', c.oid::regclass), a.grantee, format('%s (%I)', a.privilege_type, t.attname),
           a.is_grantable
    FROM rl_member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
    JOIN pg_attribute t ON t.attrelid = c.oid CROSS JOIN aclexplode(t.attacl) a
    WHERE NOT m.internal AND c.relkind = 'r' AND a.grantee <> c.relowner
$$;

-- Grants them again, on functions that both have, and revokes from PUBLIC what was revoked before.
CREATE FUNCTION pg_temp.rl_grant_again() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    item record;
    lost text;
BEGIN
    FOR item IN
        SELECT g.*, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END AS role,
               g.object LIKE 'TABLE %' OR to_regprocedure(substr(g.object, 10)) IS NOT NULL AS is_there
        FROM rl_grant g
    LOOP
        IF item.is_there THEN
            EXECUTE format('GRANT %s ON %s TO %s%s', item.privilege, item.object, item.role,
                           CASE WHEN item.with_option THEN ' WITH GRANT OPTION' END);
        ELSIF item.grantee <> 0 THEN
            lost := concat_ws(', ', lost, format('%s to %s', item.object, item.role));
        END IF;
    END LOOP;
    FOR item IN
        SELECT p.oid::regprocedure AS function
        FROM pg_proc p CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        WHERE p.pronamespace = to_regnamespace(quote_ident(current_setting('rl_move.home'))) AND a.grantee = 0
          AND p.proname ~ ('^rl_(token_bucket|fixed_window|sliding_window|sliding_log|concurrency|unlimited|calculate'
                           '|key)$')
          AND NOT EXISTS (SELECT FROM rl_grant g
                          WHERE g.object = format('FUNCTION %s', p.oid::regprocedure) AND g.grantee = 0)
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', item.function);
    END LOOP;
    IF lost IS NOT NULL THEN
        RAISE NOTICE 'not granted, since there is no such function here: %', lost;
    END IF;
END
$$;

-- Takes the limiter's names out of everything, or restores them. Objects are replaced in place, which keeps owners,
-- grants, comments and dependents.
CREATE FUNCTION pg_temp.rl_rewrite(off boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    item rl_plan;
    failed text;
BEGIN
    FOR item IN SELECT * FROM rl_plan ORDER BY object LOOP
        BEGIN
            EXECUTE CASE WHEN off THEN item.off ELSE item.again END;
        EXCEPTION WHEN OTHERS THEN
            failed := concat_ws(E'\n', failed, format('%s (%s)', item.object, SQLERRM));
        END;
    END LOOP;
    IF failed IS NOT NULL THEN PERFORM pg_temp.rl_refuse(failed); END IF;
END
$$;

-- Makes sessions recompile PL/pgSQL functions with variables of the limiter's types, which were replaced.
CREATE FUNCTION pg_temp.rl_recompile() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    item record;
BEGIN
    FOR item IN
        SELECT p.oid::regprocedure AS name, p.procost AS cost
        FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
        WHERE l.lanname = 'plpgsql' AND pg_has_role(p.proowner, 'USAGE')
          AND p.prosrc ~* E'\\m(rl_(\\w+_)?result|ratelimits|rl_config|rl_blocks|rl_holds)\\M'
          AND p.pronamespace NOT IN (coalesce(to_regnamespace(current_setting('rl_move.home') || '_moved'), 0),
                                     to_regnamespace(quote_ident(current_setting('rl_move.home'))))
    LOOP
        EXECUTE format('ALTER ROUTINE %s COST %s', item.name, item.cost);
    END LOOP;
END
$$;

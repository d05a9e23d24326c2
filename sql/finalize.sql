-- Privileges: only the owner of the database and the installing role can call and grant. The immutable functions
-- (builders, rl_calculate, rl_replay, rl_key, rl_address_key, rl_version) stay open.

-- Until the script ends: this runs as a superuser, and the schema to install into was on the search path.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Takes back what default privileges granted on the new objects. REVOKE adds the rest to the initial privileges, which
-- have none of these objects yet.
DO LANGUAGE plpgsql $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT member.classid, member.objid, object.what,
               string_agg(CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END, ', ') AS roles
        FROM pg_extension AS extension
        JOIN pg_depend AS member ON member.refclassid = 'pg_extension'::regclass AND member.refobjid = extension.oid
        CROSS JOIN LATERAL (
            SELECT proowner, format('FUNCTION %s', oid::regprocedure), proacl FROM pg_proc
            WHERE member.classid = 'pg_proc'::regclass AND oid = member.objid
            UNION ALL
            SELECT relowner, format('TABLE %s', oid::regclass), relacl FROM pg_class
            WHERE member.classid = 'pg_class'::regclass AND oid = member.objid
            UNION ALL
            SELECT typowner, format('TYPE %s', oid::regtype), typacl FROM pg_type
            WHERE member.classid = 'pg_type'::regclass AND oid = member.objid) AS object (owner, what, acl)
        CROSS JOIN LATERAL (SELECT DISTINCT grantee FROM aclexplode(object.acl)) AS acl
        WHERE extension.extname = 'ratelimit' AND member.deptype = 'e' AND acl.grantee <> object.owner
          AND (acl.grantee <> 0 OR member.classid = 'pg_class'::regclass)
        GROUP BY member.classid, member.objid, object.what
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', given.what, given.roles);
        DELETE FROM pg_init_privs WHERE classoid = given.classid AND objoid = given.objid;
    END LOOP;
END
$$;

-- Grants also directly to the installer, even if that role owns the database: its own grants then come from it in
-- dumps. Grants from pg_database_owner could be restored only where that role has USAGE on the schema. The grant is
-- removed from the initial privileges: dumps leave those out, and once the role is dropped they would have a REVOKE
-- that fails on restore. From PostgreSQL 17 on they also keep the role from being dropped.
DO LANGUAGE plpgsql $$
DECLARE
    closed record;
    initial aclitem[];
BEGIN
    FOR closed IN
        SELECT function.oid, function.oid::regprocedure AS name, function.proname ~ '_changed$' AS internal,
               role.rolname, role.rolsuper
        FROM pg_extension AS extension JOIN pg_roles AS role ON role.oid = extension.extowner
        JOIN pg_depend AS member ON member.refclassid = 'pg_extension'::regclass AND member.refobjid = extension.oid
                                AND member.classid = 'pg_proc'::regclass AND member.deptype = 'e'
        JOIN pg_proc AS function ON function.oid = member.objid AND function.provolatile <> 'i'
        WHERE extension.extname = 'ratelimit'
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', closed.name);
        CONTINUE WHEN closed.internal;
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pg_database_owner WITH GRANT OPTION', closed.name);
        CONTINUE WHEN closed.rolsuper;
        SELECT initprivs INTO STRICT initial FROM pg_init_privs
        WHERE classoid = 'pg_proc'::regclass AND objoid = closed.oid;
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I WITH GRANT OPTION', closed.name, closed.rolname);
        UPDATE pg_init_privs SET initprivs = initial WHERE classoid = 'pg_proc'::regclass AND objoid = closed.oid;
    END LOOP;
END
$$;

-- Removes the dependencies that these leave from PostgreSQL 17 on.
DELETE FROM pg_shdepend AS dependency
USING pg_database AS here, pg_extension AS extension, pg_depend AS member
WHERE here.datname = current_database() AND extension.extname = 'ratelimit'
  AND member.refclassid = 'pg_extension'::regclass AND member.refobjid = extension.oid
  AND dependency.dbid = here.oid AND dependency.classid = member.classid AND dependency.objid = member.objid
  AND dependency.refclassid = 'pg_authid'::regclass AND dependency.deptype = 'i'
  AND NOT EXISTS (SELECT FROM pg_init_privs AS init, aclexplode(init.initprivs) AS acl
                  WHERE init.classoid = member.classid AND init.objoid = member.objid
                    AND acl.grantee = dependency.refobjid);

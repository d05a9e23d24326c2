-- Privileges: only the owner of the database and the installing role can call and grant. The immutable functions
-- (builders, rl_calculate, rl_replay, rl_key, rl_address_key, rl_version) stay open.

-- Takes back what default privileges granted on the new objects. REVOKE adds the rest to the initial privileges, which
-- have none of these objects yet. Operators are qualified and their operands cast here and below: the schema to install
-- into is on the search path, and this runs as a superuser.
DO LANGUAGE plpgsql $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT member.classid, member.objid, object.what,
               pg_catalog.string_agg(CASE WHEN acl.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
                                          ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(acl.grantee)::pg_catalog.text) END, ', ') AS roles
        FROM pg_catalog.pg_extension AS extension, pg_catalog.pg_depend AS member,
             LATERAL (SELECT proowner, pg_catalog.format('FUNCTION %s', oid::pg_catalog.regprocedure), proacl FROM pg_catalog.pg_proc
                      WHERE member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
                        AND oid OPERATOR(pg_catalog.=) member.objid
                      UNION ALL
                      SELECT relowner, pg_catalog.format('TABLE %s', oid::pg_catalog.regclass), relacl FROM pg_catalog.pg_class
                      WHERE member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
                        AND oid OPERATOR(pg_catalog.=) member.objid
                      UNION ALL
                      SELECT typowner, pg_catalog.format('TYPE %s', oid::pg_catalog.regtype), typacl FROM pg_catalog.pg_type
                      WHERE member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass::pg_catalog.oid
                        AND oid OPERATOR(pg_catalog.=) member.objid) AS object (owner, what, acl),
             LATERAL (SELECT DISTINCT grantee FROM pg_catalog.aclexplode(object.acl)) AS acl
        WHERE extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
          AND member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          AND member.refobjid OPERATOR(pg_catalog.=) extension.oid
          AND member.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
          AND acl.grantee OPERATOR(pg_catalog.<>) object.owner
          AND (acl.grantee OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
               OR member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid)
        GROUP BY member.classid, member.objid, object.what
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON %s FROM %s CASCADE', given.what, given.roles);
        DELETE FROM pg_catalog.pg_init_privs AS init
        WHERE init.classoid OPERATOR(pg_catalog.=) given.classid AND init.objoid OPERATOR(pg_catalog.=) given.objid;
    END LOOP;
END
$$;

DO LANGUAGE plpgsql $$
DECLARE
    closed record;
BEGIN
    FOR closed IN
        SELECT function.oid::pg_catalog.regprocedure AS name, function.proname OPERATOR(pg_catalog.~) '_changed$' AS internal
        FROM pg_catalog.pg_extension AS extension, pg_catalog.pg_depend AS member, pg_catalog.pg_proc AS function
        WHERE extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
          AND member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          AND member.refobjid OPERATOR(pg_catalog.=) extension.oid
          AND member.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
          AND member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
          AND function.oid OPERATOR(pg_catalog.=) member.objid
          AND function.provolatile OPERATOR(pg_catalog.<>) 'i'::pg_catalog."char"
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', closed.name);
        IF NOT closed.internal THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO pg_database_owner WITH GRANT OPTION', closed.name);
        END IF;
    END LOOP;
END
$$;

-- Grants directly to the installer, even if that role owns the database: its own grants then come from it in dumps.
-- Grants from pg_database_owner could be restored only where that role has USAGE on the schema. The grant is removed
-- from the initial privileges: dumps leave those out, and once the role is dropped they would have a REVOKE that fails
-- on restore. From PostgreSQL 17 on they also keep the role from being dropped.
DO LANGUAGE plpgsql $$
DECLARE
    installer record;
    granted record;
BEGIN
    SELECT extension.oid AS extension, role.rolname, role.rolsuper INTO STRICT installer
    FROM pg_catalog.pg_extension AS extension, pg_catalog.pg_roles AS role
    WHERE extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
      AND role.oid OPERATOR(pg_catalog.=) extension.extowner;
    IF installer.rolsuper THEN
        RETURN;
    END IF;
    FOR granted IN
        SELECT init.objoid, init.initprivs
        FROM pg_catalog.pg_depend AS member, pg_catalog.pg_init_privs AS init
        WHERE member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          AND member.refobjid OPERATOR(pg_catalog.=) installer.extension
          AND member.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
          AND member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
          AND init.classoid OPERATOR(pg_catalog.=) member.classid
          AND init.objoid OPERATOR(pg_catalog.=) member.objid
          AND EXISTS (SELECT FROM pg_catalog.aclexplode(init.initprivs) AS acl
                      WHERE acl.grantee OPERATOR(pg_catalog.=) 'pg_database_owner'::pg_catalog.regrole::pg_catalog.oid)
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %I WITH GRANT OPTION',
                                  granted.objoid::pg_catalog.regprocedure, installer.rolname);
        UPDATE pg_catalog.pg_init_privs AS init SET initprivs = granted.initprivs
        WHERE init.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
          AND init.objoid OPERATOR(pg_catalog.=) granted.objoid;
    END LOOP;
END
$$;

-- Removes the dependencies that these leave from PostgreSQL 17 on.
DELETE FROM pg_catalog.pg_shdepend AS dependency
USING pg_catalog.pg_database AS here, pg_catalog.pg_extension AS extension, pg_catalog.pg_depend AS member
WHERE here.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
  AND extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
  AND member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
  AND member.refobjid OPERATOR(pg_catalog.=) extension.oid
  AND dependency.dbid OPERATOR(pg_catalog.=) here.oid
  AND dependency.classid OPERATOR(pg_catalog.=) member.classid
  AND dependency.objid OPERATOR(pg_catalog.=) member.objid
  AND dependency.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_authid'::pg_catalog.regclass::pg_catalog.oid
  AND dependency.deptype OPERATOR(pg_catalog.=) 'i'::pg_catalog."char"
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_init_privs AS init, pg_catalog.aclexplode(init.initprivs) AS acl
                  WHERE init.classoid OPERATOR(pg_catalog.=) member.classid
                    AND init.objoid OPERATOR(pg_catalog.=) member.objid
                    AND acl.grantee OPERATOR(pg_catalog.=) dependency.refobjid);

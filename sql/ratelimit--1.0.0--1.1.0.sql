-- More room for HOT updates: at 70, a thousand hot rows outgrew their pages.
ALTER TABLE @extschema@.rateLimits SET (fillfactor = 40);

-- The direct grant to the installer, which the database's owner lacked. It stays out of the initial
-- privileges, into which GRANT puts all that there is, the application's grants too.
DO LANGUAGE plpgsql $$
DECLARE
    installer record;
    granted record;
BEGIN
    SELECT extension.oid AS extension, role.rolname INTO installer
    FROM pg_catalog.pg_extension AS extension, pg_catalog.pg_roles AS role, pg_catalog.pg_database AS here
    WHERE extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
      AND role.oid OPERATOR(pg_catalog.=) extension.extowner
      AND NOT role.rolsuper
      AND here.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
      AND here.datdba OPERATOR(pg_catalog.=) role.oid;
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

-- The installer's grants were taken out of the initial privileges, but from PostgreSQL 17 on not what
-- they had left here, which kept that role from being dropped.
DELETE FROM pg_catalog.pg_shdepend AS dependency
USING pg_catalog.pg_database AS here, pg_catalog.pg_extension AS extension, pg_catalog.pg_depend AS member,
      pg_catalog.pg_init_privs AS init
WHERE here.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
  AND extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
  AND member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
  AND member.refobjid OPERATOR(pg_catalog.=) extension.oid
  AND member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
  AND init.classoid OPERATOR(pg_catalog.=) member.classid
  AND init.objoid OPERATOR(pg_catalog.=) member.objid
  AND dependency.dbid OPERATOR(pg_catalog.=) here.oid
  AND dependency.classid OPERATOR(pg_catalog.=) member.classid
  AND dependency.objid OPERATOR(pg_catalog.=) member.objid
  AND dependency.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_authid'::pg_catalog.regclass::pg_catalog.oid
  AND dependency.deptype OPERATOR(pg_catalog.=) 'i'::pg_catalog."char"
  AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(init.initprivs) AS acl
                  WHERE acl.grantee OPERATOR(pg_catalog.=) dependency.refobjid);

-- In the field's words.
COMMENT ON FUNCTION @extschema@.rl_credit IS 'gives back count tokens that were taken and not used; a negative count takes unconditionally';
COMMENT ON FUNCTION @extschema@.rl_prune IS 'deletes a batch of idle rows; returns how many';

-- Who may do what: nobody but the database's owner, and the role that installs, who may grant it
-- on. The pure functions (builders, rl_calculate, rl_replay) stay open.

REVOKE ALL ON FUNCTION
    @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_credit, @extschema@.rl_limit_all,
    @extschema@.rl_check_all, @extschema@.rl_reset, @extschema@.rl_reset_all, @extschema@.rl_define,
    @extschema@.rl_undefine, @extschema@.rl_status, @extschema@.rl_prune, @extschema@.rl_headers,
    @extschema@.rl_trigger, @extschema@.rl_stats, @extschema@.rl_stats_reset, @extschema@.rl_top_denied,
    @extschema@.rl_memory, @extschema@.rl_distribute, @extschema@.rl_undistribute, @extschema@.rl_state,
    @extschema@.rl_acquire, @extschema@.rl_extend, @extschema@.rl_release, @extschema@.rl_block, @extschema@.rl_unblock,
    @extschema@.rl_config_changed, @extschema@.rl_blocks_changed
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_credit, @extschema@.rl_limit_all,
    @extschema@.rl_check_all, @extschema@.rl_reset, @extschema@.rl_reset_all, @extschema@.rl_define,
    @extschema@.rl_undefine, @extschema@.rl_status, @extschema@.rl_prune, @extschema@.rl_headers,
    @extschema@.rl_trigger, @extschema@.rl_stats, @extschema@.rl_stats_reset, @extschema@.rl_top_denied,
    @extschema@.rl_memory, @extschema@.rl_distribute, @extschema@.rl_undistribute, @extschema@.rl_state,
    @extschema@.rl_acquire, @extschema@.rl_extend, @extschema@.rl_release, @extschema@.rl_block, @extschema@.rl_unblock
    TO pg_database_owner WITH GRANT OPTION;

-- A direct grant for the installer, also where he is the database's owner: what he then grants comes
-- from himself in dumps. From pg_database_owner it would only restore where that role has USAGE on the
-- schema. It is taken out of the extension's initial privileges again: as one of those it would be missing
-- from dumps, and once the role is dropped it would stand in them as a REVOKE that fails on restore.
-- From PostgreSQL 17 on they also depend on the roles in them: the role could not be dropped.
-- Operators are qualified and their operands cast: the schema to install into is on the search path
-- here, and this runs as a superuser.
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

-- What the grant left of itself there.
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

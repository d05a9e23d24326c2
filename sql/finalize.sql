-- Who may do what: nobody but the database's owner, and the role that installs, who may grant it
-- on. The pure functions (builders, rl_calculate) stay open.

REVOKE ALL ON FUNCTION
    @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_credit, @extschema@.rl_limit_all,
    @extschema@.rl_check_all, @extschema@.rl_reset, @extschema@.rl_reset_all, @extschema@.rl_define,
    @extschema@.rl_undefine, @extschema@.rl_status, @extschema@.rl_prune, @extschema@.rl_headers,
    @extschema@.rl_trigger, @extschema@.rl_config_changed
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_credit, @extschema@.rl_limit_all,
    @extschema@.rl_check_all, @extschema@.rl_reset, @extschema@.rl_reset_all, @extschema@.rl_define,
    @extschema@.rl_undefine, @extschema@.rl_status, @extschema@.rl_prune, @extschema@.rl_headers,
    @extschema@.rl_trigger
    TO pg_database_owner WITH GRANT OPTION;

-- A direct grant where it is needed. It is taken out of the extension's initial privileges again:
-- as one of those it would be missing from dumps, and once the role is dropped it would stand in
-- them as a REVOKE that fails on restore. From PostgreSQL 17 on they also depend on the roles in
-- them: the role could not be dropped.
-- Operators are qualified and their operands cast: the schema to install into is on the search path
-- here, and this runs as a superuser.
DO LANGUAGE plpgsql $$
DECLARE
    installer oid := $installer$@extowner@$installer$::pg_catalog.regrole::pg_catalog.oid;
BEGIN
    IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE oid OPERATOR(pg_catalog.=) installer)
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_database
                       WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
                         AND datdba OPERATOR(pg_catalog.=) installer) THEN
        GRANT EXECUTE ON FUNCTION
            @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_credit, @extschema@.rl_limit_all,
            @extschema@.rl_check_all, @extschema@.rl_reset, @extschema@.rl_reset_all, @extschema@.rl_define,
            @extschema@.rl_undefine, @extschema@.rl_status, @extschema@.rl_prune, @extschema@.rl_headers,
            @extschema@.rl_trigger
            TO @extowner@ WITH GRANT OPTION;
        WITH direct AS (
        UPDATE pg_catalog.pg_init_privs AS init
        SET initprivs = (
            SELECT pg_catalog.array_agg(item)
            FROM pg_catalog.unnest(init.initprivs) AS item,
                 LATERAL pg_catalog.aclexplode(ARRAY[item]) AS acl
            WHERE acl.grantee OPERATOR(pg_catalog.<>) installer)
        WHERE init.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
          AND init.objoid OPERATOR(pg_catalog.=) ANY (ARRAY[
            '@extschema@.rl_limit'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_check'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_credit'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_limit_all'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_check_all'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_reset'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_reset_all'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_define'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_undefine'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_status'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_prune'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_headers'::pg_catalog.regproc::pg_catalog.oid,
            '@extschema@.rl_trigger'::pg_catalog.regproc::pg_catalog.oid])
        RETURNING init.classoid, init.objoid)
        DELETE FROM pg_catalog.pg_shdepend AS dependency USING direct, pg_catalog.pg_database AS here
        WHERE here.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
          AND dependency.dbid OPERATOR(pg_catalog.=) here.oid
          AND dependency.classid OPERATOR(pg_catalog.=) direct.classoid
          AND dependency.objid OPERATOR(pg_catalog.=) direct.objoid
          AND dependency.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_authid'::pg_catalog.regclass::pg_catalog.oid
          AND dependency.refobjid OPERATOR(pg_catalog.=) installer
          AND dependency.deptype OPERATOR(pg_catalog.=) 'i'::pg_catalog."char";
    END IF;
END
$$;

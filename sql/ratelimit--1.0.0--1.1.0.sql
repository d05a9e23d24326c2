-- More room for HOT updates: at 70, a thousand hot rows outgrew their pages.
ALTER TABLE @extschema@.rateLimits SET (fillfactor = 40);

-- Numbers about all limits.
CREATE FUNCTION @extschema@.rl_memory(OUT keys bigint, OUT room bigint, OUT bytes bigint, OUT dropped_idle bigint, OUT dropped_live bigint, OUT since timestamptz)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_memory';
COMMENT ON FUNCTION @extschema@.rl_memory IS $$how many keys the rate limits in memory have and have room for, and how many made room for others$$;
CREATE FUNCTION @extschema@.rl_stats()
RETURNS TABLE (name text, allowed bigint, denied bigint, denied_in_dry_run bigint, tokens double precision, since timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_stats';
COMMENT ON FUNCTION @extschema@.rl_stats IS $$how many calls each rate limit allowed and denied, and the tokens that it gave$$;
CREATE FUNCTION @extschema@.rl_stats_reset(name text DEFAULT NULL)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'rl_stats_reset';
COMMENT ON FUNCTION @extschema@.rl_stats_reset IS $$sets the counters of a rate limit to zero, or those of all; returns of how many$$;
CREATE FUNCTION @extschema@.rl_top_denied(name text DEFAULT NULL, max_rows integer DEFAULT 10)
RETURNS TABLE (name text, key text, denied bigint, error bigint)
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 10
AS 'MODULE_PATHNAME', 'rl_top_denied';
COMMENT ON FUNCTION @extschema@.rl_top_denied IS $$the keys that are denied most, of a rate limit or of all: from denied - error to denied times$$;
REVOKE ALL ON FUNCTION
    @extschema@.rl_memory, @extschema@.rl_stats, @extschema@.rl_stats_reset, @extschema@.rl_top_denied
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    @extschema@.rl_memory, @extschema@.rl_stats, @extschema@.rl_stats_reset, @extschema@.rl_top_denied
    TO pg_database_owner WITH GRANT OPTION;

-- The direct grant to the installer: on what is new, and on all where he is the database's owner, who
-- lacked it. It stays out of the initial privileges, into which GRANT puts all that there is, the
-- application's grants too.
DO LANGUAGE plpgsql $$
DECLARE
    installer record;
    granted record;
BEGIN
    SELECT extension.oid AS extension, role.rolname, here.datdba OPERATOR(pg_catalog.=) role.oid AS is_owner
    INTO installer
    FROM pg_catalog.pg_extension AS extension, pg_catalog.pg_roles AS role, pg_catalog.pg_database AS here
    WHERE extension.extname OPERATOR(pg_catalog.=) 'ratelimit'::pg_catalog.name
      AND role.oid OPERATOR(pg_catalog.=) extension.extowner
      AND NOT role.rolsuper
      AND here.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();
    FOR granted IN
        SELECT init.objoid, init.initprivs
        FROM pg_catalog.pg_depend AS member, pg_catalog.pg_init_privs AS init
        WHERE member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          AND member.refobjid OPERATOR(pg_catalog.=) installer.extension
          AND member.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
          AND member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
          AND init.classoid OPERATOR(pg_catalog.=) member.classid
          AND init.objoid OPERATOR(pg_catalog.=) member.objid
          AND (installer.is_owner OR init.objoid OPERATOR(pg_catalog.=) ANY (ARRAY[
                  '@extschema@.rl_memory'::pg_catalog.regproc, '@extschema@.rl_stats'::pg_catalog.regproc,
                  '@extschema@.rl_stats_reset'::pg_catalog.regproc, '@extschema@.rl_top_denied'::pg_catalog.regproc
              ]::pg_catalog.oid[]))
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

-- Who may do what: nobody but the database's owner, and the role that installs, who may grant it
-- on. The pure functions (builders, rl_calculate) stay open.

REVOKE ALL ON FUNCTION
    @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_reset, @extschema@.rl_reset_all,
    @extschema@.rl_define, @extschema@.rl_undefine, @extschema@.rl_config_changed
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_reset, @extschema@.rl_reset_all,
    @extschema@.rl_define, @extschema@.rl_undefine
    TO pg_database_owner WITH GRANT OPTION;

-- A direct grant only where it is needed: after REASSIGN OWNED and DROP ROLE it would leave a
-- REVOKE in dumps that fails on restore.
DO LANGUAGE plpgsql $$
DECLARE
    installer text := $installer$@extowner@$installer$;
BEGIN
    IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE oid = installer::pg_catalog.regrole)
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_database
                       WHERE datname = pg_catalog.current_database()
                         AND datdba = installer::pg_catalog.regrole) THEN
        GRANT EXECUTE ON FUNCTION
            @extschema@.rl_limit, @extschema@.rl_check, @extschema@.rl_reset,
            @extschema@.rl_reset_all, @extschema@.rl_define, @extschema@.rl_undefine
            TO @extowner@ WITH GRANT OPTION;
    END IF;
END
$$;

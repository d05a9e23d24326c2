-- More room for HOT updates: at 70, a thousand hot rows outgrew their pages.
ALTER TABLE @extschema@.rateLimits SET (fillfactor = 40);

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

-- Default privileges, as Supabase has them, open nothing: not those of the role that installs, not those of the
-- superuser as whom a trusted extension is installed, in a schema or in all, with grant option or to PUBLIC.
CREATE ROLE regress_rl_anon;
CREATE ROLE regress_rl_authenticated;
CREATE ROLE "regress_rl service, ""role""";
CREATE ROLE regress_rl_installer;
CREATE ROLE regress_rl_superuser SUPERUSER;
SELECT current_database() AS home \gset
CREATE DATABASE regress_rl_default;
\c regress_rl_default
GRANT CREATE ON DATABASE regress_rl_default TO regress_rl_installer;
CREATE FUNCTION give(makers text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    place text;
    kind text;
BEGIN
    FOREACH place IN ARRAY ARRAY['IN SCHEMA limits', ''] LOOP
        FOREACH kind IN ARRAY ARRAY['TABLES', 'SEQUENCES', 'FUNCTIONS', 'TYPES'] LOOP
            EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %s %s GRANT ALL ON %s TO regress_rl_anon, regress_rl_authenticated, regress_rl_installer, pg_database_owner, PUBLIC', makers, place, kind);
            EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %s %s GRANT ALL ON %s TO "regress_rl service, ""role""" WITH GRANT OPTION', makers, place, kind);
        END LOOP;
    END LOOP;
END
$$;
-- What some have but the owners, of what is not everybody's, and no trigger function of our tables.
CREATE VIEW given AS
SELECT extowner::regrole AS installer, object.catalog, acl.grantee::regrole, acl.is_grantable, acl.privileges, count(*),
       count(init.initprivs) AS initial
FROM pg_extension
JOIN pg_depend member ON refclassid = 'pg_extension'::regclass AND refobjid = pg_extension.oid AND deptype = 'e'
CROSS JOIN LATERAL (SELECT 'function', proowner, proacl FROM pg_proc WHERE oid = objid AND classid = 'pg_proc'::regclass AND proname NOT LIKE '%\_changed'
                    UNION ALL SELECT 'table', relowner, relacl FROM pg_class WHERE oid = objid AND classid = 'pg_class'::regclass
                    UNION ALL SELECT 'type', typowner, typacl FROM pg_type WHERE oid = objid AND classid = 'pg_type'::regclass) AS object(catalog, owner, acl)
CROSS JOIN LATERAL (SELECT grantee, bool_or(is_grantable) AS is_grantable, string_agg(DISTINCT privilege_type, ', ') AS privileges
                    FROM aclexplode(object.acl) GROUP BY grantee) AS acl
LEFT JOIN pg_init_privs init ON init.objoid = member.objid AND init.classoid = member.classid
WHERE extname = 'ratelimit' AND acl.grantee <> object.owner AND 0 <> ALL (SELECT grantee FROM aclexplode(object.acl))
GROUP BY 1, 2, 3, 4, 5;
GRANT SELECT ON given TO PUBLIC;
SELECT current_user::regrole AS superuser \gset
-- A superuser installs; the bootstrap superuser, as whom others' installs run, too.
CREATE SCHEMA limits;
SELECT give('regress_rl_superuser, regress_rl_installer'), give(:'superuser');
SET ROLE regress_rl_superuser;
CREATE EXTENSION ratelimit SCHEMA limits;
SELECT * FROM given ORDER BY catalog COLLATE "C", grantee::text COLLATE "C";
-- The roles of the defaults get what everybody has.
GRANT USAGE ON SCHEMA limits TO PUBLIC;
SET ROLE regress_rl_anon;
SELECT limits.rl_unlimited();
SELECT limits.rl_define('open', limits.rl_unlimited());
SELECT limits.rl_block('open', 'victim', until => 'infinity');
SELECT count(*) FROM limits.rateLimits;
TRUNCATE limits.rl_config;
INSERT INTO limits.rl_blocks VALUES ('open', 'victim', 'infinity');
SET ROLE "regress_rl service, ""role""";
GRANT EXECUTE ON FUNCTION limits.rl_limit TO regress_rl_anon;
SELECT count(*) FROM limits.rl_config;
-- A grant that is made stays.
RESET ROLE;
GRANT EXECUTE ON FUNCTION limits.rl_limit TO regress_rl_anon;
SET ROLE regress_rl_anon;
SELECT ok FROM limits.rl_limit('open', config => '{"kind": "unlimited"}');
RESET ROLE;
SET ROLE regress_rl_superuser;
DROP EXTENSION ratelimit;
-- An ordinary role installs.
RESET ROLE;
GRANT CREATE ON SCHEMA limits TO regress_rl_installer;
SET ROLE regress_rl_installer;
CREATE EXTENSION ratelimit SCHEMA limits;
SELECT * FROM given ORDER BY catalog COLLATE "C", grantee::text COLLATE "C";
SELECT limits.rl_define('mine', limits.rl_token_bucket(2, '1 minute'));
SELECT ok FROM limits.rl_limit('mine');
SELECT count(*) FROM limits.rateLimits;
-- Nothing is left of the roles, by which they could not be dropped.
RESET ROLE;
SELECT count(*) FROM pg_shdepend JOIN pg_depend ON pg_depend.objid = pg_shdepend.objid AND pg_depend.classid = pg_shdepend.classid AND pg_depend.deptype = 'e'
WHERE pg_shdepend.deptype = 'i' AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database());
SELECT initprivs FROM pg_init_privs WHERE initprivs::text LIKE '%regress\_rl%';
\c :home
DROP DATABASE regress_rl_default;
DROP ROLE regress_rl_anon, regress_rl_authenticated, "regress_rl service, ""role""", regress_rl_installer, regress_rl_superuser;

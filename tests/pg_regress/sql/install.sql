-- CREATE EXTENSION makes four tables, the types of results and the functions, and nothing else; the tables are
-- as promised; the extension is trusted, and its tables go into dumps.
SELECT superuser, trusted, relocatable, schema, requires
FROM pg_available_extension_versions WHERE name = 'ratelimit' AND installed;

-- Row and array types come with the table or type, and are members in some versions only.
SELECT member FROM pg_depend, pg_describe_object(classid, objid, objsubid) member
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit')
  AND NOT (classid = 'pg_type'::regclass AND objid::regtype::text !~ '^rl_(\w+_)?result$')
ORDER BY member COLLATE "C";

SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) AS type,
       (SELECT collname FROM pg_collation WHERE oid = a.attcollation) AS collation,
       a.attnotnull, pg_get_expr(d.adbin, d.adrelid) AS default
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE c.oid IN ('ratelimits'::regclass, 'rl_config'::regclass, 'rl_blocks'::regclass, 'rl_holds'::regclass) AND a.attnum > 0
ORDER BY 1, a.attnum;

-- Unquoted, rateLimits is the same name in any case.
SELECT 'rateLimits'::regclass = 'RATELIMITS'::regclass AS same;

-- Nothing but the primary keys is indexed, and the holds of a key.
SELECT indrelid::regclass AS table, pg_get_indexdef(indexrelid) AS index, indisprimary
FROM pg_index WHERE indrelid IN ('ratelimits'::regclass, 'rl_config'::regclass, 'rl_blocks'::regclass, 'rl_holds'::regclass) ORDER BY 1, 2;

-- Room for HOT updates, and an autovacuum that comes early.
SELECT relname, unnest(reloptions) AS option FROM pg_class WHERE oid IN ('ratelimits'::regclass, 'rl_holds'::regclass) ORDER BY 1, 2;

SELECT unnest(extconfig)::regclass AS dumped, unnest(extcondition) AS condition
FROM pg_extension WHERE extname = 'ratelimit';

SELECT tgrelid::regclass AS table, tgname, tgenabled FROM pg_trigger
WHERE tgrelid IN ('ratelimits'::regclass, 'rl_config'::regclass, 'rl_blocks'::regclass, 'rl_holds'::regclass) AND NOT tgisinternal ORDER BY 2;

-- Without a call there is no row.
SELECT (SELECT count(*) FROM rateLimits) AS states, (SELECT count(*) FROM rl_config) AS definitions, (SELECT count(*) FROM rl_blocks) AS blocks, (SELECT count(*) FROM rl_holds) AS holds;

-- A second one, and one in the way of an object that is already there, is refused. PostgreSQL 18 also
-- says where in the script.
\set SHOW_CONTEXT never
CREATE EXTENSION ratelimit;
BEGIN;
DROP EXTENSION ratelimit;
CREATE TABLE rl_config (name text);
SAVEPOINT before;
CREATE EXTENSION ratelimit;
ROLLBACK TO before;
DROP TABLE rl_config;
CREATE FUNCTION rl_reset(name text, key text DEFAULT '') RETURNS boolean LANGUAGE sql RETURN true;
SAVEPOINT before;
CREATE EXTENSION ratelimit;
ROLLBACK;
\set SHOW_CONTEXT errors

-- A table or a function of the extension can't go alone.
SELECT error_of('DROP TABLE rateLimits');
SELECT error_of('DROP FUNCTION rl_config_changed');
-- The trigger's function is for its trigger.
SELECT rl_config_changed();

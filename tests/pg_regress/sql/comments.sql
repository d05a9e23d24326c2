-- Every object of the extension, every column of its tables and of rl_result, and every trigger has a
-- comment: nothing is listed here.
WITH member AS (
    SELECT classid, objid FROM pg_depend
    WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
      AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit')
      AND NOT (classid = 'pg_type'::regclass AND objid::regtype::text !~ '^rl_(\w+_)?result$')
), object AS (
    SELECT classid, objid, 0 AS objsubid FROM member
    UNION ALL
    SELECT 'pg_class'::regclass, attrelid, attnum FROM pg_attribute
    WHERE attrelid IN ('ratelimits'::regclass, 'rl_config'::regclass, 'rl_blocks'::regclass, 'rl_holds'::regclass, 'rl_result'::regclass) AND attnum > 0
    UNION ALL
    SELECT 'pg_trigger'::regclass, oid, 0 FROM pg_trigger
    WHERE tgrelid IN ('ratelimits'::regclass, 'rl_config'::regclass, 'rl_blocks'::regclass) AND NOT tgisinternal
    UNION ALL
    SELECT 'pg_extension'::regclass, oid, 0 FROM pg_extension WHERE extname = 'ratelimit'
)
SELECT pg_describe_object(o.classid, o.objid, o.objsubid) AS without_comment
FROM object o LEFT JOIN pg_description d ON (d.classoid, d.objoid, d.objsubid) = (o.classid, o.objid, o.objsubid)
WHERE coalesce(d.description, '') = '' ORDER BY 1;
-- Settings describe themselves; the library is loaded by the first call.
SELECT rl_token_bucket(1, '1 s') IS NOT NULL AS loaded;
SELECT name, short_desc, extra_desc, context FROM pg_settings WHERE name LIKE 'ratelimit.%' ORDER BY name;

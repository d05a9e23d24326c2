-- Where Citus has distributed rateLimits, its rows are elsewhere, and what is here is an empty shell: auto
-- goes by SQL, which Citus routes, and heap is refused with 0A000. Citus itself is not needed for this: its
-- catalog is made up, a table that says which tables are distributed, and a row for its extension.
\set home :DBNAME
CREATE DATABASE regress_rl_citus TEMPLATE template0;
\c regress_rl_citus
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE EXTENSION ratelimit;
SELECT rl_define('citus', rl_token_bucket(10, '1 minute'));
CREATE TABLE events (what text);
SELECT ok FROM rl_limit('citus', 'k');
-- Which way the takes go: only a statement of SQL locks the table as SELECT does.
CREATE FUNCTION takes() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    access text;
    outcome text;
BEGIN
    FOREACH access IN ARRAY ARRAY['auto', 'heap'] LOOP
        PERFORM set_config('ratelimit.access', access, true);
        BEGIN
            PERFORM rl_limit('citus', 'k', 0.125);
            outcome := concat_ws(', ', outcome, access || CASE WHEN EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'rateLimits'::regclass AND mode = 'AccessShareLock')
                                                          THEN ' by SQL' ELSE ' directly' END);
        EXCEPTION WHEN OTHERS THEN
            outcome := concat_ws(', ', outcome, access || ' ' || sqlstate);
        END;
    END LOOP;
    RETURN outcome;
END
$$;
SELECT takes();
\set SHOW_CONTEXT never
\echo without Citus nothing is distributed
SELECT rl_distribute();
SELECT rl_undistribute();
\echo its catalog without its extension
SET allow_system_table_mods = on;
CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass NOT NULL, partmethod "char" NOT NULL, partkey text, colocationid int NOT NULL DEFAULT 0, repmodel "char" NOT NULL DEFAULT 'c', autoconverted boolean NOT NULL DEFAULT false);
INSERT INTO pg_catalog.pg_dist_partition VALUES ('rateLimits', 'h');
COMMENT ON TABLE rateLimits IS 'distributed';
SELECT takes();
\echo its extension, which has not distributed the table
DELETE FROM pg_catalog.pg_dist_partition;
INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
SELECT 4290000001, 'citus', extowner, 'pg_catalog'::regnamespace, false, '13.0-1' FROM pg_extension WHERE extname = 'ratelimit';
INSERT INTO pg_catalog.pg_dist_partition VALUES ('events', 'h');
ALTER TABLE rateLimits SET (fillfactor = 41);
SELECT takes();
SELECT rl_distribute(0);
SELECT rl_distribute(shard_count => NULL);
SELECT rl_undistribute();
\echo and one that has; another session sees it too
INSERT INTO pg_catalog.pg_dist_partition VALUES ('rateLimits', 'h');
ALTER TABLE rateLimits SET (fillfactor = 40);
CREATE FUNCTION pg_catalog.get_shard_id_for_distribution_column(regclass, anyelement) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE FUNCTION pg_catalog.lock_shard_metadata(integer, bigint[]) RETURNS void LANGUAGE sql AS '';
CREATE TABLE pg_catalog.pg_dist_shard (logicalrelid regclass, shardid bigint);
SELECT takes();
\c
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT takes();
SELECT ok, remaining FROM rl_limit('citus', 'k', 3);
\echo a reference table, and one that Citus only knows
SET allow_system_table_mods = on;
UPDATE pg_catalog.pg_dist_partition SET partmethod = 'n', repmodel = 't' WHERE logicalrelid = 'rateLimits'::regclass;
ALTER TABLE rateLimits SET (fillfactor = 41);
SELECT takes();
\echo no longer distributed
DELETE FROM pg_catalog.pg_dist_partition WHERE logicalrelid = 'rateLimits'::regclass;
ALTER TABLE rateLimits SET (fillfactor = 40);
SELECT takes();
SELECT ok, remaining FROM rl_limit('citus', 'k', 3);
DELETE FROM pg_extension WHERE extname = 'citus';
\c :home
DROP DATABASE regress_rl_citus;

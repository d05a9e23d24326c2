-- ratelimit.access: the rows are reached directly only where the table is the ordinary one. Whatever
-- its owner makes of it, auto goes by SQL then, with the same answers; heap says why it can't.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('access', rl_token_bucket(1000, '1 minute'));
-- A role without rights sets nothing.
CREATE ROLE regress_rl_access;
SET ROLE regress_rl_access;
SET ratelimit.access = 'sql';
RESET ROLE;
DROP ROLE regress_rl_access;
SET ratelimit.access = 'quick';
-- Takes with every setting, in a transaction that changes the table and rolls that back.
CREATE FUNCTION shown(change text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    access text;
    outcome text;
    reason text;
BEGIN
    BEGIN
        EXECUTE change;
        FOREACH access IN ARRAY ARRAY['auto', 'sql', 'heap'] LOOP
            PERFORM set_config('ratelimit.access', access, true);
            BEGIN
                outcome := concat_ws('; ', outcome,
                    (SELECT access || ' ' || ok || ' ' || remaining FROM rl_limit('access', 'k')));
            EXCEPTION WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS reason = PG_EXCEPTION_DETAIL;
                outcome := concat_ws('; ', outcome, access || ' ' || sqlstate || ' ' || reason);
            END;
        END LOOP;
        RAISE EXCEPTION USING errcode = 'RB000';
    EXCEPTION WHEN SQLSTATE 'RB000' THEN
        RETURN NEXT outcome;
    END;
END
$$;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
\a \t
SELECT shown('SELECT');
SELECT shown('CREATE TRIGGER t BEFORE UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION nothing()');
SELECT shown('CREATE RULE r AS ON UPDATE TO rateLimits WHERE NEW.value > 1e9 DO INSTEAD NOTHING');
SELECT shown('ALTER TABLE rateLimits ENABLE ROW LEVEL SECURITY');
SELECT shown('CREATE INDEX ON rateLimits (ts)');
SELECT shown('CREATE INDEX ON rateLimits (lower(key)) WHERE value < 0');
SELECT shown('ALTER TABLE rateLimits ADD CHECK (value < 1e9)');
SELECT shown('ALTER TABLE rateLimits ADD COLUMN note text');
SELECT shown('ALTER TABLE rateLimits REPLICA IDENTITY FULL');
SELECT shown('ALTER TABLE rateLimits SET UNLOGGED');
SELECT shown('CREATE TABLE below () INHERITS (rateLimits)');
SELECT shown('ALTER TABLE rateLimits SET (user_catalog_table = true)');
-- A publication that only takes updates which say which row they are of.
SELECT shown('CREATE PUBLICATION p FOR TABLE rateLimits WHERE (shard = 0)');
SELECT shown('CREATE PUBLICATION p FOR TABLE rateLimits WHERE (value < 1e9)');
SELECT shown('CREATE PUBLICATION p FOR TABLE rateLimits (value)');
-- Another primary key: columns in another order, or sorted otherwise.
SELECT shown('ALTER TABLE rateLimits DROP CONSTRAINT ratelimits_pkey, ADD PRIMARY KEY (key, name, shard)');
SELECT shown('ALTER TABLE rateLimits DROP CONSTRAINT ratelimits_pkey, ADD PRIMARY KEY (name, key, shard) INCLUDE (value)');
SELECT shown('ALTER TABLE rateLimits DROP CONSTRAINT ratelimits_pkey;
              CREATE UNIQUE INDEX other ON rateLimits (name, key DESC, shard);
              ALTER TABLE rateLimits REPLICA IDENTITY DEFAULT');
SELECT shown('ALTER TABLE rateLimits ALTER COLUMN key TYPE text COLLATE "POSIX"');
SELECT shown('ALTER TABLE rateLimits DROP CONSTRAINT ratelimits_pkey');
-- Nothing of that stayed.
SELECT shown('REINDEX TABLE rateLimits');
SELECT shown('CLUSTER rateLimits USING ratelimits_pkey');
SELECT shown('TRUNCATE rateLimits');
SELECT shown('SELECT');
\a \t
DROP FUNCTION shown; DROP FUNCTION nothing;

-- rl_blocks is written as its owner, and is looked for where CREATE EXTENSION put it.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('bt', rl_token_bucket(50, '1 minute'));
SELECT rl_block('bt', 'before', '1 hour') IS NOT NULL;
-- The owner of the table is who writes it, also when another owner comes in a session that has used it; where it
-- was moved away, calls fail.
CREATE ROLE regress_rl_block_table;
ALTER TABLE rl_blocks OWNER TO regress_rl_block_table;
CREATE FUNCTION who_writes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'written by %', current_user; RETURN NEW; END $$;
CREATE TRIGGER who_writes BEFORE INSERT ON rl_blocks FOR EACH ROW EXECUTE FUNCTION who_writes();
GRANT USAGE ON SCHEMA public TO regress_rl_block_table;
SELECT rl_block('bt', 'owned', '1 hour') IS NOT NULL;
DROP TRIGGER who_writes ON rl_blocks;
DROP FUNCTION who_writes;
ALTER TABLE rl_blocks OWNER TO CURRENT_USER;
REVOKE USAGE ON SCHEMA public FROM regress_rl_block_table;
DROP ROLE regress_rl_block_table;
CREATE SCHEMA bt_other;
ALTER TABLE rl_blocks SET SCHEMA bt_other;
SELECT error_of($$SELECT rl_limit('bt', 'owned')$$), error_of($$SELECT rl_block('bt', 'owned', '1 hour')$$);
ALTER TABLE bt_other.rl_blocks SET SCHEMA public;
SELECT ok FROM rl_limit('bt', 'owned');
DROP SCHEMA bt_other;
TRUNCATE rl_blocks;
SELECT ok FROM rl_limit('bt', 'owned');
-- Where a restore (pg_restore --data-only --disable-triggers) or its owner writes it while its triggers are off,
-- what is remembered goes when they are on again.
ALTER TABLE rl_blocks DISABLE TRIGGER ALL;
INSERT INTO rl_blocks VALUES ('bt', 'restored', '2027-01-01 13:00:00+00');
ALTER TABLE rl_blocks ENABLE TRIGGER ALL;
SELECT ok FROM rl_limit('bt', 'restored');
ALTER TABLE rl_blocks DISABLE TRIGGER ALL;
DELETE FROM rl_blocks;
SELECT ok FROM rl_limit('bt', 'restored');
ALTER TABLE rl_blocks ENABLE TRIGGER ALL;
SELECT ok FROM rl_limit('bt', 'restored');
ALTER TABLE rl_blocks ENABLE ALWAYS TRIGGER rl_blocks_changed, ENABLE ALWAYS TRIGGER rl_blocks_truncated;

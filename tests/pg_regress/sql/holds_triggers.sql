-- Triggers and rules that keep or change rows of the tables: what a call can't write is an error that names the table,
-- and nothing is done.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE FUNCTION ht_keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION ht_count() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.count := new.count + 1000; RETURN new; END';
CREATE FUNCTION ht_id() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.id := ''x''; RETURN new; END';
CREATE FUNCTION ht_key() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.key := ''x''; RETURN new; END';
CREATE FUNCTION ht_back() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.returned := 0; RETURN new; END';
CREATE FUNCTION ht_old() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN old; END';
CREATE FUNCTION ht_error(call text) RETURNS text LANGUAGE sql AS $$
    SELECT replace(coalesce(error_of('SELECT ' || call, true), 'none'), 'ratelimit.', '')
$$;
SELECT rl_define('ht', rl_token_bucket(1, '1 hour', capacity => 100));
SELECT rl_define('ht', rl_token_bucket(2, '1 hour', capacity => 100), 'k');
SELECT ok FROM rl_hold('ht', 'k', 5, id => 'h-1');
SELECT ok FROM rl_hold('ht', 'other', 5, ttl => '1 minute', id => 'h-2');
SELECT rl_block('ht', 'k', until => 'infinity');

\echo a row of rl_holds is kept
CREATE TRIGGER ht BEFORE DELETE ON rl_holds FOR EACH ROW EXECUTE FUNCTION ht_keep();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_settle(''h-1'', 1)', 'rl_settle_all(''h-1'', ''1'')',
    'rl_reset(''ht'', ''k'')', 'rl_reset_keys(''ht'')', 'rl_forget(''k'')']) call;
DROP TRIGGER ht ON rl_holds;
\echo what it holds is changed
CREATE TRIGGER ht BEFORE INSERT OR UPDATE ON rl_holds FOR EACH ROW EXECUTE FUNCTION ht_count();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_hold(''ht'', ''other'', 6, id => ''h-2'')', 'rl_hold(''ht'', ''new'', 5)',
    'rl_hold_all(''[{"name": "ht", "key": "new"}]'')']) call;
DROP TRIGGER ht ON rl_holds;
CREATE TRIGGER ht BEFORE INSERT OR UPDATE ON rl_holds FOR EACH ROW EXECUTE FUNCTION ht_id();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_hold(''ht'', ''other'', 6, id => ''h-2'')', 'rl_hold(''ht'', ''new'', 5)']) call;
DROP TRIGGER ht ON rl_holds;
CREATE TRIGGER ht BEFORE INSERT OR UPDATE ON rl_holds FOR EACH ROW EXECUTE FUNCTION ht_key();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_hold(''ht'', ''other'', 6, id => ''h-2'')', 'rl_hold(''ht'', ''new'', 5)']) call;
DROP TRIGGER ht ON rl_holds;
CREATE TRIGGER ht BEFORE UPDATE ON rl_holds FOR EACH ROW EXECUTE FUNCTION ht_back();
SET ratelimit.clock = '2027-01-01 12:02:00+00';
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_limit(''ht'', ''other'')', 'rl_limit_all(''[{"name": "ht", "key": "other"}]'')',
    'rl_settle(''h-2'', 1)', 'rl_prune()']) call;
DROP TRIGGER ht ON rl_holds;
\echo a row of another table is kept
CREATE TRIGGER ht BEFORE DELETE ON rl_config FOR EACH ROW EXECUTE FUNCTION ht_keep();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_undefine(''ht'', ''k'')', 'rl_forget(''k'')']) call;
DROP TRIGGER ht ON rl_config;
CREATE TRIGGER ht BEFORE DELETE ON rl_blocks FOR EACH ROW EXECUTE FUNCTION ht_keep();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_unblock(''ht'', ''k'')', 'rl_forget(''k'')']) call;
DROP TRIGGER ht ON rl_blocks;
CREATE TRIGGER ht BEFORE INSERT OR UPDATE ON rl_config FOR EACH ROW EXECUTE FUNCTION ht_keep();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_define(''ht'', rl_unlimited())', 'rl_define(''ht'', rl_unlimited(), ''new'')']) call;
DROP TRIGGER ht ON rl_config;
CREATE TRIGGER ht BEFORE INSERT OR UPDATE ON rl_blocks FOR EACH ROW EXECUTE FUNCTION ht_keep();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_block(''ht'', ''k'', ''1 hour'')', 'rl_block(''ht'', ''new'', ''1 hour'')']) call;
DROP TRIGGER ht ON rl_blocks;
CREATE TRIGGER ht BEFORE UPDATE OR DELETE ON rateLimits FOR EACH ROW EXECUTE FUNCTION ht_keep();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_hold(''ht'', ''other'', 6, id => ''h-2'')', 'rl_hold(''ht'', ''other'', 1)']) call;
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_reset(''ht'', ''k'')', 'rl_reset_keys(''ht'')', 'rl_forget(''k'')']) call;
DROP TRIGGER ht ON rateLimits;
CREATE TRIGGER ht BEFORE UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION ht_old();
SELECT call, ht_error(call) AS error FROM unnest(ARRAY['rl_limit(''ht'', ''other'')']) call;
DROP TRIGGER ht ON rateLimits;
\echo a rule that is dropped again
CREATE RULE ht AS ON DELETE TO rl_holds DO INSTEAD NOTHING;
SELECT ht_error('rl_settle(''h-1'', 1)') <> 'none';
DROP RULE ht ON rl_holds;
SELECT ok FROM rl_settle('h-1', 1);
CREATE RULE ht AS ON INSERT TO rl_config DO INSTEAD NOTHING;
SELECT ht_error('rl_define(''ht'', rl_unlimited(), ''new'')') <> 'none';
DROP RULE ht ON rl_config;
SELECT rl_define('ht', rl_unlimited(), 'new'), rl_undefine('ht', 'new');
\echo nothing was done before, and all is now
SELECT ok, remaining FROM rl_settle('h-2', 1);
SELECT count(*) FROM rl_holds WHERE name = 'ht';
-- Other files have keys of these names.
SELECT rl_forget('k') > 0 AS k, rl_forget('other') > 0 AS other, rl_forget('new');
SELECT rl_undefine('ht');
DROP FUNCTION ht_keep, ht_count, ht_id, ht_key, ht_back, ht_old, ht_error;

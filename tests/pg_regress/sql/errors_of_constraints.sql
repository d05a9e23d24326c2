-- Constraints that the tables' owner put there: an error has the constraint's name, the table's and the column's,
-- but not the row.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('ec', rl_token_bucket(10, '1 minute'));
-- Without what differs by store, and the shard and the node that Citus names.
CREATE FUNCTION without_place(value text) RETURNS text LANGUAGE sql AS $$
    SELECT regexp_replace(regexp_replace(regexp_replace(value, '(INSERT INTO|UPDATE) (?:ONLY )?public.ratelimits [^"]*', '\1 rateLimits', 'g'),
        '_1[0-9]{5}\M', '', 'g'), 'while executing command on [^\n]*\n', '', 'g')
$$;
-- Everything that an error says of itself.
CREATE FUNCTION caught(statement text) RETURNS TABLE (field text, value text) LANGUAGE plpgsql AS $$
DECLARE
    state text; message text; detail text; hint text; context text;
    schema_name text; table_name text; column_name text; constraint_name text; type_name text;
BEGIN
    EXECUTE statement;
    RETURN QUERY SELECT 'none', NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT,
        context = PG_EXCEPTION_CONTEXT, schema_name = SCHEMA_NAME, table_name = TABLE_NAME, column_name = COLUMN_NAME,
        constraint_name = CONSTRAINT_NAME, type_name = PG_DATATYPE_NAME;
    RETURN QUERY SELECT v.field, without_place(v.value) FROM (VALUES
        ('sqlstate', state), ('message', message), ('detail', detail), ('hint', hint), ('context', context), ('schema', schema_name),
        ('table', table_name), ('column', column_name), ('constraint', constraint_name), ('type', type_name)) AS v (field, value)
        WHERE v.value <> '';
END
$$;
\pset format unaligned
\pset tuples_only on
BEGIN;
DELETE FROM rateLimits;
ALTER TABLE rateLimits ADD CONSTRAINT enough CHECK (value > 5);
SELECT * FROM caught($$SELECT rl_limit('ec', 'secret', 7)$$);
SELECT rl_limit('ec', 'secret', 1);
SELECT * FROM caught($$SELECT rl_limit('ec', 'secret', 7)$$);
SELECT * FROM caught($$SELECT rl_limit_all('[{"name": "ec", "key": "secret", "count": 7}]')$$);
ROLLBACK;
BEGIN;
DELETE FROM rateLimits;
ALTER TABLE rateLimits ADD COLUMN note text;
ALTER TABLE rateLimits ALTER COLUMN note SET NOT NULL;
SELECT * FROM caught($$SELECT rl_limit('ec', 'secret')$$);
ROLLBACK;
BEGIN;
DELETE FROM rateLimits;
ALTER TABLE rateLimits ADD CONSTRAINT once EXCLUDE USING btree (key WITH =);
SELECT rl_limit('ec/other', 'secret', config => rl_token_bucket(10, '1 minute'));
SELECT * FROM caught($$SELECT rl_limit('ec', 'secret')$$);
ROLLBACK;
-- The same for definitions.
BEGIN;
DELETE FROM rl_config WHERE name <> 'ec';
ALTER TABLE rl_config ADD CONSTRAINT short CHECK (length(key) < 6);
SELECT * FROM caught($$SELECT rl_define('ec', rl_token_bucket(10, '1 minute'), key => 'secret')$$);
ROLLBACK;
\pset format aligned
\pset tuples_only off
DROP FUNCTION caught, without_place;
SELECT rl_undefine('ec');

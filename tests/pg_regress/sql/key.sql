-- rl_key: one key of several texts.
SET datestyle = 'ISO';
\a \t
SELECT rl_key('acme', 'ada'), rl_key('acme'), rl_key(''), rl_key('', '');
-- Another list never makes the same key; nothing in a text ends it.
SELECT rl_key('a","b'), rl_key('a', 'b'), rl_key(rl_key('a', 'b')), rl_key('a,b'), rl_key('["a"', '"b"]');
SELECT rl_key(E'\\ / \b\f\n\r\t\x01\x1f\x7f', 'é ☕');
SELECT rl_key(VARIADIC parts) = array_to_json(parts)::text AS as_postgres, rl_key(VARIADIC parts)::jsonb = to_jsonb(parts) AS as_json
FROM (SELECT array_agg(chr(n) ORDER BY n) AS parts FROM generate_series(1, 140) n) every;
-- Columns of other types as text, and arrays, with any lower bound.
SELECT rl_key(7::text, gen.day::text, upper('x')) FROM (VALUES (date '2027-01-01')) gen (day);
SELECT rl_key(VARIADIC ARRAY['a', 'b']), rl_key(VARIADIC '[5:6]={a,b}');
-- 1,024 bytes, as they are written.
SELECT octet_length(rl_key(repeat('x', 1020))), error_of('SELECT rl_key(repeat(''x'', 1021))');
SELECT octet_length(rl_key(repeat('"', 510))), error_of('SELECT rl_key(repeat(''"'', 511))');
SELECT octet_length(rl_key(VARIADIC array_fill(''::text, ARRAY[341])));
-- Refused: NULL, nothing, too much.
SELECT call, error_of('SELECT ' || call, true) FROM unnest(ARRAY[
    'rl_key(NULL)', 'rl_key(''acme'', NULL)', 'rl_key(NULL, ''ada'')', 'rl_key(VARIADIC ''[0:1]={a,NULL}'')', 'rl_key(VARIADIC NULL::text[])', 'rl_key(VARIADIC ''{}'')',
    'rl_key(VARIADIC array_fill(''''::text, ARRAY[342]))', 'rl_key(VARIADIC ''{{a,b},{c,d}}'')', 'rl_key(repeat(''x'', 100000), repeat(''y'', 100000))']) call;
\a \t
-- It is immutable.
CREATE TABLE ke (tenant text, author text, key text GENERATED ALWAYS AS (rl_key(tenant, author)) STORED);
INSERT INTO ke VALUES ('acme', 'ada');
SELECT key FROM ke;
DROP TABLE ke;

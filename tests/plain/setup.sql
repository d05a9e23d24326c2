-- What goes before the regression tests' own setup: dist/ratelimit.sql is loaded already, and has the rights of a schema
-- that everybody uses.
GRANT USAGE ON SCHEMA ratelimit TO PUBLIC;
SET search_path = public;

-- Runs before the regression tests' own setup, after dist/ratelimit.sql: every role may use the schema.
GRANT USAGE ON SCHEMA ratelimit TO PUBLIC;
SET search_path = public;

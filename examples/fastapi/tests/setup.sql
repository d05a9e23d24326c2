-- What the fixtures of the tests need in addition, as docs/testing.md lists it.
GRANT SET ON PARAMETER ratelimit.clock TO shop;
GRANT EXECUTE ON FUNCTION rl_check, rl_reset_keys TO shop;
GRANT SELECT ON rl_config TO shop;
GRANT UPDATE ON users TO shop; -- to make an administrator

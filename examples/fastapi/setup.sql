-- What the shop needs in its database: the extension, its limits, its tables, and a role that may call what it calls.
CREATE EXTENSION ratelimit;

SELECT rl_define('loginByAccount', rl_token_bucket(rate => 5, period => '15 minutes', keyed => true)),
       rl_define('loginByAddress', rl_token_bucket(rate => 50, period => '1 hour', keyed => true)),
       rl_define('signUpByAddress', rl_fixed_window(rate => 5, period => '1 day', timezone => 'UTC', keyed => true)),
       rl_define('signUps', rl_token_bucket(rate => 1000, period => '1 day')),
       rl_define('api', rl_token_bucket(rate => 10, period => '1 minute', keyed => true)), -- the free plan
       rl_define('api/pro', rl_token_bucket(rate => 100, period => '1 minute', keyed => true));

CREATE TABLE users (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email text NOT NULL UNIQUE,
    password bytea NOT NULL,
    admin boolean NOT NULL DEFAULT false
);

-- Gives an account a plan, and nothing else: its owner can define limits, its callers can't.
CREATE FUNCTION set_plan(account text, plan text) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT CASE plan WHEN 'free' THEN rl_undefine('api', account)
                     ELSE rl_define('api', jsonb_build_object('plan', 'api/' || plan), key => account) END
$$;
REVOKE EXECUTE ON FUNCTION set_plan FROM PUBLIC;

CREATE ROLE shop LOGIN;
GRANT SELECT, INSERT, DELETE ON users TO shop;
GRANT EXECUTE ON FUNCTION set_plan, rl_limit, rl_limit_all, rl_headers, rl_headers_all, rl_reset, rl_credit TO shop;
GRANT EXECUTE ON FUNCTION rl_status, rl_block, rl_unblock, rl_forget TO shop; -- the administrator's pages
GRANT EXECUTE ON FUNCTION rl_prune TO shop;

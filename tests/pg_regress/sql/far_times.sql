-- Every kind lives at any time there is: it takes, denies, and passes when it said it would.
SET timezone = 'UTC'; SET datestyle = 'ISO';
SELECT rl_define('far bucket', rl_token_bucket(10, '1 hour')),
       rl_define('far window', rl_fixed_window(10, '1 hour', start => '1970-01-01Z')),
       rl_define('far month', rl_fixed_window(10, '1 month', timezone => 'Europe/Berlin')),
       rl_define('far sliding', rl_sliding_window(10, '1 hour')),
       rl_define('far log', rl_sliding_log(10, '1 hour'));
CREATE FUNCTION set_clock(at timestamptz) RETURNS text LANGUAGE sql AS
    $$SELECT set_config('ratelimit.clock', (extract(epoch FROM at) * 1000)::text, false)$$;
CREATE FUNCTION calls(at timestamptz) RETURNS TABLE (name text, taken boolean, denied boolean, retry_at timestamptz, later boolean)
LANGUAGE plpgsql AS $$
BEGIN
    FOR name IN SELECT c.name FROM rl_config c WHERE c.name LIKE 'far %' ORDER BY 1 LOOP
        PERFORM rl_reset(name, at::text), set_clock(at);
        taken := (rl_limit(name, at::text, 10)).ok;
        SELECT NOT l.ok, l.retry_at INTO denied, retry_at FROM rl_limit(name, at::text) l;
        PERFORM set_clock(at + make_interval(secs => (SELECT l.retry_after FROM rl_check(name, at::text) l)));
        later := (rl_limit(name, at::text)).ok;
        RETURN NEXT;
    END LOOP;
END $$;
SELECT * FROM calls('1969-12-31 23:59:59.999999+00');
SELECT * FROM calls('9998-12-31 12:00:00+00');
-- Beyond, time zones have no rules. The clock ends with that of JavaScript, in the year 275760.
DELETE FROM rl_config WHERE name = 'far month';
SELECT * FROM calls('275759-06-01 12:00:00+00');
SELECT * FROM calls('4713-01-02 12:00:00+00 BC');
-- From one end to the other, and back: full at once, each time.
SELECT set_clock('1970-01-01 00:00:00+00') IS NOT NULL AS past;
SELECT name, (rl_limit(name, 'jump', 10)).ok FROM rl_config WHERE name LIKE 'far %' ORDER BY 1;
SELECT set_clock('275760-01-01 00:00:00+00') IS NOT NULL AS future;
SELECT name, (rl_limit(name, 'jump', 10)).ok FROM rl_config WHERE name LIKE 'far %' ORDER BY 1;
SELECT set_clock('1970-01-01 00:00:00+00') IS NOT NULL AS past;
SELECT r.name, l.ok, l.remaining, l.retry_at FROM rl_config r, rl_limit(r.name, 'jump', 1) l WHERE r.name LIKE 'far %' ORDER BY 1;
-- Rows from far in the future, while the clock stands here: they count as none.
SELECT set_clock('2027-01-01 00:00:00+00') IS NOT NULL AS here;
UPDATE rateLimits SET ts = '294000-12-31 23:00:00+00', value = CASE WHEN name LIKE '%sliding' THEN 0 ELSE 5 END, log = NULL WHERE key = 'jump';
SELECT r.name, l.ok, l.remaining, l.retry_after, l.reset_at FROM rl_config r, rl_limit(r.name, 'jump', 1) l WHERE r.name LIKE 'far %' ORDER BY 1;
SELECT name, value, ts, prior, log, added FROM rateLimits WHERE key = 'jump' ORDER BY 1;

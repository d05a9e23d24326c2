-- rl_headers_all: the rows of a call for several limits as headers.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('ha', rl_token_bucket(10, '1 minute')), rl_define('ha', rl_token_bucket(500, '1 minute'), 'vip'),
       rl_define('ha', rl_unlimited(), 'exempt'), rl_define('ha/hour', rl_sliding_window(40, '1 hour')),
       rl_define('ha/log', rl_sliding_log(3, '90 seconds')), rl_define('ha/dry', rl_token_bucket(1, '1 hour') || '{"enforce": false}');
\a \t
CREATE FUNCTION shown(requests jsonb, take boolean DEFAULT true) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    results jsonb;
BEGIN
    IF take THEN
        results := (SELECT jsonb_agg(r ORDER BY n) FROM rl_limit_all(requests) r);
    ELSE
        results := (SELECT jsonb_agg(r ORDER BY n) FROM rl_check_all(requests) r);
    END IF;
    RETURN QUERY SELECT style || ' ' || rl_headers_all(results, style) FROM unnest('{ietf,github,postgrest}'::text[]) style;
END
$$;
-- An item a request, in the order of the requests, with the policy of its key.
SELECT shown('[{"name": "ha", "key": "vip", "count": 2}, {"name": "ha/hour", "key": "u", "count": 20}, {"name": "ha", "key": "u"}]');
-- As one statement.
SELECT rl_headers_all(jsonb_agg(r ORDER BY n)) FROM rl_check_all('[{"name": "ha/log", "key": "u"}, {"name": "ha", "key": "u"}]') r;
-- Exempt ones are left out; if all are, there is nothing to show.
SELECT shown('[{"name": "ha", "key": "exempt"}, {"name": "ha/log", "key": "u"}]');
SELECT shown('[{"name": "ha", "key": "exempt"}]');
-- Denied: the longest wait, and GitHub's style shows the limit that has it.
SELECT shown('[{"name": "ha", "key": "u", "count": 9.5}, {"name": "ha/hour", "key": "u", "count": 40}, {"name": "ha/log", "key": "u", "count": 1}]');
SELECT shown('[{"name": "ha", "key": "u", "count": 9.5}, {"name": "ha/log", "key": "u", "count": 1}]', take => false);
-- One that can never succeed has no Retry-After, and GitHub's style shows it.
SELECT shown('[{"name": "ha", "key": "u", "count": 9.5}, {"name": "ha/log", "key": "u", "count": 4}, {"name": "ha/hour", "key": "u"}]');
-- The same limit twice; a reservation's wait is for the work.
SELECT rl_define('ha/debt', rl_token_bucket(2, '1 minute', max_reserved => 2));
SELECT shown('[{"name": "ha/debt", "count": 2}, {"name": "ha/debt", "reserve": true}]');
-- A dry run denies nothing.
SELECT shown('[{"name": "ha/dry"}]');
SELECT shown('[{"name": "ha/dry"}, {"name": "ha/log", "key": "v"}]');
SELECT shown('[{"name": "ha/dry"}, {"name": "ha", "key": "u", "count": 9.5}]');
SELECT shown('[{"name": "ha/dry"}, {"name": "ha", "key": "u", "count": 11}]');
-- Blocked, also where the key is exempt.
SELECT rl_block('ha', 'exempt', '5 minutes') IS NOT NULL AS blocked, rl_block('ha/hour', 'w', until => 'infinity') IS NOT NULL AS blocked;
SELECT shown('[{"name": "ha", "key": "exempt"}, {"name": "ha/log", "key": "v"}]');
SELECT shown('[{"name": "ha", "key": "exempt"}, {"name": "ha/hour", "key": "w"}]');
SELECT rl_unblock('ha', 'exempt'), rl_unblock('ha/hour', 'w');
-- GitHub's style shows the smallest share left; the first of equal ones.
SELECT n, rl_headers_all(results, 'github') ->> 'x-ratelimit-resource' AS shown FROM (VALUES
    (1, jsonb '[{"name": "ha", "ok": true, "allows": true, "remaining": 5, "capacity": 10}, {"name": "ha/hour", "ok": true, "allows": true, "remaining": 15, "capacity": 40}]'),
    (2, '[{"name": "ha", "ok": true, "allows": true, "remaining": 5, "capacity": 10}, {"name": "ha/hour", "ok": true, "allows": true, "remaining": 20, "capacity": 40}]'),
    (3, '[{"name": "ha", "ok": true, "allows": true, "remaining": 0, "capacity": 0}, {"name": "ha/hour", "ok": true, "allows": true, "remaining": -1, "capacity": 40}]')) v (n, results);
-- Requests with configs of their own: the row with its request.
SELECT rl_headers_all(jsonb_agg(to_jsonb(r) || (q -> (n - 1)) ORDER BY n))
FROM (SELECT jsonb '[{"name": "ha/inline", "key": "u", "config": {"kind": "sliding log", "rate": 5, "period": 1000}}, {"name": "ha", "key": "u"}]' AS q) given,
     rl_check_all(q) r;
-- Times as other languages write them, and as a session of another time zone does.
SET timezone = 'Asia/Kolkata';
SELECT rl_headers_all(jsonb_agg(r ORDER BY n)) FROM rl_check_all('[{"name": "ha/log", "key": "u"}, {"name": "ha", "key": "u"}]') r;
SET timezone = 'UTC';
SELECT at, rl_headers_all(jsonb_build_array(jsonb '{"name": "ha", "ok": true, "allows": true, "remaining": 5, "capacity": 10, "retry_at": null}' || jsonb_build_object('reset_at', at))) ->> 'RateLimit' AS header
FROM unnest('{2027-01-01T12:00:30.000Z,2027-01-01 12:00:30+00,2027-01-01T13:00:30+01:00,9999-12-30T00:00:00+00:00,2027-01-01T12:53:58+00:53:28,2027-01-01t12:00:60z}'::text[]) at;
-- The time of the call is that of the rows, if one has it.
SELECT jsonb_agg(r ORDER BY n) AS denied FROM rl_limit_all('[{"name": "ha", "key": "u", "count": 9.5}, {"name": "ha/hour", "key": "u"}]') r \gset
SET ratelimit.clock = '2027-01-01 12:30:00+00';
SELECT rl_headers_all(:'denied');
SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- Invalid.
SELECT results, error_of(format('SELECT rl_headers_all(%L)', results)) FROM unnest(ARRAY[NULL, '{}', '[]', '[1]', 'null',
    '[{"name": "ha"}]', '[{"ok": true, "allows": true}]', '[{"name": "ha", "ok": 1, "allows": true}]', '[{"name": "ha", "ok": true, "allows": null}]',
    '[{"name": "ha", "ok": true, "allows": true, "key": 7}]', '[{"name": 7, "ok": true, "allows": true}]', '[{"name": "", "ok": true, "allows": true}]',
    '[{"name": "ha", "ok": true, "allows": true}, {"name": "ha/undefined", "ok": true, "allows": true}]',
    '[{"name": "ha", "ok": true, "allows": true, "remaining": 1}]', '[{"name": "ha", "ok": true, "allows": true, "capacity": 1}]',
    '[{"name": "ha", "ok": true, "allows": true, "remaining": "Infinity", "capacity": 1}]', '[{"name": "ha", "ok": true, "allows": true, "remaining": 1, "capacity": -1}]',
    '[{"name": "ha", "ok": true, "allows": true, "remaining": 1, "capacity": 10000000000000000}]', '[{"name": "ha", "ok": false, "allows": true, "retry_after": -1}]', '[{"name": "ha", "ok": false, "allows": true, "retry_after": "1"}]',
    '[{"name": "ha", "ok": false, "allows": true, "retry_at": 0}]', '[{"name": "ha", "ok": false, "allows": true, "retry_at": "2027-01-01 12:00:00"}]', '[{"name": "ha", "ok": false, "allows": true, "reset_at": "2027-02-30T12:00:00Z"}]',
    '[{"name": "ha", "ok": false, "allows": true, "reset_at": "infinity"}]', '[{"name": "ha", "ok": false, "allows": true, "reset_at": "2027-01-01T24:00:00Z"}]', '[{"name": "ha", "ok": false, "allows": true, "reset_at": "2027-01-01T12:00:00+01:75"}]', '[{"name": "ha", "ok": true, "allows": true, "config": {"kind": "bucket"}}]']) results;
SELECT error_of($$SELECT rl_headers_all('[{"name": "ha", "ok": true, "allows": true}]', 'IETF')$$);
SELECT error_of($$SELECT rl_headers_all('[{"name": "ha", "ok": true, "allows": true}]', 'it''s')$$);
SELECT error_of($$SELECT rl_headers_all((SELECT jsonb_agg(1) FROM generate_series(1, 10001)))$$);
\a \t
DROP FUNCTION shown;
SELECT count(rl_reset_all(name)) AS reset, count(rl_undefine(name)) AS undefined FROM unnest('{ha,ha/hour,ha/log,ha/dry,ha/debt}'::text[]) name;
SELECT rl_undefine('ha', 'vip'), rl_undefine('ha', 'exempt');

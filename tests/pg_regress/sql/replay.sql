-- What a limit would have answered a log, request by request: as rl_calculate from state to state.
CREATE TEMPORARY TABLE requests AS
    SELECT n, 'user-' || n % 3 AS key, timestamptz '2027-01-01 12:00:00+00' + n * n % 97 * interval '1 second' + n / 40 * interval '100 seconds' AS at, 1 + n % 2 AS count
    FROM generate_series(1, 120) n;
SELECT key, to_char(at, 'MI:SS') AS at, ok, retry_after, retry_at, round(remaining::numeric, 3) AS remaining, capacity, reset_at
FROM (SELECT key, at, n, (rl_replay(rl_token_bucket(3, '1 minute'), at) OVER (PARTITION BY key ORDER BY at, n)).* FROM requests) s
WHERE key = 'user-1' ORDER BY at, n LIMIT 12;
-- The same as calls of rl_limit at those times, for every kind.
CREATE FUNCTION replay_called(name text, config jsonb) RETURNS TABLE (n int, result rl_result) LANGUAGE plpgsql AS $$
DECLARE request record;
BEGIN
    FOR request IN SELECT * FROM requests ORDER BY at, requests.n LOOP
        PERFORM set_config('ratelimit.clock', to_char(request.at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"'), true);
        n := request.n;
        result := rl_limit(name, request.key, request.count, config => config);
        RETURN NEXT;
    END LOOP;
END
$$;
SELECT kind, count(*), count(*) FILTER (WHERE (result).ok) AS ok, count(*) FILTER (WHERE replayed IS NOT DISTINCT FROM result) AS same
FROM (VALUES ('bucket', rl_token_bucket(3, '1 minute')), ('debt', rl_token_bucket(3, '1 minute', capacity => 7)),
             ('window', rl_fixed_window(3, '1 minute', start => '2027-01-01 00:00:00+00')), ('first', rl_fixed_window(3, '1 minute', first_request => true)),
             ('over', rl_fixed_window(3, '1 minute', start => '2027-01-01 00:00:00+00') || '{"overage": true}'),
             ('sliding', rl_sliding_window(3, '1 minute')), ('log', rl_sliding_log(3, '1 minute')), ('none', rl_unlimited())) configs (kind, config),
LATERAL replay_called('re/' || kind, config)
JOIN LATERAL (SELECT n, rl_replay(config, at, count) OVER (PARTITION BY key ORDER BY at, n) AS replayed FROM requests) r USING (n)
GROUP BY kind ORDER BY kind;
-- A denied first call leaves no time behind, as it leaves no row.
CREATE OR REPLACE TEMPORARY VIEW stepping AS
    SELECT * FROM (VALUES (1, 'k', timestamptz '2027-01-01 12:00:00+00', 2), (2, 'k', '2027-01-01 11:26:45+00', 1), (3, 'k', '2027-01-01 11:50:00+00', 1)) s (n, key, at, count);
CREATE FUNCTION stepped(name text, config jsonb) RETURNS SETOF boolean LANGUAGE plpgsql AS $$
DECLARE request record;
BEGIN
    FOR request IN SELECT * FROM stepping ORDER BY n LOOP
        PERFORM set_config('ratelimit.clock', to_char(request.at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"'), true);
        RETURN NEXT (rl_limit(name, request.key, request.count, config => config)).ok;
    END LOOP;
END
$$;
SELECT kind, ARRAY(SELECT stepped('re/step/' || kind, config)) AS called, ARRAY(SELECT (rl_replay(config, at, count) OVER (ORDER BY n)).ok FROM stepping) AS replayed
FROM (VALUES ('bucket', rl_token_bucket(1, '20 minutes')), ('window', rl_fixed_window(1, '20 minutes', start => '2027-01-01Z')),
             ('first', rl_fixed_window(1, '20 minutes', first_request => true)), ('sliding', rl_sliding_window(1, '10 minutes')),
             ('log', rl_sliding_log(1, '20 minutes'))) configs (kind, config);
-- Four configs of last week's traffic in one query.
SELECT rate, count(*) FILTER (WHERE NOT ok) AS denied
FROM generate_series(1, 4) rate, LATERAL (SELECT (rl_replay(rl_token_bucket(rate, '1 minute'), at, count) OVER (PARTITION BY key ORDER BY at, n)).ok FROM requests) r
GROUP BY rate ORDER BY rate;
-- Requests of one instant are one after the other, whatever the frame; reservations; an empty log.
SELECT n, (rl_replay(rl_token_bucket(2, '1 minute'), '2027-01-01 00:00:00+00') OVER ()).ok FROM generate_series(1, 3) n;
SELECT n, (rl_replay(rl_token_bucket(2, '1 minute'), '2027-01-01 00:00:00+00') OVER (ORDER BY n ROWS BETWEEN CURRENT ROW AND CURRENT ROW)).ok FROM generate_series(1, 3) n;
SELECT n, (rl_replay(rl_token_bucket(2, '1 minute'), '2027-01-01 00:00:00+00', reserve => true) OVER (ORDER BY n)).retry_after FROM generate_series(1, 4) n;
SELECT count(*) FROM (SELECT rl_replay(rl_token_bucket(2, '1 minute'), at) OVER (ORDER BY at) FROM requests WHERE false) s;
-- A config of each row's own: a state that means nothing to it is new.
SELECT n, (rl_replay(CASE WHEN n < 3 THEN rl_token_bucket(2, '1 minute') ELSE rl_sliding_log(2, '1 minute') END, '2027-01-01 00:00:00+00') OVER (ORDER BY n)).remaining FROM generate_series(1, 4) n;
SELECT n, (rl_replay(rl_concurrency(2, '1 minute'), timestamptz '2027-01-01 00:00:00+00' + n * interval '25 seconds') OVER (ORDER BY n)).* FROM generate_series(1, 5) n;
-- Names and arguments.
SELECT count(*) FILTER (WHERE (r).ok) FROM (SELECT rl_replay(config => rl_token_bucket(2, '1 minute'), at => at, count => 1) OVER w AS r FROM requests WINDOW w AS (PARTITION BY key ORDER BY at)) s;
SELECT error_of(format('SELECT %s FROM generate_series(1, 2) n', call)) FROM unnest(ARRAY[
    $$rl_replay(rl_token_bucket(2, '1 minute'), now())$$,
    $$rl_replay(NULL, now()) OVER ()$$,
    $$rl_replay('{}', now()) OVER ()$$,
    $$rl_replay(rl_token_bucket(2, '1 minute'), NULL) OVER ()$$,
    $$rl_replay(rl_token_bucket(2, '1 minute'), 'infinity') OVER ()$$,
    $$rl_replay(rl_token_bucket(2, '1 minute'), now(), -1) OVER ()$$,
    $$rl_replay(rl_sliding_log(2, '1 minute'), now(), 0.5) OVER ()$$,
    $$rl_replay(rl_token_bucket(2, '1 minute'), now(), 1 / (n - 1)) OVER ()$$]) call;

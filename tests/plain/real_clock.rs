//! The SQL file under the server's clock: every answer and state is what `rl_calculate` returns for an instant during
//! the call. The file's usual case could differ from that under a set clock.

use ratelimit_tests::seed;

use crate::database::Database;

/// Calls random limits; returns what is wrong. A token bucket's state has the instant of its take.
const CALLS: &str = r#"
CREATE FUNCTION public.calls(seed float8, calls int) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    limits record; cfg jsonb; k text; n float8; debt bool; before jsonb; after jsonb;
    r record; lo record; hi record; exact record;
    t0 timestamptz; t1 timestamptz; at timestamptz; wrong text;
BEGIN
    PERFORM setseed(seed);
    FOR i IN 1..calls LOOP
        SELECT c.name, c.config INTO limits FROM rl_config c ORDER BY random() LIMIT 1;
        cfg := limits.config; k := 'k' || floor(random() * 3); debt := random() < 0.3;
        n := (ARRAY[1, 1, 1, 2, 3, 0, 9, 1000])[1 + floor(random() * 8)::int];
        before := rl_value(limits.name, k) -> 'state';
        t0 := clock_timestamp();
        IF random() < 0.3 THEN
            SELECT a.ok, a.retry_at, a.remaining INTO r
            FROM rl_limit_all(jsonb_build_array(
                jsonb_build_object('name', limits.name, 'key', k, 'count', n, 'reserve', debt))) a;
        ELSE
            SELECT a.ok, a.retry_at, a.remaining INTO r FROM rl_limit(limits.name, k, n, debt) a;
        END IF;
        t1 := clock_timestamp();
        after := rl_value(limits.name, k) -> 'state';
        lo := rl_calculate(cfg, before, t0, n, debt);
        hi := rl_calculate(cfg, before, t1, n, debt);
        wrong := CASE
            WHEN lo.ok = hi.ok AND r.ok <> lo.ok THEN 'ok'
            WHEN lo.ok = hi.ok AND (r.remaining < least(lo.remaining, hi.remaining) - 1e-9
                                    OR r.remaining > greatest(lo.remaining, hi.remaining) + 1e-9) THEN 'remaining'
            WHEN lo.ok = hi.ok AND (r.retry_at IS NULL) <> (lo.retry_at IS NULL)
                AND (r.retry_at IS NULL) <> (hi.retry_at IS NULL) THEN 'retry_at'
            WHEN lo.ok = hi.ok AND (r.retry_at < least(lo.retry_at, hi.retry_at) - interval '1 ms'
                                    OR r.retry_at > greatest(lo.retry_at, hi.retry_at) + interval '1 ms')
                THEN 'retry_at'
            WHEN (NOT r.ok OR n = 0) AND after IS DISTINCT FROM before THEN 'a write'
            WHEN r.ok AND n > 0 AND lo.ok AND hi.ok AND lo.state = hi.state
                AND after IS DISTINCT FROM lo.state THEN 'state'
        END;
        IF wrong IS NULL AND r.ok AND n > 0 AND cfg ->> 'kind' = 'token bucket' THEN
            at := timestamptz 'epoch' + ((after ->> 'ts')::numeric * 1000)::bigint * interval '1 microsecond';
            exact := rl_calculate(cfg, before, at, n, debt);
            wrong := CASE WHEN at NOT BETWEEN t0 AND t1 THEN 'instant'
                          WHEN exact.state IS DISTINCT FROM after OR exact.remaining <> r.remaining THEN 'bits' END;
        END IF;
        IF wrong IS NOT NULL THEN
            RETURN NEXT format('%s: %s %s count %s reserve %s, before %s, after %s, answer %s, lo %s, hi %s, %s to %s',
                wrong, limits.name, cfg, n, debt, before, after, r, lo, hi, t0, t1);
        END IF;
    END LOOP;
END
$$;
SELECT rl_define(name, config::jsonb) FROM (VALUES
    ('bucket', '{"kind": "token bucket", "rate": 300, "period": 1000, "capacity": 5}'),
    ('odd bucket', '{"kind": "token bucket", "rate": 123.456, "period": 777, "capacity": 3.3, "maxReserved": 2.2}'),
    ('debt', '{"kind": "token bucket", "rate": 100, "period": 1000, "maxReserved": 50}'),
    ('window', '{"kind": "fixed window", "rate": 4, "period": 30, "start": 500}'),
    ('rolling over', '{"kind": "fixed window", "rate": 3, "period": 20, "capacity": 8, "maxReserved": 6, "start": 7}'),
    ('quota', '{"kind": "fixed window", "rate": 5, "period": 50, "start": 0, "overage": true}'),
    ('calendar', '{"kind": "fixed window", "rate": 900, "period": "1 day", "timezone": "Europe/Berlin"}'),
    ('first', '{"kind": "fixed window", "rate": 4, "period": 25, "start": "first request"}'),
    ('sliding', '{"kind": "sliding window", "rate": 6, "period": 40}'),
    ('log', '{"kind": "sliding log", "rate": 6, "period": 40}'),
    ('free', '{"kind": "unlimited"}')) AS l (name, config);
"#;

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn under_the_servers_clock_every_answer_is_one_of_an_instant_of_the_call() {
    let seed = seed(1) as u32;
    let database = Database::new("plain_real_clock");
    let mut client = database.connect();
    client.batch_execute(CALLS).unwrap();
    for n in 0..60 {
        // One transaction writes the same rows many times.
        let part = f64::from((seed * 61 + n) % 1000) / 1000.0;
        let wrong = client.query("SELECT calls($1, 100)", &[&part]).unwrap();
        assert!(wrong.is_empty(), "{}", wrong[0].get::<_, String>(0));
    }
}

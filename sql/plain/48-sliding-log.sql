-- Sliding logs: the state is the time of each token taken.

-- How many entries have left the log. A clock behind the newest entry counts as its time.
CREATE OR REPLACE FUNCTION ratelimit._gone(l ratelimit._limit, log timestamptz[], now bigint) RETURNS int STABLE
LANGUAGE plpgsql AS $$
DECLARE
    newest timestamptz := log[cardinality(log)];
    since bigint;
BEGIN
    IF newest IS NULL THEN RETURN 0; END IF;
    since := greatest(ratelimit._us(newest), now) - l.period;
    IF since < -210866803200000000 THEN RETURN 0; END IF;
    RETURN width_bucket(ratelimit._nearest(since), log);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._take_log(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    gone int := ratelimit._gone(l, s.log, now);
    live int := cardinality(s.log) - gone;
    newest timestamptz := CASE WHEN live > 0 THEN s.log[cardinality(s.log)] END;
    nth timestamptz;
    d ratelimit._decision := ratelimit._new_decision(l, now, count = 0 OR live + count <= l.rate, count > 0);
BEGIN
    IF d.changed THEN
        s.ts := greatest(ratelimit._us(newest), now);
        newest := ratelimit._nearest(s.ts);
        live := live + count::int;
        d.state := ROW(live, s.ts, NULL, s.log[gone + 1:] || array_fill(newest, ARRAY[count::int]), NULL,
                       NULL)::ratelimit._state;
    ELSIF NOT d.ok AND count <= l.rate THEN
        -- This number of the oldest entries must leave.
        nth := s.log[gone + (live + count - l.rate)::int];
        d.wait := ratelimit._plus(ratelimit._us(nth), l.period) - now;
    END IF;
    d.remaining := greatest(l.rate - live, 0);
    d.reset_at := CASE WHEN newest IS NULL THEN now ELSE ratelimit._plus(ratelimit._us(newest), l.period) END;
    RETURN d;
END
$$;

-- Sliding windows: the state counts the tokens used in a window and in the one before it.

-- The part of the window before that still counts. Less than a float holds is 0.
CREATE OR REPLACE FUNCTION ratelimit._fading(prior double precision, passed bigint, period bigint)
RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN abs(prior) < 1e-270 THEN 0 ELSE prior * greatest(1 - greatest(passed, 0)::float8 / period, 0) END
$$;

-- Moves the counters on to the window of now, and adds up what is used.
CREATE OR REPLACE FUNCTION ratelimit._counters(l ratelimit._limit, s ratelimit._state, now bigint, OUT ts bigint,
    OUT value double precision, OUT prior double precision, OUT used double precision) IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    begun CONSTANT bigint := ratelimit._floor(now, l.period);
BEGIN
    ts := ratelimit._floor(s.ts, l.period);
    value := s.value;
    prior := s.prior;
    IF begun > ts THEN
        prior := CASE WHEN begun - l.period = ts THEN s.value ELSE 0 END;
        value := 0;
        ts := begun;
    END IF;
    used := ratelimit._fading(prior, now - ts, l.period) + value;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._take_window(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    c record := ratelimit._counters(l, s, now);
    d ratelimit._decision := ratelimit._new_decision(l, now, count = 0 OR c.used + count <= l.rate + l.tolerance,
                                                     count > 0);
    fading double precision := c.value;
    fixed double precision := 0;
    at bigint := ratelimit._plus(c.ts, l.period);
BEGIN
    d.reset_at := at;
    IF d.changed THEN
        c.value := -ratelimit._subtract(-c.value, count);
        c.used := ratelimit._fading(c.prior, now - c.ts, l.period) + c.value;
        d.state := ROW(c.value, c.ts, c.prior, NULL, NULL, NULL)::ratelimit._state;
    END IF;
    d.remaining := ratelimit._rounded(greatest(l.rate - c.used, 0), l.rate, l.tolerance);
    IF NOT d.ok AND count <= l.rate + l.tolerance THEN
        -- Find when the part that fades is small enough, with the part that doesn't.
        IF c.value + count <= l.rate + l.tolerance AND c.prior > 0 THEN
            fading := c.prior; fixed := c.value; at := c.ts;
        END IF;
        at := ratelimit._plus(at, ceil(greatest(least(1 - (l.rate - fixed - count)
            / CASE WHEN fading > 1e-270 THEN fading END, 1), 0) * l.period)::bigint);
        d.wait := ratelimit._confirmed(l, s, now, greatest(at - now, 0), count, false);
    END IF;
    RETURN d;
END
$$;

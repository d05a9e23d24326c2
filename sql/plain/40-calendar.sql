-- Windows of local dates. Window k begins at the first instant of the date that is k periods after the first date.
-- Dates end with the year 9999, and no window begins after it.

-- The first instant at which a zone's clock shows this time, or a later one if it skips it. NULL after the last instant
-- that has a date.
CREATE OR REPLACE FUNCTION ratelimit._first_instant(local timestamp, zone text) RETURNS bigint STABLE STRICT
LANGUAGE plpgsql AS $$
DECLARE
    utc timestamptz := timezone('UTC', local);
    earlier timestamptz := CASE WHEN local > '4713-01-01 BC' THEN utc - interval '36 hours' ELSE utc END;
    later timestamptz := utc + interval '36 hours';
    one timestamptz;
    other timestamptz;
    low bigint;
    high bigint;
    middle bigint;
BEGIN
    -- Try the offsets before and after a change of the clock.
    one := utc - (timezone(zone, earlier) - timezone('UTC', earlier));
    other := utc - (timezone(zone, later) - timezone('UTC', later));
    IF one > other THEN SELECT other, one INTO one, other; END IF;
    low := ratelimit._us(one) - 1;
    high := ratelimit._us(CASE WHEN timezone(zone, one) = local THEN one ELSE other END);
    IF timezone(zone, one) <> local AND timezone(zone, other) <> local THEN
        WHILE high - low > 1 LOOP
            middle := low + (high - low) / 2;
            IF timezone(zone, ratelimit._instant(middle)) >= local THEN high := middle; ELSE low := middle; END IF;
        END LOOP;
    END IF;
    RETURN CASE WHEN high <= 253402207200999999 THEN high END;
END
$$;

-- The nearest instant that has a date.
CREATE OR REPLACE FUNCTION ratelimit._dated(us bigint) RETURNS timestamptz STABLE LANGUAGE sql AS $$
    SELECT ratelimit._instant(greatest(least(us, 253402207200999999), -210866630400000000))
$$;

-- The number of a date's month, counted from year 0, which is 1 BC.
CREATE OR REPLACE FUNCTION ratelimit._month(day date) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
    SELECT (extract(year FROM day) + (extract(year FROM day) < 0)::int) * 12 + extract(month FROM day)
$$;

-- The date on which a window begins; NULL if there is none.
CREATE OR REPLACE FUNCTION ratelimit._date(l ratelimit._limit, w bigint) RETURNS date IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    far CONSTANT numeric := w::numeric * l.every;
BEGIN
    IF l.months AND ratelimit._month(l.first_date) + far BETWEEN -56400 AND ratelimit._month('9999-12-31') THEN
        RETURN l.first_date + make_interval(months => far::int);
    ELSIF NOT l.months AND far BETWEEN date '4713-01-01 BC' - l.first_date AND date '9999-12-31' - l.first_date THEN
        RETURN l.first_date + far::int;
    END IF;
    RETURN NULL;
END
$$;

-- When a window begins; NULL if there is no such window.
CREATE OR REPLACE FUNCTION ratelimit._boundary(l ratelimit._limit, w bigint) RETURNS bigint STABLE
LANGUAGE sql AS $$
    SELECT ratelimit._first_instant(ratelimit._date(l, w), l.zone)
$$;

-- The last window that has begun.
CREATE OR REPLACE FUNCTION ratelimit._window(l ratelimit._limit, us bigint) RETURNS bigint STABLE
LANGUAGE plpgsql AS $$
DECLARE
    local timestamp := timezone(l.zone, ratelimit._dated(us));
    day date := local;
    w bigint;
BEGIN
    IF l.months THEN
        w := floor((ratelimit._month(day) - ratelimit._month(l.first_date)) / l.every);
        IF ratelimit._date(l, w) > day THEN w := w - 1; END IF;
    ELSE
        w := floor((day - l.first_date)::numeric / l.every);
    END IF;
    -- A clock that is set back over midnight shows the date before again.
    IF local::time >= '18:00' AND ratelimit._boundary(l, w + 1) <= us THEN w := w + 1; END IF;
    RETURN w;
END
$$;

-- The window after the one that began at ts. If ts is no boundary, since the config has changed, the first window that
-- begins a whole period later.
CREATE OR REPLACE FUNCTION ratelimit._next(l ratelimit._limit, ts bigint) RETURNS bigint STABLE LANGUAGE plpgsql AS $$
DECLARE
    w bigint := ratelimit._window(l, ts);
    local timestamp;
    later timestamp;
    ends bigint;
BEGIN
    IF ratelimit._boundary(l, w) = ts THEN RETURN w + 1; END IF;
    local := timezone(l.zone, ratelimit._dated(ts));
    later := local + CASE WHEN l.months THEN make_interval(months => l.every) ELSE make_interval(days => l.every) END;
    -- The last day of a month may stand for a day that the month lacks.
    IF l.months AND date_part('month', local + interval '1 day') <> date_part('month', local) THEN
        later := (date_trunc('month', later) + interval '1 month - 1 day')::date + local::time;
    END IF;
    IF later >= '10000-01-01' THEN RETURN NULL; END IF;
    ends := ratelimit._first_instant(later, l.zone);
    IF ends IS NULL THEN RETURN NULL; END IF;
    w := ratelimit._window(l, ends);
    RETURN CASE WHEN ratelimit._boundary(l, w) = ends THEN w ELSE w + 1 END;
END
$$;

-- Counts the windows that began after ts and until now, and finds when the last of them began.
CREATE OR REPLACE FUNCTION ratelimit._turns(l ratelimit._limit, ts bigint, now bigint, OUT windows bigint,
    OUT begun bigint) STABLE LANGUAGE plpgsql AS $$
DECLARE
    w bigint;
BEGIN
    IF l.zone IS NULL THEN
        windows := ratelimit._since(ts, now) / l.period;
        begun := ts + windows * l.period;
        RETURN;
    END IF;
    windows := 0;
    begun := ts;
    -- No window is shorter: a month has 28 days, clocks change by less than 3 hours, and a zone may skip one of several
    -- days.
    IF now >= ratelimit._plus(ts, l.every * (CASE WHEN l.months THEN 28 ELSE 1 END) * 86400000000
        - CASE WHEN l.months OR l.every = 1 THEN 10800000000 ELSE 97200000000 END) THEN
        w := ratelimit._window(l, now);
        IF ratelimit._boundary(l, w) > ts THEN
            windows := coalesce(greatest(w - ratelimit._next(l, ts) + 1, 0), 0);
            IF windows > 0 THEN begun := ratelimit._boundary(l, w); END IF;
        END IF;
    END IF;
END
$$;

-- When a number of windows after ts begins; NULL if it doesn't.
CREATE OR REPLACE FUNCTION ratelimit._after(l ratelimit._limit, ts bigint, windows double precision) RETURNS bigint
STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF l.zone IS NULL THEN
        RETURN CASE WHEN windows * l.period < 4.6e18 AND ts::float8 + windows * l.period < 9.2e18
                    THEN ts + windows::bigint * l.period END;
    END IF;
    RETURN CASE WHEN windows < 1 THEN ts
                WHEN windows <= 1e7 THEN ratelimit._boundary(l, ratelimit._next(l, ts) + windows::bigint - 1) END;
END
$$;

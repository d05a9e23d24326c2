-- Concurrency limits, whose state is a pair for each slot taken: the id of its lease, and when that expires.

-- The pairs that have not expired.
CREATE OR REPLACE FUNCTION ratelimit._live(log timestamptz[], now bigint) RETURNS timestamptz[] STABLE
LANGUAGE plpgsql AS $$
DECLARE
    at CONSTANT timestamptz := ratelimit._nearest(now);
    live timestamptz[] := '{}'::timestamptz[];
BEGIN
    FOR i IN 1..cardinality(log) - 1 BY 2 LOOP
        IF log[i + 1] > at THEN live := live || log[i:i + 1]; END IF;
    END LOOP;
    RETURN live;
END
$$;

-- When leases expire, soonest first.
CREATE OR REPLACE FUNCTION ratelimit._expiries(live timestamptz[]) RETURNS timestamptz[] IMMUTABLE LANGUAGE sql AS $$
    SELECT coalesce(array_agg(live[i] ORDER BY live[i]), '{}') FROM generate_series(2, cardinality(live), 2) i
$$;

-- Grants a lease of count slots, with this id or the next unused one.
CREATE OR REPLACE FUNCTION ratelimit._acquire(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, id bigint) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    live timestamptz[] := ratelimit._live(s.log, now);
    taken double precision := cardinality(live) / 2 + count;
    expiries timestamptz[];
    last timestamptz;
BEGIN
    d.at := now;
    d.capacity := l.capacity;
    d.enforced := l.enforce;
    d.ok := count = 0 OR taken <= l.capacity;
    d.limited_by := CASE WHEN NOT d.ok THEN 'slots' END;
    d.changed := d.ok AND count > 0;
    IF d.changed THEN
        WHILE EXISTS (SELECT FROM generate_series(1, cardinality(s.log), 2) i
                      WHERE s.log[i] = ratelimit._nearest(id)) LOOP
            id := id + 1;
        END LOOP;
        FOR i IN 1..count::int LOOP
            live := live || ARRAY[ratelimit._nearest(id), ratelimit._nearest(ratelimit._plus(now, l.period))];
        END LOOP;
        d.value := taken;
        d.ts := greatest(s.ts, now);
        d.prior := 0;
        d.log := live;
    END IF;
    expiries := ratelimit._expiries(live);
    IF NOT d.ok AND count <= l.capacity THEN
        last := expiries[greatest(taken - l.capacity, 1)::int];
        d.wait := ratelimit._us(last) - now;
    END IF;
    last := expiries[cardinality(expiries)];
    d.remaining := greatest(l.capacity - cardinality(expiries), 0);
    d.reset_at := CASE WHEN last IS NULL THEN now ELSE ratelimit._us(last) END;
    RETURN d;
END
$$;

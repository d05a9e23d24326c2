-- Concurrency limits: the state is a pair for each slot taken: the id of its lease, and when that expires. Pairs are
-- in the order of their expiry.

-- Sorts pairs, keeping the order of those that expire together, and drops NULLs. An odd number is returned unsorted.
CREATE OR REPLACE FUNCTION ratelimit._in_order(leases bigint[]) RETURNS bigint[] IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    last bigint;
BEGIN
    FOR i IN 1..coalesce(cardinality(leases), 0) BY 2 LOOP
        IF (leases[i] IS NOT NULL AND leases[i + 1] >= coalesce(last, leases[i + 1])) IS NOT TRUE THEN
            leases := ARRAY(SELECT e FROM unnest(leases) WITH ORDINALITY u(e, n) WHERE e IS NOT NULL ORDER BY n);
            IF cardinality(leases) % 2 = 1 THEN RETURN leases; END IF;
            RETURN ARRAY(SELECT leases[pair - part] FROM generate_series(2, cardinality(leases), 2) pair,
                         generate_series(0, 1) part ORDER BY leases[pair], pair, part DESC);
        END IF;
        last := leases[i + 1];
    END LOOP;
    RETURN leases;
END
$$;

-- The pairs that have not expired.
CREATE OR REPLACE FUNCTION ratelimit._live(leases bigint[], now bigint) RETURNS bigint[] IMMUTABLE
LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 2..cardinality(leases) BY 2 LOOP
        IF leases[i] > now THEN RETURN leases[i - 1:]; END IF;
    END LOOP;
    RETURN '{}'::bigint[];
END
$$;

-- Lets a lease have count slots until it ends: takes those that it lacks, and extends the others, if there are any.
-- Without an end it is a new one, with this id or the next unused one.
CREATE OR REPLACE FUNCTION ratelimit._acquire(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, id bigint, ends bigint DEFAULT NULL) RETURNS ratelimit._decision STABLE
LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    live bigint[] := ratelimit._live(s.leases, now);
    had int := 0;
    more double precision := count;
BEGIN
    IF ends IS NOT NULL THEN
        FOR i IN 1..cardinality(live) BY 2 LOOP
            IF live[i] = id THEN
                had := had + 1;
                ends := greatest(ends, live[i + 1]);
            END IF;
        END LOOP;
        more := greatest(count - had, 0);
    END IF;
    d := ratelimit._new_decision(l, now, more = 0 OR cardinality(live) / 2 + more <= l.capacity, more > 0 OR had > 0,
                                 'slots');
    IF d.changed THEN
        IF ends IS NULL THEN
            WHILE EXISTS (SELECT FROM generate_series(1, cardinality(s.leases), 2) i WHERE s.leases[i] = id) LOOP
                id := id + 1;
            END LOOP;
            ends := ratelimit._plus(now, l.period);
        END IF;
        FOR i IN 1..CASE WHEN had > 0 THEN cardinality(live) ELSE 0 END BY 2 LOOP
            IF live[i] = id THEN live[i + 1] := ends; END IF;
        END LOOP;
        FOR i IN 1..more::int LOOP live := live || ARRAY[id, ends]; END LOOP;
        live := ratelimit._in_order(live);
        d.taken := greatest(count, had);
        d.lease := id;
        d.ends := ends;
        d.state := ROW(cardinality(live) / 2, greatest(s.ts, now), NULL, NULL, NULL, live)::ratelimit._state;
    ELSIF NOT d.ok AND more <= l.capacity THEN
        d.wait := live[2 * greatest(cardinality(live) / 2 + more - l.capacity, 1)::int] - now;
    ELSIF d.ok THEN
        d.taken := 0;
    END IF;
    d.remaining := greatest(l.capacity - cardinality(live) / 2, 0);
    d.reset_at := coalesce(live[cardinality(live)], now);
    RETURN d;
END
$$;

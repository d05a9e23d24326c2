-- Rules that all kinds have in common. The extension's core has the same algorithms, with the source of each formula.
-- Time and state are arguments: l is the limit, s the state, now the instant of the decision.

-- The state of an unused limit. phase: a start of windows, for a limit without one; otherwise that of the name and key.
CREATE OR REPLACE FUNCTION ratelimit._initial(l ratelimit._limit, now bigint, phase bigint DEFAULT NULL,
    name text DEFAULT NULL, key text DEFAULT NULL) RETURNS ratelimit._state STABLE LANGUAGE plpgsql AS $$
DECLARE
    s ratelimit._state;
BEGIN
    s.ts := now;
    CASE l.kind
    WHEN 'token bucket' THEN s.value := l.capacity;
    WHEN 'fixed window' THEN
        s.value := l.capacity;
        s.added := l.adds;
        IF l.zone IS NOT NULL THEN
            s.ts := coalesce(ratelimit._boundary(l, ratelimit._window(l, now)), now);
        ELSIF NOT l.first_request THEN
            phase := coalesce(l.start, phase, ratelimit._phase(name, key));
            s.ts := now - ((now::numeric - phase) % l.period + l.period) % l.period;
        END IF;
    WHEN 'sliding window' THEN s.value := 0; s.prior := 0; s.ts := ratelimit._floor(now, l.period);
    WHEN 'sliding log' THEN s.value := 0; s.log := '{}';
    WHEN 'concurrency' THEN s.value := 0; s.leases := '{}';
    WHEN 'unlimited' THEN s.value := 0;
    ELSE PERFORM ratelimit._updated();
    END CASE;
    RETURN s;
END
$$;

-- The state in a row; that of an unused limit if there is no row, or it was reset or is of another kind. Without a
-- limit it only checks the row.
CREATE OR REPLACE FUNCTION ratelimit._state_of(l ratelimit._limit, r ratelimit._row, now bigint)
RETURNS ratelimit._state STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF r.shard IS NULL OR l.kind = 'unlimited' THEN RETURN ratelimit._initial(l, now, NULL, r.name, r.key); END IF;
    -- The owner may have written a log in another order, or with NULLs.
    IF r.kind = 'l' AND r.log IS NOT NULL THEN
        r.log := ARRAY(SELECT e FROM unnest(r.log) e WHERE e IS NOT NULL ORDER BY e);
    ELSIF r.kind = 'c' THEN
        r.leases := ratelimit._in_order(r.leases);
    END IF;
    IF (r.value > '-Infinity' AND r.value < 'Infinity' AND r.ts > '-infinity' AND r.ts < 'infinity' AND CASE r.kind
        WHEN 't' THEN r.added IS NULL OR r.added > '-Infinity' AND r.added < 'Infinity'
        WHEN 's' THEN r.prior > '-Infinity' AND r.prior < 'Infinity'
        WHEN 'l' THEN r.log = '{}' OR r.log[1] > '-infinity' AND r.log[cardinality(r.log)] < 'infinity'
        WHEN 'c' THEN cardinality(r.leases) % 2 = 0
        ELSE r.kind IN ('-', '#', '=') END) IS NOT TRUE THEN
        PERFORM ratelimit._bad_row(r);
    END IF;
    IF r.kind = l.letter THEN
        RETURN ROW(r.value, ratelimit._us(r.ts), CASE r.kind WHEN 's' THEN r.prior END,
                   CASE r.kind WHEN 'l' THEN r.log END, CASE r.kind WHEN 't' THEN r.added END,
                   CASE r.kind WHEN 'c' THEN r.leases END)::ratelimit._state;
    END IF;
    RETURN CASE WHEN l.kind IS NOT NULL THEN ratelimit._initial(l, now, NULL, r.name, r.key) END;
END
$$;

-- The row with another state.
CREATE OR REPLACE FUNCTION ratelimit._row_with(r ratelimit._row, l ratelimit._limit, s ratelimit._state)
RETURNS ratelimit._row STABLE LANGUAGE sql AS $$
    SELECT ROW(r.name, r.key, r.shard, l.letter, s.value, ratelimit._nearest(s.ts), s.added, s.prior, s.log, s.leases,
               r.holds_due)::ratelimit._row
$$;

-- Ignores a state too far in the future, which a wrong clock has left: beyond an hour, and beyond a full refill or the
-- windows that the kind looks back on.
CREATE OR REPLACE FUNCTION ratelimit._current(l ratelimit._limit, s ratelimit._state, now bigint)
RETURNS ratelimit._state STABLE LANGUAGE plpgsql AS $$
DECLARE
    missing double precision;
    horizon bigint;
    seen bigint := s.ts;
BEGIN
    CASE l.kind
    WHEN 'token bucket', 'fixed window' THEN
        missing := l.capacity - CASE WHEN l.overage THEN 0
            ELSE least(ratelimit._stored(l, s), ratelimit._rolls_over(l, s), 0) END;
        horizon := ratelimit._due(l, now, greatest(missing, CASE l.kind WHEN 'fixed window' THEN l.rate END));
    WHEN 'sliding window' THEN horizon := ratelimit._plus(now, 2 * l.period);
    WHEN 'sliding log' THEN
        horizon := ratelimit._plus(now, l.period);
        seen := coalesce(ratelimit._us(s.log[cardinality(s.log)]), now);
    ELSE RETURN s;
    END CASE;
    IF horizon IS NULL OR seen <= greatest(horizon, ratelimit._plus(now, 3600000000)) THEN RETURN s; END IF;
    RETURN ratelimit._initial(l, now, s.ts);
END
$$;

-- The state as rl_value reports it, to decide takes by it from now on as calls do: without what a window added, where
-- that doesn't matter; it may have another value then.
CREATE OR REPLACE FUNCTION ratelimit._reported(l ratelimit._limit, s ratelimit._state, now bigint)
RETURNS ratelimit._state
STABLE LANGUAGE plpgsql AS $$
DECLARE
    reported ratelimit._state := s;
BEGIN
    reported.added := NULL;
    IF l.kind <> 'fixed window' OR s.added IS NULL OR (ratelimit._refilled(l, s, now)).ts > s.ts THEN
        RETURN reported;
    END IF;
    reported.value := ratelimit._value_of(l, s);
    -- Whichever of the two rolls over, the next window is full.
    RETURN CASE WHEN reported.value = s.value OR (ratelimit._rolls_over(l, s) + l.rate >= l.capacity
        AND ratelimit._rolls_over(l, reported) + l.rate >= l.capacity) THEN reported ELSE s END;
END
$$;

-- A decision on a take, without the limit's level and the state after it.
CREATE OR REPLACE FUNCTION ratelimit._new_decision(l ratelimit._limit, now bigint, ok boolean, changed boolean,
    lacks text DEFAULT 'tokens') RETURNS ratelimit._decision IMMUTABLE LANGUAGE sql AS $$
    SELECT ROW(ok, NULL, NULL, l.capacity, NULL, now, ok AND changed, l.enforce, CASE WHEN NOT ok THEN lacks END, NULL,
               NULL, NULL, NULL, NULL)::ratelimit._decision
$$;

-- Decides a take of any kind; with at_least one of as many tokens as there are, up to count.
CREATE OR REPLACE FUNCTION ratelimit._decide(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, reserve boolean, id bigint DEFAULT NULL, at_least double precision DEFAULT NULL)
RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF at_least IS NOT NULL THEN RETURN ratelimit._decide_as_many(l, s, now, count, at_least, reserve); END IF;
    IF s.ts > now OR l.kind = 'sliding log' THEN s := ratelimit._current(l, s, now); END IF;
    CASE l.kind
    WHEN 'token bucket', 'fixed window' THEN RETURN ratelimit._take_tokens(l, s, now, count, reserve);
    WHEN 'sliding window' THEN RETURN ratelimit._take_window(l, s, now, count);
    WHEN 'sliding log' THEN RETURN ratelimit._take_log(l, s, now, count);
    WHEN 'concurrency' THEN RETURN ratelimit._acquire(l, s, now, count, coalesce(id, now));
    WHEN 'unlimited' THEN RETURN ratelimit._new_decision(l, now, true, false);
    ELSE PERFORM ratelimit._updated();
    END CASE;
    RETURN NULL;
END
$$;

-- Decides such a take: all of count, or else the whole ones, if these are at least at_least. A denial is that of the
-- fewest tokens with which it passes.
CREATE OR REPLACE FUNCTION ratelimit._decide_as_many(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, at_least double precision, reserve boolean) RETURNS ratelimit._decision STABLE
LANGUAGE plpgsql AS $$
DECLARE
    fewest CONSTANT double precision := least(ceil(at_least), count);
    tokens double precision := count;
    d ratelimit._decision := ratelimit._decide(l, s, now, count, reserve);
BEGIN
    IF NOT d.ok AND (fewest < count OR fewest = 0) THEN
        -- A take is compared with this; floats may miss it by their last bit.
        tokens := floor(least(d.remaining + l.tolerance, count));
        FOR i IN 1..2 LOOP
            EXIT WHEN tokens <= fewest;
            d := ratelimit._decide(l, s, now, tokens, false);
            EXIT WHEN d.ok;
            tokens := tokens - 1;
        END LOOP;
        IF NOT d.ok AND fewest = 0 THEN
            d.ok := true;
            d.limited_by := NULL;
            d.wait := NULL;
            tokens := 0;
        ELSIF NOT d.ok THEN
            d := ratelimit._decide(l, s, now, fewest, reserve);
            tokens := fewest;
        END IF;
    END IF;
    d.taken := CASE WHEN d.ok THEN tokens ELSE 0 END;
    RETURN d;
END
$$;

-- The answer to a call that takes nothing, also while in debt: the limit's level.
CREATE OR REPLACE FUNCTION ratelimit._level(l ratelimit._limit, s ratelimit._state, now bigint)
RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    r record;
BEGIN
    IF l.letter IS DISTINCT FROM 't' THEN
        RETURN ratelimit._decide(l, s, now, 0, false);
    END IF;
    IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF;
    r := ratelimit._refilled(l, s, now);
    d := ratelimit._new_decision(l, now, true, false);
    d.remaining := ratelimit._rounded(r.tokens, l.capacity, l.tolerance);
    d.reset_at := ratelimit._reset_at(l, r.ts, r.tokens, now);
    d.taken := 0;
    RETURN d;
END
$$;

-- When a call is decided: now, or the state's time if that is later.
CREATE OR REPLACE FUNCTION ratelimit._present(l ratelimit._limit, s ratelimit._state, now bigint) RETURNS bigint
STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF;
    RETURN greatest(now, CASE WHEN l.kind = 'sliding log' THEN ratelimit._us(s.log[cardinality(s.log)])
                              WHEN l.kind NOT IN ('concurrency', 'unlimited') THEN s.ts END);
END
$$;

-- Whether every later call gets the same answer without the state.
CREATE OR REPLACE FUNCTION ratelimit._idle(l ratelimit._limit, s ratelimit._state, now bigint, name text, key text)
RETURNS boolean STABLE LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    IF s.ts > now THEN RETURN false; END IF;
    CASE l.kind
    WHEN 'token bucket', 'fixed window' THEN
        r := ratelimit._refilled(l, s, now);
        -- Full, and no more used in its window than that adds.
        RETURN r.tokens >= l.capacity AND (l.kind = 'token bucket' OR ratelimit._overused(l, s, r.ts) = 0
            AND (ratelimit._awaits(l, r.tokens) OR r.ts = (ratelimit._initial(l, now, NULL, name, key)).ts));
    WHEN 'sliding window' THEN
        r := ratelimit._counters(l, s, now);
        RETURN r.value = 0 AND r.prior = 0;
    WHEN 'sliding log' THEN RETURN ratelimit._gone(l, s.log, now) = cardinality(s.log);
    WHEN 'concurrency' THEN RETURN ratelimit._live(s.leases, now) = '{}';
    WHEN 'unlimited' THEN RETURN true;
    ELSE PERFORM ratelimit._updated();
    END CASE;
    RETURN false;
END
$$;

-- Whether a denied call passes at a later time.
CREATE OR REPLACE FUNCTION ratelimit._passes_at(l ratelimit._limit, s ratelimit._state, at bigint,
    count double precision, reserve boolean) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    IF l.kind = 'sliding window' THEN
        r := ratelimit._counters(l, s, at);
        RETURN r.used + count <= l.rate + l.tolerance;
    END IF;
    r := ratelimit._refilled(l, s, at);
    RETURN ratelimit._passes(l, CASE WHEN ratelimit._awaits(l, r.tokens) THEN greatest(r.ts, at) ELSE r.ts END,
                             r.tokens, at, count, reserve) IS NOT NULL;
END
$$;

-- Lengthens a wait that float error has made too short.
CREATE OR REPLACE FUNCTION ratelimit._confirmed(l ratelimit._limit, s ratelimit._state, now bigint, wait bigint,
    count double precision, reserve boolean) RETURNS bigint STABLE LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..4 LOOP
        EXIT WHEN wait IS NULL;
        IF ratelimit._passes_at(l, s, ratelimit._plus(now, wait), count, reserve) THEN RETURN wait; END IF;
        wait := ratelimit._plus(wait, greatest(1, wait >> 50));
    END LOOP;
    RETURN NULL;
END
$$;

-- Rounds tokens to a whole number if only float error keeps them from being one.
CREATE OR REPLACE FUNCTION ratelimit._rounded(tokens double precision, capacity double precision,
    tolerance double precision) RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN abs(tokens - round(tokens)) <= least(tolerance, 1e-6) AND round(tokens) <= capacity
                THEN round(tokens) + 0 ELSE tokens END
$$;

-- Subtracts at least the last bit of a float, so that no count is free.
CREATE OR REPLACE FUNCTION ratelimit._subtract(available double precision, count double precision)
RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN available - count < available OR count = 0 THEN available - count
                ELSE available - abs(available) * 1.1102230246251568e-16 END
$$;

-- Token buckets and fixed windows: the state is the tokens left.

-- Bounds a debt to what refills in ten years.
CREATE OR REPLACE FUNCTION ratelimit._bounded(l ratelimit._limit, value double precision, ts bigint)
RETURNS double precision STABLE LANGUAGE plpgsql AS $$
DECLARE
    most double precision;
    following bigint;
BEGIN
    IF value >= 0 OR l.overage THEN RETURN value; END IF;
    IF l.kind = 'token bucket' THEN
        most := CASE WHEN l.rate < 1e-270 THEN 0 ELSE 315576000000000 * l.rate / l.period END;
    ELSE
        following := ratelimit._after(l, ts, 1);
        IF following IS NULL THEN RETURN value; END IF;
        most := ((ratelimit._turns(l, ts, ratelimit._plus(following - 1, 315576000000000))).windows * l.rate
                 + l.tolerance / 2) * (1 - 8.881784197001252e-16);
    END IF;
    RETURN greatest(value, -greatest(most, l.tolerance));
END
$$;

-- The value of a state, with the tokens that this config's window adds beyond those of the state's.
CREATE OR REPLACE FUNCTION ratelimit._value_of(l ratelimit._limit, s ratelimit._state) RETURNS double precision
IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN l.adds IS NULL OR s.added IS NULL THEN s.value
                WHEN l.adds - s.added >= -greatest(s.value, 0) THEN s.value + (l.adds - s.added)
                ELSE least(s.value, 0) END
$$;

-- The tokens of a state at its own time.
CREATE OR REPLACE FUNCTION ratelimit._stored(l ratelimit._limit, s ratelimit._state) RETURNS double precision
STABLE LANGUAGE sql AS $$
    SELECT ratelimit._bounded(l, ratelimit._value_of(l, s), s.ts)
$$;

-- Tokens used in a window, if it is still the same one, beyond what this config adds: only the state's added records
-- them, and they come back first.
CREATE OR REPLACE FUNCTION ratelimit._overused(l ratelimit._limit, s ratelimit._state, ts bigint)
RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN ts = s.ts THEN greatest(s.added - greatest(s.value, 0) - l.adds, 0) ELSE 0 END
$$;

-- The tokens left when a window ends; a changed config counts from the next window.
CREATE OR REPLACE FUNCTION ratelimit._rolls_over(l ratelimit._limit, s ratelimit._state) RETURNS double precision
STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN l.overage THEN greatest(s.value, 0) ELSE ratelimit._bounded(l, s.value, s.ts) END
$$;

-- Tokens at now, without a calendar.
CREATE OR REPLACE FUNCTION ratelimit._tokens_at(l ratelimit._limit, value double precision, ts bigint, now bigint)
RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT least(value + CASE l.kind WHEN 'token bucket' THEN ratelimit._since(ts, now)::float8 * l.rate / l.period
                             ELSE ratelimit._since(ts, now) / l.period * l.rate END, l.capacity)
$$;

-- The tokens of a row of a usual limit, which is a token bucket or fixed window without options; NULL for a row that
-- takes longer to read.
CREATE OR REPLACE FUNCTION ratelimit._usual_tokens(l ratelimit._limit, kind "char", value double precision, ts bigint,
    added double precision, holds_due timestamptz, now bigint) RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN kind = 't' AND holds_due IS NULL AND added IS NOT DISTINCT FROM l.adds AND value >= 0
                 AND value < 'Infinity' AND ts BETWEEN 0 AND now THEN ratelimit._tokens_at(l, value, ts, now) END
$$;

-- The time from which they count.
CREATE OR REPLACE FUNCTION ratelimit._counted_at(l ratelimit._limit, ts bigint, now bigint) RETURNS bigint
IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE l.kind WHEN 'token bucket' THEN greatest(ts, now)
                       ELSE ts + ratelimit._since(ts, now) / l.period * l.period END
$$;

-- How long tokens take to refill, without a calendar. For windows half the tolerance is enough.
CREATE OR REPLACE FUNCTION ratelimit._span(l ratelimit._limit, tokens double precision) RETURNS double precision
IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE l.kind WHEN 'token bucket' THEN ceil(tokens * l.period / l.rate)
                       ELSE ceil((tokens - l.tolerance / 2) / l.rate) * l.period END
$$;

-- The tokens at now, and the time from which they count.
CREATE OR REPLACE FUNCTION ratelimit._refilled(l ratelimit._limit, s ratelimit._state, now bigint, OUT ts bigint,
    OUT tokens double precision) STABLE LANGUAGE plpgsql AS $$
DECLARE
    windows bigint;
BEGIN
    IF l.zone IS NOT NULL THEN
        SELECT t.windows, t.begun INTO windows, ts FROM ratelimit._turns(l, s.ts, now) t;
    ELSE
        ts := ratelimit._counted_at(l, s.ts, now);
    END IF;
    tokens := CASE WHEN s.value >= 0 AND (l.kind = 'token bucket' OR s.added = l.adds) THEN s.value
        WHEN l.kind = 'fixed window' AND ts > s.ts THEN ratelimit._rolls_over(l, s)
        ELSE ratelimit._stored(l, s) END;
    -- A tiny rate refills less than a float can show.
    tokens := CASE WHEN l.zone IS NOT NULL THEN least(tokens + windows * l.rate, l.capacity)
        WHEN l.kind = 'token bucket' AND l.rate < 1e-270 THEN least(tokens, l.capacity)
        ELSE ratelimit._tokens_at(l, tokens, s.ts, now) END;
END
$$;

-- When this number of tokens will have refilled, from ts; NULL beyond the times of a bigint.
CREATE OR REPLACE FUNCTION ratelimit._due(l ratelimit._limit, ts bigint, tokens double precision) RETURNS bigint
STABLE LANGUAGE plpgsql AS $$
DECLARE
    span bigint;
BEGIN
    IF l.kind = 'token bucket' THEN
        IF tokens <= 0 THEN RETURN ts; END IF;
        IF tokens * l.period >= 4.611686018427388e18 * l.rate THEN RETURN NULL; END IF;
        span := ratelimit._span(l, tokens); -- a variable, since a long argument would keep _plus from being inlined
        RETURN ratelimit._plus(ts, span);
    END IF;
    IF tokens >= 1e18 * l.rate THEN RETURN NULL; END IF;
    RETURN ratelimit._after(l, ts, greatest(ceil((tokens - l.tolerance / 2) / l.rate), 0));
END
$$;

-- Whether the next take begins a window.
CREATE OR REPLACE FUNCTION ratelimit._awaits(l ratelimit._limit, tokens double precision) RETURNS boolean
IMMUTABLE LANGUAGE sql AS $$
    SELECT l.first_request AND tokens >= l.capacity - least(l.tolerance, 1e-6)
$$;

CREATE OR REPLACE FUNCTION ratelimit._reset_at(l ratelimit._limit, ts bigint, tokens double precision, now bigint)
RETURNS bigint STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF l.kind = 'token bucket' THEN
        -- Full now, also if the clock is behind the state.
        IF l.capacity - tokens <= l.tolerance THEN RETURN now; END IF;
        RETURN ratelimit._due(l, ts, l.capacity - tokens);
    END IF;
    RETURN CASE WHEN ratelimit._awaits(l, tokens) THEN now ELSE ratelimit._after(l, ts, 1) END;
END
$$;

-- The wait for the tokens of a call: 0, or longer if it reserves them; NULL if the call is denied.
CREATE OR REPLACE FUNCTION ratelimit._passes(l ratelimit._limit, ts bigint, available double precision, now bigint,
    count double precision, reserve boolean) RETURNS bigint STABLE LANGUAGE plpgsql AS $$
DECLARE
    wait bigint;
BEGIN
    IF count - available <= l.tolerance OR l.overage THEN RETURN 0; END IF;
    IF NOT reserve OR count - available > l.max_reserved + l.tolerance THEN RETURN NULL; END IF;
    wait := ratelimit._due(l, ts, count - available) - now;
    RETURN CASE WHEN wait <= 315576000000000 THEN wait END;
END
$$;

-- How long until a denied call can pass.
CREATE OR REPLACE FUNCTION ratelimit._retry(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, reserve boolean, ts bigint, available double precision) RETURNS bigint STABLE
LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT double precision := CASE WHEN reserve THEN coalesce(l.max_reserved, 'Infinity') ELSE 0 END;
    at bigint;
    paid bigint;
    r record;
BEGIN
    IF count > l.capacity + most + l.tolerance THEN RETURN NULL; END IF;
    IF l.kind = 'fixed window' AND ts = s.ts AND ratelimit._stored(l, s) <> ratelimit._rolls_over(l, s) THEN
        at := ratelimit._after(l, ts, 1);
    END IF;
    -- At the end of the window in which its config has changed, a state has other tokens than by refilling alone.
    IF at > now THEN
        IF ratelimit._passes_at(l, s, at, count, reserve) THEN RETURN at - now; END IF;
        r := ratelimit._refilled(l, s, at);
        RETURN ratelimit._plus(ratelimit._retry(l, s, at, count, reserve, r.ts, r.tokens), at - now);
    END IF;
    at := now;
    IF count - available > most THEN at := ratelimit._due(l, ts, count - available - most); END IF;
    IF reserve AND at IS NOT NULL THEN
        -- The reserved tokens must refill within ten years of that time.
        r := ratelimit._refilled(l, s, at);
        paid := ratelimit._due(l, r.ts, count - r.tokens);
        at := CASE WHEN paid IS NOT NULL THEN greatest(at, paid - 315576000000000) END;
    END IF;
    IF at IS NULL THEN RETURN NULL; END IF;
    RETURN ratelimit._confirmed(l, s, now, greatest(at - now, 0), count, reserve);
END
$$;

-- Decides a take.
CREATE OR REPLACE FUNCTION ratelimit._take_tokens(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, reserve boolean) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    r record;
    ts bigint;
    wait bigint;
    value double precision;
    added double precision;
    reset bigint;
BEGIN
    r := ratelimit._refilled(l, s, now);
    ts := r.ts;
    value := ratelimit._subtract(r.tokens, count);
    IF value < -l.tolerance AND NOT l.overage OR l.first_request THEN
        IF ratelimit._awaits(l, r.tokens) THEN ts := greatest(ts, now); END IF;
        wait := ratelimit._passes(l, ts, r.tokens, now, count, reserve);
        IF wait IS NULL THEN
            reset := ratelimit._reset_at(l, r.ts, r.tokens, now);
            wait := ratelimit._retry(l, s, now, count, reserve, r.ts, r.tokens);
            RETURN ROW(false, wait, ratelimit._rounded(r.tokens, l.capacity, l.tolerance), l.capacity, reset, now,
                false, l.enforce, 'tokens', NULL, NULL, NULL, NULL, NULL)::ratelimit._decision;
        END IF;
        IF wait <= 0 THEN wait := NULL; END IF;
    END IF;
    reset := ratelimit._reset_at(l, ts, value, now);
    added := ratelimit._added(l, s, ts, value);
    RETURN ROW(true, wait, ratelimit._rounded(value, l.capacity, l.tolerance), l.capacity, reset, now, count > 0,
               l.enforce, NULL, NULL, ROW(value, ts, NULL, NULL, added, NULL), NULL, NULL, NULL)::ratelimit._decision;
END
$$;

-- The tokens that a window has added, after a change. While no tokens are left in it, it goes on recording what was
-- used, even if that is more than this config adds.
CREATE OR REPLACE FUNCTION ratelimit._added(l ratelimit._limit, s ratelimit._state, ts bigint,
    value double precision) RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN value <= 0 AND ts = s.ts AND s.added - greatest(s.value, 0) > l.adds
                THEN s.added - greatest(s.value, 0) ELSE l.adds END
$$;

-- Gives back what there is room for: of a window only while it lasts. The tokens that came back are in taken; NULLs if
-- that is none.
CREATE OR REPLACE FUNCTION ratelimit._refund(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, taken_at timestamptz) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    r record;
    back double precision;
BEGIN
    IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF;
    r := ratelimit._refilled(l, s, now);
    back := least(count, l.capacity - r.tokens + ratelimit._overused(l, s, r.ts));
    IF back > 0 AND (l.kind = 'token bucket' OR ratelimit._us(taken_at) >= r.ts) THEN
        d := ratelimit._credit(l, s, now, back, taken_at);
        d.taken := back;
    END IF;
    RETURN d;
END
$$;

-- Credits tokens, to a debt first; takes them unconditionally if count is negative.
CREATE OR REPLACE FUNCTION ratelimit._credit(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, taken_at timestamptz) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision := ratelimit._new_decision(l, now, true, false);
    r record;
    over double precision;
    paid double precision := 0; -- of it
    ts bigint;
    value double precision;
BEGIN
    IF l.kind = 'unlimited' THEN RETURN d; END IF;
    IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF;
    r := ratelimit._refilled(l, s, now);
    ts := r.ts;
    value := r.tokens;
    IF count < 0 THEN
        IF ratelimit._awaits(l, r.tokens) THEN ts := greatest(r.ts, now); END IF;
        value := ratelimit._bounded(l, ratelimit._subtract(r.tokens, -count), ts);
    ELSIF l.kind = 'token bucket' OR taken_at IS NULL OR ratelimit._us(taken_at) >= r.ts THEN
        over := ratelimit._overused(l, s, ts);
        paid := least(over, greatest(r.tokens + count, 0));
        value := least(r.tokens + count - paid, l.capacity);
    END IF;
    IF value < -l.tolerance AND NOT l.overage THEN d.wait := ratelimit._due(l, ts, -value) - now; END IF;
    d.changed := paid > 0 OR value <> r.tokens;
    d.state := ROW(value, ts, NULL, NULL, CASE WHEN paid > 0 THEN l.adds + (over - paid)
        ELSE ratelimit._added(l, s, ts, value) END, NULL)::ratelimit._state;
    d.remaining := ratelimit._rounded(value, l.capacity, l.tolerance);
    d.reset_at := ratelimit._reset_at(l, ts, value, now);
    RETURN d;
END
$$;

-- The algorithms, as those of the extension, whose core says where each formula comes from. Time and state are
-- arguments. Of l, s and now: the limit, what is stored of a key, and the instant of the decision.

-- Whether a state is of the kind of a limit.
CREATE OR REPLACE FUNCTION ratelimit._fits(kind text, prior double precision, log timestamptz[]) RETURNS boolean
IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN kind IN ('token bucket', 'fixed window') THEN prior IS NULL AND log IS NULL
                WHEN kind = 'sliding window' THEN prior IS NOT NULL AND log IS NULL
                WHEN kind = 'sliding log' THEN prior IS NULL AND log IS NOT NULL
                WHEN kind = 'concurrency' THEN prior IS NOT NULL AND log IS NOT NULL ELSE false END
$$;

-- The state of an unused limit.
CREATE OR REPLACE FUNCTION ratelimit._initial(l ratelimit._limit, now bigint, phase bigint) RETURNS ratelimit._state
STABLE LANGUAGE plpgsql AS $$
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
            s.ts := now - ((now::numeric - coalesce(l.start, phase)) % l.period + l.period) % l.period;
        END IF;
    WHEN 'sliding window' THEN s.value := 0; s.prior := 0; s.ts := ratelimit._floor(now, l.period);
    WHEN 'sliding log' THEN s.value := 0; s.log := '{}';
    WHEN 'concurrency' THEN s.value := 0; s.log := '{}'; s.prior := 0;
    ELSE s.value := 0;
    END CASE;
    RETURN s;
END
$$;

-- The state in a row; without a row, or with one that was reset or is of another kind, that of an unused limit.
CREATE OR REPLACE FUNCTION ratelimit._state_of(l ratelimit._limit, name text, key text, now bigint,
    value double precision DEFAULT NULL, ts timestamptz DEFAULT NULL, prior double precision DEFAULT NULL,
    log timestamptz[] DEFAULT NULL, added double precision DEFAULT NULL) RETURNS ratelimit._state
STABLE LANGUAGE plpgsql AS $$
DECLARE
    s ratelimit._state;
BEGIN
    IF value IS NULL OR value = 'Infinity' OR NOT ratelimit._fits(l.kind, prior, log) THEN
        RETURN ratelimit._initial(l, now, CASE WHEN l.kind = 'fixed window' AND l.start IS NULL AND l.zone IS NULL
            AND NOT l.first_request THEN ratelimit._phase(name, key) END);
    END IF;
    IF prior IS NOT NULL OR log IS NOT NULL THEN added := NULL; END IF;
    IF value > '-Infinity' AND value < 'Infinity' AND (prior IS NULL OR prior > '-Infinity' AND prior < 'Infinity')
        AND (added IS NULL OR added > '-Infinity' AND added < 'Infinity') AND ts > '-infinity' AND ts < 'infinity'
        AND (log IS NULL OR cardinality(log) = 0 OR log[1] > '-infinity' AND log[cardinality(log)] < 'infinity'
             AND (prior IS NULL OR 'infinity' <> ALL (log) AND '-infinity' <> ALL (log))) THEN
        s.value := value; s.ts := ratelimit._us(ts); s.prior := prior; s.log := log; s.added := added;
        -- The table's owner may have written a log in another order, or NULLs into it.
        IF l.kind = 'sliding log' THEN
            s.log := ARRAY(SELECT e FROM unnest(log) e WHERE e IS NOT NULL ORDER BY e);
        END IF;
        RETURN s;
    END IF;
    IF value IN ('NaN', '-Infinity') THEN PERFORM ratelimit._bad_state(name, 'value', value::text);
    ELSIF prior IN ('NaN', 'Infinity', '-Infinity') THEN PERFORM ratelimit._bad_state(name, 'prior', prior::text);
    ELSIF added IN ('NaN', 'Infinity', '-Infinity') THEN PERFORM ratelimit._bad_state(name, 'added', added::text);
    ELSIF ts IN ('infinity', '-infinity') THEN PERFORM ratelimit._bad_state(name, 'ts', initcap(ts::text));
    END IF;
    PERFORM ratelimit._bad_state(name, 'log', CASE WHEN log[1] = '-infinity' THEN '-Infinity' ELSE 'Infinity' END);
    RETURN NULL;
END
$$;

-- A state too far ahead of the clock comes from a wrong one, and counts as none: beyond an hour, and a whole refill
-- or the windows that the kind looks back on.
CREATE OR REPLACE FUNCTION ratelimit._current(l ratelimit._limit, s ratelimit._state, now bigint)
RETURNS ratelimit._state STABLE LANGUAGE plpgsql AS $$
DECLARE
    soon CONSTANT bigint := ratelimit._plus(now, 3600000000);
    stored double precision;
    horizon bigint := soon;
    seen bigint := s.ts;
BEGIN
    CASE l.kind
    WHEN 'token bucket' THEN
        horizon := ratelimit._due(l, now, greatest(l.capacity - ratelimit._stored(l, s), l.capacity));
    WHEN 'fixed window' THEN
        stored := least(ratelimit._stored(l, s), ratelimit._rolls_over(l, s));
        IF l.overage THEN stored := greatest(stored, 0); END IF;
        horizon := ratelimit._due(l, now, greatest(l.capacity - stored, l.capacity, l.rate));
    WHEN 'sliding window' THEN horizon := ratelimit._plus(now, 2 * l.period);
    WHEN 'sliding log' THEN
        horizon := ratelimit._plus(now, l.period);
        seen := CASE WHEN cardinality(s.log) > 0 THEN ratelimit._us(s.log[cardinality(s.log)]) ELSE now END;
    ELSE RETURN s;
    END CASE;
    IF horizon IS NULL OR seen <= greatest(horizon, soon) THEN RETURN s; END IF;
    RETURN ratelimit._initial(l, now, s.ts);
END
$$;

-- Rounds tokens to a whole number where only float error keeps them from being one.
CREATE OR REPLACE FUNCTION ratelimit._rounded(tokens double precision, capacity double precision,
    tolerance double precision) RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN abs(tokens - round(tokens)) <= least(tolerance, 1e-6) AND round(tokens) <= capacity
                THEN round(tokens) + 0 ELSE tokens END
$$;

-- Nothing is free: a count too small to change so large a float takes its last bit.
CREATE OR REPLACE FUNCTION ratelimit._subtract(available double precision, count double precision)
RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN available - count < available OR count = 0 THEN available - count
                ELSE available - abs(available) * 1.1102230246251568e-16 END
$$;

-- Tokens at ts, of which a debt counts as what comes in within ten years at most.
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

-- Of a token bucket and a fixed window: the tokens of a state at its ts.
CREATE OR REPLACE FUNCTION ratelimit._stored(l ratelimit._limit, s ratelimit._state) RETURNS double precision
STABLE LANGUAGE plpgsql AS $$
DECLARE
    more double precision;
BEGIN
    IF l.kind = 'fixed window' AND s.added IS NOT NULL THEN
        -- What this config's window adds beyond what the state's did.
        more := l.adds - s.added;
        s.value := CASE WHEN more >= -greatest(s.value, 0) THEN s.value + more ELSE least(s.value, 0) END;
    END IF;
    RETURN ratelimit._bounded(l, s.value, s.ts);
END
$$;

-- What is left of a state when its window turns: a config that has changed counts from the next one.
CREATE OR REPLACE FUNCTION ratelimit._rolls_over(l ratelimit._limit, s ratelimit._state) RETURNS double precision
STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN l.overage THEN greatest(s.value, 0) ELSE ratelimit._bounded(l, s.value, s.ts) END
$$;

-- When a state will count differently than by what comes in: at the end of the window in which its config has changed.
CREATE OR REPLACE FUNCTION ratelimit._recounted_at(l ratelimit._limit, s ratelimit._state, ts bigint) RETURNS bigint
STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF l.kind = 'fixed window' AND ts = s.ts AND ratelimit._stored(l, s) <> ratelimit._rolls_over(l, s) THEN
        RETURN ratelimit._after(l, ts, 1);
    END IF;
    RETURN NULL;
END
$$;

-- The tokens at now of so many at ts, without a calendar.
CREATE OR REPLACE FUNCTION ratelimit._tokens_at(l ratelimit._limit, value double precision, ts bigint, now bigint)
RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT least(value + CASE l.kind WHEN 'token bucket' THEN ratelimit._since(ts, now)::float8 * l.rate / l.period
                             ELSE ratelimit._since(ts, now) / l.period * l.rate END, l.capacity)
$$;

-- The time that they count from then.
CREATE OR REPLACE FUNCTION ratelimit._counted_at(l ratelimit._limit, ts bigint, now bigint) RETURNS bigint
IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE l.kind WHEN 'token bucket' THEN greatest(ts, now)
                       ELSE ts + ratelimit._since(ts, now) / l.period * l.period END
$$;

-- How long so many tokens take to come in, without a calendar. Of windows half the tolerance is left for what comes
-- after: that many do suffice.
CREATE OR REPLACE FUNCTION ratelimit._span(l ratelimit._limit, tokens double precision) RETURNS double precision
IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE l.kind WHEN 'token bucket' THEN ceil(tokens * l.period / l.rate)
                       ELSE ceil((tokens - l.tolerance / 2) / l.rate) * l.period END
$$;

-- The tokens at now, and the time that they count from.
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
    IF s.value >= 0 AND (l.kind = 'token bucket' OR s.added = l.adds) THEN
        tokens := s.value;
    ELSIF l.kind = 'fixed window' AND (windows > 0 OR windows IS NULL AND ts > s.ts) THEN
        tokens := ratelimit._rolls_over(l, s);
    ELSE
        tokens := ratelimit._stored(l, s);
    END IF;
    IF l.zone IS NOT NULL THEN
        tokens := least(tokens + windows * l.rate, l.capacity);
        RETURN;
    ELSIF l.kind = 'token bucket' AND l.rate < 1e-270 THEN
        -- What flows in of it can be too little for a float.
        tokens := least(tokens, l.capacity);
        RETURN;
    END IF;
    tokens := ratelimit._tokens_at(l, tokens, s.ts, now);
END
$$;

-- When so many tokens will have come in, from ts; NULL: beyond what a time can hold.
CREATE OR REPLACE FUNCTION ratelimit._due(l ratelimit._limit, ts bigint, tokens double precision) RETURNS bigint
STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF l.kind = 'token bucket' THEN
        IF tokens <= 0 THEN RETURN ts; END IF;
        IF tokens * l.period >= 4.611686018427388e18 * l.rate THEN RETURN NULL; END IF;
        RETURN ratelimit._plus(ts, ratelimit._span(l, tokens)::bigint);
    END IF;
    IF tokens >= 1e18 * l.rate THEN RETURN NULL; END IF;
    RETURN ratelimit._after(l, ts, greatest(ceil((tokens - l.tolerance / 2) / l.rate), 0));
END
$$;

-- Whether no window has begun, so that the next take begins one.
CREATE OR REPLACE FUNCTION ratelimit._awaits(l ratelimit._limit, tokens double precision) RETURNS boolean
IMMUTABLE LANGUAGE sql AS $$
    SELECT l.first_request AND tokens >= l.capacity - least(l.tolerance, 1e-6)
$$;

CREATE OR REPLACE FUNCTION ratelimit._reset_at(l ratelimit._limit, ts bigint, tokens double precision, now bigint)
RETURNS bigint STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF l.kind = 'token bucket' THEN
        -- Full now, also with a clock behind the state.
        IF l.capacity - tokens <= l.tolerance THEN RETURN now; END IF;
        RETURN ratelimit._due(l, ts, l.capacity - tokens);
    ELSIF l.first_request AND ratelimit._awaits(l, tokens) THEN
        RETURN now;
    END IF;
    RETURN ratelimit._after(l, ts, 1);
END
$$;

-- After which wait the tokens of a call are there; NULL: it does not pass.
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

-- Whether a denied call passes at a later instant.
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

-- Lengthens a computed wait where float error made it too short.
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

-- After which span a call that is denied can first pass, of a token bucket or a fixed window.
CREATE OR REPLACE FUNCTION ratelimit._retry(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, reserve boolean, ts bigint, available double precision) RETURNS bigint STABLE
LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT double precision := CASE WHEN reserve THEN coalesce(l.max_reserved, 'Infinity') ELSE 0 END;
    at bigint := now;
    r record;
BEGIN
    IF count > l.capacity + most + l.tolerance THEN RETURN NULL; END IF;
    at := ratelimit._recounted_at(l, s, ts);
    IF at > now THEN
        IF ratelimit._passes_at(l, s, at, count, reserve) THEN RETURN at - now; END IF;
        r := ratelimit._refilled(l, s, at);
        RETURN ratelimit._plus(ratelimit._retry(l, s, at, count, reserve, r.ts, r.tokens), at - now);
    END IF;
    at := now;
    IF count - available > most THEN at := ratelimit._due(l, ts, count - available - most); END IF;
    IF reserve AND at IS NOT NULL THEN
        -- And the reserved tokens come within ten years, from what is there then.
        r := ratelimit._refilled(l, s, at);
        at := ratelimit._due(l, r.ts, count - r.tokens) - 315576000000000;
        at := CASE WHEN at IS NOT NULL THEN greatest(at, now,
            CASE WHEN count - available > most THEN ratelimit._due(l, ts, count - available - most) END) END;
    END IF;
    IF at IS NULL THEN RETURN NULL; END IF;
    RETURN ratelimit._confirmed(l, s, now, greatest(at - now, 0), count, reserve);
END
$$;

-- Decides a take from a token bucket or a fixed window.
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
                false, l.enforce, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::ratelimit._decision;
        END IF;
        IF wait <= 0 THEN wait := NULL; END IF;
    END IF;
    reset := ratelimit._reset_at(l, ts, value, now);
    IF l.kind = 'fixed window' THEN added := ratelimit._added(l, s, ts, value); END IF;
    RETURN ROW(true, wait, ratelimit._rounded(value, l.capacity, l.tolerance), l.capacity, reset, now, count > 0,
               l.enforce, NULL, NULL, value, ts, NULL, NULL, added)::ratelimit._decision;
END
$$;

-- What a fixed window has added, after a change. Within a window what was used stays known, also where it is more
-- than this config adds, while no tokens are left.
CREATE OR REPLACE FUNCTION ratelimit._added(l ratelimit._limit, s ratelimit._state, ts bigint,
    value double precision) RETURNS double precision IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF value <= 0 AND ts = s.ts THEN RETURN greatest(l.adds, s.added - greatest(s.value, 0)); END IF;
    RETURN l.adds;
END
$$;

-- What counts of the window before, so long after it; less than a float has is nothing.
CREATE OR REPLACE FUNCTION ratelimit._fading(prior double precision, passed bigint, period bigint)
RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN abs(prior) < 1e-270 THEN 0 ELSE prior * greatest(1 - greatest(passed, 0)::float8 / period, 0) END
$$;

-- Of a sliding window: its counters, moved on to the window of now, and what is used of it.
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
    d ratelimit._decision;
    fading double precision := c.value;
    fixed double precision := 0;
    at bigint := ratelimit._plus(c.ts, l.period);
BEGIN
    d.at := now;
    d.capacity := l.capacity;
    d.enforced := l.enforce;
    d.ok := count = 0 OR c.used + count <= l.rate + l.tolerance;
    d.changed := d.ok AND count > 0;
    d.reset_at := at;
    IF d.changed THEN
        d.ts := c.ts;
        d.prior := c.prior;
        d.value := -ratelimit._subtract(-c.value, count);
        c.used := ratelimit._fading(c.prior, now - c.ts, l.period) + d.value;
    END IF;
    d.remaining := ratelimit._rounded(greatest(l.rate - c.used, 0), l.rate, l.tolerance);
    IF NOT d.ok AND count <= l.rate + l.tolerance THEN
        -- Where in a window is what fades small enough beside what doesn't?
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

-- Of a sliding log: how many entries have left it. A clock behind the newest one stands still.
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
    d ratelimit._decision;
    gone int := ratelimit._gone(l, s.log, now);
    live int := cardinality(s.log) - gone;
    newest timestamptz := CASE WHEN live > 0 THEN s.log[cardinality(s.log)] END;
    nth timestamptz;
BEGIN
    d.at := now;
    d.capacity := l.capacity;
    d.enforced := l.enforce;
    d.ok := count = 0 OR live + count <= l.rate;
    d.changed := d.ok AND count > 0;
    IF d.changed THEN
        d.ts := greatest(ratelimit._us(newest), now);
        newest := ratelimit._nearest(d.ts);
        d.log := s.log[gone + 1:] || array_fill(newest, ARRAY[count::int]);
        live := live + count::int;
        d.value := live;
    ELSIF NOT d.ok AND count <= l.rate THEN
        -- So many of the oldest entries must leave.
        nth := s.log[gone + (live + count - l.rate)::int];
        d.wait := ratelimit._plus(ratelimit._us(nth), l.period) - now;
    END IF;
    d.remaining := greatest(l.rate - live, 0);
    d.reset_at := CASE WHEN newest IS NULL THEN now ELSE ratelimit._plus(ratelimit._us(newest), l.period) END;
    RETURN d;
END
$$;

-- Of a concurrency limit: the leases that have not expired, as pairs of id and expiry.
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

-- When leases expire, the soonest first.
CREATE OR REPLACE FUNCTION ratelimit._expiries(live timestamptz[]) RETURNS timestamptz[] IMMUTABLE LANGUAGE sql AS $$
    SELECT coalesce(array_agg(live[i] ORDER BY live[i]), '{}') FROM generate_series(2, cardinality(live), 2) i
$$;

-- Grants a lease of count slots, by this id or the next one that no lease of the state has.
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

-- Decides a take of any kind.
CREATE OR REPLACE FUNCTION ratelimit._decide(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, reserve boolean, id bigint DEFAULT NULL) RETURNS ratelimit._decision STABLE
LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
BEGIN
    IF s.ts > now OR l.kind = 'sliding log' THEN s := ratelimit._current(l, s, now); END IF;
    CASE l.kind
    WHEN 'token bucket', 'fixed window' THEN RETURN ratelimit._take_tokens(l, s, now, count, reserve);
    WHEN 'sliding window' THEN RETURN ratelimit._take_window(l, s, now, count);
    WHEN 'sliding log' THEN RETURN ratelimit._take_log(l, s, now, count);
    WHEN 'concurrency' THEN RETURN ratelimit._acquire(l, s, now, count, coalesce(id, now));
    ELSE
        d.ok := true; d.at := now; d.enforced := l.enforce; d.changed := false;
        RETURN d;
    END CASE;
END
$$;

-- Gives count tokens back, first against a debt, or takes them whatever is there; of a token bucket or fixed window.
CREATE OR REPLACE FUNCTION ratelimit._credit(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, taken_at timestamptz) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    r record;
    after ratelimit._state;
    over double precision;
BEGIN
    d.ok := true;
    d.at := now;
    d.capacity := l.capacity;
    d.enforced := l.enforce;
    d.changed := false;
    IF l.kind = 'unlimited' THEN RETURN d; END IF;
    IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF;
    r := ratelimit._refilled(l, s, now);
    d.ts := r.ts;
    d.value := r.tokens;
    IF count < 0 THEN
        IF ratelimit._awaits(l, r.tokens) THEN d.ts := greatest(r.ts, now); END IF;
        after.value := ratelimit._subtract(r.tokens, -count);
        after.ts := d.ts;
        d.value := ratelimit._bounded(l, after.value, after.ts);
    ELSIF l.kind = 'token bucket' OR taken_at IS NULL OR ratelimit._us(taken_at) >= r.ts THEN
        d.value := r.tokens + count;
        -- First what was used beyond what this config adds, which nothing else records.
        IF l.kind = 'fixed window' AND d.ts = s.ts AND d.value > 0 THEN
            over := greatest(s.added - greatest(s.value, 0) - l.adds, 0);
        END IF;
        IF over > 0 THEN
            after.value := least(over, d.value);
            d.value := d.value - after.value;
            d.added := l.adds + (over - after.value);
            d.changed := true;
        END IF;
        d.value := least(d.value, l.capacity);
    END IF;
    IF d.value < -l.tolerance AND NOT l.overage THEN d.wait := ratelimit._due(l, d.ts, -d.value) - now; END IF;
    d.changed := d.changed OR d.value <> r.tokens;
    IF l.kind = 'fixed window' AND (over > 0) IS NOT TRUE THEN
        d.added := ratelimit._added(l, s, d.ts, d.value);
    END IF;
    d.remaining := ratelimit._rounded(d.value, l.capacity, l.tolerance);
    d.reset_at := ratelimit._reset_at(l, d.ts, d.value, now);
    RETURN d;
END
$$;

-- How full a limit is: what a take of nothing leaves, also where that is denied since there is a debt.
CREATE OR REPLACE FUNCTION ratelimit._level(l ratelimit._limit, s ratelimit._state, now bigint)
RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    r record;
BEGIN
    IF l.kind NOT IN ('token bucket', 'fixed window') THEN
        RETURN ratelimit._decide(l, s, now, 0, false);
    END IF;
    IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF;
    r := ratelimit._refilled(l, s, now);
    d.remaining := ratelimit._rounded(r.tokens, l.capacity, l.tolerance);
    d.reset_at := ratelimit._reset_at(l, r.ts, r.tokens, now);
    RETURN d;
END
$$;

-- The instant at which a call is decided: now, or a later one that the state has seen.
CREATE OR REPLACE FUNCTION ratelimit._present(l ratelimit._limit, s ratelimit._state, now bigint) RETURNS bigint
STABLE LANGUAGE plpgsql AS $$
DECLARE
    newest timestamptz;
BEGIN
    IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF;
    CASE l.kind
    WHEN 'sliding log' THEN
        newest := s.log[cardinality(s.log)];
        RETURN greatest(now, ratelimit._us(newest));
    WHEN 'concurrency', 'unlimited' THEN RETURN now;
    ELSE RETURN greatest(now, s.ts);
    END CASE;
END
$$;

-- Whether every call from now on is answered as without the state.
CREATE OR REPLACE FUNCTION ratelimit._idle(l ratelimit._limit, s ratelimit._state, now bigint, name text, key text)
RETURNS boolean STABLE LANGUAGE plpgsql AS $$
DECLARE
    r record;
    fresh ratelimit._state;
BEGIN
    IF s.ts > now THEN RETURN false; END IF;
    CASE l.kind
    WHEN 'token bucket' THEN
        r := ratelimit._refilled(l, s, now);
        RETURN r.tokens >= l.capacity;
    WHEN 'fixed window' THEN
        r := ratelimit._refilled(l, s, now);
        -- Full, and no more used of its window than that adds.
        IF r.tokens < l.capacity OR r.ts = s.ts AND s.added - greatest(s.value, 0) > l.adds THEN
            RETURN false;
        END IF;
        fresh := ratelimit._state_of(l, name, key, now);
        RETURN ratelimit._awaits(l, r.tokens) OR r.ts = fresh.ts;
    WHEN 'sliding window' THEN
        r := ratelimit._counters(l, s, now);
        RETURN r.value = 0 AND r.prior = 0;
    WHEN 'sliding log' THEN RETURN ratelimit._gone(l, s.log, now) = cardinality(s.log);
    WHEN 'concurrency' THEN RETURN ratelimit._live(s.log, now) = '{}';
    ELSE RETURN true;
    END CASE;
END
$$;

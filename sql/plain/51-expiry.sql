-- Holds that expire. A hold is an ordinary take, and a row of rl_holds. When it expires, what can come back does: at
-- that time, whichever call finds it later. So every call that decides first gives back what has expired; calls that
-- only read do that to a copy of the row. rateLimits.holds_due says whether there is anything to do. While the limit is
-- undefined, exempt or of a kind without holds, what has expired waits.
--
-- A function that reads a key's row and its holds is STABLE, so that both are of one moment: that of the calling query.

-- The tokens of a hold that can come back; an error where a column has a value that no call writes. In one expression:
-- there may be thousands of holds.
CREATE OR REPLACE FUNCTION ratelimit._returnable(name text, count double precision, spent double precision,
    returned double precision, taken_at timestamptz, expires_at timestamptz) RETURNS double precision STABLE
LANGUAGE sql AS $$
    SELECT CASE WHEN spent >= 0 AND spent <= count AND count < 'Infinity' AND returned >= 0 AND returned < 'Infinity'
                 AND taken_at > '-infinity' AND taken_at < 'infinity'
                 AND expires_at > '-infinity' AND expires_at < 'infinity' THEN count - spent
                ELSE ratelimit._bad_hold(name, count, spent, returned, taken_at, expires_at) END
$$;

-- Whether tokens of a kind can come back.
CREATE OR REPLACE FUNCTION ratelimit._returns(l ratelimit._limit) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
    SELECT coalesce(l.letter = 't', false)
$$;

-- The limit that settles a hold: as defined, or as the call defined it.
CREATE OR REPLACE FUNCTION ratelimit._limit_of(defined ratelimit._limit, config jsonb) RETURNS ratelimit._limit
STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN (defined).kind IS NULL AND config IS NOT NULL THEN ratelimit._parse(config) ELSE defined END
$$;

-- The limit to which an expired hold gives back: the same, or else that of the call which finds it; without a kind
-- where neither has holds.
CREATE OR REPLACE FUNCTION ratelimit._limit_of_expiry(defined ratelimit._limit, config jsonb, called ratelimit._limit)
RETURNS ratelimit._limit STABLE LANGUAGE plpgsql AS $$
DECLARE
    l CONSTANT ratelimit._limit := ratelimit._limit_of(defined, config);
BEGIN
    RETURN CASE WHEN ratelimit._returns(l) THEN l WHEN ratelimit._returns(called) THEN called END;
END
$$;

-- Whether holds may have expired that give back to a call's limit, and the row has a state of that limit.
CREATE OR REPLACE FUNCTION ratelimit._is_due(l ratelimit._limit, r ratelimit._row, now bigint) RETURNS boolean STABLE
LANGUAGE sql AS $$
    SELECT coalesce(r.holds_due <= ratelimit._instant(now) AND l.letter = 't' AND r.kind NOT IN ('s', 'l', 'c'), false)
$$;

-- Whether a call ignores a state, which is too far in the future. Its holds are ignored, too.
CREATE OR REPLACE FUNCTION ratelimit._ignores(l ratelimit._limit, s ratelimit._state, now bigint) RETURNS boolean
STABLE LANGUAGE sql AS $$
    SELECT coalesce(s.ts > now AND ratelimit._current(l, s, now) IS DISTINCT FROM s, false)
$$;

-- Whether a limit in full denies an ask, too.
CREATE OR REPLACE FUNCTION ratelimit._never(a ratelimit._ask, now bigint) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN NOT (ratelimit._decide(a.l, ratelimit._initial(a.l, now, NULL, a.name, a.key), now,
                                  coalesce(a.more, a.count), a.reserve, NULL, coalesce(a.fewest, a.at_least))).ok;
END
$$;

-- Whether the answer to an ask depends on what has expired: not if it passes at the end of a block anyway, nor if it
-- never passes.
CREATE OR REPLACE FUNCTION ratelimit._must_lapse(a ratelimit._ask, now bigint) RETURNS boolean STABLE
LANGUAGE plpgsql AS $$
BEGIN
    IF (ratelimit._us(a.until) > now) IS NOT TRUE THEN
        RETURN a.verb NOT IN ('take', 'check', 'status') OR a.counts IS NOT NULL OR NOT ratelimit._never(a, now);
    ELSIF a.ns IS NULL AND NOT (a.h).charge AND (a.h).expires_at <= ratelimit._instant(now) THEN
        RETURN true; -- its own hold is shown without what has come back
    ELSIF a.until = 'infinity' THEN
        RETURN false;
    END IF;
    a.s := ratelimit._state_of(a.l, a.r, now);
    a := ratelimit._decide_ask(a, ratelimit._us(a.until));
    RETURN (a.l).enforce AND NOT EXISTS (SELECT FROM unnest(coalesce(a.decisions, ARRAY[a.d])) x WHERE x.ok);
END
$$;

-- The tokens of a row of a token bucket at a later time, in one expression: there may be thousands of holds. NULL for
-- all other rows, which take longer.
CREATE OR REPLACE FUNCTION ratelimit._filled(l ratelimit._limit, kind "char", value double precision, ts timestamptz,
    at bigint) RETURNS double precision STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN l.kind = 'token bucket' AND l.rate > 1e-200 AND kind = 't' AND value >= 0
                 AND value < 'Infinity' AND ts > '1970-01-01 00:00:00+00' AND ratelimit._us(ts) <= at
                THEN ratelimit._tokens_at(l, value, ratelimit._us(ts), at) END
$$;

-- A key's row after the holds that expire from its holds_due until now, with what came back of each; called: the limit
-- of the call, if there is one. waits: when the first of them expired that can't give back yet.
CREATE OR REPLACE FUNCTION ratelimit._lapse(called ratelimit._limit, INOUT r ratelimit._row, now bigint, OUT ids text[],
    OUT came double precision[], OUT waits timestamptz) STABLE LANGUAGE plpgsql AS $$
DECLARE
    defined CONSTANT ratelimit._limit := ratelimit._defined(r.name, r.key);
    l ratelimit._limit := ratelimit._limit_of_expiry(defined, NULL, called);
    parsed jsonb;
    h record;
    d ratelimit._decision;
    at bigint;
    tokens double precision;
    back double precision;
BEGIN
    PERFORM ratelimit._state_of(NULL, r, now); -- an error where it has a value that no call writes
    ids := '{}'::text[];
    came := '{}'::double precision[];
    FOR h IN
        SELECT x.id, x.taken_at, x.expires_at, x.config,
               ratelimit._returnable(x.name, x.count, x.spent, x.returned, x.taken_at, x.expires_at) AS held
        FROM ONLY ratelimit.rl_holds x
        WHERE x.name = r.name AND x.key = r.key AND NOT x.charge AND x.count > x.spent
          AND x.expires_at >= r.holds_due AND x.expires_at <= ratelimit._instant(now) ORDER BY x.expires_at, x.id
    LOOP
        IF defined.kind IS NULL AND h.config IS DISTINCT FROM parsed THEN
            parsed := h.config;
            l := ratelimit._limit_of_expiry(defined, parsed, called);
        END IF;
        IF r.kind IN ('s', 'l', 'c') OR l.kind IS NULL AND r.kind = 't' THEN
            waits := h.expires_at;
            RETURN;
        END IF;
        at := ratelimit._us(h.expires_at);
        tokens := CASE WHEN r.added IS NULL THEN ratelimit._filled(l, r.kind, r.value, r.ts, at) END;
        IF r.kind <> 't' THEN
            back := 0; -- a full limit has no room
        ELSIF tokens IS NULL THEN
            d := ratelimit._refund(l, ratelimit._state_of(l, r, at), at, h.held, h.taken_at);
            back := d.taken;
            IF d.changed THEN r := ratelimit._row_with(r, l, d.state); END IF;
        ELSE
            back := least(h.held, l.capacity - tokens);
            IF back > 0 AND least(tokens + back, l.capacity) <> tokens THEN
                r.value := least(tokens + back, l.capacity); r.ts := h.expires_at;
            END IF;
        END IF;
        ids := ids || h.id;
        came := came || greatest(back, 0);
    END LOOP;
END
$$;

-- Gives back what has expired, for a call's limit, if there is one: one write of the key's row, which it locks, and one
-- of the holds. Returns whether holds had. With every hold it leaves a row that is locked, or has a value
-- that no call writes, and doesn't trust rateLimits.holds_due.
CREATE OR REPLACE FUNCTION ratelimit._expire(called ratelimit._limit, name text, key text,
    every_hold boolean DEFAULT false) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    locked ratelimit._row;
    now bigint;
    p record;
BEGIN
    IF every_hold THEN
        -- Without a row the key has all its tokens: like one that was reset.
        IF NOT EXISTS (SELECT FROM ONLY ratelimit.rateLimits r WHERE r.name = $2 AND r.key = $3) THEN
            PERFORM ratelimit._make_row(name, key);
        END IF;
        PERFORM FROM ONLY ratelimit.rateLimits r WHERE r.name = $2 AND r.key = $3 FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN RETURN false; END IF;
    END IF;
    locked := ratelimit._lock(name, key);
    IF every_hold THEN locked.holds_due := '-infinity'; END IF;
    now := ratelimit._now();
    IF (locked.holds_due <= ratelimit._instant(now)) IS NOT TRUE THEN RETURN false; END IF;
    BEGIN
        p := ratelimit._lapse(called, locked, now);
    EXCEPTION WHEN object_not_in_prerequisite_state THEN
        IF every_hold THEN RETURN false; END IF; -- kept for inspection
        RAISE;
    END;
    IF p.waits IS NOT NULL AND p.ids = '{}' THEN RETURN false; END IF;
    p.r.holds_due := coalesce(p.waits, ratelimit._next_expiry(name, key, now));
    PERFORM ratelimit._write_row(p.r);
    PERFORM ratelimit._write_lapsed(name, key, locked.holds_due, now, p.ids, p.came);
    RETURN cardinality(p.ids) > 0;
END
$$;

-- Writes what came back of the holds that have expired from since until now; the rest can't come back any more.
CREATE OR REPLACE FUNCTION ratelimit._write_lapsed(name text, key text, since timestamptz, now bigint, ids text[],
    came double precision[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    -- A trigger may have changed them.
    WITH changed AS (
        UPDATE ONLY ratelimit.rl_holds h SET returned = e.returned, count = e.count, spent = e.count
        FROM (SELECT x.ctid AS place, x.returned + e.came AS returned,
                     CASE WHEN e.came = x.count - x.spent THEN x.spent ELSE x.count - e.came END AS count
              FROM unnest(ids, came) AS e (id, came)
              JOIN ONLY ratelimit.rl_holds x ON x.id = e.id AND x.name = $1 AND x.key = $2 AND NOT x.charge
               AND x.expires_at >= since AND x.expires_at <= ratelimit._instant(now)) AS e
        WHERE h.ctid = e.place
        RETURNING (h.count, h.spent, h.returned) = (e.count, e.count, e.returned) AS as_meant
    ) SELECT count(*) FILTER (WHERE as_meant) INTO written FROM changed;
    IF written < cardinality(ids) THEN PERFORM ratelimit._not_written('rl_holds'); END IF;
END
$$;

-- When the next hold that gives tokens back expires.
CREATE OR REPLACE FUNCTION ratelimit._next_expiry(name text, key text, now bigint) RETURNS timestamptz
STABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT x.expires_at FROM ONLY ratelimit.rl_holds x WHERE x.name = $1 AND x.key = $2 AND NOT x.charge
            AND x.count > x.spent AND x.expires_at > ratelimit._instant($3) ORDER BY x.expires_at LIMIT 1);
END
$$;

-- Whether a write begins a key's state again, since the row's is of another kind, or ignored.
CREATE OR REPLACE FUNCTION ratelimit._is_anew(l ratelimit._limit, r ratelimit._row, now bigint) RETURNS boolean STABLE
LANGUAGE sql AS $$
    SELECT coalesce(r.kind IN ('t', 's', 'l', 'c'), false) AND (r.kind <> l.letter OR r.ts > ratelimit._instant(now)
        AND ratelimit._ignores(l, ratelimit._state_of(l, r, now), now))
$$;

-- Lets the denial of an ask wait no longer than until the first moment at which the same call passes, if the next 1,000
-- holds that expire give back what they can.
CREATE OR REPLACE FUNCTION ratelimit._denied_until(a ratelimit._ask) RETURNS ratelimit._ask STABLE
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := (a.d).at;
    opens CONSTANT bigint := greatest(ratelimit._us(a.until), now);
    defined ratelimit._limit;
    passes bigint := ratelimit._plus(now, (a.d).wait);
    later ratelimit._ask := a;
    l ratelimit._limit;
    at bigint;
    h record;
    d ratelimit._decision;
BEGIN
    IF NOT ratelimit._returns(a.l) OR (a.d).forever OR passes <= opens
        OR (CASE WHEN a.counts IS NULL THEN ratelimit._never(a, now) ELSE passes IS NULL END) THEN
        RETURN a;
    END IF;
    defined := ratelimit._defined(a.name, a.key);
    IF NOT a.reserve AND a.counts IS NULL AND opens = now AND a.l = defined
        AND ratelimit._filled(a.l, (a.r).kind, (a.r).value, (a.r).ts, now) IS NOT NULL THEN
        a.d := ratelimit._sooner_filled(a.d, a.l, a.r, now, least(ceil(coalesce(a.fewest, a.at_least)),
                                                                  coalesce(a.more, a.count)));
        RETURN a;
    END IF;
    FOR h IN
        SELECT ratelimit._returnable(x.name, x.count, x.spent, x.returned, x.taken_at, x.expires_at) AS held,
               x.taken_at, x.expires_at, x.config FROM ONLY ratelimit.rl_holds x
        WHERE x.name = a.name AND x.key = a.key AND NOT x.charge AND x.count > x.spent
          AND x.expires_at > ratelimit._instant(now) ORDER BY x.expires_at, x.id LIMIT 1000
    LOOP
        at := ratelimit._us(h.expires_at);
        EXIT WHEN passes <= at OR passes <= opens;
        l := ratelimit._limit_of_expiry(defined, h.config, a.l);
        d := ratelimit._refund(l, ratelimit._state_of(l, later.r, at), at, h.held, h.taken_at);
        CONTINUE WHEN d.changed IS NOT TRUE;
        later.r := ratelimit._row_with(later.r, l, d.state);
        at := greatest(at, opens);
        later.s := ratelimit._state_of(a.l, later.r, at);
        later := ratelimit._decide_ask(later, at);
        passes := ratelimit._plus(at, CASE WHEN (later.d).ok THEN 0 ELSE (later.d).wait END);
    END LOOP;
    a.d.wait := passes - now;
    IF a.counts IS NOT NULL THEN a := ratelimit._with_wait(a, passes - now); END IF;
    RETURN a;
END
$$;

-- A denial with such a wait, for a row of a token bucket that has tokens, in few expressions a hold.
CREATE OR REPLACE FUNCTION ratelimit._sooner_filled(d ratelimit._decision, l ratelimit._limit, r ratelimit._row,
    now bigint, count double precision) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    value double precision := r.value;
    ts timestamptz := r.ts;
    came_at bigint := now; -- the time of the state
    waited bigint := d.wait; -- from then on, without further holds
    known boolean := true;
    at bigint;
    tokens double precision;
    h record;
BEGIN
    FOR h IN
        SELECT ratelimit._returnable(x.name, x.count, x.spent, x.returned, x.taken_at, x.expires_at) AS held,
               x.expires_at FROM ONLY ratelimit.rl_holds x
        WHERE x.name = r.name AND x.key = r.key AND NOT x.charge AND x.count > x.spent
          AND x.expires_at > ratelimit._instant(now) ORDER BY x.expires_at, x.id LIMIT 1000
    LOOP
        at := ratelimit._us(h.expires_at);
        tokens := ratelimit._filled(l, 't', value, ts, at);
        IF count - tokens <= l.tolerance THEN
            IF NOT known THEN
                waited := (ratelimit._decide(l, ROW(value, came_at, NULL, NULL, NULL, NULL)::ratelimit._state, came_at,
                                             count, false)).wait;
                known := true;
            END IF;
            EXIT WHEN came_at + waited <= at;
        END IF;
        CONTINUE WHEN tokens >= l.capacity;
        value := least(tokens + least(h.held, l.capacity - tokens), l.capacity);
        ts := h.expires_at; came_at := at; known := count - value <= l.tolerance; waited := 0;
        EXIT WHEN known;
    END LOOP;
    IF NOT known THEN
        waited := (ratelimit._decide(l, ROW(value, came_at, NULL, NULL, NULL, NULL)::ratelimit._state, came_at,
                                     count, false)).wait;
    END IF;
    d.wait := ratelimit._plus(came_at, waited) - now;
    RETURN d;
END
$$;

-- Tokens of a key's holds that would come back if all were settled as unused now.
CREATE OR REPLACE FUNCTION ratelimit._held(l ratelimit._limit, of_key ratelimit._row, now bigint)
RETURNS double precision STABLE LANGUAGE plpgsql AS $$
DECLARE
    since timestamptz := timestamptz '-infinity';
    s ratelimit._state;
    r record;
    room double precision;
BEGIN
    IF NOT ratelimit._returns(l) THEN RETURN 0; END IF;
    s := ratelimit._state_of(l, of_key, now);
    IF ratelimit._ignores(l, s, now) THEN RETURN 0; END IF;
    r := ratelimit._refilled(l, s, now);
    room := l.capacity - r.tokens + ratelimit._overused(l, s, r.ts);
    IF l.kind = 'fixed window' THEN since := ratelimit._nearest(r.ts); END IF;
    -- A charged hold counts for the day in which it can be settled.
    RETURN least(coalesce((
        SELECT sum(ratelimit._returnable(h.name, h.count, h.spent, h.returned, h.taken_at, h.expires_at))
        FROM ONLY ratelimit.rl_holds h
        WHERE h.name = of_key.name AND h.key = of_key.key AND h.count > h.spent AND h.taken_at >= since
        AND (h.expires_at > ratelimit._instant(now)
             OR h.charge AND h.expires_at >= ratelimit._instant(now - 86400000000))), 0), greatest(room, 0));
END
$$;

-- Writes what has expired where a call writes nothing else: a take or credit does, a hold or a list where it was much.
-- The answer doesn't depend on it, but the next call has less to do.
CREATE OR REPLACE FUNCTION ratelimit._write_found(a ratelimit._ask) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(a.ids) > 100 OR a.ids IS NOT NULL AND a.ns IS NULL AND a.verb <> 'hold' THEN
        PERFORM ratelimit._expire(a.l, a.name, a.key);
    END IF;
END
$$;


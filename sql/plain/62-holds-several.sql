-- Holds of several limits, all or nothing, with slots of concurrency limits among them. A hold's slots are a lease like
-- others, but for its end. Its row of rl_holds has the lease's id, and all its slots in spent: they come back in the
-- state of the limit.

-- Lets a lease have count slots until it ends: takes those that it lacks, and extends the others.
CREATE OR REPLACE FUNCTION ratelimit._hold_slots(l ratelimit._limit, s ratelimit._state, now bigint,
    count double precision, lease bigint, ends bigint) RETURNS ratelimit._decision STABLE
LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    live bigint[] := ratelimit._live(s.leases, now);
    had int := 0;
    more double precision;
BEGIN
    FOR i IN 1..cardinality(live) BY 2 LOOP
        IF live[i] = lease THEN
            had := had + 1;
            ends := greatest(ends, live[i + 1]);
        END IF;
    END LOOP;
    more := greatest(count - had, 0);
    IF more > 0 AND cardinality(live) / 2 + more > l.capacity THEN
        RETURN ratelimit._acquire(l, s, now, more, 0);
    END IF;
    FOR i IN 1..cardinality(live) BY 2 LOOP
        IF live[i] = lease THEN live[i + 1] := ends; END IF;
    END LOOP;
    FOR i IN 1..more::int LOOP live := live || ARRAY[lease, ends]; END LOOP;
    live := ratelimit._in_order(live);
    s.leases := live;
    d := ratelimit._acquire(l, s, now, 0, 0);
    d.changed := had > 0 OR more > 0;
    d.value := cardinality(live) / 2;
    d.ts := greatest(s.ts, now);
    d.leases := live;
    d.taken := greatest(count, had);
    RETURN d;
END
$$;

-- A hold with the slots that are still its own.
CREATE OR REPLACE FUNCTION ratelimit._live_slots(h ratelimit._hold, s ratelimit._state, now bigint)
RETURNS ratelimit._hold STABLE LANGUAGE plpgsql AS $$
DECLARE
    live CONSTANT bigint[] := ratelimit._live(s.leases, now);
BEGIN
    h.count := (SELECT count(*) FROM generate_series(1, cardinality(live), 2) i WHERE live[i] = h.lease);
    RETURN h;
END
$$;

-- A group's request as that of a hold.
CREATE OR REPLACE FUNCTION ratelimit._held_group(g ratelimit._group, asked ratelimit._hold, ttl bigint)
RETURNS ratelimit._group STABLE LANGUAGE plpgsql AS $$
BEGIN
    g.ttl := ttl;
    asked.name := g.name;
    asked.key := g.key;
    asked.count := g.counts[1];
    asked.lease := ratelimit._random_id();
    asked.config := CASE WHEN g.config IS NOT NULL AND (ratelimit._defined(g.name, g.key)).kind IS NULL
                         THEN g.config END;
    g.asked := asked;
    g.h := ratelimit._hold_of(asked.id, g.name, g.key);
    RETURN g;
END
$$;

-- A hold after what came back of it, if it is one of those that have expired.
CREATE OR REPLACE FUNCTION ratelimit._lapsed(h ratelimit._hold, ids text[], came double precision[])
RETURNS ratelimit._hold IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    back CONSTANT double precision := came[array_position(ids, h.id)];
BEGIN
    IF h.id = ANY (ids) THEN
        h.count := CASE WHEN back = h.count - h.spent THEN h.spent ELSE h.count - back END;
        h.spent := h.count;
        h.returned := h.returned + back;
    END IF;
    RETURN h;
END
$$;

-- Decides a hold's request at an instant: what it lacks.
CREATE OR REPLACE FUNCTION ratelimit._decide_held(g ratelimit._group, now bigint) RETURNS ratelimit._group
STABLE LANGUAGE plpgsql AS $$
DECLARE
    asked ratelimit._hold := g.asked;
    d ratelimit._decision;
BEGIN
    -- What it has of a state of another kind, or of one that is ignored, is gone.
    IF (g.l).kind = 'unlimited' OR ratelimit._has_state((g.r).kind)
        AND ((g.r).kind <> (g.l).letter OR ratelimit._ignores(g.l, g.s, now)) THEN
        g.h := NULL;
    END IF;
    -- One of tokens means nothing to slots, nor one of slots to tokens, but a denial shows its end.
    asked.expires_at := NULL;
    IF ((g.l).kind = 'concurrency') <> ((g.h).lease IS NOT NULL) THEN
        asked.expires_at := (g.h).expires_at;
        g.h := NULL;
    END IF;
    g.asked := asked;
    IF (g.l).kind = 'concurrency' THEN
        d := ratelimit._hold_slots(g.l, g.s, now, (g.asked).count, coalesce((g.h).lease, (g.asked).lease),
                                   ratelimit._plus(now, g.ttl));
        IF (g.h).id IS NOT NULL THEN g.h := ratelimit._live_slots(g.h, g.s, now); END IF;
    ELSE
        g.counts[1] := greatest((g.asked).count - coalesce((g.h).count, 0), 0);
        d := ratelimit._decide_hold(g.l, g.s, now, g.h, g.counts[1], NULL, g.reserves[1]);
    END IF;
    g.decisions := ARRAY[d];
    g.changed := (g.l).kind <> 'unlimited' AND (d.ok OR NOT d.enforced AND (g.h).id IS NOT NULL);
    g.after := CASE WHEN d.changed THEN ratelimit._left(d) END;
    RETURN g;
END
$$;

-- Writes the hold of a request that passes, whose row is locked.
CREATE OR REPLACE FUNCTION ratelimit._write_held(g ratelimit._group, now bigint) RETURNS ratelimit._group
LANGUAGE plpgsql AS $$
DECLARE
    d CONSTANT ratelimit._decision := g.decisions[1];
    h ratelimit._hold := g.h;
    after ratelimit._state;
    live CONSTANT double precision := CASE WHEN (g.l).kind = 'concurrency' AND d.taken <= 0 THEN h.count END;
BEGIN
    IF (g.l).kind = 'concurrency' AND d.taken > 0 THEN
        h := g.asked;
        h.lease := coalesce((g.h).lease, h.lease);
        h.taken_at := coalesce((g.h).taken_at, ratelimit._nearest(now));
        h.count := d.taken; h.spent := d.taken; h.returned := 0; h.charge := false;
        h.expires_at := greatest((g.h).expires_at, ratelimit._nearest(ratelimit._plus(now, g.ttl)));
    ELSE
        -- A dry run extends a hold that it doesn't have more tokens for; and slots that have expired stay in it.
        IF live IS NOT NULL THEN h.count := greatest(h.count, h.spent); END IF;
        after := CASE WHEN (g.l).kind <> 'concurrency' THEN coalesce(g.after, ratelimit._current(g.l, g.s, now)) END;
        h := ratelimit._grown(h, g.l, after, now, CASE WHEN d.ok THEN d.taken ELSE 0 END,
                              CASE WHEN d.ok THEN d.wait END, (g.asked).count, (g.asked).config, g.ttl);
        h.id := (g.asked).id; h.name := g.name; h.key := g.key;
        h.charge := coalesce((g.h).charge, (g.asked).charge);
        IF NOT h.charge AND h.count > h.spent THEN g.r.holds_due := least((g.r).holds_due, h.expires_at); END IF;
    END IF;
    PERFORM ratelimit._write_hold(h);
    h.count := coalesce(live, h.count);
    g.h := h;
    RETURN g;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_hold_all(requests jsonb, ttl interval DEFAULT '10 minutes',
    id text DEFAULT NULL, on_expiry text DEFAULT 'refund', throws boolean DEFAULT false)
RETURNS SETOF ratelimit.rl_hold_all_result LANGUAGE plpgsql ROWS 10 AS $$
DECLARE
    asked ratelimit._hold;
    several record;
    g ratelimit._group;
    o ratelimit.rl_limit_all_result;
    r ratelimit.rl_hold_all_result;
BEGIN
    PERFORM ratelimit._check_terms(ttl, id, on_expiry);
    asked.id := coalesce(id, gen_random_uuid()::text);
    asked.charge := on_expiry = 'charge';
    several := ratelimit._several('rl_hold_all', requests, throws, asked, ratelimit._micros(ttl));
    FOR g IN SELECT x.* FROM unnest(several.groups) x ORDER BY x.ns[1] LOOP
        o := several.outcomes[g.ns[1]];
        r.n := o.n; r.name := o.name; r.key := o.key; r.ok := o.ok;
        r.retry_after := o.retry_after; r.retry_at := o.retry_at; r.remaining := o.remaining;
        r.capacity := o.capacity; r.reset_at := o.reset_at; r.limited_by := o.limited_by;
        r.hold := CASE WHEN o.ok AND g.changed THEN asked.id END;
        -- Where a dry run admits what the limit has not, and for an exempt key: as if it held them.
        r.held := CASE WHEN o.ok AND NOT (g.changed AND (g.decisions[1]).ok)
                       THEN greatest((g.asked).count, (g.h).count) ELSE coalesce((g.h).count, 0) END;
        r.expires_at := CASE WHEN NOT o.ok OR g.changed
            THEN ratelimit._shown(ratelimit._us(coalesce((g.h).expires_at, (g.asked).expires_at))) END;
        RETURN NEXT r;
    END LOOP;
END
$$;

-- Gives the slots of a lease back.
CREATE OR REPLACE FUNCTION ratelimit._free(l ratelimit._limit, s ratelimit._state, now bigint, lease bigint)
RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    live CONSTANT bigint[] := ratelimit._live(s.leases, now);
    rest bigint[] := '{}'::bigint[];
BEGIN
    FOR i IN 1..cardinality(live) BY 2 LOOP
        IF live[i] <> lease THEN rest := rest || live[i:i + 1]; END IF;
    END LOOP;
    IF rest = live THEN RETURN ratelimit._untouched(l, s, now); END IF;
    s.leases := rest;
    d := ratelimit._untouched(l, s, now);
    d.changed := true; d.value := cardinality(rest) / 2; d.ts := greatest(s.ts, now); d.leases := rest;
    RETURN d;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_settle_all(hold text, used jsonb DEFAULT NULL)
RETURNS SETOF ratelimit.rl_settle_all_result LANGUAGE plpgsql ROWS 10 AS $$
DECLARE
    allowed CONSTANT text :=
        'a number from 0 to 1e15, an object of them by name, such as {"llmTokens": 2750}, or NULL';
    field text;
    given jsonb;
    names text[];
    keys text[];
    d ratelimit._decision;
    a ratelimit.rl_result;
    r ratelimit.rl_settle_all_result;
BEGIN
    IF jsonb_typeof(used) = 'object' THEN
        FOR field, given IN SELECT * FROM jsonb_each(used) LOOP
            IF jsonb_typeof(given) <> 'number' THEN
                PERFORM ratelimit._bad('used', format('%s for %s', replace(ratelimit._type_of(given), 'empty ', ''),
                    to_json(ratelimit._short(field))), allowed);
            END IF;
            IF abs(given::numeric) > 1.7976931348623158e308 THEN
                PERFORM ratelimit._bad('used', 'too large', allowed);
            END IF;
            PERFORM ratelimit._check_used(ratelimit._float(given::numeric));
        END LOOP;
    ELSIF jsonb_typeof(used) = 'number' THEN
        IF abs(used::numeric) > 1.7976931348623158e308 THEN
            PERFORM ratelimit._bad('used', 'too large', allowed);
        END IF;
        PERFORM ratelimit._check_used(ratelimit._float(used::numeric));
    ELSIF used IS NOT NULL THEN
        PERFORM ratelimit._bad('used', replace(ratelimit._type_of(used), 'empty ', ''), allowed);
    END IF;
    IF hold IS NOT NULL THEN PERFORM ratelimit._writable('rl_settle_all'), ratelimit._attend(); END IF;
    SELECT array_agg(x.name ORDER BY x.name, x.key), array_agg(x.key ORDER BY x.name, x.key) INTO names, keys
    FROM ONLY ratelimit.rl_holds x WHERE x.id = $1;
    IF names IS NULL AND hold IS NOT NULL THEN PERFORM ratelimit._no_hold(); END IF;
    FOR i IN 1..coalesce(cardinality(names), 0) LOOP
        given := CASE jsonb_typeof(used) WHEN 'object' THEN used -> names[i] ELSE used END;
        d := ratelimit._settle(hold, names[i], keys[i], ratelimit._float(given::numeric));
        CONTINUE WHEN d.ok IS NULL;
        a := ratelimit._answer(d);
        r.name := names[i]; r.key := keys[i]; r.retry_after := a.retry_after; r.retry_at := a.retry_at;
        r.remaining := a.remaining; r.capacity := a.capacity; r.reset_at := a.reset_at;
        RETURN NEXT r;
    END LOOP;
END
$$;

-- Holds of several limits, all or nothing, with slots of concurrency limits among them. A hold's slots are a lease like
-- others, but for its end. Its row of rl_holds has the lease's id, and all its slots in spent: they come back in the
-- state of the limit.

@rl_hold_all@ LANGUAGE plpgsql ROWS 10 AS $$
DECLARE
    given ratelimit._ask;
    several record;
    a ratelimit._ask;
    o ratelimit.rl_limit_all_result;
    r ratelimit.rl_hold_all_result;
BEGIN
    PERFORM ratelimit._check_terms(ttl, id, on_expiry);
    given := ratelimit._ask('rl_hold_all', 'hold', NULL, NULL, 1, id => coalesce(id, gen_random_uuid()::text),
                            ttl => ratelimit._micros(ttl), charge => on_expiry = 'charge');
    several := ratelimit._several(requests, throws, given);
    FOR a IN SELECT x.* FROM unnest(several.asks) x ORDER BY x.ns[1] LOOP
        o := several.outcomes[a.ns[1]];
        r.n := o.n; r.name := o.name; r.key := o.key; r.ok := o.ok;
        r.retry_after := o.retry_after; r.retry_at := o.retry_at; r.remaining := o.remaining;
        r.capacity := o.capacity; r.reset_at := o.reset_at; r.limited_by := o.limited_by;
        r.hold := CASE WHEN o.ok AND a.changed THEN given.id END;
        -- As if it held them: a dry run admits more than the limit has, and an exempt key has no limit.
        r.held := CASE WHEN o.ok AND NOT (a.changed AND (a.d).ok) THEN greatest(a.count, (a.h).count)
                       ELSE coalesce((a.h).count, 0) END;
        r.expires_at := CASE WHEN NOT o.ok OR a.changed
            THEN ratelimit._shown(ratelimit._us(coalesce((a.h).expires_at, a.ends))) END;
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
    IF rest = live THEN RETURN ratelimit._level(l, s, now); END IF;
    s.leases := rest;
    d := ratelimit._level(l, s, now);
    d.changed := true;
    d.state := ROW(cardinality(rest) / 2, greatest(s.ts, now), NULL, NULL, NULL, rest)::ratelimit._state;
    RETURN d;
END
$$;

@rl_settle_all@ LANGUAGE plpgsql ROWS 10 AS $$
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
    FOR field, given IN SELECT u.* FROM jsonb_each(CASE jsonb_typeof(used) WHEN 'object' THEN used
                                                   ELSE jsonb_build_object('', used) END) u WHERE used IS NOT NULL LOOP
        IF jsonb_typeof(given) <> 'number' THEN
            PERFORM ratelimit._bad('used', replace(ratelimit._type_of(given), 'empty ', '')
                || CASE jsonb_typeof(used) WHEN 'object' THEN ' for ' || to_json(ratelimit._short(field)) ELSE '' END,
                allowed);
        ELSIF abs(given::numeric) > 1.7976931348623158e308 THEN
            PERFORM ratelimit._bad('used', 'too large', allowed);
        END IF;
        PERFORM ratelimit._check_used(ratelimit._float(given::numeric));
    END LOOP;
    IF hold IS NOT NULL THEN PERFORM ratelimit._writable('rl_settle_all'), ratelimit._attend(); END IF;
    SELECT array_agg(x.name ORDER BY x.name, x.key), array_agg(x.key ORDER BY x.name, x.key) INTO names, keys
    FROM ONLY ratelimit.rl_holds x WHERE x.id = $1;
    IF names IS NULL AND hold IS NOT NULL THEN PERFORM ratelimit._no_hold(); END IF;
    FOR i IN 1..coalesce(cardinality(names), 0) LOOP
        given := CASE jsonb_typeof(used) WHEN 'object' THEN used -> names[i] ELSE used END;
        d := ratelimit._settle('rl_settle_all', hold, names[i], keys[i], ratelimit._float(given::numeric));
        CONTINUE WHEN d.ok IS NULL;
        a := ratelimit._answer(d);
        r.name := names[i]; r.key := keys[i]; r.retry_after := a.retry_after; r.retry_at := a.retry_at;
        r.remaining := a.remaining; r.capacity := a.capacity; r.reset_at := a.reset_at;
        RETURN NEXT r;
    END LOOP;
END
$$;

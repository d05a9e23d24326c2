-- Holds of one limit, and their settlement. A hold's row is written under the lock of its key's row.

-- Microseconds of an interval; a month is 30 days, as in PostgreSQL's comparisons of intervals.
CREATE OR REPLACE FUNCTION ratelimit._micros(span interval) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
    SELECT ((extract(year FROM span) * 360 + extract(month FROM span) * 30 + extract(day FROM span)) * 86400000000
            + extract(epoch FROM span - date_trunc('day', span)) * 1000000)::bigint
$$;

-- Checks the arguments that all holds have.
CREATE OR REPLACE FUNCTION ratelimit._check_terms(ttl interval, id text, on_expiry text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF ttl IS NULL THEN
        PERFORM ratelimit._null('ttl');
    ELSIF NOT ttl BETWEEN interval '1 millisecond' AND interval '366 days' THEN
        PERFORM ratelimit._bad('ttl', CASE WHEN ttl < interval '0' THEN 'negative'
                WHEN ttl < interval '1 day' THEN 'less than 1 millisecond' ELSE 'longer than 366 days' END,
            'an interval from 1 millisecond to 366 days');
    ELSIF octet_length(id) NOT BETWEEN 1 AND 200 THEN
        PERFORM ratelimit._bad('id', octet_length(id) || ' bytes long', '1 to 200 bytes, or NULL');
    ELSIF on_expiry IS NULL THEN
        PERFORM ratelimit._null('on_expiry');
    ELSIF on_expiry NOT IN ('refund', 'charge') THEN
        PERFORM ratelimit._bad('on_expiry', ratelimit._literal(ratelimit._short(on_expiry)), 'refund or charge');
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._check_used(used double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (used >= 0 AND used <= 1e15) THEN
        PERFORM ratelimit._bad('used', ratelimit._digits(used), 'a number from 0 to 1e15, or NULL');
    END IF;
END
$$;

-- What a hold has of a limit; NULLs if that is nothing. In the order of the primary key, which stops at the first: the
-- other index would find all holds of the key, and is what a plan takes that was made while the table was empty.
CREATE OR REPLACE FUNCTION ratelimit._hold_of(id text, name text, key text) RETURNS ratelimit._hold
STABLE LANGUAGE plpgsql AS $$
DECLARE
    h ratelimit._hold;
BEGIN
    IF id IS NOT NULL THEN
        SELECT x.id, x.name, x.key, x.count, x.spent, x.returned, x.taken_at, x.expires_at, x.charge, x.lease,
               x.config INTO h
        FROM ONLY ratelimit.rl_holds x WHERE x.id = $1 AND (x.name, x.key) >= ($2, $3)
        ORDER BY x.id, x.name, x.key LIMIT 1;
        IF (h.name, h.key) IS DISTINCT FROM ($2, $3) THEN
            h := NULL;
        ELSE
            PERFORM ratelimit._returnable(h.name, h.count, h.spent, h.returned, h.taken_at, h.expires_at);
        END IF;
    END IF;
    RETURN h;
END
$$;

-- The answer to a call that takes nothing.
CREATE OR REPLACE FUNCTION ratelimit._untouched(l ratelimit._limit, s ratelimit._state, now bigint)
RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision := ratelimit._level(l, s, now);
BEGIN
    d.ok := true; d.wait := NULL; d.at := now; d.capacity := l.capacity; d.enforced := l.enforce; d.changed := false;
    d.taken := 0;
    RETURN d;
END
$$;

-- Decides a hold of more tokens than it has, or of no more: then the start of a reservation stays.
CREATE OR REPLACE FUNCTION ratelimit._decide_hold(l ratelimit._limit, s ratelimit._state, now bigint, h ratelimit._hold,
    more double precision, at_least double precision, reserve boolean) RETURNS ratelimit._decision STABLE
LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    start CONSTANT bigint := ratelimit._us(h.taken_at);
BEGIN
    IF h.id IS NOT NULL AND more = 0 THEN
        d := ratelimit._untouched(l, s, now);
        IF start > ratelimit._present(l, s, now) THEN d.wait := start - now; END IF;
        RETURN d;
    END IF;
    IF at_least IS NOT NULL THEN RETURN ratelimit._decide_as_many(l, s, now, more, at_least, reserve); END IF;
    d := ratelimit._decide(l, s, now, more, reserve);
    d.taken := CASE WHEN d.ok THEN more ELSE 0 END;
    RETURN d;
END
$$;

-- The hold after a take of taken tokens, of those that it wanted in all, which left a state; wait: until they are
-- there, of a reservation.
CREATE OR REPLACE FUNCTION ratelimit._grown(h ratelimit._hold, l ratelimit._limit, after ratelimit._state, now bigint,
    taken double precision, wait bigint, wanted double precision, given jsonb, ttl bigint) RETURNS ratelimit._hold
STABLE LANGUAGE plpgsql AS $$
DECLARE
    had CONSTANT double precision := coalesce(h.count, 0);
    -- The clock may be behind the state.
    present CONSTANT bigint := greatest(now, after.ts);
    start CONSTANT bigint := greatest(present, ratelimit._plus(now, coalesce(wait, 0)));
    early double precision := 0;
    since bigint := after.ts;
BEGIN
    IF start > present AND l.kind = 'fixed window' THEN
        since := (ratelimit._refilled(l, after, start)).ts;
        early := -(ratelimit._refilled(l, after, start - 1)).tokens;
        -- Those of windows before that of its start: others move up in these once an earlier reservation is given back,
        -- so it isn't known which are left of them.
        early := CASE WHEN early > 0 THEN taken - least(early, taken) ELSE 0 END;
    END IF;
    IF h.count IS NULL THEN
        h.spent := 0;
        h.config := given;
    ELSIF taken > 0 AND l.kind = 'fixed window' AND since > ratelimit._us(h.taken_at) THEN
        h.spent := had; -- its window has ended
    END IF;
    IF h.count IS NULL OR taken > 0 AND (h.spent = had OR start > present) THEN
        h.taken_at := ratelimit._nearest(start);
    END IF;
    h.spent := h.spent + early;
    -- A sum may miss it by its last bit.
    h.count := greatest(had + taken, CASE WHEN taken = greatest(wanted - had, 0) THEN wanted END);
    h.returned := 0;
    h.expires_at := greatest(h.expires_at, ratelimit._nearest(ratelimit._plus(now + coalesce(wait, 0), ttl)));
    RETURN h;
END
$$;

-- Writes a hold, unless a trigger keeps or changes it.
CREATE OR REPLACE FUNCTION ratelimit._write_hold(h ratelimit._hold) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    written record;
BEGIN
    INSERT INTO ratelimit.rl_holds AS x (id, name, key, count, spent, returned, taken_at, expires_at, charge,
        lease, config)
    VALUES (h.id, h.name, h.key, h.count, h.spent, h.returned, h.taken_at, h.expires_at, h.charge, h.lease,
        h.config)
    ON CONFLICT ON CONSTRAINT rl_holds_pkey DO UPDATE SET count = excluded.count, spent = excluded.spent,
        returned = excluded.returned, taken_at = excluded.taken_at,
        expires_at = excluded.expires_at, charge = excluded.charge, lease = excluded.lease, config = excluded.config
    RETURNING x.id = h.id AND x.name = h.name AND x.key = h.key, x.count, x.spent, x.returned, x.taken_at,
        x.expires_at, x.charge, x.lease INTO written;
    IF NOT FOUND OR written IS DISTINCT FROM (true, h.count, h.spent, h.returned, h.taken_at, h.expires_at,
                                              h.charge, h.lease) THEN
        PERFORM ratelimit._not_written('rl_holds');
    END IF;
END
$$;

-- Decides a hold without a lock, on definition, block, row and holds of one moment; unknown: the number of holds that
-- have expired since the row was written.
CREATE OR REPLACE FUNCTION ratelimit._peek_hold(name text, key text, count double precision, at_least double precision,
    reserve boolean, config jsonb, terms ratelimit._hold, OUT l ratelimit._limit, OUT d ratelimit._decision,
    OUT h ratelimit._hold, OUT unknown int) STABLE LANGUAGE plpgsql AS $$
DECLARE
    stored record;
    now bigint;
    blocked boolean;
    due boolean;
    s ratelimit._state;
    more double precision;
    fewest double precision;
    p record;
BEGIN
    SELECT f.* INTO stored FROM ratelimit._look_up($1, $2) f;
    l := ratelimit._usable('rl_hold', name, key, stored.defined, config, count);
    PERFORM ratelimit._check_at_least(at_least, count);
    IF l.kind <> 'unlimited' THEN PERFORM ratelimit._writable('rl_hold'); END IF;
    now := ratelimit._now();
    blocked := coalesce(ratelimit._us(stored.until) > now, false);
    due := ratelimit._is_due(l, stored.r, now);
    s := ratelimit._state_of(l, stored.r, now);
    h := ratelimit._kept(ratelimit._hold_of(terms.id, name, key), l, s, now, (stored.r).kind);
    unknown := 0;
    FOR try IN 1..2 LOOP
        more := greatest(count - coalesce(h.count, 0), 0);
        fewest := CASE WHEN at_least IS NOT NULL THEN greatest(at_least - coalesce(h.count, 0), 0) END;
        IF blocked THEN
            d := ratelimit._look(l, s, now, stored.until, more, reserve, true, fewest);
            -- It has all that it asks for.
            IF more = 0 AND h.id IS NOT NULL AND NOT d.forever THEN d.wait := ratelimit._us(stored.until) - now; END IF;
            -- A block reads no other holds, unless one that expires lets the call pass sooner.
            IF (stored.r).holds_due IS NULL OR (d.forever OR d.wait = ratelimit._us(stored.until) - now)
                AND NOT (due AND coalesce(NOT h.charge AND h.expires_at <= ratelimit._instant(now), false)) THEN
                RETURN;
            END IF;
        ELSIF NOT due THEN
            d := ratelimit._decide_hold(l, s, now, h, more, fewest, reserve);
            IF d.ok OR NOT d.enforced OR (stored.r).holds_due IS NULL THEN RETURN; END IF;
        END IF;
        IF due THEN
            due := false;
            p := ratelimit._lapse(l, stored.r, now);
            stored.r := p.r;
            unknown := cardinality(p.ids);
            h := ratelimit._lapsed(h, p.ids, p.came);
            s := ratelimit._state_of(l, stored.r, now);
            CONTINUE;
        END IF;
        d := ratelimit._sooner(d, l, stored.r, now, CASE WHEN blocked THEN stored.until END, more, reserve, fewest);
        RETURN;
    END LOOP;
END
$$;

-- Takes a hold of one limit, or extends it. A plain read decides first, as in _change; then under the row's lock.
CREATE OR REPLACE FUNCTION ratelimit._hold(name text, key text, count double precision, at_least double precision,
    reserve boolean, config jsonb, terms ratelimit._hold, ttl bigint, OUT d ratelimit._decision, OUT h ratelimit._hold,
    OUT held double precision) LANGUAGE plpgsql AS $$
DECLARE
    p record;
    l ratelimit._limit;
    r ratelimit._row;
    now bigint;
    s ratelimit._state;
    more double precision;
    fewest double precision;
BEGIN
    PERFORM ratelimit._attend();
    p := ratelimit._peek_hold(name, key, count, at_least, reserve, config, terms);
    l := p.l; d := p.d; h := p.h;
    IF d.ok AND l.kind = 'unlimited' THEN
        h := NULL;
        held := count;
        RETURN;
    END IF;
    FOR try IN 1..1000 LOOP
        -- A dry run extends a hold that it doesn't have more tokens for.
        EXIT WHEN d.limited_by = 'block' OR NOT d.ok AND (d.enforced OR h.id IS NULL);
        r := ratelimit._lock(name, key);
        now := ratelimit._now();
        IF r.shard IS NULL THEN
            PERFORM ratelimit._make_row(name, key);
            CONTINUE;
        ELSIF ratelimit._is_due(l, r, now) THEN
            PERFORM ratelimit._expire(l, name, key);
            CONTINUE;
        END IF;
        s := ratelimit._state_of(l, r, now);
        h := ratelimit._kept(ratelimit._hold_of(terms.id, name, key), l, s, now, r.kind);
        more := greatest(count - coalesce(h.count, 0), 0);
        fewest := CASE WHEN at_least IS NOT NULL THEN greatest(at_least - coalesce(h.count, 0), 0) END;
        d := ratelimit._decide_hold(l, s, now, h, more, fewest, reserve);
        IF NOT d.ok AND (d.enforced OR h.id IS NULL) THEN
            IF d.enforced AND r.holds_due IS NOT NULL THEN
                d := ratelimit._sooner(d, l, r, now, NULL, more, reserve, fewest);
            END IF;
            CONTINUE;
        END IF;
        h := ratelimit._write_taken(r, h, l, s, d, now, count, terms, ttl);
        -- A dry run lets all pass, whatever the limit has.
        held := CASE WHEN d.enforced THEN h.count ELSE greatest(count, h.count) END;
        d := ratelimit._logged(name, d);
        RETURN;
    END LOOP;
    IF d.ok THEN PERFORM ratelimit._not_written(); END IF;
    IF p.unknown > 100 AND d.limited_by IS DISTINCT FROM 'block' THEN PERFORM ratelimit._expire(l, name, key); END IF;
    held := coalesce(h.count, 0);
    d := ratelimit._logged(name, d);
    IF d.ok THEN held := greatest(count, held); END IF; -- a dry run
END
$$;

-- A hold where a limit may still have what it holds: not one of slots, nor of a state of another kind, nor of one that
-- is ignored.
CREATE OR REPLACE FUNCTION ratelimit._kept(h ratelimit._hold, l ratelimit._limit, s ratelimit._state, now bigint,
    kind "char") RETURNS ratelimit._hold STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF l.kind = 'unlimited' OR h.lease IS NOT NULL
        OR ratelimit._has_state(kind) AND (kind <> l.letter OR ratelimit._ignores(l, s, now)) THEN
        RETURN NULL;
    END IF;
    RETURN h;
END
$$;

-- Writes the hold of a take that passes, and the key's row, which is locked.
CREATE OR REPLACE FUNCTION ratelimit._write_taken(r ratelimit._row, h ratelimit._hold, l ratelimit._limit,
    s ratelimit._state, d ratelimit._decision, now bigint, count double precision, terms ratelimit._hold, ttl bigint)
RETURNS ratelimit._hold LANGUAGE plpgsql AS $$
DECLARE
    anew CONSTANT boolean := ratelimit._begins_anew(l, r, now);
    first timestamptz := CASE WHEN NOT anew THEN r.holds_due END;
    after CONSTANT ratelimit._state := CASE WHEN d.changed THEN ratelimit._left(d)
                                            ELSE ratelimit._current(l, s, now) END;
BEGIN
    h := ratelimit._grown(h, l, after, now, CASE WHEN d.ok THEN d.taken ELSE 0 END, CASE WHEN d.ok THEN d.wait END,
                          count, terms.config, ttl);
    h.id := coalesce(terms.id, gen_random_uuid()::text);
    h.name := r.name; h.key := r.key; h.charge := coalesce(h.charge, terms.charge);
    IF NOT h.charge AND h.count > h.spent THEN first := least(first, h.expires_at); END IF;
    IF d.changed OR NOT anew AND first IS DISTINCT FROM r.holds_due THEN
        r.holds_due := first;
        IF d.changed THEN r := ratelimit._row_with(r, l, after); END IF;
        PERFORM ratelimit._write_row(r);
    END IF;
    PERFORM ratelimit._write_hold(h);
    RETURN h;
END
$$;

-- Checks the least that a hold is to have.
CREATE OR REPLACE FUNCTION ratelimit._check_at_least(at_least double precision, count double precision) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (at_least >= 0 AND at_least <= count) THEN
        PERFORM ratelimit._bad('at_least', ratelimit._digits(at_least),
            'a number from 0 to count, which is ' || ratelimit._digits(count));
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_hold(name text, key text DEFAULT '', count double precision DEFAULT 1,
    ttl interval DEFAULT '10 minutes', id text DEFAULT NULL, at_least double precision DEFAULT NULL,
    on_expiry text DEFAULT 'refund', reserve boolean DEFAULT false, throws boolean DEFAULT false,
    config jsonb DEFAULT NULL) RETURNS ratelimit.rl_hold_result LANGUAGE plpgsql AS $$
DECLARE
    terms ratelimit._hold;
    found_hold record;
    a ratelimit.rl_result;
    r ratelimit.rl_hold_result;
BEGIN
    PERFORM ratelimit._check(name, key, count, reserve, throws), ratelimit._check_terms(ttl, id, on_expiry);
    terms.id := id;
    terms.charge := on_expiry = 'charge';
    IF config IS NOT NULL THEN
        PERFORM ratelimit._attend();
        terms.config := CASE WHEN (ratelimit._defined(name, key)).kind IS NULL THEN config END;
    END IF;
    found_hold := ratelimit._hold(name, key, count, at_least, reserve, config, terms, ratelimit._micros(ttl));
    IF throws AND NOT (found_hold.d).ok THEN PERFORM ratelimit._denied(name, found_hold.d); END IF;
    a := ratelimit._answer(found_hold.d);
    r.ok := a.ok; r.hold := (found_hold.h).id; r.held := found_hold.held;
    r.expires_at := ratelimit._shown(ratelimit._us((found_hold.h).expires_at));
    r.retry_after := a.retry_after; r.retry_at := a.retry_at; r.remaining := a.remaining; r.capacity := a.capacity;
    r.reset_at := a.reset_at; r.limited_by := a.limited_by;
    RETURN r;
END
$$;

-- Locks a key's row, or inserts it first, and gives back what has expired, to a limit that has holds.
CREATE OR REPLACE FUNCTION ratelimit._locked(l ratelimit._limit, name text, key text, OUT r ratelimit._row,
    OUT now bigint) LANGUAGE plpgsql AS $$
BEGIN
    FOR try IN 1..100 LOOP
        r := ratelimit._lock(name, key);
        now := ratelimit._now();
        IF r.shard IS NULL THEN
            PERFORM ratelimit._make_row(name, key);
        ELSIF ratelimit._is_due(l, r, now) THEN
            PERFORM ratelimit._expire(l, name, key);
        ELSE
            RETURN;
        END IF;
    END LOOP;
    PERFORM ratelimit._not_written();
END
$$;

-- Settles what a hold has of a limit, under the row's lock. Without a result: it has nothing there any more.
CREATE OR REPLACE FUNCTION ratelimit._settle(id text, name text, key text, used double precision)
RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE
    h ratelimit._hold := ratelimit._hold_of(id, name, key);
    l CONSTANT ratelimit._limit := ratelimit._limit_of(ratelimit._defined(name, key), h.config);
    -- Where the limit is exempt or of another kind by now, nothing comes back or is taken.
    fits CONSTANT boolean := CASE WHEN h.lease IS NOT NULL THEN coalesce(l.kind = 'concurrency', false)
                                  ELSE ratelimit._returns(l) END;
    locked record;
    s ratelimit._state;
    d ratelimit._decision;
BEGIN
    IF fits THEN
        locked := ratelimit._locked(l, name, key);
    ELSE
        PERFORM FROM ONLY ratelimit.rateLimits r WHERE r.name = $2 AND r.key = $3 FOR UPDATE;
    END IF;
    FOR try IN 1..100 LOOP
        DELETE FROM ONLY ratelimit.rl_holds x WHERE (x.name, x.key) = ($2, $3) AND x.ctid = (
            SELECT y.ctid FROM ONLY ratelimit.rl_holds y WHERE y.id = $1 AND (y.name, y.key) >= ($2, $3)
            ORDER BY y.id, y.name, y.key LIMIT 1)
        RETURNING x.id, x.name, x.key, x.count, x.spent, x.returned, x.taken_at, x.expires_at, x.charge,
            x.lease, x.config INTO h;
        EXIT WHEN FOUND;
        -- Unless it has changed since: it may have no row to lock.
        IF (ratelimit._hold_of($1, $2, $3)).id IS NULL THEN RETURN NULL; END IF;
        IF try = 100 THEN PERFORM ratelimit._not_written('rl_holds'); END IF;
    END LOOP;
    IF NOT fits THEN
        IF NOT h.charge AND h.count > h.spent AND h.expires_at <= ratelimit._instant(ratelimit._now()) THEN
            -- It has come back, and waits for a limit that has holds again; its new id is known to no caller.
            h.id := gen_random_uuid()::text;
            PERFORM ratelimit._write_hold(h);
        END IF;
        IF l.kind IS NULL THEN
            d.ok := true;
            RETURN d;
        END IF;
        SELECT f.r, ratelimit._now() AS now INTO locked FROM ratelimit._look_up($2, $3) f;
        RETURN ratelimit._untouched(l, ratelimit._state_of(l, locked.r, locked.now), locked.now);
    END IF;
    -- It may have waited for the hold.
    IF ratelimit._now() - locked.now >= 1000 THEN locked := ratelimit._locked(l, name, key); END IF;
    s := ratelimit._state_of(l, locked.r, locked.now);
    -- As after a reset.
    IF ratelimit._ignores(l, s, locked.now) THEN RETURN NULL; END IF;
    used := coalesce(used, h.count + h.returned);
    IF l.kind = 'concurrency' THEN
        d := ratelimit._free(l, s, locked.now, h.lease);
    ELSIF used > h.count THEN
        d := ratelimit._credit(l, s, locked.now, h.count - used, NULL);
    ELSE
        d := ratelimit._credit(l, s, locked.now, h.count - greatest(used, h.spent), h.taken_at);
    END IF;
    IF d.changed THEN PERFORM ratelimit._write_row(ratelimit._row_with(locked.r, l, ratelimit._left(d))); END IF;
    RETURN d;
END
$$;

-- Above READ COMMITTED, refuses to say that there is no such hold if a transaction has committed since the snapshot: it
-- can have made the hold.
CREATE OR REPLACE FUNCTION ratelimit._no_hold() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    seen pg_snapshot;
    xid bigint;
    newer boolean;
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN RETURN; END IF;
    seen := pg_current_snapshot();
    xid := pg_snapshot_xmax(seen)::text::bigint;
    newer := EXISTS (SELECT FROM pg_snapshot_xip(seen) x WHERE pg_xact_status(x) = 'committed');
    WHILE NOT newer LOOP
        BEGIN
            newer := pg_xact_status(xid::text::xid8) = 'committed';
            xid := xid + 1;
        EXCEPTION WHEN invalid_parameter_value THEN
            RETURN; -- no transaction has it yet
        END;
    END LOOP;
    PERFORM ratelimit._raise('40001', 'the hold may have been made since the snapshot of the transaction', NULL,
        'Repeat the transaction, or settle holds at READ COMMITTED.');
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_settle(hold text, used double precision DEFAULT NULL)
RETURNS ratelimit.rl_result LANGUAGE plpgsql AS $$
DECLARE
    names text[];
    keys text[];
    d ratelimit._decision;
    r ratelimit.rl_result;
BEGIN
    PERFORM ratelimit._check_used(used);
    IF hold IS NOT NULL THEN PERFORM ratelimit._writable('rl_settle'), ratelimit._attend(); END IF;
    SELECT array_agg(x.name), array_agg(x.key) INTO names, keys FROM ONLY ratelimit.rl_holds x WHERE x.id = $1;
    IF cardinality(names) > 1 THEN
        PERFORM ratelimit._raise('22023', format('the hold is of %s limits', cardinality(names)), NULL,
            'Settle all of them: SELECT * FROM ratelimit.rl_settle_all($1, ''{"llmTokens": 2750}'');');
    END IF;
    IF names IS NOT NULL THEN
        d := ratelimit._settle(hold, names[1], keys[1], used);
    ELSIF hold IS NOT NULL THEN
        PERFORM ratelimit._no_hold();
    END IF;
    IF d.ok THEN RETURN ratelimit._answer(d); END IF;
    r.ok := hold IS NULL; -- that of an exempt key: there is nothing to settle
    RETURN r;
END
$$;

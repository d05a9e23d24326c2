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

-- Reads what a hold has of a limit; NULLs if that is nothing. In the order of the primary key, which ends at the first.
-- The other index would find all holds of the key; a plan that was made while the table was empty takes that.
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

-- Decides a hold: takes what it lacks of the tokens or slots that are asked for, or if that is nothing, keeps the start
-- of a reservation.
CREATE OR REPLACE FUNCTION ratelimit._decide_hold(a ratelimit._ask, now bigint) RETURNS ratelimit._ask STABLE
LANGUAGE plpgsql AS $$
DECLARE
    live bigint[];
BEGIN
    -- Tokens of a state of another kind, or of an ignored one, are gone.
    IF (a.l).kind = 'unlimited' OR ratelimit._is_anew(a.l, a.r, now) THEN a.h := NULL; END IF;
    -- One of tokens means nothing to slots, nor one of slots to tokens, but a denial shows its end.
    a.ends := NULL;
    IF ((a.l).kind = 'concurrency') <> ((a.h).lease IS NOT NULL) THEN
        a.ends := (a.h).expires_at;
        a.h := NULL;
    END IF;
    IF (a.l).kind = 'concurrency' THEN
        a.d := ratelimit._acquire(a.l, a.s, now, a.count, coalesce((a.h).lease, ratelimit._random_id()),
                                  ratelimit._plus(now, a.ttl));
        IF (a.h).id IS NOT NULL THEN
            live := ratelimit._live((a.s).leases, now);
            a.h.count := (SELECT count(*) FROM generate_series(1, cardinality(live), 2) i WHERE live[i] = (a.h).lease);
        END IF;
    ELSE
        a.more := greatest(a.count - coalesce((a.h).count, 0), 0);
        a.fewest := CASE WHEN a.at_least IS NOT NULL THEN greatest(a.at_least - coalesce((a.h).count, 0), 0) END;
        IF (a.h).id IS NOT NULL AND a.more = 0 THEN
            a.d := ratelimit._level(a.l, a.s, now);
            IF ratelimit._us((a.h).taken_at) > ratelimit._present(a.l, a.s, now) THEN
                a.d.wait := ratelimit._us((a.h).taken_at) - now;
            END IF;
        ELSE
            a.d := ratelimit._decide(a.l, a.s, now, a.more, a.reserve, NULL, a.fewest);
            IF a.fewest IS NULL THEN a.d.taken := CASE WHEN (a.d).ok THEN a.more ELSE 0 END; END IF;
        END IF;
    END IF;
    a.changed := (a.l).kind <> 'unlimited' AND ((a.d).ok OR NOT (a.d).enforced AND (a.h).id IS NOT NULL);
    RETURN a;
END
$$;

-- A hold after an ask that passes, or that a dry run admits: then it is only extended.
CREATE OR REPLACE FUNCTION ratelimit._grown(a ratelimit._ask, now bigint) RETURNS ratelimit._hold STABLE
LANGUAGE plpgsql AS $$
DECLARE
    l CONSTANT ratelimit._limit := a.l;
    d CONSTANT ratelimit._decision := a.d;
    h ratelimit._hold := a.h;
    had double precision;
    taken CONSTANT double precision := CASE WHEN d.ok THEN d.taken ELSE 0 END;
    wait CONSTANT bigint := coalesce(CASE WHEN d.ok THEN d.wait END, 0); -- until they are there, of a reservation
    after ratelimit._state;
    present bigint;
    start bigint;
    early double precision := 0;
    since bigint;
BEGIN
    h.id := coalesce(a.id, gen_random_uuid()::text); h.name := a.name; h.key := a.key;
    IF l.kind = 'concurrency' AND d.taken > 0 THEN
        h.lease := coalesce(h.lease, d.lease);
        h.taken_at := coalesce(h.taken_at, ratelimit._nearest(now));
        h.count := d.taken; h.spent := d.taken; h.returned := 0; h.charge := false; h.config := a.given;
        h.expires_at := greatest(h.expires_at, ratelimit._nearest(ratelimit._plus(now, a.ttl)));
        RETURN h;
    ELSIF l.kind = 'concurrency' THEN
        IF d.taken <= 0 THEN h.count := greatest(h.count, h.spent); END IF; -- slots that have expired stay in it
    ELSE
        after := CASE WHEN d.changed THEN d.state ELSE ratelimit._current(l, a.s, now) END;
    END IF;
    had := coalesce(h.count, 0);
    present := greatest(now, after.ts); -- the clock may be behind the state
    start := greatest(present, ratelimit._plus(now, wait));
    since := after.ts;
    IF start > present AND l.kind = 'fixed window' THEN
        since := (ratelimit._refilled(l, after, start)).ts;
        early := -(ratelimit._refilled(l, after, start - 1)).tokens;
        -- Tokens of the windows before the start: later reservations move up into these windows once an earlier one is
        -- given back, so it isn't known which are left.
        early := CASE WHEN early > 0 THEN taken - least(early, taken) ELSE 0 END;
    END IF;
    IF h.count IS NULL THEN
        h.spent := 0; h.config := a.given; h.charge := a.charge;
    ELSIF taken > 0 AND l.kind = 'fixed window' AND since > ratelimit._us(h.taken_at) THEN
        h.spent := had; -- its window has ended
    END IF;
    IF h.count IS NULL OR taken > 0 AND (h.spent = had OR start > present) THEN
        h.taken_at := ratelimit._nearest(start);
    END IF;
    h.spent := h.spent + early;
    -- A sum may miss it by its last bit.
    h.count := greatest(had + taken, CASE WHEN taken = greatest(a.count - had, 0) THEN a.count END);
    h.returned := 0;
    h.expires_at := greatest(h.expires_at, ratelimit._nearest(ratelimit._plus(now + wait, a.ttl)));
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

@rl_hold@ LANGUAGE plpgsql AS $$
DECLARE
    asked ratelimit._ask;
    d ratelimit._decision;
    h ratelimit._hold;
    ends bigint;
    a ratelimit.rl_result;
    r ratelimit.rl_hold_result;
BEGIN
    PERFORM ratelimit._check(name, key, count, reserve, throws), ratelimit._check_terms(ttl, id, on_expiry);
    asked := ratelimit._one(ratelimit._ask('rl_hold', 'hold', name, key, count, reserve, config,
        at_least => at_least, id => id, ttl => ratelimit._micros(ttl), charge => on_expiry = 'charge'));
    d := asked.d;
    h := asked.h;
    IF throws AND NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
    a := ratelimit._answer(d);
    r.ok := a.ok; r.hold := h.id;
    -- A dry run lets all pass, whatever the limit has, and an exempt key holds nothing.
    r.held := CASE WHEN d.ok AND NOT (d.enforced AND asked.changed) THEN greatest(count, h.count)
                   ELSE coalesce(h.count, 0) END;
    ends := ratelimit._us(h.expires_at);
    r.expires_at := ratelimit._shown(ends);
    r.retry_after := a.retry_after; r.retry_at := a.retry_at; r.remaining := a.remaining; r.capacity := a.capacity;
    r.reset_at := a.reset_at; r.limited_by := a.limited_by;
    RETURN r;
END
$$;

-- Deletes a hold, and returns it; NULLs if there is none any more.
CREATE OR REPLACE FUNCTION ratelimit._take_out(id text, name text, key text) RETURNS ratelimit._hold
LANGUAGE plpgsql AS $$
DECLARE
    h ratelimit._hold;
BEGIN
    FOR try IN 1..100 LOOP
        DELETE FROM ONLY ratelimit.rl_holds x WHERE (x.name, x.key) = ($2, $3) AND x.ctid = (
            SELECT y.ctid FROM ONLY ratelimit.rl_holds y WHERE y.id = $1 AND (y.name, y.key) >= ($2, $3)
            ORDER BY y.id, y.name, y.key LIMIT 1)
        RETURNING x.id, x.name, x.key, x.count, x.spent, x.returned, x.taken_at, x.expires_at, x.charge,
            x.lease, x.config INTO h;
        IF FOUND THEN RETURN h; END IF;
        -- Unless it has changed since: it may have no row to lock.
        IF (ratelimit._hold_of($1, $2, $3)).id IS NULL THEN RETURN NULL; END IF;
    END LOOP;
    PERFORM ratelimit._not_written('rl_holds');
    RETURN NULL;
END
$$;

-- Settles what a hold has of a limit. Without a result: it has nothing there any more.
CREATE OR REPLACE FUNCTION ratelimit._settle(function text, id text, name text, key text, used double precision)
RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE
    h ratelimit._hold := ratelimit._hold_of(id, name, key);
    a ratelimit._ask := ratelimit._ask(function, 'settle', name, key, used, id => id);
    stored record;
    d ratelimit._decision;
BEGIN
    a.l := ratelimit._limit_of(ratelimit._defined(name, key), h.config);
    IF (CASE WHEN h.lease IS NOT NULL THEN (a.l).kind = 'concurrency' ELSE ratelimit._returns(a.l) END) THEN
        RETURN (ratelimit._one(a)).d;
    END IF;
    -- If the limit is exempt or of another kind by now, nothing comes back or is taken.
    PERFORM FROM ONLY ratelimit.rateLimits r WHERE r.name = $3 AND r.key = $4 FOR UPDATE;
    h := ratelimit._take_out(id, name, key);
    IF h.id IS NULL THEN RETURN NULL; END IF;
    IF NOT h.charge AND h.count > h.spent AND h.expires_at <= ratelimit._instant(ratelimit._now()) THEN
        -- It has come back, and waits for a limit that has holds again; its new id is known to no caller.
        h.id := gen_random_uuid()::text;
        PERFORM ratelimit._write_hold(h);
    END IF;
    IF (a.l).kind IS NULL THEN
        d.ok := true;
        RETURN d;
    END IF;
    SELECT f.r, ratelimit._now() AS now INTO stored FROM ratelimit._look_up($3, $4) f;
    RETURN ratelimit._level(a.l, ratelimit._state_of(a.l, stored.r, stored.now), stored.now);
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

@rl_settle@ LANGUAGE plpgsql AS $$
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
        d := ratelimit._settle('rl_settle', hold, names[1], keys[1], used);
    ELSIF hold IS NOT NULL THEN
        PERFORM ratelimit._no_hold();
    END IF;
    IF d.ok THEN RETURN ratelimit._answer(d); END IF;
    r.ok := hold IS NULL; -- NULL is the hold of an exempt key: there is nothing to settle
    RETURN r;
END
$$;

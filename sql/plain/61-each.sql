-- Lists of requests that are decided one by one. Those for one name and key are one ask: its row is locked and written
-- once, and each is decided on what those before it have left.

-- An error as the rows of rl_limit_each show it.
CREATE OR REPLACE FUNCTION ratelimit._error(code text, message text, detail text, hint text) RETURNS jsonb IMMUTABLE
LANGUAGE sql AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('code', code, 'message', message, 'detail', nullif(detail, ''),
                                                'hint', nullif(hint, '')))
$$;

-- Reads the requests of one name and key into an ask; ns: their places. It lists wrong ones, with their errors.
CREATE OR REPLACE FUNCTION ratelimit._ask_of(INOUT a ratelimit._ask, requests jsonb[], ns int[],
    OUT wrong ratelimit.rl_limit_all_result[]) LANGUAGE plpgsql AS $$
DECLARE
    defined CONSTANT ratelimit._limit := a.l;
    o ratelimit.rl_limit_all_result;
    code text; message text; detail text; hint text;
BEGIN
    FOR i IN 1..cardinality(ns) LOOP
        BEGIN
            PERFORM ratelimit._check_request(requests[i]);
            PERFORM ratelimit._check(a.name, coalesce(a.key, ''));
            a := ratelimit._with_request(a, requests[i], ns[i], defined);
        EXCEPTION WHEN invalid_parameter_value OR null_value_not_allowed OR undefined_object OR insufficient_privilege
            OR feature_not_supported THEN
            GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
                hint = PG_EXCEPTION_HINT;
            o.n := ns[i]; o.ok := false; o.error := ratelimit._error(code, message, detail, hint);
            o.name := CASE jsonb_typeof(requests[i] -> 'name') WHEN 'string' THEN requests[i] ->> 'name' END;
            o.key := CASE jsonb_typeof(coalesce(requests[i] -> 'key', '""')) WHEN 'string' THEN a.key END;
            IF jsonb_typeof(requests[i]) <> 'object' THEN o.key := NULL; END IF;
            wrong := wrong || o;
        END;
    END LOOP;
END
$$;

-- Decides the requests of an ask in turn, at an instant: d is the last decision that changes the row, r the row before
-- the first. Without its lock, the rest after that is not known yet, unless there is no row; if the row isn't free, all
-- are decided as if none of them took anything. STABLE, so that the row and its holds are of one moment.
CREATE OR REPLACE FUNCTION ratelimit._in_turn(a ratelimit._ask, now bigint, is_free boolean DEFAULT true)
RETURNS ratelimit._ask STABLE LANGUAGE plpgsql AS $$
DECLARE
    x ratelimit._ask;
    decisions ratelimit._decision[];
    code text; message text; detail text; hint text;
BEGIN
    IF NOT is_free THEN a.locked := false; END IF;
    x := a; x.ns := NULL; x.counts := NULL; x.reserves := NULL;
    a.changed := false;
    a.d.changed := false;
    FOR i IN 1..cardinality(a.ns) LOOP
        x.count := a.counts[i];
        x.reserve := a.reserves[i];
        x := ratelimit._decided(x, now);
        decisions[i] := x.d;
        IF NOT a.changed THEN a.r := x.r; a.ids := x.ids; a.came := x.came; END IF;
        IF x.changed THEN a.d := x.d; a.changed := true; END IF;
        IF x.changed AND a.locked IS DISTINCT FROM false THEN
            EXIT WHEN a.locked IS NULL AND (a.r).shard IS NOT NULL;
            IF (x.r).holds_due IS NOT NULL AND ratelimit._is_anew(x.l, x.r, now) THEN x.r.holds_due := NULL; END IF;
            x.r := ratelimit._row_with(x.r, x.l, (x.d).state);
            x.r.shard := 0; -- as of a row that is there
        END IF;
    END LOOP;
    a.decisions := decisions;
    RETURN a;
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT;
    a.changed := false;
    a.error := ratelimit._error(code, message, detail, hint);
    RETURN a;
END
$$;

-- Locks the row of an ask, decides its requests again, and writes it. A row that isn't there is inserted as decided.
CREATE OR REPLACE FUNCTION ratelimit._take_in_turn(a ratelimit._ask) RETURNS ratelimit._ask LANGUAGE plpgsql AS $$
DECLARE
    now bigint := ratelimit._now();
BEGIN
    a.d.at := now; -- the decisions of many requests take a while
    IF (a.r).shard IS NULL AND ratelimit._inserted(a) THEN RETURN a; END IF;
    a := ratelimit._locked(a);
    now := ratelimit._now();
    a := ratelimit._in_turn(a, now);
    IF a.error IS NULL THEN a.h := ratelimit._write(a, now); END IF;
    RETURN a;
END
$$;

-- Takes what asks take, in their order. Its waits together last no longer than wait, each no longer than patience, both
-- in milliseconds; its lock_timeout ends with the function. busy: the place of an ask with a row that wasn't free by
-- then; nothing has been taken then.
CREATE OR REPLACE FUNCTION ratelimit._take_within(INOUT asks ratelimit._ask[], INOUT wait double precision,
    patience double precision, OUT busy int) LANGUAGE plpgsql SET lock_timeout = 0 AS $$
DECLARE
    given CONSTANT ratelimit._ask[] := asks;
    began timestamptz;
BEGIN
    FOR i IN 1..cardinality(asks) LOOP
        busy := i;
        began := clock_timestamp();
        PERFORM set_config('lock_timeout', ceil(greatest(least(wait, patience), 1))::text, true);
        asks[i] := ratelimit._take_in_turn(asks[i]);
        -- Without the work.
        wait := wait - greatest(extract(epoch FROM clock_timestamp() - began) * 1000 - 1, 0);
    END LOOP;
    busy := NULL;
EXCEPTION WHEN lock_not_available THEN
    asks := given;
    wait := wait - extract(epoch FROM clock_timestamp() - began) * 1000;
END
$$;

-- The rows of an ask's requests. Denials are logged.
CREATE OR REPLACE FUNCTION ratelimit._rows_in_turn(a ratelimit._ask, OUT rows ratelimit.rl_limit_all_result[])
LANGUAGE plpgsql AS $$
DECLARE
    decisions CONSTANT ratelimit._decision[] := a.decisions;
    busy CONSTANT jsonb := CASE WHEN a.locked = false THEN ratelimit._error('55P03',
        format('the row of rate limit "%s" is locked', a.name), NULL,
        'Call it again later, or with a longer lock_wait.') END;
    o ratelimit.rl_limit_all_result;
    d ratelimit._decision;
    r ratelimit.rl_result;
BEGIN
    FOR i IN 1..cardinality(a.ns) LOOP
        o := NULL;
        o.n := a.ns[i]; o.name := a.name; o.key := a.key; o.ok := false; o.error := a.error;
        IF a.error IS NULL THEN
            d := decisions[i];
            IF busy IS NOT NULL AND d.changed THEN
                o.error := busy;
            ELSE
                IF NOT d.ok THEN
                    PERFORM ratelimit._log_denial(a.name, d.enforced, d.wait);
                    IF NOT d.enforced THEN d.ok := true; d.wait := NULL; END IF;
                END IF;
                r := ratelimit._answer(d);
                o.ok := r.ok; o.retry_after := r.retry_after; o.retry_at := r.retry_at; o.remaining := r.remaining;
                o.capacity := r.capacity; o.reset_at := r.reset_at; o.limited_by := r.limited_by;
            END IF;
        END IF;
        rows[i] := o;
    END LOOP;
END
$$;

-- The keys of a list of requests, in the order in which rows are locked, with their definitions, blocks and rows, all
-- of one moment; ns: the places of the requests. plain: none of them can be wrong, if the limit is a usual one.
CREATE OR REPLACE FUNCTION ratelimit._each_key(requests jsonb) RETURNS TABLE (name text, key text, ns int[],
    counts double precision[], requests_of jsonb[], plain boolean, defined ratelimit._limit, until timestamptz,
    r ratelimit._row) STABLE LANGUAGE sql AS $$
    SELECT e.name, e.key, e.ns, e.counts, e.requests, e.plain, f.defined, f.until, f.r
    FROM (SELECT p.name, p.key, array_agg(p.n) AS ns, array_agg(p.count) AS counts, array_agg(p.r) AS requests,
                 bool_and(CASE WHEN p.count BETWEEN 0 AND 1e15
                     THEN p.r - '{name,key,count}'::text[] = '{}' AND jsonb_typeof(p.r -> 'name') = 'string'
                          AND jsonb_typeof(coalesce(p.r -> 'key', '""')) = 'string' ELSE false END) AS plain
          FROM (SELECT r ->> 'name' COLLATE "C" AS name, coalesce(r ->> 'key', '') COLLATE "C" AS key, r, n::int,
                       CASE WHEN jsonb_typeof(r) <> 'object' THEN NULL WHEN NOT r ? 'count' THEN 1
                            WHEN jsonb_typeof(r -> 'count') = 'number' THEN ratelimit._count(r) END AS count
                FROM jsonb_array_elements(requests) WITH ORDINALITY x(r, n) ORDER BY 1, 2, n) p
          GROUP BY 1, 2) e CROSS JOIN LATERAL ratelimit._look_up(e.name, e.key) f ORDER BY e.name, e.key
$$;

-- Takes asks with rows that weren't free, or have to be inserted: waits for each row in a block of its own, and inserts
-- the others in one, which it begins again without the one that another transaction is inserting. At most 32 blocks, 16
-- of them for rows, since a transaction with many subtransactions slows all sessions down.
CREATE OR REPLACE FUNCTION ratelimit._take_late(asks ratelimit._ask[], wait double precision, patience double precision)
RETURNS SETOF ratelimit._ask LANGUAGE plpgsql AS $$
DECLARE
    fresh ratelimit._ask[] := '{}'::ratelimit._ask[];
    taken ratelimit._ask[];
    a ratelimit._ask;
    busy int;
    blocks int := 0;
BEGIN
    FOREACH a IN ARRAY asks LOOP
        IF (a.r).shard IS NULL THEN
            fresh[cardinality(fresh) + 1] := a;
            CONTINUE;
        END IF;
        busy := 1;
        IF wait > 0 AND blocks < 16 THEN
            blocks := blocks + 1;
            SELECT t.asks, t.wait, t.busy INTO taken, wait, busy
            FROM ratelimit._take_within(ARRAY[a], wait, patience) t;
        END IF;
        RETURN NEXT CASE WHEN busy IS NULL THEN taken[1] ELSE ratelimit._in_turn(a, ratelimit._now(), false) END;
    END LOOP;
    WHILE cardinality(fresh) > 0 LOOP
        blocks := blocks + 1;
        SELECT t.asks, t.wait, t.busy INTO taken, wait, busy FROM ratelimit._take_within(fresh, wait, patience) t;
        IF busy IS NULL THEN
            RETURN QUERY SELECT t.* FROM unnest(taken) t;
            RETURN;
        ELSIF blocks >= 32 THEN
            FOREACH a IN ARRAY fresh LOOP RETURN NEXT ratelimit._in_turn(a, ratelimit._now(), false); END LOOP;
            RETURN;
        END IF;
        RETURN NEXT ratelimit._in_turn(fresh[busy], ratelimit._now(), false);
        fresh := fresh[:busy - 1] || fresh[busy + 1:];
    END LOOP;
END
$$;

@rl_limit_each@ LANGUAGE plpgsql ROWS 10 AS $$
DECLARE
    given CONSTANT ratelimit._ask := ratelimit._ask('rl_limit', 'take', NULL, NULL, 1);
    late ratelimit._ask[] := '{}'::ratelimit._ask[];
    outcomes ratelimit.rl_limit_all_result[];
    writable CONSTANT boolean := current_setting('transaction_read_only') = 'off';
    k record;
    locked record;
    l ratelimit._limit;
    tokens double precision;
    now bigint;
    at bigint;
    o ratelimit.rl_limit_all_result;
    x record;
    a ratelimit._ask;
    r ratelimit.rl_limit_all_result;
BEGIN
    IF requests IS NULL THEN
        PERFORM ratelimit._null('requests');
    ELSIF NOT (lock_wait >= interval '0' AND lock_wait < interval '106751991 days') THEN
        PERFORM ratelimit._bad('lock_wait', CASE WHEN lock_wait < interval '0' THEN 'negative' ELSE 'out of range' END,
            'an interval of 0 or more, or NULL');
    END IF;
    PERFORM ratelimit._attend(), ratelimit._check_list(requests), ratelimit._now();
    outcomes := array_fill(NULL::ratelimit.rl_limit_all_result, ARRAY[jsonb_array_length(requests)]);
    FOR k IN SELECT e.*, e.ns[1] AS n, e.counts[1] AS count, (e.r).kind, (e.r).value, (e.r).added, (e.r).holds_due,
                    ratelimit._us((e.r).ts) AS ts, ratelimit._now() AS now FROM ratelimit._each_key(requests) e LOOP
        l := k.defined;
        IF k.plain AND l.usual AND k.count > 0 AND k.count <= l.capacity AND cardinality(k.ns) = 1 AND k.until IS NULL
            AND writable AND k.count - ratelimit._usual_tokens(l, k.kind, k.value, k.ts, k.added, k.holds_due, k.now)
                <= l.tolerance THEN
            IF lock_wait IS NULL THEN
                SELECT t.ctid AS place, t.kind, t.value, t.added, t.holds_due, ratelimit._us(t.ts) AS ts INTO locked
                FROM ONLY ratelimit.rateLimits t WHERE t.name = k.name AND t.key = k.key FOR UPDATE;
            ELSE
                SELECT t.ctid AS place, t.kind, t.value, t.added, t.holds_due, ratelimit._us(t.ts) AS ts INTO locked
                FROM ONLY ratelimit.rateLimits t WHERE t.name = k.name AND t.key = k.key FOR UPDATE SKIP LOCKED;
            END IF;
            now := ratelimit._now();
            tokens := ratelimit._usual_tokens(l, locked.kind, locked.value, locked.ts, locked.added, locked.holds_due,
                                              now) - k.count;
            IF tokens >= -l.tolerance AND tokens < tokens + k.count AND l.capacity - tokens > l.tolerance THEN
                at := ratelimit._counted_at(l, locked.ts, now);
                UPDATE ONLY ratelimit.rateLimits t SET value = tokens, ts = ratelimit._nearest(at)
                WHERE t.ctid = locked.place AND t.name = k.name AND t.key = k.key;
                IF NOT FOUND THEN PERFORM ratelimit._not_written(); END IF;
                at := at + CASE l.kind WHEN 'token bucket' THEN ratelimit._span(l, l.capacity - tokens)
                                       ELSE l.period END;
                o.n := k.n; o.name := k.name; o.key := k.key; o.ok := true;
                o.remaining := ratelimit._rounded(tokens, l.capacity, l.tolerance);
                o.capacity := l.capacity; o.reset_at := ratelimit._rounded_up(at);
                outcomes[k.n] := o;
                CONTINUE;
            END IF;
        END IF;
        a := given; a.name := k.name; a.key := k.key; a.l := k.defined; a.until := k.until; a.r := k.r;
        IF k.plain AND (a.l).usual AND octet_length(a.name) BETWEEN 1 AND 200 AND octet_length(a.key) <= 1024 THEN
            a.ns := k.ns; a.counts := k.counts; a.reserves := array_fill(false, ARRAY[cardinality(k.ns)]);
        ELSE
            x := ratelimit._ask_of(a, k.requests_of, k.ns);
            a := x.a;
            FOREACH r IN ARRAY coalesce(x.wrong, '{}') LOOP outcomes[r.n] := r; END LOOP;
            CONTINUE WHEN a.ns IS NULL;
        END IF;
        IF NOT writable AND (a.l).kind <> 'unlimited'
            AND (ratelimit._us(a.until) > ratelimit._now()) IS NOT TRUE THEN
            PERFORM ratelimit._writable('rl_limit_each');
        END IF;
        a := ratelimit._in_turn(a, ratelimit._now());
        IF a.changed THEN
            IF lock_wait IS NOT NULL THEN
                PERFORM FROM ONLY ratelimit.rateLimits t WHERE t.name = a.name AND t.key = a.key FOR UPDATE SKIP LOCKED;
                IF NOT FOUND THEN
                    late[cardinality(late) + 1] := a;
                    CONTINUE;
                END IF;
            END IF;
            a := ratelimit._take_in_turn(a);
        ELSIF a.ids IS NOT NULL AND writable AND a.error IS NULL
            AND (a.decisions[1]).limited_by IS DISTINCT FROM 'block' THEN
            IF lock_wait IS NOT NULL THEN
                PERFORM FROM ONLY ratelimit.rateLimits t WHERE t.name = a.name AND t.key = a.key FOR UPDATE SKIP LOCKED;
            END IF;
            -- As rl_limit does.
            IF lock_wait IS NULL OR FOUND THEN PERFORM ratelimit._expire(a.l, a.name, a.key); END IF;
        END IF;
        FOREACH r IN ARRAY ratelimit._rows_in_turn(a) LOOP outcomes[r.n] := r; END LOOP;
    END LOOP;
    FOR x IN SELECT ratelimit._rows_in_turn(t) AS rows FROM ratelimit._take_late(late,
        least(ratelimit._micros(lock_wait) / 1000.0,
              extract(epoch FROM current_setting('deadlock_timeout')::interval) * 100)::float8,
        nullif(extract(epoch FROM current_setting('lock_timeout')::interval) * 1000, 0)::float8) t LOOP
        FOREACH r IN ARRAY x.rows LOOP outcomes[r.n] := r; END LOOP;
    END LOOP;
    FOREACH r IN ARRAY outcomes LOOP RETURN NEXT r; END LOOP;
END
$$;

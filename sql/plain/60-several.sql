-- Several limits in one call, all or nothing. A read without locks comes first: if a limit denies, that is the answer.
-- Then rows are locked in the order of name and key, so that calls don't deadlock, and all limits are decided again at
-- one instant; if one denies now, the locks are released.

DO LANGUAGE plpgsql $do$
BEGIN
    -- The requests for one name and key. ns: their numbers; r: the row, and whether it is locked; ids and came: of the
    -- holds that have expired since the row was written. A hold has ttl, what is asked for, and what it has.
    PERFORM ratelimit._make_type('_group', 'name text, key text, l ratelimit._limit, defined boolean, until timestamptz,
        ns int[], counts double precision[], reserves boolean[], r ratelimit._row, locked boolean, s ratelimit._state,
        after ratelimit._state, changed boolean, allows boolean, never boolean, decisions ratelimit._decision[],
        config jsonb, ids text[], came double precision[], ttl bigint, asked ratelimit._hold, h ratelimit._hold');
END
$do$;

-- Describes a value without showing it, since it may be a key.
CREATE OR REPLACE FUNCTION ratelimit._type_of(given jsonb) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE jsonb_typeof(given) WHEN 'object' THEN 'an object' WHEN 'null' THEN 'null'
           WHEN 'array' THEN CASE given WHEN '[]' THEN 'an empty array' ELSE 'an array' END
           ELSE 'a ' || jsonb_typeof(given) END
$$;

-- Refuses a request with fields of other types.
CREATE OR REPLACE FUNCTION ratelimit._check_request(request jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    allowed CONSTANT text := 'an object with "name", and "key", "count", "reserve" or "config"';
    types CONSTANT jsonb := jsonb '{"name": "string", "key": "string", "count": "number", "reserve": "boolean"}';
    field text;
    given jsonb;
BEGIN
    IF jsonb_typeof(request) <> 'object' THEN
        PERFORM ratelimit._bad('it', ratelimit._type_of(request), allowed);
    END IF;
    SELECT f INTO field FROM jsonb_object_keys(request) f WHERE f <> ALL ('{name,key,count,reserve,config}') LIMIT 1;
    IF FOUND THEN
        PERFORM ratelimit._bad('a field', 'unknown: ' || to_json(ratelimit._short(field)), allowed);
    END IF;
    FOREACH field IN ARRAY '{name,key,count,reserve}'::text[] LOOP
        given := request -> field;
        CONTINUE WHEN given IS NULL AND field <> 'name';
        IF coalesce(given, 'null') = 'null' THEN
            PERFORM ratelimit._null(field);
        ELSIF jsonb_typeof(given) <> types ->> field THEN
            PERFORM ratelimit._bad(field,
                CASE field WHEN 'key' THEN ratelimit._type_of(given) ELSE ratelimit._short(given::text) END,
                CASE field WHEN 'count' THEN 'a number from 0 to 1e15' WHEN 'reserve' THEN 'true or false'
                           ELSE 'a string' END);
        END IF;
    END LOOP;
    IF octet_length((request -> 'config')::text) > 10000 THEN
        PERFORM ratelimit._bad('config', octet_length((request -> 'config')::text) || ' bytes long',
            'at most 10000 bytes');
    END IF;
END
$$;

-- Reads a list of requests into groups, in the order in which rows are locked.
CREATE OR REPLACE FUNCTION ratelimit._groups(function text, requests jsonb) RETURNS ratelimit._group[]
LANGUAGE plpgsql AS $$
DECLARE
    groups ratelimit._group[] := '{}'::ratelimit._group[];
    g ratelimit._group;
    i int;
    n int;
    places int[];
    l ratelimit._limit;
    request jsonb;
    given jsonb;
    count double precision;
    is_new boolean;
    state text; message text; detail text; hint text;
BEGIN
    IF jsonb_typeof(requests) = 'array' AND jsonb_array_length(requests) > 10000 THEN
        PERFORM ratelimit._bad('requests', 'a list of ' || jsonb_array_length(requests),
            'a list of at most 10000');
    ELSIF octet_length(requests::text) > 2000000 THEN
        PERFORM ratelimit._bad('requests', octet_length(requests::text) || ' bytes long', 'at most 2000000 bytes');
    ELSIF jsonb_typeof(requests) <> 'array' OR requests = '[]' THEN
        PERFORM ratelimit._bad('requests', ratelimit._type_of(requests),
            'an array of objects such as [{"name": "perUser", "key": "u1"}, {"name": "global"}]');
    END IF;
    BEGIN
        FOR request, i IN SELECT r, at FROM jsonb_array_elements(requests) WITH ORDINALITY e(r, at) ORDER BY at LOOP
            PERFORM ratelimit._check_request(request);
        END LOOP;
        FOR request, i IN SELECT r, at FROM jsonb_array_elements(requests) WITH ORDINALITY e(r, at) ORDER BY at LOOP
            PERFORM ratelimit._check(request ->> 'name', coalesce(request ->> 'key', ''));
        END LOOP;
        -- The group of each request.
        places := ARRAY(SELECT place FROM (
            SELECT at, dense_rank() OVER (ORDER BY r ->> 'name' COLLATE "C", coalesce(r ->> 'key', '') COLLATE "C")
            FROM jsonb_array_elements(requests) WITH ORDINALITY e(r, at)) AS ranks(at, place) ORDER BY at);
        groups[(SELECT max(p) FROM unnest(places) p)] := NULL;
        FOR request, i IN SELECT r, at FROM jsonb_array_elements(requests) WITH ORDINALITY e(r, at) ORDER BY at LOOP
            n := places[i];
            g := groups[n];
            given := nullif(request -> 'config', 'null');
            count := CASE WHEN NOT request ? 'count' THEN 1
                          WHEN abs((request -> 'count')::numeric) > 1e300
                          THEN sign((request -> 'count')::numeric) * 1e300
                          ELSE ratelimit._float((request -> 'count')::numeric) END;
            is_new := g.name IS NULL;
            l := g.l;
            IF is_new OR given IS NOT NULL OR NOT g.defined THEN
                IF is_new THEN
                    g := ratelimit._group(request ->> 'name', coalesce(request ->> 'key', ''));
                END IF;
                l := ratelimit._resolve(function, g.name, g.key, ratelimit._defined(g.name, g.key), given);
            END IF;
            PERFORM ratelimit._check_use(function, l.kind, count, g.name);
            IF NOT is_new AND function = 'rl_hold_all' THEN
                PERFORM ratelimit._bad('requests', 'a list with two requests for the same name and key',
                    'one request per name and key');
            ELSIF NOT is_new AND l IS DISTINCT FROM g.l THEN
                PERFORM ratelimit._bad('config', 'different from that of an earlier request for the same name and key',
                    'one config per name and key');
            END IF;
            g.l := l;
            g.config := given;
            g.defined := coalesce(g.defined, false) OR given IS NULL;
            g.ns := g.ns || i;
            g.counts := g.counts || count;
            g.reserves := g.reserves || coalesce((request -> 'reserve')::boolean, false);
            groups[n] := g;
        END LOOP;
    EXCEPTION WHEN invalid_parameter_value OR null_value_not_allowed OR undefined_object OR insufficient_privilege
        OR feature_not_supported THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            hint = PG_EXCEPTION_HINT;
        PERFORM ratelimit._raise(state, format('request %s: %s', i, message), nullif(detail, ''), nullif(hint, ''));
    END;
    RETURN groups;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._group(name text, key text) RETURNS ratelimit._group LANGUAGE plpgsql AS $$
DECLARE
    g ratelimit._group;
BEGIN
    g.name := name; g.key := key; g.ns := '{}'; g.counts := '{}'; g.reserves := '{}';
    SELECT b.until INTO g.until FROM ONLY ratelimit.rl_blocks b WHERE b.name = $1 AND b.key = $2;
    RETURN g;
END
$$;

-- Decides a group's takes in turn, each on the state that the one before it left. passes: all of them.
CREATE OR REPLACE FUNCTION ratelimit._run(l ratelimit._limit, s ratelimit._state, now bigint,
    counts double precision[], reserves boolean[], OUT decisions ratelimit._decision[], OUT after ratelimit._state,
    OUT changed boolean, OUT passes boolean) STABLE LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
BEGIN
    after := s;
    changed := false;
    passes := true;
    FOR i IN 1..cardinality(counts) LOOP
        d := ratelimit._decide(l, after, now, counts[i], reserves[i]);
        IF d.changed THEN
            after := ratelimit._left(d);
            changed := true;
        END IF;
        passes := passes AND d.ok;
        decisions := decisions || d;
    END LOOP;
END
$$;

-- Finds the first wait, from the soonest on, after which a group's takes pass together, by doubling and halving; NULL
-- if there is none.
CREATE OR REPLACE FUNCTION ratelimit._first_pass(g ratelimit._group, now bigint, soonest bigint) RETURNS bigint STABLE
LANGUAGE plpgsql AS $$
DECLARE
    fails bigint := soonest;
    wait bigint := soonest;
    step bigint := 1;
    middle bigint;
BEGIN
    WHILE NOT (ratelimit._run(g.l, g.s, ratelimit._plus(now, wait), g.counts, g.reserves)).passes LOOP
        IF wait > 2305843009213693951 THEN RETURN NULL; END IF;
        fails := wait;
        wait := soonest + step;
        step := step * 2;
    END LOOP;
    WHILE wait - fails > 1 LOOP
        middle := fails + (wait - fails) / 2;
        IF (ratelimit._run(g.l, g.s, ratelimit._plus(now, middle), g.counts, g.reserves)).passes THEN wait := middle;
        ELSE fails := middle;
        END IF;
    END LOOP;
    RETURN wait;
END
$$;

-- Decides a group at an instant, ignoring blocks.
CREATE OR REPLACE FUNCTION ratelimit._decide_takes(g ratelimit._group, now bigint) RETURNS ratelimit._group
STABLE LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    r record;
    wait bigint;
BEGIN
    IF g.ttl IS NOT NULL THEN RETURN ratelimit._decide_held(g, now); END IF;
    IF cardinality(g.counts) = 1 THEN
        d := ratelimit._decide(g.l, g.s, now, g.counts[1], g.reserves[1]);
        g.decisions := ARRAY[d];
        g.changed := d.changed;
        g.after := CASE WHEN d.changed THEN ratelimit._left(d) ELSE g.s END;
        RETURN g;
    END IF;
    r := ratelimit._run(g.l, g.s, now, g.counts, g.reserves);
    g.decisions := r.decisions;
    g.after := r.after;
    g.changed := r.changed;
    IF NOT r.passes THEN
        -- Takes that together exceed a full limit never pass.
        IF (ratelimit._run(g.l, ratelimit._fresh(g.l, g.name, g.key, now), now, g.counts, g.reserves)).passes THEN
            SELECT CASE WHEN bool_and(x.wait IS NOT NULL) THEN max(x.wait) END INTO wait
            FROM unnest(g.decisions) x WHERE NOT x.ok;
            -- The first take of a window would meet a change of its rate, which a denial doesn't.
            IF (g.l).kind = 'fixed window' AND wait > 0
                AND (ratelimit._run(g.l, g.s, ratelimit._plus(now, wait - 1), g.counts, g.reserves)).passes THEN
                wait := 0;
            END IF;
            IF wait IS NOT NULL THEN wait := ratelimit._first_pass(g, now, wait); END IF;
        END IF;
        FOR i IN 1..cardinality(g.decisions) LOOP
            d := g.decisions[i];
            IF NOT d.ok THEN d.wait := wait; END IF;
            g.decisions[i] := d;
        END LOOP;
    END IF;
    RETURN g;
END
$$;

-- Decides a group at an instant. A block, and a denial that no expiry can change, read no holds.
CREATE OR REPLACE FUNCTION ratelimit._decide_group(g ratelimit._group, now bigint) RETURNS ratelimit._group
STABLE LANGUAGE plpgsql AS $$
DECLARE
    ends CONSTANT bigint := ratelimit._us(g.until);
    due boolean := g.ids IS NULL AND ratelimit._is_due(g.l, g.r, now);
    d ratelimit._decision;
    p record;
BEGIN
    IF due AND ends > now THEN
        IF g.until < 'infinity' THEN
            g.s := ratelimit._state_of(g.l, g.r, now);
            FOREACH d IN ARRAY (ratelimit._decide_takes(g, ends)).decisions LOOP
                due := due AND (g.l).enforce AND NOT d.ok;
            END LOOP;
        ELSE
            due := false;
        END IF;
    ELSIF due AND g.ttl IS NULL AND cardinality(g.counts) = 1 THEN
        due := NOT ratelimit._never(g.l, g.name, g.key, now, g.counts[1], g.reserves[1], NULL);
    END IF;
    IF due THEN
        p := ratelimit._lapse(g.l, g.r, now);
        g.r := p.r; g.ids := p.ids; g.came := p.came;
        g.h := ratelimit._lapsed(g.h, g.ids, g.came);
    END IF;
    g.s := ratelimit._state_of(g.l, g.r, now);
    IF (ends > now) IS NOT TRUE THEN
        g := ratelimit._decide_takes(g, now);
    ELSE
        g := ratelimit._decide_takes(g, CASE WHEN g.until = 'infinity' THEN now ELSE ends END);
        FOR i IN 1..cardinality(g.decisions) LOOP
            d := g.decisions[i];
            d.wait := CASE WHEN g.until < 'infinity'
                      THEN ends - now + CASE WHEN d.ok OR NOT (g.l).enforce THEN 0 ELSE d.wait END END;
            d.ok := false; d.at := now; d.enforced := true; d.limited_by := 'block';
            d.forever := g.until = 'infinity';
            g.decisions[i] := d;
        END LOOP;
        g.after := g.s;
        g.changed := false;
    END IF;
    g.allows := true;
    g.never := false;
    FOREACH d IN ARRAY g.decisions LOOP
        IF NOT d.ok AND d.enforced THEN
            g.allows := false;
            g.never := g.never OR d.wait IS NULL;
        END IF;
    END LOOP;
    RETURN g;
END
$$;

-- Locks or inserts the rows that change, decides again at one instant, and writes. It doesn't write if a limit denies
-- now, or if a row changes now that isn't locked, as that of a dry run which was denied: the caller sees it in the
-- groups, and releases the locks.
CREATE OR REPLACE FUNCTION ratelimit._commit(groups ratelimit._group[]) RETURNS ratelimit._group[]
LANGUAGE plpgsql AS $$
DECLARE
    g ratelimit._group;
    now bigint;
    passes boolean := true;
BEGIN
    FOR i IN 1..cardinality(groups) LOOP
        g := groups[i];
        -- What has expired of another is left to a call that changes it.
        g.locked := g.changed;
        IF g.locked THEN
            g.ids := NULL;
            FOR try IN 1..100 LOOP
                g.r := ratelimit._lock(g.name, g.key);
                EXIT WHEN (g.r).shard IS NOT NULL;
                PERFORM ratelimit._make_row(g.name, g.key);
            END LOOP;
            IF g.ttl IS NOT NULL THEN g.h := ratelimit._hold_of((g.asked).id, g.name, g.key); END IF;
        END IF;
        groups[i] := g;
    END LOOP;
    now := ratelimit._now();
    FOR i IN 1..cardinality(groups) LOOP
        g := ratelimit._decide_group(groups[i], now);
        passes := passes AND g.allows AND (g.locked OR NOT g.changed);
        groups[i] := g;
    END LOOP;
    IF NOT passes THEN RETURN groups; END IF;
    FOR i IN 1..cardinality(groups) LOOP
        g := groups[i];
        CONTINUE WHEN NOT g.locked;
        IF g.ids IS NOT NULL THEN
            PERFORM ratelimit._write_lapsed(g.name, g.key, (g.r).holds_due, now, g.ids, g.came);
            g.r.holds_due := ratelimit._next_expiry(g.name, g.key, now);
        END IF;
        IF g.changed THEN
            IF ratelimit._begins_anew(g.l, g.r, now) AND (g.after).ts IS NOT NULL THEN g.r.holds_due := NULL; END IF;
            IF g.ttl IS NOT NULL THEN g := ratelimit._write_held(g, now); END IF;
            IF (g.after).ts IS NOT NULL THEN g.r := ratelimit._row_with(g.r, g.l, g.after); END IF;
        END IF;
        groups[i] := g;
        IF g.changed OR g.ids IS NOT NULL THEN PERFORM ratelimit._write_row(g.r); END IF;
    END LOOP;
    RETURN groups;
END
$$;

-- The rows of the answer. taken: whether states are those after the takes.
CREATE OR REPLACE FUNCTION ratelimit._outcomes(groups ratelimit._group[], ok boolean, taken boolean, throws boolean)
RETURNS ratelimit.rl_limit_all_result[] LANGUAGE plpgsql AS $$
DECLARE
    outcomes ratelimit.rl_limit_all_result[] := '{}'::ratelimit.rl_limit_all_result[];
    o ratelimit.rl_limit_all_result;
    g ratelimit._group;
    d ratelimit._decision;
    worst ratelimit._decision;
    worst_name text;
    worst_rank text;
    rank text;
    level ratelimit._decision;
    never boolean := false;
    r ratelimit.rl_result;
BEGIN
    FOREACH g IN ARRAY groups LOOP never := never OR NOT ok AND g.never; END LOOP;
    FOREACH g IN ARRAY groups LOOP
        d := g.decisions[1];
        level := d;
        IF NOT taken OR cardinality(g.counts) > 1 OR d.limited_by = 'block' THEN
            level := ratelimit._level(g.l, CASE WHEN taken THEN g.after ELSE g.s END, d.at);
        END IF;
        FOR i IN 1..cardinality(g.decisions) LOOP
            d := g.decisions[i];
            IF throws AND NOT ok THEN
                -- The error names a limit that never passes, or else the one with the longest wait.
                rank := concat((NOT d.ok AND d.enforced)::int, lpad(coalesce(
                    CASE WHEN never OR d.ok OR NOT d.enforced THEN NULL ELSE d.wait END,
                    9223372036854775807)::text, 20, '0'),
                    (NOT d.ok AND d.enforced AND d.wait IS NULL)::int, lpad(g.ns[i]::text, 6, '0')) COLLATE "C";
                IF worst_rank IS NULL OR rank > worst_rank THEN
                    worst := d; worst_rank := rank; worst_name := g.name;
                END IF;
            END IF;
            IF NOT (CASE WHEN ok THEN d.ok ELSE NOT d.ok AND d.enforced AND NOT never END) THEN d.wait := NULL; END IF;
            d.remaining := level.remaining;
            d.reset_at := level.reset_at;
            r := ratelimit._answer(d);
            o.n := g.ns[i]; o.name := g.name; o.key := g.key; o.ok := ok;
            o.retry_after := r.retry_after; o.retry_at := r.retry_at; o.remaining := r.remaining;
            o.capacity := r.capacity; o.reset_at := r.reset_at; o.limited_by := r.limited_by;
            outcomes[o.n] := o;
        END LOOP;
    END LOOP;
    IF throws AND NOT ok THEN
        IF never THEN worst.wait := NULL; END IF;
        PERFORM ratelimit._denied(worst_name, worst);
    END IF;
    RETURN outcomes;
END
$$;

-- Logs each limit's own denial, in the order of the requests.
CREATE OR REPLACE FUNCTION ratelimit._log_denials(groups ratelimit._group[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    d record;
BEGIN
    FOR d IN SELECT g.name, (g.decisions[i]).enforced,
                    CASE WHEN NOT bool_or(g.never) OVER () THEN (g.decisions[i]).wait END AS wait
             FROM unnest(groups) g, generate_subscripts(g.decisions, 1) i
             WHERE NOT (g.decisions[i]).ok ORDER BY g.ns[i] LOOP
        PERFORM ratelimit._log_denial(d.name, d.enforced, d.wait);
    END LOOP;
END
$$;

-- Writes what has expired where that was much: the answer doesn't depend on it, but the next call has less to do.
CREATE OR REPLACE FUNCTION ratelimit._write_found(groups ratelimit._group[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    g ratelimit._group;
BEGIN
    FOREACH g IN ARRAY groups LOOP
        IF cardinality(g.ids) > 100 THEN PERFORM ratelimit._expire(g.l, g.name, g.key); END IF;
    END LOOP;
END
$$;

-- Lets the denials of groups wait no longer than until holds that expire give back what they need.
CREATE OR REPLACE FUNCTION ratelimit._denials(groups ratelimit._group[]) RETURNS ratelimit._group[]
STABLE LANGUAGE plpgsql AS $$
DECLARE
    g ratelimit._group;
    d ratelimit._decision;
BEGIN
    FOR i IN 1..cardinality(groups) LOOP
        g := groups[i];
        CONTINUE WHEN g.allows OR (g.r).holds_due IS NULL OR NOT ratelimit._returns(g.l);
        IF cardinality(g.counts) = 1 THEN
            d := g.decisions[1];
            g.decisions[1] := ratelimit._sooner(d, g.l, g.r, d.at, g.until, g.counts[1], g.reserves[1], NULL);
            g.never := (g.decisions[1]).wait IS NULL;
        ELSIF NOT g.never THEN
            g := ratelimit._sooner_together(g);
        END IF;
        groups[i] := g;
    END LOOP;
    RETURN groups;
END
$$;

-- Does that for several takes of one limit: they wait until all of them pass.
CREATE OR REPLACE FUNCTION ratelimit._sooner_together(g ratelimit._group) RETURNS ratelimit._group
STABLE LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := (g.decisions[1]).at;
    opens CONSTANT bigint := greatest(ratelimit._us(g.until), now);
    later ratelimit._group := g;
    passes bigint;
    instant bigint;
    h record;
    d ratelimit._decision;
    l ratelimit._limit;
BEGIN
    SELECT ratelimit._plus(now, max(x.wait)) INTO passes FROM unnest(g.decisions) x WHERE NOT x.ok;
    FOR h IN
        SELECT ratelimit._returnable(x.name, x.count, x.spent, x.returned, x.taken_at, x.expires_at) AS held,
               x.taken_at, x.expires_at, x.config FROM ONLY ratelimit.rl_holds x
        WHERE x.name = g.name AND x.key = g.key AND NOT x.charge AND x.count > x.spent
          AND x.expires_at > ratelimit._instant(now) ORDER BY x.expires_at, x.id LIMIT 1000
    LOOP
        instant := ratelimit._us(h.expires_at);
        EXIT WHEN passes <= instant OR passes <= opens;
        l := ratelimit._limit_of_expiry(ratelimit._defined(g.name, g.key), h.config, g.l);
        d := ratelimit._refund(l, ratelimit._state_of(l, later.r, instant), instant, h.held, h.taken_at);
        CONTINUE WHEN NOT d.changed;
        later.r := ratelimit._row_with(later.r, l, ratelimit._left(d));
        instant := greatest(instant, opens);
        later.s := ratelimit._state_of(g.l, later.r, instant);
        later := ratelimit._decide_takes(later, instant);
        SELECT ratelimit._plus(instant, coalesce(max(x.wait) FILTER (WHERE NOT x.ok), 0)) INTO passes
        FROM unnest(later.decisions) x;
    END LOOP;
    FOR i IN 1..cardinality(g.decisions) LOOP
        d := g.decisions[i];
        IF NOT d.ok THEN
            d.wait := passes - now;
            g.decisions[i] := d;
        END IF;
    END LOOP;
    RETURN g;
END
$$;

-- Decides groups without locks, on rows and holds of one moment; asked and ttl are a hold's. passes: none denies.
CREATE OR REPLACE FUNCTION ratelimit._peek_groups(requested ratelimit._group[], asked ratelimit._hold, ttl bigint,
    OUT groups ratelimit._group[], OUT passes boolean, OUT changed boolean) STABLE LANGUAGE plpgsql AS $$
DECLARE
    now bigint;
    g ratelimit._group;
    r ratelimit._row;
BEGIN
    groups := requested;
    FOR i IN 1..cardinality(groups) LOOP
        g := groups[i];
        SELECT g.name, g.key, x.shard, x.kind, x.value, x.ts, x.added, x.prior, x.log, x.leases, x.holds_due INTO r
        FROM (SELECT) AS one LEFT JOIN ONLY ratelimit.rateLimits x ON x.name = g.name AND x.key = g.key;
        g.r := r;
        IF ttl IS NOT NULL THEN g := ratelimit._held_group(g, asked, ttl); END IF;
        groups[i] := g;
    END LOOP;
    now := ratelimit._now();
    passes := true;
    changed := false;
    FOR i IN 1..cardinality(groups) LOOP
        g := ratelimit._decide_group(groups[i], now);
        passes := passes AND g.allows;
        changed := changed OR g.changed;
        groups[i] := g;
    END LOOP;
    IF NOT passes OR NOT changed THEN groups := ratelimit._denials(groups); END IF;
END
$$;

-- Limits, checks or holds: asked and ttl are a hold's.
CREATE OR REPLACE FUNCTION ratelimit._several(function text, requests jsonb, throws boolean,
    asked ratelimit._hold DEFAULT NULL, ttl bigint DEFAULT NULL, OUT outcomes ratelimit.rl_limit_all_result[],
    OUT groups ratelimit._group[]) LANGUAGE plpgsql AS $$
DECLARE
    peeked record;
    rowless boolean := true;
    refused boolean := false;
    again boolean;
    g ratelimit._group;
BEGIN
    IF requests IS NULL THEN PERFORM ratelimit._null('requests'); END IF;
    IF throws IS NULL THEN PERFORM ratelimit._null('throws'); END IF;
    PERFORM ratelimit._attend();
    groups := ratelimit._groups(function, requests);
    FOREACH g IN ARRAY groups LOOP rowless := rowless AND (g.l).kind = 'unlimited'; END LOOP;
    IF function <> 'rl_check_all' AND NOT rowless THEN PERFORM ratelimit._writable(function); END IF;
    peeked := ratelimit._peek_groups(groups, asked, ttl);
    groups := peeked.groups;
    IF function = 'rl_check_all' OR NOT peeked.passes OR NOT peeked.changed THEN
        IF function <> 'rl_check_all' AND NOT rowless THEN PERFORM ratelimit._write_found(groups); END IF;
        IF function <> 'rl_check_all' THEN PERFORM ratelimit._log_denials(groups); END IF;
        outcomes := ratelimit._outcomes(groups, peeked.passes, false, throws);
        RETURN;
    END IF;
    FOR try IN 1..100 LOOP
        BEGIN
            groups := ratelimit._commit(groups);
            again := false;
            FOREACH g IN ARRAY groups LOOP
                refused := refused OR NOT g.allows;
                again := again OR g.changed AND NOT g.locked;
            END LOOP;
            IF refused THEN groups := ratelimit._denials(groups); END IF;
            IF refused OR again THEN RAISE SQLSTATE 'RL001'; END IF;
        EXCEPTION WHEN SQLSTATE 'RL001' THEN NULL; -- releases the locks
        END;
        EXIT WHEN refused OR NOT again;
    END LOOP;
    IF again AND NOT refused THEN PERFORM ratelimit._not_written(); END IF;
    IF refused THEN PERFORM ratelimit._write_found(groups); END IF;
    PERFORM ratelimit._log_denials(groups);
    outcomes := ratelimit._outcomes(groups, NOT refused, NOT refused, throws);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_limit_all(requests jsonb, throws boolean DEFAULT false)
RETURNS SETOF ratelimit.rl_limit_all_result LANGUAGE plpgsql ROWS 10 AS $$
DECLARE
    r ratelimit.rl_limit_all_result;
BEGIN
    FOREACH r IN ARRAY (ratelimit._several('rl_limit_all', requests, throws)).outcomes LOOP RETURN NEXT r; END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_check_all(requests jsonb, throws boolean DEFAULT false)
RETURNS SETOF ratelimit.rl_limit_all_result LANGUAGE plpgsql ROWS 10 AS $$
DECLARE
    r ratelimit.rl_limit_all_result;
BEGIN
    FOREACH r IN ARRAY (ratelimit._several('rl_check_all', requests, throws)).outcomes LOOP RETURN NEXT r; END LOOP;
END
$$;

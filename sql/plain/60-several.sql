-- Lists of requests: read, decided where several of them are for one name and key, and answered.

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

-- Refuses a list that is too long, and all but lists.
CREATE OR REPLACE FUNCTION ratelimit._check_list(list jsonb, argument text DEFAULT 'requests', most int DEFAULT 2000000,
    allowed text DEFAULT 'an array of objects such as [{"name": "perUser", "key": "u1"}, {"name": "global"}]')
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(list) = 'array' AND jsonb_array_length(list) > 10000 THEN
        PERFORM ratelimit._bad(argument, 'a list of ' || jsonb_array_length(list), 'a list of at most 10000');
    ELSIF octet_length(list::text) > most THEN
        PERFORM ratelimit._bad(argument, octet_length(list::text) || ' bytes long', format('at most %s bytes', most));
    ELSIF jsonb_typeof(list) <> 'array' OR list = '[]' THEN
        PERFORM ratelimit._bad(argument, ratelimit._type_of(list), allowed);
    END IF;
END
$$;

-- The count of a request. A float has no larger ones.
CREATE OR REPLACE FUNCTION ratelimit._count(request jsonb) RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN NOT request ? 'count' THEN 1 WHEN abs((request -> 'count')::numeric) > 1.7976931348623157e308
                THEN sign((request -> 'count')::numeric) * float8 'Infinity'
                ELSE ratelimit._float((request -> 'count')::numeric) END
$$;

-- Adds a request, the n-th of a list, to the ask for its name and key.
CREATE OR REPLACE FUNCTION ratelimit._with_request(a ratelimit._ask, request jsonb, n int, defined ratelimit._limit)
RETURNS ratelimit._ask LANGUAGE plpgsql AS $$
DECLARE
    is_first CONSTANT boolean := a.ns IS NULL;
    l ratelimit._limit;
BEGIN
    a.ns := a.ns || n;
    a.config := nullif(request -> 'config', 'null');
    a.count := ratelimit._count(request);
    a.counts := a.counts || a.count;
    a.reserves := a.reserves || coalesce((request -> 'reserve')::boolean, false);
    l := ratelimit._resolve(a, defined);
    PERFORM ratelimit._check_use(a, l);
    IF is_first THEN
        a.l := l;
    ELSIF a.verb = 'hold' THEN
        PERFORM ratelimit._bad('requests', 'a list with two requests for the same name and key',
            'one request per name and key');
    ELSIF l IS DISTINCT FROM a.l THEN
        PERFORM ratelimit._bad('config', 'different from that of an earlier request for the same name and key',
            'one config per name and key');
    END IF;
    RETURN a;
END
$$;

-- Reads a list of requests into asks, in the order in which rows are locked; those of a hold are like the given one.
CREATE OR REPLACE FUNCTION ratelimit._asks(requests jsonb, given ratelimit._ask) RETURNS ratelimit._ask[]
LANGUAGE plpgsql AS $$
DECLARE
    asks ratelimit._ask[] := '{}'::ratelimit._ask[];
    defined ratelimit._limit[];
    a ratelimit._ask;
    i int;
    n int;
    places int[];
    request jsonb;
    state text; message text; detail text; hint text;
BEGIN
    PERFORM ratelimit._check_list(requests);
    BEGIN
        FOR request, i IN SELECT r, at FROM jsonb_array_elements(requests) WITH ORDINALITY e(r, at) ORDER BY at LOOP
            PERFORM ratelimit._check_request(request);
        END LOOP;
        FOR request, i IN SELECT r, at FROM jsonb_array_elements(requests) WITH ORDINALITY e(r, at) ORDER BY at LOOP
            PERFORM ratelimit._check(request ->> 'name', coalesce(request ->> 'key', ''));
        END LOOP;
        -- The ask of each request.
        places := ARRAY(SELECT place FROM (
            SELECT at, dense_rank() OVER (ORDER BY r ->> 'name' COLLATE "C", coalesce(r ->> 'key', '') COLLATE "C")
            FROM jsonb_array_elements(requests) WITH ORDINALITY e(r, at)) AS ranks(at, place) ORDER BY at);
        asks[(SELECT max(p) FROM unnest(places) p)] := NULL;
        FOR request, i IN SELECT r, at FROM jsonb_array_elements(requests) WITH ORDINALITY e(r, at) ORDER BY at LOOP
            n := places[i];
            a := asks[n];
            IF a.name IS NULL THEN
                a := given; a.name := request ->> 'name'; a.key := coalesce(request ->> 'key', '');
                defined[n] := ratelimit._defined(a.name, a.key);
            END IF;
            asks[n] := ratelimit._with_request(a, request, i, defined[n]);
        END LOOP;
    EXCEPTION WHEN invalid_parameter_value OR null_value_not_allowed OR undefined_object OR insufficient_privilege
        OR feature_not_supported THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            hint = PG_EXCEPTION_HINT;
        PERFORM ratelimit._raise(state, format('request %s: %s', i, message), nullif(detail, ''), nullif(hint, ''));
    END;
    FOR n IN 1..cardinality(asks) LOOP -- one request isn't decided as several are
        a := asks[n];
        IF cardinality(a.ns) = 1 THEN a.reserve := a.reserves[1]; a.counts := NULL; a.reserves := NULL; END IF;
        asks[n] := a;
    END LOOP;
    RETURN asks;
END
$$;

-- Decides takes in turn, each on the state that the one before it left. last: the last that changes it. passes: all of
-- them.
CREATE OR REPLACE FUNCTION ratelimit._run_takes(l ratelimit._limit, s ratelimit._state, now bigint,
    counts double precision[], reserves boolean[], OUT decisions ratelimit._decision[], OUT last ratelimit._decision,
    OUT passes boolean) STABLE LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
BEGIN
    passes := true;
    FOR i IN 1..cardinality(counts) LOOP
        d := ratelimit._decide(l, s, now, counts[i], reserves[i]);
        IF d.changed THEN
            last := d;
            s := d.state;
        END IF;
        passes := passes AND d.ok;
        decisions := decisions || d;
    END LOOP;
END
$$;

-- Finds the first wait, from the soonest on, after which an ask's takes pass together, by doubling and halving; NULL
-- if there is none.
CREATE OR REPLACE FUNCTION ratelimit._first_pass(a ratelimit._ask, now bigint, soonest bigint) RETURNS bigint STABLE
LANGUAGE plpgsql AS $$
DECLARE
    fails bigint := soonest;
    wait bigint := soonest;
    step bigint := 1;
    middle bigint;
BEGIN
    WHILE NOT (ratelimit._run_takes(a.l, a.s, ratelimit._plus(now, wait), a.counts, a.reserves)).passes LOOP
        IF wait > 2305843009213693951 THEN RETURN NULL; END IF;
        fails := wait;
        wait := soonest + step;
        step := step * 2;
    END LOOP;
    WHILE wait - fails > 1 LOOP
        middle := fails + (wait - fails) / 2;
        IF (ratelimit._run_takes(a.l, a.s, ratelimit._plus(now, middle), a.counts, a.reserves)).passes THEN
            wait := middle;
        ELSE
            fails := middle;
        END IF;
    END LOOP;
    RETURN wait;
END
$$;

-- Decides several takes of one limit at an instant, ignoring blocks.
CREATE OR REPLACE FUNCTION ratelimit._decide_takes(a ratelimit._ask, now bigint) RETURNS ratelimit._ask
STABLE LANGUAGE plpgsql AS $$
DECLARE
    r record := ratelimit._run_takes(a.l, a.s, now, a.counts, a.reserves);
    wait bigint;
BEGIN
    a.decisions := r.decisions;
    IF NOT r.passes THEN
        -- Takes that together exceed a full limit never pass.
        IF (ratelimit._run_takes(a.l, ratelimit._initial(a.l, now, NULL, a.name, a.key), now, a.counts,
                                 a.reserves)).passes THEN
            SELECT CASE WHEN bool_and(x.wait IS NOT NULL) THEN max(x.wait) END INTO wait
            FROM unnest(a.decisions) x WHERE NOT x.ok;
            -- The first take of a window would meet a change of its rate, which a denial doesn't.
            IF (a.l).kind = 'fixed window' AND wait > 0
                AND (ratelimit._run_takes(a.l, a.s, ratelimit._plus(now, wait - 1), a.counts, a.reserves)).passes THEN
                wait := 0;
            END IF;
            IF wait IS NOT NULL THEN wait := ratelimit._first_pass(a, now, wait); END IF;
        END IF;
        a := ratelimit._with_wait(a, wait);
    END IF;
    a.changed := coalesce((r.last).changed, false);
    a.d := r.last;
    a.d.ok := r.passes; a.d.wait := wait; a.d.at := now; a.d.enforced := (a.l).enforce; a.d.changed := a.changed;
    RETURN a;
END
$$;

-- Several takes of one limit, with this wait in their denials.
CREATE OR REPLACE FUNCTION ratelimit._with_wait(a ratelimit._ask, wait bigint) RETURNS ratelimit._ask IMMUTABLE
LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
BEGIN
    FOR i IN 1..cardinality(a.decisions) LOOP
        d := a.decisions[i];
        IF NOT d.ok THEN d.wait := wait; END IF;
        a.decisions[i] := d;
    END LOOP;
    RETURN a;
END
$$;

-- The rows of the answer. taken: whether states are those after the takes. An error names a limit that never passes, or
-- else the one with the longest wait.
CREATE OR REPLACE FUNCTION ratelimit._outcomes(asks ratelimit._ask[], ok boolean, taken boolean, throws boolean)
RETURNS ratelimit.rl_limit_all_result[] LANGUAGE plpgsql AS $$
DECLARE
    outcomes ratelimit.rl_limit_all_result[] := '{}'::ratelimit.rl_limit_all_result[];
    o ratelimit.rl_limit_all_result;
    a ratelimit._ask;
    d ratelimit._decision;
    level ratelimit._decision;
    worst record;
    never boolean := false;
    r ratelimit.rl_result;
BEGIN
    FOREACH a IN ARRAY asks LOOP never := never OR NOT a.allows AND (a.d).wait IS NULL; END LOOP;
    IF throws AND NOT ok THEN
        SELECT x.name, y.d INTO worst
        FROM unnest(asks) x, generate_subscripts(x.ns, 1) i, LATERAL (SELECT coalesce(x.decisions[i], x.d)) y (d)
        WHERE NOT (y.d).ok AND (y.d).enforced
        ORDER BY CASE WHEN NOT never THEN (y.d).wait END DESC, (y.d).wait IS NULL DESC, x.ns[i] DESC LIMIT 1;
        IF never THEN worst.d.wait := NULL; END IF;
        PERFORM ratelimit._denied(worst.name, worst.d);
    END IF;
    FOREACH a IN ARRAY asks LOOP
        d := coalesce(a.decisions[1], a.d);
        level := d;
        IF NOT taken OR a.counts IS NOT NULL OR d.limited_by = 'block' THEN
            level := ratelimit._level(a.l, CASE WHEN taken AND (a.d).changed THEN (a.d).state ELSE a.s END,
                                      d.at);
        END IF;
        FOR i IN 1..cardinality(a.ns) LOOP
            d := coalesce(a.decisions[i], a.d);
            IF NOT (CASE WHEN ok THEN d.ok ELSE NOT d.ok AND d.enforced AND NOT never END) THEN d.wait := NULL; END IF;
            d.remaining := level.remaining;
            d.reset_at := level.reset_at;
            r := ratelimit._answer(d);
            o.n := a.ns[i]; o.name := a.name; o.key := a.key; o.ok := ok;
            o.retry_after := r.retry_after; o.retry_at := r.retry_at; o.remaining := r.remaining;
            o.capacity := r.capacity; o.reset_at := r.reset_at; o.limited_by := r.limited_by;
            outcomes[o.n] := o;
        END LOOP;
    END LOOP;
    RETURN outcomes;
END
$$;

-- Answers a list of requests that are like the given ask: all of them or none. If one is denied under the locks, it
-- releases them.
CREATE OR REPLACE FUNCTION ratelimit._several(requests jsonb, throws boolean, given ratelimit._ask,
    writes boolean DEFAULT true, OUT outcomes ratelimit.rl_limit_all_result[], OUT asks ratelimit._ask[])
LANGUAGE plpgsql AS $$
DECLARE
    a ratelimit._ask;
    refused boolean := false;
    again boolean := false;
    taken boolean;
    denied boolean := false; -- by some limit, which may be a dry run
    d record;
BEGIN
    IF requests IS NULL THEN PERFORM ratelimit._null('requests'); END IF;
    IF throws IS NULL THEN PERFORM ratelimit._null('throws'); END IF;
    PERFORM ratelimit._attend();
    asks := ratelimit._asks(requests, given);
    IF writes AND current_setting('transaction_read_only') = 'on' THEN
        PERFORM ratelimit._writable(given.function) FROM unnest(asks) x WHERE (x.l).kind <> 'unlimited';
    END IF;
    asks := ratelimit._peek(asks);
    FOREACH a IN ARRAY asks LOOP
        refused := refused OR NOT a.allows;
        again := again OR a.changed AND writes;
    END LOOP;
    taken := again;
    FOR try IN 1..100 LOOP
        EXIT WHEN refused OR NOT again;
        BEGIN
            asks := ratelimit._commit(asks);
            again := false;
            FOREACH a IN ARRAY asks LOOP
                refused := refused OR NOT a.allows;
                again := again OR a.changed AND NOT a.locked;
            END LOOP;
            IF refused OR again THEN RAISE SQLSTATE 'RL001'; END IF;
        EXCEPTION WHEN SQLSTATE 'RL001' THEN NULL; -- releases the locks
        END;
    END LOOP;
    taken := taken AND NOT refused;
    IF again AND taken THEN PERFORM ratelimit._not_written(); END IF;
    FOREACH a IN ARRAY asks LOOP
        IF writes AND NOT taken THEN PERFORM ratelimit._write_found(a); END IF;
        denied := denied OR NOT (a.d).ok;
    END LOOP;
    IF writes AND denied THEN
        -- Each limit's own denial, in the order of the requests.
        FOR d IN SELECT x.name, y.enforced,
                        CASE WHEN NOT bool_or(NOT x.allows AND (x.d).wait IS NULL) OVER () THEN y.wait END AS wait
                 FROM unnest(asks) x, generate_subscripts(x.ns, 1) i,
                      LATERAL (SELECT (coalesce(x.decisions[i], x.d)).*) y WHERE NOT y.ok ORDER BY x.ns[i] LOOP
            PERFORM ratelimit._log_denial(d.name, d.enforced, d.wait);
        END LOOP;
    END IF;
    outcomes := ratelimit._outcomes(asks, NOT refused, taken, throws);
END
$$;

@rl_limit_all@ LANGUAGE plpgsql ROWS 10 AS $$
DECLARE
    r ratelimit.rl_limit_all_result;
BEGIN
    FOREACH r IN ARRAY (ratelimit._several(requests, throws,
        ratelimit._ask('rl_limit_all', 'take', NULL, NULL, 1))).outcomes LOOP RETURN NEXT r; END LOOP;
END
$$;

@rl_check_all@ LANGUAGE plpgsql ROWS 10 AS $$
DECLARE
    r ratelimit.rl_limit_all_result;
BEGIN
    FOREACH r IN ARRAY (ratelimit._several(requests, throws,
        ratelimit._ask('rl_check_all', 'take', NULL, NULL, 1), false)).outcomes LOOP RETURN NEXT r; END LOOP;
END
$$;

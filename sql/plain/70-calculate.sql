-- rl_calculate and rl_value, and states as JSON.

CREATE OR REPLACE FUNCTION ratelimit._millis(us bigint) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
    SELECT trim_scale(us::numeric / 1000)
$$;

CREATE OR REPLACE FUNCTION ratelimit._state_json(s ratelimit._state) RETURNS jsonb STABLE LANGUAGE sql AS $$
    SELECT jsonb_build_object('ts', ratelimit._millis(s.ts),
               'value', ratelimit._number(coalesce(cardinality(s.log), cardinality(s.leases) / 2, s.value)))
        || CASE WHEN s.added IS NOT NULL THEN jsonb_build_object('added', ratelimit._number(s.added))
           WHEN s.leases IS NOT NULL THEN jsonb_build_object('leases', coalesce((
               SELECT jsonb_agg(jsonb_build_array(ratelimit._millis(s.leases[i]), ratelimit._millis(s.leases[i + 1]))
                                ORDER BY i) FROM generate_series(1, cardinality(s.leases), 2) i), '[]'))
           WHEN s.log IS NOT NULL THEN jsonb_build_object('log', coalesce((
               SELECT jsonb_agg(ratelimit._millis(ratelimit._us(e)) ORDER BY n)
               FROM unnest(s.log) WITH ORDINALITY u(e, n)), '[]'))
           WHEN s.prior IS NOT NULL THEN jsonb_build_object('prior', ratelimit._number(s.prior)) ELSE '{}' END
$$;

-- Reads times in epoch milliseconds, as microseconds; NULL if one of them is none.
CREATE OR REPLACE FUNCTION ratelimit._times(given jsonb) RETURNS bigint[] IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN bool_and(us IS NOT NULL) IS NOT FALSE THEN coalesce(array_agg(us ORDER BY n), '{}') END
    FROM jsonb_array_elements(given) WITH ORDINALITY u(e, n), LATERAL (
        SELECT CASE jsonb_typeof(e) WHEN 'number' THEN CASE WHEN abs(e::numeric) <= 9223372036854775.807
                    THEN round(e::numeric * 1000)::bigint END END) AS times(us)
$$;

CREATE OR REPLACE FUNCTION ratelimit._read_state(l ratelimit._limit, state jsonb) RETURNS ratelimit._state
IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    fields CONSTANT text[] := (SELECT k.state FROM ratelimit._all_kinds() k WHERE k.kind = l.kind);
    problem text;
    allowed text;
    s ratelimit._state;
    field text;
    given jsonb;
    number numeric;
    float double precision;
    times bigint[];
    good boolean;
BEGIN
    IF octet_length(state::text) > 1000000 THEN
        problem := format('it is %s bytes long', octet_length(state::text));
        allowed := 'at most 1000000 bytes';
    ELSIF jsonb_typeof(state) <> 'object' THEN
        problem := 'it is ' || ratelimit._short(state::text);
        allowed := 'an object such as {"value": 3, "ts": 1798804800000}';
    ELSE
        SELECT to_json(ratelimit._short(f)) || ' is not a field of this kind''s state' INTO problem
        FROM jsonb_object_keys(state) f WHERE f <> ALL (fields) LIMIT 1;
        allowed := CASE fields WHEN '{}' THEN 'none' ELSE '"' || array_to_string(fields, '", "') || '"' END;
    END IF;
    FOREACH field IN ARRAY fields LOOP
        EXIT WHEN problem IS NOT NULL;
        given := state -> field;
        CONTINUE WHEN field = 'added' AND (given IS NULL OR given = 'null');
        number := CASE jsonb_typeof(given) WHEN 'number' THEN given::numeric END;
        CASE field
        WHEN 'ts' THEN
            allowed := 'epoch milliseconds';
            good := abs(number) <= 9223372036854775.807;
            IF good THEN s.ts := round(number * 1000); END IF;
        WHEN 'log' THEN
            allowed := 'an array of at most 10000 epoch milliseconds, oldest first';
            IF jsonb_typeof(given) = 'array' THEN times := ratelimit._times(given); END IF;
            good := cardinality(times) <= 10000 AND times = ARRAY(SELECT t FROM unnest(times) t ORDER BY t);
            s.log := ARRAY(SELECT ratelimit._nearest(t) FROM unnest(times) t ORDER BY t);
        WHEN 'leases' THEN
            allowed := 'an array of at most 1000 pairs of epoch milliseconds';
            IF jsonb_typeof(given) = 'array' THEN
                good := NOT jsonb_path_exists(given, 'strict $[*] ? (@.type() != "array" || @.size() != 2)');
                IF good THEN times := ratelimit._times(jsonb_path_query_array(given, '$[*][*]')); END IF;
            END IF;
            good := cardinality(times) <= 2000;
            s.leases := ratelimit._in_order(times);
        ELSE
            allowed := 'a finite number';
            good := abs(number) < 1.7976931348623158e308;
            float := CASE WHEN good THEN CASE WHEN abs(number) < 1e-307 THEN 0 ELSE number END END;
            IF field = 'value' THEN s.value := float; ELSIF field = 'added' THEN s.added := float;
            ELSE s.prior := float; END IF;
        END CASE;
        IF good IS NOT TRUE THEN
            problem := format('"%s" is %s', field, coalesce(ratelimit._short(given::text), 'missing'));
        END IF;
    END LOOP;
    IF problem IS NOT NULL THEN
        PERFORM ratelimit._raise('22023', 'invalid rate limit state: ' || problem, format('Allowed: %s.', allowed));
    END IF;
    RETURN s;
END
$$;

-- Not parallel safe, like rl_fixed_window.
@rl_calculate@ IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := ratelimit._us(at);
    l ratelimit._limit;
    s ratelimit._state;
    d ratelimit._decision;
    r ratelimit.rl_calculate_result;
BEGIN
    IF config IS NULL THEN PERFORM ratelimit._null('config'); END IF;
    IF at IS NULL THEN PERFORM ratelimit._null('at'); END IF;
    IF at IN ('infinity', '-infinity') THEN PERFORM ratelimit._bad('at', 'infinite', 'a finite time'); END IF;
    PERFORM ratelimit._check('-', '', count, reserve);
    l := ratelimit._parse(config);
    PERFORM ratelimit._check_count(l.kind, count);
    r.state := nullif(state, 'null');
    -- A fixed window without a start begins at the given time.
    IF r.state IS NULL THEN s := ratelimit._initial(l, now, now); ELSE s := ratelimit._read_state(l, state); END IF;
    d := ratelimit._decide(l, s, now, count, reserve);
    r.ok := d.ok;
    r.remaining := d.remaining;
    r.capacity := l.capacity;
    r.reset_at := ratelimit._shown(d.reset_at);
    r.retry_at := ratelimit._shown(ratelimit._plus(now, d.wait));
    IF r.retry_at IS NOT NULL THEN r.retry_after := d.wait::float8 / 1e6; END IF;
    d.state.added := NULL;
    IF d.changed THEN r.state := ratelimit._state_json(d.state); END IF;
    RETURN r;
END
$$;

-- Writes a parsed config with its defaults, so that nothing else is needed to decide calls on a state. phase: a start
-- of windows, for a config that names none.
CREATE OR REPLACE FUNCTION ratelimit._resolved(l ratelimit._limit, phase bigint) RETURNS jsonb STABLE
LANGUAGE sql AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'kind', l.kind,
        CASE l.kind WHEN 'concurrency' THEN 'slots' ELSE 'rate' END, ratelimit._number(l.rate),
        CASE l.kind WHEN 'concurrency' THEN 'ttl' ELSE 'period' END,
        CASE WHEN l.zone IS NULL THEN to_jsonb(ratelimit._millis(l.period))
            ELSE to_jsonb(concat(l.every, CASE WHEN l.months THEN ' month' ELSE ' day' END,
                                 CASE WHEN l.every > 1 THEN 's' END)) END,
        'capacity', CASE WHEN ratelimit._returns(l) THEN ratelimit._number(l.capacity) END,
        'maxReserved', ratelimit._number(l.max_reserved),
        'shards', CASE WHEN ratelimit._returns(l) THEN 1 END,
        'start', CASE WHEN l.kind <> 'fixed window' THEN NULL
            WHEN l.zone IS NOT NULL THEN to_jsonb(CASE WHEN l.first_date < date '0001-01-01' THEN '0000'
                ELSE to_char(l.first_date, 'YYYY') END || to_char(l.first_date, '-MM-DD'))
            WHEN l.first_request THEN to_jsonb('first request'::text)
            ELSE to_jsonb(ratelimit._millis(coalesce(l.start, phase - ratelimit._floor(phase, l.period)))) END,
        'timezone', l.zone, 'overage', CASE WHEN l.overage THEN true END,
        'enforce', CASE WHEN NOT l.enforce THEN false END, 'keyed', l.keyed))
$$;

@rl_value@ LANGUAGE plpgsql AS $$
DECLARE
    stored record;
    l ratelimit._limit;
    s ratelimit._state;
BEGIN
    PERFORM ratelimit._check(name, key), ratelimit._attend();
    stored := ratelimit._read(ratelimit._ask('rl_value', 'value', name, key, 0, false, config));
    l := stored.l;
    IF stored.has_state THEN s := ratelimit._reported(l, stored.s, stored.now); END IF;
    RETURN jsonb_build_object(
        -- A state fixes the phase of its windows.
        'config', ratelimit._resolved(l, CASE WHEN l.kind = 'fixed window' AND l.start IS NULL AND l.zone IS NULL
            AND NOT l.first_request THEN coalesce(s.ts, ratelimit._phase(name, key)) END),
        'state', CASE WHEN stored.has_state THEN ratelimit._state_json(s) END,
        'now', ratelimit._millis(stored.now),
        'blockedUntil', CASE WHEN ratelimit._us(stored.until) > stored.now
            THEN ratelimit._millis(ratelimit._us(ratelimit._rounded_up(ratelimit._us(stored.until)))) END);
END
$$;

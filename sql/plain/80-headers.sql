-- HTTP headers for the result of a call.

-- A whole number of at most 15 digits.
CREATE OR REPLACE FUNCTION ratelimit._whole(number double precision) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT trunc(least(greatest(number, 0), 999999999999999))::numeric::text
$$;

CREATE OR REPLACE FUNCTION ratelimit._seconds(us numeric) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN us IS NOT NULL THEN least(greatest(ceil(us / 1000000), 0), 999999999999999)::text END
$$;

-- The rate as whole tokens, and the whole seconds that they are for; without seconds for months and slots.
CREATE OR REPLACE FUNCTION ratelimit._policy(l ratelimit._limit, OUT quota text, OUT secs text) IMMUTABLE
LANGUAGE plpgsql AS $$
DECLARE
    period CONSTANT bigint := CASE WHEN l.kind = 'concurrency' OR l.months THEN NULL WHEN l.zone IS NOT NULL
                                   THEN l.every * 86400000000 ELSE l.period END;
    longer CONSTANT bigint := greatest(ceil(period::numeric / 1000000), 1) * 1000000;
    tokens CONSTANT double precision := CASE WHEN longer = period THEN l.rate ELSE l.rate * longer / period END;
BEGIN
    IF period IS NULL THEN
        quota := ratelimit._whole(greatest(floor(l.rate), 1));
    ELSIF tokens >= 1 THEN
        quota := ratelimit._whole(floor(tokens));
        secs := ratelimit._seconds(longer);
    ELSE
        quota := '1';
        secs := ratelimit._whole(ceil(CASE WHEN l.rate > 1e-100 THEN round(period / l.rate) / 1e6 ELSE 1e15 END));
    END IF;
END
$$;

-- Microseconds until there are more tokens: until the reset, or the retry of a denial; below one token, until there is
-- one. NULL if unknown.
CREATE OR REPLACE FUNCTION ratelimit._until_more(l ratelimit._limit, result ratelimit.rl_result, wait numeric,
    now numeric) RETURNS numeric STABLE LANGUAGE plpgsql AS $$
DECLARE
    reset CONSTANT numeric := ratelimit._us(result.reset_at) - now;
    until CONSTANT numeric := CASE WHEN reset IS NOT NULL THEN least(wait, reset) END;
    needs_one CONSTANT boolean := result.remaining < 1 AND result.capacity > 1;
BEGIN
    -- Tokens come back at several times, or not with the next window.
    IF l.kind IN ('sliding window', 'sliding log', 'concurrency')
        OR l.kind = 'fixed window' AND needs_one AND NOT l.overage AND result.remaining + l.rate < 1 THEN
        RETURN wait;
    END IF;
    IF l.kind <> 'token bucket' OR NOT needs_one THEN RETURN until; END IF;
    -- By the rate that fills it by the reset, to a whole millisecond.
    RETURN CASE WHEN until IS NOT NULL THEN least(until, round((reset::float8
        * ((1 - result.remaining) / (result.capacity - result.remaining)) / 1e3)::numeric) * 1000) END;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._check_style(style text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF style IS NULL THEN
        PERFORM ratelimit._null('style');
    ELSIF style NOT IN ('ietf', 'github', 'postgrest') THEN
        PERFORM ratelimit._bad('style', ratelimit._literal(ratelimit._short(style)),
            '''ietf'', ''github'' or ''postgrest''');
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._check_result(result ratelimit.rl_result, style text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    f record;
BEGIN
    IF result IS NOT DISTINCT FROM NULL THEN PERFORM ratelimit._null('result'); END IF;
    PERFORM ratelimit._check_style(style);
    IF result.ok IS NULL THEN PERFORM ratelimit._null('result.ok'); END IF;
    FOR f IN SELECT * FROM (VALUES
        ('retry_after', result.retry_after, NULL, 0, 1e13, 'a number of seconds from 0 to 1e13, or NULL'),
        ('retry_at', NULL, result.retry_at, 0, 0, 'a finite time'),
        ('remaining', result.remaining, NULL, -1.7976931348623157e308, 1.7976931348623157e308, 'a finite number'),
        ('capacity', result.capacity, NULL, 0, 1e15, 'a number from 0 to 1e15'),
        ('reset_at', NULL, result.reset_at, 0, 0, 'a finite time')
    ) AS fields (name, number, at, lowest, highest, allowed) LOOP
        IF f.number < f.lowest OR f.number > f.highest OR f.at IN ('infinity', '-infinity') THEN
            PERFORM ratelimit._bad('result.' || f.name, coalesce(ratelimit._digits(f.number), 'infinite'), f.allowed);
        ELSIF f.name IN ('remaining', 'capacity') AND f.number IS NULL
            AND (result.remaining IS NOT NULL OR result.capacity IS NOT NULL) THEN
            PERFORM ratelimit._null('result.' || f.name);
        END IF;
    END LOOP;
END
$$;

-- Writes results as headers, of one limit or of the requests of a call, in their order; denies: whether the request's
-- own limit denies it. GitHub's style has one limit: the one that denies with the longest wait, or else the one with
-- the smallest share left.
CREATE OR REPLACE FUNCTION ratelimit._headers(style text, names text[], limits ratelimit._limit[],
    results ratelimit.rl_result[], denies boolean[]) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    r ratelimit.rl_result;
    l ratelimit._limit;
    policy record;
    quoted text;
    wait numeric;
    longest numeric;
    longest_shown numeric;
    policies text[];
    currents text[];
    time_of_call CONSTANT numeric[] := ARRAY(
        -- The latest time in a result stands for all later ones.
        SELECT CASE WHEN u.retry_at < '9999-12-30 00:00:00+00'
                    THEN ratelimit._us(u.retry_at) - round((u.retry_after * 1e6)::numeric) END
        FROM unnest(results) WITH ORDINALITY u ORDER BY u.ordinality);
    now CONSTANT numeric := coalesce((SELECT t FROM unnest(time_of_call) WITH ORDINALITY u (t, n) WHERE t IS NOT NULL
                                      ORDER BY n LIMIT 1), ratelimit._ceil(ratelimit._now(), 1000));
    share double precision;
    smallest double precision;
    rank int;
    highest int := -1;
    headers jsonb := jsonb '[]';
BEGIN
    FOR i IN 1..cardinality(results) LOOP
        r := results[i];
        IF NOT r.ok AND r.retry_after IS NOT NULL THEN
            wait := least(round((r.retry_after * 1e6)::numeric), 9223372036854775807);
            longest := greatest(longest, wait);
            IF r.capacity IS NOT NULL THEN longest_shown := greatest(longest_shown, wait); END IF;
        END IF;
    END LOOP;
    FOR i IN 1..cardinality(results) LOOP
        r := results[i];
        CONTINUE WHEN r.capacity IS NULL;
        l := limits[i];
        wait := CASE WHEN NOT r.ok AND r.retry_after IS NOT NULL
                     THEN least(round((r.retry_after * 1e6)::numeric), 9223372036854775807) END;
        IF r.reset_at >= '9999-12-30 00:00:00+00' THEN r.reset_at := NULL; END IF;
        IF style = 'github' THEN
            rank := coalesce(CASE WHEN longest_shown IS NULL THEN denies[i] ELSE wait = longest_shown END, false)::int;
            share := greatest(least(r.remaining, 1e15), -1e15) / greatest(r.capacity, 1e-200);
            IF rank > highest OR rank = highest AND share < smallest THEN
                highest := rank;
                smallest := share;
                headers := jsonb_build_array(
                    jsonb_build_array('x-ratelimit-limit', ratelimit._whole(floor(r.capacity))),
                    jsonb_build_array('x-ratelimit-remaining', ratelimit._whole(floor(r.remaining))),
                    jsonb_build_array('x-ratelimit-used', ratelimit._whole(floor(r.capacity) - floor(r.remaining))),
                    jsonb_build_array('x-ratelimit-reset', ratelimit._seconds(ratelimit._us(r.reset_at))),
                    jsonb_build_array('x-ratelimit-resource', ratelimit._encoded(names[i], '% ')));
            END IF;
            CONTINUE;
        END IF;
        quoted := '"' || replace(replace(ratelimit._encoded(names[i], '%'), E'\\', E'\\\\'), '"', E'\\"') || '"';
        policy := ratelimit._policy(l);
        policies := policies || concat(quoted, ';q=',
            CASE l.kind WHEN 'unlimited' THEN ratelimit._whole(floor(r.capacity)) ELSE policy.quota END,
            CASE l.kind WHEN 'concurrency' THEN ';qu="concurrent-requests"' END, ';w=' || policy.secs);
        currents := currents || concat(quoted, ';r=', ratelimit._whole(floor(r.remaining)),
            ';t=' || ratelimit._seconds(ratelimit._until_more(l, r, wait, coalesce(time_of_call[i], now))));
    END LOOP;
    IF style <> 'github' THEN
        headers := jsonb_build_array(jsonb_build_array('RateLimit-Policy', array_to_string(policies, ', ')),
                                     jsonb_build_array('RateLimit', array_to_string(currents, ', ')));
    END IF;
    headers := headers || jsonb_build_array(jsonb_build_array(
        CASE style WHEN 'github' THEN 'retry-after' ELSE 'Retry-After' END, ratelimit._seconds(longest)));
    IF style = 'postgrest' THEN
        RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object(h ->> 0, h -> 1) ORDER BY n), '[]')
                FROM jsonb_array_elements(headers) WITH ORDINALITY u(h, n) WHERE h ->> 1 IS NOT NULL);
    END IF;
    RETURN (SELECT coalesce(jsonb_object_agg(h ->> 0, h -> 1), '{}') FROM jsonb_array_elements(headers) h
            WHERE h ->> 1 IS NOT NULL);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_headers(name text, result ratelimit.rl_result, style text DEFAULT 'ietf',
    config jsonb DEFAULT NULL, key text DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    l ratelimit._limit;
BEGIN
    PERFORM ratelimit._check(name, coalesce(key, '')), ratelimit._check_result(result, style);
    IF config IS NOT NULL THEN
        l := ratelimit._parse(config);
    ELSE
        key := coalesce(key, '');
        l := ratelimit._resolve('rl_headers', name, key, ratelimit._defined(name, key), NULL);
    END IF;
    RETURN ratelimit._headers(style, ARRAY[name], ARRAY[l], ARRAY[result], ARRAY[NOT result.ok]);
END
$$;

-- Refuses a row of rl_limit_all with fields of other types. Others are ignored.
CREATE OR REPLACE FUNCTION ratelimit._check_outcome(outcome jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    f record;
    given jsonb;
BEGIN
    IF jsonb_typeof(outcome) <> 'object' THEN
        PERFORM ratelimit._bad('it', ratelimit._type_of(outcome), 'an object, a row of rl_limit_all');
    END IF;
    FOR f IN SELECT * FROM (VALUES
        ('name', 'string', 'a string', NULL, NULL), ('key', 'string', 'a string', NULL, NULL),
        ('ok', 'boolean', 'true or false', NULL, NULL), ('allows', 'boolean', 'true or false', NULL, NULL),
        ('retry_after', 'number', 'a number of seconds from 0 to 1e13, or NULL', 0::numeric, 1e13),
        ('retry_at', 'time', 'a time with its offset', NULL, NULL),
        ('remaining', 'number', 'a finite number', -1.7976931348623157e308, 1.7976931348623157e308),
        ('capacity', 'number', 'a number from 0 to 1e15', 0, 1e15),
        ('reset_at', 'time', 'a time with its offset', NULL, NULL)
    ) AS fields (name, type, allowed, lowest, highest) LOOP
        given := nullif(outcome -> f.name, 'null');
        IF given IS NULL THEN
            IF f.name IN ('name', 'ok', 'allows') THEN PERFORM ratelimit._null(f.name); END IF;
        ELSIF (CASE f.type WHEN 'time' THEN ratelimit._time_of(given) IS NULL ELSE jsonb_typeof(given) <> f.type END)
            OR (CASE jsonb_typeof(given) WHEN 'number' THEN given::numeric NOT BETWEEN f.lowest AND f.highest END) THEN
            PERFORM ratelimit._bad(f.name,
                CASE f.name WHEN 'key' THEN ratelimit._type_of(given) ELSE ratelimit._short(given::text) END,
                f.allowed);
        END IF;
    END LOOP;
    IF coalesce(outcome -> 'remaining', 'null') = 'null' AND coalesce(outcome -> 'capacity', 'null') <> 'null' THEN
        PERFORM ratelimit._null('remaining');
    ELSIF coalesce(outcome -> 'remaining', 'null') <> 'null' AND coalesce(outcome -> 'capacity', 'null') = 'null' THEN
        PERFORM ratelimit._null('capacity');
    END IF;
END
$$;

-- A time with its offset; NULL for anything else.
CREATE OR REPLACE FUNCTION ratelimit._time_of(given jsonb) RETURNS timestamptz STABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN given #>> '{}' ~ ('^[0-9]{4}-[0-9]{2}-[0-9]{2}[ Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?'
                                       '([Zz]|[-+][0-9]{2}(:?[0-9]{2})?)$') THEN (given #>> '{}')::timestamptz END;
EXCEPTION WHEN datetime_field_overflow OR invalid_datetime_format THEN
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_headers_all(results jsonb, style text DEFAULT 'ietf') RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    outcome jsonb;
    i int;
    names text[];
    limits ratelimit._limit[];
    l ratelimit._limit;
    given ratelimit.rl_result[];
    r ratelimit.rl_result;
    denies boolean[];
    state text; message text; detail text; hint text;
BEGIN
    IF results IS NULL THEN PERFORM ratelimit._null('results'); END IF;
    PERFORM ratelimit._check_style(style);
    IF jsonb_typeof(results) = 'array' AND jsonb_array_length(results) > 10000 THEN
        PERFORM ratelimit._bad('results', 'a list of ' || jsonb_array_length(results), 'a list of at most 10000');
    ELSIF octet_length(results::text) > 5000000 THEN
        PERFORM ratelimit._bad('results', octet_length(results::text) || ' bytes long', 'at most 5000000 bytes');
    ELSIF jsonb_typeof(results) <> 'array' OR results = '[]' THEN
        PERFORM ratelimit._bad('results', ratelimit._type_of(results),
            'an array of the rows of rl_limit_all, as jsonb_agg(r ORDER BY n) makes it');
    END IF;
    BEGIN
        FOR outcome, i IN SELECT o, at FROM jsonb_array_elements(results) WITH ORDINALITY e(o, at) ORDER BY at LOOP
            PERFORM ratelimit._check_outcome(outcome);
        END LOOP;
        FOR outcome, i IN SELECT o, at FROM jsonb_array_elements(results) WITH ORDINALITY e(o, at) ORDER BY at LOOP
            PERFORM ratelimit._check(outcome ->> 'name', coalesce(outcome ->> 'key', ''));
            r := ROW((outcome ->> 'ok')::boolean, ratelimit._float((outcome ->> 'retry_after')::numeric),
                ratelimit._time_of(outcome -> 'retry_at'), ratelimit._float((outcome ->> 'remaining')::numeric),
                ratelimit._float((outcome ->> 'capacity')::numeric), ratelimit._time_of(outcome -> 'reset_at'));
            IF nullif(outcome -> 'config', 'null') IS NOT NULL THEN
                l := ratelimit._parse(outcome -> 'config');
            ELSE
                l := ratelimit._resolve('rl_headers', outcome ->> 'name', coalesce(outcome ->> 'key', ''),
                    ratelimit._defined(outcome ->> 'name', coalesce(outcome ->> 'key', '')), NULL);
            END IF;
            names[i] := outcome ->> 'name';
            limits[i] := l;
            given[i] := r;
            denies[i] := NOT r.ok AND NOT (outcome ->> 'allows')::boolean AND l.enforce;
        END LOOP;
    EXCEPTION WHEN invalid_parameter_value OR null_value_not_allowed OR undefined_object THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            hint = PG_EXCEPTION_HINT;
        PERFORM ratelimit._raise(state, format('request %s: %s', i, message), nullif(detail, ''), nullif(hint, ''));
    END;
    RETURN ratelimit._headers(style, names, limits, given, denies);
END
$$;

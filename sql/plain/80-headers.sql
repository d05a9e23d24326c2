-- HTTP headers for the result of a call.

-- A whole number of at most 15 digits.
CREATE OR REPLACE FUNCTION ratelimit._whole(number double precision) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT trunc(least(greatest(number, 0), 999999999999999))::numeric::text
$$;

CREATE OR REPLACE FUNCTION ratelimit._seconds(us numeric) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN us IS NOT NULL THEN least(greatest(ceil(us / 1000000), 0), 999999999999999)::text END
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

-- The types of a row's columns, of its binary form: that has their number, and of each its type, its length, which is
-- -1 for NULL, and its bytes. All are of those that PostgreSQL has, and none that may have a user's in it: json is made
-- of a user's type by a cast, which is code of the user's, and this runs as the limits' owner.
CREATE OR REPLACE FUNCTION ratelimit._column_types(sent bytea) RETURNS int[] STABLE LANGUAGE plpgsql AS $$
DECLARE
    place int := 5;
    types int[];
BEGIN
    WHILE place < length(sent) LOOP
        types := types || ('x' || encode(substr(sent, place, 4), 'hex'))::bit(32)::int;
        place := place + 8 + greatest(('x' || encode(substr(sent, place + 4, 4), 'hex'))::bit(32)::int, 0);
    END LOOP;
    IF EXISTS (
        SELECT FROM unnest(types) AS f (type)
        LEFT JOIN pg_type t ON t.oid = f.type::oid AND t.oid < 16384 -- FirstNormalObjectId
        LEFT JOIN pg_type e ON e.oid = t.typelem
        WHERE coalesce(t.typtype, 'c') NOT IN ('b', 'r', 'm') OR coalesce(e.typtype, 'b') NOT IN ('b', 'r', 'm')
    ) THEN
        PERFORM ratelimit._bad('result', 'a row with a column of another type than those of PostgreSQL',
            'the columns of a result, and others of these types; cast them, or leave them out');
    END IF;
    RETURN types;
END
$$;

-- Reads a row by the names of its columns, and checks it. Their types must be those of a result; the first column of a
-- name counts.
CREATE OR REPLACE FUNCTION ratelimit._result_of(result record) RETURNS ratelimit.rl_result STABLE LANGUAGE plpgsql
SET extra_float_digits = 1 AS $$
DECLARE
    -- PL/pgSQL plans a field for the type that it has first.
    found_types CONSTANT int[] := ratelimit._column_types(record_send(result));
    field record;
    fields jsonb := jsonb '{}';
    types jsonb := jsonb '{}';
    wanted record;
    r ratelimit.rl_result;
    wrong text[]; -- field, value, what is allowed
BEGIN
    FOR field IN
        SELECT e.key, e.value, e.n FROM json_each_text(row_to_json(result)) WITH ORDINALITY AS e (key, value, n)
    LOOP
        types := jsonb_build_object(field.key, found_types[field.n]) || types;
        fields := jsonb_build_object(field.key, field.value) || fields;
    END LOOP;
    FOR wanted IN SELECT * FROM (VALUES ('ok', 'boolean'), ('retry_after', 'double precision'),
        ('retry_at', 'timestamptz'), ('remaining', 'double precision'), ('capacity', 'double precision'),
        ('reset_at', 'timestamptz')) AS columns (name, type)
    LOOP
        IF types -> wanted.name IS DISTINCT FROM to_jsonb(wanted.type::regtype::oid::bigint) THEN
            PERFORM ratelimit._bad('result', format('a row without a column %s %s', wanted.name, wanted.type),
                'a row with ok, retry_after, retry_at, remaining, capacity and reset_at, as rl_limit() returns it');
        END IF;
    END LOOP;
    r.ok := (fields ->> 'ok')::boolean;
    r.retry_after := (fields ->> 'retry_after')::double precision;
    r.retry_at := (fields ->> 'retry_at')::timestamptz;
    r.remaining := (fields ->> 'remaining')::double precision;
    r.capacity := (fields ->> 'capacity')::double precision;
    r.reset_at := (fields ->> 'reset_at')::timestamptz;
    wrong := CASE
        WHEN r.ok IS NULL THEN ARRAY['ok']
        WHEN r.retry_after NOT BETWEEN 0 AND 1e13 THEN
            ARRAY['retry_after', ratelimit._digits(r.retry_after), 'a number of seconds from 0 to 1e13, or NULL']
        WHEN NOT isfinite(r.retry_at) THEN ARRAY['retry_at', 'infinite', 'a finite time']
        WHEN r.remaining NOT BETWEEN -1.7976931348623157e308 AND 1.7976931348623157e308 THEN
            ARRAY['remaining', ratelimit._digits(r.remaining), 'a finite number']
        WHEN r.remaining IS NULL AND r.capacity IS NOT NULL THEN ARRAY['remaining']
        WHEN r.capacity NOT BETWEEN 0 AND 1e15 THEN
            ARRAY['capacity', ratelimit._digits(r.capacity), 'a number from 0 to 1e15']
        WHEN r.capacity IS NULL AND r.remaining IS NOT NULL THEN ARRAY['capacity']
        WHEN NOT isfinite(r.reset_at) THEN ARRAY['reset_at', 'infinite', 'a finite time'] END;
    IF cardinality(wrong) = 1 THEN
        PERFORM ratelimit._null('result.' || wrong[1]);
    ELSIF wrong IS NOT NULL THEN
        PERFORM ratelimit._bad('result.' || wrong[1], wrong[2], wrong[3]);
    END IF;
    RETURN r;
END
$$;

-- When the call was, in microseconds; NULL if its result doesn't show it. The latest time in a result stands for all
-- later ones.
CREATE OR REPLACE FUNCTION ratelimit._time_of_call(result ratelimit.rl_result) RETURNS numeric STABLE LANGUAGE sql
AS $$
    SELECT CASE WHEN result.retry_at < '9999-12-30 00:00:00+00'
                THEN ratelimit._us(result.retry_at) - round((result.retry_after * 1e6)::numeric) END
$$;

-- Microseconds to wait after a denial; NULL if it is none, or can never succeed.
CREATE OR REPLACE FUNCTION ratelimit._wait(result ratelimit.rl_result) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN NOT result.ok AND result.retry_after IS NOT NULL
                THEN least(round((result.retry_after * 1e6)::numeric), 9223372036854775807) END
$$;

-- The items of a request in RateLimit-Policy and RateLimit; at: the time of the call. The policy is the rate as whole
-- tokens, and the whole seconds that they are for; without seconds for months and slots.
CREATE OR REPLACE FUNCTION ratelimit._items(name text, l ratelimit._limit, result ratelimit.rl_result, at numeric,
    OUT policy text, OUT current text) LANGUAGE plpgsql AS $$
DECLARE
    quoted CONSTANT text :=
        '"' || replace(replace(ratelimit._encoded(name, '%'), E'\\', E'\\\\'), '"', E'\\"') || '"';
    period CONSTANT bigint := CASE WHEN l.kind = 'concurrency' OR l.months THEN NULL WHEN l.zone IS NOT NULL
                                   THEN l.every * 86400000000 ELSE l.period END;
    longer CONSTANT bigint := greatest(ceil(period::numeric / 1000000), 1) * 1000000;
    tokens CONSTANT double precision := CASE WHEN longer = period THEN l.rate ELSE l.rate * longer / period END;
BEGIN
    IF l.kind = 'unlimited' THEN
        policy := concat(quoted, ';q=', ratelimit._whole(floor(result.capacity)));
    ELSIF period IS NULL THEN
        policy := concat(quoted, ';q=', ratelimit._whole(greatest(floor(l.rate), 1)),
            CASE l.kind WHEN 'concurrency' THEN ';qu="concurrent-requests"' END);
    ELSIF tokens >= 1 THEN
        policy := concat(quoted, ';q=', ratelimit._whole(floor(tokens)), ';w=', ratelimit._seconds(longer));
    ELSE
        policy := concat(quoted, ';q=1;w=', ratelimit._whole(
            ceil(CASE WHEN l.rate > 1e-100 THEN round(period / l.rate) / 1e6 ELSE 1e15 END)));
    END IF;
    IF result.reset_at >= '9999-12-30 00:00:00+00' THEN result.reset_at := NULL; END IF;
    current := concat(quoted, ';r=', ratelimit._whole(floor(result.remaining)),
        ';t=' || ratelimit._seconds(ratelimit._until_more(l, result, ratelimit._wait(result), at)));
END
$$;

-- The headers of these items, and of a wait; NULL: without.
CREATE OR REPLACE FUNCTION ratelimit._ietf(style text, policy text, current text, wait numeric) RETURNS jsonb
STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN style = 'ietf' THEN jsonb_strip_nulls(jsonb_build_object(
                     'RateLimit-Policy', policy, 'RateLimit', current, 'Retry-After', ratelimit._seconds(wait)))
           ELSE CASE WHEN policy IS NULL THEN '[]' ELSE jsonb_build_array(
                    jsonb_build_object('RateLimit-Policy', policy), jsonb_build_object('RateLimit', current)) END
                || CASE WHEN wait IS NULL THEN '[]'
                        ELSE jsonb_build_array(jsonb_build_object('Retry-After', ratelimit._seconds(wait))) END
           END
$$;

-- The headers of GitHub's style. A result without a capacity has none but for the wait.
CREATE OR REPLACE FUNCTION ratelimit._github(name text, result ratelimit.rl_result, wait numeric) RETURNS jsonb
STABLE LANGUAGE sql AS $$
    SELECT jsonb_strip_nulls(CASE WHEN result.capacity IS NULL THEN '{}' ELSE jsonb_build_object(
            'x-ratelimit-limit', ratelimit._whole(floor(result.capacity)),
            'x-ratelimit-remaining', ratelimit._whole(floor(result.remaining)),
            'x-ratelimit-used', ratelimit._whole(floor(result.capacity) - floor(result.remaining)),
            'x-ratelimit-reset', CASE WHEN result.reset_at < '9999-12-30 00:00:00+00'
                                      THEN ratelimit._seconds(ratelimit._us(result.reset_at)) END,
            'x-ratelimit-resource', ratelimit._encoded(name, '% ')) END
        || jsonb_build_object('retry-after', ratelimit._seconds(wait)))
$$;

-- The limit of a result: from its config, or as defined.
CREATE OR REPLACE FUNCTION ratelimit._limit_of_result(name text, key text, config jsonb) RETURNS ratelimit._limit
LANGUAGE plpgsql AS $$
BEGIN
    IF config IS NOT NULL THEN RETURN ratelimit._parse(config); END IF;
    PERFORM ratelimit._attend();
    RETURN ratelimit._resolve(ratelimit._ask('rl_headers', 'headers', name, key, 0), ratelimit._defined(name, key));
END
$$;

@rl_headers@ LANGUAGE plpgsql AS $$
DECLARE
    l ratelimit._limit;
    r ratelimit.rl_result;
    items record;
BEGIN
    PERFORM ratelimit._check(name, '');
    IF result IS NOT DISTINCT FROM NULL THEN PERFORM ratelimit._null('result'); END IF;
    PERFORM ratelimit._check(name, key), ratelimit._check_style(style);
    r := ratelimit._result_of(result);
    l := ratelimit._limit_of_result(name, key, config);
    IF style = 'github' THEN
        RETURN ratelimit._github(name, r, ratelimit._wait(r));
    ELSIF r.capacity IS NULL THEN
        RETURN ratelimit._ietf(style, NULL, NULL, ratelimit._wait(r));
    END IF;
    items := ratelimit._items(name, l, r,
        coalesce(ratelimit._time_of_call(r), ratelimit._ceil(ratelimit._now(), 1000)));
    RETURN ratelimit._ietf(style, items.policy, items.current, ratelimit._wait(r));
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
        ('ok', 'boolean', 'true or false', NULL, NULL),
        ('limited_by', 'word', 'block, slots or tokens, or NULL', NULL, NULL),
        ('retry_after', 'number', 'a number of seconds from 0 to 1e13, or NULL', 0::numeric, 1e13),
        ('retry_at', 'time', 'a time with its offset', NULL, NULL),
        ('remaining', 'number', 'a finite number', -1.7976931348623157e308, 1.7976931348623157e308),
        ('capacity', 'number', 'a number from 0 to 1e15', 0, 1e15),
        ('reset_at', 'time', 'a time with its offset', NULL, NULL)
    ) AS fields (name, type, allowed, lowest, highest) LOOP
        given := nullif(outcome -> f.name, 'null');
        IF given IS NULL THEN
            IF f.name IN ('name', 'ok') THEN PERFORM ratelimit._null(f.name); END IF;
        ELSIF (CASE f.type WHEN 'time' THEN ratelimit._time_of(given) IS NULL
                    WHEN 'word' THEN given NOT IN ('"block"', '"slots"', '"tokens"')
                    ELSE jsonb_typeof(given) <> f.type END)
            OR (CASE jsonb_typeof(given) WHEN 'number' THEN given::numeric NOT BETWEEN f.lowest AND f.highest END) THEN
            PERFORM ratelimit._bad(f.name,
                CASE f.name WHEN 'key' THEN ratelimit._type_of(given) ELSE ratelimit._short(given::text) END,
                f.allowed);
        END IF;
    END LOOP;
    given := nullif(outcome -> 'remaining', 'null');
    IF (given IS NULL) <> (nullif(outcome -> 'capacity', 'null') IS NULL) THEN
        PERFORM ratelimit._null(CASE WHEN given IS NULL THEN 'remaining' ELSE 'capacity' END);
    END IF;
END
$$;

-- A time with its offset; NULL for anything else.
CREATE OR REPLACE FUNCTION ratelimit._time_of(given jsonb) RETURNS timestamptz STABLE LANGUAGE plpgsql AS $$
BEGIN
    -- A leap second is the one before.
    RETURN CASE WHEN given #>> '{}' ~ (
        '^[0-9]{4}-[0-9]{2}-[0-9]{2}[ Tt]([01][0-9]|2[0-3]):[0-9]{2}(:([0-5][0-9]|60)([.][0-9]{1,9})?)?'
        '([Zz]|[-+](0[0-9]|1[0-5])(:?[0-5][0-9]|:[0-5][0-9]:[0-5][0-9])?)$')
        THEN regexp_replace(given #>> '{}', '^(.{16}):60', '\1:59')::timestamptz END;
EXCEPTION WHEN datetime_field_overflow OR invalid_datetime_format THEN
    RETURN NULL;
END
$$;

-- One RateLimit and one RateLimit-Policy with an item of each request, in their order. GitHub's style has one limit:
-- the one that denies with the longest wait, or else the one with the smallest share left.
@rl_headers_all@ LANGUAGE plpgsql AS $$
DECLARE
    outcome jsonb;
    i int;
    names text[];
    limits ratelimit._limit[];
    given ratelimit.rl_result[];
    r ratelimit.rl_result;
    denies boolean[]; -- whether the request's own limit does
    wait numeric;
    longest numeric;
    longest_shown numeric;
    now numeric; -- the time of the first request that shows it
    items record;
    policies text[];
    currents text[];
    rank int;
    highest int;
    share double precision;
    smallest double precision;
    shown int;
    state text; message text; detail text; hint text;
BEGIN
    IF results IS NULL THEN PERFORM ratelimit._null('results'); END IF;
    PERFORM ratelimit._check_style(style), ratelimit._check_list(results, 'results', 5000000,
        'an array of the rows of rl_limit_all, as jsonb_agg(r ORDER BY n) makes it');
    BEGIN
        FOR outcome, i IN SELECT o, at FROM jsonb_array_elements(results) WITH ORDINALITY e(o, at) ORDER BY at LOOP
            PERFORM ratelimit._check_outcome(outcome);
        END LOOP;
        FOR outcome, i IN SELECT o, at FROM jsonb_array_elements(results) WITH ORDINALITY e(o, at) ORDER BY at LOOP
            PERFORM ratelimit._check(outcome ->> 'name', coalesce(outcome ->> 'key', ''));
            r.ok := (outcome ->> 'ok')::boolean;
            r.retry_after := ratelimit._float((outcome ->> 'retry_after')::numeric);
            r.retry_at := ratelimit._time_of(outcome -> 'retry_at');
            r.remaining := ratelimit._float((outcome ->> 'remaining')::numeric);
            r.capacity := ratelimit._float((outcome ->> 'capacity')::numeric);
            r.reset_at := ratelimit._time_of(outcome -> 'reset_at');
            limits[i] := ratelimit._limit_of_result(outcome ->> 'name', coalesce(outcome ->> 'key', ''),
                                                    nullif(outcome -> 'config', 'null'));
            names[i] := outcome ->> 'name';
            given[i] := r;
            denies[i] := NOT r.ok AND coalesce(outcome -> 'limited_by', 'null') <> 'null' AND limits[i].enforce;
            now := coalesce(now, ratelimit._time_of_call(r));
            wait := ratelimit._wait(r);
            longest := greatest(longest, wait);
            IF r.capacity IS NOT NULL THEN longest_shown := greatest(longest_shown, wait); END IF;
        END LOOP;
    EXCEPTION WHEN invalid_parameter_value OR null_value_not_allowed OR undefined_object THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            hint = PG_EXCEPTION_HINT;
        PERFORM ratelimit._raise(state, format('request %s: %s', i, message), nullif(detail, ''), nullif(hint, ''));
    END;
    now := coalesce(now, ratelimit._ceil(ratelimit._now(), 1000));
    FOR i IN 1..cardinality(given) LOOP
        r := given[i];
        CONTINUE WHEN r.capacity IS NULL;
        IF style <> 'github' THEN
            items := ratelimit._items(names[i], limits[i], r, coalesce(ratelimit._time_of_call(r), now));
            policies := policies || items.policy;
            currents := currents || items.current;
            CONTINUE;
        END IF;
        rank := coalesce(CASE WHEN longest_shown IS NULL THEN denies[i]
                              ELSE ratelimit._wait(r) = longest_shown END, false)::int;
        share := greatest(least(r.remaining, 1e15), -1e15) / greatest(r.capacity, 1e-200);
        IF shown IS NULL OR rank > highest OR rank = highest AND share < smallest THEN
            highest := rank;
            smallest := share;
            shown := i;
        END IF;
    END LOOP;
    IF style = 'github' THEN RETURN ratelimit._github(names[shown], given[shown], longest); END IF;
    RETURN ratelimit._ietf(style, array_to_string(policies, ', '), array_to_string(currents, ', '), longest);
END
$$;

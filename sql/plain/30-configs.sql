-- Configs: parsed from JSON, built from arguments.

CREATE OR REPLACE FUNCTION ratelimit._bad_config(problem text, allowed text, kind text DEFAULT NULL,
    calendar boolean DEFAULT false) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._raise('22023', 'invalid rate limit config: ' || problem, format('Allowed: %s.', allowed),
        'For example: ' || ratelimit._example('sendMessage', coalesce(kind, 'token bucket'), calendar));
END
$$;

-- Reads a duration from text; NULLs if it is none.
CREATE OR REPLACE FUNCTION ratelimit._duration(given text, OUT months numeric, OUT days numeric, OUT micros numeric)
IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    number CONSTANT text := '([0-9]+(?:[.,][0-9]{1,9})?)';
    units CONSTANT text[] := '{years?|yrs?|y,months?|mos?,weeks?|wks?|w,days?|d,hours?|hrs?|h,minutes?|mins?|m,
        seconds?|secs?|s,milliseconds?|millis?|msecs?|ms,microseconds?|micros?|usecs?|us,
        nanoseconds?|nanos?|nsecs?|ns}'::text[];
    micros_of CONSTANT numeric[] := '{3600000000,60000000,1000000,1000,1,0.001}'::numeric[];
    space CONSTANT text := format('[ %s%s%s%s]', chr(9), chr(10), chr(12), chr(13));
    rest text;
    part text[];
    unit int := 0;
    next_unit int;
    amount numeric;
BEGIN
    -- Write the micro sign as u, since not every encoding has it; other bytes above 127 become \nnn.
    rest := replace(encode(convert_to(regexp_replace(given, '^[+]', ''), 'UTF8'), 'escape'), E'\\302\\265s', 'us');
    IF rest ~* '^P' THEN
        part := regexp_match(rest, format('^P(?:([0-9]+)Y)?(?:([0-9]+)M)?(?:([0-9]+)W)?(?:([0-9]+)D)?'
            '(?:T(?:%1$sH)?(?:%1$sM)?(?:%1$sS)?)?$', number), 'i');
        IF part IS NULL OR rest ~* '^P$|T$' OR rest ~* '[.,][0-9]+[HM].' THEN RETURN; END IF;
        part := ARRAY(SELECT coalesce(replace(p, ',', '.'), '0') FROM unnest(part) WITH ORDINALITY u(p, n) ORDER BY n);
        months := part[1]::numeric * 12 + part[2]::numeric;
        days := part[3]::numeric * 7 + part[4]::numeric;
        micros := trunc((part[5]::numeric * 3600 + part[6]::numeric * 60 + part[7]::numeric) * 1000000);
        RETURN;
    END IF;
    months := 0; days := 0; micros := 0;
    rest := regexp_replace(rest, space || '+$', '');
    LOOP
        -- A time of day comes last, after larger units.
        part := regexp_match(rest, '^([0-9]+):([0-9]+):([0-9]+(?:[.,][0-9]{1,9})?)$');
        IF part IS NOT NULL AND unit <= 4 THEN
            micros := part[1]::numeric * 3600000000 + part[2]::numeric * 60000000
                      + replace(part[3], ',', '.')::numeric * 1000000;
            EXIT;
        END IF;
        part := regexp_match(rest, replace(format('^%s~*([a-z]+)(?:,~+|~+(?=[0-9])|(?=[0-9])|$)(.*)$', number), '~',
            space));
        next_unit := (SELECT n FROM unnest(units) WITH ORDINALITY u(names, n)
                  WHERE part[2] ~ format('^(%s)$', btrim(names, E' \n')));
        -- Units go from large to small; only the last unit of time may have a fraction.
        IF next_unit IS NULL OR next_unit <= unit OR part[1] ~ '[.,]' AND (next_unit <= 4 OR part[3] <> '') THEN
            months := NULL; days := NULL; micros := NULL;
            RETURN;
        END IF;
        unit := next_unit;
        amount := replace(part[1], ',', '.')::numeric;
        CASE unit
            WHEN 1 THEN months := months + amount * 12;
            WHEN 2 THEN months := months + amount;
            WHEN 3 THEN days := days + amount * 7;
            WHEN 4 THEN days := days + amount;
            ELSE micros := micros + amount * micros_of[unit - 4];
        END CASE;
        rest := part[3];
        EXIT WHEN rest = '';
    END LOOP;
    micros := trunc(micros);
END
$$;

-- Reads a start; NULL if it is none.
CREATE OR REPLACE FUNCTION ratelimit._start(given jsonb) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    at timestamptz;
BEGIN
    IF jsonb_typeof(given) = 'number' THEN
        RETURN CASE WHEN abs(given::numeric) <= 8.64e15 THEN round(given::numeric * 1000) END;
    ELSIF given #>> '{}' ~ ('^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?'
                            '([Zz]|[-+][0-9]{2}(:?[0-9]{2})?(:?[0-9]{2})?)$') THEN
        at := (given #>> '{}')::timestamptz;
        RETURN ratelimit._us(at);
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._first_date(given jsonb) RETURNS date IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    text CONSTANT text := given #>> '{}';
    day date;
BEGIN
    IF jsonb_typeof(given) = 'string' AND text ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$' THEN
        day := make_date(CASE left(text, 4) WHEN '0000' THEN -1 ELSE left(text, 4)::int END,
                         substr(text, 6, 2)::int, right(text, 2)::int);
    END IF;
    RETURN day;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END
$$;

-- Refuses fields that the kind doesn't have, and unknown kinds.
CREATE OR REPLACE FUNCTION ratelimit._check_fields(config jsonb, kind text, fields text[]) RETURNS void
IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    own text[] := fields;
    any_kind text[];
    common CONSTANT text[] := '{store,save,enforce,keyed,applyUpdates}'::text[];
    field text;
BEGIN
    IF kind IS NOT NULL AND config - (own || common || '{kind}'::text[]) = '{}' THEN RETURN; END IF;
    IF config ? 'plan' THEN
        PERFORM ratelimit._bad_config('"plan" is ' || ratelimit._short((config -> 'plan')::text),
            'only in the definition of a key, without other fields', 'plan');
    END IF;
    any_kind := ARRAY(SELECT f FROM ratelimit._all_kinds() WITH ORDINALITY k,
        unnest(k.fields) WITH ORDINALITY u(f, n) GROUP BY f ORDER BY min(k.ordinality * 100 + n));
    own := coalesce(fields, any_kind);
    field := (SELECT f FROM jsonb_object_keys(config) f WHERE f <> ALL (own || common || '{kind}'::text[])
              ORDER BY octet_length(f), f COLLATE "C" LIMIT 1);
    IF field IS NOT NULL THEN
        PERFORM ratelimit._bad_config(CASE WHEN kind IS NOT NULL AND field = ANY (any_kind)
            THEN format('"%s" is %s, and %s has no such field', field, ratelimit._short((config -> field)::text),
                        ratelimit._called(kind))
            ELSE to_json(ratelimit._short(field)) || ' is not a field' END,
            (SELECT string_agg(format('"%s"', f), ', ' ORDER BY n)
             FROM unnest('{kind}'::text[] || own || common) WITH ORDINALITY u(f, n)), kind, config ? 'timezone');
    ELSE
        PERFORM ratelimit._bad_config('"kind" is ' || coalesce(ratelimit._short((config -> 'kind')::text), 'missing'),
            (SELECT concat(string_agg(format('"%s"', k.kind), ', ' ORDER BY n) FILTER (WHERE n < total), ' or ',
                           string_agg(format('"%s"', k.kind), '') FILTER (WHERE n = total))
             FROM (SELECT a.kind, row_number() OVER () AS n, count(*) OVER () AS total
                   FROM ratelimit._all_kinds() a) k));
    END IF;
END
$$;

-- Parses a config. It checks fields in a fixed order, so that of several errors it reports the same one.
CREATE OR REPLACE FUNCTION ratelimit._parse(config jsonb) RETURNS ratelimit._limit IMMUTABLE STRICT
LANGUAGE plpgsql AS $$
DECLARE
    length CONSTANT int := octet_length(config::text);
    is_calendar CONSTANT boolean := config ? 'timezone';
    l ratelimit._limit;
    fields text[];
    field text;
    given jsonb;
    number numeric;
    float double precision;
    span record;
    good boolean;
BEGIN
    IF length > 10000 THEN
        PERFORM ratelimit._bad_config(format('it is %s bytes long', length), 'at most 10000 bytes');
    ELSIF jsonb_typeof(config) <> 'object' THEN
        PERFORM ratelimit._bad_config('it is ' || ratelimit._short(config::text),
            'an object such as {"kind": "token bucket", "rate": 10, "period": "1 minute"}');
    END IF;
    SELECT k.kind, k.letter, k.fields INTO l.kind, l.letter, fields
    FROM ratelimit._all_kinds() k WHERE to_jsonb(k.kind) = config -> 'kind';
    PERFORM ratelimit._check_fields(config, l.kind, fields);
    l.enforce := config -> 'enforce' IS DISTINCT FROM 'false';
    l.keyed := config -> 'keyed' = 'true';
    l.overage := config -> 'overage' IS NOT DISTINCT FROM 'true';
    l.first_request := false;
    FOREACH field IN ARRAY fields || '{store,save,applyUpdates,enforce,keyed}'::text[] LOOP
        given := config -> field;
        CONTINUE WHEN given IS NULL AND field NOT IN ('rate', 'period', 'slots', 'ttl');
        number := CASE WHEN jsonb_typeof(given) = 'number' THEN given::numeric END;
        -- A number that no field allows may have too many digits for a float.
        float := CASE WHEN abs(number) <= 1e300 THEN ratelimit._float(number) END;
        CASE field
            WHEN 'rate', 'slots' THEN
                good := CASE l.kind WHEN 'sliding log' THEN number BETWEEN 1 AND 10000 AND number = trunc(number)
                        WHEN 'concurrency' THEN number BETWEEN 1 AND 1000 AND number = trunc(number)
                        ELSE float > 0 AND float <= 1e15 END;
                IF good THEN l.rate := float; l.capacity := float; END IF;
            WHEN 'period', 'ttl' THEN
                IF jsonb_typeof(given) = 'string' THEN
                    span := ratelimit._duration(given #>> '{}');
                    IF NOT is_calendar THEN
                        IF span.months = 0 THEN number := (span.days * 86400000000 + span.micros) / 1000; END IF;
                    ELSIF span.micros = 0 AND (span.months = 0 AND span.days BETWEEN 1 AND 36525
                                               OR span.days = 0 AND span.months BETWEEN 1 AND 1200) THEN
                        l.months := span.months > 0;
                        l.every := greatest(span.months, span.days);
                        l.first_date := CASE WHEN l.months THEN date '1970-01-01' ELSE '1970-01-05' END;
                    END IF;
                END IF;
                IF NOT is_calendar AND number BETWEEN 1 AND 1e15 THEN l.period := round(number * 1000); END IF;
                good := coalesce(l.period, l.every) IS NOT NULL;
            WHEN 'capacity', 'maxReserved' THEN
                good := float BETWEEN 0 AND 1e15;
                IF field = 'capacity' THEN l.capacity := float; ELSE l.max_reserved := float; END IF;
            WHEN 'shards' THEN
                good := number BETWEEN 1 AND 1024 AND number = trunc(number);
            WHEN 'start' THEN
                IF l.kind = 'token bucket' THEN
                    good := jsonb_typeof(given) = 'null'; -- as the Convex rate limiter allows it
                ELSIF is_calendar THEN
                    l.first_date := ratelimit._first_date(given);
                    good := l.first_date IS NOT NULL;
                ELSE
                    l.first_request := given = '"first request"';
                    l.start := ratelimit._start(given);
                    good := l.first_request OR l.start IS NOT NULL;
                END IF;
            WHEN 'timezone' THEN
                l.zone := CASE WHEN jsonb_typeof(given) = 'string' THEN given #>> '{}' END;
                good := l.zone = ANY (ratelimit._zones());
            WHEN 'store' THEN good := given IN ('"table"', '"memory"');
            WHEN 'save' THEN good := true; -- refused below
            WHEN 'applyUpdates' THEN good := given IN ('"transactionally"', '"asynchronously"');
            ELSE good := jsonb_typeof(given) = 'boolean';
        END CASE;
        IF good IS NOT TRUE THEN
            PERFORM ratelimit._bad_config(
                format('"%s" is %s', field, coalesce(ratelimit._short(given::text), 'missing')),
                ratelimit._allowed(field, l.kind, is_calendar), l.kind, is_calendar);
        ELSIF field = 'overage' AND l.overage AND config ? 'maxReserved' THEN
            PERFORM ratelimit._bad_config('"maxReserved" is ' || (config ->> 'maxReserved'),
                'none if "overage" is true: no call has to wait', l.kind, is_calendar);
        END IF;
    END LOOP;
    IF config ? 'save' OR config @> '{"store": "memory"}' OR config ->> 'applyUpdates' <> 'transactionally' THEN
        PERFORM ratelimit._unsupported('a limit in memory', 'stores every limit in the table: leave "store" out');
    ELSIF (config ->> 'shards')::numeric > 1 THEN
        PERFORM ratelimit._unsupported('a limit with shards', 'stores a key in one row: leave "shards" out');
    END IF;
    l.tolerance := 1e-9 * greatest(l.capacity, 1);
    l.usual := coalesce(l.letter = 't', false) AND l.enforce AND l.zone IS NULL
        AND NOT (l.keyed IS NOT NULL OR l.overage OR l.first_request)
        AND l.rate > 1e-200 AND l.capacity * l.period < 1e17 * l.rate; -- full again within the times of a bigint
    IF l.kind = 'fixed window' THEN l.adds := least(l.rate, l.capacity); END IF;
    RETURN l;
END
$$;

-- The plan that a key's config names: the key has the definition of that limit. NULL: it is a config of its own.
CREATE OR REPLACE FUNCTION ratelimit._plan_name(config jsonb, key text) RETURNS text IMMUTABLE STRICT
LANGUAGE plpgsql AS $$
BEGIN
    IF config -> 'plan' IS NULL OR octet_length(config::text) > 10000 THEN
        RETURN NULL;
    ELSIF key = '' OR config - 'plan' <> '{}' THEN
        PERFORM ratelimit._parse(config); -- which refuses it
    ELSIF jsonb_typeof(config -> 'plan') <> 'string' OR octet_length(config ->> 'plan') NOT BETWEEN 1 AND 200 THEN
        PERFORM ratelimit._bad_config('"plan" is ' || ratelimit._short((config -> 'plan')::text),
            'the name of a limit, 1 to 200 bytes', 'plan');
    END IF;
    RETURN config ->> 'plan';
END
$$;

-- The values that a field allows.
CREATE OR REPLACE FUNCTION ratelimit._allowed(field text, kind text, is_calendar boolean) RETURNS text
IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE field
        WHEN 'rate' THEN CASE kind WHEN 'sliding log' THEN 'a whole number from 1 to 10000'
                         ELSE 'a number greater than 0, at most 1e15' END
        WHEN 'capacity' THEN 'a number from 0 to 1e15'
        WHEN 'maxReserved' THEN 'a number from 0 to 1e15'
        WHEN 'shards' THEN 'a whole number from 1 to 1024'
        WHEN 'slots' THEN 'a whole number from 1 to 1000'
        WHEN 'start' THEN CASE WHEN kind = 'token bucket' THEN 'null, or none: a token bucket has no windows'
            WHEN is_calendar THEN 'with "timezone", a local date such as "2027-01-31"' ELSE
            'epoch milliseconds, a time with its offset such as "2027-01-01T00:00:00Z", or "first request"' END
        WHEN 'timezone' THEN 'the IANA name of a time zone in its exact spelling, such as "Europe/Berlin"'
        WHEN 'store' THEN '"table" or "memory"'
        WHEN 'applyUpdates' THEN '"transactionally" or "asynchronously"'
        WHEN 'overage' THEN 'true or false' WHEN 'enforce' THEN 'true or false' WHEN 'keyed' THEN 'true or false'
        ELSE CASE WHEN is_calendar AND kind = 'fixed window'
            THEN 'with "timezone", a whole number of days and weeks, or of months and years, at most 100 years, '
                'such as "7 days" or "1 month"'
            ELSE 'a number of milliseconds from 1 to 1e15, or a duration such as "1 minute" or "PT1M"; a day is 24 '
                'hours; months and years only in a fixed window with "timezone"' END END
$$;

-- Writes a float as JSON with every digit, under any setting.
CREATE OR REPLACE FUNCTION ratelimit._number(number double precision) RETURNS jsonb IMMUTABLE LANGUAGE sql
SET extra_float_digits = 1 AS $$
    SELECT to_jsonb(number::text::numeric)
$$;

-- Builds a config from arguments, and checks it.
CREATE OR REPLACE FUNCTION ratelimit._build(kind text, rate double precision, period interval,
    capacity double precision DEFAULT NULL, max_reserved double precision DEFAULT NULL, shards int DEFAULT NULL,
    start timestamptz DEFAULT NULL, first_request boolean DEFAULT NULL, zone text DEFAULT NULL,
    overage boolean DEFAULT NULL, keyed boolean DEFAULT NULL, store text DEFAULT NULL, save interval DEFAULT NULL,
    enforce boolean DEFAULT NULL)
RETURNS jsonb IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    rate_field CONSTANT text := CASE kind WHEN 'concurrency' THEN 'slots' ELSE 'rate' END;
    period_field CONSTANT text := CASE kind WHEN 'concurrency' THEN 'ttl' ELSE 'period' END;
    calendar CONSTANT boolean := zone IS NOT NULL;
    months int := extract(year FROM period) * 12 + extract(month FROM period);
    days int := extract(day FROM period);
    micros numeric := extract(hour FROM period) * 3600000000 + extract(minute FROM period) * 60000000
                      + extract(microsecond FROM period);
    infinite record;
    config jsonb;
BEGIN
    IF rate IS NULL THEN PERFORM ratelimit._null(rate_field); END IF;
    IF period IS NULL THEN PERFORM ratelimit._null(period_field); END IF;
    IF start IN ('infinity', '-infinity') THEN PERFORM ratelimit._bad('start', 'infinite', 'a finite time'); END IF;
    IF octet_length(zone) > 10000 THEN
        PERFORM ratelimit._bad('timezone', octet_length(zone) || ' bytes long', 'at most 10000 bytes');
    ELSIF octet_length(store) > 10000 THEN
        PERFORM ratelimit._bad('store', octet_length(store) || ' bytes long', 'at most 10000 bytes');
    END IF;
    IF start IS NOT NULL AND first_request THEN
        PERFORM ratelimit._bad_config('"start" and "first_request" are both given', 'one of the two', kind, calendar);
    END IF;
    SELECT * INTO infinite FROM (VALUES (rate_field, rate), ('capacity', capacity), ('maxReserved', max_reserved))
        AS given(field, number) WHERE number IN ('NaN', 'Infinity', '-Infinity') LIMIT 1;
    IF FOUND THEN
        PERFORM ratelimit._bad_config(format('"%s" is %s', infinite.field, infinite.number), 'a finite number',
            kind, calendar);
    END IF;
    config := jsonb_strip_nulls(jsonb_build_object(
        'kind', kind,
        rate_field, ratelimit._number(rate),
        period_field, CASE WHEN months = 0 AND zone IS NULL
            THEN to_jsonb(trim_scale((days * 86400000000::numeric + micros) / 1000))
            ELSE to_jsonb(concat_ws(' ', CASE WHEN months <> 0 THEN months || CASE months WHEN 1 THEN ' month'
                    ELSE ' months' END END,
                CASE WHEN days <> 0 THEN days || CASE days WHEN 1 THEN ' day' ELSE ' days' END END,
                CASE WHEN micros <> 0 OR months = 0 AND days = 0 THEN trim_scale(micros / 1000000) || ' s' END)) END,
        'capacity', ratelimit._number(capacity), 'maxReserved', ratelimit._number(max_reserved), 'shards', shards,
        'start', CASE WHEN first_request THEN to_jsonb('first request'::text)
            WHEN start IS NULL OR zone <> ALL (ratelimit._zones()) THEN NULL
            WHEN start < '10000-01-02' AND timezone(zone, start) < '10000-01-01' AND start > '0001-01-02'
                THEN to_jsonb(to_char(timezone(zone, start), 'YYYY-MM-DD'))
            ELSE to_jsonb(ratelimit._millis(ratelimit._us(start))) END,
        'timezone', zone, 'overage', overage, 'keyed', keyed, 'store', store, 'save', save::text, 'enforce', enforce));
    PERFORM ratelimit._parse(config);
    RETURN config;
END
$$;

@rl_token_bucket@ IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
    RETURN ratelimit._build('token bucket', rate, period, capacity, max_reserved, shards, keyed => keyed,
        store => store, save => save, enforce => enforce);
END
$$;

-- Not parallel safe: reading a start may need a subtransaction.
@rl_fixed_window@ IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN ratelimit._build('fixed window', rate, period, capacity, max_reserved, shards, start, first_request,
        timezone, overage, keyed, store, save, enforce);
END
$$;

@rl_sliding_window@ IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
    RETURN ratelimit._build('sliding window', rate, period, keyed => keyed, store => store, save => save,
        enforce => enforce);
END
$$;

@rl_sliding_log@ IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
    RETURN ratelimit._build('sliding log', rate, period, keyed => keyed, enforce => enforce);
END
$$;

@rl_concurrency@ IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
    RETURN ratelimit._build('concurrency', slots, ttl, keyed => keyed, store => store, save => save,
        enforce => enforce);
END
$$;

@rl_unlimited@ IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('kind', 'unlimited', 'keyed', keyed))
$$;

-- The names of time zones as the server spells them. They are kept, since reading pg_timezone_names takes 70 ms.
DO LANGUAGE plpgsql $do$
BEGIN
    EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION ratelimit._zones() RETURNS text[] IMMUTABLE LANGUAGE sql AS '
        '$$ SELECT %L::text[] $$', (SELECT pg_catalog.array_agg(z.name ORDER BY z.name)
            FROM pg_catalog.pg_timezone_names z WHERE z.name !~ '^(posix|right)/'
            AND z.name <> ALL ('{posixrules,localtime,Factory,Etc/Unknown}'::text[])));
END
$do$;

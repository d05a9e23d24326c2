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

CREATE OR REPLACE FUNCTION ratelimit._check_result(result ratelimit.rl_result, style text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    f record;
BEGIN
    IF result IS NOT DISTINCT FROM NULL THEN PERFORM ratelimit._null('result'); END IF;
    IF style IS NULL THEN PERFORM ratelimit._null('style'); END IF;
    IF style NOT IN ('ietf', 'github', 'postgrest') THEN
        PERFORM ratelimit._bad('style', ratelimit._literal(ratelimit._short(style)),
            '''ietf'', ''github'' or ''postgrest''');
    ELSIF result.ok IS NULL THEN
        PERFORM ratelimit._null('result.ok');
    END IF;
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

CREATE OR REPLACE FUNCTION ratelimit.rl_headers(name text, result ratelimit.rl_result, style text DEFAULT 'ietf',
    config jsonb DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    l ratelimit._limit;
    policy record;
    quoted text;
    wait numeric;
    now numeric;
    until numeric;
    headers jsonb := jsonb '[]';
BEGIN
    PERFORM ratelimit._check(name, ''), ratelimit._check_result(result, style);
    IF NOT result.ok AND result.retry_after IS NOT NULL THEN
        wait := least(round((result.retry_after * 1e6)::numeric), 9223372036854775807);
    END IF;
    IF config IS NOT NULL THEN
        l := ratelimit._parse(config);
    ELSE
        l := ratelimit._resolve('rl_headers', name, '', ratelimit._defined(name, ''), NULL);
    END IF;
    -- The latest time in a result stands for all later ones.
    IF result.retry_at < '9999-12-30 00:00:00+00' THEN
        now := ratelimit._us(result.retry_at) - round((result.retry_after * 1e6)::numeric);
    END IF;
    IF result.reset_at >= '9999-12-30 00:00:00+00' THEN result.reset_at := NULL; END IF;
    now := coalesce(now, ratelimit._ceil(ratelimit._now(), 1000));
    IF result.capacity IS NULL THEN
        NULL;
    ELSIF style = 'github' THEN
        headers := jsonb_build_array(
            jsonb_build_array('x-ratelimit-limit', ratelimit._whole(floor(result.capacity))),
            jsonb_build_array('x-ratelimit-remaining', ratelimit._whole(floor(result.remaining))),
            jsonb_build_array('x-ratelimit-used', ratelimit._whole(floor(result.capacity) - floor(result.remaining))),
            jsonb_build_array('x-ratelimit-reset', ratelimit._seconds(ratelimit._us(result.reset_at))),
            jsonb_build_array('x-ratelimit-resource', ratelimit._encoded(name, '% ')));
    ELSE
        quoted := '"' || replace(replace(ratelimit._encoded(name, '%'), E'\\', E'\\\\'), '"', E'\\"') || '"';
        policy := ratelimit._policy(l);
        until := ratelimit._until_more(l, result, wait, now);
        headers := jsonb_build_array(
            jsonb_build_array('RateLimit-Policy', concat(quoted, ';q=',
                CASE l.kind WHEN 'unlimited' THEN ratelimit._whole(floor(result.capacity)) ELSE policy.quota END,
                CASE l.kind WHEN 'concurrency' THEN ';qu="concurrent-requests"' END, ';w=' || policy.secs)),
            jsonb_build_array('RateLimit', concat(quoted, ';r=', ratelimit._whole(floor(result.remaining)),
                ';t=' || ratelimit._seconds(until))));
    END IF;
    headers := headers || jsonb_build_array(jsonb_build_array(
        CASE style WHEN 'github' THEN 'retry-after' ELSE 'Retry-After' END, ratelimit._seconds(wait)));
    IF style = 'postgrest' THEN
        RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object(h ->> 0, h -> 1) ORDER BY n), '[]')
                FROM jsonb_array_elements(headers) WITH ORDINALITY u(h, n) WHERE h ->> 1 IS NOT NULL);
    END IF;
    RETURN (SELECT coalesce(jsonb_object_agg(h ->> 0, h -> 1), '{}') FROM jsonb_array_elements(headers) h
            WHERE h ->> 1 IS NOT NULL);
END
$$;

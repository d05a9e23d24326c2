-- Errors, with the extension's SQLSTATEs, messages, details and hints.

CREATE OR REPLACE FUNCTION ratelimit._raise(state text, message text, detail text DEFAULT NULL, hint text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF detail IS NOT NULL AND hint IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, DETAIL = detail, HINT = hint;
    ELSIF detail IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, DETAIL = detail;
    ELSIF hint IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, HINT = hint;
    END IF;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._bad(argument text, value text, allowed text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._raise('22023', format('%s is %s', argument, value), format('Allowed: %s.', allowed));
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._null(argument text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._raise('22004', argument || ' must not be NULL', NULL, CASE WHEN argument ~ '^key( |$)' THEN
        'A missing user id must not take from the limit that everybody shares. To use that limit, omit the key.' END);
END
$$;

-- Raises an error for what only the extension has.
CREATE OR REPLACE FUNCTION ratelimit._unsupported(what text, instead text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._raise('0A000', what || ' requires the extension ratelimit',
        'This database has the limiter as an SQL file, which ' || instead || '.');
END
$$;

-- Cuts a value to fit a message.
CREATE OR REPLACE FUNCTION ratelimit._short(value text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN length(value) > 80 THEN left(value, 80) || '...' ELSE value END
$$;

-- Reads a number of JSON as a float, also one so near to 0 that PostgreSQL's cast refuses it.
CREATE OR REPLACE FUNCTION ratelimit._float(number numeric) RETURNS double precision IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN abs(number) > 2.4703282292062327e-324 THEN number::float8 WHEN number IS NOT NULL THEN 0 END
$$;

-- Writes a float as the extension does, in digits below 1e16.
CREATE OR REPLACE FUNCTION ratelimit._digits(number double precision) RETURNS text IMMUTABLE LANGUAGE sql
SET extra_float_digits = 1 AS $$
    SELECT CASE WHEN abs(number) >= 1e15 AND abs(number) < 1e16 THEN number::bigint::text
                ELSE regexp_replace(number::text, 'e([-+])0', E'e\\1') END
$$;

CREATE OR REPLACE FUNCTION ratelimit._literal(name text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT '''' || replace(name, '''', '''''') || ''''
$$;

CREATE OR REPLACE FUNCTION ratelimit._wrong_kind(function text, kind text, name text DEFAULT NULL,
    verb text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._raise('0A000', format('%s() is not supported for %s', function, ratelimit._called(kind)),
        CASE WHEN verb = 'hold' AND kind <> 'concurrency' THEN
                 'Only token buckets and fixed windows can be given tokens back.'
             WHEN verb = 'credit' THEN 'Only token buckets and fixed windows can be credited.'
             WHEN kind = 'concurrency' THEN 'Its slots are taken with leases.'
             ELSE 'Only concurrency limits have leases.' END,
        CASE WHEN verb = 'hold' AND kind <> 'concurrency' THEN
                 format('Take them: SELECT * FROM ratelimit.rl_limit(%s, $1, 10);', ratelimit._literal(name))
             WHEN verb = 'hold' THEN
                 format('Take one, or hold it together with other limits: SELECT * FROM ratelimit.rl_acquire(%s, $1);',
                        ratelimit._literal(name))
             WHEN kind = 'concurrency' THEN
                 'Use ratelimit.rl_acquire(name, key) to take a slot and ratelimit.rl_release(lease) to release it.'
             WHEN verb = 'credit' THEN 'Use ratelimit.rl_reset(name, key) to make the limit full again.'
             ELSE 'SELECT * FROM ratelimit.rl_limit(name, key);' END);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._bad_state(name text, col text, value text, tab text DEFAULT 'rateLimits')
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._raise('55000', format('rate limit "%s" has a stored %s of %s', name, col, value), NULL,
        format('To make it full again: SELECT ratelimit.rl_reset(%1$s, $1); To find its key: SELECT key FROM '
               '%2$s WHERE name = %1$s AND %3$s;', ratelimit._literal(name),
               replace('ratelimit.rateLimits', 'rateLimits', tab),
               CASE value WHEN 'NULL' THEN col || ' IS NULL'
               ELSE format('''%s'' = %s', value, CASE col WHEN 'log' THEN 'ANY (log)' ELSE col END) END));
END
$$;

-- Raises an error for a row of a limit with a value that no call writes.
CREATE OR REPLACE FUNCTION ratelimit._bad_row(r ratelimit._row) RETURNS void STABLE LANGUAGE plpgsql AS $$
DECLARE
    is_letter CONSTANT boolean := r.kind::int BETWEEN 32 AND 126 AND r.kind NOT IN ('''', E'\\');
    elements CONSTANT bigint := (SELECT count(e) FROM unnest(r.leases) e);
    col text := CASE WHEN r.kind IS NULL THEN 'kind' WHEN r.value IS NULL THEN 'value' WHEN r.ts IS NULL THEN 'ts' END;
    value text;
BEGIN
    IF col IS NOT NULL THEN
        PERFORM ratelimit._raise('55000', format('a stored %s is NULL', col), NULL, 'To make such limits full again: '
            'DELETE FROM ratelimit.rateLimits WHERE kind IS NULL OR value IS NULL OR ts IS NULL;');
    END IF;
    SELECT v.col, coalesce(v.value, 'NULL') INTO col, value FROM (VALUES
        (1, CASE WHEN is_letter THEN 'kind' ELSE 'kind::integer' END,
            CASE WHEN is_letter THEN r.kind::text ELSE r.kind::int::text END,
            r.kind IN ('t', 's', 'l', 'c', '-', '#', '=')),
        (2, 'value', r.value::text, r.value > '-Infinity' AND r.value < 'Infinity'),
        (3, 'prior', r.prior::text, r.kind <> 's' OR r.prior > '-Infinity' AND r.prior < 'Infinity'),
        (4, 'added', r.added::text, r.kind <> 't' OR r.added > '-Infinity' AND r.added < 'Infinity' OR r.added IS NULL),
        (5, 'ts', initcap(r.ts::text), isfinite(r.ts)),
        (6, 'log', CASE WHEN '-infinity' = ANY (r.log) THEN '-Infinity' WHEN r.log IS NOT NULL THEN 'Infinity' END,
            r.kind <> 'l' OR r.log IS NOT NULL AND ('infinity' = ANY (r.log) OR '-infinity' = ANY (r.log)) IS NOT TRUE),
        (7, 'leases', NULL, r.kind <> 'c' OR r.leases IS NOT NULL),
        (8, 'cardinality(leases)', elements::text, false)) AS v (n, col, value, fine)
    WHERE v.fine IS NOT TRUE ORDER BY v.n LIMIT 1;
    PERFORM ratelimit._bad_state(r.name, col, value);
END
$$;

-- Raises an error for a hold with a value that no call writes.
CREATE OR REPLACE FUNCTION ratelimit._bad_hold(name text, count double precision, spent double precision,
    returned double precision, taken_at timestamptz, expires_at timestamptz) RETURNS double precision STABLE
LANGUAGE plpgsql AS $$
DECLARE
    col text;
    value text;
BEGIN
    SELECT v.col, v.value INTO col, value FROM (VALUES
        (1, 'count', ratelimit._digits(count), count >= 0 AND count < 'Infinity'),
        (2, 'spent', ratelimit._digits(spent), spent >= 0 AND spent <= count),
        (3, 'returned', ratelimit._digits(returned), returned >= 0 AND returned < 'Infinity'),
        (4, 'taken_at', initcap(taken_at::text), isfinite(taken_at)),
        (5, 'expires_at', initcap(expires_at::text), isfinite(expires_at))) AS v (n, col, value, fine)
    WHERE v.fine IS NOT TRUE ORDER BY v.n LIMIT 1;
    IF value IS NULL THEN
        PERFORM ratelimit._raise('55000', format('a stored %s is NULL', col), NULL,
            format('To delete such rows: DELETE FROM ratelimit.rl_holds WHERE %s IS NULL;', col));
    END IF;
    PERFORM ratelimit._bad_state(name, col, value, 'rl_holds');
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._not_written(table_name text DEFAULT 'rateLimits') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._raise('55000', 'the rate limit could not be stored', format('A trigger, a rule or row security '
        'on the table %s prevents rows from being written or read.', table_name));
END
$$;

-- Raises an error for a limit without a kind: one that a call of an earlier version has read, before this file ran.
CREATE OR REPLACE FUNCTION ratelimit._updated() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._raise('40001', 'the rate limiter was updated during the call', NULL, 'Repeat the call.');
END
$$;

-- Raises a denial, with a trigger's message for end users.
CREATE OR REPLACE FUNCTION ratelimit._denied(name text, d ratelimit._decision, said text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    millis bigint := ratelimit._ceil(d.wait, 1000) / 1000;
    message CONSTANT text := 'rate limit exceeded';
    detail text := format('{"kind":"RateLimited","name":%s,"retryAfter":%s}', to_json(name),
        coalesce(millis::text, 'null'));
    hint text := CASE
        WHEN said IS NOT NULL THEN said
        WHEN millis = 0 THEN 'Try again at once: other transactions hold the limit''s rows.'
        WHEN millis = 1000 THEN 'Try again in 1 second.'
        WHEN millis IS NOT NULL THEN format('Try again in %s seconds.', ratelimit._digits(millis::float8 / 1000))
        WHEN d.forever THEN 'The key is blocked indefinitely.'
        ELSE format('The call can never succeed: the count is more than a limit of capacity %s can give.',
                    ratelimit._digits(d.capacity)) END;
    style text := coalesce(nullif(current_setting('ratelimit.error_style', true), ''),
        (SELECT s.value FROM ONLY ratelimit.rl_settings s WHERE s.name = 'error_style'));
BEGIN
    IF lower(style) = 'pgrst' THEN
        PERFORM ratelimit._raise('PGRST',
            format('{"code":"PT429","details":%s,"hint":%s,"message":%s}', to_json(detail), to_json(hint),
                   to_json(coalesce(said, message))),
            format('{"headers":{%s},"status":429}',
                   '"Retry-After":"' || ratelimit._ceil(d.wait, 1000000) / 1000000 || '"'));
    END IF;
    -- Here, so that the log has fewer lines of CONTEXT.
    RAISE EXCEPTION USING ERRCODE = 'PT429', MESSAGE = message, DETAIL = detail, HINT = hint;
END
$$;

-- Checks the arguments of a call.
CREATE OR REPLACE FUNCTION ratelimit._check(name text, key text, count double precision DEFAULT 1,
    reserve boolean DEFAULT false, throws boolean DEFAULT false) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF name IS NULL THEN
        PERFORM ratelimit._null('name');
    ELSIF octet_length(name) NOT BETWEEN 1 AND 200 THEN
        PERFORM ratelimit._bad('name', octet_length(name) || ' bytes long', '1 to 200 bytes');
    ELSIF key IS NULL THEN
        PERFORM ratelimit._null('key');
    ELSIF octet_length(key) > 1024 THEN
        PERFORM ratelimit._bad('key', octet_length(key) || ' bytes long',
            'at most 1024 bytes; pass a hash of a longer key');
    ELSIF count IS NULL THEN
        PERFORM ratelimit._null('count');
    ELSIF reserve IS NULL THEN
        PERFORM ratelimit._null('reserve');
    ELSIF throws IS NULL THEN
        PERFORM ratelimit._null('throws');
    END IF;
END
$$;

-- A check of the tables: its errors don't show the row.
CREATE OR REPLACE FUNCTION ratelimit._valid(name text, key text) RETURNS boolean IMMUTABLE STRICT LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._check(name, key);
    RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._check_count(kind text, count double precision, argument text DEFAULT 'count')
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (count >= 0 AND count <= 1e15) IS NOT TRUE THEN
        PERFORM ratelimit._bad(argument, ratelimit._digits(count), 'a number from 0 to 1e15');
    ELSIF kind IN ('sliding log', 'concurrency') AND count <> trunc(count) THEN
        PERFORM ratelimit._bad(argument, ratelimit._digits(count), 'a whole number, for ' || ratelimit._called(kind));
    END IF;
END
$$;

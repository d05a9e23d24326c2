-- Leases of concurrency limits: name/key/id, percent-encoded.

-- Percent-encodes all but visible ASCII, blanks included, and the given characters.
CREATE OR REPLACE FUNCTION ratelimit._encoded(given text, but text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT coalesce(string_agg(CASE WHEN byte BETWEEN 32 AND 126 AND position(chr(byte) IN but) = 0 THEN chr(byte)
                               ELSE '%' || upper(lpad(to_hex(byte), 2, '0')) END, '' ORDER BY i), '')
    FROM convert_to(given, 'UTF8') bytes, generate_series(0, octet_length(bytes) - 1) i,
         LATERAL (SELECT get_byte(bytes, i)) b (byte)
$$;

-- NULL if it isn't encoded that way.
CREATE OR REPLACE FUNCTION ratelimit._decoded(given text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    bytes bytea := bytea '';
    part text;
BEGIN
    FOR part IN SELECT (regexp_matches(given, '%[0-9A-F]{2}|[^%]+|.', 'g'))[1] LOOP
        bytes := bytes || CASE WHEN part ~ '^%..$' THEN decode(right(part, 2), 'hex') ELSE convert_to(part, 'UTF8') END;
    END LOOP;
    RETURN CASE WHEN position(decode('00', 'hex') IN bytes) = 0 THEN convert_from(bytes, 'UTF8') END;
EXCEPTION WHEN data_exception OR character_not_in_repertoire OR untranslatable_character THEN
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._lease(name text, key text, id text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT concat_ws('/', ratelimit._encoded(name, ' %/'), ratelimit._encoded(key, ' %/'), id)
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_acquire(name text, key text DEFAULT '', count double precision DEFAULT 1,
    throws boolean DEFAULT false, config jsonb DEFAULT NULL) RETURNS ratelimit.rl_acquire_result
LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    a ratelimit.rl_result;
    r ratelimit.rl_acquire_result;
BEGIN
    PERFORM ratelimit._check(name, key, count, false, throws);
    d := ratelimit._change('rl_acquire', name, key, count, false, config, NULL, ratelimit._random_id());
    IF throws AND NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
    a := ratelimit._answer(d);
    r.ok := a.ok; r.retry_after := a.retry_after; r.retry_at := a.retry_at; r.remaining := a.remaining;
    r.capacity := a.capacity; r.reset_at := a.reset_at; r.limited_by := a.limited_by;
    IF d.changed THEN
        r.lease := ratelimit._lease(name, key, d.lease::text);
        r.expires_at := ratelimit._shown(d.ends);
    END IF;
    RETURN r;
END
$$;

-- Extends or releases a lease. Returns when it expires, NULL if it had expired or was released.
CREATE OR REPLACE FUNCTION ratelimit._change_lease(function text, lease text, config jsonb) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    -- A longer text is no lease, and would take long to read.
    parts text[] := CASE WHEN octet_length(lease) <= 4000 THEN string_to_array(lease, '/') END;
    lease_name CONSTANT text := ratelimit._decoded(parts[1]);
    lease_key CONSTANT text := ratelimit._decoded(parts[2]);
    l ratelimit._limit;
    id bigint;
    now bigint;
    stored record;
    r ratelimit._row;
    live bigint[];
    rest bigint[];
    ends bigint;
BEGIN
    IF (cardinality(parts) = 3 AND octet_length(lease_name) BETWEEN 1 AND 200 AND octet_length(lease_key) <= 1024
        AND parts[3] ~ '^-?(0|[1-9][0-9]{0,17})$' AND ratelimit._lease(lease_name, lease_key, parts[3]) = lease)
        IS NOT TRUE THEN
        PERFORM ratelimit._bad('lease', 'malformed', 'a lease that rl_acquire() returned');
    END IF;
    PERFORM ratelimit._attend();
    SELECT f.* INTO stored FROM ratelimit._look_up(lease_name, lease_key) f;
    l := ratelimit._resolve(function, lease_name, lease_key, stored.defined, config);
    IF l.kind = 'unlimited' THEN RETURN CASE function WHEN 'rl_extend' THEN 9223372036854775807 END; END IF;
    IF l.kind <> 'concurrency' THEN PERFORM ratelimit._wrong_kind(function, l.kind); END IF;
    PERFORM ratelimit._writable(function);
    id := parts[3]::bigint;
    r := stored.r;
    -- A plain read first: a missing lease needs no lock.
    FOR reads IN 1..2 LOOP
        IF reads = 2 THEN r := ratelimit._lock(lease_name, lease_key); END IF;
        now := ratelimit._now();
        live := ratelimit._live((ratelimit._state_of(l, r, now)).leases, now);
        rest := '{}';
        ends := NULL;
        FOR i IN 1..cardinality(live) BY 2 LOOP
            IF live[i] <> id THEN
                rest := rest || live[i:i + 1];
            ELSE
                -- Not sooner than before: the clock may have stepped back, or the ttl have become shorter.
                ends := greatest(live[i + 1], ratelimit._plus(now, l.period));
                IF function = 'rl_extend' THEN rest := rest || ARRAY[id, ends]; END IF;
            END IF;
        END LOOP;
        IF ends IS NULL THEN RETURN NULL; END IF;
    END LOOP;
    r.leases := ratelimit._in_order(rest);
    r.value := cardinality(rest) / 2;
    r.ts := greatest(r.ts, ratelimit._nearest(now));
    PERFORM ratelimit._write_row(r);
    RETURN ends;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_extend(lease text, config jsonb DEFAULT NULL) RETURNS timestamptz
LANGUAGE plpgsql AS $$
BEGIN
    -- That of an exempt key: there is nothing to extend.
    RETURN ratelimit._shown(CASE WHEN lease IS NULL THEN 9223372036854775807
                            ELSE ratelimit._change_lease('rl_extend', lease, config) END);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_release(lease text, config jsonb DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN lease IS NULL OR ratelimit._change_lease('rl_release', lease, config) IS NOT NULL;
END
$$;

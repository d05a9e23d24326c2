-- Leases of concurrency limits: name/key/id, percent-encoded.

-- Percent-encodes all but visible ASCII, blanks included, and the given characters; most texts have none of these.
CREATE OR REPLACE FUNCTION ratelimit._escaped(given text, but text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT coalesce(string_agg(CASE WHEN byte BETWEEN 32 AND 126 AND position(chr(byte) IN but) = 0 THEN chr(byte)
                               ELSE '%' || upper(lpad(to_hex(byte), 2, '0')) END, '' ORDER BY i), '')
    FROM convert_to(given, 'UTF8') bytes, generate_series(0, octet_length(bytes) - 1) i,
         LATERAL (SELECT get_byte(bytes, i)) b (byte)
$$;

CREATE OR REPLACE FUNCTION ratelimit._encoded(given text, but text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN given COLLATE "C" ~ '^[ -~]*$' AND translate(given, but, '') = given THEN given
                ELSE ratelimit._escaped(given, but) END
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
    SELECT ratelimit._encoded(name, ' %/') || '/' || ratelimit._encoded(key, ' %/') || '/' || id
$$;

@rl_acquire@ LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    a ratelimit.rl_result;
    r ratelimit.rl_acquire_result;
BEGIN
    PERFORM ratelimit._check(name, key, count, false, throws);
    d := (ratelimit._one(ratelimit._ask('rl_acquire', 'take', name, key, count, false, config,
                                                  ratelimit._random_id()))).d;
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

-- Extends or releases a lease. Nothing has changed if it had expired or was released, or the key is exempt.
CREATE OR REPLACE FUNCTION ratelimit._change_lease(function text, verb text, lease text, config jsonb)
RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE
    -- A longer text is no lease, and would take long to read.
    parts text[] := CASE WHEN octet_length(lease) <= 4000 THEN string_to_array(lease, '/') END;
    name CONSTANT text := ratelimit._decoded(parts[1]);
    key CONSTANT text := ratelimit._decoded(parts[2]);
BEGIN
    IF (cardinality(parts) = 3 AND octet_length(name) BETWEEN 1 AND 200 AND octet_length(key) <= 1024
        AND parts[3] ~ '^-?(0|[1-9][0-9]{0,17})$' AND ratelimit._lease(name, key, parts[3]) = lease) IS NOT TRUE THEN
        PERFORM ratelimit._bad('lease', 'malformed', 'a lease that rl_acquire() returned');
    END IF;
    RETURN (ratelimit._one(ratelimit._ask(function, verb, name, key, 0, false, config,
                                                    parts[3]::bigint))).d;
END
$$;

@rl_extend@ LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
BEGIN
    -- NULL is the lease of an exempt key: there is nothing to extend.
    IF lease IS NULL THEN RETURN ratelimit._shown(9223372036854775807); END IF;
    d := ratelimit._change_lease('rl_extend', 'extend', lease, config);
    RETURN ratelimit._shown(CASE WHEN d.changed THEN d.ends WHEN d.capacity IS NULL THEN 9223372036854775807 END);
END
$$;

@rl_release@ LANGUAGE plpgsql AS $$
BEGIN
    RETURN lease IS NULL OR (ratelimit._change_lease('rl_release', 'release', lease, config)).changed;
END
$$;

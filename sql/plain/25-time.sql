-- Time, in whole microseconds since 1970.

-- A function that every call uses is one small SQL expression: PL/pgSQL prepares expressions again in each transaction,
-- which costs more than computing them.

CREATE OR REPLACE FUNCTION ratelimit._far_us(at timestamptz) RETURNS bigint STABLE STRICT LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN at >= '294247-01-01 00:00:00+00' THEN 9223372036854775807
                WHEN at = '-infinity' THEN -9222425352054775808 ELSE extract(epoch FROM at) * 1000000 END;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._us(at timestamptz) RETURNS bigint STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN at >= '1970-01-01 00:00:00+00' AND at < '2096-01-01 00:00:00+00'
                THEN round(date_part('epoch', at) * 1e6)::bigint ELSE ratelimit._far_us(at) END
$$;

-- NULL where timestamptz has no such time.
CREATE OR REPLACE FUNCTION ratelimit._far_instant(us bigint) RETURNS timestamptz STABLE STRICT LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN us >= -210866803200000000 AND us <= 9223371331199000000
                THEN timestamptz '1970-01-01 00:00:00+00' + (us / 86400000000) * interval '24 hours'
                     + (us % 86400000000) * interval '1 microsecond' END;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._instant(us bigint) RETURNS timestamptz STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN us >= 0 AND us < 3976214400000000 THEN to_timestamp(us::float8 / 1e6)
                ELSE ratelimit._far_instant(us) END
$$;

-- Converts to the nearest time that timestamptz has.
CREATE OR REPLACE FUNCTION ratelimit._nearest(us bigint) RETURNS timestamptz STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN us >= 0 AND us < 3976214400000000 THEN to_timestamp(us::float8 / 1e6)
                ELSE ratelimit._far_instant(greatest(least(us, 9223371331199000000), -210866803200000000)) END
$$;

-- Rounds up to a multiple of a unit, at most to the largest bigint.
CREATE OR REPLACE FUNCTION ratelimit._ceil(us bigint, unit bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN us < 9223372036853775807 THEN us + ((-us) % unit + unit) % unit
                WHEN us % unit = 0 THEN us WHEN us IS NOT NULL THEN 9223372036854775807 END
$$;

-- A time in a result. Drivers have no times after the year 9999, so later ones and infinity are 9999-12-30 UTC.
CREATE OR REPLACE FUNCTION ratelimit._shown(us bigint) RETURNS timestamptz STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN us >= 253402128000000000 THEN timestamptz '9999-12-30 00:00:00+00'
                ELSE ratelimit._instant(us) END
$$;

-- The same, rounded up to a millisecond.
CREATE OR REPLACE FUNCTION ratelimit._rounded_up(us bigint) RETURNS timestamptz STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN us >= 0 AND us < 3976214400000000 THEN to_timestamp(ceil(us::float8 / 1e3) / 1e3)
                ELSE ratelimit._shown(ratelimit._ceil(us, 1000)) END
$$;

CREATE OR REPLACE FUNCTION ratelimit._floor(us bigint, period bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
    SELECT us - ((us % period) + period) % period
$$;

-- Adds a span of 0 or more, at most to the largest bigint.
CREATE OR REPLACE FUNCTION ratelimit._plus(us bigint, span bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN us > 9223372036854775807 - span THEN 9223372036854775807 ELSE us + span END
$$;

-- The span from ts to now; 0 if ts is later.
CREATE OR REPLACE FUNCTION ratelimit._since(ts bigint, now bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN ts >= now THEN 0 WHEN ts >= 0 THEN now - ts
                ELSE least(now::numeric - ts, 9223372036854775807)::bigint END
$$;

-- The role that calls, as far as a SECURITY DEFINER function can see it.
CREATE OR REPLACE FUNCTION ratelimit._caller() RETURNS name STABLE LANGUAGE sql AS $$
    SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$$;

-- The clock that the limits' owner has set by ratelimit.clock. Any role can set it, since no library declares it.
CREATE OR REPLACE FUNCTION ratelimit._set_clock(given text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER') THEN
        PERFORM ratelimit._raise('42501', 'permission denied to set parameter "ratelimit.clock"');
    END IF;
    IF given ~* '^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[-+]?[0-9]{1,2})?$' THEN
        IF given::float8 BETWEEN -210866803200000 AND 8.64e15 THEN RETURN round(given::numeric * 1000); END IF;
    ELSIF given ~ ('^[^ ]+[ Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?'
                   '([Zz]|[-+][0-9]{2}(:?[0-9]{2})?(:?[0-9]{2})?)( BC)?$') THEN
        RETURN ratelimit._us(given::timestamptz);
    END IF;
    PERFORM ratelimit._raise('22023', format('invalid value for parameter "ratelimit.clock": "%s"', given),
        'Allowed: a time with its offset, or epoch milliseconds.');
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._now() RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN current_setting('ratelimit.clock', true) <> ''
                THEN ratelimit._set_clock(current_setting('ratelimit.clock', true))
                ELSE round(date_part('epoch', clock_timestamp()) * 1e6)::bigint END
$$;

-- The phase of windows without a start: XXH64 of name, a zero byte and key, as in the extension. See
-- https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
CREATE OR REPLACE FUNCTION ratelimit._phase(name text, key text) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    m CONSTANT numeric := 18446744073709551616;
    p CONSTANT numeric[] := '{11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579,
                              2870177450012600261}'::numeric[];
    bytes bytea := convert_to(name, 'UTF8') || decode('00', 'hex') || convert_to(key, 'UTF8');
    n int := octet_length(bytes);
    i int;
    v numeric[] := ARRAY[(p[1] + p[2]) % m, p[2], 0, m - p[1]];
    h numeric := p[5];
BEGIN
    IF n >= 32 THEN
        FOR at IN 0..n / 32 * 4 - 1 LOOP
            i := at % 4 + 1;
            v[i] := ratelimit._rotate((v[i] + ratelimit._word(bytes, at * 8, 8) * p[2]) % m, 31) * p[1] % m;
        END LOOP;
        h := (ratelimit._rotate(v[1], 1) + ratelimit._rotate(v[2], 7) + ratelimit._rotate(v[3], 12)
              + ratelimit._rotate(v[4], 18)) % m;
        FOR j IN 1..4 LOOP
            h := (ratelimit._xor(h, ratelimit._rotate(v[j] * p[2] % m, 31) * p[1] % m) * p[1] + p[4]) % m;
        END LOOP;
    END IF;
    h := (h + n) % m;
    FOR at IN n / 32 * 4..n / 8 - 1 LOOP
        h := ratelimit._xor(h, ratelimit._rotate(ratelimit._word(bytes, at * 8, 8) * p[2] % m, 31) * p[1] % m);
        h := (ratelimit._rotate(h, 27) * p[1] + p[4]) % m;
    END LOOP;
    IF n % 8 >= 4 THEN
        h := ratelimit._xor(h, ratelimit._word(bytes, n / 8 * 8, 4) * p[1] % m);
        h := (ratelimit._rotate(h, 23) * p[2] + p[3]) % m;
    END IF;
    FOR at IN n / 4 * 4..n - 1 LOOP
        h := ratelimit._rotate(ratelimit._xor(h, get_byte(bytes, at) * p[5] % m), 11) * p[1] % m;
    END LOOP;
    h := ratelimit._xor(h, div(h, 2^33::numeric)) * p[2] % m;
    h := ratelimit._xor(h, div(h, 2^29::numeric)) * p[3] % m;
    RETURN div(ratelimit._xor(h, div(h, 2^32::numeric)), 2);
END
$$;

-- Rotates 64 bits to the left.
CREATE OR REPLACE FUNCTION ratelimit._rotate(x numeric, n int) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
    SELECT x * (1::bigint << n) % 18446744073709551616 + div(x, 2^(64 - n)::numeric)
$$;

CREATE OR REPLACE FUNCTION ratelimit._xor(a numeric, b numeric) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
    SELECT (div(a, 4294967296)::bigint # div(b, 4294967296)::bigint)::numeric * 4294967296
           + ((a % 4294967296)::bigint # (b % 4294967296)::bigint)
$$;

-- Reads an unsigned number, lowest byte first.
CREATE OR REPLACE FUNCTION ratelimit._word(bytes bytea, at int, length int) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
    SELECT sum(get_byte(bytes, at + i) * (256::numeric ^ i)) FROM generate_series(0, length - 1) i
$$;

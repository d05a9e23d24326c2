-- ratelimit 1.1.0, made from sql/plain, PostgreSQL License. Run it as the database's owner, in one transaction:
-- psql -1 -v ON_ERROR_STOP=1 -f ratelimit.sql
DO LANGUAGE plpgsql $do$
DECLARE version int := 1; path text := pg_catalog.current_setting('search_path'); installed int; stranger text;
BEGIN
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  IF current_setting('server_version_num')::int < 140000 THEN
    RAISE EXCEPTION 'PostgreSQL % is too old', current_setting('server_version') USING HINT = 'It must be 14 or later.';
  END IF;
  IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'ratelimit'
   AND e.extnamespace = to_regnamespace('ratelimit')) THEN
    RAISE EXCEPTION 'the extension ratelimit is installed in schema "ratelimit"'
     USING HINT = 'This file is for databases without it.';
  END IF;
  IF to_regnamespace('ratelimit') IS NULL THEN
    CREATE SCHEMA ratelimit; COMMENT ON SCHEMA ratelimit IS 'rate limiter';
    EXECUTE coalesce((SELECT format('REVOKE ALL ON SCHEMA ratelimit FROM %s CASCADE', string_agg(DISTINCT
     CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ', '))
     FROM pg_namespace n, aclexplode(n.nspacl) a
     WHERE n.oid = 'ratelimit'::regnamespace AND a.grantee <> n.nspowner HAVING count(*) > 0), 'SELECT');
  END IF;
  SELECT object INTO stranger FROM (SELECT 'schema "ratelimit"', nspowner FROM pg_namespace WHERE nspname = 'ratelimit'
   UNION ALL SELECT format('relation "%s"', relname), relowner FROM pg_class
   WHERE relnamespace = 'ratelimit'::regnamespace
   UNION ALL SELECT format('function "%s"', proname), proowner FROM pg_proc
   WHERE pronamespace = 'ratelimit'::regnamespace UNION ALL SELECT format('type "%s"', typname), typowner FROM pg_type
   WHERE typnamespace = 'ratelimit'::regnamespace
   UNION ALL SELECT format('operator "%s"', oprname), oprowner FROM pg_operator
   WHERE oprnamespace = 'ratelimit'::regnamespace) AS objects (object, owner)
  WHERE owner <> (SELECT oid FROM pg_roles WHERE rolname = current_user) LIMIT 1;
  IF stranger IS NOT NULL THEN
    RAISE EXCEPTION '% belongs to another role', stranger
     USING HINT = 'Run this file as its owner, or install into another schema.';
  END IF;
  IF EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'ratelimit'
   AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) THEN
    RAISE EXCEPTION 'other roles can create objects in schema "ratelimit"'
     USING HINT = 'Revoke that, or install into another schema.';
  END IF;
  IF to_regclass('ratelimit.rl_version') IS NOT NULL THEN
    EXECUTE 'SELECT max(version) FROM ratelimit.rl_version' INTO installed;
    IF installed > version THEN
      RAISE EXCEPTION 'version % is installed, and this file is version %', installed, version
       USING HINT = 'Run the newer file.';
    END IF;
  END IF;
  IF to_regtype('ratelimit.rl_result') IS NULL THEN
    CREATE TYPE ratelimit.rl_result AS (ok bool, retry_after float8, retry_at timestamptz,
     remaining float8, capacity float8, reset_at timestamptz);
    COMMENT ON TYPE ratelimit.rl_result IS 'result of a call of the rate limiter';
  END IF;
  IF to_regtype('ratelimit._limit') IS NULL THEN
    CREATE TYPE ratelimit._limit AS (kind smallint, rate float8, period bigint, capacity float8, tolerance float8,
     max_reserved float8, enforce bool, keyed bool, overage bool, start bigint,
     first_request bool, zone text, months bool, every int, first_date date, usual bool, fresh_prior float8);
    COMMENT ON TYPE ratelimit._limit IS 'rate limiter, internal';
  END IF;
  IF to_regtype('ratelimit._state') IS NULL THEN
    CREATE TYPE ratelimit._state AS (value float8, ts bigint, prior float8, log timestamptz[]);
    COMMENT ON TYPE ratelimit._state IS 'rate limiter, internal';
  END IF;
  IF to_regtype('ratelimit._decision') IS NULL THEN
    CREATE TYPE ratelimit._decision AS (
     ok bool, wait bigint, remaining float8, capacity float8, reset_at bigint, at bigint,
     changed bool, enforced bool, blocked bool, forever bool, value float8, ts bigint, prior float8, log timestamptz[]
    );
    COMMENT ON TYPE ratelimit._decision IS 'rate limiter, internal';
  END IF;
  PERFORM set_config('search_path', path, true);
END $do$;
CREATE OR REPLACE FUNCTION ratelimit._raise(state text, message text, detail text DEFAULT NULL, hint text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF detail IS NOT NULL AND hint IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, DETAIL = detail, HINT = hint;
  ELSIF detail IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, DETAIL = detail;
  ELSIF hint IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, HINT = hint;
  END IF;
  RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._bad(argument text, value text, allowed text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._raise('22023', format('%s is %s', argument, value), format('Allowed: %s.', allowed));
END $$;
CREATE OR REPLACE FUNCTION ratelimit._null(argument text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._raise('22004', argument || ' must not be NULL', NULL, CASE WHEN argument ~ '^key\M' THEN
    'A missing user id must not take from the limit that everybody shares. To use that limit, omit the key.' END);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._unsupported(what text, instead text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._raise('0A000', what || ' requires the extension ratelimit',
   'This database has the limiter as an SQL file, which ' || instead || '.');
END $$;
CREATE OR REPLACE FUNCTION ratelimit._short(value text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN length(value) > 80 THEN left(value, 80) || '...' ELSE value END $$;
CREATE OR REPLACE FUNCTION ratelimit._digits(number float8) RETURNS text IMMUTABLE LANGUAGE sql
SET extra_float_digits = 1 AS $$
  SELECT CASE WHEN abs(number) >= 1e15 AND abs(number) < 1e16 THEN number::bigint::text
        ELSE regexp_replace(number::text, 'e([-+])0', 'e\1') END $$;
CREATE OR REPLACE FUNCTION ratelimit._literal(name text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT '''' || replace(name, '''', '''''') || '''' $$;
CREATE OR REPLACE FUNCTION ratelimit._kinds() RETURNS text[] IMMUTABLE LANGUAGE sql AS $$
  SELECT '{token bucket,fixed window,sliding window,sliding log,concurrency,unlimited}'::text[] $$;
CREATE OR REPLACE FUNCTION ratelimit._a(kind int) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE kind WHEN 6 THEN 'an unlimited one' WHEN 5 THEN 'a concurrency limit'
     ELSE 'a ' || (ratelimit._kinds())[kind] END $$;
CREATE OR REPLACE FUNCTION ratelimit._example(name text, kind int) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT format('SELECT ratelimit.rl_define(%s, ratelimit.rl_%s(%s));', ratelimit._literal(name),
   replace((ratelimit._kinds())[CASE kind WHEN 7 THEN 2 ELSE kind END], ' ', '_'),
   CASE kind WHEN 5 THEN 'slots => 3, ttl => ''5 minutes''' WHEN 6 THEN ''
   WHEN 7 THEN 'rate => 1000, period => ''1 month'', timezone => ''Europe/Berlin'''
    ELSE 'rate => 10, period => ''1 minute''' END) $$;
CREATE OR REPLACE FUNCTION ratelimit._wrong_kind(function text, kind int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._raise('0A000', format('%s() is not supported for %s', function, ratelimit._a(kind)),
   CASE WHEN function = 'rl_credit' THEN 'Only token buckets and fixed windows can be credited.'
   WHEN kind = 5 THEN 'Its slots are taken with leases.' ELSE 'Only concurrency limits have leases.' END,
   CASE WHEN kind = 5 THEN 'Use ratelimit.rl_acquire(name, key) to take a slot and ratelimit.rl_release(lease)'
                ' to release it.'
      WHEN function = 'rl_credit' THEN 'Use ratelimit.rl_reset(name, key) to make the limit full again.'
      ELSE 'SELECT * FROM ratelimit.rl_limit(name, key);' END);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._bad_state(name text, col text, value text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._raise('55000', format('rate limit "%s" has a stored %s of %s', name, col, value), NULL,
   format('To make it full again: SELECT ratelimit.rl_reset(%1$s, $1); To find its key: SELECT key FROM '
       'ratelimit.rateLimits WHERE name = %1$s AND ''%2$s'' = %3$s;',
       ratelimit._literal(name), value, CASE col WHEN 'log' THEN 'ANY (log)' ELSE col END));
END $$;
CREATE OR REPLACE FUNCTION ratelimit._not_written() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._raise('55000', 'the rate limit could not be stored', 'A trigger, a rule or row security on the'
    ' table rateLimits prevents rows from being written or read.');
END $$;
CREATE OR REPLACE FUNCTION ratelimit._denied(name text, d ratelimit._decision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE millis bigint := ratelimit._ceil(d.wait, 1000) / 1000; message text := 'rate limit exceeded';
  detail text := format('{"kind":"RateLimited","name":%s,"retryAfter":%s}', to_json(name),
   coalesce(millis::text, 'null'));
  hint text := CASE
    WHEN millis = 0 THEN 'Try again at once: other transactions hold the limit''s rows.'
    WHEN millis = 1000 THEN 'Try again in 1 second.'
    WHEN millis IS NOT NULL THEN format('Try again in %s seconds.', ratelimit._digits(millis::float8 / 1000))
    WHEN d.forever THEN 'The key is blocked indefinitely.'
    ELSE format('The call can never succeed: the count is more than a limit of capacity %s can give.',
     ratelimit._digits(d.capacity)) END;
  style text := coalesce(nullif(current_setting('ratelimit.error_style', true), ''),
   (SELECT s.value FROM ratelimit.rl_settings s WHERE s.name = 'error_style'));
BEGIN
  IF lower(style) = 'pgrst' THEN
    PERFORM ratelimit._raise('PGRST',
     format('{"code":"PT429","details":%s,"hint":%s,"message":%s}', to_json(detail), to_json(hint), to_json(message)),
     format('{"headers":{%s},"status":429}', format('"Retry-After":"%s"', ratelimit._ceil(d.wait, 1000000) / 1000000)
     || CASE WHEN d.wait IS NOT NULL THEN '' END));
  END IF;
  PERFORM ratelimit._raise('PT429', message, detail, hint);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._check(name text, key text, count float8 DEFAULT 1,
 reserve bool DEFAULT false, throws bool DEFAULT false) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF name IS NULL THEN PERFORM ratelimit._null('name');
  ELSIF octet_length(name) NOT BETWEEN 1 AND 200 THEN
    PERFORM ratelimit._bad('name', octet_length(name) || ' bytes long', '1 to 200 bytes');
  ELSIF key IS NULL THEN PERFORM ratelimit._null('key');
  ELSIF octet_length(key) > 1024 THEN
    PERFORM ratelimit._bad('key', octet_length(key) || ' bytes long',
     'at most 1024 bytes; pass a hash of a longer key');
  ELSIF count IS NULL THEN PERFORM ratelimit._null('count');
  ELSIF reserve IS NULL THEN PERFORM ratelimit._null('reserve');
  ELSIF throws IS NULL THEN PERFORM ratelimit._null('throws');
  END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._valid(name text, key text) RETURNS bool IMMUTABLE STRICT LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._check(name, key);
  RETURN true;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._check_count(kind int, count float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF (count >= 0 AND count <= 1e15) IS NOT TRUE THEN
    PERFORM ratelimit._bad('count', ratelimit._digits(count), 'a number from 0 to 1e15');
  ELSIF kind IN (4, 5) AND count <> trunc(count) THEN
    PERFORM ratelimit._bad('count', ratelimit._digits(count), 'a whole number, for ' || ratelimit._a(kind));
  END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._far_us(at timestamptz) RETURNS bigint STABLE STRICT LANGUAGE plpgsql AS $$
BEGIN
  RETURN CASE WHEN at >= '294247-01-01 00:00:00+00' THEN 9223372036854775807
        WHEN at = '-infinity' THEN -9222425352054775808 ELSE extract(epoch FROM at) * 1000000 END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._us(at timestamptz) RETURNS bigint STABLE LANGUAGE sql AS $$
  SELECT CASE WHEN at >= '1970-01-01 00:00:00+00' AND at < '2096-01-01 00:00:00+00'
   THEN round(date_part('epoch', at) * 1e6)::bigint ELSE ratelimit._far_us(at) END $$;
CREATE OR REPLACE FUNCTION ratelimit._far_instant(us bigint) RETURNS timestamptz STABLE STRICT LANGUAGE plpgsql AS $$
BEGIN
  RETURN CASE WHEN us >= -210866803200000000 AND us <= 9223371331199000000
   THEN timestamptz '1970-01-01 00:00:00+00' + (us / 86400000000) * interval '24 hours'
   + (us % 86400000000) * interval '1 microsecond' END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._instant(us bigint) RETURNS timestamptz STABLE LANGUAGE sql AS $$
  SELECT CASE WHEN us >= 0 AND us < 3976214400000000 THEN to_timestamp(us::float8 / 1e6)
        ELSE ratelimit._far_instant(us) END $$;
CREATE OR REPLACE FUNCTION ratelimit._nearest(us bigint) RETURNS timestamptz STABLE LANGUAGE sql AS $$
  SELECT CASE WHEN us >= 0 AND us < 3976214400000000 THEN to_timestamp(us::float8 / 1e6)
        ELSE ratelimit._far_instant(greatest(least(us, 9223371331199000000), -210866803200000000)) END $$;
CREATE OR REPLACE FUNCTION ratelimit._ceil(us bigint, unit bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN us < 9223372036853775807 THEN us + ((-us) % unit + unit) % unit
   WHEN us % unit = 0 THEN us WHEN us IS NOT NULL THEN 9223372036854775807 END $$;
CREATE OR REPLACE FUNCTION ratelimit._rounded_up(us bigint) RETURNS timestamptz STABLE LANGUAGE sql AS $$
  SELECT CASE WHEN us >= 0 AND us < 3976214400000000 THEN to_timestamp(ceil(us::float8 / 1e3) / 1e3)
        ELSE ratelimit._far_instant(ratelimit._ceil(us, 1000)) END $$;
CREATE OR REPLACE FUNCTION ratelimit._floor(us bigint, period bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
  SELECT us - ((us % period) + period) % period $$;
CREATE OR REPLACE FUNCTION ratelimit._plus(us bigint, span bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN us > 9223372036854775807 - span THEN 9223372036854775807 ELSE us + span END $$;
CREATE OR REPLACE FUNCTION ratelimit._since(ts bigint, now bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN ts >= now THEN 0 WHEN ts >= 0 THEN now - ts
        ELSE least(now::numeric - ts, 9223372036854775807)::bigint END $$;
CREATE OR REPLACE FUNCTION ratelimit._caller() RETURNS name STABLE LANGUAGE sql AS $$
  SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)::name $$;
CREATE OR REPLACE FUNCTION ratelimit._set_clock(given text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE at timestamptz;
BEGIN
  IF NOT pg_has_role(session_user, current_user, 'MEMBER') THEN
    PERFORM ratelimit._raise('42501', 'permission denied to set parameter "ratelimit.clock"');
  END IF;
  IF given ~* '^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[-+]?[0-9]{1,2})?$' THEN
    IF given::float8 BETWEEN -210866803200000 AND 8.64e15 THEN RETURN round(given::numeric * 1000); END IF;
  ELSIF given ~ ('^[^ ]+[ Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?'
         '([Zz]|[-+][0-9]{2}(:?[0-9]{2})?(:?[0-9]{2})?)( BC)?$') THEN
    at := given;
    RETURN ratelimit._us(at);
  END IF;
  PERFORM ratelimit._raise('22023', format('invalid value for parameter "ratelimit.clock": "%s"', given),
   'Allowed: a time with its offset, or epoch milliseconds.');
END $$;
CREATE OR REPLACE FUNCTION ratelimit._now() RETURNS bigint LANGUAGE sql AS $$
  SELECT CASE WHEN current_setting('ratelimit.clock', true) <> ''
   THEN ratelimit._set_clock(current_setting('ratelimit.clock', true))
        ELSE round(date_part('epoch', clock_timestamp()) * 1e6)::bigint END $$;
CREATE OR REPLACE FUNCTION ratelimit._phase(name text, key text) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE m numeric := 18446744073709551616;
  p numeric[] := '{11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579,
   2870177450012600261}';
  bytes bytea := convert_to(name, 'UTF8') || '\x00' || convert_to(key, 'UTF8'); n int := octet_length(bytes);
  i int := 0; v numeric[] := ARRAY[(p[1] + p[2]) % m, p[2], 0, m - p[1]]; h numeric := p[5];
BEGIN
  IF n >= 32 THEN
    WHILE i + 32 <= n LOOP
      FOR j IN 1..4 LOOP
        v[j] := ratelimit._rotate((v[j] + ratelimit._word(bytes, i + j * 8 - 8, 8) * p[2]) % m, 31) * p[1] % m;
      END LOOP;
      i := i + 32;
    END LOOP;
    h := (ratelimit._rotate(v[1], 1) + ratelimit._rotate(v[2], 7) + ratelimit._rotate(v[3], 12)
     + ratelimit._rotate(v[4], 18)) % m;
    FOR j IN 1..4 LOOP
      h := (ratelimit._xor(h, ratelimit._rotate(v[j] * p[2] % m, 31) * p[1] % m) * p[1] + p[4]) % m;
    END LOOP;
  END IF;
  h := (h + n) % m;
  WHILE i + 8 <= n LOOP
    h := ratelimit._xor(h, ratelimit._rotate(ratelimit._word(bytes, i, 8) * p[2] % m, 31) * p[1] % m);
    h := (ratelimit._rotate(h, 27) * p[1] + p[4]) % m; i := i + 8;
  END LOOP;
  IF i + 4 <= n THEN
    h := (ratelimit._rotate(ratelimit._xor(h, ratelimit._word(bytes, i, 4) * p[1] % m), 23) * p[2] + p[3]) % m;
    i := i + 4;
  END IF;
  WHILE i < n LOOP
    h := ratelimit._rotate(ratelimit._xor(h, get_byte(bytes, i) * p[5] % m), 11) * p[1] % m; i := i + 1;
  END LOOP;
  h := ratelimit._xor(h, div(h, 2^33::numeric)) * p[2] % m; h := ratelimit._xor(h, div(h, 2^29::numeric)) * p[3] % m;
  RETURN div(ratelimit._xor(h, div(h, 2^32::numeric)), 2);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._rotate(x numeric, n int) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
  SELECT x * (1::bigint << n) % 18446744073709551616 + div(x, 2^(64 - n)::numeric) $$;
CREATE OR REPLACE FUNCTION ratelimit._xor(a numeric, b numeric) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
  SELECT (div(a, 4294967296)::bigint # div(b, 4294967296)::bigint)::numeric * 4294967296
   + ((a % 4294967296)::bigint # (b % 4294967296)::bigint) $$;
CREATE OR REPLACE FUNCTION ratelimit._word(bytes bytea, at int, length int) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
  SELECT sum(get_byte(bytes, at + i) * (256::numeric ^ i)) FROM generate_series(0, length - 1) i $$;
CREATE OR REPLACE FUNCTION ratelimit._bad_config(problem text, allowed text, kind int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._raise('22023', 'invalid rate limit config: ' || problem, format('Allowed: %s.', allowed),
   'For example: ' || ratelimit._example('sendMessage', coalesce(kind, 1)));
END $$;
CREATE OR REPLACE FUNCTION ratelimit._duration(given text, OUT months numeric, OUT days numeric, OUT micros numeric)
IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE number text := '([0-9]+(?:[.,][0-9]{1,9})?)';
  units text[] := '{years?|yrs?|y,months?|mos?,weeks?|wks?|w,days?|d,hours?|hrs?|h,minutes?|mins?|m,
   seconds?|secs?|s,milliseconds?|millis?|msecs?|ms,microseconds?|micros?|usecs?|µsecs?|us|µs}';
  micros_of numeric[] := '{3600000000,60000000,1000000,1000,1}'; rest text := given; part text[]; unit int := 0;
  found int; amount numeric;
BEGIN
  IF given ~* '^P' THEN
    part := regexp_match(given, format('^P(?:([0-9]+)Y)?(?:([0-9]+)M)?(?:([0-9]+)W)?(?:([0-9]+)D)?'
      '(?:T(?:%1$sH)?(?:%1$sM)?(?:%1$sS)?)?$', number), 'i');
    IF part IS NULL OR given ~* '^P$|T$' OR given ~* '[.,][0-9]+[HM].' THEN RETURN; END IF;
    part := ARRAY(SELECT coalesce(replace(p, ',', '.'), '0') FROM unnest(part) WITH ORDINALITY u(p, n) ORDER BY n);
    months := part[1]::numeric * 12 + part[2]::numeric; days := part[3]::numeric * 7 + part[4]::numeric;
    micros := trunc((part[5]::numeric * 3600 + part[6]::numeric * 60 + part[7]::numeric) * 1000000);
    RETURN;
  ELSIF given ~ '^[0-9]+:[0-9][0-9]:[0-9][0-9]([.][0-9]{1,9})?$' THEN
    SELECT 0, 0, trunc(split_part(given, ':', 1)::numeric * 3600000000 + split_part(given, ':', 2)::numeric * 60000000
     + split_part(given, ':', 3)::numeric * 1000000) INTO months, days, micros;
    RETURN;
  END IF;
  months := 0; days := 0; micros := 0;
  LOOP
    part := regexp_match(rest, format('^%s[[:space:]]*([a-zµ]+)(?:,[[:space:]]+|[[:space:]]+(?=[0-9])|(?=[0-9])|$)'
      '(.*)$', number));
    found := (SELECT n FROM unnest(units) WITH ORDINALITY u(names, n)
     WHERE part[2] ~ format('^(%s)$', btrim(names, E' \n')));
    IF found IS NULL OR found <= unit OR part[1] ~ '[.,]' AND (found <= 4 OR part[3] <> '') THEN
      months := NULL; days := NULL; micros := NULL;
      RETURN;
    END IF;
    unit := found; amount := replace(part[1], ',', '.');
    CASE unit
      WHEN 1 THEN months := months + amount * 12; WHEN 2 THEN months := months + amount;
      WHEN 3 THEN days := days + amount * 7; WHEN 4 THEN days := days + amount;
      ELSE micros := micros + trunc(amount * micros_of[unit - 4]);
    END CASE;
    rest := part[3];
    EXIT WHEN rest = '';
  END LOOP;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._period(given jsonb) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE millis numeric; span record;
BEGIN
  IF jsonb_typeof(given) = 'number' THEN millis := given;
  ELSIF jsonb_typeof(given) = 'string' THEN
    span := ratelimit._duration(given #>> '{}');
    IF span.months = 0 THEN millis := (span.days * 86400000000 + span.micros) / 1000; END IF;
  END IF;
  RETURN CASE WHEN millis BETWEEN 1 AND 1e15 THEN round(millis * 1000) END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._dates(l ratelimit._limit, given jsonb) RETURNS ratelimit._limit
IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE span record;
BEGIN
  IF jsonb_typeof(given) = 'string' THEN
    span := ratelimit._duration(given #>> '{}');
    IF span.micros = 0 AND (span.months = 0 AND span.days BETWEEN 1 AND 36525
     OR span.days = 0 AND span.months BETWEEN 1 AND 1200) THEN
      l.months := span.months > 0; l.every := greatest(span.months, span.days);
      l.first_date := coalesce(l.first_date, CASE WHEN l.months THEN date '1970-01-01' ELSE '1970-01-05' END);
    END IF;
  END IF;
  RETURN l;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._start(given jsonb) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE at timestamptz;
BEGIN
  IF jsonb_typeof(given) = 'number' THEN
    RETURN CASE WHEN abs(given::numeric) <= 8.64e15 THEN round(given::numeric * 1000) END;
  ELSIF given #>> '{}' ~ ('^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?'
              '([Zz]|[-+][0-9]{2}(:?[0-9]{2})?(:?[0-9]{2})?)$') THEN
    at := given #>> '{}';
    RETURN ratelimit._us(at);
  END IF;
  RETURN NULL;
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._first_date(given jsonb) RETURNS date IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE text text := given #>> '{}'; day date;
BEGIN
  IF jsonb_typeof(given) = 'string' AND text ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$' THEN
    day := make_date(CASE left(text, 4) WHEN '0000' THEN -1 ELSE left(text, 4)::int END,
     substr(text, 6, 2)::int, right(text, 2)::int);
  END IF;
  RETURN day;
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._check_fields(config jsonb, kind int, fields text[], example int) RETURNS void
IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE any_kind text[] := '{rate,period,capacity,maxReserved,shards,start,timezone,overage,slots,ttl}';
  own text[] := coalesce(fields, any_kind); common text[] := '{store,save,enforce,keyed}';
  field text := (SELECT f FROM jsonb_object_keys(config) f
   WHERE f <> ALL (own || common || '{kind,applyUpdates}'::text[]) ORDER BY octet_length(f), f COLLATE "C" LIMIT 1);
BEGIN
  IF field IS NOT NULL THEN
    PERFORM ratelimit._bad_config(CASE WHEN kind IS NOT NULL AND field = ANY (any_kind)
     THEN format('"%s" is %s, and %s has no such field', field, ratelimit._short((config -> field)::text),
     ratelimit._a(kind))
      ELSE to_json(ratelimit._short(field)) || ' is not a field' END,
      (SELECT string_agg(format('"%s"', f), ', ' ORDER BY n)
      FROM unnest('{kind}'::text[] || own || common) WITH ORDINALITY u(f, n)), example);
  ELSIF kind IS NULL THEN
    PERFORM ratelimit._bad_config('"kind" is ' || coalesce(ratelimit._short((config -> 'kind')::text), 'missing'),
     '"token bucket", "fixed window", "sliding window", "sliding log", "concurrency" or "unlimited"', NULL);
  END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._parse(config jsonb) RETURNS ratelimit._limit IMMUTABLE STRICT
LANGUAGE plpgsql AS $$
DECLARE
  length int := octet_length(config::text); is_calendar bool := config ? 'timezone'; l ratelimit._limit; fields text[];
  field text; given jsonb; number numeric; good bool; example int;
BEGIN
  IF length > 10000 THEN
    PERFORM ratelimit._bad_config(format('it is %s bytes long', length), 'at most 10000 bytes', NULL);
  ELSIF jsonb_typeof(config) <> 'object' THEN
    PERFORM ratelimit._bad_config('it is ' || ratelimit._short(config::text),
     'an object such as {"kind": "token bucket", "rate": 10, "period": "1 minute"}', NULL);
  END IF;
  IF jsonb_typeof(config -> 'kind') = 'string' THEN l.kind := array_position(ratelimit._kinds(), config ->> 'kind');
  END IF;
  fields := string_to_array((ARRAY['rate,period,capacity,maxReserved,shards',
   'rate,period,capacity,maxReserved,shards,start,timezone,overage', 'rate,period', 'rate,period', 'slots,ttl',
   ''])[l.kind], ',');
  example := CASE WHEN l.kind = 2 AND is_calendar THEN 7 ELSE l.kind END;
  PERFORM ratelimit._check_fields(config, l.kind, fields, example);
  l.enforce := true; l.keyed := false; l.overage := false; l.first_request := false;
  IF is_calendar THEN l.first_date := ratelimit._first_date(config -> 'start'); END IF;
  FOREACH field IN ARRAY fields || '{"",store,save,applyUpdates,enforce,keyed}'::text[] LOOP
    IF field = '' AND l.overage AND config ? 'maxReserved' THEN
      PERFORM ratelimit._bad_config('"maxReserved" is ' || (config ->> 'maxReserved'),
       'none if "overage" is true: no call has to wait', example);
    END IF;
    given := config -> field;
    CONTINUE WHEN field = '' OR given IS NULL AND field NOT IN ('rate', 'period', 'slots', 'ttl');
    number := CASE WHEN jsonb_typeof(given) = 'number' THEN given::numeric END;
    CASE field
      WHEN 'rate' THEN
        good := CASE l.kind WHEN 4 THEN number BETWEEN 1 AND 10000 AND number = trunc(number)
                  ELSE number >= 5e-324 AND number <= 1e15 END;
        IF good THEN l.rate := number; l.capacity := number; END IF;
      WHEN 'period', 'ttl' THEN
        IF is_calendar THEN l := ratelimit._dates(l, given); ELSE l.period := ratelimit._period(given); END IF;
        good := coalesce(l.period, l.every) IS NOT NULL;
      WHEN 'capacity', 'maxReserved' THEN
        good := number BETWEEN 0 AND 1e15; IF NOT good THEN NULL; ELSIF field = 'capacity' THEN l.capacity := number;
        ELSE l.max_reserved := number; END IF;
      WHEN 'shards' THEN good := number BETWEEN 1 AND 1024 AND number = trunc(number);
      WHEN 'start' THEN
        l.first_request := NOT is_calendar AND given = '"first request"';
        IF NOT is_calendar THEN l.start := ratelimit._start(given); END IF;
        good := l.first_request OR l.start IS NOT NULL OR is_calendar AND ratelimit._first_date(given) IS NOT NULL;
      WHEN 'timezone' THEN
        l.zone := CASE WHEN jsonb_typeof(given) = 'string' THEN given #>> '{}' END;
        good := l.zone = ANY (ratelimit._zones());
      WHEN 'slots' THEN
        good := number BETWEEN 1 AND 1000 AND number = trunc(number);
        IF good THEN l.rate := number; l.capacity := number; END IF;
      WHEN 'store' THEN good := given IN ('"table"', '"memory"');
      WHEN 'save' THEN good := true; -- refused below
      WHEN 'applyUpdates' THEN good := given IN ('"synchronously"', '"asynchronously"');
      ELSE
        good := jsonb_typeof(given) = 'boolean'; IF good THEN l := ratelimit._with_flag(l, field, given::bool); END IF;
    END CASE;
    IF good IS NOT TRUE THEN
      PERFORM ratelimit._bad_config(format('"%s" is %s', field, coalesce(ratelimit._short(given::text), 'missing')),
       ratelimit._allowed(field, l.kind, is_calendar), example);
    END IF;
  END LOOP;
  PERFORM ratelimit._check_support(config);
  l.tolerance := 1e-9 * greatest(l.capacity, 1);
  l.usual := l.kind <= 2 AND l.enforce AND l.zone IS NULL AND NOT (l.keyed OR l.overage OR l.first_request)
   AND l.capacity * l.period < 1e17 * l.rate;
  IF l.kind = 2 THEN l.fresh_prior := -least(l.rate, l.capacity); END IF;
  RETURN l;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._with_flag(l ratelimit._limit, field text, flag bool) RETURNS ratelimit._limit
IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  CASE field
    WHEN 'overage' THEN l.overage := flag;
    WHEN 'enforce' THEN l.enforce := flag;
    ELSE l.keyed := flag;
  END CASE;
  RETURN l;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._allowed(field text, kind int, is_calendar bool) RETURNS text
IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE field WHEN 'rate' THEN CASE kind WHEN 4 THEN 'a whole number from 1 to 10000'
                 ELSE 'a number greater than 0, at most 1e15' END WHEN 'capacity' THEN 'a number from 0 to 1e15'
    WHEN 'maxReserved' THEN 'a number from 0 to 1e15' WHEN 'shards' THEN 'a whole number from 1 to 1024'
    WHEN 'slots' THEN 'a whole number from 1 to 1000'
    WHEN 'start' THEN CASE WHEN is_calendar THEN 'with "timezone", a local date such as "2027-01-31"' ELSE
      'epoch milliseconds, a time with its offset such as "2027-01-01T00:00:00Z", or "first request"' END
    WHEN 'timezone' THEN 'the IANA name of a time zone in its exact spelling, such as "Europe/Berlin"'
    WHEN 'store' THEN '"table" or "memory"' WHEN 'applyUpdates' THEN '"synchronously" or "asynchronously"'
    WHEN 'overage' THEN 'true or false' WHEN 'enforce' THEN 'true or false' WHEN 'keyed' THEN 'true or false'
    ELSE CASE WHEN is_calendar AND kind = 2 THEN 'with "timezone", a whole number of days and weeks, or of months '
        'and years, at most 100 years, such as "7 days" or "1 month"'
      ELSE 'a number of milliseconds from 1 to 1e15, or a duration such as "1 minute" or "PT1M"; a day is 24 hours;'
        ' months and years only in a fixed window with "timezone"' END END $$;
CREATE OR REPLACE FUNCTION ratelimit._check_support(config jsonb) RETURNS void IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  IF config ? 'save' OR config @> '{"store": "memory"}' OR config ->> 'applyUpdates' <> 'synchronously' THEN
    PERFORM ratelimit._unsupported('a limit in memory', 'stores every limit in the table: leave "store" out');
  ELSIF (config ->> 'shards')::numeric > 1 THEN
    PERFORM ratelimit._unsupported('a limit with shards', 'stores a key in one row: leave "shards" out');
  END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._number(number float8) RETURNS jsonb IMMUTABLE LANGUAGE sql
SET extra_float_digits = 1 AS $$
  SELECT to_jsonb(number::text::numeric) $$;
CREATE OR REPLACE FUNCTION ratelimit._build(kind int, rate float8, period interval,
 capacity float8 DEFAULT NULL, max_reserved float8 DEFAULT NULL, shards int DEFAULT NULL,
 start timestamptz DEFAULT NULL, first_request bool DEFAULT NULL, zone text DEFAULT NULL)
RETURNS jsonb IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE rate_field text := CASE kind WHEN 5 THEN 'slots' ELSE 'rate' END;
  period_field text := CASE kind WHEN 5 THEN 'ttl' ELSE 'period' END;
  example int := CASE WHEN zone IS NOT NULL THEN 7 ELSE kind END;
  months int := extract(year FROM period) * 12 + extract(month FROM period); days int := extract(day FROM period);
  micros numeric := extract(hour FROM period) * 3600000000 + extract(minute FROM period) * 60000000
   + extract(microsecond FROM period);
  infinite record; config jsonb;
BEGIN
  IF rate IS NULL THEN PERFORM ratelimit._null(rate_field); END IF;
  IF period IS NULL THEN PERFORM ratelimit._null(period_field); END IF;
  IF start IN ('infinity', '-infinity') THEN PERFORM ratelimit._bad('start', 'infinite', 'a finite time'); END IF;
  IF octet_length(zone) > 10000 THEN
    PERFORM ratelimit._bad('timezone', octet_length(zone) || ' bytes long', 'the IANA name of a time zone');
  END IF;
  IF start IS NOT NULL AND first_request THEN
    PERFORM ratelimit._bad_config('"start" and "first_request" are both given', 'one of the two', example);
  END IF;
  SELECT * INTO infinite FROM (VALUES (rate_field, rate), ('capacity', capacity), ('maxReserved', max_reserved))
   AS given(field, number) WHERE number IN ('NaN', 'Infinity', '-Infinity') LIMIT 1;
  IF FOUND THEN
    PERFORM ratelimit._bad_config(format('"%s" is %s', infinite.field, infinite.number), 'a finite number', example);
  END IF;
  config := jsonb_strip_nulls(jsonb_build_object('kind', (ratelimit._kinds())[kind],
   rate_field, ratelimit._number(rate), period_field, CASE WHEN months = 0 AND zone IS NULL
   THEN to_jsonb(trim_scale((days * 86400000000::numeric + micros) / 1000))
      ELSE to_jsonb(concat_ws(' ', CASE WHEN months <> 0 THEN months || CASE months WHEN 1 THEN ' month'
          ELSE ' months' END END, CASE WHEN days <> 0 THEN days || CASE days WHEN 1 THEN ' day' ELSE ' days' END END,
        CASE WHEN micros <> 0 OR months = 0 AND days = 0 THEN trim_scale(micros / 1000000) || ' s' END)) END,
    'capacity', ratelimit._number(capacity), 'maxReserved', ratelimit._number(max_reserved), 'shards', shards,
    'start', CASE WHEN first_request THEN to_jsonb('first request'::text)
      WHEN zone IS NULL THEN to_jsonb(trim_scale(ratelimit._us(start)::numeric / 1000)) END, 'timezone', zone));
  IF start IS NOT NULL AND zone = ANY (ratelimit._zones()) THEN
    config := config || jsonb_build_object('start',
     CASE WHEN start < '10000-01-02' AND timezone(zone, start) < '10000-01-01' AND start > '0001-01-02'
     THEN to_jsonb(to_char(timezone(zone, start), 'YYYY-MM-DD'))
        ELSE to_jsonb(trim_scale(ratelimit._us(start)::numeric / 1000)) END);
  END IF;
  PERFORM ratelimit._parse(config);
  RETURN config;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_token_bucket(rate float8, period interval,
 capacity float8 DEFAULT NULL, max_reserved float8 DEFAULT NULL, shards integer DEFAULT NULL)
RETURNS jsonb IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
  RETURN ratelimit._build(1, rate, period, capacity, max_reserved, shards);
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_fixed_window(rate float8, period interval,
 capacity float8 DEFAULT NULL, max_reserved float8 DEFAULT NULL, shards integer DEFAULT NULL,
 start timestamptz DEFAULT NULL, first_request bool DEFAULT NULL, timezone text DEFAULT NULL)
RETURNS jsonb IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
  RETURN ratelimit._build(2, rate, period, capacity, max_reserved, shards, start, first_request, timezone);
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_sliding_window(rate float8, period interval)
RETURNS jsonb IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
  RETURN ratelimit._build(3, rate, period);
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_sliding_log(rate float8, period interval)
RETURNS jsonb IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
  RETURN ratelimit._build(4, rate, period);
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_concurrency(slots integer, ttl interval)
RETURNS jsonb IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
  RETURN ratelimit._build(5, slots, ttl);
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_unlimited() RETURNS jsonb IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
  SELECT '{"kind": "unlimited"}'::jsonb $$;
DO LANGUAGE plpgsql $do$
BEGIN
  EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION ratelimit._zones() RETURNS text[] IMMUTABLE LANGUAGE sql AS '
    '$$ SELECT %L::text[] $$', (SELECT pg_catalog.array_agg(z.name ORDER BY z.name)
     FROM pg_catalog.pg_timezone_names z WHERE z.name !~ '^(posix|right)/'
     AND z.name <> ALL ('{posixrules,localtime,Factory,Etc/Unknown}'::text[])));
END $do$;
DO LANGUAGE plpgsql $do$
DECLARE path text := pg_catalog.current_setting('search_path'); granted record; t text;
BEGIN
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  FOREACH t IN ARRAY '{ratelimits,rl_config,rl_blocks,rl_settings,rl_version}'::text[] LOOP
    CONTINUE WHEN to_regclass('ratelimit.' || t) IS NOT NULL;
    CASE t
    WHEN 'ratelimits' THEN
      CREATE TABLE ratelimit.rateLimits (name   text COLLATE "C" NOT NULL, key    text COLLATE "C" NOT NULL DEFAULT '',
       shard  int NOT NULL DEFAULT 0 CHECK (shard = 0), value  float8 NOT NULL, ts     timestamptz NOT NULL,
       prior  float8, log    timestamptz[], PRIMARY KEY (name, key, shard)
      ) WITH (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
       autovacuum_vacuum_cost_delay = 0);
      COMMENT ON TABLE ratelimit.rateLimits IS 'rate limiter: state of every limit in use, one row per (name, key)';
    WHEN 'rl_config' THEN
      CREATE TABLE ratelimit.rl_config (name    text COLLATE "C" NOT NULL, key     text COLLATE "C" NOT NULL DEFAULT '',
       config  jsonb NOT NULL, parsed  ratelimit._limit GENERATED ALWAYS AS (ratelimit._parse(config)) STORED,
       PRIMARY KEY (name, key), CHECK (ratelimit._valid(name, key)));
      COMMENT ON TABLE ratelimit.rl_config IS 'rate limiter: defined limits, and overrides for a key';
    WHEN 'rl_blocks' THEN
      CREATE TABLE ratelimit.rl_blocks (name   text COLLATE "C" NOT NULL, key    text COLLATE "C" NOT NULL DEFAULT '',
       until  timestamptz NOT NULL, PRIMARY KEY (name, key), CHECK (ratelimit._valid(name, key)));
      COMMENT ON TABLE ratelimit.rl_blocks IS 'rate limiter: keys that are blocked, and until when';
    WHEN 'rl_settings' THEN
      CREATE TABLE ratelimit.rl_settings (name   text COLLATE "C" PRIMARY KEY CHECK (name IN ('error_style')),
       value  text NOT NULL CHECK (value IN ('pt429', 'pgrst')));
      COMMENT ON TABLE ratelimit.rl_settings IS 'rate limiter: settings of the database';
    ELSE
      CREATE TABLE ratelimit.rl_version (version int NOT NULL, since timestamptz NOT NULL DEFAULT now());
      COMMENT ON TABLE ratelimit.rl_version IS 'rate limiter: installed versions';
    END CASE;
    FOR granted IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
     FROM pg_class c, aclexplode(c.relacl) a
     WHERE c.oid = to_regclass('ratelimit.' || t) AND a.grantee <> c.relowner LOOP
      EXECUTE format('REVOKE ALL ON ratelimit.%I FROM %s CASCADE', t, granted.role);
    END LOOP;
  END LOOP;
  INSERT INTO ratelimit.rl_version (version) SELECT 1 WHERE NOT EXISTS (
   SELECT FROM ratelimit.rl_version v WHERE v.version = 1);
  PERFORM set_config('search_path', path, true);
END $do$;
CREATE OR REPLACE FUNCTION ratelimit._first_instant(local timestamp, zone text) RETURNS bigint STABLE
LANGUAGE plpgsql AS $$
DECLARE utc timestamptz := timezone('UTC', local);
  earlier timestamptz := CASE WHEN local > '4713-01-01 BC' THEN utc - interval '36 hours' ELSE utc END;
  later timestamptz := utc + interval '36 hours'; one timestamptz; other timestamptz; low bigint; high bigint;
  middle bigint;
BEGIN
  one := utc - (timezone(zone, earlier) - timezone('UTC', earlier));
  other := utc - (timezone(zone, later) - timezone('UTC', later));
  IF one > other THEN SELECT other, one INTO one, other; END IF; low := ratelimit._us(one) - 1;
  high := ratelimit._us(CASE WHEN timezone(zone, one) = local THEN one ELSE other END);
  IF timezone(zone, one) <> local AND timezone(zone, other) <> local THEN
    WHILE high - low > 1 LOOP
      middle := low + (high - low) / 2;
      IF timezone(zone, ratelimit._instant(middle)) >= local THEN high := middle; ELSE low := middle; END IF;
    END LOOP;
  END IF;
  RETURN CASE WHEN high <= 253402207200999999 THEN high END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._dated(us bigint) RETURNS timestamptz STABLE LANGUAGE sql AS $$
  SELECT ratelimit._instant(greatest(least(us, 253402207200999999), -210866630400000000)) $$;
CREATE OR REPLACE FUNCTION ratelimit._date(l ratelimit._limit, w bigint) RETURNS date IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE far numeric := w::numeric * l.every; day date;
BEGIN
  IF l.months AND extract(year FROM l.first_date) * 12 + far BETWEEN -56400 AND 119999 THEN
    day := l.first_date + make_interval(months => far::int);
  ELSIF NOT l.months AND far BETWEEN date '4713-01-01 BC' - l.first_date AND date '9999-12-31' - l.first_date THEN
    day := l.first_date + far::int;
  END IF;
  RETURN CASE WHEN day <= '9999-12-31' THEN day END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._boundary(l ratelimit._limit, w bigint) RETURNS bigint STABLE
LANGUAGE plpgsql AS $$
DECLARE day date := ratelimit._date(l, w);
BEGIN
  IF day IS NULL THEN RETURN NULL; END IF;
  RETURN ratelimit._first_instant(day, l.zone);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._window(l ratelimit._limit, us bigint) RETURNS bigint STABLE LANGUAGE plpgsql AS $$
DECLARE local timestamp := timezone(l.zone, ratelimit._dated(us)); day date := local; w bigint;
BEGIN
  IF l.months THEN
    w := floor(((extract(year FROM day) - extract(year FROM l.first_date)) * 12
     + extract(month FROM day) - extract(month FROM l.first_date)) / l.every);
    IF ratelimit._date(l, w) > day THEN w := w - 1; END IF;
  ELSE w := floor((day - l.first_date)::numeric / l.every);
  END IF;
  IF local::time >= '18:00' AND ratelimit._boundary(l, w + 1) <= us THEN w := w + 1; END IF;
  RETURN w;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._next(l ratelimit._limit, ts bigint) RETURNS bigint STABLE LANGUAGE plpgsql AS $$
DECLARE w bigint := ratelimit._window(l, ts); local timestamp; later timestamp; ends bigint;
BEGIN
  IF ratelimit._boundary(l, w) = ts THEN RETURN w + 1; END IF; local := timezone(l.zone, ratelimit._dated(ts));
  later := local + CASE WHEN l.months THEN make_interval(months => l.every) ELSE make_interval(days => l.every) END;
  IF l.months AND date_part('month', local + interval '1 day') <> date_part('month', local) THEN
    later := (date_trunc('month', later) + interval '1 month - 1 day')::date + local::time;
  END IF;
  IF later >= '10000-01-01' THEN RETURN NULL; END IF; ends := ratelimit._first_instant(later, l.zone);
  IF ends IS NULL THEN RETURN NULL; END IF; w := ratelimit._window(l, ends);
  RETURN CASE WHEN ratelimit._boundary(l, w) = ends THEN w ELSE w + 1 END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._turns(l ratelimit._limit, ts bigint, now bigint, OUT windows bigint,
 OUT begun bigint) STABLE LANGUAGE plpgsql AS $$
DECLARE w bigint;
BEGIN
  IF l.zone IS NULL THEN
    windows := ratelimit._since(ts, now) / l.period; begun := ts + windows * l.period;
    RETURN;
  END IF;
  windows := 0; begun := ts;
  IF now >= ratelimit._plus(ts, l.every * (CASE WHEN l.months THEN 28 ELSE 1 END) * 86400000000 - 10800000000) THEN
    w := ratelimit._window(l, now);
    IF ratelimit._boundary(l, w) > ts THEN
      windows := coalesce(greatest(w - ratelimit._next(l, ts) + 1, 0), 0);
      IF windows > 0 THEN begun := ratelimit._boundary(l, w); END IF;
    END IF;
  END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._after(l ratelimit._limit, ts bigint, windows float8) RETURNS bigint
STABLE LANGUAGE plpgsql AS $$
BEGIN
  IF l.zone IS NULL THEN
    IF windows * l.period < 4.6e18 AND ts::float8 + windows * l.period < 9.2e18 THEN
      RETURN ts + windows::bigint * l.period;
    END IF;
    RETURN NULL;
  ELSIF windows < 1 THEN RETURN ts;
  ELSIF windows > 1e7 THEN RETURN NULL;
  END IF;
  RETURN ratelimit._boundary(l, ratelimit._next(l, ts) + windows::bigint - 1);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._fits(kind int, prior float8, log timestamptz[]) RETURNS bool
IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN kind <= 2 THEN log IS NULL AND (prior IS NULL
   OR prior < 0 AND prior > '-Infinity' OR prior = 0 AND prior::text = '-0')
   WHEN kind = 3 THEN log IS NULL AND coalesce(prior > 0 OR prior = 0 AND prior::text <> '-0', false)
   WHEN kind = 4 THEN log IS NOT NULL AND prior IS NULL
   WHEN kind = 5 THEN log IS NOT NULL AND prior IS NOT NULL ELSE false END $$;
CREATE OR REPLACE FUNCTION ratelimit._initial(l ratelimit._limit, now bigint, phase bigint) RETURNS ratelimit._state
STABLE LANGUAGE plpgsql AS $$
DECLARE s ratelimit._state;
BEGIN
  s.ts := now;
  CASE l.kind
  WHEN 1 THEN s.value := l.capacity;
  WHEN 2 THEN
    s.value := l.capacity; s.prior := l.fresh_prior;
    IF l.zone IS NOT NULL THEN s.ts := coalesce(ratelimit._boundary(l, ratelimit._window(l, now)), now);
    ELSIF NOT l.first_request THEN
      s.ts := now - ((now::numeric - coalesce(l.start, phase)) % l.period + l.period) % l.period;
    END IF;
  WHEN 3 THEN s.value := 0; s.prior := 0; s.ts := ratelimit._floor(now, l.period);
  WHEN 4 THEN s.value := 0; s.log := '{}'; WHEN 5 THEN s.value := 0; s.log := '{}'; s.prior := 0; ELSE s.value := 0;
  END CASE;
  RETURN s;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._state_of(l ratelimit._limit, name text, key text, now bigint,
 value float8, ts timestamptz, prior float8, log timestamptz[]) RETURNS ratelimit._state STABLE LANGUAGE plpgsql AS $$
DECLARE s ratelimit._state;
BEGIN
  IF value < 'Infinity' AND ratelimit._fits(l.kind, prior, log) THEN
    IF value > '-Infinity' AND ts > '-infinity' AND ts < 'infinity' AND (prior IS NULL OR prior < 'Infinity')
     AND (log IS NULL OR cardinality(log) = 0 OR log[1] > '-infinity' AND log[cardinality(log)] < 'infinity'
     AND (prior IS NULL OR 'infinity' <> ALL (log) AND '-infinity' <> ALL (log))) THEN
      s.value := value; s.ts := ratelimit._us(ts); s.prior := prior; s.log := log;
      IF l.kind = 4 THEN s.log := ARRAY(SELECT e FROM unnest(log) e WHERE e IS NOT NULL ORDER BY e); END IF;
      RETURN s;
    END IF;
  ELSIF value IS NULL OR value = 'Infinity'
   OR NOT ratelimit._fits(l.kind, (CASE WHEN prior IN ('NaN', 'Infinity', '-Infinity') THEN 1 ELSE prior END), log) THEN
    RETURN ratelimit._initial(l, now, CASE WHEN l.kind = 2 AND l.start IS NULL AND l.zone IS NULL
     AND NOT l.first_request THEN ratelimit._phase(name, key) END);
  END IF;
  IF value IN ('NaN', '-Infinity') THEN PERFORM ratelimit._bad_state(name, 'value', value::text);
  ELSIF prior IN ('NaN', 'Infinity', '-Infinity') THEN PERFORM ratelimit._bad_state(name, 'prior', prior::text);
  ELSIF ts IN ('infinity', '-infinity') THEN PERFORM ratelimit._bad_state(name, 'ts', initcap(ts::text));
  END IF;
  PERFORM ratelimit._bad_state(name, 'log', CASE WHEN log[1] = '-infinity' THEN '-Infinity' ELSE 'Infinity' END);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._current(l ratelimit._limit, s ratelimit._state, now bigint)
RETURNS ratelimit._state STABLE LANGUAGE plpgsql AS $$
DECLARE soon bigint := ratelimit._plus(now, 3600000000); stored float8; horizon bigint := soon; seen bigint := s.ts;
BEGIN
  CASE l.kind
  WHEN 1 THEN horizon := ratelimit._due(l, now, greatest(l.capacity - ratelimit._stored(l, s), l.capacity));
  WHEN 2 THEN
    stored := ratelimit._stored(l, s); IF l.overage THEN stored := greatest(stored, 0); END IF;
    horizon := ratelimit._due(l, now, greatest(l.capacity - stored, l.capacity, l.rate));
  WHEN 3 THEN horizon := ratelimit._plus(now, 2 * l.period);
  WHEN 4 THEN
    horizon := ratelimit._plus(now, l.period);
    seen := CASE WHEN cardinality(s.log) > 0 THEN ratelimit._us(s.log[cardinality(s.log)]) ELSE now END;
  ELSE RETURN s;
  END CASE;
  IF horizon IS NULL OR seen <= greatest(horizon, soon) THEN RETURN s; END IF;
  RETURN ratelimit._initial(l, now, s.ts);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._rounded(tokens float8, capacity float8,
 tolerance float8) RETURNS float8 IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN abs(tokens - round(tokens)) <= least(tolerance, 1e-6) AND round(tokens) <= capacity
   THEN round(tokens) + 0 ELSE tokens END $$;
CREATE OR REPLACE FUNCTION ratelimit._subtract(available float8, count float8)
RETURNS float8 IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN available - count < available OR count = 0 THEN available - count
        ELSE available - abs(available) * 1.1102230246251568e-16 END $$;
CREATE OR REPLACE FUNCTION ratelimit._stored(l ratelimit._limit, s ratelimit._state) RETURNS float8
STABLE LANGUAGE plpgsql AS $$
DECLARE value float8 := s.value; more float8; most float8; following bigint;
BEGIN
  IF l.kind = 2 AND s.prior IS NOT NULL THEN
    more := s.prior - l.fresh_prior;
    value := CASE WHEN more >= -greatest(value, 0) THEN value + more ELSE least(value, 0) END;
  END IF;
  IF value >= 0 OR l.overage THEN RETURN value; END IF;
  IF l.kind = 1 THEN most := 315576000000000 * l.rate / l.period;
  ELSE
    following := ratelimit._after(l, s.ts, 1); IF following IS NULL THEN RETURN value; END IF;
    most := ((ratelimit._turns(l, s.ts, ratelimit._plus(following - 1, 315576000000000))).windows * l.rate
     + l.tolerance / 2) * (1 - 8.881784197001252e-16);
  END IF;
  RETURN greatest(value, -greatest(most, l.tolerance));
END $$;
CREATE OR REPLACE FUNCTION ratelimit._tokens_at(l ratelimit._limit, value float8, ts bigint, now bigint)
RETURNS float8 IMMUTABLE LANGUAGE sql AS $$
  SELECT least(value + CASE l.kind WHEN 1 THEN ratelimit._since(ts, now)::float8 * l.rate / l.period
                  ELSE ratelimit._since(ts, now) / l.period * l.rate END, l.capacity) $$;
CREATE OR REPLACE FUNCTION ratelimit._counted_at(l ratelimit._limit, ts bigint, now bigint) RETURNS bigint
IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE l.kind WHEN 1 THEN greatest(ts, now) ELSE ts + ratelimit._since(ts, now) / l.period * l.period END $$;
CREATE OR REPLACE FUNCTION ratelimit._span(l ratelimit._limit, tokens float8) RETURNS float8
IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE l.kind WHEN 1 THEN ceil(tokens * l.period / l.rate)
           ELSE ceil((tokens - l.tolerance / 2) / l.rate) * l.period END $$;
CREATE OR REPLACE FUNCTION ratelimit._refilled(l ratelimit._limit, s ratelimit._state, now bigint, OUT ts bigint,
 OUT tokens float8) STABLE LANGUAGE plpgsql AS $$
DECLARE windows bigint;
BEGIN
  IF s.value >= 0 AND (l.kind = 1 OR s.prior = l.fresh_prior) THEN tokens := s.value;
  ELSE tokens := ratelimit._stored(l, s);
  END IF;
  IF l.zone IS NOT NULL THEN
    SELECT t.windows, t.begun INTO windows, ts FROM ratelimit._turns(l, s.ts, now) t;
    IF windows > 0 AND l.overage THEN tokens := greatest(tokens, 0); END IF;
    tokens := least(tokens + windows * l.rate, l.capacity);
    RETURN;
  END IF;
  ts := ratelimit._counted_at(l, s.ts, now); IF l.overage AND ts > s.ts THEN tokens := greatest(tokens, 0); END IF;
  tokens := ratelimit._tokens_at(l, tokens, s.ts, now);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._due(l ratelimit._limit, ts bigint, tokens float8) RETURNS bigint
STABLE LANGUAGE plpgsql AS $$
BEGIN
  IF l.kind = 1 THEN
    IF tokens <= 0 THEN RETURN ts; END IF;
    IF tokens * l.period >= 4.611686018427388e18 * l.rate THEN RETURN NULL; END IF;
    RETURN ratelimit._plus(ts, ratelimit._span(l, tokens)::bigint);
  END IF;
  IF tokens >= 1e18 * l.rate THEN RETURN NULL; END IF;
  RETURN ratelimit._after(l, ts, greatest(ceil((tokens - l.tolerance / 2) / l.rate), 0));
END $$;
CREATE OR REPLACE FUNCTION ratelimit._awaits(l ratelimit._limit, tokens float8) RETURNS bool
IMMUTABLE LANGUAGE sql AS $$
  SELECT l.first_request AND tokens >= l.capacity - least(l.tolerance, 1e-6) $$;
CREATE OR REPLACE FUNCTION ratelimit._reset_at(l ratelimit._limit, ts bigint, tokens float8, now bigint)
RETURNS bigint STABLE LANGUAGE plpgsql AS $$
BEGIN
  IF l.kind = 1 THEN
    IF l.capacity - tokens <= l.tolerance THEN RETURN ts; END IF;
    RETURN ratelimit._due(l, ts, l.capacity - tokens);
  ELSIF l.first_request AND ratelimit._awaits(l, tokens) THEN RETURN now;
  END IF;
  RETURN ratelimit._after(l, ts, 1);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._passes(l ratelimit._limit, ts bigint, available float8, now bigint,
 count float8, reserve bool) RETURNS bigint STABLE LANGUAGE plpgsql AS $$
DECLARE wait bigint;
BEGIN
  IF count - available <= l.tolerance OR l.overage THEN RETURN 0; END IF;
  IF NOT reserve OR count - available > l.max_reserved + l.tolerance THEN RETURN NULL; END IF;
  wait := ratelimit._due(l, ts, count - available) - now;
  RETURN CASE WHEN wait <= 315576000000000 THEN wait END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._passes_at(l ratelimit._limit, s ratelimit._state, at bigint,
 count float8, reserve bool) RETURNS bool STABLE LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
  IF l.kind = 3 THEN
    r := ratelimit._counters(l, s, at);
    RETURN r.used + count <= l.rate + l.tolerance;
  END IF;
  r := ratelimit._refilled(l, s, at);
  RETURN ratelimit._passes(l, CASE WHEN ratelimit._awaits(l, r.tokens) THEN greatest(r.ts, at) ELSE r.ts END,
   r.tokens, at, count, reserve) IS NOT NULL;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._confirmed(l ratelimit._limit, s ratelimit._state, now bigint, wait bigint,
 count float8, reserve bool) RETURNS bigint STABLE LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..4 LOOP
    EXIT WHEN wait IS NULL;
    IF ratelimit._passes_at(l, s, ratelimit._plus(now, wait), count, reserve) THEN RETURN wait; END IF;
    wait := ratelimit._plus(wait, greatest(1, wait >> 50));
  END LOOP;
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._retry(l ratelimit._limit, s ratelimit._state, now bigint,
 count float8, reserve bool, ts bigint, available float8) RETURNS bigint STABLE LANGUAGE plpgsql AS $$
DECLARE
  most float8 := CASE WHEN reserve THEN coalesce(l.max_reserved, 'Infinity') ELSE 0 END; at bigint := now; r record;
BEGIN
  IF count > l.capacity + most + l.tolerance THEN RETURN NULL; END IF;
  IF count - available > most THEN at := ratelimit._due(l, ts, count - available - most); END IF;
  IF reserve AND at IS NOT NULL THEN
    r := ratelimit._refilled(l, s, at); at := ratelimit._due(l, r.ts, count - r.tokens) - 315576000000000;
    at := CASE WHEN at IS NOT NULL THEN greatest(at, now,
     CASE WHEN count - available > most THEN ratelimit._due(l, ts, count - available - most) END) END;
  END IF;
  IF at IS NULL THEN RETURN NULL; END IF;
  RETURN ratelimit._confirmed(l, s, now, greatest(at - now, 0), count, reserve);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._brought(l ratelimit._limit, s ratelimit._state, ts bigint,
 value float8) RETURNS float8 IMMUTABLE LANGUAGE sql AS $$
  SELECT -greatest(least(l.rate, l.capacity),
   CASE WHEN ts = s.ts AND value <= 0 THEN -s.prior - greatest(s.value, 0) END) $$;
CREATE OR REPLACE FUNCTION ratelimit._take_tokens(l ratelimit._limit, s ratelimit._state, now bigint,
 count float8, reserve bool) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE r record; ts bigint; wait bigint; value float8; prior float8; reset bigint;
BEGIN
  r := ratelimit._refilled(l, s, now); ts := r.ts; value := ratelimit._subtract(r.tokens, count);
  IF value < -l.tolerance AND NOT l.overage OR l.first_request THEN
    IF ratelimit._awaits(l, r.tokens) THEN ts := greatest(ts, now); END IF;
    wait := ratelimit._passes(l, ts, r.tokens, now, count, reserve);
    IF wait IS NULL THEN
      reset := ratelimit._reset_at(l, r.ts, r.tokens, now);
      wait := ratelimit._retry(l, s, now, count, reserve, r.ts, r.tokens);
      RETURN ROW(false, wait, ratelimit._rounded(r.tokens, l.capacity, l.tolerance), l.capacity, reset, now,
       false, l.enforce, NULL, NULL, NULL, NULL, NULL, NULL)::ratelimit._decision;
    END IF;
    IF wait <= 0 THEN wait := NULL; END IF;
  END IF;
  reset := ratelimit._reset_at(l, ts, value, now);
  IF l.kind = 2 THEN prior := ratelimit._brought(l, s, ts, value); END IF;
  RETURN ROW(true, wait, ratelimit._rounded(value, l.capacity, l.tolerance), l.capacity, reset, now, count > 0,
   l.enforce, NULL, NULL, value, ts, prior, NULL)::ratelimit._decision;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._brought(l ratelimit._limit, s ratelimit._state, ts bigint,
 value float8) RETURNS float8 IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  IF value <= 0 AND ts = s.ts THEN RETURN -greatest(-l.fresh_prior, -s.prior - greatest(s.value, 0)); END IF;
  RETURN l.fresh_prior;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._counters(l ratelimit._limit, s ratelimit._state, now bigint, OUT ts bigint,
 OUT value float8, OUT prior float8, OUT used float8) IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE begun bigint := ratelimit._floor(now, l.period);
BEGIN
  ts := ratelimit._floor(s.ts, l.period); value := s.value; prior := s.prior;
  IF begun > ts THEN prior := CASE WHEN begun - l.period = ts THEN s.value ELSE 0 END; value := 0; ts := begun;
  END IF;
  used := prior * greatest(1 - greatest(now - ts, 0)::float8 / l.period, 0) + value;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._take_window(l ratelimit._limit, s ratelimit._state, now bigint,
 count float8) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE c record := ratelimit._counters(l, s, now); d ratelimit._decision; fading float8 := c.value; fixed float8 := 0;
  at bigint := ratelimit._plus(c.ts, l.period);
BEGIN
  d.at := now; d.capacity := l.capacity; d.enforced := l.enforce;
  d.ok := count = 0 OR c.used + count <= l.rate + l.tolerance; d.changed := d.ok AND count > 0; d.reset_at := at;
  IF d.changed THEN
    d.ts := c.ts; d.prior := c.prior; d.value := -ratelimit._subtract(-c.value, count);
    c.used := c.prior * greatest(1 - greatest(now - c.ts, 0)::float8 / l.period, 0) + d.value;
  END IF;
  d.remaining := ratelimit._rounded(greatest(l.rate - c.used, 0), l.rate, l.tolerance);
  IF NOT d.ok AND count <= l.rate + l.tolerance THEN
    IF c.value + count <= l.rate + l.tolerance AND c.prior > 0 THEN fading := c.prior; fixed := c.value; at := c.ts;
    END IF;
    at := ratelimit._plus(at, ceil(greatest(least(1 - (l.rate - fixed - count) / nullif(fading, 0), 1), 0)
     * l.period)::bigint);
    d.wait := ratelimit._confirmed(l, s, now, greatest(at - now, 0), count, false);
  END IF;
  RETURN d;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._gone(l ratelimit._limit, log timestamptz[], now bigint) RETURNS int STABLE
LANGUAGE plpgsql AS $$
DECLARE newest timestamptz := log[cardinality(log)]; since bigint;
BEGIN
  IF newest IS NULL THEN RETURN 0; END IF; since := greatest(ratelimit._us(newest), now) - l.period;
  IF since < -210866803200000000 THEN RETURN 0; END IF;
  RETURN width_bucket(ratelimit._nearest(since), log);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._take_log(l ratelimit._limit, s ratelimit._state, now bigint,
 count float8) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE d ratelimit._decision; gone int := ratelimit._gone(l, s.log, now); live int := cardinality(s.log) - gone;
  newest timestamptz := CASE WHEN live > 0 THEN s.log[cardinality(s.log)] END; nth timestamptz;
BEGIN
  d.at := now; d.capacity := l.capacity; d.enforced := l.enforce; d.ok := count = 0 OR live + count <= l.rate;
  d.changed := d.ok AND count > 0;
  IF d.changed THEN
    d.ts := greatest(ratelimit._us(newest), now); newest := ratelimit._nearest(d.ts);
    d.log := s.log[gone + 1:] || array_fill(newest, ARRAY[count::int]); live := live + count::int; d.value := live;
  ELSIF NOT d.ok AND count <= l.rate THEN
    nth := s.log[gone + (live + count - l.rate)::int]; d.wait := ratelimit._plus(ratelimit._us(nth), l.period) - now;
  END IF;
  d.remaining := greatest(l.rate - live, 0);
  d.reset_at := CASE WHEN newest IS NULL THEN now ELSE ratelimit._plus(ratelimit._us(newest), l.period) END;
  RETURN d;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._live(log timestamptz[], now bigint) RETURNS timestamptz[] STABLE
LANGUAGE plpgsql AS $$
DECLARE at timestamptz := ratelimit._nearest(now); live timestamptz[] := '{}';
BEGIN
  FOR i IN 1..cardinality(log) - 1 BY 2 LOOP
    IF log[i + 1] > at THEN live := live || log[i:i + 1]; END IF;
  END LOOP;
  RETURN live;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._expiries(live timestamptz[]) RETURNS timestamptz[] IMMUTABLE LANGUAGE sql AS $$
  SELECT coalesce(array_agg(live[i] ORDER BY live[i]), '{}') FROM generate_series(2, cardinality(live), 2) i $$;
CREATE OR REPLACE FUNCTION ratelimit._acquire(l ratelimit._limit, s ratelimit._state, now bigint,
 count float8, id bigint) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE d ratelimit._decision; live timestamptz[] := ratelimit._live(s.log, now);
  taken float8 := cardinality(live) / 2 + count; expiries timestamptz[]; last timestamptz;
BEGIN
  d.at := now; d.capacity := l.capacity; d.enforced := l.enforce; d.ok := count = 0 OR taken <= l.capacity;
  d.changed := d.ok AND count > 0;
  IF d.changed THEN
    WHILE EXISTS (SELECT FROM generate_series(1, cardinality(s.log), 2) i WHERE s.log[i] = ratelimit._nearest(id)) LOOP
      id := id + 1;
    END LOOP;
    FOR i IN 1..count::int LOOP
      live := live || ARRAY[ratelimit._nearest(id), ratelimit._nearest(ratelimit._plus(now, l.period))];
    END LOOP;
    d.value := taken; d.ts := greatest(s.ts, now); d.prior := 0; d.log := live;
  END IF;
  expiries := ratelimit._expiries(live);
  IF NOT d.ok AND count <= l.capacity THEN
    last := expiries[greatest(taken - l.capacity, 1)::int]; d.wait := ratelimit._us(last) - now;
  END IF;
  last := expiries[cardinality(expiries)]; d.remaining := greatest(l.capacity - cardinality(expiries), 0);
  d.reset_at := CASE WHEN last IS NULL THEN now ELSE ratelimit._us(last) END;
  RETURN d;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._decide(l ratelimit._limit, s ratelimit._state, now bigint,
 count float8, reserve bool, id bigint DEFAULT NULL) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE d ratelimit._decision;
BEGIN
  IF s.ts > now OR l.kind = 4 THEN s := ratelimit._current(l, s, now); END IF;
  CASE l.kind
  WHEN 1 THEN RETURN ratelimit._take_tokens(l, s, now, count, reserve);
  WHEN 2 THEN RETURN ratelimit._take_tokens(l, s, now, count, reserve);
  WHEN 3 THEN RETURN ratelimit._take_window(l, s, now, count); WHEN 4 THEN RETURN ratelimit._take_log(l, s, now, count);
  WHEN 5 THEN RETURN ratelimit._acquire(l, s, now, count, coalesce(id, now));
  ELSE
    d.ok := true; d.at := now; d.enforced := l.enforce; d.changed := false;
    RETURN d;
  END CASE;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._credit(l ratelimit._limit, s ratelimit._state, now bigint,
 count float8, taken_at timestamptz) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE d ratelimit._decision; r record; after ratelimit._state;
BEGIN
  d.ok := true; d.at := now; d.capacity := l.capacity; d.enforced := l.enforce; d.changed := false;
  IF l.kind = 6 THEN RETURN d; END IF; IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF;
  r := ratelimit._refilled(l, s, now); d.ts := r.ts; d.value := r.tokens;
  IF count < 0 THEN
    IF ratelimit._awaits(l, r.tokens) THEN d.ts := greatest(r.ts, now); END IF;
    after.value := ratelimit._subtract(r.tokens, -count); after.ts := d.ts; d.value := ratelimit._stored(l, after);
  ELSIF l.kind = 1 OR taken_at IS NULL OR ratelimit._us(taken_at) >= r.ts THEN
    d.value := least(r.tokens + count, l.capacity);
  END IF;
  IF d.value < -l.tolerance AND NOT l.overage THEN d.wait := ratelimit._due(l, d.ts, -d.value) - now; END IF;
  d.changed := d.value <> r.tokens; IF l.kind = 2 THEN d.prior := ratelimit._brought(l, s, d.ts, d.value); END IF;
  d.remaining := ratelimit._rounded(d.value, l.capacity, l.tolerance);
  d.reset_at := ratelimit._reset_at(l, d.ts, d.value, now);
  RETURN d;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._level(l ratelimit._limit, s ratelimit._state, now bigint)
RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE d ratelimit._decision; r record;
BEGIN
  IF l.kind > 2 THEN RETURN ratelimit._decide(l, s, now, 0, false); END IF;
  IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF; r := ratelimit._refilled(l, s, now);
  d.remaining := ratelimit._rounded(r.tokens, l.capacity, l.tolerance);
  d.reset_at := ratelimit._reset_at(l, r.ts, r.tokens, now);
  RETURN d;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._present(l ratelimit._limit, s ratelimit._state, now bigint) RETURNS bigint
STABLE LANGUAGE plpgsql AS $$
DECLARE r record; newest timestamptz;
BEGIN
  IF s.ts > now THEN s := ratelimit._current(l, s, now); END IF;
  CASE l.kind
  WHEN 3 THEN RETURN greatest(now, s.ts);
  WHEN 4 THEN
    newest := s.log[cardinality(s.log)];
    RETURN greatest(now, ratelimit._us(newest));
  WHEN 5, 6 THEN RETURN now; ELSE RETURN greatest(now, s.ts);
  END CASE;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._idle(l ratelimit._limit, s ratelimit._state, now bigint, name text, key text)
RETURNS bool STABLE LANGUAGE plpgsql AS $$
DECLARE r record; fresh ratelimit._state;
BEGIN
  IF s.ts > now THEN RETURN false; END IF;
  CASE l.kind
  WHEN 1 THEN
    r := ratelimit._refilled(l, s, now);
    RETURN r.tokens >= l.capacity;
  WHEN 2 THEN
    r := ratelimit._refilled(l, s, now);
    IF r.tokens < l.capacity OR r.ts = s.ts AND -s.prior - greatest(s.value, 0) > -l.fresh_prior THEN RETURN false;
    END IF;
    fresh := ratelimit._state_of(l, name, key, now, NULL, NULL, NULL, NULL);
    RETURN ratelimit._awaits(l, r.tokens) OR r.ts = fresh.ts;
  WHEN 3 THEN
    r := ratelimit._counters(l, s, now);
    RETURN r.value = 0 AND r.prior = 0;
  WHEN 4 THEN RETURN ratelimit._gone(l, s.log, now) = cardinality(s.log);
  WHEN 5 THEN RETURN ratelimit._live(s.log, now) = '{}'; ELSE RETURN true;
  END CASE;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._resolve(function text, name text, key text, defined ratelimit._limit,
 config jsonb) RETURNS ratelimit._limit LANGUAGE plpgsql AS $$
DECLARE l ratelimit._limit := defined; leases bool := function IN ('rl_acquire', 'rl_extend', 'rl_release');
BEGIN
  IF config IS NOT NULL THEN
    IF defined.kind IS NOT NULL AND NOT has_function_privilege(ratelimit._caller(),
     'ratelimit.rl_define(text, jsonb, text)', 'EXECUTE') THEN
      PERFORM ratelimit._raise('42501', format('permission denied to override rate limit "%s"', name),
       'A config passed with the call overrides the definition; that requires EXECUTE on rl_define.',
       format('Call it without a config: SELECT * FROM ratelimit.rl_limit(%s, $1);', ratelimit._literal(name)));
    END IF;
    l := ratelimit._parse(config);
  ELSIF l.kind IS NULL THEN
    PERFORM ratelimit._raise('42704', format('rate limit "%s" is not defined', name), NULL,
     'Define it: ' || ratelimit._example(name, CASE WHEN leases THEN 5 ELSE 1 END));
  END IF;
  IF key = '' AND (l.keyed OR defined.keyed) AND function NOT IN ('rl_extend', 'rl_release', 'rl_headers') THEN
    PERFORM ratelimit._keyed(name, l.kind);
  END IF;
  RETURN l;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._keyed(name text, kind int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._raise('22004', format('rate limit "%s" requires a key', name),
   'Its config has "keyed": true, so that a call without a key fails instead of taking from a limit that '
    'everybody shares.',
    format('For example: SELECT * FROM ratelimit.%s(%s, ''user-1''); in a list "key": "user-1", in a trigger '
       '''key=author''.', CASE kind WHEN 5 THEN 'rl_acquire' ELSE 'rl_limit' END, ratelimit._literal(name)));
END $$;
CREATE OR REPLACE FUNCTION ratelimit._check_use(function text, kind int, count float8) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF function = 'rl_credit' THEN
    IF (count >= -1e15 AND count <= 1e15) IS NOT TRUE THEN
      PERFORM ratelimit._bad('count', ratelimit._digits(count), 'a number from -1e15 to 1e15');
    END IF;
    RETURN;
  ELSIF kind = 5 AND function IN ('rl_limit', 'rl_limit_all', 'rl_check_all')
   OR kind < 5 AND function = 'rl_acquire' THEN
    PERFORM ratelimit._wrong_kind(function, kind);
  END IF;
  PERFORM ratelimit._check_count(kind, count);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._usable(function text, name text, key text, defined ratelimit._limit,
 config jsonb, count float8) RETURNS ratelimit._limit LANGUAGE plpgsql AS $$
DECLARE l ratelimit._limit;
BEGIN
  PERFORM ratelimit._check(name, key, count);
  l := ratelimit._resolve(function, name, key, defined, config);
  PERFORM ratelimit._check_use(function, l.kind, count);
  RETURN l;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._writable(function text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_read_only') = 'on' THEN
    PERFORM ratelimit._raise('25006', format('cannot execute %s() in a read-only transaction', function));
  END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._random_id() RETURNS bigint LANGUAGE sql AS $$
  SELECT greatest(('x' || substr(u, 1, 12) || substr(u, 32, 1))::bit(52)::bigint, 1)
  FROM (SELECT replace(gen_random_uuid()::text, '-', '')) AS drawn(u) $$;
CREATE OR REPLACE FUNCTION ratelimit._found(name text, key text) RETURNS TABLE (defined ratelimit._limit,
 until timestamptz, place tid, value float8, ts timestamptz, prior float8, log timestamptz[]) STABLE LANGUAGE sql AS $$
  SELECT coalesce((SELECT c.parsed FROM ratelimit.rl_config c WHERE c.name = $1 AND c.key = $2),
   (SELECT c.parsed FROM ratelimit.rl_config c WHERE c.name = $1 AND c.key = '')),
   b.until, r.ctid, r.value, r.ts, r.prior, r.log
  FROM (SELECT) AS one LEFT JOIN ratelimit.rl_blocks b ON b.name = $1 AND b.key = $2
  LEFT JOIN ratelimit.rateLimits r ON r.name = $1 AND r.key = $2 $$;
CREATE OR REPLACE FUNCTION ratelimit._look(l ratelimit._limit, s ratelimit._state, now bigint, until timestamptz,
 count float8, reserve bool, dry_run_passes bool) RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE
  ends bigint := ratelimit._us(until); d ratelimit._decision; level ratelimit._decision := ratelimit._level(l, s, now);
BEGIN
  IF ends > now THEN
    IF until < 'infinity' THEN
      d := ratelimit._decide(l, s, ends, count, reserve);
      d.wait := ends - now + CASE WHEN d.ok OR dry_run_passes AND NOT l.enforce THEN 0 ELSE d.wait END;
    END IF;
    d.ok := false; d.at := now; d.capacity := l.capacity; d.enforced := true; d.changed := false; d.blocked := true;
    d.forever := until = 'infinity';
  ELSE d := ratelimit._decide(l, s, now, count, reserve);
  END IF;
  d.remaining := level.remaining; d.reset_at := level.reset_at;
  RETURN d;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._decided(function text, l ratelimit._limit, name text, key text, now bigint,
 count float8, reserve bool, taken_at timestamptz, id bigint,
 value float8, ts timestamptz, prior float8, log timestamptz[]) RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE s ratelimit._state := ratelimit._state_of(l, name, key, now, value, ts, prior, log);
BEGIN
  IF function = 'rl_credit' THEN
    IF l.kind IN (3, 4, 5) THEN PERFORM ratelimit._wrong_kind(function, l.kind); END IF;
    RETURN ratelimit._credit(l, s, now, count, taken_at);
  END IF;
  RETURN ratelimit._decide(l, s, now, count, reserve, id);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._let_pass(d ratelimit._decision) RETURNS ratelimit._decision IMMUTABLE
LANGUAGE plpgsql AS $$
BEGIN
  IF NOT d.ok AND NOT d.enforced THEN d.ok := true; d.wait := NULL; END IF;
  RETURN d;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._change(function text, name text, key text, count float8,
 reserve bool, config jsonb, taken_at timestamptz DEFAULT NULL, id bigint DEFAULT NULL)
RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE seen record; held record; l ratelimit._limit; d ratelimit._decision; tries int;
BEGIN
  LOOP
    SELECT f.*, ratelimit._now() AS now INTO seen FROM ratelimit._found($2, $3) f;
    l := ratelimit._usable(function, name, key, seen.defined, config, count);
    IF seen.until IS NOT NULL AND function <> 'rl_credit' THEN
      d := ratelimit._look(l, ratelimit._state_of(l, name, key, seen.now, seen.value, seen.ts, seen.prior,
       seen.log), seen.now, seen.until, count, reserve, true);
      IF d.blocked THEN RETURN d; END IF;
    END IF;
    IF l.kind <> 6 THEN PERFORM ratelimit._writable(function); END IF;
    d := ratelimit._decided(function, l, name, key, seen.now, count, reserve, taken_at, id,
     seen.value, seen.ts, seen.prior, seen.log);
    IF NOT d.changed THEN RETURN ratelimit._let_pass(d); END IF;
    IF seen.place IS NULL THEN
      INSERT INTO ratelimit.rateLimits (name, key, value, ts, prior, log)
      VALUES ($2, $3, d.value, ratelimit._nearest(d.ts), d.prior, d.log) ON CONFLICT DO NOTHING;
      IF FOUND AND ratelimit._now() - seen.now < 1000 THEN RETURN d; END IF; held := seen;
    ELSE
      SELECT r.value, r.ts, r.prior, r.log INTO held
      FROM ratelimit.rateLimits r WHERE r.name = $2 AND r.key = $3 FOR UPDATE;
    END IF;
    IF FOUND THEN
      d := ratelimit._decided(function, l, name, key, ratelimit._now(), count, reserve, taken_at, id,
       held.value, held.ts, held.prior, held.log);
      IF NOT d.changed THEN RETURN ratelimit._let_pass(d); END IF;
      UPDATE ratelimit.rateLimits r SET value = d.value, ts = ratelimit._nearest(d.ts), prior = d.prior,
       log = d.log WHERE r.name = $2 AND r.key = $3;
      IF FOUND THEN RETURN d; END IF;
      PERFORM ratelimit._not_written();
    END IF;
    tries := coalesce(tries, 0) + 1; IF tries = 100 THEN PERFORM ratelimit._not_written(); END IF;
  END LOOP;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._answer(d ratelimit._decision) RETURNS ratelimit.rl_result STABLE
LANGUAGE plpgsql AS $$
DECLARE at bigint; retry_at timestamptz;
BEGIN
  at := ratelimit._plus(d.at, d.wait); retry_at := ratelimit._rounded_up(at);
  RETURN ROW(d.ok, CASE WHEN retry_at IS NOT NULL THEN ratelimit._ceil(d.wait, 1000)::float8 / 1e6 END, retry_at,
   d.remaining, d.capacity, ratelimit._rounded_up(d.reset_at))::ratelimit.rl_result;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_limit(name text, key text DEFAULT '', count float8 DEFAULT 1,
 reserve bool DEFAULT false, throws bool DEFAULT false, config jsonb DEFAULT NULL)
RETURNS ratelimit.rl_result LANGUAGE plpgsql AS $$
DECLARE seen record; held record; l ratelimit._limit; tokens float8; now bigint; at bigint; wait float8;
  d ratelimit._decision;
BEGIN
  SELECT f.defined, f.until, f.place, f.value, f.prior, f.log, ratelimit._us(f.ts) AS ts, ratelimit._now() AS now
  INTO seen FROM ratelimit._found($1, $2) f; l := seen.defined;
  IF l.usual AND count > 0 AND count <= l.capacity AND NOT reserve AND NOT throws AND config IS NULL
   AND seen.until IS NULL AND seen.log IS NULL AND seen.prior IS NOT DISTINCT FROM l.fresh_prior
   AND seen.value >= 0 AND seen.value < 'Infinity' AND seen.ts BETWEEN 0 AND seen.now
   AND current_setting('transaction_read_only') = 'off' THEN
    tokens := ratelimit._tokens_at(l, seen.value, seen.ts, seen.now);
    IF count - tokens > l.tolerance THEN
      at := ratelimit._counted_at(l, seen.ts, seen.now);
      wait := ratelimit._span(l, count - tokens) - CASE l.kind WHEN 1 THEN 0 ELSE seen.now - at END;
      IF (wait < 1e15 AND count - ratelimit._tokens_at(l, seen.value, seen.ts, seen.now + wait::bigint)
       <= l.tolerance) IS NOT TRUE THEN
        tokens := NULL;
      END IF;
    ELSE
      SELECT r.ctid AS place, r.value, r.prior, r.log, ratelimit._us(r.ts) AS ts INTO held
      FROM ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2 FOR UPDATE; now := ratelimit._now();
      tokens := CASE WHEN held.log IS NULL AND held.prior IS NOT DISTINCT FROM l.fresh_prior
       AND held.value >= 0 AND held.value < 'Infinity' AND held.ts BETWEEN 0 AND now
       THEN ratelimit._tokens_at(l, held.value, held.ts, now) END;
      IF count - tokens <= l.tolerance AND tokens - count < tokens AND l.capacity - tokens + count > l.tolerance THEN
        tokens := tokens - count; at := ratelimit._counted_at(l, held.ts, now);
        UPDATE ratelimit.rateLimits r SET value = tokens, ts = ratelimit._nearest(at)
        WHERE r.ctid = held.place AND r.name = $1 AND r.key = $2;
        IF NOT FOUND THEN PERFORM ratelimit._not_written(); END IF;
      ELSE tokens := NULL;
      END IF;
    END IF;
    IF tokens IS NOT NULL THEN
      at := at + CASE l.kind WHEN 1 THEN ratelimit._span(l, l.capacity - tokens) ELSE l.period END;
      RETURN ROW(wait IS NULL, ceil(wait / 1e3) / 1e3,
       CASE WHEN wait > 0 THEN ratelimit._rounded_up(seen.now + wait::bigint) END,
       ratelimit._rounded(tokens, l.capacity, l.tolerance), l.capacity, ratelimit._rounded_up(at))
       ::ratelimit.rl_result;
    END IF;
  END IF;
  PERFORM ratelimit._check(name, key, count, reserve, throws);
  d := ratelimit._change('rl_limit', name, key, count, reserve, config);
  IF throws AND NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
  RETURN ratelimit._answer(d);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._seen(function text, name text, key text, config jsonb, count float8,
 OUT l ratelimit._limit, OUT s ratelimit._state, OUT now bigint, OUT until timestamptz, OUT has_state bool)
LANGUAGE plpgsql AS $$
DECLARE seen record;
BEGIN
  SELECT f.* INTO seen FROM ratelimit._found($2, $3) f;
  l := ratelimit._usable(function, name, key, seen.defined, config, count); now := ratelimit._now();
  until := seen.until; s := ratelimit._state_of(l, name, key, now, seen.value, seen.ts, seen.prior, seen.log);
  has_state := seen.value <> 'Infinity' AND ratelimit._fits(l.kind, seen.prior, seen.log);
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_check(name text, key text DEFAULT '', count float8 DEFAULT 1,
 reserve bool DEFAULT false, throws bool DEFAULT false, config jsonb DEFAULT NULL)
RETURNS ratelimit.rl_result LANGUAGE plpgsql AS $$
DECLARE seen record; l ratelimit._limit; d ratelimit._decision;
BEGIN
  PERFORM ratelimit._check(name, key, count, reserve, throws);
  seen := ratelimit._seen('rl_check', name, key, config, count); l := seen.l;
  d := ratelimit._look(l, seen.s, seen.now, seen.until, count, reserve, false);
  IF throws AND NOT d.ok AND d.enforced THEN PERFORM ratelimit._denied(name, d); END IF;
  RETURN ratelimit._answer(d);
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_credit(name text, key text, count float8,
 taken_at timestamptz DEFAULT NULL, config jsonb DEFAULT NULL) RETURNS ratelimit.rl_result LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._check(name, key, count);
  IF taken_at IN ('infinity', '-infinity') THEN PERFORM ratelimit._bad('taken_at', 'infinite', 'a finite time'); END IF;
  RETURN ratelimit._answer(ratelimit._change('rl_credit', name, key, count, false, config, taken_at));
END $$;
CREATE OR REPLACE FUNCTION ratelimit._defined(name text, key text, of_state bool DEFAULT false)
RETURNS ratelimit._limit LANGUAGE plpgsql AS $$
DECLARE l ratelimit._limit;
BEGIN
  SELECT (c.parsed).* INTO l FROM ratelimit.rl_config c WHERE c.name = $1 AND c.key IN ('', $2)
  ORDER BY of_state AND (c.parsed).kind = 6, c.key DESC LIMIT 1;
  RETURN l;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_reset(name text, key text DEFAULT '') RETURNS bool LANGUAGE plpgsql AS $$
DECLARE l ratelimit._limit;
BEGIN
  PERFORM ratelimit._check(name, key);
  l := ratelimit._defined(name, key, true); IF l.keyed AND key = '' THEN PERFORM ratelimit._keyed(name, l.kind); END IF;
  PERFORM ratelimit._writable('rl_reset');
  UPDATE ratelimit.rateLimits r SET value = 'Infinity', prior = NULL, log = NULL
  WHERE r.name = $1 AND r.key = $2 AND r.value <> 'Infinity';
  RETURN FOUND;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_reset_all(name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE found_key text; was float8; count bigint := 0;
BEGIN
  PERFORM ratelimit._check(name, '');
  PERFORM ratelimit._writable('rl_reset_all');
  FOR found_key IN SELECT r.key FROM ratelimit.rateLimits r WHERE r.name = $1 ORDER BY r.key LOOP
    DELETE FROM ratelimit.rateLimits r WHERE r.name = $1 AND r.key = found_key RETURNING r.value INTO was;
    IF FOUND AND was <> 'Infinity' THEN count := count + 1; END IF;
  END LOOP;
  RETURN count;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_state(name text, key text DEFAULT '', config jsonb DEFAULT NULL)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE seen record; l ratelimit._limit;
BEGIN
  seen := ratelimit._seen('rl_state', name, key, config, 0); l := seen.l;
  RETURN CASE WHEN seen.has_state THEN ratelimit._state_json(ratelimit._current(l, seen.s, seen.now), l.kind) END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_define(name text, config jsonb, key text DEFAULT '') RETURNS bool
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._writable('rl_define'), ratelimit._check(name, '');
  IF config IS NULL THEN PERFORM ratelimit._null('config'); END IF;
  PERFORM ratelimit._check(name, key), ratelimit._parse(config);
  IF EXISTS (SELECT FROM ratelimit.rl_config c WHERE c.name = $1 AND c.key = $3 AND c.config = $2) THEN RETURN false;
  END IF;
  INSERT INTO ratelimit.rl_config AS c (name, config, key) VALUES ($1, $2, $3)
  ON CONFLICT ON CONSTRAINT rl_config_pkey DO UPDATE SET config = excluded.config WHERE c.config <> excluded.config;
  RETURN FOUND;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_undefine(name text, key text DEFAULT '') RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ratelimit._writable('rl_undefine'), ratelimit._check(name, key);
  DELETE FROM ratelimit.rl_config c WHERE c.name = $1 AND c.key = $2;
  RETURN FOUND;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_block(name text, key text DEFAULT '', duration interval DEFAULT NULL,
 until timestamptz DEFAULT NULL) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE now bigint := ratelimit._now(); at timestamptz := ratelimit._nearest(now); ends timestamptz := until;
  l ratelimit._limit;
BEGIN
  PERFORM ratelimit._writable('rl_block'), ratelimit._check(name, key);
  IF duration IS NOT NULL AND until IS NOT NULL THEN
    PERFORM ratelimit._bad('until', 'given together with duration', 'one of the two');
  ELSIF duration IS NOT NULL THEN
    ends := at + duration;
    IF ends <= at THEN PERFORM ratelimit._bad('duration', 'not positive', 'an interval greater than 0'); END IF;
  ELSIF until IS NULL THEN
    PERFORM ratelimit._bad('duration', 'NULL, and until is not given', 'an interval, or NULL if until is given');
  ELSIF until <= at THEN PERFORM ratelimit._bad('until', 'in the past', 'a future time, or infinity');
  END IF;
  INSERT INTO ratelimit.rl_blocks (name, key, until) VALUES ($1, $2, ends)
  ON CONFLICT ON CONSTRAINT rl_blocks_pkey DO UPDATE SET until = excluded.until; l := ratelimit._defined(name, key);
  IF l.kind IS NULL THEN
    RAISE NOTICE 'rate limit "%" is not defined: the block applies to calls that pass a config, and to all calls '
      'once it is defined', name;
  ELSIF l.keyed AND key = '' THEN PERFORM ratelimit._keyed(name, l.kind);
  END IF;
  RETURN ends;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_unblock(name text, key text DEFAULT '') RETURNS bool LANGUAGE plpgsql AS $$
DECLARE was bigint;
BEGIN
  PERFORM ratelimit._writable('rl_unblock'), ratelimit._check(name, key);
  DELETE FROM ratelimit.rl_blocks b WHERE b.name = $1 AND b.key = $2 RETURNING ratelimit._us(b.until) INTO was;
  RETURN coalesce(was > ratelimit._now(), false);
END $$;
DO LANGUAGE plpgsql $do$
BEGIN
  IF pg_catalog.to_regtype('ratelimit._group') IS NULL THEN
    CREATE TYPE ratelimit._group AS (name text, key text, l ratelimit._limit, defined bool, until timestamptz,
     ns int[], counts float8[], reserves bool[],
     place tid, value float8, ts timestamptz, prior float8, log timestamptz[],
     s ratelimit._state, after ratelimit._state, changed bool, allows bool, never bool, decisions ratelimit._decision[]
    );
    COMMENT ON TYPE ratelimit._group IS 'rate limiter, internal';
  END IF;
  IF pg_catalog.to_regtype('ratelimit._outcome') IS NULL THEN
    CREATE TYPE ratelimit._outcome AS (n integer, name text, key text, ok bool, allows bool, retry_after float8,
     retry_at timestamptz, remaining float8, capacity float8, reset_at timestamptz);
    COMMENT ON TYPE ratelimit._outcome IS 'rate limiter, internal';
  END IF;
END $do$;
CREATE OR REPLACE FUNCTION ratelimit._type_of(given jsonb) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE jsonb_typeof(given) WHEN 'object' THEN 'an object' WHEN 'null' THEN 'null'
   WHEN 'array' THEN CASE given WHEN '[]' THEN 'an empty array' ELSE 'an array' END
     ELSE 'a ' || jsonb_typeof(given) END $$;
CREATE OR REPLACE FUNCTION ratelimit._check_request(request jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE allowed text := 'an object with "name", and "key", "count", "reserve" or "config"';
  types jsonb := '{"name": "string", "key": "string", "count": "number", "reserve": "boolean"}'; field text;
  given jsonb;
BEGIN
  IF jsonb_typeof(request) <> 'object' THEN PERFORM ratelimit._bad('it', ratelimit._type_of(request), allowed); END IF;
  SELECT f INTO field FROM jsonb_object_keys(request) f WHERE f <> ALL ('{name,key,count,reserve,config}') LIMIT 1;
  IF FOUND THEN PERFORM ratelimit._bad('a field', 'unknown: ' || to_json(ratelimit._short(field)), allowed); END IF;
  FOREACH field IN ARRAY '{name,key,count,reserve}'::text[] LOOP
    given := request -> field;
    CONTINUE WHEN given IS NULL AND field <> 'name';
    IF coalesce(given, 'null') = 'null' THEN PERFORM ratelimit._null(field);
    ELSIF jsonb_typeof(given) <> types ->> field THEN
      PERFORM ratelimit._bad(field,
       CASE field WHEN 'key' THEN ratelimit._type_of(given) ELSE ratelimit._short(given::text) END,
       CASE field WHEN 'count' THEN 'a number from 0 to 1e15' WHEN 'reserve' THEN 'true or false'
             ELSE 'a string' END);
    END IF;
  END LOOP;
  IF octet_length((request -> 'config')::text) > 10000 THEN
    PERFORM ratelimit._bad('config', octet_length((request -> 'config')::text) || ' bytes long', 'at most 10000 bytes');
  END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._groups(function text, requests jsonb) RETURNS ratelimit._group[]
LANGUAGE plpgsql AS $$
DECLARE groups ratelimit._group[] := '{}'; g ratelimit._group; i int; at int := 0; l ratelimit._limit; request jsonb;
  given jsonb; count float8; is_new bool; state text; message text; detail text; hint text;
BEGIN
  IF jsonb_typeof(requests) <> 'array' OR requests = '[]' THEN
    PERFORM ratelimit._bad('requests', ratelimit._type_of(requests),
     'an array of objects such as [{"name": "perUser", "key": "u1"}, {"name": "global"}]');
  ELSIF jsonb_array_length(requests) > 10000 THEN
    PERFORM ratelimit._bad('requests', 'a list of ' || jsonb_array_length(requests), 'a list of at most 10000');
  END IF;
  BEGIN
    FOR at IN 1..jsonb_array_length(requests) LOOP
      i := at;
      PERFORM ratelimit._check_request(requests -> at - 1);
    END LOOP;
    FOR at IN 1..jsonb_array_length(requests) LOOP
      i := at; request := requests -> at - 1;
      PERFORM ratelimit._check(request ->> 'name', coalesce(request ->> 'key', ''));
    END LOOP;
    FOR at IN 1..jsonb_array_length(requests) LOOP
      i := at; request := requests -> at - 1; given := nullif(request -> 'config', 'null');
      count := CASE WHEN NOT request ? 'count' THEN 1
       WHEN abs((request -> 'count')::numeric) > 1e300 THEN sign((request -> 'count')::numeric) * 1e300
             ELSE (request -> 'count')::float8 END;
      g := NULL;
      SELECT (x).* INTO g FROM unnest(groups) x
      WHERE x.name = request ->> 'name' AND x.key = coalesce(request ->> 'key', ''); is_new := NOT FOUND; l := g.l;
      IF is_new OR given IS NOT NULL OR NOT g.defined THEN
        IF is_new THEN g := ratelimit._group(request ->> 'name', coalesce(request ->> 'key', '')); END IF;
        l := ratelimit._resolve(function, g.name, g.key, ratelimit._defined(g.name, g.key), given);
      END IF;
      PERFORM ratelimit._check_use(function, l.kind, count);
      IF NOT is_new AND l IS DISTINCT FROM g.l THEN
        PERFORM ratelimit._bad('config', 'different from that of an earlier request for the same name and key',
         'one config per name and key');
      END IF;
      g.l := l; g.defined := coalesce(g.defined, false) OR given IS NULL; g.ns := g.ns || at;
      g.counts := g.counts || count; g.reserves := g.reserves || coalesce((request -> 'reserve')::bool, false);
      groups := ARRAY(SELECT x FROM unnest(groups) x WHERE (x.name, x.key) <> (g.name, g.key)) || g;
    END LOOP;
  EXCEPTION WHEN invalid_parameter_value OR null_value_not_allowed OR undefined_object OR insufficient_privilege
   OR feature_not_supported THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
     hint = PG_EXCEPTION_HINT;
    PERFORM ratelimit._raise(state, format('request %s: %s', i, message), nullif(detail, ''), nullif(hint, ''));
  END;
  RETURN ARRAY(SELECT x FROM unnest(groups) x ORDER BY x.name COLLATE "C", x.key COLLATE "C");
END $$;
CREATE OR REPLACE FUNCTION ratelimit._group(name text, key text) RETURNS ratelimit._group LANGUAGE plpgsql AS $$
DECLARE g ratelimit._group;
BEGIN
  g.name := name; g.key := key; g.ns := '{}'; g.counts := '{}'; g.reserves := '{}';
  SELECT b.until INTO g.until FROM ratelimit.rl_blocks b WHERE b.name = $1 AND b.key = $2;
  RETURN g;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._run(l ratelimit._limit, s ratelimit._state, now bigint,
 counts float8[], reserves bool[], OUT decisions ratelimit._decision[], OUT after ratelimit._state,
 OUT changed bool, OUT passes bool) STABLE LANGUAGE plpgsql AS $$
DECLARE d ratelimit._decision;
BEGIN
  after := s; changed := false; passes := true;
  FOR i IN 1..cardinality(counts) LOOP
    d := ratelimit._decide(l, after, now, counts[i], reserves[i]);
    IF d.changed THEN
      after.value := d.value; after.ts := d.ts; after.prior := d.prior; after.log := d.log; changed := true;
    END IF;
    passes := passes AND d.ok; decisions := decisions || d;
  END LOOP;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._first_pass(g ratelimit._group, now bigint, soonest bigint) RETURNS bigint STABLE
LANGUAGE plpgsql AS $$
DECLARE fails bigint := soonest; wait bigint := soonest; step bigint := 1; middle bigint;
BEGIN
  WHILE NOT (ratelimit._run(g.l, g.s, ratelimit._plus(now, wait), g.counts, g.reserves)).passes LOOP
    IF wait > 2305843009213693951 THEN RETURN NULL; END IF; fails := wait; wait := soonest + step; step := step * 2;
  END LOOP;
  WHILE wait - fails > 1 LOOP
    middle := fails + (wait - fails) / 2;
    IF (ratelimit._run(g.l, g.s, ratelimit._plus(now, middle), g.counts, g.reserves)).passes THEN wait := middle;
    ELSE fails := middle;
    END IF;
  END LOOP;
  RETURN wait;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._decide_takes(g ratelimit._group, now bigint) RETURNS ratelimit._group
LANGUAGE plpgsql AS $$
DECLARE d ratelimit._decision; r record; wait bigint;
BEGIN
  IF cardinality(g.counts) = 1 THEN
    d := ratelimit._decide(g.l, g.s, now, g.counts[1], g.reserves[1]); g.decisions := ARRAY[d]; g.changed := d.changed;
    g.after := g.s; IF d.changed THEN g.after := ROW(d.value, d.ts, d.prior, d.log); END IF;
    RETURN g;
  END IF;
  r := ratelimit._run(g.l, g.s, now, g.counts, g.reserves); g.decisions := r.decisions; g.after := r.after;
  g.changed := r.changed;
  IF NOT r.passes THEN
    IF (ratelimit._run(g.l, ratelimit._state_of(g.l, g.name, g.key, now, NULL, NULL, NULL, NULL), now, g.counts,
     g.reserves)).passes THEN
      SELECT CASE WHEN bool_and(x.wait IS NOT NULL) THEN max(x.wait) END INTO wait
      FROM unnest(g.decisions) x WHERE NOT x.ok;
      IF wait IS NOT NULL THEN wait := ratelimit._first_pass(g, now, wait); END IF;
    END IF;
    FOR i IN 1..cardinality(g.decisions) LOOP
      d := g.decisions[i]; IF NOT d.ok THEN d.wait := wait; END IF; g.decisions[i] := d;
    END LOOP;
  END IF;
  RETURN g;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._decide_group(g ratelimit._group, now bigint) RETURNS ratelimit._group
LANGUAGE plpgsql AS $$
DECLARE ends bigint := ratelimit._us(g.until); d ratelimit._decision;
BEGIN
  g.s := ratelimit._state_of(g.l, g.name, g.key, now, g.value, g.ts, g.prior, g.log);
  IF (ends > now) IS NOT TRUE THEN g := ratelimit._decide_takes(g, now);
  ELSE
    g := ratelimit._decide_takes(g, CASE WHEN g.until = 'infinity' THEN now ELSE ends END);
    FOR i IN 1..cardinality(g.decisions) LOOP
      d := g.decisions[i];
      d.wait := CASE WHEN g.until < 'infinity'
       THEN ends - now + CASE WHEN d.ok OR NOT (g.l).enforce THEN 0 ELSE d.wait END END;
      d.ok := false; d.at := now; d.enforced := true; d.blocked := true; d.forever := g.until = 'infinity';
      g.decisions[i] := d;
    END LOOP;
    g.after := g.s; g.changed := false;
  END IF;
  g.allows := true; g.never := false;
  FOREACH d IN ARRAY g.decisions LOOP
    IF NOT d.ok AND d.enforced THEN g.allows := false; g.never := g.never OR d.wait IS NULL;
    END IF;
  END LOOP;
  RETURN g;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._commit(groups ratelimit._group[]) RETURNS ratelimit._group[]
LANGUAGE plpgsql AS $$
DECLARE g ratelimit._group; d ratelimit._decision; now bigint; passes bool := true;
BEGIN
  FOR i IN 1..cardinality(groups) LOOP
    g := groups[i];
    CONTINUE WHEN NOT g.changed;
    FOR try IN 1..100 LOOP
      SELECT r.ctid, r.value, r.ts, r.prior, r.log INTO g.place, g.value, g.ts, g.prior, g.log
      FROM ratelimit.rateLimits r WHERE r.name = g.name AND r.key = g.key FOR UPDATE;
      EXIT WHEN FOUND;
      INSERT INTO ratelimit.rateLimits (name, key, value, ts)
      VALUES (g.name, g.key, 'Infinity', ratelimit._nearest(ratelimit._now())) ON CONFLICT DO NOTHING;
    END LOOP;
    groups[i] := g;
  END LOOP;
  now := ratelimit._now();
  FOR i IN 1..cardinality(groups) LOOP
    groups[i] := ratelimit._decide_group(groups[i], now); passes := passes AND (groups[i]).allows;
  END LOOP;
  IF NOT passes THEN RETURN groups; END IF;
  FOREACH g IN ARRAY groups LOOP
    CONTINUE WHEN NOT g.changed;
    UPDATE ratelimit.rateLimits r SET value = (g.after).value, ts = ratelimit._nearest((g.after).ts),
     prior = (g.after).prior, log = (g.after).log WHERE r.name = g.name AND r.key = g.key;
    IF NOT FOUND THEN PERFORM ratelimit._not_written(); END IF;
  END LOOP;
  RETURN groups;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._outcomes(groups ratelimit._group[], ok bool, taken bool, throws bool)
RETURNS ratelimit._outcome[] LANGUAGE plpgsql AS $$
DECLARE outcomes ratelimit._outcome[] := '{}'; g ratelimit._group; d ratelimit._decision; worst ratelimit._decision;
  worst_name text; worst_rank text; rank text; level ratelimit._decision; never bool := false; r ratelimit.rl_result;
BEGIN
  FOREACH g IN ARRAY groups LOOP never := never OR NOT ok AND g.never; END LOOP;
  FOREACH g IN ARRAY groups LOOP
    d := g.decisions[1]; level := d;
    IF NOT taken OR cardinality(g.counts) > 1 OR d.blocked THEN
      level := ratelimit._level(g.l, CASE WHEN taken THEN g.after ELSE g.s END, d.at);
    END IF;
    FOR i IN 1..cardinality(g.decisions) LOOP
      d := g.decisions[i];
      IF throws AND NOT ok THEN
        rank := concat((NOT d.ok AND d.enforced)::int, lpad(coalesce(
         CASE WHEN never OR d.ok OR NOT d.enforced THEN NULL ELSE d.wait END, 9223372036854775807)::text, 20, '0'),
         (NOT d.ok AND d.enforced AND d.wait IS NULL)::int, lpad(g.ns[i]::text, 6, '0')) COLLATE "C";
        IF worst_rank IS NULL OR rank > worst_rank THEN worst := d; worst_rank := rank; worst_name := g.name; END IF;
      END IF;
      IF NOT (CASE WHEN ok THEN d.ok ELSE NOT d.ok AND d.enforced AND NOT never END) THEN d.wait := NULL; END IF;
      d.remaining := level.remaining; d.reset_at := level.reset_at; r := ratelimit._answer(d);
      outcomes[g.ns[i]] := ROW(g.ns[i], g.name, g.key, ok, d.ok, r.retry_after, r.retry_at, r.remaining,
       r.capacity, r.reset_at);
    END LOOP;
  END LOOP;
  IF throws AND NOT ok THEN
    IF never THEN worst.wait := NULL; END IF;
    PERFORM ratelimit._denied(worst_name, worst);
  END IF;
  RETURN outcomes;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._several(function text, requests jsonb, throws bool)
RETURNS ratelimit._outcome[] LANGUAGE plpgsql AS $$
DECLARE groups ratelimit._group[]; now bigint; ok bool := true; changed bool := false; rowless bool := true;
  refused bool := false; g ratelimit._group;
BEGIN
  IF requests IS NULL THEN PERFORM ratelimit._null('requests'); END IF;
  IF throws IS NULL THEN PERFORM ratelimit._null('throws'); END IF; groups := ratelimit._groups(function, requests);
  FOREACH g IN ARRAY groups LOOP rowless := rowless AND (g.l).kind = 6; END LOOP;
  IF function = 'rl_limit_all' AND NOT rowless AND current_setting('transaction_read_only') = 'on' THEN
    PERFORM ratelimit._writable(function);
  END IF;
  FOR i IN 1..cardinality(groups) LOOP
    g := groups[i];
    SELECT r.ctid, r.value, r.ts, r.prior, r.log INTO g.place, g.value, g.ts, g.prior, g.log
    FROM ratelimit.rateLimits r WHERE r.name = g.name AND r.key = g.key; groups[i] := g;
  END LOOP;
  now := ratelimit._now();
  FOR i IN 1..cardinality(groups) LOOP
    g := ratelimit._decide_group(groups[i], now); ok := ok AND g.allows; changed := changed OR g.changed;
    groups[i] := g;
  END LOOP;
  IF function = 'rl_check_all' OR NOT ok OR NOT changed THEN RETURN ratelimit._outcomes(groups, ok, false, throws);
  END IF;
  BEGIN
    groups := ratelimit._commit(groups); FOREACH g IN ARRAY groups LOOP refused := refused OR NOT g.allows; END LOOP;
    IF refused THEN RAISE SQLSTATE 'RL001'; END IF;
  EXCEPTION WHEN SQLSTATE 'RL001' THEN NULL; -- releases the locks
  END;
  RETURN ratelimit._outcomes(groups, NOT refused, NOT refused, throws);
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_limit_all(requests jsonb, throws bool DEFAULT false)
RETURNS SETOF ratelimit._outcome LANGUAGE plpgsql ROWS 10 AS $$
BEGIN
  RETURN QUERY SELECT o.* FROM unnest(ratelimit._several('rl_limit_all', requests, throws)) o;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_check_all(requests jsonb, throws bool DEFAULT false)
RETURNS SETOF ratelimit._outcome LANGUAGE plpgsql ROWS 10 AS $$
BEGIN
  RETURN QUERY SELECT o.* FROM unnest(ratelimit._several('rl_check_all', requests, throws)) o;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._encoded(given text, but text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT coalesce(string_agg(CASE WHEN byte BETWEEN 32 AND 126 AND position(chr(byte) IN but) = 0 THEN chr(byte)
               ELSE '%' || upper(lpad(to_hex(byte), 2, '0')) END, '' ORDER BY i), '')
  FROM convert_to(given, 'UTF8') bytes, generate_series(0, octet_length(bytes) - 1) i,
    LATERAL (SELECT get_byte(bytes, i)) b (byte) $$;
CREATE OR REPLACE FUNCTION ratelimit._decoded(given text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE bytes bytea := ''; part text;
BEGIN
  FOR part IN SELECT (regexp_matches(given, '%[0-9A-F]{2}|[^%]+|.', 'g'))[1] LOOP
    bytes := bytes || CASE WHEN part ~ '^%..$' THEN decode(right(part, 2), 'hex') ELSE convert_to(part, 'UTF8') END;
  END LOOP;
  RETURN CASE WHEN position('\x00' IN bytes) = 0 THEN convert_from(bytes, 'UTF8') END;
EXCEPTION WHEN data_exception OR character_not_in_repertoire OR untranslatable_character THEN
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._lease(name text, key text, id text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT concat_ws('/', ratelimit._encoded(name, ' %/'), ratelimit._encoded(key, ' %/'), id) $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_acquire(name text, key text DEFAULT '', count float8 DEFAULT 1,
 throws bool DEFAULT false, config jsonb DEFAULT NULL, OUT ok bool, OUT lease text,
 OUT expires_at timestamptz, OUT retry_after float8, OUT retry_at timestamptz,
 OUT remaining float8, OUT capacity float8) LANGUAGE plpgsql AS $$
DECLARE d ratelimit._decision; r ratelimit.rl_result;
BEGIN
  PERFORM ratelimit._check(name, key, count, false, throws);
  d := ratelimit._change('rl_acquire', name, key, count, false, config, NULL, ratelimit._random_id());
  IF throws AND NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF; r := ratelimit._answer(d);
  ok := r.ok; retry_after := r.retry_after; retry_at := r.retry_at; remaining := r.remaining; capacity := r.capacity;
  IF d.changed THEN
    lease := ratelimit._lease(name, key, ratelimit._us(d.log[cardinality(d.log) - 1])::text);
    expires_at := d.log[cardinality(d.log)];
  END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._settle(function text, lease text, config jsonb) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE parts text[] := string_to_array(lease, '/'); lease_name text := ratelimit._decoded(parts[1]);
  lease_key text := ratelimit._decoded(parts[2]); l ratelimit._limit; id timestamptz; now bigint; held record;
  s ratelimit._state; kept timestamptz[]; ends timestamptz;
BEGIN
  IF (cardinality(parts) = 3 AND octet_length(lease_name) BETWEEN 1 AND 200 AND octet_length(lease_key) <= 1024
   AND parts[3] ~ '^-?(0|[1-9][0-9]{0,17})$' AND ratelimit._lease(lease_name, lease_key, parts[3]) = lease)
   IS NOT TRUE THEN
    PERFORM ratelimit._bad('lease', 'malformed', 'a lease that rl_acquire() returned');
  END IF;
  l := ratelimit._resolve(function, lease_name, lease_key, ratelimit._defined(lease_name, lease_key), config);
  IF l.kind = 6 THEN RETURN CASE function WHEN 'rl_extend' THEN timestamptz 'infinity' END; END IF;
  IF l.kind <> 5 THEN PERFORM ratelimit._wrong_kind(function, l.kind); END IF;
  PERFORM ratelimit._writable(function);
  id := ratelimit._nearest(parts[3]::bigint);
  FOR reads IN 1..2 LOOP
    IF reads = 1 THEN
      SELECT r.value, r.ts, r.prior, r.log INTO held FROM ratelimit.rateLimits r
      WHERE r.name = lease_name AND r.key = lease_key;
    ELSE
      SELECT r.value, r.ts, r.prior, r.log INTO held FROM ratelimit.rateLimits r
      WHERE r.name = lease_name AND r.key = lease_key FOR UPDATE;
    END IF;
    now := ratelimit._now();
    s := ratelimit._state_of(l, lease_name, lease_key, now, held.value, held.ts, held.prior, held.log);
    s.log := ratelimit._live(s.log, now); kept := '{}'; ends := NULL;
    FOR i IN 1..cardinality(s.log) BY 2 LOOP
      IF s.log[i] <> id THEN kept := kept || s.log[i:i + 1];
      ELSE
        ends := greatest(s.log[i + 1], ratelimit._nearest(ratelimit._plus(now, l.period)));
        IF function = 'rl_extend' THEN kept := kept || ARRAY[id, ends]; END IF;
      END IF;
    END LOOP;
    IF ends IS NULL THEN RETURN NULL; END IF;
  END LOOP;
  UPDATE ratelimit.rateLimits r SET value = cardinality(kept) / 2, log = kept,
   ts = greatest(r.ts, ratelimit._nearest(now)) WHERE r.name = lease_name AND r.key = lease_key;
  IF NOT FOUND THEN PERFORM ratelimit._not_written(); END IF;
  RETURN ends;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_extend(lease text, config jsonb DEFAULT NULL) RETURNS timestamptz
LANGUAGE plpgsql AS $$
BEGIN
  IF lease IS NULL THEN RETURN NULL; END IF;
  RETURN ratelimit._settle('rl_extend', lease, config);
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_release(lease text, config jsonb DEFAULT NULL) RETURNS bool
LANGUAGE plpgsql AS $$
BEGIN
  IF lease IS NULL THEN RETURN false; END IF;
  RETURN ratelimit._settle('rl_release', lease, config) IS NOT NULL;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._millis(us bigint) RETURNS numeric IMMUTABLE LANGUAGE sql AS $$
  SELECT trim_scale(us::numeric / 1000) $$;
CREATE OR REPLACE FUNCTION ratelimit._state_json(s ratelimit._state, kind int) RETURNS jsonb STABLE LANGUAGE sql AS $$
  SELECT jsonb_build_object('value', ratelimit._number(CASE WHEN s.log IS NULL THEN s.value
       ELSE cardinality(s.log) / CASE WHEN s.prior IS NULL THEN 1 ELSE 2 END END), 'ts', ratelimit._millis(s.ts))
    || CASE WHEN s.prior IS NOT NULL AND s.log IS NOT NULL THEN jsonb_build_object('leases', coalesce((
       SELECT jsonb_agg(jsonb_build_array(ratelimit._millis(ratelimit._us(s.log[i])),
        ratelimit._millis(ratelimit._us(s.log[i + 1]))) ORDER BY i)
       FROM generate_series(1, cardinality(s.log), 2) i), '[]'))
     WHEN s.log IS NOT NULL THEN jsonb_build_object('log', coalesce((
       SELECT jsonb_agg(ratelimit._millis(ratelimit._us(e)) ORDER BY n)
       FROM unnest(s.log) WITH ORDINALITY u(e, n)), '[]'))
     WHEN kind = 3 THEN jsonb_build_object('prior', ratelimit._number(s.prior)) ELSE '{}' END $$;
CREATE OR REPLACE FUNCTION ratelimit._times(given jsonb) RETURNS timestamptz[] IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN bool_and(jsonb_typeof(e) = 'number' AND abs((CASE jsonb_typeof(e) WHEN 'number' THEN e
   END)::numeric) <= 9223372036854775.807) IS NOT FALSE THEN coalesce(array_agg(ratelimit._nearest(
   round((CASE jsonb_typeof(e) WHEN 'number' THEN e END)::numeric * 1000)::bigint) ORDER BY n), '{}') END
  FROM jsonb_array_elements(given) WITH ORDINALITY u(e, n) $$;
CREATE OR REPLACE FUNCTION ratelimit._read_state(l ratelimit._limit, state jsonb) RETURNS ratelimit._state
IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE fields text := (ARRAY['value,ts', 'value,ts', 'value,ts,prior', 'value,ts,log', 'value,ts,leases', ''])[l.kind];
  problem text; allowed text; s ratelimit._state; field text; given jsonb; number numeric; good bool;
BEGIN
  IF octet_length(state::text) > 1000000 THEN
    problem := format('it is %s bytes long', octet_length(state::text)); allowed := 'at most 1000000 bytes';
  ELSIF jsonb_typeof(state) <> 'object' THEN
    problem := 'it is ' || ratelimit._short(state::text);
    allowed := 'an object such as {"value": 3, "ts": 1798804800000}';
  ELSE
    SELECT to_json(ratelimit._short(f)) || ' is not a field of this kind''s state' INTO problem
    FROM jsonb_object_keys(state) f WHERE f <> ALL (string_to_array(fields, ',')) LIMIT 1;
    allowed := CASE fields WHEN '' THEN 'none' ELSE '"' || replace(fields, ',', '", "') || '"' END;
  END IF;
  FOREACH field IN ARRAY string_to_array(fields, ',') LOOP
    EXIT WHEN problem IS NOT NULL;
    given := state -> field; number := CASE jsonb_typeof(given) WHEN 'number' THEN given::numeric END;
    CASE field
    WHEN 'ts' THEN
      allowed := 'epoch milliseconds'; good := abs(number) <= 9223372036854775.807;
      IF good THEN s.ts := round(number * 1000); END IF;
    WHEN 'log' THEN
      allowed := 'an array of at most 10000 epoch milliseconds, oldest first';
      IF jsonb_typeof(given) = 'array' THEN s.log := ratelimit._times(given); END IF;
      good := cardinality(s.log) <= 10000 AND s.log = ARRAY(SELECT e FROM unnest(s.log) e ORDER BY e);
    WHEN 'leases' THEN
      allowed := 'an array of at most 1000 pairs of epoch milliseconds';
      IF jsonb_typeof(given) = 'array' THEN
        good := NOT jsonb_path_exists(given, 'strict $[*] ? (@.type() != "array" || @.size() != 2)');
        IF good THEN s.log := ratelimit._times(jsonb_path_query_array(given, '$[*][*]')); s.prior := 0; END IF;
      END IF;
      good := cardinality(s.log) <= 2000;
    ELSE allowed := 'a finite number'; good := abs(number) < 1.7976931348623158e308; IF NOT good THEN NULL;
      ELSIF field = 'value' THEN s.value := CASE WHEN abs(number) < 1e-307 THEN 0 ELSE number END;
      ELSE s.prior := CASE WHEN abs(number) < 1e-307 THEN 0 ELSE number END; END IF;
    END CASE;
    IF good IS NOT TRUE THEN problem := format('"%s" is %s', field, coalesce(ratelimit._short(given::text), 'missing'));
    END IF;
  END LOOP;
  IF problem IS NOT NULL THEN
    PERFORM ratelimit._raise('22023', 'invalid rate limit state: ' || problem, format('Allowed: %s.', allowed));
  END IF;
  RETURN s;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._calculate(config jsonb, state jsonb, at timestamptz, count float8,
 reserve bool, OUT ok bool, OUT retry_after float8, OUT retry_at timestamptz,
 OUT remaining float8, OUT new_state jsonb) IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
DECLARE now bigint := ratelimit._us(at); l ratelimit._limit; s ratelimit._state; d ratelimit._decision; retry bigint;
BEGIN
  IF config IS NULL THEN PERFORM ratelimit._null('config'); END IF;
  IF at IS NULL THEN PERFORM ratelimit._null('at'); END IF;
  IF at IN ('infinity', '-infinity') THEN PERFORM ratelimit._bad('at', 'infinite', 'a finite time'); END IF;
  IF count IS NULL THEN PERFORM ratelimit._null('count'); END IF;
  IF reserve IS NULL THEN PERFORM ratelimit._null('reserve'); END IF; l := ratelimit._parse(config);
  PERFORM ratelimit._check_count(l.kind, count);
  IF state IS NULL THEN s := ratelimit._initial(l, now, now); ELSE s := ratelimit._read_state(l, state); END IF;
  d := ratelimit._decide(l, s, now, count, reserve); ok := d.ok; remaining := d.remaining;
  retry := ratelimit._plus(now, d.wait); retry_at := ratelimit._instant(retry);
  IF retry_at IS NOT NULL THEN retry_after := d.wait::float8 / 1e6; END IF;
  new_state := CASE WHEN d.changed THEN ratelimit._state_json(ROW(d.value, d.ts, d.prior, d.log), l.kind)
           ELSE state END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_calculate(config jsonb, state jsonb, at timestamptz,
 count float8 DEFAULT 1, reserve bool DEFAULT false, OUT ok bool, OUT retry_after float8,
 OUT retry_at timestamptz, OUT remaining float8, OUT state jsonb) IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
  SELECT * FROM ratelimit._calculate($1, $2, $3, $4, $5) $$;
CREATE OR REPLACE FUNCTION ratelimit._status(of_name text, of_key text)
RETURNS TABLE (name text, key text, kind text, remaining float8, capacity float8,
 retry_at timestamptz, as_of timestamptz, shards integer, limited bool) LANGUAGE plpgsql AS $$
DECLARE seen record; l ratelimit._limit; s ratelimit._state; d ratelimit._decision; now bigint := ratelimit._now();
  level ratelimit._decision; retry bigint;
BEGIN
  PERFORM ratelimit._check(coalesce(of_name, 'any'), coalesce(of_key, ''));
  FOR seen IN
   SELECT coalesce(r.name, b.name) AS name, coalesce(r.key, b.key) AS key, r.value, r.ts, r.prior, r.log, b.until
   FROM (SELECT * FROM ratelimit.rateLimits x WHERE (x.name = of_name OR of_name IS NULL)
   AND (x.key = of_key OR of_key IS NULL)) r
   FULL JOIN (SELECT * FROM ratelimit.rl_blocks x WHERE (x.name = of_name OR of_name IS NULL)
   AND (x.key = of_key OR of_key IS NULL) AND x.until > ratelimit._instant(now)) b ON b.name = r.name AND b.key = r.key
   ORDER BY 1, 2
  LOOP
    name := seen.name; key := seen.key; shards := 1;
    kind := NULL; remaining := NULL; capacity := NULL; retry_at := NULL; limited := NULL; now := ratelimit._now();
    as_of := ratelimit._instant(now); retry := ratelimit._us(seen.until); l := ratelimit._defined(name, key);
    IF l.kind IS NOT NULL THEN
      s := ratelimit._state_of(l, name, key, now, seen.value, seen.ts, seen.prior, seen.log);
      d := ratelimit._look(l, s, now, seen.until, 1, false, false); limited := NOT d.ok;
      retry := ratelimit._plus(now, d.wait); kind := (ratelimit._kinds())[l.kind]; remaining := d.remaining;
      capacity := l.capacity; as_of := ratelimit._nearest(ratelimit._present(l, s, now));
    ELSIF seen.until > as_of THEN limited := true; IF seen.until = 'infinity' THEN retry := NULL; END IF;
    ELSE retry := NULL;
    END IF;
    retry := ratelimit._ceil(retry, 1000); retry_at := ratelimit._instant(retry);
    RETURN NEXT;
  END LOOP;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_status(name text DEFAULT NULL, key text DEFAULT NULL)
RETURNS TABLE (name text, key text, kind text, remaining float8, capacity float8,
 retry_at timestamptz, as_of timestamptz, shards integer, limited bool) LANGUAGE sql AS $$
  SELECT * FROM ratelimit._status($1, $2) $$;
CREATE OR REPLACE FUNCTION ratelimit._prunable(seen ratelimit.rateLimits, span bigint) RETURNS bool
LANGUAGE plpgsql AS $$
DECLARE now bigint := ratelimit._now(); l ratelimit._limit := ratelimit._defined(seen.name, seen.key);
BEGIN
  IF l.kind IS NULL OR l.kind = 6 THEN
    RETURN seen.value = 'Infinity' OR coalesce(ratelimit._us(seen.ts) < now - span
     AND (seen.prior IS NULL OR seen.log IS NULL OR ratelimit._live(seen.log, now) = '{}'), false);
  END IF;
  RETURN ratelimit._idle(l, ratelimit._state_of(l, seen.name, seen.key, now, seen.value, seen.ts, seen.prior,
   seen.log), now, seen.name, seen.key);
EXCEPTION WHEN object_not_in_prerequisite_state THEN
  RETURN false;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_prune(max_rows integer DEFAULT 10000, undefined_idle interval DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE span bigint; deleted bigint; seen ratelimit.rateLimits; first record;
BEGIN
  PERFORM ratelimit._writable('rl_prune');
  IF max_rows IS NULL THEN PERFORM ratelimit._null('max_rows'); END IF;
  IF max_rows < 1 THEN PERFORM ratelimit._bad('max_rows', max_rows::text, 'a whole number from 1'); END IF;
  IF undefined_idle < interval '0' THEN
    PERFORM ratelimit._bad('undefined_idle', 'negative', 'an interval of 0 or more, or NULL');
  END IF;
  span := (extract(year FROM undefined_idle) * 360 + extract(month FROM undefined_idle) * 30
   + extract(day FROM undefined_idle)) * 86400000000
   + extract(epoch FROM undefined_idle - date_trunc('day', undefined_idle)) * 1000000;
  DELETE FROM ratelimit.rl_blocks b WHERE b.until <= ratelimit._instant(ratelimit._now())
   AND b.ctid = ANY (ARRAY(SELECT x.ctid FROM ratelimit.rl_blocks x
   WHERE x.until <= ratelimit._instant(ratelimit._now()) LIMIT max_rows FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS deleted = ROW_COUNT;
  SELECT r.name, r.key INTO first FROM ratelimit.rateLimits r TABLESAMPLE SYSTEM (1) LIMIT 1;
  FOR seen IN
   (SELECT r.* FROM ratelimit.rateLimits r WHERE first.name IS NULL OR (r.name, r.key) >= (first.name, first.key)
   ORDER BY r.name, r.key) UNION ALL
   (SELECT r.* FROM ratelimit.rateLimits r WHERE (r.name, r.key) < (first.name, first.key) ORDER BY r.name, r.key)
  LOOP
    EXIT WHEN deleted >= max_rows;
    CONTINUE WHEN NOT ratelimit._prunable(seen, span);
    DELETE FROM ratelimit.rateLimits r WHERE r.name = seen.name AND r.key = seen.key
     AND r.ctid = (SELECT x.ctid FROM ratelimit.rateLimits x
     WHERE x.name = seen.name AND x.key = seen.key AND x.value = seen.value
     AND x.ts = seen.ts AND x.prior IS NOT DISTINCT FROM seen.prior AND x.log IS NOT DISTINCT FROM seen.log
     FOR UPDATE SKIP LOCKED);
    IF FOUND THEN deleted := deleted + 1; END IF;
  END LOOP;
  RETURN deleted;
END $$;
DO LANGUAGE plpgsql $do$
DECLARE f record;
BEGIN
  FOR f IN SELECT * FROM (VALUES
   ('rl_stats()', 'TABLE (name text, allowed bigint, denied bigint, denied_in_dry_run bigint, '
      'tokens float8, since timestamptz)', 'counts no calls'),
    ('rl_stats_reset(name text DEFAULT NULL)', 'bigint', 'counts no calls'),
    ('rl_top_denied(name text DEFAULT NULL, max_rows integer DEFAULT 10)', 'bigint', 'counts no calls'),
    ('rl_memory()', 'bigint', 'stores every limit in the table'),
    ('rl_save()', 'bigint', 'stores every limit in the table'),
    ('rl_replay(config jsonb, at timestamptz, count float8 DEFAULT 1, reserve bool DEFAULT false)',
      'ratelimit.rl_result', 'has rl_calculate() for one call'),
    ('rl_distribute()', 'void', 'knows nothing of Citus'), ('rl_undistribute()', 'void', 'knows nothing of Citus')
  ) AS functions (declaration, result, instead) LOOP
    EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION ratelimit.%s RETURNS %s LANGUAGE plpgsql AS $$ '
      'BEGIN PERFORM ratelimit._unsupported(%L, %L); END $$', f.declaration,
      f.result, pg_catalog.split_part(f.declaration, '(', 1) || '()', f.instead);
  END LOOP;
END $do$;
CREATE OR REPLACE FUNCTION ratelimit._whole(number float8) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT trunc(least(greatest(number, 0), 999999999999999))::numeric::text $$;
CREATE OR REPLACE FUNCTION ratelimit._seconds(us numeric) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN us IS NOT NULL THEN least(greatest(ceil(us / 1000000), 0), 999999999999999)::text END $$;
CREATE OR REPLACE FUNCTION ratelimit._policy(l ratelimit._limit, OUT quota text, OUT secs text) IMMUTABLE
LANGUAGE plpgsql AS $$
DECLARE period bigint := CASE WHEN l.kind = 5 OR l.months THEN NULL WHEN l.zone IS NOT NULL
   THEN l.every * 86400000000 ELSE l.period END;
  longer bigint := greatest(ceil(period::numeric / 1000000), 1) * 1000000;
  tokens float8 := CASE WHEN longer = period THEN l.rate ELSE l.rate * longer / period END;
BEGIN
  IF period IS NULL THEN quota := ratelimit._whole(greatest(floor(l.rate), 1));
  ELSIF tokens >= 1 THEN quota := ratelimit._whole(floor(tokens)); secs := ratelimit._seconds(longer);
  ELSE
    quota := '1';
    secs := ratelimit._whole(ceil(CASE WHEN l.rate > 1e-100 THEN round(period / l.rate) / 1e6 ELSE 1e15 END));
  END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._until_more(l ratelimit._limit, result ratelimit.rl_result, wait numeric,
 now numeric) RETURNS numeric STABLE LANGUAGE plpgsql AS $$
DECLARE reset numeric := ratelimit._us(result.reset_at) - now;
  until numeric := CASE WHEN reset IS NOT NULL THEN least(wait, reset) END;
BEGIN
  IF l.kind <> 1 OR result.remaining >= 1 OR result.capacity <= 1 THEN RETURN until; END IF;
  RETURN CASE WHEN until IS NOT NULL THEN least(until, round((reset::float8
   * ((1 - result.remaining) / (result.capacity - result.remaining)) / 1e3)::numeric) * 1000) END;
END $$;
CREATE OR REPLACE FUNCTION ratelimit._check_result(result ratelimit.rl_result, style text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE f record;
BEGIN
  IF result IS NOT DISTINCT FROM NULL THEN PERFORM ratelimit._null('result'); END IF;
  IF style IS NULL THEN PERFORM ratelimit._null('style'); END IF;
  IF style NOT IN ('ietf', 'github', 'postgrest') THEN
    PERFORM ratelimit._bad('style', ratelimit._literal(ratelimit._short(style)),
     '''ietf'', ''github'' or ''postgrest''');
  ELSIF result.ok IS NULL THEN PERFORM ratelimit._null('result.ok');
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
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_headers(name text, result ratelimit.rl_result, style text DEFAULT 'ietf',
 config jsonb DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE l ratelimit._limit; policy record; quoted text; wait numeric; now numeric; until numeric; headers jsonb := '[]';
  name_value jsonb;
BEGIN
  PERFORM ratelimit._check(name, ''), ratelimit._check_result(result, style);
  IF NOT result.ok AND result.retry_after IS NOT NULL THEN
    wait := least(round((result.retry_after * 1e6)::numeric), 9223372036854775807);
  END IF;
  IF config IS NOT NULL THEN l := ratelimit._parse(config);
  ELSE l := ratelimit._resolve('rl_headers', name, '', ratelimit._defined(name, ''), NULL);
  END IF;
  now := coalesce(ratelimit._us(result.retry_at) - round((result.retry_after * 1e6)::numeric),
   ratelimit._ceil(ratelimit._now(), 1000));
  IF result.capacity IS NULL THEN NULL;
  ELSIF style = 'github' THEN
    headers := jsonb_build_array(jsonb_build_array('x-ratelimit-limit', ratelimit._whole(floor(result.capacity))),
     jsonb_build_array('x-ratelimit-remaining', ratelimit._whole(floor(result.remaining))),
     jsonb_build_array('x-ratelimit-used', ratelimit._whole(floor(result.capacity) - floor(result.remaining))),
     jsonb_build_array('x-ratelimit-reset', ratelimit._seconds(ratelimit._us(result.reset_at))),
     jsonb_build_array('x-ratelimit-resource', ratelimit._encoded(name, '% ')));
  ELSE
    quoted := '"' || replace(replace(ratelimit._encoded(name, '%'), '\', '\\'), '"', '\"') || '"';
    policy := ratelimit._policy(l); until := ratelimit._until_more(l, result, wait, now);
    headers := jsonb_build_array(jsonb_build_array('RateLimit-Policy', concat(quoted, ';q=',
     CASE l.kind WHEN 6 THEN ratelimit._whole(floor(result.capacity)) ELSE policy.quota END,
     CASE l.kind WHEN 5 THEN ';qu="concurrent-requests"' END, ';w=' || policy.secs)),
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
END $$;
CREATE OR REPLACE FUNCTION ratelimit._misuse(problem text, event text, statement bool) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  event := CASE WHEN event IN ('DELETE', 'UPDATE') THEN event ELSE 'INSERT' END;
  PERFORM ratelimit._raise('39P01', 'rl_trigger() ' || problem, NULL, format(
   'For example: CREATE TRIGGER limit_messages %s EXECUTE FUNCTION ratelimit.rl_trigger(''sendMessage'', '
    '''key=author'');', CASE WHEN statement THEN format('AFTER %s ON messages REFERENCING %s TABLE AS limited '
    'FOR EACH STATEMENT', event, CASE event WHEN 'DELETE' THEN 'OLD' ELSE 'NEW' END)
    ELSE format('BEFORE %s ON messages FOR EACH ROW', event) END));
END $$;
CREATE OR REPLACE FUNCTION ratelimit._column(argument text, relation oid, statement bool, OUT option text,
 OUT name text, OUT as_text text, OUT as_number text) STABLE LANGUAGE plpgsql AS $$
DECLARE numbers regtype[] := '{int2,int4,int8,float4,float8,numeric}'; col record;
BEGIN
  option := substring(argument FROM '^(key|count)='); name := substr(argument, length(option) + 2);
  IF option IS NULL THEN
    PERFORM ratelimit._bad('option', format('"%s"', ratelimit._short(argument)),
     '''key=<column>'' and ''count=<column>'', each at most once');
  END IF;
  SELECT a.atttypid::regtype AS type, a.attgenerated AS generated, b.oid::regtype AS base, b.typnamespace INTO col
  FROM pg_attribute a, LATERAL (WITH RECURSIVE types AS (SELECT t.* FROM pg_type t WHERE t.oid = a.atttypid
   UNION ALL SELECT t.* FROM types JOIN pg_type t ON t.oid = types.typbasetype WHERE types.typtype = 'd')
   SELECT * FROM types WHERE typtype <> 'd') b
  WHERE a.attrelid = relation AND a.attname = _column.name AND a.attnum > 0 AND NOT a.attisdropped;
  IF NOT FOUND THEN
    PERFORM ratelimit._raise('42703', format('column "%s" of table "%s" does not exist', ratelimit._short(name),
     (SELECT relname FROM pg_class WHERE oid = relation)), NULL,
     'Write the name as it is in pg_attribute, without quotes or spaces around it: ''key=author''.');
  ELSIF option = 'count' AND col.base <> ALL (numbers) THEN
    PERFORM ratelimit._bad(option, format('column "%s" of type %s', ratelimit._short(name), col.type),
     'smallint, integer, bigint, real, float8, numeric, or a domain over one');
  ELSIF col.generated <> '' AND NOT (statement AND col.generated = 's') THEN
    PERFORM ratelimit._bad(option, format('column "%s", which is generated', ratelimit._short(name)),
     'an ordinary column; a stored generated one only AFTER the event FOR EACH STATEMENT, since BEFORE triggers '
      'run before it is computed');
  END IF;
  as_text := format(CASE WHEN col.base = 'numeric'::regtype THEN 'trim_scale(r.%I::numeric)::text'
   WHEN col.typnamespace = 'pg_catalog'::regnamespace THEN 'r.%I::text'
    ELSE 'CASE WHEN r.%1$I IS DISTINCT FROM NULL THEN format(''%%s'', r.%1$I) END' END, name);
  as_number := format(CASE WHEN col.base = 'numeric'::regtype THEN
    'CASE WHEN abs(r.%1$I) > 1e300 AND r.%1$I <> ''NaN'' THEN sign(r.%1$I) * 1e300 ELSE r.%1$I END::float8'
    ELSE 'r.%I::float8' END, name);
END $$;
CREATE OR REPLACE FUNCTION ratelimit._take_row(name text, key text, count float8, columns text[],
 relation name) RETURNS void LANGUAGE plpgsql AS $$
DECLARE d ratelimit._decision;
BEGIN
  IF key IS NULL THEN PERFORM ratelimit._null(format('key column "%s" of table "%s"', columns[1], relation)); END IF;
  IF count IS NULL THEN PERFORM ratelimit._null(format('count column "%s" of table "%s"', columns[2], relation));
  END IF;
  PERFORM ratelimit._check(name, key), ratelimit._check_count(1, count);
  d := ratelimit._change('rl_limit', name, key, count, false, NULL);
  IF NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
END $$;
CREATE OR REPLACE FUNCTION ratelimit.rl_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE statement bool := TG_LEVEL = 'STATEMENT'; columns text[] := ARRAY[NULL, NULL];
  reads text[] := ARRAY['''''', '1::float8']; c record; place int; transition text; query text; k text; n float8;
BEGIN
  IF TG_OP = 'TRUNCATE' THEN PERFORM ratelimit._misuse('cannot limit TRUNCATE, which has no rows', TG_OP, statement);
  ELSIF TG_WHEN = 'INSTEAD OF' THEN PERFORM ratelimit._misuse('cannot be fired INSTEAD OF an event', TG_OP, false);
  ELSIF TG_WHEN = 'AFTER' AND NOT statement THEN
    PERFORM ratelimit._misuse('cannot be fired AFTER an event FOR EACH ROW', TG_OP, false);
  ELSIF TG_WHEN = 'BEFORE' AND statement THEN
    PERFORM ratelimit._misuse('cannot be fired BEFORE an event FOR EACH STATEMENT', TG_OP, true);
  ELSIF statement THEN
    SELECT CASE TG_OP WHEN 'DELETE' THEN t.tgoldtable ELSE t.tgnewtable END INTO transition
    FROM pg_trigger t WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME;
    IF transition IS NULL THEN
      PERFORM ratelimit._misuse(format('needs REFERENCING %s TABLE to see the rows',
       CASE TG_OP WHEN 'DELETE' THEN 'OLD' ELSE 'NEW' END), TG_OP, true);
    END IF;
  END IF;
  IF TG_NARGS = 0 THEN
    PERFORM ratelimit._bad('name', 'missing', 'rl_trigger(''<name>'', ''key=<column>'', ''count=<column>'')');
  END IF;
  PERFORM ratelimit._check(TG_ARGV[0], '');
  FOR i IN 1..TG_NARGS - 1 LOOP
    c := ratelimit._column(TG_ARGV[i], TG_RELID, statement); place := CASE c.option WHEN 'key' THEN 1 ELSE 2 END;
    IF columns[place] IS NOT NULL THEN
      PERFORM ratelimit._bad('option', format('"%s", given twice', ratelimit._short(TG_ARGV[i])),
       '''key=<column>'' and ''count=<column>'', each at most once');
    END IF;
    columns[place] := c.name; reads[place] := CASE place WHEN 1 THEN c.as_text ELSE c.as_number END;
  END LOOP;
  query := format('SELECT %s, %s FROM %s', reads[1], reads[2],
   CASE WHEN statement THEN format('%I r', transition) ELSE '(SELECT ($1).*) r' END);
  IF statement THEN
    FOR k, n IN EXECUTE format('SELECT k, CASE WHEN bool_or(n IS NULL) THEN NULL ELSE coalesce(max(n) FILTER '
      '(WHERE NOT (n >= 0 AND n <= 1e15)), sum(n)) END FROM (%s) AS counts (k, n) GROUP BY k '
      'ORDER BY k COLLATE "C" NULLS FIRST', query)
    LOOP
      PERFORM ratelimit._take_row(TG_ARGV[0], k, n, columns, TG_TABLE_NAME);
    END LOOP;
    RETURN NULL;
  END IF;
  IF TG_OP = 'DELETE' THEN
    EXECUTE query INTO k, n USING OLD;
    PERFORM ratelimit._take_row(TG_ARGV[0], k, n, columns, TG_TABLE_NAME);
    RETURN OLD;
  END IF;
  EXECUTE query INTO k, n USING NEW;
  PERFORM ratelimit._take_row(TG_ARGV[0], k, n, columns, TG_TABLE_NAME);
  RETURN NEW;
END $$;
DO LANGUAGE plpgsql $do$
DECLARE path text := pg_catalog.current_setting('search_path');
  entry jsonb := jsonb_build_object('rl_limit', 'takes tokens from a rate limit, inside the caller''s transaction',
   'rl_check', 'reports whether rl_limit would succeed; locks and writes nothing',
   'rl_credit', 'gives back tokens that were not used; a negative count takes tokens unconditionally',
   'rl_limit_all', 'takes tokens from several rate limits, all or nothing',
   'rl_check_all', 'reports whether rl_limit_all would succeed; locks and writes nothing',
   'rl_acquire', 'takes slots of a concurrency limit; returns a lease, or when to retry',
   'rl_extend', 'extends a lease; returns when it expires, NULL if it had expired or was released',
   'rl_release', 'releases the slots of a lease; false if it had expired or was released',
   'rl_define', 'defines a rate limit, or its override for one key; false if nothing changed',
   'rl_undefine', 'drops a rate limit, or its override for one key; keeps the state',
   'rl_block', 'blocks a key of a rate limit for a duration or until a time; returns the end',
   'rl_unblock', 'ends the block of a key; false if it was not blocked',
   'rl_reset', 'makes a rate limit full again; false if there was nothing to reset',
   'rl_reset_all', 'makes a rate limit full again for every key; returns how many were reset',
   'rl_prune', 'deletes a batch of expired blocks and idle rows; returns how many',
   'rl_status', 'current state of the rate limits in use, one row per name and key',
   'rl_calculate', 'evaluates a call on a state at a time, without side effects',
   'rl_state', 'state of a rate limit, as rl_calculate accepts it; NULL: the limit is full',
   'rl_headers', 'HTTP headers for the result of a call; style ietf, github or postgrest',
   'rl_trigger', 'trigger: takes tokens for the rows written; arguments: name, key=<column>, count=<column>');
  pure jsonb := '["rl_token_bucket", "rl_fixed_window", "rl_sliding_window", "rl_sliding_log", "rl_concurrency",
   "rl_unlimited", "rl_calculate", "_parse", "_valid"]';
  f record; roles text;
BEGIN
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  FOR f IN SELECT p.oid, p.proname AS name, p.oid::regprocedure AS signature, obj_description(p.oid, 'pg_proc') AS known
   FROM pg_proc p WHERE p.pronamespace = 'ratelimit'::regnamespace LOOP
    IF f.known IS NULL THEN
      SELECT string_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ', ')
      INTO roles FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
      WHERE p.oid = f.oid AND a.grantee <> p.proowner;
      IF roles IS NOT NULL THEN EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %s CASCADE', f.signature, roles); END IF;
      IF pure ? f.name THEN EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', f.signature); END IF;
      EXECUTE format('COMMENT ON FUNCTION %s IS %L', f.signature, coalesce(entry ->> f.name,
       CASE WHEN pure ? f.name AND f.name ~ '^rl_' THEN 'config of a limit: ' || replace(substr(f.name, 4), '_', ' ')
          WHEN f.name ~ '^rl_' THEN 'only in the extension ratelimit' ELSE 'rate limiter, internal' END));
    END IF;
    IF entry ? f.name OR pure ? f.name THEN
      EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp%s', f.signature,
       CASE WHEN entry ? f.name THEN ' SET enable_seqscan = off' ELSE '' END);
    END IF;
    IF f.name = 'rl_trigger' THEN
      EXECUTE format('ALTER FUNCTION %s SET datestyle = ''ISO, MDY'' SET intervalstyle = postgres '
        'SET timezone = ''GMT'' SET bytea_output = hex SET extra_float_digits = 1 SET lc_monetary = ''C'' '
        'SET quote_all_identifiers = off', f.signature);
    END IF;
  END LOOP;
  PERFORM set_config('search_path', path, true);
END $do$;

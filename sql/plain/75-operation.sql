-- rl_status and rl_prune.

CREATE OR REPLACE FUNCTION ratelimit._standing(of_name text, of_key text)
RETURNS TABLE (name text, key text, kind text, remaining double precision, capacity double precision,
    retry_at timestamptz, as_of timestamptz, shards integer, limited boolean, limited_by text, block_reason text,
    held double precision) LANGUAGE plpgsql AS $$
DECLARE
    seen record;
    was record;
    l ratelimit._limit;
    s ratelimit._state;
    d ratelimit._decision;
    now bigint := ratelimit._now();
    retry bigint;
BEGIN
    PERFORM ratelimit._check(coalesce(of_name, 'any'), coalesce(of_key, ''));
    FOR seen IN
        SELECT coalesce(r.name, b.name, e.name) AS name, coalesce(r.key, b.key, e.key) AS key, r.value, r.ts, r.prior,
               r.log, r.added, r.expires, b.until, b.reason
        FROM (SELECT * FROM ONLY ratelimit.rateLimits x WHERE (x.name = of_name OR of_name IS NULL)
              AND (x.key = of_key OR of_key IS NULL)) r
        FULL JOIN (SELECT * FROM ONLY ratelimit.rl_blocks x WHERE (x.name = of_name OR of_name IS NULL)
                   AND (x.key = of_key OR of_key IS NULL) AND x.until > ratelimit._instant(now)) b
            ON b.name = r.name AND b.key = r.key
        -- Exempt keys.
        FULL JOIN (SELECT x.name, x.key FROM ONLY ratelimit.rl_config x WHERE x.key > ''
                   AND coalesce(x.config ->> 'kind', (SELECT p.config ->> 'kind' FROM ONLY ratelimit.rl_config p
                       WHERE p.name = x.config ->> 'plan' AND p.key = '')) = 'unlimited'
                   AND (x.name = of_name OR of_name IS NULL) AND (x.key = of_key OR of_key IS NULL)
                   UNION SELECT of_name, of_key WHERE of_name IS NOT NULL AND of_key IS NOT NULL
                   AND (ratelimit._defined(of_name, of_key)).kind = 'unlimited') e
            ON e.name = coalesce(r.name, b.name) AND e.key = coalesce(r.key, b.key)
        ORDER BY 1, 2
    LOOP
        name := seen.name; key := seen.key; shards := 1;
        kind := NULL; remaining := NULL; capacity := NULL; retry_at := NULL; limited := NULL; limited_by := NULL;
        block_reason := NULL;
        now := ratelimit._now();
        retry := ratelimit._us(seen.until);
        l := ratelimit._defined(name, key);
        LOOP
            was := seen;
            IF seen.expires <= ratelimit._instant(now) THEN
                SELECT x.value, x.ts, x.prior, x.log, x.added
                INTO seen.value, seen.ts, seen.prior, seen.log, seen.added
                FROM ratelimit._lapse(name, key, seen.expires, now, seen.value, seen.ts, seen.prior, seen.log,
                                      seen.added) x;
            END IF;
            held := ratelimit._held(l, name, key, now, seen.value, seen.ts, seen.prior, seen.log, seen.added);
            s := NULL;
            IF l.kind IS NOT NULL THEN
                s := ratelimit._state_of(l, name, key, now, seen.value, seen.ts, seen.prior, seen.log, seen.added);
                d := ratelimit._look(l, s, now, seen.until, 1, false, false);
                IF seen.expires IS NOT NULL AND NOT d.ok THEN
                    d := ratelimit._sooner(d, l, name, key, now, seen.until, 1, false, NULL, seen.value, seen.ts,
                                           seen.prior, seen.log, seen.added);
                END IF;
            END IF;
            EXIT WHEN seen.expires IS NULL OR ratelimit._is_still(name, key, was.value, was.ts, was.expires);
            SELECT r.value, r.ts, r.prior, r.log, r.added, r.expires
            INTO seen.value, seen.ts, seen.prior, seen.log, seen.added, seen.expires
            FROM ONLY ratelimit.rateLimits r WHERE r.name = seen.name AND r.key = seen.key;
            now := ratelimit._now();
        END LOOP;
        as_of := ratelimit._shown(now);
        IF l.kind IS NOT NULL THEN
            limited := NOT d.ok;
            limited_by := CASE WHEN d.ok THEN NULL WHEN d.blocked THEN 'block' WHEN l.kind = 'concurrency' THEN 'slots'
                               ELSE 'tokens' END;
            retry := ratelimit._plus(now, d.wait);
            kind := l.kind;
            remaining := d.remaining;
            capacity := l.capacity;
            as_of := ratelimit._shown(ratelimit._present(l, s, now));
        ELSIF seen.until > as_of THEN
            limited := true; limited_by := 'block';
            IF seen.until = 'infinity' THEN retry := NULL; END IF;
        ELSE
            retry := NULL;
        END IF;
        IF limited_by = 'block' THEN block_reason := seen.reason; END IF;
        retry := ratelimit._ceil(retry, 1000);
        retry_at := ratelimit._shown(retry);
        RETURN NEXT;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_status(name text DEFAULT NULL, key text DEFAULT NULL)
RETURNS TABLE (name text, key text, kind text, remaining double precision, capacity double precision,
    retry_at timestamptz, as_of timestamptz, shards integer, limited boolean, limited_by text, block_reason text,
    held double precision) LANGUAGE sql AS $$
    SELECT * FROM ratelimit._standing($1, $2)
$$;

-- Erases a key of all names, name by name, in the order in which all calls lock rows.
CREATE OR REPLACE FUNCTION ratelimit.rl_forget(key text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found_name text;
    more bigint;
    count bigint := 0;
BEGIN
    PERFORM ratelimit._writable('rl_forget'), ratelimit._check('any', key);
    IF key = '' THEN PERFORM ratelimit._bad('key', 'empty', '1 to 1024 bytes'); END IF;
    FOR found_name IN SELECT r.name FROM ONLY ratelimit.rateLimits r WHERE r.key = $1
                      UNION SELECT h.name FROM ONLY ratelimit.rl_holds h WHERE h.key = $1 ORDER BY 1 LOOP
        IF ratelimit._delete_key(found_name, key) THEN count := count + 1; END IF;
    END LOOP;
    DELETE FROM ONLY ratelimit.rl_config c WHERE c.key = $1;
    GET DIAGNOSTICS more = ROW_COUNT;
    count := count + more;
    DELETE FROM ONLY ratelimit.rl_blocks b WHERE b.key = $1;
    GET DIAGNOSTICS more = ROW_COUNT;
    RETURN count + more;
END
$$;

-- Whether a row can be deleted. A row of an undefined name or an exempt key has no limit.
CREATE OR REPLACE FUNCTION ratelimit._prunable(seen ratelimit.rateLimits, span bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := ratelimit._now();
    l ratelimit._limit := ratelimit._defined(seen.name, seen.key);
BEGIN
    -- What a hold gives back when it expires, needs the row.
    IF seen.expires > ratelimit._instant(now) OR seen.expires IS NOT NULL AND EXISTS (
        SELECT FROM ONLY ratelimit.rl_holds h WHERE h.name = seen.name AND h.key = seen.key AND NOT h.charge
        AND h.expires_at >= seen.expires AND h.count > h.old) THEN
        RETURN false;
    END IF;
    IF l.kind IS NULL OR l.kind = 'unlimited' THEN
        RETURN seen.value = 'Infinity' OR coalesce(ratelimit._us(seen.ts) < now - span
            AND (seen.prior IS NULL OR seen.log IS NULL OR ratelimit._live(seen.log, now) = '{}'), false);
    END IF;
    RETURN ratelimit._idle(l, ratelimit._state_of(l, seen.name, seen.key, now, seen.value, seen.ts, seen.prior,
                                                  seen.log, seen.added), now, seen.name, seen.key);
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    RETURN false; -- kept for inspection
END
$$;

-- Gives back what has expired of a key that no transaction has locked. Returns whether it did.
CREATE OR REPLACE FUNCTION ratelimit._expire_if_valid(name text, key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN ratelimit._expire(name, key, true);
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    RETURN false; -- kept for inspection
END
$$;

-- Gives back what has expired of keys that no transaction has locked, then deletes holds that have given back what they
-- could, a day after they expired; at most this number of keys and holds. Returns how many.
CREATE OR REPLACE FUNCTION ratelimit._prune_holds(max_rows int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    due record;
    given_back bigint := 0;
    deleted bigint;
BEGIN
    FOR due IN
        SELECT DISTINCT h.name, h.key FROM ONLY ratelimit.rl_holds h WHERE NOT h.charge AND h.count > h.old
        AND h.expires_at <= ratelimit._instant(ratelimit._now()) ORDER BY h.name, h.key
    LOOP
        EXIT WHEN given_back >= max_rows;
        IF ratelimit._expire_if_valid(due.name, due.key) THEN given_back := given_back + 1; END IF;
    END LOOP;
    DELETE FROM ONLY ratelimit.rl_holds h WHERE h.ctid = ANY (ARRAY(SELECT x.ctid FROM ONLY ratelimit.rl_holds x
        WHERE x.expires_at < ratelimit._instant(ratelimit._now() - 86400000000) AND (x.charge OR x.count <= x.old)
        LIMIT max_rows - given_back FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN given_back + deleted;
END
$$;

-- Deletes expired blocks, then idle rows that no transaction has locked, beginning at a random key. It finds them
-- first, without locks: it may read the whole table, and what it deletes stays locked.
CREATE OR REPLACE FUNCTION ratelimit.rl_prune(max_rows integer DEFAULT 10000, undefined_idle interval DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    span bigint;
    deleted bigint;
    deleted_holds bigint;
    seen ratelimit.rateLimits;
    first record;
    names text[];
    keys text[];
BEGIN
    PERFORM ratelimit._writable('rl_prune');
    IF max_rows IS NULL THEN PERFORM ratelimit._null('max_rows'); END IF;
    IF max_rows < 1 THEN PERFORM ratelimit._bad('max_rows', max_rows::text, 'a whole number from 1'); END IF;
    IF undefined_idle < interval '0' THEN
        PERFORM ratelimit._bad('undefined_idle', 'negative', 'an interval of 0 or more, or NULL');
    END IF;
    -- A month is 30 days, as in PostgreSQL's comparisons of intervals.
    span := (extract(year FROM undefined_idle) * 360 + extract(month FROM undefined_idle) * 30
             + extract(day FROM undefined_idle)) * 86400000000
            + extract(epoch FROM undefined_idle - date_trunc('day', undefined_idle)) * 1000000;
    deleted_holds := ratelimit._prune_holds(max_rows);
    max_rows := max_rows - deleted_holds;
    IF max_rows = 0 THEN RETURN deleted_holds; END IF;
    LOOP
        names := '{}';
        keys := '{}';
        SELECT r.name, r.key INTO first FROM ONLY ratelimit.rateLimits r TABLESAMPLE SYSTEM (1) LIMIT 1;
        FOR seen IN
            (SELECT r.* FROM ONLY ratelimit.rateLimits r
             WHERE first.name IS NULL OR (r.name, r.key) >= (first.name, first.key) ORDER BY r.name, r.key)
            UNION ALL
            (SELECT r.* FROM ONLY ratelimit.rateLimits r WHERE (r.name, r.key) < (first.name, first.key)
             ORDER BY r.name, r.key)
        LOOP
            -- Its hold was settled since, or it has just expired.
            IF seen.expires <= ratelimit._instant(ratelimit._now()) THEN
                PERFORM ratelimit._expire_if_valid(seen.name, seen.key);
                SELECT r.* INTO seen FROM ONLY ratelimit.rateLimits r WHERE r.name = seen.name AND r.key = seen.key;
                CONTINUE WHEN NOT FOUND;
            END IF;
            CONTINUE WHEN NOT ratelimit._prunable(seen, span);
            names := names || seen.name;
            keys := keys || seen.key;
            EXIT WHEN cardinality(keys) >= max_rows;
        END LOOP;
        DELETE FROM ONLY ratelimit.rl_blocks b WHERE b.until <= ratelimit._instant(ratelimit._now())
            AND b.ctid = ANY (ARRAY(SELECT x.ctid FROM ONLY ratelimit.rl_blocks x
            WHERE x.until <= ratelimit._instant(ratelimit._now()) LIMIT max_rows FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS deleted = ROW_COUNT;
        FOR i IN 1..cardinality(keys) LOOP
            EXIT WHEN deleted >= max_rows;
            SELECT r.* INTO seen FROM ONLY ratelimit.rateLimits r WHERE r.name = names[i] AND r.key = keys[i];
            CONTINUE WHEN NOT FOUND OR NOT ratelimit._prunable(seen, span);
            -- Unless it has changed since, or is locked.
            DELETE FROM ONLY ratelimit.rateLimits r WHERE r.name = seen.name AND r.key = seen.key
                AND r.ctid = (SELECT x.ctid FROM ONLY ratelimit.rateLimits x
                WHERE x.name = seen.name AND x.key = seen.key AND x.value = seen.value
                AND x.ts = seen.ts AND x.prior IS NOT DISTINCT FROM seen.prior AND x.log IS NOT DISTINCT FROM seen.log
                AND x.added IS NOT DISTINCT FROM seen.added AND x.expires IS NOT DISTINCT FROM seen.expires
                FOR UPDATE SKIP LOCKED);
            IF FOUND THEN deleted := deleted + 1; END IF;
        END LOOP;
        -- 0 means that no row is idle. If all that were found have changed since, others may be idle.
        EXIT WHEN deleted > 0 OR cardinality(keys) < max_rows;
    END LOOP;
    RETURN deleted_holds + deleted;
END
$$;

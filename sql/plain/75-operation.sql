-- rl_status, rl_forget, rl_prune and rl_version.

-- The first keys from a name and key on that have a row, are blocked or exempt: `page` of them, or all if it is NULL.
CREATE OR REPLACE FUNCTION ratelimit._listed(of_name text, of_key text, from_name text, from_key text, page int,
    now bigint) RETURNS TABLE (name text, key text) STABLE LANGUAGE sql AS $$
    SELECT u.* FROM (
        (SELECT x.name, x.key FROM ONLY ratelimit.rateLimits x WHERE (x.name, x.key) >= ($3, $4)
         AND (x.name = $1 OR $1 IS NULL) AND (x.key = $2 OR $2 IS NULL) ORDER BY x.name, x.key LIMIT $5)
        UNION
        (SELECT x.name, x.key FROM ONLY ratelimit.rl_blocks x WHERE (x.name, x.key) >= ($3, $4)
         AND (x.name = $1 OR $1 IS NULL) AND (x.key = $2 OR $2 IS NULL) AND x.until > ratelimit._instant($6)
         ORDER BY x.name, x.key LIMIT $5)
        UNION
        (SELECT x.name, x.key FROM ONLY ratelimit.rl_config x WHERE (x.name, x.key) >= ($3, $4) AND x.key > ''
         AND ratelimit._meaning(x.parsed, x.config) LIKE '(unlimited,%'
         AND (x.name = $1 OR $1 IS NULL) AND (x.key = $2 OR $2 IS NULL) ORDER BY x.name, x.key LIMIT $5)
        UNION
        SELECT $1, $2 WHERE $1 IS NOT NULL AND $2 IS NOT NULL
        AND ($1 COLLATE "C", $2 COLLATE "C") >= ($3, $4) AND (ratelimit._defined($1, $2)).kind = 'unlimited'
    ) u ORDER BY u.name COLLATE "C", u.key COLLATE "C" LIMIT $5
$$;

-- The keys are read by pages of the primary key where max_rows bounds the rows, and all at once where it is NULL.
CREATE OR REPLACE FUNCTION ratelimit._standing(of_name text, of_key text, only_limited boolean, max_rows int,
    after_name text, after_key text) RETURNS SETOF ratelimit.rl_status_result STABLE LANGUAGE plpgsql AS $$
DECLARE
    shown ratelimit.rl_status_result;
    page CONSTANT int := CASE WHEN max_rows IS NOT NULL THEN greatest(max_rows, 100) END;
    next CONSTANT text := chr(1); -- after a key, the next of all texts
    from_name text := after_name;
    from_key text := after_key || next;
    on_page int;
    listed bigint := 0;
    seen record;
    l ratelimit._limit;
    s ratelimit._state;
    a ratelimit._ask;
    now bigint := ratelimit._now();
    retry bigint;
    parsed text;
BEGIN
    PERFORM ratelimit._check(coalesce(of_name, 'any'), coalesce(of_key, ''));
    IF only_limited IS NULL THEN
        PERFORM ratelimit._null('limited');
    ELSIF max_rows < 1 THEN
        PERFORM ratelimit._bad('max_rows', max_rows::text, 'a whole number from 1');
    ELSIF (after_name IS NULL) <> (after_key IS NULL) THEN
        PERFORM ratelimit._null(CASE WHEN after_name IS NULL THEN 'after_name' ELSE 'after_key' END);
    END IF;
    IF after_name IS NULL OR after_name < of_name COLLATE "C" THEN
        from_name := coalesce(of_name, ''); from_key := '';
    END IF;
    LOOP
        on_page := 0;
        FOR seen IN
            SELECT k.name, k.key, ROW(k.name, k.key, r.shard, r.kind, r.value, r.ts, r.added, r.prior, r.log, r.leases,
                   r.holds_due)::ratelimit._row AS r, b.until, b.reason,
                   EXISTS (SELECT FROM ONLY ratelimit.rl_holds h
                           WHERE h.name = k.name AND h.key = k.key AND h.count > h.spent) AS has_holds,
                   coalesce(ratelimit._meaning(own.parsed, own.config), whole.parsed) AS parsed
            FROM ratelimit._listed(of_name, of_key, from_name, from_key, page, now) k
            LEFT JOIN ONLY ratelimit.rateLimits r ON r.name = k.name AND r.key = k.key
            LEFT JOIN ONLY ratelimit.rl_blocks b
                ON b.name = k.name AND b.key = k.key AND b.until > ratelimit._instant(now)
            LEFT JOIN ONLY ratelimit.rl_config own ON own.name = k.name AND own.key = k.key
            LEFT JOIN ONLY ratelimit.rl_config whole ON whole.name = k.name AND whole.key = ''
            ORDER BY k.name COLLATE "C", k.key COLLATE "C"
        LOOP
            on_page := on_page + 1;
            from_name := seen.name; from_key := seen.key || next;
            shown := NULL;
            shown.name := seen.name; shown.key := seen.key; shown.shards := 1;
            now := ratelimit._now();
            retry := ratelimit._us(seen.until);
            -- Most keys of a name have the same.
            IF seen.parsed IS DISTINCT FROM parsed THEN
                parsed := seen.parsed;
                l := parsed::ratelimit._limit;
            END IF;
            shown.as_of := ratelimit._shown(now);
            IF l.kind IS NOT NULL THEN
                IF ratelimit._is_due(l, seen.r, now) THEN seen.r := (ratelimit._lapse(l, seen.r, now)).r; END IF;
                shown.held := 0;
                IF seen.has_holds THEN shown.held := ratelimit._held(l, seen.r, now); END IF;
                s := ratelimit._state_of(l, seen.r, now);
                a := ratelimit._ask('rl_status', 'status', seen.name, seen.key, 1);
                a.l := l; a.r := seen.r; a.until := seen.until; a.ids := '{}';
                a := ratelimit._decided(a, now);
                shown.limited := NOT (a.d).ok;
                shown.limited_by := (a.d).limited_by;
                retry := ratelimit._plus(now, (a.d).wait);
                shown.kind := l.kind;
                shown.remaining := (ratelimit._level(l, s, now)).remaining;
                shown.capacity := l.capacity;
                shown.as_of := ratelimit._shown(ratelimit._present(l, s, now));
            ELSIF seen.until > shown.as_of THEN
                shown.limited := true; shown.limited_by := 'block';
                IF seen.until = 'infinity' THEN retry := NULL; END IF;
            ELSE
                retry := NULL;
            END IF;
            IF shown.limited_by = 'block' THEN shown.block_reason := seen.reason; END IF;
            shown.retry_at := ratelimit._shown(ratelimit._ceil(retry, 1000));
            CONTINUE WHEN only_limited AND shown.limited IS NOT TRUE;
            RETURN NEXT shown;
            listed := listed + 1;
            IF listed = max_rows THEN RETURN; END IF;
        END LOOP;
        EXIT WHEN page IS NULL OR on_page < page;
    END LOOP;
END
$$;

@rl_status@ LANGUAGE sql AS $$
    SELECT ratelimit._attend();
    SELECT * FROM ratelimit._standing($1, $2, $3, $4, $5, $6)
$$;

-- Erases a key of all names, name by name, in the order in which all calls lock rows.
@rl_forget@ LANGUAGE plpgsql AS $$
DECLARE
    found_name text;
    more bigint;
    found_rows bigint;
    count bigint := 0;
BEGIN
    PERFORM ratelimit._writable('rl_forget'), ratelimit._check('any', key);
    IF key = '' THEN PERFORM ratelimit._raise('22004', 'key must not be empty'); END IF;
    FOR found_name IN SELECT r.name FROM ONLY ratelimit.rateLimits r WHERE r.key = $1
                      UNION SELECT h.name FROM ONLY ratelimit.rl_holds h WHERE h.key = $1 ORDER BY 1 LOOP
        IF ratelimit._delete_key(found_name, key) THEN count := count + 1; END IF;
    END LOOP;
    LOCK TABLE ONLY ratelimit.rl_config, ONLY ratelimit.rl_blocks IN ROW EXCLUSIVE MODE;
    PERFORM FROM ONLY ratelimit.rl_config c WHERE c.key = $1 FOR UPDATE;
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    WITH gone AS (DELETE FROM ONLY ratelimit.rl_config c WHERE c.key = $1 RETURNING 1)
    SELECT count(*) INTO more FROM gone;
    IF more < found_rows THEN PERFORM ratelimit._not_written('rl_config'); END IF;
    count := count + more;
    PERFORM FROM ONLY ratelimit.rl_blocks b WHERE b.key = $1 FOR UPDATE;
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    WITH gone AS (DELETE FROM ONLY ratelimit.rl_blocks b WHERE b.key = $1 RETURNING 1)
    SELECT count(*) INTO more FROM gone;
    IF more < found_rows THEN PERFORM ratelimit._not_written('rl_blocks'); END IF;
    RETURN count + more;
END
$$;

-- Whether a row can be deleted. A row of an undefined name or an exempt key has no limit.
CREATE OR REPLACE FUNCTION ratelimit._prunable(seen ratelimit.rateLimits, span bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := ratelimit._now();
    l CONSTANT ratelimit._limit := ratelimit._defined(seen.name, seen.key);
    is_limited CONSTANT boolean := coalesce(l.kind <> 'unlimited', false);
BEGIN
    -- Holds give back to the row; also of a limit that isn't there now, as long as it may be there again.
    IF seen.holds_due IS NOT NULL AND EXISTS (
        SELECT FROM ONLY ratelimit.rl_holds h WHERE h.name = seen.name AND h.key = seen.key AND NOT h.charge
        AND h.count > h.spent AND (is_limited OR span IS NULL OR h.expires_at >= ratelimit._instant(now - span)))
        OR (is_limited OR span IS NULL) AND seen.holds_due > ratelimit._instant(now) THEN
        RETURN false;
    END IF;
    IF NOT is_limited THEN
        RETURN ratelimit._is_reset(seen.kind, seen.value, seen.ts) OR coalesce(ratelimit._us(seen.ts) < now - span
            AND (seen.kind <> 'c' OR ratelimit._live(ratelimit._in_order(seen.leases), now) = '{}'), false);
    END IF;
    RETURN ratelimit._idle(l, ratelimit._state_of(l, ROW(seen.name, seen.key, seen.shard, seen.kind, seen.value,
        seen.ts, seen.added, seen.prior, seen.log, seen.leases, seen.holds_due)::ratelimit._row, now), now, seen.name,
        seen.key);
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    RETURN false; -- kept for inspection
END
$$;

-- Deletes rows that were found idle, but those that have changed since, or are locked; at most max_rows. Returns how
-- many.
CREATE OR REPLACE FUNCTION ratelimit._delete_idle(names text[], keys text[], max_rows bigint, span bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    seen ratelimit.rateLimits;
    deleted bigint := 0;
BEGIN
    FOR i IN 1..cardinality(keys) LOOP
        EXIT WHEN deleted >= max_rows;
        SELECT r.* INTO seen FROM ONLY ratelimit.rateLimits r WHERE r.name = names[i] AND r.key = keys[i];
        CONTINUE WHEN NOT FOUND OR NOT ratelimit._prunable(seen, span);
        DELETE FROM ONLY ratelimit.rateLimits r WHERE r.name = seen.name AND r.key = seen.key
            AND r.ctid = (SELECT x.ctid FROM ONLY ratelimit.rateLimits x
            WHERE x.name = seen.name AND x.key = seen.key AND x *= seen FOR UPDATE SKIP LOCKED);
        CONTINUE WHEN NOT FOUND;
        deleted := deleted + 1;
        -- The holds of a limit are deleted a day after they expire.
        IF seen.holds_due IS NOT NULL AND coalesce((ratelimit._defined(seen.name, seen.key)).kind = 'unlimited', true)
        THEN
            PERFORM ratelimit._drop_holds(seen.name, seen.key);
        END IF;
    END LOOP;
    RETURN deleted;
END
$$;

-- Gives back what has expired of keys that no transaction has locked, deletes holds that have given back what they
-- could, a day after they expired, and the rows of those keys that are idle then; at most this number of keys, holds
-- and rows, and of many keys those that take 20 milliseconds, since calls on them wait. Returns how many.
CREATE OR REPLACE FUNCTION ratelimit._prune_holds(max_rows bigint, span bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    due_name text;
    due_key text;
    names text[] := '{}'::text[];
    keys text[] := '{}'::text[];
    pruned bigint := 0;
    more bigint;
    began timestamptz;
BEGIN
    FOR due_name, due_key IN
        SELECT DISTINCT h.name, h.key FROM ONLY ratelimit.rl_holds h WHERE NOT h.charge AND h.count > h.spent
        AND h.expires_at <= ratelimit._instant(ratelimit._now()) ORDER BY h.name, h.key
    LOOP
        began := coalesce(began, clock_timestamp());
        EXIT WHEN pruned >= max_rows
            OR pruned >= 100 AND clock_timestamp() - began > interval '20 milliseconds';
        IF ratelimit._expire(NULL, due_name, due_key, true) THEN
            pruned := pruned + 1;
            names := names || due_name;
            keys := keys || due_key;
        END IF;
    END LOOP;
    DELETE FROM ONLY ratelimit.rl_holds h WHERE h.ctid = ANY (ARRAY(SELECT x.ctid FROM ONLY ratelimit.rl_holds x
        WHERE x.expires_at < ratelimit._instant(ratelimit._now() - 86400000000) AND (x.charge OR x.count <= x.spent)
        LIMIT max_rows - pruned FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS more = ROW_COUNT;
    pruned := pruned + more;
    RETURN pruned + ratelimit._delete_idle(names, keys, max_rows - pruned, span);
END
$$;

-- Deletes expired blocks, then idle rows that no transaction has locked, beginning at a random key, and gives back what
-- has expired. It finds the rows first, without locks: it may read the whole table, and what it writes stays locked.
@rl_prune@ LANGUAGE plpgsql AS $$
DECLARE
    span bigint;
    deleted bigint;
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
    span := ratelimit._micros(undefined_idle);
    LOOP
        names := '{}'; keys := '{}';
        SELECT r.name, r.key INTO first FROM ONLY ratelimit.rateLimits r TABLESAMPLE SYSTEM (1) LIMIT 1;
        FOR seen IN
            (SELECT r.* FROM ONLY ratelimit.rateLimits r
             WHERE first.name IS NULL OR (r.name, r.key) >= (first.name, first.key) ORDER BY r.name, r.key)
            UNION ALL
            (SELECT r.* FROM ONLY ratelimit.rateLimits r WHERE (r.name, r.key) < (first.name, first.key)
             ORDER BY r.name, r.key)
        LOOP
            IF ratelimit._prunable(seen, span) THEN
                names := names || seen.name;
                keys := keys || seen.key;
            END IF;
            EXIT WHEN cardinality(keys) >= max_rows;
        END LOOP;
        DELETE FROM ONLY ratelimit.rl_blocks b WHERE b.until <= ratelimit._instant(ratelimit._now())
            AND b.ctid = ANY (ARRAY(SELECT x.ctid FROM ONLY ratelimit.rl_blocks x
            WHERE x.until <= ratelimit._instant(ratelimit._now()) LIMIT max_rows FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS deleted = ROW_COUNT;
        deleted := deleted + ratelimit._delete_idle(names, keys, max_rows - deleted, span);
        IF deleted < max_rows THEN deleted := deleted + ratelimit._prune_holds(max_rows - deleted, span); END IF;
        -- 0 means that no row is idle. If all that were found have changed since, others may be idle.
        EXIT WHEN deleted > 0 OR cardinality(keys) < max_rows;
    END LOOP;
    RETURN deleted;
END
$$;

@rl_version@

-- Calls of one limit.

-- The limit of a call: from its config, or as defined. 42501, 22023, 42704, 22004.
CREATE OR REPLACE FUNCTION ratelimit._resolve(function text, name text, key text, defined ratelimit._limit,
    config jsonb) RETURNS ratelimit._limit LANGUAGE plpgsql AS $$
DECLARE
    l ratelimit._limit := defined;
    leases CONSTANT boolean := function IN ('rl_acquire', 'rl_extend', 'rl_release');
BEGIN
    IF defined.kind IS NULL THEN
        -- A config in the call is no way around a plan that is missing.
        PERFORM ratelimit._undefined_plan(name, (
            SELECT c.config ->> 'plan' FROM ONLY ratelimit.rl_config c WHERE c.name = $2 AND c.key = $3));
        IF config IS NULL THEN
            PERFORM ratelimit._raise('42704', format('rate limit "%s" is not defined', name), NULL,
                'Define it: ' || ratelimit._example(name, CASE WHEN leases THEN 'concurrency' ELSE 'token bucket' END));
        END IF;
    ELSIF config IS NOT NULL AND NOT has_function_privilege(ratelimit._caller(),
        'ratelimit.rl_define(text, jsonb, text)', 'EXECUTE') THEN
        PERFORM ratelimit._raise('42501', format('permission denied to override rate limit "%s"', name),
            'A config passed with the call overrides the definition; that requires EXECUTE on rl_define.',
            format('Call it without a config: SELECT * FROM ratelimit.rl_limit(%s, $1);',
                   ratelimit._literal(name)));
    END IF;
    IF config IS NOT NULL THEN l := ratelimit._parse(config); END IF;
    IF function NOT IN ('rl_extend', 'rl_release', 'rl_headers') THEN
        IF key = '' AND (l.keyed OR defined.keyed) THEN
            PERFORM ratelimit._keyed(name, l.kind, true);
        ELSIF key <> '' AND NOT (coalesce(l.keyed, true) AND coalesce(defined.keyed, true))
            AND function <> 'rl_value' THEN
            PERFORM ratelimit._keyed(name, l.kind, false);
        END IF;
    END IF;
    RETURN l;
END
$$;

-- Raises the error for a plan that is not defined, if there is one.
CREATE OR REPLACE FUNCTION ratelimit._undefined_plan(name text, plan text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF plan IS NOT NULL THEN
        PERFORM ratelimit._raise('42704', format('plan "%s" of rate limit "%s" is not defined', plan, name), NULL,
            'Define it: ' || ratelimit._example(plan, 'token bucket'));
    END IF;
END
$$;

-- Refuses a call without a key, or with one, where the config has this "keyed".
CREATE OR REPLACE FUNCTION ratelimit._keyed(name text, kind text, keyed boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    function CONSTANT text := CASE kind WHEN 'concurrency' THEN 'acquire' ELSE 'limit' END;
BEGIN
    IF NOT keyed THEN
        PERFORM ratelimit._raise('22023', format('rate limit "%s" takes no key', name),
            'Its config has "keyed": false: all calls share one limit, and a key would have a second one.',
            format('Omit the key: SELECT * FROM ratelimit.rl_%s(%s);', function, ratelimit._literal(name)));
    END IF;
    PERFORM ratelimit._raise('22004', format('rate limit "%s" requires a key', name),
        'Its config has "keyed": true, so that a call without a key fails instead of taking from a limit that '
        'everybody shares.',
        format('For example: SELECT * FROM ratelimit.rl_%s(%s, ''user-1''); in a list "key": "user-1", in a trigger '
               '''key=author''.', function, ratelimit._literal(name)));
END
$$;

-- Refuses a kind that the function isn't for, and a count out of range.
CREATE OR REPLACE FUNCTION ratelimit._check_use(function text, kind text, count double precision, name text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF function ~ '^rl_hold' AND kind NOT IN ('token bucket', 'fixed window', 'unlimited')
        AND (function <> 'rl_hold_all' OR kind <> 'concurrency') THEN
        PERFORM ratelimit._wrong_kind(function, kind, name);
    ELSIF function = 'rl_credit' THEN
        IF (count >= -1e15 AND count <= 1e15) IS NOT TRUE THEN
            PERFORM ratelimit._bad('count', ratelimit._digits(count), 'a number from -1e15 to 1e15');
        END IF;
        RETURN;
    ELSIF kind = 'concurrency' AND function IN ('rl_limit', 'rl_take', 'rl_limit_all', 'rl_check_all')
        OR kind NOT IN ('concurrency', 'unlimited') AND function = 'rl_acquire' THEN
        PERFORM ratelimit._wrong_kind(function, kind);
    ELSIF function = 'rl_take' THEN
        RETURN; -- its count has another name
    END IF;
    PERFORM ratelimit._check_count(kind, count);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._usable(function text, name text, key text, defined ratelimit._limit,
    config jsonb, count double precision) RETURNS ratelimit._limit LANGUAGE plpgsql AS $$
DECLARE
    l ratelimit._limit;
BEGIN
    PERFORM ratelimit._check(name, key, count);
    l := ratelimit._resolve(function, name, key, defined, config);
    PERFORM ratelimit._check_use(function, l.kind, count, name);
    RETURN l;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._writable(function text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_read_only') = 'on' THEN
        PERFORM ratelimit._raise('25006', format('cannot execute %s() in a read-only transaction', function));
    END IF;
END
$$;

-- A lease's number that can't be guessed, from 1 to 2^52 - 1.
CREATE OR REPLACE FUNCTION ratelimit._random_id() RETURNS bigint LANGUAGE sql AS $$
    SELECT greatest(('x' || substr(u, 1, 12) || substr(u, 32, 1))::bit(52)::bigint, 1)
    FROM (SELECT replace(gen_random_uuid()::text, '-', '')) AS drawn(u)
$$;

-- The parsed config of a plan; without a kind if it is not defined.
CREATE OR REPLACE FUNCTION ratelimit._plan(config jsonb) RETURNS text STABLE LANGUAGE plpgsql AS $$
DECLARE
    undefined ratelimit._limit;
BEGIN
    undefined.kind := NULL;
    RETURN coalesce((SELECT c.parsed FROM ONLY ratelimit.rl_config c WHERE c.name = $1 ->> 'plan' AND c.key = ''),
                    undefined::text);
END
$$;

-- Looks up a key's definition, block and row. One row, planned with the caller's statement, which locks the tables in
-- the order of all calls.
CREATE OR REPLACE FUNCTION ratelimit._look_up(name text, key text) RETURNS TABLE (defined ratelimit._limit,
    until timestamptz, r ratelimit._row) STABLE LANGUAGE sql AS $$
    SELECT coalesce(CASE WHEN own.name IS NOT NULL THEN coalesce(own.parsed, ratelimit._plan(own.config)) END,
               (SELECT c.parsed FROM ONLY ratelimit.rl_config c WHERE c.name = $1 AND c.key = ''))::ratelimit._limit,
           b.until, ROW($1, $2, r.shard, r.kind, r.value, r.ts, r.added, r.prior, r.log, r.leases,
                        r.holds_due)::ratelimit._row
    FROM (SELECT) AS one LEFT JOIN ONLY ratelimit.rateLimits r ON r.name = $1 AND r.key = $2
    LEFT JOIN ONLY ratelimit.rl_config own ON own.name = $1 AND own.key = $2
    LEFT JOIN ONLY ratelimit.rl_blocks b ON b.name = $1 AND b.key = $2
$$;

-- Locks a key's row.
CREATE OR REPLACE FUNCTION ratelimit._lock(name text, key text) RETURNS ratelimit._row LANGUAGE plpgsql AS $$
DECLARE
    r ratelimit._row;
BEGIN
    SELECT $1, $2, x.shard, x.kind, x.value, x.ts, x.added, x.prior, x.log, x.leases, x.holds_due INTO r
    FROM ONLY ratelimit.rateLimits x WHERE x.name = $1 AND x.key = $2 FOR UPDATE;
    RETURN r;
END
$$;

-- Inserts a row that counts as none, unless there is one. Returns whether it did.
CREATE OR REPLACE FUNCTION ratelimit._make_row(name text, key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ratelimit.rateLimits (name, key, kind, value, ts)
    VALUES ($1, $2, '-', 0, ratelimit._nearest(ratelimit._now())) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- Writes a row that is locked.
CREATE OR REPLACE FUNCTION ratelimit._write_row(r ratelimit._row) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE ONLY ratelimit.rateLimits x SET kind = r.kind, value = r.value, ts = r.ts, added = r.added, prior = r.prior,
        log = r.log, leases = r.leases, holds_due = r.holds_due WHERE x.name = r.name AND x.key = r.key;
    IF NOT FOUND THEN PERFORM ratelimit._not_written(); END IF;
END
$$;

-- The answer to a call on a state, blocked or not. After a block a call in a dry run passes, while rl_status goes on
-- reporting what would be denied.
CREATE OR REPLACE FUNCTION ratelimit._look(l ratelimit._limit, s ratelimit._state, now bigint, until timestamptz,
    count double precision, reserve boolean, dry_run_passes boolean, at_least double precision DEFAULT NULL)
RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    ends CONSTANT bigint := ratelimit._us(until);
    d ratelimit._decision;
    level ratelimit._decision := ratelimit._level(l, s, now);
    at CONSTANT bigint := CASE WHEN ends > now AND until < 'infinity' THEN ends ELSE now END;
BEGIN
    IF (ends > now) IS NOT TRUE OR until < 'infinity' THEN
        d := CASE WHEN at_least IS NULL THEN ratelimit._decide(l, s, at, count, reserve)
                  ELSE ratelimit._decide_as_many(l, s, at, count, at_least, reserve) END;
    END IF;
    IF ends > now THEN
        IF until < 'infinity' THEN
            d.wait := ends - now + CASE WHEN d.ok OR dry_run_passes AND NOT l.enforce THEN 0 ELSE d.wait END;
        END IF;
        d.ok := false;
        d.taken := 0;
        d.at := now;
        d.capacity := l.capacity;
        d.enforced := true;
        d.changed := false;
        d.limited_by := 'block';
        d.forever := until = 'infinity';
    END IF;
    d.remaining := level.remaining;
    d.reset_at := level.reset_at;
    RETURN d;
END
$$;

-- Decides a change of a row's state, at a time after the row was read.
CREATE OR REPLACE FUNCTION ratelimit._decided(function text, l ratelimit._limit, r ratelimit._row, now bigint,
    count double precision, reserve boolean, taken_at timestamptz, id bigint, at_least double precision)
RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE
    s ratelimit._state := ratelimit._state_of(l, r, now);
BEGIN
    IF function IN ('rl_credit', 'rl_take') THEN
        IF at_least IS NOT NULL THEN RETURN ratelimit._decide_as_many(l, s, now, count, at_least); END IF;
        IF l.kind NOT IN ('token bucket', 'fixed window', 'unlimited') THEN
            PERFORM ratelimit._wrong_kind(function, l.kind);
        END IF;
        RETURN ratelimit._credit(l, s, now, count, taken_at);
    END IF;
    RETURN ratelimit._decide(l, s, now, count, reserve, id);
END
$$;

-- Writes a line to the server's log: as a WARNING, since a LOG would show the statement and thus the key. The client
-- doesn't see it.
CREATE OR REPLACE FUNCTION ratelimit._log(line text) RETURNS void LANGUAGE plpgsql SET client_min_messages = error AS $$
BEGIN
    RAISE WARNING '%', line;
END
$$;

-- Logs a denial, or a share of them: name, wait and role, but not the key.
CREATE OR REPLACE FUNCTION ratelimit._log_denial(name text, enforced boolean, wait bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- Any value but a number from 0 to 1 counts as not set.
    share text := coalesce(substring(current_setting('ratelimit.log_denials', true)
                                     FROM '^(?:0?[.][0-9]{1,15}|[01](?:[.]0*)?)$'),
                           (SELECT s.value FROM ONLY ratelimit.rl_settings s WHERE s.name = 'log_denials'));
    line text;
BEGIN
    IF share IS NULL OR ratelimit._random_id() >= share::float8 * 4503599627370496 THEN RETURN; END IF;
    line := format('rate limit "%s" %s by role "%s"%s', name,
        CASE WHEN enforced THEN 'exceeded' ELSE 'would be exceeded' END, ratelimit._caller(),
        CASE WHEN NOT enforced THEN '' WHEN wait IS NULL THEN ': this call can never pass'
             ELSE format(': retry after %s s', ratelimit._digits((ratelimit._ceil(wait, 1000) / 1000)::float8 / 1000))
             END);
    PERFORM ratelimit._log(line);
END
$$;

-- Turns the denial of a dry run into a success, which limited_by shows.
CREATE OR REPLACE FUNCTION ratelimit._let_pass(d ratelimit._decision) RETURNS ratelimit._decision IMMUTABLE
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT d.ok AND NOT d.enforced THEN d.ok := true; d.wait := NULL; END IF;
    RETURN d;
END
$$;

-- Logs a denial, and lets that of a dry run pass.
CREATE OR REPLACE FUNCTION ratelimit._logged(name text, d ratelimit._decision) RETURNS ratelimit._decision
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT d.ok THEN PERFORM ratelimit._log_denial(name, d.enforced, d.wait); END IF;
    RETURN ratelimit._let_pass(d);
END
$$;

-- Takes from one limit, or credits it. A plain read decides first: a denial ends there. Then the row is locked or
-- inserted, and decided again if it or the time may have changed. With at_least it takes as many tokens as there are,
-- up to count.
CREATE OR REPLACE FUNCTION ratelimit._change(function text, name text, key text, count double precision,
    reserve boolean, config jsonb, taken_at timestamptz DEFAULT NULL, id bigint DEFAULT NULL,
    at_least double precision DEFAULT NULL)
RETURNS ratelimit._decision LANGUAGE plpgsql AS $$
DECLARE
    stored record;
    locked ratelimit._row;
    l ratelimit._limit;
    d ratelimit._decision;
    now bigint;
    never boolean;
BEGIN
    FOR try IN 1..1000 LOOP
        SELECT f.*, ratelimit._now() AS now INTO stored FROM ratelimit._look_up($2, $3) f;
        l := ratelimit._usable(function, name, key, stored.defined, config, count);
        IF at_least IS NOT NULL THEN PERFORM ratelimit._check_as_many(l.kind, count, at_least); END IF;
        IF stored.until IS NOT NULL AND function <> 'rl_credit' THEN
            PERFORM ratelimit._attend();
            d := ratelimit._peek(function, name, key, count, reserve, config, at_least);
            IF d.limited_by = 'block' THEN RETURN ratelimit._logged(name, d); END IF;
        END IF;
        IF l.kind <> 'unlimited' THEN PERFORM ratelimit._writable(function); END IF;
        d := ratelimit._decided(function, l, stored.r, stored.now, count, reserve, taken_at, id, at_least);
        -- A denial that no expiry can change reads and writes nothing more.
        never := (stored.r).holds_due IS NOT NULL AND NOT d.ok AND d.wait IS NULL AND ratelimit._returns(l)
            AND ratelimit._never(l, name, key, stored.now, count, reserve, at_least);
        IF ratelimit._is_due(l, stored.r, stored.now) AND NOT never THEN
            PERFORM ratelimit._expire(l, name, key);
            CONTINUE;
        ELSIF (stored.r).holds_due IS NOT NULL AND NOT d.ok AND d.enforced AND NOT never THEN
            -- Again on one snapshot of row and holds; where it passes by now, it is decided under the lock.
            PERFORM ratelimit._attend();
            d := ratelimit._peek(function, name, key, count, reserve, config, at_least);
            IF NOT d.ok THEN RETURN ratelimit._logged(name, d); END IF;
            d.changed := true;
        END IF;
        IF NOT d.changed THEN RETURN ratelimit._logged(name, d); END IF;

        IF (stored.r).shard IS NULL THEN
            INSERT INTO ratelimit.rateLimits (name, key, kind, value, ts, added, prior, log, leases)
            VALUES ($2, $3, l.letter, d.value, ratelimit._nearest(d.ts), d.added, d.prior, d.log, d.leases)
            ON CONFLICT DO NOTHING;
            CONTINUE WHEN NOT FOUND;
            IF ratelimit._now() - stored.now < 1000 THEN RETURN d; END IF;
            -- If it waited for an insert that was rolled back, the row is this transaction's own now.
            locked := stored.r;
        ELSE
            locked := ratelimit._lock(name, key);
            CONTINUE WHEN locked.shard IS NULL;
        END IF;
        -- Others may have changed the row during the wait, and the clock has gone on.
        now := ratelimit._now();
        CONTINUE WHEN ratelimit._is_due(l, locked, now);
        d := ratelimit._decided(function, l, locked, now, count, reserve, taken_at, id, at_least);
        IF locked.holds_due IS NOT NULL AND NOT d.ok AND d.enforced THEN
            d := ratelimit._sooner(d, l, locked, now, NULL, count, reserve, at_least);
        END IF;
        IF NOT d.changed THEN RETURN ratelimit._logged(name, d); END IF;
        IF ratelimit._begins_anew(l, locked, now) THEN locked.holds_due := NULL; END IF;
        PERFORM ratelimit._write_row(ratelimit._row_with(locked, l, ratelimit._left(d)));
        RETURN d;
    END LOOP;
    PERFORM ratelimit._not_written();
    RETURN NULL;
END
$$;

-- The result of a call. Times and waits are rounded up to milliseconds. Here and below, a result is filled by the names
-- of its attributes: a call that goes on while another session runs a later version may find more of them.
CREATE OR REPLACE FUNCTION ratelimit._answer(d ratelimit._decision) RETURNS ratelimit.rl_result STABLE
LANGUAGE plpgsql AS $$
DECLARE
    r ratelimit.rl_result;
BEGIN
    r.ok := d.ok;
    r.retry_at := ratelimit._rounded_up(ratelimit._plus(d.at, d.wait));
    IF r.retry_at IS NOT NULL THEN r.retry_after := ratelimit._ceil(d.wait, 1000)::float8 / 1e6; END IF;
    r.remaining := d.remaining;
    r.capacity := d.capacity;
    r.reset_at := ratelimit._rounded_up(d.reset_at);
    r.limited_by := d.limited_by;
    RETURN r;
END
$$;

-- The usual case in as few expressions as possible: a row of a token bucket or fixed window without options. It makes
-- 1.3 to 2 times as many calls a second as _change, and 4 times as many denials. _change answers all other calls, and
-- these the same.
CREATE OR REPLACE FUNCTION ratelimit.rl_limit(name text, key text DEFAULT '', count double precision DEFAULT 1,
    reserve boolean DEFAULT false, throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS ratelimit.rl_result LANGUAGE plpgsql AS $$
DECLARE
    stored record;
    locked record;
    l ratelimit._limit;
    tokens double precision;
    now bigint;
    at bigint;
    wait double precision;
    d ratelimit._decision;
    answer ratelimit.rl_result;
BEGIN
    SELECT f.defined, f.until, (f.r).kind, (f.r).value, (f.r).added, (f.r).holds_due, ratelimit._us((f.r).ts) AS ts,
           ratelimit._now() AS now
    INTO stored FROM ratelimit._look_up($1, $2) f;
    l := stored.defined;
    IF l.usual AND count > 0 AND count <= l.capacity AND NOT reserve AND NOT throws AND config IS NULL
        AND stored.until IS NULL AND stored.kind = 't' AND stored.holds_due IS NULL
        AND stored.added IS NOT DISTINCT FROM l.adds AND stored.value >= 0 AND stored.value < 'Infinity'
        AND stored.ts BETWEEN 0 AND stored.now
        AND current_setting('transaction_read_only') = 'off' THEN
        tokens := ratelimit._tokens_at(l, stored.value, stored.ts, stored.now);
        IF count - tokens > l.tolerance THEN
            at := ratelimit._counted_at(l, stored.ts, stored.now);
            wait := ratelimit._span(l, count - tokens)
                - CASE l.kind WHEN 'token bucket' THEN 0 ELSE stored.now - at END;
            -- Confirm that the call passes then.
            IF (wait < 1e15 AND count - ratelimit._tokens_at(l, stored.value, stored.ts, stored.now + wait::bigint)
                <= l.tolerance) IS NOT TRUE THEN
                tokens := NULL;
            END IF;
        ELSE
            SELECT r.ctid AS place, r.kind, r.value, r.added, r.holds_due, ratelimit._us(r.ts) AS ts INTO locked
            FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2 FOR UPDATE;
            -- Others may have changed the row during the wait, and the clock has gone on.
            now := ratelimit._now();
            tokens := CASE WHEN locked.kind = 't' AND locked.added IS NOT DISTINCT FROM l.adds
                AND locked.value >= 0 AND locked.value < 'Infinity' AND locked.ts BETWEEN 0 AND now
                AND locked.holds_due IS NULL
                THEN ratelimit._tokens_at(l, locked.value, locked.ts, now) END;
            IF count - tokens <= l.tolerance AND tokens - count < tokens
                AND l.capacity - tokens + count > l.tolerance THEN
                tokens := tokens - count;
                at := ratelimit._counted_at(l, locked.ts, now);
                UPDATE ONLY ratelimit.rateLimits r SET value = tokens, ts = ratelimit._nearest(at)
                WHERE r.ctid = locked.place AND r.name = $1 AND r.key = $2;
                IF NOT FOUND THEN PERFORM ratelimit._not_written(); END IF;
            ELSE
                tokens := NULL;
            END IF;
        END IF;
        IF tokens IS NOT NULL THEN
            IF wait IS NOT NULL AND (current_setting('ratelimit.log_denials', true) <> '' OR EXISTS (
                SELECT FROM ONLY ratelimit.rl_settings s WHERE s.name = 'log_denials')) THEN
                PERFORM ratelimit._log_denial($1, true, wait::bigint);
            END IF;
            at := at + CASE l.kind WHEN 'token bucket' THEN ratelimit._span(l, l.capacity - tokens) ELSE l.period END;
            answer.ok := wait IS NULL;
            IF wait IS NOT NULL THEN
                answer.retry_after := ceil(wait / 1e3) / 1e3;
                answer.retry_at := CASE WHEN wait > 0 THEN ratelimit._rounded_up(stored.now + wait::bigint) END;
                answer.limited_by := 'tokens';
            END IF;
            answer.remaining := ratelimit._rounded(tokens, l.capacity, l.tolerance);
            answer.capacity := l.capacity;
            answer.reset_at := ratelimit._rounded_up(at);
            RETURN answer;
        END IF;
    END IF;
    PERFORM ratelimit._check(name, key, count, reserve, throws);
    d := ratelimit._change('rl_limit', name, key, count, reserve, config);
    IF throws AND NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
    RETURN ratelimit._answer(d);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_take(name text, key text DEFAULT '', count double precision DEFAULT 1,
    at_least double precision DEFAULT 1, throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS ratelimit.rl_take_result LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
    a ratelimit.rl_result;
    r ratelimit.rl_take_result;
BEGIN
    PERFORM ratelimit._check(name, key);
    IF count IS NULL THEN
        PERFORM ratelimit._null('count');
    ELSIF at_least IS NULL THEN
        PERFORM ratelimit._null('at_least');
    ELSIF throws IS NULL THEN
        PERFORM ratelimit._null('throws');
    END IF;
    d := ratelimit._change('rl_take', name, key, count, false, config, NULL, NULL, at_least);
    IF throws AND NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
    a := ratelimit._answer(d);
    r.ok := a.ok;
    -- A dry run lets all pass, whatever the limit has.
    r.taken := CASE WHEN d.enforced THEN d.taken ELSE count END;
    r.retry_after := a.retry_after; r.retry_at := a.retry_at; r.remaining := a.remaining; r.capacity := a.capacity;
    r.reset_at := a.reset_at; r.limited_by := a.limited_by;
    RETURN r;
END
$$;

-- Reads a key's definition, block and state, all of one moment, without a lock.
CREATE OR REPLACE FUNCTION ratelimit._read(function text, name text, key text, config jsonb, count double precision,
    OUT l ratelimit._limit, OUT s ratelimit._state, OUT now bigint, OUT until timestamptz, OUT has_state boolean)
STABLE LANGUAGE plpgsql AS $$
DECLARE
    stored record;
BEGIN
    SELECT f.* INTO stored FROM ratelimit._look_up($2, $3) f;
    l := ratelimit._usable(function, name, key, stored.defined, config, count);
    now := ratelimit._now();
    IF ratelimit._is_due(l, stored.r, now) THEN stored.r := (ratelimit._lapse(l, stored.r, now)).r; END IF;
    until := stored.until;
    s := ratelimit._state_of(l, stored.r, now);
    has_state := (stored.r).kind = l.letter;
END
$$;

-- Locks the tables before a function that is STABLE reads them: its snapshot must not be older than a wait for a lock.
CREATE OR REPLACE FUNCTION ratelimit._attend() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM ONLY ratelimit.rateLimits, ONLY ratelimit.rl_config, ONLY ratelimit.rl_blocks, ONLY ratelimit.rl_holds
    LIMIT 0;
END
$$;

-- The answer to a call that changes nothing: of its definition, block, row and holds of one moment.
CREATE OR REPLACE FUNCTION ratelimit._peek(function text, name text, key text, count double precision, reserve boolean,
    config jsonb, at_least double precision DEFAULT NULL) RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    stored record;
    l ratelimit._limit;
BEGIN
    SELECT f.* INTO stored FROM ratelimit._look_up($2, $3) f;
    l := ratelimit._usable(function, name, key, stored.defined, config, count);
    RETURN ratelimit._seen(l, stored.r, ratelimit._now(), stored.until, count, reserve, at_least);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_check(name text, key text DEFAULT '', count double precision DEFAULT 1,
    reserve boolean DEFAULT false, throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS ratelimit.rl_result LANGUAGE plpgsql AS $$
DECLARE
    stored record;
    l ratelimit._limit;
    d ratelimit._decision;
BEGIN
    PERFORM ratelimit._check(name, key, count, reserve, throws);
    SELECT f.*, ratelimit._now() AS now INTO stored FROM ratelimit._look_up($1, $2) f;
    IF (stored.r).holds_due IS NULL THEN
        l := ratelimit._usable('rl_check', name, key, stored.defined, config, count);
        d := ratelimit._look(l, ratelimit._state_of(l, stored.r, stored.now), stored.now, stored.until, count, reserve,
                             true);
    ELSE
        PERFORM ratelimit._attend();
        d := ratelimit._peek('rl_check', name, key, count, reserve, config);
    END IF;
    d := ratelimit._let_pass(d);
    IF throws AND NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
    RETURN ratelimit._answer(d);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_credit(name text, key text DEFAULT '', count double precision DEFAULT 1,
    taken_at timestamptz DEFAULT NULL, config jsonb DEFAULT NULL)
RETURNS ratelimit.rl_result LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._check(name, key, count);
    IF taken_at IN ('infinity', '-infinity') THEN
        PERFORM ratelimit._bad('taken_at', 'infinite', 'a finite time');
    END IF;
    RETURN ratelimit._answer(ratelimit._change('rl_credit', name, key, count, false, config, taken_at));
END
$$;

-- The definition of a key. of_state: the one that its state belongs to, which for an exempt key is the name's.
CREATE OR REPLACE FUNCTION ratelimit._defined(name text, key text, of_state boolean DEFAULT false)
RETURNS ratelimit._limit STABLE LANGUAGE plpgsql AS $$
DECLARE
    l ratelimit._limit;
BEGIN
    l := (SELECT d.parsed FROM (
              SELECT c.key, coalesce(c.parsed, ratelimit._plan(c.config))::ratelimit._limit AS parsed
              FROM ONLY ratelimit.rl_config c WHERE c.name = $1 AND c.key IN ('', $2)) d
          ORDER BY of_state AND coalesce((d.parsed).kind = 'unlimited', false), d.key DESC LIMIT 1);
    RETURN l;
END
$$;

-- Deletes the holds of a key, whose row is locked.
CREATE OR REPLACE FUNCTION ratelimit._drop_holds(name text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Planned now, since no plan under a rule that keeps rows notices when the rule is dropped.
    EXECUTE 'DELETE FROM ONLY ratelimit.rl_holds WHERE name = $1 AND key = $2' USING name, key;
    IF EXISTS (SELECT FROM ONLY ratelimit.rl_holds h WHERE h.name = $1 AND h.key = $2) THEN
        PERFORM ratelimit._not_written('rl_holds');
    END IF;
END
$$;

-- Deletes a key's holds, under the lock of its row: if it has none, one is inserted for that long.
CREATE OR REPLACE FUNCTION ratelimit._delete_holds(name text, key text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    is_made boolean;
BEGIN
    FOR try IN 1..100 LOOP
        IF NOT EXISTS (SELECT FROM ONLY ratelimit.rl_holds h WHERE h.name = $1 AND h.key = $2) THEN RETURN; END IF;
        PERFORM FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2 FOR UPDATE;
        IF FOUND THEN
            PERFORM ratelimit._drop_holds(name, key);
            IF is_made THEN DELETE FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2; END IF;
            RETURN;
        END IF;
        is_made := ratelimit._make_row(name, key);
    END LOOP;
    PERFORM ratelimit._not_written();
END
$$;

-- Whether a row counts as none, and has no value that no call writes.
CREATE OR REPLACE FUNCTION ratelimit._is_reset(kind "char", value double precision, ts timestamptz) RETURNS boolean
IMMUTABLE LANGUAGE sql AS $$
    SELECT coalesce(kind IN ('-', '#', '=') AND value > '-Infinity' AND value < 'Infinity' AND ts > '-infinity'
                    AND ts < 'infinity', false)
$$;

-- Deletes a key's row and holds. Returns whether the row had a state.
CREATE OR REPLACE FUNCTION ratelimit._delete_key(name text, key text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    is_reset boolean;
BEGIN
    FOR try IN 1..100 LOOP
        SELECT ratelimit._is_reset(r.kind, r.value, r.ts) INTO is_reset
        FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2 FOR UPDATE;
        IF FOUND THEN
            DELETE FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2;
            IF NOT FOUND THEN PERFORM ratelimit._not_written(); END IF;
            PERFORM ratelimit._drop_holds(name, key);
            RETURN NOT is_reset;
        -- A row that was deleted meanwhile may have been made again.
        ELSIF NOT EXISTS (SELECT FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2)
            AND NOT EXISTS (SELECT FROM ONLY ratelimit.rl_holds h WHERE h.name = $1 AND h.key = $2) THEN
            RETURN false;
        END IF;
        -- No other transaction makes a row or holds until this one ends.
        PERFORM ratelimit._make_row(name, key);
    END LOOP;
    PERFORM ratelimit._not_written();
    RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_reset(name text, key text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    l ratelimit._limit;
    was boolean;
BEGIN
    PERFORM ratelimit._check(name, key), ratelimit._attend();
    l := ratelimit._defined(name, key, true);
    IF l.keyed AND key = '' THEN PERFORM ratelimit._keyed(name, l.kind, true); END IF;
    PERFORM ratelimit._writable('rl_reset');
    FOR try IN 1..100 LOOP
        PERFORM FROM ONLY ratelimit.rateLimits r
        WHERE r.name = $1 AND r.key = $2 AND NOT ratelimit._is_reset(r.kind, r.value, r.ts) FOR UPDATE;
        was := FOUND;
        -- A row that was deleted meanwhile may have been made again.
        EXIT WHEN was OR NOT EXISTS (SELECT FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2
                                     AND NOT ratelimit._is_reset(r.kind, r.value, r.ts));
    END LOOP;
    IF was THEN
        UPDATE ONLY ratelimit.rateLimits r SET kind = '-', value = 0,
            ts = CASE WHEN isfinite(r.ts) THEN r.ts ELSE timestamptz '1970-01-01 00:00:00+00' END,
            added = NULL, prior = NULL, log = NULL, leases = NULL, holds_due = NULL
        WHERE r.name = $1 AND r.key = $2;
        IF NOT FOUND THEN PERFORM ratelimit._not_written(); END IF;
    END IF;
    PERFORM ratelimit._delete_holds(name, key);
    RETURN was;
END
$$;

-- Key by key, in the order in which all calls lock rows.
CREATE OR REPLACE FUNCTION ratelimit.rl_reset_keys(name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found_key text;
    count bigint := 0;
BEGIN
    PERFORM ratelimit._check(name, '');
    PERFORM ratelimit._writable('rl_reset_keys');
    FOR found_key IN SELECT r.key FROM ONLY ratelimit.rateLimits r WHERE r.name = $1
                     UNION SELECT h.key FROM ONLY ratelimit.rl_holds h WHERE h.name = $1 ORDER BY 1 LOOP
        IF ratelimit._delete_key(name, found_key) THEN count := count + 1; END IF;
    END LOOP;
    RETURN count;
END
$$;

-- Calls. Each asks one limit or several, and one engine answers: it looks at what is asked without a lock, and a denial
-- ends there. Then it locks the rows in the order of name and key, so that calls don't deadlock, decides again at one
-- instant, and writes, all or nothing.

-- The limit of an ask: from its config, or as defined. 42501, 22023, 42704, 22004.
CREATE OR REPLACE FUNCTION ratelimit._resolve(a ratelimit._ask, defined ratelimit._limit) RETURNS ratelimit._limit
LANGUAGE plpgsql AS $$
DECLARE
    l ratelimit._limit := defined;
BEGIN
    IF defined.kind IS NULL THEN
        -- A config in the call is no way around a plan that is missing.
        PERFORM ratelimit._undefined_plan(a.name, (
            SELECT c.config ->> 'plan' FROM ONLY ratelimit.rl_config c WHERE c.name = a.name AND c.key = a.key));
        IF a.config IS NULL THEN
            PERFORM ratelimit._raise('42704', format('rate limit "%s" is not defined', a.name), NULL, 'Define it: '
                || ratelimit._example(a.name, CASE WHEN a.lease IS NULL THEN 'token bucket' ELSE 'concurrency' END));
        END IF;
    ELSIF a.config IS NOT NULL AND NOT has_function_privilege(ratelimit._caller(),
        'ratelimit.rl_define(text, jsonb, text)', 'EXECUTE') THEN
        PERFORM ratelimit._raise('42501', format('permission denied to override rate limit "%s"', a.name),
            'A config passed with the call overrides the definition; that requires EXECUTE on rl_define.',
            format('Call it without a config: SELECT * FROM ratelimit.rl_limit(%s, $1);',
                   ratelimit._literal(a.name)));
    END IF;
    IF a.config IS NOT NULL THEN l := ratelimit._parse(a.config); END IF;
    IF a.verb IN ('extend', 'release', 'headers') THEN
        RETURN l;
    ELSIF a.key = '' AND (l.keyed OR defined.keyed) THEN
        PERFORM ratelimit._keyed(a.name, l.kind, true);
    ELSIF a.key <> '' AND NOT (coalesce(l.keyed, true) AND coalesce(defined.keyed, true)) AND a.verb <> 'value' THEN
        PERFORM ratelimit._keyed(a.name, l.kind, false);
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

-- Refuses a kind that an ask isn't for, and a count out of range.
CREATE OR REPLACE FUNCTION ratelimit._check_use(a ratelimit._ask, l ratelimit._limit) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    kind CONSTANT text := l.kind;
BEGIN
    IF a.verb = 'hold' AND NOT ratelimit._returns(l) AND kind <> 'unlimited'
        AND (a.ns IS NULL OR kind <> 'concurrency') THEN
        PERFORM ratelimit._wrong_kind(a.function, kind, a.name, a.verb);
    ELSIF a.verb = 'credit' THEN
        IF (a.count >= -1e15 AND a.count <= 1e15) IS NOT TRUE THEN
            PERFORM ratelimit._bad('count', ratelimit._digits(a.count), 'a number from -1e15 to 1e15');
        END IF;
        RETURN;
    ELSIF kind = 'concurrency' AND a.verb = 'take' AND a.lease IS NULL
        OR kind NOT IN ('concurrency', 'unlimited') AND a.lease IS NOT NULL THEN
        PERFORM ratelimit._wrong_kind(a.function, kind);
    END IF;
    IF (a.count BETWEEN 0 AND 1e15 AND a.count = trunc(a.count)) IS NOT TRUE THEN
        PERFORM ratelimit._check_count(kind, a.count);
    END IF;
    IF a.verb = 'take' AND a.at_least IS NOT NULL THEN
        PERFORM ratelimit._check_count(kind, a.at_least, 'at_least');
    END IF;
    IF NOT (a.at_least >= 0 AND a.at_least <= a.count) THEN
        PERFORM ratelimit._bad('at_least', ratelimit._digits(a.at_least),
            'a number from 0 to count, which is ' || ratelimit._digits(a.count));
    END IF;
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

-- The parsed config of a row of rl_config: its own, or that of its plan, without a kind if the plan is not defined.
CREATE OR REPLACE FUNCTION ratelimit._plan(config jsonb) RETURNS text STABLE LANGUAGE plpgsql AS $$
DECLARE
    undefined ratelimit._limit;
BEGIN
    undefined.kind := NULL;
    RETURN coalesce((SELECT c.parsed FROM ONLY ratelimit.rl_config c WHERE c.name = $1 ->> 'plan' AND c.key = ''),
                    undefined::text);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._meaning(parsed text, config jsonb) RETURNS text STABLE LANGUAGE sql AS $$
    SELECT coalesce(parsed, CASE WHEN config IS NOT NULL THEN ratelimit._plan(config) END)
$$;

-- Looks up a key's definition, block and row. One row, planned with the caller's statement, which locks the tables in
-- the order of all calls.
CREATE OR REPLACE FUNCTION ratelimit._look_up(name text, key text) RETURNS TABLE (defined ratelimit._limit,
    until timestamptz, r ratelimit._row) STABLE LANGUAGE sql AS $$
    SELECT coalesce(ratelimit._meaning(own.parsed, own.config),
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

-- Locks the row of an ask, which it inserts where there is none, and reads the ask's hold. A settlement takes its hold
-- out, after what has expired has come back, also of that hold.
CREATE OR REPLACE FUNCTION ratelimit._locked(a ratelimit._ask) RETURNS ratelimit._ask LANGUAGE plpgsql AS $$
DECLARE
    now bigint;
BEGIN
    a.locked := true;
    a.ids := NULL;
    FOR try IN 1..100 LOOP
        a.r := ratelimit._lock(a.name, a.key);
        IF a.verb = 'settle' THEN now := ratelimit._now(); END IF;
        IF (a.r).shard IS NULL THEN
            PERFORM ratelimit._make_row(a.name, a.key);
        ELSIF a.verb = 'settle' AND ratelimit._is_due(a.l, a.r, now) THEN
            PERFORM ratelimit._expire(a.l, a.name, a.key);
        ELSE
            IF a.verb = 'hold' THEN
                a.h := ratelimit._hold_of(a.id, a.name, a.key);
            ELSIF a.verb = 'settle' THEN
                a.h := ratelimit._take_out(a.id, a.name, a.key);
            END IF;
            RETURN a;
        END IF;
    END LOOP;
    PERFORM ratelimit._not_written();
    RETURN NULL;
END
$$;

-- Inserts the row of an ask as it was decided, unless there is one. Returns whether it did, and didn't have to wait.
CREATE OR REPLACE FUNCTION ratelimit._inserted(a ratelimit._ask) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    s CONSTANT ratelimit._state := (a.d).state;
BEGIN
    INSERT INTO ratelimit.rateLimits (name, key, kind, value, ts, added, prior, log, leases)
    VALUES (a.name, a.key, (a.l).letter, s.value, ratelimit._nearest(s.ts), s.added, s.prior, s.log, s.leases)
    ON CONFLICT DO NOTHING;
    IF FOUND AND ratelimit._now() - (a.d).at < 1000 THEN RETURN true; END IF;
    -- If it waited for an insert that was rolled back, the row is this transaction's own now, and counts as none.
    IF FOUND THEN UPDATE ONLY ratelimit.rateLimits r SET kind = '-' WHERE r.name = a.name AND r.key = a.key; END IF;
    RETURN false;
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

-- Writes a row that is locked, unless a trigger keeps it as it was.
CREATE OR REPLACE FUNCTION ratelimit._write_row(r ratelimit._row) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    written boolean;
BEGIN
    UPDATE ONLY ratelimit.rateLimits x SET kind = r.kind, value = r.value, ts = r.ts, added = r.added, prior = r.prior,
        log = r.log, leases = r.leases, holds_due = r.holds_due WHERE x.name = r.name AND x.key = r.key
    RETURNING x.holds_due IS NOT DISTINCT FROM r.holds_due INTO written;
    IF written IS NOT TRUE THEN PERFORM ratelimit._not_written(); END IF;
END
$$;

-- Makes the ask of a call for one name and key.
CREATE OR REPLACE FUNCTION ratelimit._ask(function text, verb text, name text, key text, count double precision,
    reserve boolean DEFAULT false, config jsonb DEFAULT NULL, lease bigint DEFAULT NULL,
    at_least double precision DEFAULT NULL, taken_at timestamptz DEFAULT NULL, id text DEFAULT NULL,
    ttl bigint DEFAULT NULL, charge boolean DEFAULT NULL) RETURNS ratelimit._ask IMMUTABLE LANGUAGE sql AS $$
    SELECT ROW(function, verb, name, key, config, count, reserve, at_least, taken_at, lease, id, ttl, charge, NULL,
               NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
               NULL, NULL, NULL, NULL)::ratelimit._ask
$$;

-- Decides an ask on its row and hold at an instant, ignoring blocks. changed: whether there is anything to write.
CREATE OR REPLACE FUNCTION ratelimit._decide_ask(a ratelimit._ask, now bigint) RETURNS ratelimit._ask STABLE
LANGUAGE plpgsql AS $$
DECLARE
    used double precision;
BEGIN
    IF a.counts IS NOT NULL THEN
        RETURN ratelimit._decide_takes(a, now);
    ELSIF a.verb IN ('take', 'check', 'status') THEN
        a.d := ratelimit._decide(a.l, a.s, now, a.count, a.reserve, a.lease, a.at_least);
    ELSIF a.verb = 'hold' THEN
        RETURN ratelimit._decide_hold(a, now);
    ELSIF a.verb = 'settle' THEN
        -- Settles a hold that was taken out. Without an answer: it had nothing any more, as after a reset.
        used := coalesce(a.count, (a.h).count + (a.h).returned);
        a.d := CASE WHEN (a.h).id IS NULL OR ratelimit._ignores(a.l, a.s, now) THEN NULL
            WHEN (a.h).lease IS NOT NULL THEN ratelimit._free(a.l, a.s, now, (a.h).lease)
            WHEN used > (a.h).count THEN ratelimit._credit(a.l, a.s, now, (a.h).count - used, NULL)
            ELSE ratelimit._credit(a.l, a.s, now, (a.h).count - greatest(used, (a.h).spent), (a.h).taken_at) END;
    ELSIF a.verb = 'credit' THEN
        IF NOT ratelimit._returns(a.l) AND (a.l).kind <> 'unlimited' THEN
            PERFORM ratelimit._wrong_kind(a.function, (a.l).kind, NULL, a.verb);
        END IF;
        a.d := ratelimit._credit(a.l, a.s, now, a.count, a.taken_at);
    ELSIF (a.l).kind = 'unlimited' THEN
        a.d := ratelimit._decide(a.l, a.s, now, 0, false);
    ELSIF a.verb = 'release' THEN
        a.d := ratelimit._free(a.l, a.s, now, a.lease);
    ELSE
        -- Not sooner than before: the clock may have stepped back, or the ttl have become shorter.
        a.d := ratelimit._acquire(a.l, a.s, now, 0, a.lease, ratelimit._plus(now, (a.l).period));
    END IF;
    a.changed := (a.d).changed;
    RETURN a;
END
$$;

-- Decides an ask at an instant. A block, and a denial that no expiry can change, read no holds; others wait no longer
-- than until enough have expired.
CREATE OR REPLACE FUNCTION ratelimit._decided(a ratelimit._ask, now bigint) RETURNS ratelimit._ask STABLE
LANGUAGE plpgsql AS $$
DECLARE
    ends bigint;
    p record;
    came double precision;
BEGIN
    IF (a.r).holds_due IS NOT NULL AND a.ids IS NULL AND ratelimit._is_due(a.l, a.r, now)
        AND ratelimit._must_lapse(a, now) THEN
        p := ratelimit._lapse(a.l, a.r, now);
        a.r := p.r; a.ids := p.ids; a.came := p.came;
        IF (a.h).id = ANY (a.ids) THEN
            came := a.came[array_position(a.ids, (a.h).id)];
            a.h.count := CASE WHEN came = (a.h).count - (a.h).spent THEN (a.h).spent ELSE (a.h).count - came END;
            a.h.spent := (a.h).count; a.h.returned := (a.h).returned + came;
        END IF;
    END IF;
    a.s := ratelimit._state_of(a.l, a.r, now);
    -- The usual case, without another call of a function.
    IF a.until IS NULL AND a.counts IS NULL AND a.verb IN ('take', 'check', 'status') THEN
        a.d := ratelimit._decide(a.l, a.s, now, a.count, a.reserve, a.lease, a.at_least);
        a.changed := (a.d).changed;
    ELSIF a.until IS NOT NULL AND ratelimit._us(a.until) > now THEN
        ends := ratelimit._us(a.until);
        a := ratelimit._decide_ask(a, CASE WHEN a.until = 'infinity' THEN now ELSE ends END);
        a.d := ratelimit._blocked(a, a.d, now);
        FOR i IN 1..coalesce(cardinality(a.decisions), 0) LOOP
            a.decisions[i] := ratelimit._blocked(a, a.decisions[i], now);
        END LOOP;
        a.changed := false;
    ELSE
        a := ratelimit._decide_ask(a, now);
    END IF;
    a.allows := (a.d).ok OR (a.d).enforced IS NOT TRUE;
    IF (a.r).holds_due IS NOT NULL AND NOT (a.d).ok AND (a.verb = 'status' OR NOT a.allows) THEN
        RETURN ratelimit._denied_until(a);
    END IF;
    RETURN a;
END
$$;

-- The answer of a limit that is blocked. After a block a call in a dry run passes, but rl_status goes on reporting what
-- would be denied.
CREATE OR REPLACE FUNCTION ratelimit._blocked(a ratelimit._ask, d ratelimit._decision, now bigint)
RETURNS ratelimit._decision STABLE LANGUAGE plpgsql AS $$
DECLARE
    level CONSTANT ratelimit._decision := ratelimit._level(a.l, a.s, now);
BEGIN
    d.forever := a.until = 'infinity';
    d.wait := CASE WHEN NOT d.forever THEN ratelimit._us(a.until) - now
        + CASE WHEN d.ok OR NOT (a.l).enforce AND a.verb <> 'status' THEN 0 ELSE d.wait END END;
    d.ok := false; d.taken := 0; d.at := now; d.capacity := (a.l).capacity; d.enforced := true; d.changed := false;
    d.limited_by := 'block'; d.remaining := level.remaining; d.reset_at := level.reset_at;
    RETURN d;
END
$$;

-- Looks at the definition, block, row and holds of an ask, all of one moment, and decides it without a lock.
CREATE OR REPLACE FUNCTION ratelimit._look(a ratelimit._ask, now bigint) RETURNS ratelimit._ask STABLE
LANGUAGE plpgsql AS $$
DECLARE
    stored record;
BEGIN
    SELECT f.* INTO stored FROM ratelimit._look_up(a.name, a.key) f;
    a.r := stored.r;
    IF stored.until IS NOT NULL AND a.verb IN ('take', 'hold', 'check') THEN a.until := stored.until; END IF;
    IF a.ns IS NULL THEN
        a.l := stored.defined;
        -- Of most limits there is nothing to check: no call of a function.
        IF a.config IS NOT NULL OR (a.l).kind IS NULL OR (a.l).keyed IS NOT NULL THEN
            a.l := ratelimit._resolve(a, stored.defined);
        END IF;
        PERFORM ratelimit._check_use(a, a.l);
        IF current_setting('transaction_read_only') = 'on' AND (a.l).kind <> 'unlimited' AND a.verb <> 'check'
            AND (a.verb <> 'take' OR (ratelimit._us(a.until) > now) IS NOT TRUE) THEN
            PERFORM ratelimit._writable(a.function);
        END IF;
    END IF;
    IF a.verb = 'hold' THEN
        a.h := ratelimit._hold_of(a.id, a.name, a.key);
        a.given := CASE WHEN (stored.defined).kind IS NULL THEN a.config END;
    END IF;
    RETURN ratelimit._decided(a, now);
END
$$;

-- Looks at asks, all at one moment.
CREATE OR REPLACE FUNCTION ratelimit._peek(asks ratelimit._ask[]) RETURNS ratelimit._ask[] STABLE
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := ratelimit._now();
BEGIN
    FOR i IN 1..cardinality(asks) LOOP asks[i] := ratelimit._look(asks[i], now); END LOOP;
    RETURN asks;
END
$$;

-- Locks the rows of the asks that change, decides all again at one instant, and writes. It doesn't write if one is
-- denied now, or changes now and isn't locked, as that of a dry run which was denied: the caller sees it in the asks.
CREATE OR REPLACE FUNCTION ratelimit._commit(asks ratelimit._ask[]) RETURNS ratelimit._ask[] LANGUAGE plpgsql AS $$
DECLARE
    a ratelimit._ask;
    now bigint;
    passes boolean := true;
BEGIN
    FOR i IN 1..cardinality(asks) LOOP
        -- Expired holds of an unchanged limit are left to a call that changes it.
        IF asks[i].changed THEN asks[i] := ratelimit._locked(asks[i]); ELSE asks[i].locked := false; END IF;
    END LOOP;
    now := ratelimit._now();
    FOR i IN 1..cardinality(asks) LOOP
        a := ratelimit._decided(asks[i], now);
        passes := passes AND a.allows AND (a.locked OR NOT a.changed);
        asks[i] := a;
    END LOOP;
    FOR i IN 1..cardinality(asks) LOOP
        IF passes AND asks[i].locked THEN asks[i].h := ratelimit._write(asks[i], now); END IF;
    END LOOP;
    RETURN asks;
END
$$;

-- Writes what an ask changes of the row that is locked, and the hold that it leaves, which it returns.
CREATE OR REPLACE FUNCTION ratelimit._write(a ratelimit._ask, now bigint) RETURNS ratelimit._hold LANGUAGE plpgsql AS $$
DECLARE
    due timestamptz := (a.r).holds_due;
    anew boolean;
    h ratelimit._hold := a.h;
BEGIN
    IF a.ids IS NOT NULL THEN
        PERFORM ratelimit._write_lapsed(a.name, a.key, due, now, a.ids, a.came);
        due := ratelimit._next_expiry(a.name, a.key, now);
    END IF;
    IF a.changed AND a.verb <> 'settle' THEN
        anew := ratelimit._is_anew(a.l, a.r, now);
        IF anew THEN
            -- Delete the key's holds: what they have was not taken from the new state.
            PERFORM ratelimit._drop_holds(a.name, a.key);
            due := NULL;
        END IF;
        IF a.verb = 'hold' THEN
            h := ratelimit._grown(a, now);
            IF NOT h.charge AND h.count > h.spent THEN due := least(due, h.expires_at); END IF;
        END IF;
    END IF;
    IF (a.d).changed OR a.ids IS NOT NULL OR NOT anew AND due IS DISTINCT FROM (a.r).holds_due THEN
        a.r.holds_due := due;
        PERFORM ratelimit._write_row(CASE WHEN (a.d).changed THEN ratelimit._row_with(a.r, a.l, (a.d).state)
                                          ELSE a.r END);
    END IF;
    IF a.changed AND a.verb = 'hold' THEN
        PERFORM ratelimit._write_hold(h);
        IF (a.h).lease IS NOT NULL AND (a.d).taken <= 0 THEN h.count := (a.h).count; END IF; -- the slots that are left
    END IF;
    RETURN h;
END
$$;

-- Answers a call's only ask. A denial is logged, and passes in a dry run.
CREATE OR REPLACE FUNCTION ratelimit._one(a ratelimit._ask) RETURNS ratelimit._ask LANGUAGE plpgsql AS $$
BEGIN
    IF a.verb = 'settle' THEN
        a.changed := true;
    ELSE
        PERFORM ratelimit._attend();
        a := ratelimit._look(a, ratelimit._now());
    END IF;
    IF a.changed AND NOT ((a.r).shard IS NULL AND a.verb IN ('take', 'credit') AND ratelimit._inserted(a)) THEN
        a := (ratelimit._commit(ARRAY[a]))[1];
    END IF;
    IF a.ids IS NOT NULL AND NOT (a.locked IS NOT NULL AND a.allows) AND (a.d).limited_by IS DISTINCT FROM 'block' THEN
        PERFORM ratelimit._write_found(a);
    END IF;
    IF NOT (a.d).ok THEN
        PERFORM ratelimit._log_denial(a.name, (a.d).enforced, (a.d).wait);
        IF a.allows THEN a.d.ok := true; a.d.wait := NULL; END IF;
    END IF;
    RETURN a;
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

-- The result of a call. Times and waits are rounded up to milliseconds. Here and below, a result is filled by the names
-- of its attributes: a call that goes on while another session runs a later version may find more of them.
CREATE OR REPLACE FUNCTION ratelimit._answer(d ratelimit._decision) RETURNS ratelimit.rl_result STABLE
LANGUAGE plpgsql AS $$
DECLARE
    r ratelimit.rl_result;
BEGIN
    r.ok := d.ok;
    IF d.wait IS NOT NULL THEN r.retry_at := ratelimit._rounded_up(ratelimit._plus(d.at, d.wait)); END IF;
    IF r.retry_at IS NOT NULL THEN r.retry_after := ratelimit._ceil(d.wait, 1000)::float8 / 1e6; END IF;
    r.remaining := d.remaining;
    r.capacity := d.capacity;
    r.reset_at := ratelimit._rounded_up(d.reset_at);
    r.limited_by := d.limited_by;
    RETURN r;
END
$$;

-- The usual case in as few expressions as possible: a row of a token bucket or fixed window without options. It takes
-- half as long as _one, which answers all other calls, and these the same.
@rl_limit@ LANGUAGE plpgsql AS $$
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
        AND stored.until IS NULL AND current_setting('transaction_read_only') = 'off' THEN
        tokens := ratelimit._usual_tokens(l, stored.kind, stored.value, stored.ts, stored.added, stored.holds_due,
                                          stored.now);
    END IF;
    IF tokens IS NOT NULL THEN
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
            tokens := ratelimit._usual_tokens(l, locked.kind, locked.value, locked.ts, locked.added, locked.holds_due,
                                              now);
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
    d := (ratelimit._one(ratelimit._ask('rl_limit', 'take', name, key, count, reserve, config))).d;
    IF throws AND NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
    RETURN ratelimit._answer(d);
END
$$;

@rl_take@ LANGUAGE plpgsql AS $$
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
    d := (ratelimit._one(ratelimit._ask('rl_take', 'take', name, key, count, false, config,
                                                  at_least => at_least))).d;
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
CREATE OR REPLACE FUNCTION ratelimit._read(a ratelimit._ask, OUT l ratelimit._limit, OUT s ratelimit._state,
    OUT now bigint, OUT until timestamptz, OUT has_state boolean) STABLE LANGUAGE plpgsql AS $$
DECLARE
    stored record;
BEGIN
    SELECT f.* INTO stored FROM ratelimit._look_up(a.name, a.key) f;
    l := ratelimit._resolve(a, stored.defined);
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

@rl_check@ LANGUAGE plpgsql AS $$
DECLARE
    a ratelimit._ask;
    d ratelimit._decision;
    level ratelimit._decision;
BEGIN
    PERFORM ratelimit._check(name, key, count, reserve, throws), ratelimit._attend();
    a := ratelimit._look(ratelimit._ask('rl_check', 'check', name, key, count, reserve, config), ratelimit._now());
    d := a.d;
    level := ratelimit._level(a.l, a.s, d.at);
    d.remaining := level.remaining;
    d.reset_at := level.reset_at;
    IF a.allows AND NOT d.ok THEN d.ok := true; d.wait := NULL; END IF; -- a dry run
    IF throws AND NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
    RETURN ratelimit._answer(d);
END
$$;

@rl_credit@ LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ratelimit._check(name, key, count);
    IF taken_at IN ('infinity', '-infinity') THEN
        PERFORM ratelimit._bad('taken_at', 'infinite', 'a finite time');
    END IF;
    RETURN ratelimit._answer((ratelimit._one(
        ratelimit._ask('rl_credit', 'credit', name, key, count, false, config, taken_at => taken_at))).d);
END
$$;

-- The definition of a key. of_state: the one that its state belongs to, which for an exempt key is the name's.
CREATE OR REPLACE FUNCTION ratelimit._defined(name text, key text, of_state boolean DEFAULT false)
RETURNS ratelimit._limit STABLE LANGUAGE plpgsql AS $$
DECLARE
    l ratelimit._limit;
BEGIN
    l := (SELECT d.parsed FROM (
              SELECT c.key, ratelimit._meaning(c.parsed, c.config)::ratelimit._limit AS parsed
              FROM ONLY ratelimit.rl_config c WHERE c.name = $1 AND c.key IN ('', $2)) d
          ORDER BY of_state AND coalesce((d.parsed).kind = 'unlimited', false), d.key DESC LIMIT 1);
    RETURN l;
END
$$;

-- Deletes the holds of a key. Its row is locked.
CREATE OR REPLACE FUNCTION ratelimit._drop_holds(name text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Planned now, since no plan under a rule that keeps rows notices when the rule is dropped.
    EXECUTE 'DELETE FROM ONLY ratelimit.rl_holds WHERE name = $1 AND key = $2' USING name, key;
    IF EXISTS (SELECT FROM ONLY ratelimit.rl_holds h WHERE h.name = $1 AND h.key = $2) THEN
        PERFORM ratelimit._not_written('rl_holds');
    END IF;
END
$$;

-- Whether a row counts as none, and has no value that no call writes.
CREATE OR REPLACE FUNCTION ratelimit._is_reset(kind "char", value double precision, ts timestamptz) RETURNS boolean
IMMUTABLE LANGUAGE sql AS $$
    SELECT coalesce(kind IN ('-', '#', '=') AND value > '-Infinity' AND value < 'Infinity' AND ts > '-infinity'
                    AND ts < 'infinity', false)
$$;

-- Deletes a key's holds, and its row, which it locks, or only the holds. Returns whether the row had a state.
CREATE OR REPLACE FUNCTION ratelimit._delete_key(name text, key text, only_holds boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    is_reset boolean;
    is_made boolean := false;
BEGIN
    FOR try IN 1..100 LOOP
        SELECT ratelimit._is_reset(r.kind, r.value, r.ts) INTO is_reset
        FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2 FOR UPDATE;
        IF FOUND THEN
            IF is_made OR NOT only_holds THEN
                DELETE FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2;
                IF NOT FOUND AND NOT only_holds THEN PERFORM ratelimit._not_written(); END IF;
            END IF;
            PERFORM ratelimit._drop_holds(name, key);
            RETURN NOT is_reset;
        -- A row that was deleted meanwhile may have been made again.
        ELSIF NOT EXISTS (SELECT FROM ONLY ratelimit.rateLimits r WHERE r.name = $1 AND r.key = $2)
            AND NOT EXISTS (SELECT FROM ONLY ratelimit.rl_holds h WHERE h.name = $1 AND h.key = $2) THEN
            RETURN false;
        END IF;
        -- No other transaction makes a row or holds until this one ends.
        is_made := ratelimit._make_row(name, key);
    END LOOP;
    PERFORM ratelimit._not_written();
    RETURN false;
END
$$;

@rl_reset@ LANGUAGE plpgsql AS $$
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
    IF EXISTS (SELECT FROM ONLY ratelimit.rl_holds h WHERE h.name = $1 AND h.key = $2) THEN
        PERFORM ratelimit._delete_key(name, key, true);
    END IF;
    RETURN was;
END
$$;

-- Key by key, in the order in which all calls lock rows.
@rl_reset_keys@ LANGUAGE plpgsql AS $$
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

-- Definitions and blocks.

@rl_define@ LANGUAGE plpgsql AS $$
DECLARE
    plan text;
    meaning text;
    is_same boolean;
    written boolean;
    l ratelimit._limit;
BEGIN
    PERFORM ratelimit._writable('rl_define'), ratelimit._check(name, '');
    IF config IS NULL THEN PERFORM ratelimit._null('config'); END IF;
    PERFORM ratelimit._check(name, key);
    meaning := ratelimit._written(name, key, config);
    plan := ratelimit._plan_name(config, key);
    -- As the INSERT locks, before FOR SHARE does: REINDEX waits between the two.
    IF plan IS NOT NULL THEN LOCK TABLE ONLY ratelimit.rl_config IN ROW EXCLUSIVE MODE; END IF;
    is_same := EXISTS (SELECT FROM ONLY ratelimit.rl_config c WHERE c.name = $1 AND c.key = $3
                       AND (c.config = $2 OR c.parsed = meaning));
    IF is_same AND plan IS NOT NULL THEN
        PERFORM FROM ONLY ratelimit.rl_config c WHERE c.name = plan AND c.key = '';
    ELSIF plan IS NOT NULL THEN
        -- Locked, so that no change of the plan commits before the key has it.
        PERFORM FROM ONLY ratelimit.rl_config c WHERE c.name = plan AND c.key = '' FOR SHARE;
    END IF;
    IF plan IS NOT NULL AND NOT FOUND THEN PERFORM ratelimit._undefined_plan(name, plan); END IF;
    IF NOT is_same THEN
        INSERT INTO ratelimit.rl_config AS c (name, config, key) VALUES ($1, $2, $3)
        ON CONFLICT ON CONSTRAINT rl_config_pkey
            DO UPDATE SET config = excluded.config WHERE c.config <> excluded.config
        RETURNING true INTO written;
        IF NOT FOUND AND NOT EXISTS (SELECT FROM ONLY ratelimit.rl_config c
                                     WHERE c.name = $1 AND c.key = $3 AND c.config = $2) THEN
            PERFORM ratelimit._not_written('rl_config');
        END IF;
    END IF;
    -- After the row is written, as a block is: the definition of the name, the key or its plan may take no key.
    IF key <> '' THEN
        l := (SELECT d.l FROM (
                  SELECT c.name, c.key, c.parsed::ratelimit._limit AS l FROM ONLY ratelimit.rl_config c
                  WHERE c.name = $1 AND c.key IN ('', $3) OR c.name = plan AND c.key = '') d
              WHERE NOT (d.l).keyed ORDER BY d.name = $1 DESC, d.key LIMIT 1);
        IF l.kind IS NOT NULL THEN PERFORM ratelimit._keyed(name, l.kind, false); END IF;
    END IF;
    RETURN coalesce(written, false);
END
$$;

@rl_undefine@ LANGUAGE plpgsql AS $$
DECLARE
    keys bigint;
    was boolean;
BEGIN
    PERFORM ratelimit._writable('rl_undefine'), ratelimit._check(name, key);
    -- As a DELETE locks.
    LOCK TABLE ONLY ratelimit.rl_config IN ROW EXCLUSIVE MODE;
    IF key = '' THEN
        PERFORM FROM ONLY ratelimit.rl_config c WHERE c.name = $1 AND c.key = '' FOR UPDATE;
        SELECT count(*) INTO keys FROM ONLY ratelimit.rl_config c
        WHERE FOUND AND c.key > '' AND c.config ->> 'plan' = $1;
        IF keys > 0 THEN
            PERFORM ratelimit._raise('2BP01', format('rate limit "%s" is the plan of %s key%s', name, keys,
                CASE WHEN keys > 1 THEN 's' ELSE '' END), NULL,
                'Give them another plan first. To list them: SELECT name, key FROM ratelimit.rl_config WHERE config = '
                || ratelimit._literal(jsonb_build_object('plan', name)::text) || ';');
        END IF;
    END IF;
    PERFORM FROM ONLY ratelimit.rl_config c WHERE c.name = $1 AND c.key = $2 FOR UPDATE;
    was := FOUND;
    -- Also one that was deleted and made again meanwhile. No plan is made where a rule forbids RETURNING, so none stays
    -- after the rule.
    DELETE FROM ONLY ratelimit.rl_config c WHERE c.name = $1 AND c.key = $2 RETURNING 1 INTO keys;
    IF was AND NOT FOUND THEN PERFORM ratelimit._not_written('rl_config'); END IF;
    RETURN FOUND;
END
$$;

@rl_block@ LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := ratelimit._now(); -- a variable lets _nearest be inlined
    at CONSTANT timestamptz := ratelimit._nearest(now);
    ends timestamptz := until;
    l ratelimit._limit;
BEGIN
    PERFORM ratelimit._writable('rl_block'), ratelimit._check(name, key);
    IF octet_length(reason) > 200 THEN
        PERFORM ratelimit._bad('reason', octet_length(reason) || ' bytes long', 'at most 200 bytes');
    END IF;
    IF duration IS NOT NULL AND until IS NOT NULL THEN
        PERFORM ratelimit._bad('until', 'given together with duration', 'one of the two');
    ELSIF duration IS NOT NULL THEN
        ends := at + duration;
        IF ends <= at THEN PERFORM ratelimit._bad('duration', 'not positive', 'an interval greater than 0'); END IF;
    ELSIF until IS NULL THEN
        PERFORM ratelimit._bad('duration', 'NULL, and until is not given',
            'an interval, or NULL if until is given');
    ELSIF until <= at THEN
        PERFORM ratelimit._bad('until', 'in the past', 'a future time, or infinity');
    END IF;
    -- In the order of all calls: its definition is looked up below.
    LOCK TABLE ONLY ratelimit.rl_config IN ACCESS SHARE MODE;
    INSERT INTO ratelimit.rl_blocks AS b (name, key, until, reason) VALUES ($1, $2, ends, $5)
    ON CONFLICT ON CONSTRAINT rl_blocks_pkey DO UPDATE SET until = excluded.until, reason = excluded.reason
    RETURNING b.until INTO ends;
    IF NOT FOUND THEN PERFORM ratelimit._not_written('rl_blocks'); END IF;
    l := ratelimit._defined(name, key);
    IF l.kind IS NOT NULL THEN
        IF l.keyed = (key = '') THEN PERFORM ratelimit._keyed(name, l.kind, l.keyed); END IF;
    -- If it's a key's plan that is not defined, every call of the key fails.
    ELSIF NOT EXISTS (SELECT FROM ONLY ratelimit.rl_config c WHERE c.name = $1 AND c.key = $2) THEN
        RAISE NOTICE 'rate limit "%" is not defined: the block applies to calls that pass a config, and to all calls '
            'once it is defined', name;
    END IF;
    RETURN ratelimit._shown(ratelimit._us(ends));
END
$$;

@rl_unblock@ LANGUAGE plpgsql AS $$
DECLARE
    was boolean;
    ended bigint;
BEGIN
    PERFORM ratelimit._writable('rl_unblock'), ratelimit._check(name, key);
    -- As a DELETE locks, before it reads any: REINDEX waits for none that reads.
    LOCK TABLE ONLY ratelimit.rl_blocks IN ROW EXCLUSIVE MODE;
    PERFORM FROM ONLY ratelimit.rl_blocks b WHERE b.name = $1 AND b.key = $2 FOR UPDATE;
    was := FOUND;
    -- Also one that was deleted and made again meanwhile.
    DELETE FROM ONLY ratelimit.rl_blocks b WHERE b.name = $1 AND b.key = $2 RETURNING ratelimit._us(b.until) INTO ended;
    IF was AND NOT FOUND THEN PERFORM ratelimit._not_written('rl_blocks'); END IF;
    RETURN coalesce(ended > ratelimit._now(), false);
END
$$;

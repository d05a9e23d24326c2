-- Types. The types of results are open to all, and have more attributes in a later version, at their end: so columns,
-- variables, views and functions of others that use them go on. A column of another type in another role's table would
-- keep the file from changing it, so the others are the owner's; the file's own tables have none.

-- Makes a type, or changes that of an earlier version: it drops all attributes from the first that differs, and adds
-- the new ones, for the same order. It drops none of a result's type: 42804.
CREATE OR REPLACE FUNCTION ratelimit._make_type(name text, attributes text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old oid := to_regtype(format('"ratelimit".%I', name));
    found_old text[];
    wanted text[];
    same int := 0;
    changes text[];
BEGIN
    IF old IS NULL THEN
        EXECUTE format('CREATE TYPE "ratelimit".%I AS (%s)', name, attributes);
        EXECUTE format('COMMENT ON TYPE "ratelimit".%I IS %L', name, CASE WHEN name ~ '^_' THEN 'rate limiter, internal'
                       ELSE 'result of a call of the rate limiter' END);
    ELSE
        EXECUTE format('CREATE TYPE ratelimit._made AS (%s)', attributes);
        SELECT array_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
                   FILTER (WHERE t.oid = old),
               array_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
                   FILTER (WHERE t.oid <> old)
        INTO found_old, wanted
        FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE t.oid IN (old, to_regtype('ratelimit._made'));
        DROP TYPE ratelimit._made;
        WHILE found_old[same + 1] = wanted[same + 1] LOOP same := same + 1; END LOOP;
        IF name !~ '^_' AND cardinality(found_old) > same THEN
            RAISE EXCEPTION 'type % has been altered', old::regtype USING ERRCODE = 'datatype_mismatch',
                DETAIL = format('Its attributes are %s.', array_to_string(found_old, ', ')),
                HINT = format('Make these its attributes by ALTER TYPE, and run this file again: %s.',
                              array_to_string(wanted, ', '));
        END IF;
        changes := ARRAY(SELECT format('DROP ATTRIBUTE %s', split_part(f, ' ', 1)) FROM unnest(found_old[same + 1:]) f)
            || ARRAY(SELECT format('ADD ATTRIBUTE %s CASCADE', f) FROM unnest(wanted[same + 1:]) f);
        IF cardinality(changes) > 0 THEN
            EXECUTE format('ALTER TYPE "ratelimit".%I %s', name, array_to_string(changes, ', '));
        END IF;
    END IF;
    PERFORM ratelimit._close('type', name);
END
$$;

DO LANGUAGE plpgsql $do$
BEGIN
@results@
    -- A parsed config. Periods and times are in microseconds, since 1970.
    PERFORM ratelimit._make_type('_limit', 'kind text, rate double precision, period bigint,
        capacity double precision, tolerance double precision, max_reserved double precision, enforce boolean,
        keyed boolean, overage boolean, start bigint, first_request boolean, zone text, months boolean, every int,
        first_date date,
        usual boolean, -- a token bucket or fixed window without options
        adds double precision, -- a fixed window: tokens that a window adds
        letter "char" -- that of its rows
    ');
    -- A row of rateLimits, or without a shard: the name and key have none.
    PERFORM ratelimit._make_type('_row', 'name text, key text, shard int, kind "char", value double precision,
        ts timestamptz, added double precision, prior double precision, log timestamptz[], leases bigint[],
        holds_due timestamptz');
    PERFORM ratelimit._make_type('_state', 'value double precision, ts bigint, prior double precision,
        log timestamptz[], added double precision, leases bigint[]');
    PERFORM ratelimit._make_type('_decision', 'ok boolean, wait bigint, remaining double precision,
        capacity double precision, reset_at bigint, at bigint, changed boolean, enforced boolean,
        limited_by text, -- also where ok is true because it is a dry run
        forever boolean,
        state ratelimit._state, -- after it, if that is changed
        taken double precision, -- of a take of as many tokens as there are; of a refund, what came back
        lease bigint, ends bigint -- that it grants: its id, and when it expires
    ');
    -- A row of rl_holds.
    PERFORM ratelimit._make_type('_hold', 'id text, name text, key text, count double precision, spent double precision,
        returned double precision, taken_at timestamptz, expires_at timestamptz,
        charge boolean, lease bigint, config jsonb');
    -- The ask of a call for one name and key: what is asked, what is found there, and the decision.
    PERFORM ratelimit._make_type('_ask', 'function text, -- for messages
        verb text, -- take, credit, extend, release, hold, settle; what changes nothing: check, status, value, headers
        name text, key text, config jsonb,
        count double precision, -- of a settlement: used, or NULL
        reserve boolean, at_least double precision, taken_at timestamptz,
        lease bigint, -- the id of one that is taken, extended or released
        id text, ttl bigint, charge boolean, -- of a hold
        ns int[], counts double precision[], reserves boolean[], -- of a list: places in it; of several takes
        l ratelimit._limit, until timestamptz, r ratelimit._row, h ratelimit._hold,
        given jsonb, -- the config, where the name is not defined for the key
        ids text[], came double precision[], -- of the holds that have expired since the row was written
        locked boolean, s ratelimit._state,
        more double precision, fewest double precision, -- what a hold lacks of count, and of at_least
        ends timestamptz, -- of a hold of another kind
        d ratelimit._decision, -- of several takes: of all, and the state after them
        decisions ratelimit._decision[], -- of several takes
        changed boolean, allows boolean,
        error jsonb'); -- it stops no other ask
END
$do$;

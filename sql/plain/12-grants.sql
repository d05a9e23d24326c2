-- Grants of a file that runs again. Each run records the oid and grants of what it has made. An object that is still
-- the recorded one keeps its grants, PUBLIC's too: its owner gave them. Another one has been restored or copied by
-- pg_upgrade, perhaps without grants, or where default privileges opened it.

-- Functions that every role may call: they need no rights.
CREATE OR REPLACE FUNCTION ratelimit._is_open(name text) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
    SELECT name ~ '^(rl_(token_bucket|fixed_window|sliding_window|sliding_log|concurrency|unlimited|calculate|key'
                  '|address_key|version|(\w+_)?result)|_parse|_plan_name|_written|_valid)([(]|$)'
$$;

-- Identifies the cluster, since oids may repeat in another one that restores a dump; 0 where the host hides it.
CREATE OR REPLACE FUNCTION ratelimit._server() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT s.system_identifier FROM pg_catalog.pg_control_system() AS s);
EXCEPTION WHEN OTHERS THEN
    RETURN 0;
END
$$;

-- Finds an object of the file: its oid, owner and grants, such as {"role": ["EXECUTE"]}, with a * for the grant option
-- and '' for PUBLIC. Names are without the schema.
CREATE OR REPLACE FUNCTION ratelimit._object(kind text, name text, OUT letter "char", OUT object oid, OUT owner oid,
    OUT items aclitem[], OUT grants jsonb) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF kind = 'schema' THEN
        SELECT 'n', n.oid, n.nspowner, coalesce(n.nspacl, acldefault('n', n.nspowner))
        INTO letter, object, owner, items FROM pg_namespace n WHERE n.oid = to_regnamespace('"ratelimit"');
    ELSIF kind = 'table' THEN
        SELECT 'r', c.oid, c.relowner, coalesce(c.relacl, acldefault('r', c.relowner))
        INTO letter, object, owner, items FROM pg_class c WHERE c.oid = to_regclass(format('"ratelimit".%s', name));
    ELSIF kind = 'type' THEN
        SELECT 'T', t.oid, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner))
        INTO letter, object, owner, items FROM pg_type t WHERE t.oid = to_regtype(format('"ratelimit".%s', name));
    ELSIF EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = to_regnamespace('"ratelimit"')
                  AND p.proname = split_part($2, '(', 1)) THEN
        BEGIN
            SELECT 'f', p.oid, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
            INTO letter, object, owner, items
            FROM pg_proc p WHERE p.oid = to_regprocedure(format('"ratelimit".%s', name)) AND p.prokind IN ('f', 'w');
        EXCEPTION WHEN undefined_object THEN
            NULL; -- an argument is of a type that isn't there yet
        END;
    END IF;
    SELECT coalesce(jsonb_object_agg(g.role, g.privileges), '{}') INTO grants FROM (
        SELECT CASE a.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(a.grantee) END,
               jsonb_agg(a.privilege_type)
               || coalesce(jsonb_agg(a.privilege_type || '*') FILTER (WHERE a.is_grantable), '[]')
        FROM aclexplode(items) a WHERE a.grantee <> owner GROUP BY a.grantee
    ) AS g (role, privileges);
END
$$;

-- Revokes what no role granted on an object that isn't the recorded one, and returns a list of it. Without a record
-- that is everything; with one, grants to PUBLIC and those of default privileges, unless the record has them.
CREATE OR REPLACE FUNCTION ratelimit._close(kind text, name text) RETURNS text[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o record := ratelimit._object(kind, name);
    made record;
    a record;
    had jsonb;
    only_option boolean;
    taken text[] := ARRAY[]::text[];
BEGIN
    SELECT m.* INTO made FROM ONLY ratelimit.rl_made m WHERE m.kind = $1 AND m.name = $2
    ORDER BY m.oid = o.object AND m.server = ratelimit._server() DESC NULLS LAST LIMIT 1;
    IF made.oid = o.object AND made.server = ratelimit._server() THEN RETURN taken; END IF;
    FOR a IN SELECT i.*, CASE i.grantee WHEN 0 THEN 'PUBLIC' ELSE i.grantee::regrole::text END AS role
             FROM aclexplode(o.items) i WHERE i.grantee <> o.owner LOOP
        CONTINUE WHEN a.grantee = 0 AND made.acl IS NULL AND ratelimit._is_open(name) OR made.oid IS NOT NULL
            AND a.grantee <> 0 AND NOT EXISTS (
                SELECT FROM pg_default_acl d, aclexplode(d.defaclacl) g
                WHERE d.defaclobjtype = o.letter AND d.defaclnamespace IN (0, to_regnamespace('"ratelimit"'))
                  AND g.grantee = a.grantee AND g.privilege_type = a.privilege_type);
        had := made.acl -> CASE a.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(a.grantee) END;
        only_option := coalesce(had ? a.privilege_type, false);
        CONTINUE WHEN only_option AND (NOT a.is_grantable OR had ? (a.privilege_type || '*'));
        EXECUTE format('REVOKE %s%s ON %s FROM %s CASCADE', CASE WHEN only_option THEN 'GRANT OPTION FOR ' ELSE '' END,
            a.privilege_type, CASE kind WHEN 'schema' THEN 'SCHEMA "ratelimit"'
                                        ELSE format('%s "ratelimit".%s', upper(kind), name) END, a.role);
        IF made.oid IS NOT NULL THEN
            taken := taken || format('%s%s on %s from %s',
                CASE WHEN only_option THEN 'the grant option of ' ELSE '' END, a.privilege_type,
                CASE WHEN name ~ '^_' THEN format('internal %ss', kind)
                    ELSE concat_ws(' ', kind, nullif(split_part(name, '(', 1), '')) END, a.role);
        END IF;
    END LOOP;
    RETURN taken;
END
$$;

-- Reports what was revoked.
CREATE OR REPLACE FUNCTION ratelimit._say_taken(taken text[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(taken) > 0 THEN
        RAISE NOTICE 'revoked what a restore or default privileges had granted' USING DETAIL =
            (SELECT string_agg(privileges || what, E'\n' ORDER BY what)
             FROM (SELECT substr(t, strpos(t, ' on ')), string_agg(DISTINCT split_part(t, ' on ', 1), ', ')
                   FROM unnest(taken) t GROUP BY 1) AS g (what, privileges));
    END IF;
END
$$;

-- Lists what the file makes, drops what only earlier versions made, and revokes grants on restored objects, before
-- anything is made. Other objects in the schema are their owner's: no run changes them.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    -- One a line; an indented line continues the one above. A test compares the list with the catalogs.
    own text := '
function _acquire(ratelimit._limit,ratelimit._state,bigint,float8,bigint)
function _added(ratelimit._limit,ratelimit._state,bigint,float8)
function _after(ratelimit._limit,bigint,float8)
function _all_kinds()
function _allowed(text,text,boolean)
function _answer(ratelimit._decision)
function _ask(text,text,text,text,float8,boolean,jsonb,bigint,float8,timestamptz,text,bigint,boolean)
function _ask_of(ratelimit._ask,jsonb[],int[])
function _asks(jsonb,ratelimit._ask)
function _attend()
function _awaits(ratelimit._limit,float8)
function _bad(text,text,text)
function _bad_config(text,text,text,boolean)
function _bad_hold(text,float8,float8,float8,timestamptz,timestamptz)
function _bad_row(ratelimit._row)
function _bad_state(text,text,text,text)
function _begins_anew(ratelimit._limit,ratelimit._row,bigint)
function _blocked(ratelimit._ask,ratelimit._decision,bigint)
function _boundary(ratelimit._limit,bigint)
function _bounded(ratelimit._limit,float8,bigint)
function _build(text,float8,interval,float8,float8,int,timestamptz,boolean,text,boolean,boolean,text,interval,boolean)
function _called(text)
function _caller()
function _ceil(bigint,bigint)
function _change_lease(text,text,text,jsonb)
function _check(text,text,float8,boolean,boolean)
function _check_as_many(text,float8,float8)
function _check_count(text,float8,text)
function _check_fields(jsonb,text,text[])
function _check_list(jsonb)
function _check_outcome(jsonb)
function _check_page(boolean,int,text,text)
function _check_request(jsonb)
function _check_result(ratelimit.rl_result)
function _check_row(text,text,float8,int,text[],name)
function _check_style(text)
function _check_support(jsonb)
function _check_terms(interval,text,text)
function _check_use(ratelimit._ask,ratelimit._limit)
function _check_used(float8)
function _close(text,text)
function _column(text,text,oid,boolean)
function _column_types(bytea)
function _commit(ratelimit._ask[])
function _confirmed(ratelimit._limit,ratelimit._state,bigint,bigint,float8,boolean)
function _count(jsonb)
function _counted_at(ratelimit._limit,bigint,bigint)
function _counters(ratelimit._limit,ratelimit._state,bigint)
function _credit(ratelimit._limit,ratelimit._state,bigint,float8,timestamptz)
function _current(ratelimit._limit,ratelimit._state,bigint)
function _date(ratelimit._limit,bigint)
function _dated(bigint)
function _dates(ratelimit._limit,jsonb)
function _decide(ratelimit._limit,ratelimit._state,bigint,float8,boolean,bigint)
function _decide_as_many(ratelimit._limit,ratelimit._state,bigint,float8,float8,boolean)
function _decide_ask(ratelimit._ask,bigint)
function _decide_hold(ratelimit._ask,bigint)
function _decide_settlement(ratelimit._ask,bigint)
function _decide_takes(ratelimit._ask,bigint)
function _decided(ratelimit._ask,bigint)
function _decoded(text)
function _defined(text,text,boolean)
function _delete_holds(text,text)
function _delete_idle(text,text,bigint)
function _delete_key(text,text)
function _denied_until(ratelimit._ask)
function _denied(text,ratelimit._decision,text)
function _digits(float8)
function _drop_holds(text,text)
function _due(ratelimit._limit,bigint,float8)
function _duration(text)
function _each_key(jsonb)
function _encoded(text,text)
function _error(text,text,text,text)
function _escaped(text,text)
function _example(text,text,boolean)
function _expire(ratelimit._limit,text,text,boolean)
function _fading(float8,bigint,bigint)
function _far_instant(bigint)
function _far_us(timestamptz)
function _filled(ratelimit._limit,"char",float8,timestamptz,bigint)
function _first_date(jsonb)
function _first_instant(timestamp without time zone,text)
function _first_pass(ratelimit._ask,bigint,bigint)
function _float(numeric)
function _floor(bigint,bigint)
function _free(ratelimit._limit,ratelimit._state,bigint,bigint)
function _fresh(ratelimit._limit,text,text,bigint)
function _github(text,ratelimit.rl_result,numeric)
function _gone(ratelimit._limit,timestamptz[],bigint)
function _grown(ratelimit._ask,bigint)
function _has_state("char")
function _held(ratelimit._limit,ratelimit._row,bigint)
function _hold_of(text,text,text)
function _hold_slots(ratelimit._limit,ratelimit._state,bigint,float8,bigint,bigint)
function _idle(ratelimit._limit,ratelimit._state,bigint,text,text)
function _ietf(text,text,text,numeric)
function _ignores(ratelimit._limit,ratelimit._state,bigint)
function _in_order(bigint[])
function _in_turn(ratelimit._ask,bigint)
function _inserted(ratelimit._ask)
function _initial(ratelimit._limit,bigint,bigint)
function _instant(bigint)
function _is_anew(ratelimit._limit,ratelimit._row,bigint)
function _is_due(ratelimit._limit,ratelimit._row,bigint)
function _is_open(text)
function _is_reset("char",float8,timestamptz)
function _items(text,ratelimit._limit,ratelimit.rl_result,numeric)
function _keyed(text,text,boolean)
function _lapse(ratelimit._limit,ratelimit._row,bigint)
function _lapsed(ratelimit._hold,text[],float8[])
function _lease(text,text,text)
function _left(ratelimit._decision)
function _level(ratelimit._limit,ratelimit._state,bigint)
function _limit_of(ratelimit._limit,jsonb)
function _limit_of_expiry(ratelimit._limit,jsonb,ratelimit._limit)
function _listed(text,text,text,text,boolean,int,bigint)
function _literal(text)
function _live(bigint[],bigint)
function _live_slots(ratelimit._hold,ratelimit._state,bigint)
function _lock(text,text)
function _locked(ratelimit._ask)
function _log(text)
function _log_denial(text,boolean,bigint)
function _log_denials(ratelimit._ask[])
function _look(ratelimit._ask,bigint)
function _look_up(text,text)
function _make_row(text,text)
function _make_type(text,text)
function _meaning(text,jsonb)
function _micros(interval)
function _millis(bigint)
function _misuse(text,text,boolean)
function _month(date)
function _must_lapse(ratelimit._ask,bigint)
function _nearest(bigint)
function _never(ratelimit._ask,bigint)
function _next(ratelimit._limit,bigint)
function _next_expiry(text,text,bigint)
function _no_hold()
function _not_free(ratelimit._ask)
function _not_written(text)
function _now()
function _null(text)
function _number(float8)
function _object(text,text)
function _one(ratelimit._ask)
function _outcomes(ratelimit._ask[],boolean,boolean,boolean)
function _parse(jsonb)
function _passes(ratelimit._limit,bigint,float8,bigint,float8,boolean)
function _passes_at(ratelimit._limit,ratelimit._state,bigint,float8,boolean)
function _peek(ratelimit._ask[])
function _perform(ratelimit._ask[],boolean)
function _period(jsonb)
function _phase(text,text)
function _plan(jsonb)
function _plan_name(jsonb,text)
function _plus(bigint,bigint)
function _present(ratelimit._limit,ratelimit._state,bigint)
function _prunable(ratelimit.ratelimits,bigint)
function _prune_holds(bigint,bigint)
function _raise(text,text,text,text)
function _random_id()
function _read(ratelimit._ask)
function _read_state(ratelimit._limit,jsonb)
function _recounted_at(ratelimit._limit,ratelimit._state,bigint)
function _refilled(ratelimit._limit,ratelimit._state,bigint)
function _refund(ratelimit._limit,ratelimit._state,bigint,float8,timestamptz)
function _reported(ratelimit._limit,ratelimit._state,bigint)
function _reset_at(ratelimit._limit,bigint,float8,bigint)
function _resolve(ratelimit._ask,ratelimit._limit)
function _resolved(ratelimit._limit,bigint)
function _result_of(record)
function _retry(ratelimit._limit,ratelimit._state,bigint,float8,boolean,bigint,float8)
function _returnable(text,float8,float8,float8,timestamptz,timestamptz)
function _returns(ratelimit._limit)
function _rolls_over(ratelimit._limit,ratelimit._state)
function _rotate(numeric,int)
function _rounded(float8,float8,float8)
function _rounded_up(bigint)
function _row_with(ratelimit._row,ratelimit._limit,ratelimit._state)
function _rows_in_turn(ratelimit._ask)
function _run(ratelimit._limit,ratelimit._state,bigint,float8[],boolean[])
function _say_taken(text[])
function _seconds(numeric)
function _server()
function _set_clock(text)
function _settle(text,text,text,text,float8)
function _several(jsonb,boolean,ratelimit._ask,boolean)
function _short(text)
function _shown(bigint)
function _since(bigint,bigint)
function _sooner_filled(ratelimit._decision,ratelimit._limit,ratelimit._row,bigint,float8)
function _span(ratelimit._limit,float8)
function _standing(text,text,boolean,int,text,text)
function _start(jsonb)
function _state_json(ratelimit._state,text)
function _state_of(ratelimit._limit,ratelimit._row,bigint)
function _stored(ratelimit._limit,ratelimit._state)
function _subtract(float8,float8)
function _take(ratelimit._limit,ratelimit._state,bigint,float8,float8,boolean,bigint)
function _take_in_turn(ratelimit._ask)
function _take_late(ratelimit._ask[],float8,float8)
function _take_log(ratelimit._limit,ratelimit._state,bigint,float8)
function _take_out(text,text,text)
function _take_row(text,text,float8,text)
function _take_tokens(ratelimit._limit,ratelimit._state,bigint,float8,boolean)
function _take_window(ratelimit._limit,ratelimit._state,bigint,float8)
function _take_within(ratelimit._ask[],float8,float8)
function _time_of(jsonb)
function _time_of_call(ratelimit.rl_result)
function _times(jsonb)
function _tokens_at(ratelimit._limit,float8,bigint,bigint)
function _transition(text,text,boolean,oid,name)
function _turns(ratelimit._limit,bigint,bigint)
function _type_of(jsonb)
function _undefined_plan(text,text)
function _unsupported(text,text)
function _until_more(ratelimit._limit,ratelimit.rl_result,numeric,numeric)
function _untouched(ratelimit._limit,ratelimit._state,bigint)
function _updated()
function _us(timestamptz)
function _usual_tokens(ratelimit._limit,"char",float8,bigint,float8,timestamptz,bigint)
function _valid(text,text)
function _wait(ratelimit.rl_result)
function _whole(float8)
function _window(ratelimit._limit,bigint)
function _with_flag(ratelimit._limit,text,boolean)
function _with_wait(ratelimit._ask,bigint)
function _word(bytea,int,int)
function _writable(text)
function _write(ratelimit._ask,bigint)
function _write_found(ratelimit._ask)
function _write_hold(ratelimit._hold)
function _write_lapsed(text,text,timestamptz,bigint,text[],float8[])
function _write_row(ratelimit._row)
function _written(text,text,jsonb)
function _wrong_kind(text,text,text,text)
function _xor(numeric,numeric)
function _zones()
function rl_acquire(text,text,float8,boolean,jsonb)
function rl_address_key(inet,int)
function rl_block(text,text,interval,timestamptz,text)
function rl_calculate(jsonb,jsonb,timestamptz,float8,boolean)
function rl_check(text,text,float8,boolean,boolean,jsonb)
function rl_check_all(jsonb,boolean)
function rl_concurrency(int,interval,boolean,text,interval,boolean)
function rl_credit(text,text,float8,timestamptz,jsonb)
function rl_define(text,jsonb,text)
function rl_distribute(int,regclass)
function rl_extend(text,jsonb)
function rl_fixed_window(float8,interval,float8,float8,int,timestamptz,boolean,text,boolean,boolean,text,interval,
    boolean)
function rl_forget(text)
function rl_headers(text,record,text,text,jsonb)
function rl_headers_all(jsonb,text)
function rl_hold(text,text,float8,interval,text,float8,text,boolean,boolean,jsonb)
function rl_hold_all(jsonb,interval,text,text,boolean)
function rl_key(text[])
function rl_limit(text,text,float8,boolean,boolean,jsonb)
function rl_limit_all(jsonb,boolean)
function rl_limit_each(jsonb,interval)
function rl_memory()
function rl_node(text,text)
function rl_prune(int,interval)
function rl_release(text,jsonb)
function rl_replay(jsonb,timestamptz,float8,boolean)
function rl_reset(text,text)
function rl_reset_keys(text)
function rl_save()
function rl_settle(text,float8)
function rl_settle_all(text,jsonb)
function rl_sliding_log(float8,interval,boolean,boolean)
function rl_sliding_window(float8,interval,boolean,text,interval,boolean)
function rl_stats()
function rl_stats_reset(text)
function rl_status(text,text,boolean,int,text,text)
function rl_token_bucket(float8,interval,float8,float8,int,boolean,text,interval,boolean)
function rl_take(text,text,float8,float8,boolean,jsonb)
function rl_top_denied(text,int)
function rl_trigger()
function rl_unblock(text,text)
function rl_undefine(text,text)
function rl_undistribute()
function rl_unlimited(boolean)
function rl_value(text,text,jsonb)
function rl_version()
schema
table ratelimits
table rl_blocks
table rl_config
table rl_holds
table rl_made
table rl_settings
table rl_installed
type _ask
type _decision
type _hold
type _limit
type _row
type _state
type rl_acquire_result
type rl_calculate_result
type rl_hold_all_result
type rl_hold_result
type rl_limit_all_result
type rl_memory_result
type rl_result
type rl_settle_all_result
type rl_stats_result
type rl_status_result
type rl_take_result
type rl_top_denied_result
';
    m record;
    first_run boolean;
    taken text[] := '{}';
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    own := replace(own, E'\n    ', '');
    first_run := to_regclass('ratelimit.rl_made') IS NULL;
    IF first_run THEN
        CREATE TABLE ratelimit.rl_made (
            kind    text COLLATE "C" NOT NULL,
            name    text COLLATE "C" NOT NULL, -- without the schema
            server  bigint,
            oid     oid,   -- NULL: not yet closed; 0: of a restore without this row
            acl     jsonb  -- at the end of the last run; NULL: unknown
        ); -- No key: a dump of the data alone adds the rows of another database.
        COMMENT ON TABLE ratelimit.rl_made IS 'rate limiter: what the file has made, and the grants when it last ran';
        PERFORM ratelimit._close('table', 'rl_made');
    END IF;
    INSERT INTO ratelimit.rl_made (kind, name)
    SELECT split_part(line, ' ', 1), substr(line, strpos(line || ' ', ' ') + 1)
    FROM string_to_table(btrim(own, E'\n'), E'\n') AS made (line)
    WHERE NOT EXISTS (SELECT FROM ONLY ratelimit.rl_made old WHERE btrim(concat_ws(' ', old.kind, old.name)) = line);

    -- Objects without a record: those restored without these rows, but not those of an interrupted run, of which no
    -- function is SECURITY DEFINER yet. A schema made before the first run keeps its grants, unless PUBLIC has one.
    UPDATE ONLY ratelimit.rl_made AS made
    SET server = ratelimit._server(), acl = CASE WHEN was.known THEN o.grants END,
        oid = CASE WHEN was.known THEN o.object ELSE 0 END
    FROM ONLY ratelimit.rl_made AS same CROSS JOIN LATERAL ratelimit._object(same.kind, same.name) o
    LEFT JOIN pg_proc p ON same.kind = 'function' AND p.oid = o.object
    CROSS JOIN LATERAL (SELECT first_run AND NOT o.grants ? '') AS was (known)
    WHERE same.kind = made.kind AND same.name = made.name AND made.oid IS NULL AND o.object IS NOT NULL
      AND same.kind <> 'type' AND CASE WHEN first_run THEN same.kind = 'schema' ELSE p.oid IS NULL OR p.prosecdef END;

    FOR m IN SELECT made.kind, made.name FROM ONLY ratelimit.rl_made made
             WHERE (ratelimit._object(made.kind, made.name)).object IS NOT NULL ORDER BY made.kind, made.name LOOP
        taken := taken || ratelimit._close(m.kind, m.name);
    END LOOP;
    PERFORM ratelimit._say_taken(taken);
    -- Drops what is no longer made.
    FOR m IN SELECT DISTINCT made.name, o.object FROM ONLY ratelimit.rl_made AS made
             CROSS JOIN LATERAL ratelimit._object('function', made.name) o
             WHERE made.kind = 'function' AND strpos(own, format(E'\nfunction %s\n', made.name)) = 0 LOOP
        IF m.object IS NOT NULL THEN EXECUTE format('DROP FUNCTION %s', m.object::regprocedure); END IF;
        DELETE FROM ONLY ratelimit.rl_made old WHERE old.kind = 'function' AND old.name = m.name;
    END LOOP;
    IF EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.oid = to_regnamespace('"ratelimit"')
               AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) THEN
        RAISE EXCEPTION 'other roles can create objects in schema "%"',
            (SELECT nspname FROM pg_namespace WHERE oid = to_regnamespace('"ratelimit"'))
            USING HINT = 'Revoke that, or install into another schema.';
    END IF;
    PERFORM set_config('search_path', path, true);
END
$do$;

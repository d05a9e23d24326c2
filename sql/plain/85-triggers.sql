-- rl_trigger: takes tokens for the rows that a statement writes.

CREATE OR REPLACE FUNCTION ratelimit._misuse(problem text, event text, statement boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    event := CASE WHEN event IN ('DELETE', 'UPDATE') THEN event ELSE 'INSERT' END;
    PERFORM ratelimit._raise('39P01', 'rl_trigger() ' || problem, NULL, format(
        'For example: CREATE TRIGGER limit_messages %s EXECUTE FUNCTION ratelimit.rl_trigger(''sendMessage'', '
        '''key=author'');', CASE WHEN statement THEN format('AFTER %s ON messages REFERENCING %s TABLE AS limited '
        'FOR EACH STATEMENT', event, CASE event WHEN 'DELETE' THEN 'OLD' ELSE 'NEW' END)
        ELSE format('BEFORE %s ON messages FOR EACH ROW', event) END));
END
$$;

-- Finds an option's column, and expressions that read it as text and as a number. They use no cast that the type's
-- owner may have made, since they run as the limits' owner.
CREATE OR REPLACE FUNCTION ratelimit._column(argument text, relation oid, statement boolean, OUT option text,
    OUT name text, OUT as_text text, OUT as_number text) STABLE LANGUAGE plpgsql AS $$
DECLARE
    numbers CONSTANT regtype[] := '{int2,int4,int8,float4,float8,numeric}'::regtype[];
    col record;
BEGIN
    option := substring(argument FROM '^(key|count)=');
    name := substr(argument, length(option) + 2);
    IF option IS NULL THEN
        PERFORM ratelimit._bad('option', format('"%s"', ratelimit._short(argument)),
            '''key=<column>'' and ''count=<column>'', each at most once');
    END IF;
    SELECT a.atttypid::regtype AS type, a.attgenerated AS generated, b.oid::regtype AS base, b.typnamespace INTO col
    FROM pg_attribute a, LATERAL (
        WITH RECURSIVE types AS (SELECT t.* FROM pg_type t WHERE t.oid = a.atttypid
            UNION ALL SELECT t.* FROM types JOIN pg_type t ON t.oid = types.typbasetype WHERE types.typtype = 'd')
        SELECT * FROM types WHERE typtype <> 'd') b
    WHERE a.attrelid = relation AND a.attname = _column.name AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        PERFORM ratelimit._raise('42703', format('column "%s" of table "%s" does not exist', ratelimit._short(name),
            (SELECT relname FROM pg_class WHERE oid = relation)), NULL,
            'Write the name as it is in pg_attribute, without quotes or spaces around it: ''key=author''.');
    ELSIF option = 'count' AND col.base <> ALL (numbers) THEN
        PERFORM ratelimit._bad(option, format('column "%s" of type %s', ratelimit._short(name), col.type),
            'smallint, integer, bigint, real, double precision, numeric, or a domain over one');
    ELSIF col.generated <> '' AND NOT (statement AND col.generated = 's') THEN
        PERFORM ratelimit._bad(option, format('column "%s", which is generated', ratelimit._short(name)),
            'an ordinary column; a stored generated one only AFTER the event FOR EACH STATEMENT, since BEFORE triggers '
            'run before it is computed');
    END IF;
    as_text := format(CASE WHEN col.base = 'numeric'::regtype THEN 'trim_scale(r.%I::numeric)::text'
        WHEN col.typnamespace = 'pg_catalog'::regnamespace THEN 'r.%I::text'
        ELSE 'CASE WHEN r.%1$I IS DISTINCT FROM NULL THEN format(''%%s'', r.%1$I) END' END, name);
    as_number := format(CASE WHEN col.base = 'numeric'::regtype THEN
        'CASE WHEN abs(r.%1$I) > 1e300 AND abs(r.%1$I) < ''Infinity'' THEN sign(r.%1$I) * 1e300 '
        'ELSE r.%1$I END::float8'
        ELSE 'r.%I::float8' END, name);
END
$$;

CREATE OR REPLACE FUNCTION ratelimit._take_row(name text, key text, count double precision, columns text[],
    relation name) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
BEGIN
    IF key IS NULL THEN PERFORM ratelimit._null(format('key column "%s" of table "%s"', columns[1], relation)); END IF;
    IF count IS NULL THEN
        PERFORM ratelimit._null(format('count column "%s" of table "%s"', columns[2], relation));
    END IF;
    PERFORM ratelimit._check(name, key), ratelimit._check_count(NULL, count);
    d := ratelimit._change('rl_limit', name, key, count, false, NULL);
    IF NOT d.ok THEN PERFORM ratelimit._denied(name, d); END IF;
END
$$;

CREATE OR REPLACE FUNCTION ratelimit.rl_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    statement CONSTANT boolean := TG_LEVEL = 'STATEMENT';
    columns text[] := ARRAY[NULL, NULL];
    reads text[] := ARRAY['''''', '1::float8'];
    c record;
    place int;
    transition text;
    query text;
    k text;
    n double precision;
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
        -- OLD has generated columns, as a statement's rows have.
        c := ratelimit._column(TG_ARGV[i], TG_RELID, statement OR TG_OP = 'DELETE');
        place := CASE c.option WHEN 'key' THEN 1 ELSE 2 END;
        IF columns[place] IS NOT NULL THEN
            PERFORM ratelimit._bad('option', format('"%s", given twice', ratelimit._short(TG_ARGV[i])),
                '''key=<column>'' and ''count=<column>'', each at most once');
        END IF;
        columns[place] := c.name;
        reads[place] := CASE place WHEN 1 THEN c.as_text ELSE c.as_number END;
    END LOOP;
    query := format('SELECT %s, %s FROM %s', reads[1], reads[2],
        CASE WHEN statement THEN format('%I r', transition) ELSE '(SELECT ($1).*) r' END);
    IF statement THEN
        -- Sorted by the bytes of keys, so that statements lock keys in the same order. A count out of range stands for
        -- the key's total, and is refused.
        FOR k, n IN EXECUTE format('SELECT k COLLATE "C", CASE WHEN bool_or(n IS NULL) THEN NULL ELSE coalesce(max(n) '
            'FILTER (WHERE NOT (n >= 0 AND n <= 1e15)), sum(n)) END FROM (%s) AS counts (k, n) GROUP BY 1 '
            'ORDER BY 1 NULLS FIRST', query)
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
END
$$;

-- rl_trigger: takes tokens for the rows that a statement writes.

-- Refuses a trigger that is fired otherwise than for rows, and returns the table of a statement's rows.
CREATE OR REPLACE FUNCTION ratelimit._transition(event text, fired text, statement boolean, relation oid, name name)
RETURNS text STABLE LANGUAGE plpgsql AS $$
DECLARE
    rows_of CONSTANT text := CASE event WHEN 'DELETE' THEN 'OLD' ELSE 'NEW' END;
    transition text;
    problem text;
BEGIN
    IF statement THEN
        SELECT CASE event WHEN 'DELETE' THEN t.tgoldtable ELSE t.tgnewtable END INTO transition
        FROM pg_trigger t WHERE t.tgrelid = relation AND t.tgname = $5;
    END IF;
    problem := CASE WHEN event = 'TRUNCATE' THEN 'cannot limit TRUNCATE, which has no rows'
        WHEN fired = 'INSTEAD OF' THEN 'cannot be fired INSTEAD OF an event'
        WHEN fired = 'AFTER' AND NOT statement THEN 'cannot be fired AFTER an event FOR EACH ROW'
        WHEN fired = 'BEFORE' AND statement THEN 'cannot be fired BEFORE an event FOR EACH STATEMENT'
        WHEN statement AND transition IS NULL THEN format('needs REFERENCING %s TABLE to see the rows', rows_of) END;
    IF problem IS NOT NULL THEN
        event := CASE WHEN event IN ('DELETE', 'UPDATE') THEN event ELSE 'INSERT' END;
        PERFORM ratelimit._raise('39P01', 'rl_trigger() ' || problem, NULL, format(
            'For example: CREATE TRIGGER limit_messages %s EXECUTE FUNCTION ratelimit.rl_trigger(''sendMessage'', '
            '''key=author'');', CASE WHEN statement THEN format('AFTER %s ON messages REFERENCING %s TABLE AS limited '
            'FOR EACH STATEMENT', event, rows_of) ELSE format('BEFORE %s ON messages FOR EACH ROW', event) END));
    END IF;
    RETURN transition;
END
$$;

-- The key of a client's address; its network functions check masklen. An address of IPv6 that maps one of IPv4 is that.
@rl_address_key@

-- A key made of several texts, as a JSON array; the extension has the same limits.
@rl_key@ IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    allowed CONSTANT text := '1 to 341 texts';
    missing int;
BEGIN
    IF parts IS NULL THEN
        PERFORM ratelimit._null('parts');
    ELSIF array_ndims(parts) > 1 THEN
        PERFORM ratelimit._bad('parts', format('an array of %s dimensions', array_ndims(parts)), allowed);
    ELSIF cardinality(parts) NOT BETWEEN 1 AND 341 THEN
        PERFORM ratelimit._bad('parts', 'a list of ' || cardinality(parts), allowed);
    END IF;
    missing := array_position(parts, NULL) - array_lower(parts, 1) + 1;
    IF missing IS NOT NULL THEN PERFORM ratelimit._null(format('part %s of the key', missing)); END IF;
    PERFORM ratelimit._check('-', array_to_json(parts)::text);
    RETURN array_to_json(parts);
END
$$;

-- Finds an option's column, and expressions that read it as text and as a number. They use no cast that the type's
-- owner may have made, since they run as the limits' owner.
CREATE OR REPLACE FUNCTION ratelimit._column(option text, name text, relation oid, statement boolean, OUT as_text text,
    OUT as_number text) STABLE LANGUAGE plpgsql AS $$
DECLARE
    numbers CONSTANT regtype[] := '{int2,int4,int8,float4,float8,numeric}'::regtype[];
    col record;
BEGIN
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

-- Checks what a row names. columns: of the name, of the count, and of the key; missing: which of the key's is NULL.
CREATE OR REPLACE FUNCTION ratelimit._check_row(name text, key text, count double precision, missing int,
    columns text[], relation name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF name IS NULL THEN
        PERFORM ratelimit._null(format('name column "%s" of table "%s"', columns[1], relation));
    END IF;
    PERFORM ratelimit._check(name, '');
    IF key IS NULL THEN
        PERFORM ratelimit._null(format('key column "%s" of table "%s"', columns[2 + missing], relation));
    END IF;
    PERFORM ratelimit._check(name, key);
    IF count IS NULL THEN
        PERFORM ratelimit._null(format('count column "%s" of table "%s"', columns[2], relation));
    END IF;
    PERFORM ratelimit._check_count(NULL, count);
END
$$;

-- Takes a key's tokens.
CREATE OR REPLACE FUNCTION ratelimit._take_row(name text, key text, count double precision, message text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    d ratelimit._decision;
BEGIN
    d := (ratelimit._one(ratelimit._ask('rl_limit', 'take', name, key, count))).d;
    IF NOT d.ok THEN PERFORM ratelimit._denied(name, d, message); END IF;
END
$$;

-- With settings on which the text of a key can depend.
@rl_trigger@ LANGUAGE plpgsql SET datestyle = 'ISO, MDY' SET intervalstyle = postgres SET timezone = 'GMT'
SET bytea_output = hex SET extra_float_digits = 1 SET lc_monetary = 'C' SET quote_all_identifiers = off AS $$
DECLARE
    statement CONSTANT boolean := TG_LEVEL = 'STATEMENT';
    -- OLD has generated columns, as a statement's rows have.
    computed CONSTANT boolean := statement OR TG_OP = 'DELETE';
    columns text[] := ARRAY[NULL, NULL];
    named text := quote_literal(TG_ARGV[0]) || '::text';
    counted text := '1::float8';
    keyed text[];
    message text;
    option text;
    given text;
    again boolean;
    transition text;
    query text;
    limited text;
    k text;
    n double precision;
    missing int;
BEGIN
    transition := ratelimit._transition(TG_OP, TG_WHEN, statement, TG_RELID, TG_NAME);
    IF TG_NARGS = 0 THEN
        PERFORM ratelimit._bad('name', 'missing', 'rl_trigger(''<name>'', ''key=<column>'', ''count=<column>'', '
            '''message=<text>''), or ''name=<column>'' in place of ''<name>''');
    ELSIF starts_with(TG_ARGV[0], 'name=') THEN
        columns[1] := substr(TG_ARGV[0], 6);
        named := (ratelimit._column('name', columns[1], TG_RELID, computed)).as_text;
    ELSE
        PERFORM ratelimit._check(TG_ARGV[0], '');
    END IF;
    FOR i IN 1..TG_NARGS - 1 LOOP
        option := substring(TG_ARGV[i] FROM '^(key|count|message)=');
        given := substr(TG_ARGV[i], length(option) + 2);
        IF option = 'key' THEN
            again := keyed IS NOT NULL;
            -- The column of this name, or else those that it lists.
            FOREACH given IN ARRAY CASE WHEN given LIKE '%,%' AND NOT EXISTS (
                SELECT FROM pg_attribute a WHERE a.attrelid = TG_RELID AND a.attname = given AND a.attnum > 0
                AND NOT a.attisdropped) THEN string_to_array(given, ',') ELSE ARRAY[given] END
            LOOP
                columns := columns || given;
                keyed := keyed || (ratelimit._column('key', given, TG_RELID, computed)).as_text;
            END LOOP;
        ELSIF option = 'count' THEN
            counted := (ratelimit._column('count', given, TG_RELID, computed)).as_number;
            again := columns[2] IS NOT NULL;
            columns[2] := given;
        ELSIF given <> '' THEN
            again := message IS NOT NULL;
            message := given;
        ELSE
            again := NULL;
        END IF;
        IF again IS NOT FALSE THEN
            PERFORM ratelimit._bad('option', format('"%s"%s', ratelimit._short(TG_ARGV[i]),
                CASE WHEN again THEN ', given twice' END),
                '''key=<column>'' or ''key=<column>,<column>'', ''count=<column>'' and ''message=<text>'', each at '
                'most once; ''name=<column>'' only first');
        END IF;
    END LOOP;
    IF cardinality(keyed) > 1 THEN
        query := format('array_position(ARRAY[%1$s]::text[], NULL)', array_to_string(keyed, ', '));
        keyed := ARRAY[format('CASE WHEN %s IS NULL THEN array_to_json(ARRAY[%s]::text[])::text END', query,
                              array_to_string(keyed, ', ')), query];
    ELSE
        keyed := ARRAY[coalesce(keyed[1], ''''''), '1'];
    END IF;
    query := format('SELECT %s, %s, %s, %s FROM %s', named, keyed[1], counted, keyed[2],
        CASE WHEN statement THEN format('%I r', transition) ELSE '(SELECT ($1).*) r' END);
    IF statement THEN
        -- All rows are checked before the first call.
        FOR limited, k, n, missing IN EXECUTE format('SELECT * FROM (%s) AS counts (l, k, n, missing) WHERE '
            '(octet_length(l) <= 200 AND octet_length(k) <= 1024 AND n >= 0 AND n <= 1e15 AND l <> '''') IS NOT TRUE',
            query)
        LOOP
            PERFORM ratelimit._check_row(limited, k, n, missing, columns, TG_TABLE_NAME);
        END LOOP;
        -- Sorted by the bytes of names and keys, so that statements lock rows in the same order.
        FOR limited, k, n IN EXECUTE format('SELECT l COLLATE "C", k COLLATE "C", sum(n) '
            'FROM (%s) AS counts (l, k, n, missing) GROUP BY 1, 2 ORDER BY 1, 2', query)
        LOOP
            PERFORM ratelimit._check_count(NULL, n);
            PERFORM ratelimit._take_row(limited, k, n, message);
        END LOOP;
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        EXECUTE query INTO limited, k, n, missing USING OLD;
    ELSE
        EXECUTE query INTO limited, k, n, missing USING NEW;
    END IF;
    PERFORM ratelimit._check_row(limited, k, n, missing, columns, TG_TABLE_NAME);
    PERFORM ratelimit._take_row(limited, k, n, message);
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    RETURN NEW;
END
$$;

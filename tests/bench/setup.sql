-- The template database of every work of the benchmark: the extension, and the usual solutions
-- without it. The competitors' tables have the columns, fill factor and autovacuum settings of
-- rateLimits.

CREATE EXTENSION ratelimit;
SELECT rl_define('allowed', rl_token_bucket(rate => 1000000, period => '1 second')),
       rl_define('denied', rl_token_bucket(rate => 1, period => '1 day')),
       rl_define('memory allowed', rl_token_bucket(rate => 1000000, period => '1 second', store => 'memory')),
       rl_define('memory denied', rl_token_bucket(rate => 1, period => '1 day', store => 'memory')),
       rl_define('saved allowed', rl_token_bucket(rate => 1000000, period => '1 second', store => 'memory', save => '1 second')),
       rl_define('saved denied', rl_token_bucket(rate => 1, period => '1 day', store => 'memory', save => '1 second')),
       rl_define('saved later', rl_token_bucket(rate => 1000000, period => '1 second', store => 'memory', save => '1 hour')),
       rl_define('sharded', rl_token_bucket(rate => 1000000, period => '1 second', shards => 16));

-- The SQL file, in its own schema next to the extension.
\i dist/ratelimit.sql
SELECT ratelimit.rl_define('allowed', ratelimit.rl_token_bucket(rate => 1000000, period => '1 second')),
       ratelimit.rl_define('denied', ratelimit.rl_token_bucket(rate => 1, period => '1 day'));

SELECT format('CREATE TABLE %I (LIKE rateLimits INCLUDING ALL) WITH (%s)', competitor, array_to_string(reloptions, ', '))
FROM pg_class, unnest(ARRAY['bare', 'plpgsql', 'upsert']) competitor
WHERE pg_class.oid = 'rateLimits'::regclass \gexec
-- Their statements leave out the kind, which is the same in every row.
SELECT format('ALTER TABLE %I ALTER kind SET DEFAULT ''t''', competitor)
FROM unnest(ARRAY['bare', 'plpgsql', 'upsert']) competitor \gexec

-- The rows of a limit, keys '1' to 'n', in all tables: full, or empty.
CREATE PROCEDURE fill(name text, n int, tokens double precision,
                      tables text[] DEFAULT '{public.ratelimits, bare, plpgsql, upsert, ratelimit.ratelimits}')
LANGUAGE plpgsql AS $$
DECLARE
    tab text;
BEGIN
    FOREACH tab IN ARRAY tables LOOP
        EXECUTE format('INSERT INTO %s (name, key, kind, value, ts)
                        SELECT $1, n::text, ''t'', $3, clock_timestamp() FROM generate_series(1, $2) n', tab)
            USING name, n, tokens;
    END LOOP;
END $$;

-- What a statement over many keys reads them from.
CREATE TABLE keys AS SELECT n::text AS key FROM generate_series(1, 100000) n;

-- The token bucket as one writes it in PL/pgSQL. rate: tokens a second.
CREATE FUNCTION plpgsql_limit(
    p_name text, p_key text, p_capacity double precision, p_rate double precision, p_count double precision DEFAULT 1,
    OUT ok boolean, OUT remaining double precision, OUT retry_after double precision)
LANGUAGE plpgsql AS $$
DECLARE
    since timestamptz;
    at timestamptz;
BEGIN
    LOOP
        SELECT value, ts INTO remaining, since FROM plpgsql
        WHERE name = p_name AND key = p_key AND shard = 0 FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO plpgsql (name, key, value, ts) VALUES (p_name, p_key, p_capacity - p_count, clock_timestamp())
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            ok := true;
            remaining := p_capacity - p_count;
            RETURN;
        END IF;
    END LOOP;
    at := clock_timestamp();
    remaining := least(p_capacity, remaining + greatest(0, extract(epoch FROM at - since)) * p_rate);
    ok := remaining >= p_count;
    IF ok THEN
        remaining := remaining - p_count;
        UPDATE plpgsql SET value = remaining, ts = at WHERE name = p_name AND key = p_key AND shard = 0;
    ELSE
        retry_after := (p_count - remaining) / p_rate;
    END IF;
END $$;

-- The fewest lines of PL/pgSQL that keep a token bucket.
CREATE FUNCTION eight_lines(p_name text, p_key text, capacity double precision, rate double precision, OUT ok boolean)
LANGUAGE plpgsql AS $$
DECLARE
    bucket plpgsql;
BEGIN
    INSERT INTO plpgsql (name, key, value, ts) VALUES (p_name, p_key, capacity, clock_timestamp()) ON CONFLICT DO NOTHING;
    SELECT * INTO bucket FROM plpgsql WHERE name = p_name AND key = p_key FOR UPDATE;
    bucket.value := least(capacity, bucket.value + extract(epoch FROM clock_timestamp() - bucket.ts) * rate);
    ok := bucket.value >= 1;
    IF ok THEN
        UPDATE plpgsql SET value = bucket.value - 1, ts = clock_timestamp() WHERE name = p_name AND key = p_key;
    END IF;
END $$;

-- What a call costs before it does anything: a C function that looks at none of its arguments. One of LANGUAGE
-- internal is looked for by its name, once a statement, among all of PostgreSQL's in the order of their OIDs, which
-- takes longer than rl_limit for most: this one, of OID 3, is the first, and returns the address of a constant.
CREATE FUNCTION noop(name text, key text DEFAULT '', count double precision DEFAULT 1, reserve boolean DEFAULT false,
                     throws boolean DEFAULT false, config jsonb DEFAULT NULL)
RETURNS boolean LANGUAGE internal VOLATILE AS 'heap_tableam_handler';

-- Rows that are written with a limit, and without.
CREATE TABLE plain_messages (author text, body text);
CREATE TABLE limited_messages (author text, body text);
CREATE TRIGGER limit_messages BEFORE INSERT ON limited_messages
    FOR EACH ROW EXECUTE FUNCTION rl_trigger('allowed', 'key=author');

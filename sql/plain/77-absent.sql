-- Functions that only the extension has, with its signatures: each fails with 0A000, and says what this file has.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    f record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOR f IN SELECT * FROM (VALUES
        ('rl_stats', '', 'SETOF ratelimit.rl_stats_result', 'counts no calls'),
        ('rl_stats_reset', 'name text DEFAULT NULL', 'bigint', 'counts no calls'),
        ('rl_top_denied', 'name text DEFAULT NULL, max_rows integer DEFAULT 10',
            'SETOF ratelimit.rl_top_denied_result', 'counts no calls'),
        ('rl_memory', '', 'ratelimit.rl_memory_result', 'stores every limit in the table'),
        ('rl_save', '', 'bigint', 'stores every limit in the table'),
        ('rl_replay', 'config jsonb, at timestamptz, count double precision DEFAULT 1, reserve boolean DEFAULT false',
            'ratelimit.rl_result WINDOW', 'has rl_calculate() for one call'),
        ('rl_distribute', 'shard_count integer DEFAULT 32, colocate_with regclass DEFAULT NULL', 'SETOF text',
            'knows nothing of Citus'),
        ('rl_undistribute', '', 'void', 'knows nothing of Citus'),
        ('rl_node', 'name text, key text', 'TABLE (host text, port integer)', 'knows nothing of Citus')
    ) AS functions (name, arguments, result, instead) LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION "ratelimit".%s(%s) RETURNS %s LANGUAGE sql AS $$ SELECT %s FROM '
            'ratelimit._unsupported(%L, %L) $$', f.name, f.arguments, f.result,
            CASE WHEN f.result ~ '^TABLE' THEN 'NULL::text, NULL::integer'
                 ELSE 'NULL::' || regexp_replace(replace(f.result, 'void', 'text'), '^SETOF | WINDOW$', '', 'g') END,
            f.name || '()', f.instead);
    END LOOP;
    PERFORM set_config('search_path', path, true);
END
$do$;

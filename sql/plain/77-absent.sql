-- Functions that only the extension has, with its signatures: each fails with 0A000, and says what this file has.
DO LANGUAGE plpgsql $do$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    f record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    -- Those with columns return a row of them, those that count a number.
    FOR f IN SELECT * FROM (VALUES
        ('rl_stats', '', 'TABLE (%s)', 'name text, allowed bigint, denied bigint, denied_in_dry_run bigint, '
            'tokens double precision, since timestamptz', 'counts no calls'),
        ('rl_stats_reset', 'name text DEFAULT NULL', 'bigint', NULL, 'counts no calls'),
        ('rl_top_denied', 'name text DEFAULT NULL, max_rows integer DEFAULT 10', 'TABLE (%s)',
            'name text, key text, denied bigint, error bigint', 'counts no calls'),
        ('rl_memory', '', 'record', 'keys bigint, room bigint, inline_keys bigint, inline_room bigint, '
            'bytes bigint, dropped_idle bigint, dropped_live bigint, since timestamptz, configured bigint, '
            'dropped_calls bigint, saved_keys bigint, saved_room bigint, saved_bytes bigint, unsaved_keys bigint, '
            'unsaved_since timestamptz, save_error text, writer_pid integer, writer_since timestamptz',
            'stores every limit in the table'),
        ('rl_save', '', 'bigint', NULL, 'stores every limit in the table'),
        ('rl_replay', 'config jsonb, at timestamptz, count double precision DEFAULT 1, reserve boolean DEFAULT false',
            'ratelimit.rl_result WINDOW', 'ok boolean, retry_after double precision, retry_at timestamptz, '
            'remaining double precision, capacity double precision, reset_at timestamptz',
            'has rl_calculate() for one call'),
        ('rl_distribute', 'shard_count integer DEFAULT 32, colocate_with regclass DEFAULT NULL', 'SETOF text', NULL,
            'knows nothing of Citus'),
        ('rl_undistribute', '', 'void', NULL, 'knows nothing of Citus'),
        ('rl_node', 'name text, key text', 'TABLE (%s)', 'host text, port integer', 'knows nothing of Citus')
    ) AS functions (name, arguments, result, columns, instead) LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION "ratelimit".%s(%s) RETURNS %s LANGUAGE sql AS $$ SELECT %s FROM '
            'ratelimit._unsupported(%L, %L) u%s $$', f.name,
            concat_ws(', ', nullif(f.arguments, ''),
                CASE f.result WHEN 'record' THEN regexp_replace(f.columns, '(^|, )', E'\\1OUT ', 'g') END),
            format(f.result, f.columns),
            CASE WHEN f.columns IS NOT NULL THEN 'r.*' WHEN f.result ~ 'bigint' THEN 'NULL::bigint'
                 ELSE 'NULL::text' END,
            f.name || '()', f.instead, ', pg_catalog.jsonb_to_record(''{}'') AS r (' || f.columns || ')');
    END LOOP;
    PERFORM set_config('search_path', path, true);
END
$do$;

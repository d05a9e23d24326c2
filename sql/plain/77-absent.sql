-- Functions that only the extension has, under its signatures: each fails with 0A000, and says what this file has.
@rl_stats@ LANGUAGE sql AS $$
    SELECT NULL::ratelimit.rl_stats_result FROM ratelimit._unsupported('rl_stats()', 'counts no calls') $$;
@rl_stats_reset@ LANGUAGE sql AS $$
    SELECT NULL::bigint FROM ratelimit._unsupported('rl_stats_reset()', 'counts no calls') $$;
@rl_top_denied@ LANGUAGE sql AS $$
    SELECT NULL::ratelimit.rl_top_denied_result FROM ratelimit._unsupported('rl_top_denied()', 'counts no calls') $$;
@rl_memory@ LANGUAGE sql AS $$
    SELECT NULL::ratelimit.rl_memory_result
    FROM ratelimit._unsupported('rl_memory()', 'stores every limit in the table') $$;
@rl_save@ LANGUAGE sql AS $$
    SELECT NULL::bigint FROM ratelimit._unsupported('rl_save()', 'stores every limit in the table') $$;
@rl_replay@ WINDOW LANGUAGE sql AS $$
    SELECT NULL::ratelimit.rl_result FROM ratelimit._unsupported('rl_replay()', 'has rl_calculate() for one call') $$;
@rl_distribute@ LANGUAGE sql AS $$
    SELECT NULL::text FROM ratelimit._unsupported('rl_distribute()', 'knows nothing of Citus') $$;
@rl_undistribute@ LANGUAGE sql AS $$
    SELECT NULL::text FROM ratelimit._unsupported('rl_undistribute()', 'knows nothing of Citus') $$;
@rl_node@ LANGUAGE sql AS $$
    SELECT NULL::text, NULL::integer FROM ratelimit._unsupported('rl_node()', 'knows nothing of Citus') $$;

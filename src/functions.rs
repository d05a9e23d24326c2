//! The SQL functions, each declared beside what it does: the arguments are read and checked, one call
//! is made, its answer becomes a row. What a function is for is said in its COMMENT, and in the README.

mod answers;
mod arguments;
mod builders;
mod rl_acquire;
mod rl_block;
mod rl_calculate;
mod rl_define;
mod rl_headers;
mod rl_limit;
mod rl_limit_all;
mod rl_replay;
mod rl_reset;
mod rl_stats;
mod rl_status;
mod rl_trigger;

/// Every one of them.
#[cfg(feature = "pg_test")]
pub const DECLARED: &[crate::pg::declaration::Declaration] = &[
    builders::rl_concurrency,
    builders::rl_fixed_window,
    builders::rl_sliding_log,
    builders::rl_sliding_window,
    builders::rl_token_bucket,
    builders::rl_unlimited,
    rl_acquire::rl_acquire,
    rl_acquire::rl_extend,
    rl_acquire::rl_release,
    rl_block::rl_block,
    rl_block::rl_blocks_changed,
    rl_block::rl_unblock,
    rl_calculate::rl_calculate,
    rl_define::rl_config_changed,
    rl_define::rl_define,
    rl_define::rl_undefine,
    rl_headers::rl_headers,
    rl_limit::rl_check,
    rl_limit::rl_credit,
    rl_limit::rl_limit,
    rl_limit_all::rl_check_all,
    rl_limit_all::rl_limit_all,
    rl_replay::rl_replay,
    rl_reset::rl_prune,
    rl_reset::rl_reset,
    rl_reset::rl_reset_all,
    rl_stats::rl_memory,
    rl_stats::rl_stats,
    rl_stats::rl_stats_reset,
    rl_stats::rl_top_denied,
    rl_status::rl_state,
    rl_status::rl_status,
    rl_trigger::rl_trigger,
];

//! The SQL functions, a file for each subject: each reads and checks its arguments, makes one call, and returns its
//! answer as a row. sql/functions.sql, which creates them, describes them.

mod answers;
mod arguments;
mod blocks;
mod builders;
mod calculate;
mod definitions;
mod forget;
mod headers;
mod holds;
mod keys;
mod leases;
mod limits;
mod prune;
mod replay;
mod reset;
mod several;
mod stats;
mod status;
mod triggers;
mod value;

#[cfg(feature = "server_tests")]
pub use answers::RlResult;

/// All SQL functions.
#[cfg(feature = "server_tests")]
pub const DECLARED: &[crate::declaration::declared::Declaration] = &[
    blocks::rl_block,
    blocks::rl_blocks_changed,
    blocks::rl_unblock,
    builders::rl_concurrency,
    builders::rl_fixed_window,
    builders::rl_sliding_log,
    builders::rl_sliding_window,
    builders::rl_token_bucket,
    builders::rl_unlimited,
    calculate::rl_calculate,
    definitions::rl_config_changed,
    definitions::rl_define,
    definitions::rl_undefine,
    forget::rl_forget,
    headers::rl_headers,
    headers::rl_headers_all,
    holds::rl_hold,
    holds::rl_hold_all,
    holds::rl_settle,
    holds::rl_settle_all,
    keys::rl_key,
    leases::rl_acquire,
    leases::rl_extend,
    leases::rl_release,
    limits::rl_check,
    limits::rl_credit,
    limits::rl_limit,
    limits::rl_take,
    prune::rl_prune,
    replay::rl_replay,
    reset::rl_reset,
    reset::rl_reset_keys,
    several::rl_check_all,
    several::rl_limit_all,
    several::rl_limit_each,
    stats::rl_memory,
    stats::rl_save,
    stats::rl_stats,
    stats::rl_stats_reset,
    stats::rl_top_denied,
    status::rl_status,
    triggers::rl_trigger,
    value::rl_value,
];

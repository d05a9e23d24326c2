//! The guarantees under faults: a server killed under load, backends killed and cancelled, a full disk,
//! a promoted standby, tables rebuilt beside 16 sessions.
//!
//! Each test has a server of its own. `make test ONLY=soak` runs them for a moment, `make soak` for long
//! (RATELIMIT_SOAK): see [`scale`]. Sessions note their takes in a table, in the same transaction, and
//! remember the outcome; `soak/check.rs` compares notes, rows and outcomes.

#[path = "soak/check.rs"]
mod check;
#[path = "soak/crash.rs"]
mod crash;
#[path = "soak/failures.rs"]
mod failures;
#[path = "soak/flood.rs"]
mod flood;
#[path = "load/history.rs"]
mod history;
#[path = "soak/life.rs"]
mod life;
#[path = "soak/memory.rs"]
mod memory;
#[path = "soak/own.rs"]
mod own;
#[path = "load/rules.rs"]
mod rules;
#[path = "soak/saved.rs"]
mod saved;
#[path = "soak/saved_faults.rs"]
mod saved_faults;
#[path = "soak/saved_load.rs"]
mod saved_load;
#[path = "soak/saved_random.rs"]
mod saved_random;
#[path = "soak/saved_stops.rs"]
mod saved_stops;
#[path = "soak/saved_stores.rs"]
mod saved_stores;
#[path = "soak/shared_memory.rs"]
mod shared_memory;
#[path = "soak/standby.rs"]
mod standby;
#[path = "soak/work.rs"]
mod work;

const SESSIONS: usize = 16;

/// Returns an amount: a little, or that of `make soak`.
fn scale<T>(short: T, long: T) -> T {
    if std::env::var_os("RATELIMIT_SOAK").is_some() { long } else { short }
}

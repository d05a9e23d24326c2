//! The guarantees under faults: a server killed under load, backends killed and cancelled, a full disk,
//! a promoted standby, tables rebuilt during the calls of 16 sessions.
//!
//! Each test has a server of its own. `make test ONLY=soak` runs them for a moment, `make soak` for long
//! (TIMES): see [`scale`]. Sessions note their takes in a table, in the same transaction, and
//! remember the outcome; `check.rs` compares notes, rows and outcomes.

mod check;
mod crash;
mod failures;
mod flood;
#[path = "../../server/load/history.rs"]
mod history;
mod life;
mod memory;
mod own;
#[path = "../../server/load/rules.rs"]
mod rules;
mod saved;
mod saved_faults;
mod saved_load;
mod saved_random;
mod saved_stops;
mod saved_stores;
mod shared_memory;
mod standby;
mod work;

const SESSIONS: usize = 16;

/// Returns an amount: a little, or that of `make soak`.
fn scale<T>(short: T, long: T) -> T {
    if ratelimit_tests::is_long() { long } else { short }
}

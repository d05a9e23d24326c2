//! What stays true when things go wrong: a server killed under load, backends killed and cancelled,
//! a disk that is full, a standby that is promoted, tables rebuilt under the feet of 16 sessions.
//!
//! Each test has a server of its own. `make test` runs them for a moment, `make soak` for long
//! (RATELIMIT_SOAK): see [`scale`]. Sessions note what they take in a table of their own, in the same transaction, and
//! remember what they were told; `soak/check.rs` holds the notes, the rows and that against each
//! other.

#[path = "soak/check.rs"]
mod check;
#[path = "soak/crash.rs"]
mod crash;
#[path = "soak/failures.rs"]
mod failures;
#[path = "soak/life.rs"]
mod life;
#[path = "soak/memory.rs"]
mod memory;
#[path = "soak/own.rs"]
mod own;
#[path = "load/rules.rs"]
mod rules;
#[path = "soak/standby.rs"]
mod standby;
#[path = "soak/work.rs"]
mod work;

const SESSIONS: usize = 16;

/// How much of something is to be done: a little, or as much as `make soak` wants.
fn scale<T>(short: T, long: T) -> T {
    if std::env::var_os("RATELIMIT_SOAK").is_some() { long } else { short }
}

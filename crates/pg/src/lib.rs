//! What the extension needs from PostgreSQL, in addition to pgrx and without its guard: calls of SQL functions with
//! their own errors, values, transactions, shared memory and its locks. This crate knows none of the extension's
//! tables and no limit; from `ratelimit_core` it uses the types of times.

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::missing_errors_doc, clippy::expect_used, clippy::panic, clippy::unwrap_used)
)]

pub mod background;
pub mod call;
pub mod clock;
pub mod commit;
pub mod error;
pub mod interrupts;
pub mod memory_context;
pub mod nested_query;
pub mod oom_reserve;
pub mod raise;
pub mod relcache;
pub mod server_log;
pub mod settings;
pub mod shared_memory;
pub mod sort;
pub mod subtransaction;
pub mod transaction;
pub mod unguarded;
pub mod values;

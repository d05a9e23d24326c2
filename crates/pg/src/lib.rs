//! What the extension needs of PostgreSQL: calls of SQL functions with errors of their own, values, transactions,
//! shared memory and its locks, beside pgrx and without its guard. It knows no table of the extension and no limit;
//! of `ratelimit_core` it has the types of times.

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::missing_errors_doc, clippy::expect_used, clippy::panic, clippy::unwrap_used)
)]

pub mod call;
pub mod clock;
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

//! Wrappers for PostgreSQL functions that pgrx lacks or guards: calls of SQL functions with their own errors, values,
//! transactions, shared memory and its locks. This crate knows no table and no limit; from `ratelimit_core` it uses
//! times and refused arguments.

#![warn(missing_docs)]
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::panic, clippy::unwrap_used))]

pub mod background;
pub mod call;
pub mod clock;
pub mod error;
pub mod hooks;
pub mod interrupts;
pub mod memory_context;
pub mod nested_query;
pub mod oom_reserve;
pub mod raise;
pub mod server_log;
pub mod settings;
pub mod shared_memory;
pub mod sort;
pub mod subtransaction;
pub mod transaction;
pub mod unguarded;
pub mod values;

//! The use cases of the extension `ratelimit`: what its calls do to rows, to entries of memory and to leases.
//!
//! It doesn't depend on PostgreSQL: what it needs from its environment are the traits of [`ports`]. The extension
//! implements them with the heap, SPI and shared memory, and tests with ordinary memory.
//!
//! A request is resolved once to a [`Target`](target::Target), which knows its [store](stores): nowhere, a row, rows
//! with shards, or an entry in memory. A [`Change`](change::Change) is a value that a store applies: it locks, decides
//! and writes. How a store reads, which transactions it waits for and what it stores is private to it.

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::panic, clippy::unwrap_used))]

pub mod change;
pub mod error;
pub mod forget;
pub mod holds;
pub mod leases;
pub mod ports;
pub mod prune;
pub mod request;
pub mod several;
pub mod single;
pub mod status;
pub mod stores;
pub mod target;

mod keys;

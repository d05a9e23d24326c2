//! The use cases of the extension `ratelimit`: what its calls do to rows, to entries of memory and to leases.
//!
//! This crate doesn't depend on PostgreSQL: the traits of [`ports`] are all that it needs from its environment. The
//! extension implements them with the heap, SPI and shared memory, tests with ordinary memory.
//!
//! A request is resolved once to a [`Target`](target::Target), which knows its [store](stores): nowhere, a row, rows
//! with shards, or an entry in memory. A change, which is a value, alone decides a call's answer, the state afterwards
//! and the hold afterwards. A call for one limit takes the short way of its store. Calls for several limits, and holds,
//! go through one engine, which reads, locks, decides and writes them together.

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::panic, clippy::unwrap_used))]

pub mod each;
pub mod error;
pub mod holds;
pub mod ports;
pub mod prune;
pub mod request;
pub mod several;
pub mod single;
pub mod status;
pub mod stores;
pub mod target;

mod change;
mod engine;
mod keys;

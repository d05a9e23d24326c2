//! The use cases of the extension `ratelimit`: what its calls do to rows, to entries of memory and to leases.
//!
//! It knows no PostgreSQL: what it needs of where it runs are the traits of [`ports`]. The extension makes them of
//! the heap, SPI and shared memory, and tests of ordinary memory.
//!
//! A request is resolved once to a [`Target`](target::Target), which knows its [home](homes): nowhere, a row, rows
//! with shards, an entry in memory, or slots there. A home has one primitive, to lock, decide and write, which is given
//! what is decided as a closure; how it reads, whom it waits for and what it leaves in the table is its own affair.

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::missing_errors_doc, clippy::expect_used, clippy::panic, clippy::unwrap_used)
)]

pub mod all;
pub mod error;
pub mod homes;
pub mod leases;
pub mod one;
pub mod ports;
pub mod prune;
pub mod request;
pub mod status;
pub mod target;

mod keys;

#[cfg(test)]
mod tests;

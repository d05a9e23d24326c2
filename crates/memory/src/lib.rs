//! What several sessions share in memory: partitions of states, the tallies of names, and the rankings of the keys
//! that are denied most. It doesn't depend on PostgreSQL: the caller provides the memory, the locks, the identity of a
//! session and the time.
//!
//! Everything is valid as zeroed memory and has no pointers, so processes may map a segment at different addresses.
//! What sessions change is atomic or behind a lock ([`Guarded`], [`Partitions`]), which gives `&mut` to the exclusive
//! holder and `&` to the others. So nothing is written through a `&`, and the compiler checks that: only the lock, the
//! partitions and the first access to memory have unsafe code.
//!
//! How it is tried: the unit tests run under [loom](https://docs.rs/loom), which explores the orders of what sessions
//! do (with `cfg(test)` the atomics and cells are loom's); `tests/threads.rs` has threads on ordinary memory, which
//! Miri can run, too.

pub mod saved;
pub mod sketch;
pub mod states;

mod lock;
mod partitions;
mod rankings;
mod sync;
mod tallies;

pub use lock::{Guarded, ReadGuard, ReadWriteLock, WriteGuard};
pub use partitions::{
    PartitionReadGuard, PartitionWriteGuard, Partitions, SavedGuard, SavedPartitions,
};
pub use rankings::{Denied, SharedRankings, TEXT};
pub use tallies::{Count, SharedTallies, Totals};

#[cfg(test)]
mod loom;

//! What several sessions share in memory: partitions of states, the tallies of names, and the rankings of the keys
//! that are denied most. It knows no PostgreSQL: where the memory lies, what locks it, who a session is and what time
//! it is are the caller's.
//!
//! All of it is valid as memory of zeros, and has no pointers: a segment that processes map at different addresses
//! will do. What sessions change is behind a lock ([`Guarded`], [`Partitions`]), which gives `&mut` to who holds it
//! exclusively and `&` to the others, or is atomic. So nothing is ever written behind a `&`, and the compiler says so:
//! unsafe code stands in the lock, in the partitions and where memory is looked at for the first time.
//!
//! How it is tried: the unit tests run under [loom](https://docs.rs/loom), which explores the orders of what sessions
//! do (with `cfg(test)` the atomics and cells are loom's); `tests/threads.rs` has threads on ordinary memory, which
//! Miri can run, too.

mod lock;
mod partitions;
mod rankings;
mod sync;
mod tallies;

pub use lock::{Guarded, ReadGuard, ReadWriteLock, WriteGuard};
pub use partitions::{PartitionReadGuard, PartitionWriteGuard, Partitions};
pub use rankings::{Denied, SharedRankings, TEXT};
pub use tallies::{Count, SharedTallies, Totals};

#[cfg(test)]
mod model;

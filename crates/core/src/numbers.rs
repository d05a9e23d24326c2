//! The numbers of configs and states, each within the range that its field allows.

use crate::Micros;
use crate::fields::{Given, Reader};

/// The largest rate, capacity, maxReserved and count, in tokens.
pub const MAX_TOKENS: f64 = 1e15;
/// The largest rate of a sliding log, which keeps one entry per token.
pub const MAX_LOG: f64 = 10_000.0;
/// The maximum number of slots of a concurrency limit, which keeps one lease for each.
pub const MAX_SLOTS: u32 = 1000;
/// The maximum number of slots of a limit in memory, which are locked together.
pub const MAX_SLOTS_IN_MEMORY: u32 = 100;
/// The maximum number of shards of a limit.
pub const MAX_SHARDS: u32 = 1024;

/// The rate of a limit, in tokens a period.
pub(crate) const RATE: Reader<f64> = Reader {
    allowed: "a number greater than 0, at most 1e15",
    read: |given| given.number(0.0..=MAX_TOKENS).filter(|&rate| rate > 0.0),
};

/// The rate of a sliding log, in tokens a period.
pub(crate) const WHOLE_RATE: Reader<u32> =
    Reader { allowed: "a whole number from 1 to 10000", read: |given| given.whole(MAX_LOG as u32) };

/// A number of tokens, not negative.
pub(crate) const TOKENS: Reader<f64> =
    Reader { allowed: "a number from 0 to 1e15", read: |given| given.number(0.0..=MAX_TOKENS) };

/// The slots of a concurrency limit.
pub(crate) const SLOTS: Reader<u32> =
    Reader { allowed: "a whole number from 1 to 1000", read: |given| given.whole(MAX_SLOTS) };

/// A number of shards.
pub(crate) const SHARDS: Reader<u32> =
    Reader { allowed: "a whole number from 1 to 1024", read: |given| given.whole(MAX_SHARDS) };

/// The value of a state, in tokens.
pub(crate) const AMOUNT: Reader<f64> =
    Reader { allowed: "a finite number", read: |given| given.number(f64::MIN..=f64::MAX) };

/// A stored time: any [`Micros`], a wider range than for a config's `start`, because windows are counted up to the last
/// timestamp.
pub(crate) const EPOCH_MILLIS: Reader<Micros> = Reader {
    allowed: "epoch milliseconds",
    read: |given| epoch_millis(given).map(Micros::from_millis),
};

/// Reads the milliseconds of a stored time.
pub(crate) fn epoch_millis(given: Given) -> Option<f64> {
    const MOST: f64 = i64::MAX as f64 / 1e3;
    given.number(-MOST..=MOST)
}

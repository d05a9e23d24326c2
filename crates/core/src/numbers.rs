//! The numbers of configs and states, each within the range that its field allows.

use serde::{Serialize, Serializer};

use crate::Micros;
use crate::fields::{Given, read_by};
use crate::text::JsonNumber;

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

/// Declares a number by its allowed values, in words and as a condition.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $allowed:literal, $fits:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
        pub(crate) struct $name(pub f64);

        read_by!($name, $allowed, |given| {
            let fits: fn(f64) -> bool = $fits;
            match given {
                Given::Number(number) if fits(number) => Some($name(number)),
                _ => None,
            }
        });

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                JsonNumber(self.0).serialize(serializer)
            }
        }
    };
}

number!(
    /// The rate of a limit, in tokens a period.
    Rate,
    "a number greater than 0, at most 1e15",
    |rate| rate > 0.0 && rate <= MAX_TOKENS
);
number!(
    /// The rate of a sliding log, in tokens a period.
    WholeRate,
    "a whole number from 1 to 10000",
    |rate| (1.0..=MAX_LOG).contains(&rate) && rate.fract() == 0.0
);
number!(
    /// A number of tokens, not negative.
    TokenCount,
    "a number from 0 to 1e15",
    |tokens| (0.0..=MAX_TOKENS).contains(&tokens)
);
number!(
    /// The slots of a concurrency limit.
    SlotCount,
    "a whole number from 1 to 1000",
    |slots| (1.0..=f64::from(MAX_SLOTS)).contains(&slots) && slots.fract() == 0.0
);
number!(
    /// A number of shards.
    ShardCount,
    "a whole number from 1 to 1024",
    |shards| (1.0..=f64::from(MAX_SHARDS)).contains(&shards) && shards.fract() == 0.0
);
number!(
    /// The value of a state, in tokens.
    Amount,
    "a finite number",
    |amount| amount.is_finite()
);
number!(
    /// A stored time: any [`Micros`], a wider range than for a config's `start`, because windows are counted up to the
    /// last timestamp.
    EpochMillis,
    "epoch milliseconds",
    |millis| millis.abs() <= i64::MAX as f64 / 1e3
);

impl From<Micros> for EpochMillis {
    fn from(at: Micros) -> EpochMillis {
        EpochMillis(at.as_millis())
    }
}

impl From<EpochMillis> for Micros {
    fn from(at: EpochMillis) -> Micros {
        Micros::from_millis(at.0)
    }
}

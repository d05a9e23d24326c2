//! Bounds of the tokens in shards while the clock moves or the capacity changes: full shards don't refill while others
//! do, a call with a smaller capacity cuts a shard to its share, and the distribution of tokens is unknown. Only for
//! token buckets, and clocks that don't step back.

use ratelimit_core::config::Definition;
use ratelimit_core::{Limit, Micros};

use crate::oracle::{Applied, Change};

/// The number of millionths in a token.
const MILLION: f64 = 1e6;

/// The bounds of the tokens in a key's shards together, in millionths.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// The most: as if they were one row.
    pub most: i64,
    /// The minimum: the tokens are distributed as unevenly as possible.
    pub least: i64,
    /// The lowest maximum so far.
    pub lowest: i64,
    /// The instant, in microseconds.
    pub at: i64,
}

impl Bounds {
    /// The bounds of a known number of tokens.
    pub fn new(tokens: f64, at: i64) -> Bounds {
        let tokens = (tokens * MILLION).round() as i64;
        Bounds { most: tokens, least: tokens, lowest: tokens, at }
    }

    /// Moves them to a later instant, for shards of these definitions.
    pub fn refill(&mut self, limits: &[Definition], now: Micros) {
        let elapsed = (now.0 - self.at).max(0) as f64;
        self.at = self.at.max(now.0);
        let (most, least) = (self.most, self.least);
        let largest =
            limits.iter().map(|definition| definition.limit.capacity()).fold(0.0, f64::max);
        self.most = i64::MIN;
        self.least = i64::MAX;
        for definition in limits {
            let Limit::TokenBucket(bucket) = &definition.limit else {
                unreachable!("{:?} is no token bucket", definition.limit.kind())
            };
            let refill = MILLION * elapsed * bucket.rate / bucket.period.0 as f64;
            let (capacity, shards) =
                (MILLION * bucket.capacity, f64::from(definition.limit.shards()));
            self.most = self.most.max((most as f64 + refill).min(capacity).round() as i64);
            let shares = (MILLION * largest / shards, capacity / shards);
            let unevenly = refilled_unevenly(least as f64, refill / shards, shares, shards);
            self.least = self.least.min(unevenly.round() as i64);
        }
    }

    /// Moves them past a change.
    pub fn apply(&mut self, limits: &[Definition], effect: &Applied) {
        self.refill(limits, Micros(effect.now));
        let capacity =
            limits.iter().map(|definition| definition.limit.capacity()).fold(0.0, f64::max);
        let capacity = (capacity * MILLION).round() as i64;
        match effect.change {
            Change::Take(count, ..) => {
                self.most -= i64::from(count) * MILLION as i64;
                self.least -= i64::from(count) * MILLION as i64;
            }
            // The part of it that fitted is unknown.
            Change::Credit(count) => {
                self.most = capacity.min(self.most + i64::from(count) * MILLION as i64);
            }
            Change::Reset => (self.most, self.least) = (capacity, capacity),
            _ => {}
        }
        self.lowest = self.lowest.min(self.most);
    }
}

/// The tokens in shards after a refill of each, if before it all but one of them were full or empty. Full ones had the
/// first share, and keep the second.
fn refilled_unevenly(tokens: f64, refill: f64, (share, cut): (f64, f64), shards: f64) -> f64 {
    let full = (tokens / share).floor().clamp(0.0, shards);
    if full == shards {
        return shards * cut;
    }
    let part = tokens - full * share;
    full * cut + cut.min(part + refill) + (shards - full - 1.0) * cut.min(refill)
}

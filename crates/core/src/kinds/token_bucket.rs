//! Token bucket: tokens flow in steadily, up to the capacity.
//!
//! `available = min(value + elapsed * rate / period, capacity)`, after the [article] and
//! [component][code] of Convex, which store the same two numbers. The refill is capped before the
//! count is subtracted: an idle time never buys more than the capacity. A debt counts as ten years'
//! refill at most.
//!
//! [article]: https://stack.convex.dev/rate-limiting
//! [code]: https://github.com/get-convex/rate-limiter/blob/main/src/shared.ts

use super::refill::Refill;
use super::{Level, Tokens, rounded, tolerance};
use crate::Micros;

/// A bucket of `capacity` tokens that refills by `rate` tokens a `period`.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    /// Tokens a period: more than 0, at most 1e15.
    pub rate: f64,
    /// From a millisecond to 1e15 of them.
    pub period: Micros,
    /// The most tokens that accumulate, 0 to 1e15; 0 makes sense with reservations only.
    pub capacity: f64,
    /// The largest debt, 0 to 1e15 tokens; `None`: bounded by a wait of ten years.
    pub max_reserved: Option<f64>,
    /// Into how many shards it is divided, 1 to 1,024.
    pub shards: u32,
}

impl TokenBucket {
    pub(super) fn initial_state(&self, now: Micros) -> Tokens {
        Tokens { value: self.capacity, ts: now, brought: None }
    }

    /// Full, and not ahead of the clock.
    pub(super) fn is_idle(&self, tokens: &Tokens, now: Micros) -> bool {
        tokens.ts <= now && self.refilled(tokens, now).1 >= self.capacity
    }

    /// When the last token comes in.
    pub(super) fn full_at(&self, tokens: &Tokens) -> Option<Micros> {
        self.due(tokens.ts, self.capacity - self.stored_tokens(tokens))
    }
}

impl Refill for TokenBucket {
    fn capacity(&self) -> f64 {
        self.capacity
    }

    fn max_reserved(&self) -> Option<f64> {
        self.max_reserved
    }

    fn refilled(&self, tokens: &Tokens, now: Micros) -> (Micros, f64) {
        let elapsed = now.minus(tokens.ts).0.max(0) as f64;
        let refill = elapsed * self.rate / self.period.0 as f64;
        (tokens.ts.max(now), (self.stored_tokens(tokens) + refill).min(self.capacity))
    }

    fn max_debt(&self, _: Micros) -> f64 {
        let refill = Micros::TEN_YEARS.0 as f64 * self.rate / self.period.0 as f64;
        refill.max(tolerance(self.capacity))
    }

    fn due(&self, ts: Micros, tokens: f64) -> Option<Micros> {
        let span = Micros::ceil_from(tokens.max(0.0) * self.period.0 as f64 / self.rate)?;
        Some(ts.plus(span))
    }

    fn level_of(&self, ts: Micros, tokens: f64, now: Micros) -> Level {
        let missing = self.capacity - tokens;
        // A full one is full now, also where the clock has stepped back behind its state.
        let reset_at =
            if missing <= tolerance(self.capacity) { Some(now) } else { self.due(ts, missing) };
        Level { remaining: rounded(tokens, self.capacity), reset_at }
    }

    fn can_return(&self, _: Micros, _: Micros) -> bool {
        true
    }
}

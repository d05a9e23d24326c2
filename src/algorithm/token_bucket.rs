//! Token bucket: tokens flow in steadily, up to the capacity.
//!
//! `available = min(value + elapsed * rate / period, capacity)`; refill is capped before the count
//! is subtracted, so an idle time never buys more than the capacity.

use super::{Decision, Level, Micros, State, confirmed, left, shown, tolerance};

/// A bucket of `capacity` tokens that refills by `rate` tokens a `period`.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    /// Tokens a period, > 0.
    pub rate: f64,
    pub period: Micros,
    /// The most that accumulates; 0 makes sense with reservations only.
    pub capacity: f64,
    /// The largest debt in tokens; `None`: bounded by a wait of ten years.
    pub max_reserved: Option<f64>,
}

impl TokenBucket {
    pub(super) fn fresh(&self, now: Micros) -> State {
        State { value: self.capacity, ts: now, prior: None, log: None }
    }

    fn available(&self, state: &State, now: Micros) -> f64 {
        let elapsed = now.minus(state.ts).0.max(0) as f64;
        (state.value + elapsed * self.rate / self.period.0 as f64).min(self.capacity)
    }

    /// How long it takes for `tokens` to flow in.
    fn time_for(&self, tokens: f64) -> Option<Micros> {
        Micros::ceil_from(tokens.max(0.0) * self.period.0 as f64 / self.rate)
    }

    /// The largest debt that a reservation may leave.
    fn max_debt(&self) -> f64 {
        let within_ten_years = Micros::TEN_YEARS.0 as f64 * self.rate / self.period.0 as f64;
        self.max_reserved.map_or(within_ten_years, |bound| bound.min(within_ten_years))
    }

    /// The level of a bucket that holds `value` tokens, refilling from `from` on.
    fn level_of(&self, value: f64, from: Micros) -> Level {
        let tolerance = tolerance(self.capacity);
        let missing = self.capacity - value;
        let reset_at = if missing <= tolerance {
            Some(from)
        } else {
            self.time_for(missing).map(|wait| from.plus(wait))
        };
        Level { remaining: shown(value, tolerance), reset_at }
    }

    pub(super) fn level(&self, state: &State, now: Micros) -> Level {
        self.level_of(self.available(state, now), now.max(state.ts))
    }

    pub(super) fn decide(&self, state: &State, now: Micros, count: f64, reserve: bool) -> Decision {
        let tolerance = tolerance(self.capacity);
        let max_debt = if reserve { self.max_debt() } else { 0.0 };
        let available = self.available(state, now);
        let passes = |available: f64| available - count >= -max_debt - tolerance;

        if !passes(available) {
            let retry_after = if count > self.capacity + max_debt + tolerance {
                None
            } else {
                // A stored time ahead of the clock (it stepped back) delays the refill until then.
                let ahead = state.ts.minus(now).max(Micros(0));
                let wait = self.time_for(count - max_debt - available).map(|wait| wait.plus(ahead));
                confirmed(wait, |wait| passes(self.available(state, now.plus(wait))))
            };
            return Decision::denied(retry_after, self.level(state, now));
        }

        // Stored times never move back, except one that is further ahead of the clock than a
        // whole refill: then the clock was wrong, and keeping it would stop the refill for longer.
        let wrong = self
            .time_for(self.capacity - state.value)
            .is_some_and(|to_full| state.ts.minus(now) > to_full);
        let ts = if wrong { now } else { state.ts.max(now) };
        let value = left(available, count);
        let retry_after = if value < -tolerance {
            self.time_for(-value).map(|wait| ts.plus(wait).minus(now))
        } else {
            None
        };
        Decision {
            ok: true,
            retry_after,
            level: self.level_of(value, ts),
            state: (count > 0.0).then_some(State { value, ts, prior: None, log: None }),
        }
    }
}

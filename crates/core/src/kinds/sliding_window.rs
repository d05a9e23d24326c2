//! Sliding window: two counters approximate a window that moves with the clock.
//!
//! `used = prior * (share of the previous window that the sliding one still overlaps) + value`,
//! windows aligned to the epoch; allowed iff `used + count <= rate`. It assumes that the previous
//! window was used evenly: the approximation that [Cloudflare] described and [Upstash] ships.
//!
//! [Cloudflare]: https://blog.cloudflare.com/counting-things-a-lot-of-different-things/
//! [Upstash]: https://upstash.com/docs/redis/sdks/ratelimit-ts/algorithms

use super::{Counters, Decision, Level, State, confirmed, rounded, subtract, tolerance};
use crate::Micros;

/// At most about `rate` tokens in any `period`.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    /// Tokens a period: more than 0, at most 1e15.
    pub rate: f64,
    /// From a millisecond to 1e15 of them.
    pub period: Micros,
}

impl SlidingWindow {
    pub(super) fn initial_state(&self, now: Micros) -> Counters {
        Counters { value: 0.0, prior: 0.0, ts: now.floor_to(self.period) }
    }

    /// Nothing used in the window of `now` or the one before, and none of it ahead of the clock.
    pub(super) fn is_idle(&self, stored: &Counters, now: Micros) -> bool {
        let Counters { ts, value, prior } = self.counters(stored, now);
        ts <= now && value == 0.0 && prior == 0.0
    }

    /// When neither the window of then nor the one before it was used.
    pub(super) fn unused_at(&self, stored: &Counters) -> Micros {
        let Counters { ts, value, prior } = self.counters(stored, stored.ts);
        match (value == 0.0, prior == 0.0) {
            (false, _) => ts.plus(self.period).plus(self.period),
            (true, false) => ts.plus(self.period),
            (true, true) => ts,
        }
    }

    /// The counters, moved on to the window of `now`.
    fn counters(&self, stored: &Counters, now: Micros) -> Counters {
        let stored = Counters { ts: stored.ts.floor_to(self.period), ..*stored };
        let ts = now.floor_to(self.period);
        match ts.minus(stored.ts) {
            passed if passed <= Micros(0) => stored,
            passed if passed == self.period => Counters { ts, value: 0.0, prior: stored.value },
            _ => Counters { ts, value: 0.0, prior: 0.0 },
        }
    }

    fn used(&self, counters: Counters, now: Micros) -> f64 {
        let into = now.minus(counters.ts).0.max(0) as f64 / self.period.0 as f64;
        counters.prior * (1.0 - into).max(0.0) + counters.value
    }

    fn passes(&self, stored: &Counters, now: Micros, count: f64) -> bool {
        self.used(self.counters(stored, now), now) + count <= self.rate + tolerance(self.rate)
    }

    fn level_of(&self, counters: Counters, now: Micros) -> Level {
        let remaining = (self.rate - self.used(counters, now)).max(0.0);
        Level {
            remaining: rounded(remaining, self.rate),
            reset_at: Some(counters.ts.plus(self.period)),
        }
    }

    pub(super) fn level(&self, stored: &Counters, now: Micros) -> Level {
        self.level_of(self.counters(stored, now), now)
    }

    /// When a call that is denied now can first pass.
    fn retry_after(
        &self,
        stored: &Counters,
        counters: Counters,
        now: Micros,
        count: f64,
    ) -> Option<Micros> {
        if count > self.rate + tolerance(self.rate) {
            return None;
        }
        // Where in a window is what `fading` leaves small enough beside `fixed`?
        let into = |fading: f64, fixed: f64| {
            let share = 1.0 - (self.rate - fixed - count) / fading;
            Micros::ceil_from(share.clamp(0.0, 1.0) * self.period.0 as f64)
        };
        let at =
            if counters.value + count <= self.rate + tolerance(self.rate) && counters.prior > 0.0 {
                into(counters.prior, counters.value).map(|span| counters.ts.plus(span))
            } else {
                into(counters.value, 0.0).map(|span| counters.ts.plus(self.period).plus(span))
            };
        confirmed(at.map(|at| at.minus(now).max(Micros(0))), |wait| {
            self.passes(stored, now.plus(wait), count)
        })
    }

    pub(super) fn decide(&self, stored: &Counters, now: Micros, count: f64) -> Decision {
        let mut counters = self.counters(stored, now);
        if count == 0.0 {
            // There is no debt to be in: a rate that was lowered below what is used is none.
            let level = self.level_of(counters, now);
            return Decision { ok: true, retry_after: None, level, state: None };
        }
        if !self.passes(stored, now, count) {
            return Decision::denied(
                self.retry_after(stored, counters, now, count),
                self.level_of(counters, now),
            );
        }
        counters.value = -subtract(-counters.value, count);
        Decision {
            ok: true,
            retry_after: None,
            level: self.level_of(counters, now),
            state: Some(State::Counters(counters)),
        }
    }
}

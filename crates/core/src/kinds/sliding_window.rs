//! Sliding window: two counters approximate a window that moves with the clock.
//!
//! `used = prior * (share of the previous window that the sliding one still overlaps) + value`,
//! windows aligned to the epoch; a call passes if `used + count <= rate`. It assumes that the previous
//! window was used evenly: the approximation that [Cloudflare] described and [Upstash] ships.
//!
//! [Cloudflare]: https://blog.cloudflare.com/counting-things-a-lot-of-different-things/
//! [Upstash]: https://upstash.com/docs/redis/sdks/ratelimit-ts/algorithms

use serde_json::{Value, json};

use super::limit_kind::{Formulas, LimitKind, soon};
use super::{Counters, Decision, Level, State, confirmed, rounded, subtract, tolerance};
use crate::Micros;
use crate::config::times::PERIOD;
use crate::fields::{FieldError, Fields};
use crate::numbers::RATE;
use crate::text::number;

/// At most about `rate` tokens in any `period`.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    /// Tokens a period: more than 0, at most 1e15.
    pub rate: f64,
    /// From a millisecond to 1e15 milliseconds.
    pub period: Micros,
}

impl SlidingWindow {
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

    /// The time when a call denied now can first pass.
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
        // The time into a window at which `fading` has left enough next to `fixed`.
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
}

impl LimitKind for SlidingWindow {
    const NAME: &'static str = "sliding window";
    const WITH_ARTICLE: &'static str = "a sliding window";
    const FIELDS: &'static [&'static str] = &["rate", "period"];

    type State = Counters;

    fn read(fields: &Fields) -> Result<SlidingWindow, FieldError> {
        let rate = fields.required("rate", &RATE)?;
        Ok(SlidingWindow { rate, period: fields.required("period", &PERIOD)? })
    }

    fn resolved(&self, _: Micros) -> Value {
        json!({ "rate": number(self.rate), "period": self.period.to_json() })
    }

    fn policy(&self) -> (f64, Option<Micros>) {
        (self.rate, Some(self.period))
    }

    fn initial_state(&self, now: Micros, _: Micros) -> Counters {
        Counters { value: 0.0, prior: 0.0, ts: now.floor_to(self.period) }
    }

    /// No tokens used in the window of `now` or the one before, and none ahead of the clock.
    fn is_idle(&self, stored: &Counters, now: Micros, _: Micros) -> bool {
        let Counters { ts, value, prior } = self.counters(stored, now);
        ts <= now && value == 0.0 && prior == 0.0
    }

    /// The time when neither its window nor the one before was used.
    fn unused_at(&self, stored: &Counters) -> Option<Micros> {
        let Counters { ts, value, prior } = self.counters(stored, stored.ts);
        Some(match (value == 0.0, prior == 0.0) {
            (false, _) => ts.plus(self.period).plus(self.period),
            (true, false) => ts.plus(self.period),
            (true, true) => ts,
        })
    }
}

impl Formulas for SlidingWindow {
    #[inline]
    fn counts(&self, counters: &Counters, now: Micros) -> bool {
        counters.ts <= soon(now).max(now.plus(self.period).plus(self.period))
    }

    fn take(&self, stored: &Counters, now: Micros, count: f64, _: bool) -> Decision {
        let mut counters = self.counters(stored, now);
        if count == 0.0 {
            // No debt, even if the rate was lowered below the tokens used.
            return Decision::unchanged(self.level_of(counters, now));
        }
        if !self.passes(stored, now, count) {
            return Decision::denied(
                self.retry_after(stored, counters, now, count),
                self.level_of(counters, now),
            );
        }
        counters.value = -subtract(-counters.value, count);
        Decision::admitted(self.level_of(counters, now), Some(State::Counters(counters)))
    }

    fn level(&self, stored: &Counters, now: Micros) -> Level {
        self.level_of(self.counters(stored, now), now)
    }
}

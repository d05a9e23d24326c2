//! Fixed window: `rate` tokens arrive at once when the window turns, up to the capacity.
//!
//! Whole windows since `ts` add `rate` each; with a capacity above the rate, what was not used
//! rolls over. The stored `ts` is the start of a window and so fixes the phase while a row lives.

use super::{Decision, Level, Micros, State, confirmed, left, shown, tolerance};

/// `rate` tokens a window of `period`, of which at most `capacity` accumulate.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    /// Tokens a window, > 0.
    pub rate: f64,
    pub period: Micros,
    /// The most that accumulates; 0 makes sense with reservations only.
    pub capacity: f64,
    /// The largest debt in tokens; `None`: bounded by a wait of ten years.
    pub max_reserved: Option<f64>,
    pub start: Start,
}

/// Where the windows of a new row begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// Boundaries lie at this instant plus `k * period`, for every integer k.
    At(Micros),
    /// A window begins at the take that finds the limit full.
    FirstRequest,
    /// The phase is the caller's: derived from name and key.
    Derived,
}

impl FixedWindow {
    pub(super) fn fresh(&self, now: Micros, phase: Micros) -> State {
        let ts = match self.start {
            Start::At(start) => self.boundary(start, now),
            Start::FirstRequest => now,
            Start::Derived => self.boundary(phase, now),
        };
        State { value: self.capacity, ts, prior: None, log: None }
    }

    /// The last instant `phase + k * period` at or before `now`.
    fn boundary(&self, phase: Micros, now: Micros) -> Micros {
        let since = (now.0 as i128 - phase.0 as i128).rem_euclid(self.period.0 as i128);
        now.minus(Micros(since as i64))
    }

    /// `windows` whole windows after `ts`; `None` past what an instant can hold.
    fn after(&self, ts: Micros, windows: f64) -> Option<Micros> {
        Micros::ceil_from(windows * self.period.0 as f64)
            .and(self.period.0.checked_mul(windows as i64))
            .and_then(|span| ts.0.checked_add(span))
            .map(Micros)
    }

    /// Turns the window: its start, and the tokens in it.
    fn turned(&self, state: &State, now: Micros) -> (Micros, f64) {
        let windows = now.minus(state.ts).0.max(0) / self.period.0;
        let available = (state.value + windows as f64 * self.rate).min(self.capacity);
        (Micros(state.ts.0 + windows * self.period.0), available)
    }

    /// How many windows must begin for `tokens` to arrive.
    fn windows_for(&self, tokens: f64) -> f64 {
        ((tokens - tolerance(self.capacity)) / self.rate).ceil().max(0.0)
    }

    fn level_of(&self, value: f64, ts: Micros, now: Micros) -> Level {
        let tolerance = tolerance(self.capacity);
        let full = value >= self.capacity - tolerance;
        let reset_at = if full && self.start == Start::FirstRequest {
            Some(now) // no window has begun
        } else {
            self.after(ts, 1.0)
        };
        Level { remaining: shown(value, tolerance), reset_at }
    }

    pub(super) fn level(&self, state: &State, now: Micros) -> Level {
        let (ts, available) = self.turned(state, now);
        self.level_of(available, ts, now)
    }

    /// Whether a call passes, and if so after which wait its reserved tokens are there.
    fn passes(
        &self,
        (ts, available): (Micros, f64),
        now: Micros,
        count: f64,
        reserve: bool,
    ) -> Option<Micros> {
        let tolerance = tolerance(self.capacity);
        let value = available - count;
        if value >= -tolerance {
            return Some(Micros(0));
        }
        if !reserve || value < -self.max_reserved.unwrap_or(f64::INFINITY) - tolerance {
            return None;
        }
        let wait = self.after(ts, self.windows_for(-value))?.minus(now);
        (wait <= Micros::TEN_YEARS).then_some(wait)
    }

    /// When a call that is denied now can first pass.
    fn retry_after(
        &self,
        state: &State,
        (ts, available): (Micros, f64),
        now: Micros,
        count: f64,
        reserve: bool,
    ) -> Option<Micros> {
        let max_debt = if reserve { self.max_reserved.unwrap_or(f64::INFINITY) } else { 0.0 };
        if count > self.capacity + max_debt + tolerance(self.capacity) {
            return None;
        }
        let enough = self.after(ts, self.windows_for(count - max_debt - available))?;
        let at = if reserve {
            // The reserved tokens' own due time must come within ten years.
            let due = self.after(ts, self.windows_for(count - available))?;
            enough.max(due.minus(Micros::TEN_YEARS))
        } else {
            enough
        };
        confirmed(Some(at.minus(now).max(Micros(0))), |wait| {
            let then = now.plus(wait);
            self.passes(self.turned(state, then), then, count, reserve).is_some()
        })
    }

    pub(super) fn decide(&self, state: &State, now: Micros, count: f64, reserve: bool) -> Decision {
        let (mut ts, available) = self.turned(state, now);
        let full = available >= self.capacity - tolerance(self.capacity);
        if full && self.start == Start::FirstRequest {
            ts = now;
        } else if ts > now {
            // A stored start that is further ahead of the clock than it takes to fill up means
            // that the clock was wrong: go back to the window of now, in the same phase.
            let to_full = self.windows_for(self.capacity - state.value);
            if self.after(now, to_full).is_some_and(|end| ts > end) {
                ts = self.boundary(ts, now);
            }
        }
        let Some(wait) = self.passes((ts, available), now, count, reserve) else {
            let turned = self.turned(state, now);
            return Decision::denied(
                self.retry_after(state, turned, now, count, reserve),
                self.level_of(available, turned.0, now),
            );
        };
        let value = left(available, count);
        Decision {
            ok: true,
            retry_after: (wait > Micros(0)).then_some(wait),
            level: self.level_of(value, ts, now),
            state: (count > 0.0).then_some(State { value, ts, prior: None, log: None }),
        }
    }
}

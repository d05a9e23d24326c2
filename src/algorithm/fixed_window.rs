//! Fixed window: `rate` tokens arrive at once when the window turns, up to the capacity.
//!
//! Whole windows since `ts` add `rate` each; with a capacity above the rate, what was not used
//! rolls over. The stored `ts` is the start of a window and so fixes the phase while a row lives.

use super::refill::Refill;
use super::{Level, Micros, State, shown, tolerance};

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
    /// Over how many rows it is spread, 1 to 1,024.
    pub shards: u32,
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

    /// Full, not ahead of the clock, and in the phase that a new row would have.
    pub(super) fn is_idle(&self, state: &State, now: Micros, phase: Micros) -> bool {
        let (ts, tokens) = self.refilled(state, now);
        let in_phase = self.start == Start::FirstRequest || ts == self.fresh(now, phase).ts;
        ts <= now && tokens >= self.capacity && in_phase
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

    fn is_full(&self, tokens: f64) -> bool {
        tokens >= self.capacity - tolerance(self.capacity)
    }
}

impl Refill for FixedWindow {
    fn capacity(&self) -> f64 {
        self.capacity
    }

    fn max_reserved(&self) -> Option<f64> {
        self.max_reserved
    }

    fn refilled(&self, state: &State, now: Micros) -> (Micros, f64) {
        let windows = now.minus(state.ts).0.max(0) / self.period.0;
        let tokens = (state.value + windows as f64 * self.rate).min(self.capacity);
        (Micros(state.ts.0 + windows * self.period.0), tokens)
    }

    fn due(&self, ts: Micros, tokens: f64) -> Option<Micros> {
        // Half the tolerance is left for what comes after: that many windows do suffice.
        let windows = ((tokens - tolerance(self.capacity) / 2.0) / self.rate).ceil();
        self.after(ts, windows.max(0.0))
    }

    fn taken_at(&self, ts: Micros, available: f64, now: Micros) -> Micros {
        if self.start == Start::FirstRequest && self.is_full(available) {
            return now;
        }
        // A start that is further ahead of the clock than it takes to fill up means that the clock
        // was wrong: go back to the window of now, in the same phase.
        let full = self.due(now, self.capacity - available);
        if full.is_some_and(|full| ts > full) { self.boundary(ts, now) } else { ts }
    }

    fn level_of(&self, ts: Micros, tokens: f64, now: Micros) -> Level {
        let reset_at = if self.start == Start::FirstRequest && self.is_full(tokens) {
            Some(now) // no window has begun
        } else {
            self.after(ts, 1.0)
        };
        Level { remaining: shown(tokens, self.capacity), reset_at }
    }

    /// What an earlier window gave ended with it.
    fn returns(&self, taken_at: Micros, ts: Micros) -> bool {
        taken_at >= ts
    }
}

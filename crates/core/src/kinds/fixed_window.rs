//! Fixed window: `rate` tokens are added at the start of each window, up to the capacity.
//!
//! `available = min(value + windows * rate, capacity)`, where `windows` have begun since `ts`, after
//! the [article] and [component][code] of Convex; with a capacity above the rate, what was not used
//! rolls over. The stored `ts` is the start of a window, and the next window follows from it.
//!
//! What was used of a window stays used when the config changes. The state tells it: beside `value` it has what
//! the window brought ([`Tokens::brought`]), which is this config's `min(rate, capacity)` unless it has changed. A
//! config that brings more gives the difference at once, one that brings less takes it from what is left, and
//! makes no debt; a credit then counts against what was used beyond it. A window that has ended keeps what it brought:
//! the new config counts from the next one. A state without it, as that of the component has none, keeps its value.
//!
//! With overage a call passes beyond what is there, into a debt that ends with its window.
//!
//! [article]: https://stack.convex.dev/rate-limiting
//! [code]: https://github.com/get-convex/rate-limiter/blob/main/src/shared.ts

use super::calendar::Calendar;
use super::refill::Refill;
use super::{Level, Tokens, rounded, tolerance};
use crate::Micros;

/// `rate` tokens a window, of which at most `capacity` accumulate.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    /// Tokens a window: more than 0, at most 1e15.
    pub rate: f64,
    /// When windows turn.
    pub windows: Windows,
    /// The most tokens that accumulate, 0 to 1e15; 0 makes sense with reservations only.
    pub capacity: f64,
    /// The largest debt, 0 to 1e15 tokens; `None`: bounded by a wait of ten years.
    pub max_reserved: Option<f64>,
    /// Into how many shards it is divided, 1 to 1,024.
    pub shards: u32,
    /// Whether calls pass beyond what is there, until the window turns.
    pub overage: bool,
}

/// When windows turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Windows {
    /// At a fixed distance. A state's `ts` fixes the phase while it lives.
    Every {
        /// From a millisecond to 1e15 of them.
        period: Micros,
        /// Where the windows of a new state begin.
        start: Start,
    },
    /// On local dates.
    Calendar(Calendar),
}

/// Where the windows of a new state begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// Boundaries lie at this instant plus `k * period`, for every integer k.
    At(Micros),
    /// A window begins at the take that finds the limit full.
    FirstRequest,
    /// At the `phase` that the caller gives to
    /// [`initial_state`](crate::Limit::initial_state), derived from name and key.
    Derived,
}

impl Windows {
    /// How long a window is; `None` for months, whose length is not fixed.
    pub(super) fn length(&self) -> Option<Micros> {
        match self {
            Windows::Every { period, .. } => Some(*period),
            Windows::Calendar(calendar) => calendar.length(),
        }
    }

    /// The start of the window that contains `now`; of a fixed length, windows lie in `phase`.
    fn window_start(&self, phase: Micros, now: Micros) -> Micros {
        match self {
            Windows::Every { period, .. } => {
                let since = (now.0 as i128 - phase.0 as i128).rem_euclid(period.0 as i128);
                now.minus(Micros(since as i64))
            }
            Windows::Calendar(calendar) => calendar.window_start(now),
        }
    }

    /// How many windows have begun after `ts` and by `now`, and the start of the last of them; of
    /// the one at `ts` where there is none.
    fn turns(&self, ts: Micros, now: Micros) -> (i64, Micros) {
        match self {
            Windows::Every { period, .. } => {
                let windows = now.minus(ts).0.max(0) / period.0;
                (windows, Micros(ts.0 + windows * period.0))
            }
            Windows::Calendar(calendar) => calendar.turns(ts, now),
        }
    }

    /// How many windows turn after `ts` within ten years of the last instant before the first of
    /// them; infinite where none does.
    fn turns_in_ten_years(&self, ts: Micros) -> f64 {
        let Some(next) = self.after(ts, 1.0) else { return f64::INFINITY };
        let last = next.minus(Micros(1)).plus(Micros::TEN_YEARS);
        self.turns(ts, last).0 as f64
    }

    /// The start of the window that begins `windows` turns after `ts`; `None` past what an instant
    /// or a date can hold.
    fn after(&self, ts: Micros, windows: f64) -> Option<Micros> {
        match self {
            Windows::Every { period, .. } => Micros::ceil_from(windows * period.0 as f64)
                .and(period.0.checked_mul(windows as i64))
                .and_then(|span| ts.0.checked_add(span))
                .map(Micros),
            Windows::Calendar(calendar) => calendar.after(ts, windows),
        }
    }
}

impl FixedWindow {
    pub(super) fn initial_state(&self, now: Micros, phase: Micros) -> Tokens {
        let ts = match self.windows {
            Windows::Every { start: Start::FirstRequest, .. } => now,
            Windows::Every { start: Start::At(start), .. } => self.windows.window_start(start, now),
            _ => self.windows.window_start(phase, now),
        };
        Tokens { value: self.capacity, ts, brought: Some(self.brings()) }
    }

    /// Full, not ahead of the clock, and in the phase that a new state would have.
    pub(super) fn is_idle(&self, stored: &Tokens, now: Micros, phase: Micros) -> bool {
        let (ts, tokens) = self.refilled(stored, now);
        let in_phase = self.awaits_request(tokens) || ts == self.initial_state(now, phase).ts;
        ts <= now && tokens >= self.capacity && in_phase && self.overused(stored, ts) == 0.0
    }

    /// The tokens that were used of the window that begins at `ts` beyond what it brings now. Nothing is left of it
    /// then, which is all that a capacity of 0 holds.
    pub(super) fn overused(&self, stored: &Tokens, ts: Micros) -> f64 {
        let used = stored.brought.map_or(0.0, |brought| brought - stored.value.max(0.0));
        if ts == stored.ts { (used - self.brings()).max(0.0) } else { 0.0 }
    }

    /// What a window brings where none is left.
    pub(super) fn brings(&self) -> f64 {
        self.rate.min(self.capacity)
    }

    /// When the window with the last token begins.
    pub(super) fn full_at(&self, stored: &Tokens) -> Option<Micros> {
        let missing = self.capacity - self.stored_tokens(stored);
        let at = match self.recounted_at(stored, stored.ts) {
            Some(turn) if missing > 0.0 => {
                turn.max(self.due(stored.ts, self.capacity - self.rolls_over(stored))?)
            }
            _ => self.due(stored.ts, missing)?,
        };
        let (ts, tokens) = self.refilled(stored, at);
        // It may leave half a tolerance open.
        let is_full = tokens >= self.capacity && self.overused(stored, ts) == 0.0;
        if is_full { Some(at) } else { self.windows.after(ts, 1.0) }
    }

    /// What is left of stored tokens when their window turns: of an overage nothing. A config that has changed since
    /// counts from the next window.
    pub(super) fn rolls_over(&self, stored: &Tokens) -> f64 {
        let tokens = self.bounded(stored.value, stored.ts);
        if self.overage { tokens.max(0.0) } else { tokens }
    }

    /// Whether no window has begun: its limit is full, and the next take begins one.
    fn awaits_request(&self, tokens: f64) -> bool {
        matches!(self.windows, Windows::Every { start: Start::FirstRequest, .. })
            // Of a large limit the tolerance is many tokens, which a request has taken.
            && tokens >= self.capacity - tolerance(self.capacity).min(1e-6)
    }
}

impl Refill for FixedWindow {
    fn capacity(&self) -> f64 {
        self.capacity
    }

    fn max_reserved(&self) -> Option<f64> {
        self.max_reserved
    }

    fn overage(&self) -> bool {
        self.overage
    }

    fn value_of(&self, stored: &Tokens) -> f64 {
        let Some(brought) = stored.brought else { return stored.value };
        let more = self.brings() - brought;
        // What more was used than this config brings is no debt.
        if more >= -stored.value.max(0.0) { stored.value + more } else { stored.value.min(0.0) }
    }

    fn stored(&self, value: f64, ts: Micros, before: &Tokens) -> Tokens {
        // In the same window what was used stays, also where it is more than this config brings, while nothing is
        // left of it.
        let used = |brought| brought - before.value.max(0.0);
        let same = ts == before.ts && value <= 0.0;
        let at_least = before.brought.filter(|_| same).map_or(0.0, used);
        Tokens { value, ts, brought: Some(self.brings().max(at_least)) }
    }

    fn refilled(&self, stored: &Tokens, now: Micros) -> (Micros, f64) {
        let (windows, ts) = self.windows.turns(stored.ts, now);
        let tokens = if windows > 0 { self.rolls_over(stored) } else { self.stored_tokens(stored) };
        (ts, (tokens + windows as f64 * self.rate).min(self.capacity))
    }

    fn recounted_at(&self, stored: &Tokens, ts: Micros) -> Option<Micros> {
        let changes = ts == stored.ts && self.rolls_over(stored) != self.stored_tokens(stored);
        if changes { self.windows.after(ts, 1.0) } else { None }
    }

    fn given_back(&self, stored: &Tokens, ts: Micros, available: f64, count: f64) -> Tokens {
        let more = available + count;
        // First what was used beyond what this config brings, of which nothing else would be left.
        let overused = self.overused(stored, ts);
        let against = overused.min(more.max(0.0));
        let value = (more - against).min(self.capacity);
        if against == 0.0 {
            return self.stored(value, ts, stored);
        }
        Tokens { value, ts, brought: Some(self.brings() + (overused - against)) }
    }

    fn max_debt(&self, ts: Micros) -> f64 {
        // As `due` counts windows, less the last bits, which would be a window more.
        let tolerance = tolerance(self.capacity);
        let most = self.windows.turns_in_ten_years(ts) * self.rate + tolerance / 2.0;
        (most * (1.0 - 4.0 * f64::EPSILON)).max(tolerance)
    }

    fn due(&self, ts: Micros, tokens: f64) -> Option<Micros> {
        // Half the tolerance is left for what comes after: that many windows do suffice.
        let windows = ((tokens - tolerance(self.capacity) / 2.0) / self.rate).ceil();
        self.windows.after(ts, windows.max(0.0))
    }

    fn whole_refill(&self, stored: &Tokens, now: Micros) -> Option<Micros> {
        let least = self.stored_tokens(stored).min(self.rolls_over(stored));
        let missing = self.capacity - if self.overage { least.max(0.0) } else { least };
        // Of the window that it is in at least, also where nothing accumulates.
        self.due(now, missing.max(self.capacity).max(self.rate))
    }

    fn stored_ts(&self, ts: Micros, available: f64, now: Micros) -> Micros {
        if self.awaits_request(available) { ts.max(now) } else { ts }
    }

    fn level_of(&self, ts: Micros, tokens: f64, now: Micros) -> Level {
        let reset_at =
            if self.awaits_request(tokens) { Some(now) } else { self.windows.after(ts, 1.0) };
        Level { remaining: rounded(tokens, self.capacity), reset_at }
    }

    /// What an earlier window gave ended with it.
    fn can_return(&self, taken_at: Micros, ts: Micros) -> bool {
        taken_at >= ts
    }
}

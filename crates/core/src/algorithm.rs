//! The four algorithms, pure: what a limit holds at a time, and whether a call passes.
//!
//! Owns the types that all kinds share and [`decide`]. Time and the stored state are arguments, so
//! there is no clock here, no table, and nothing of pgrx or Postgres.

mod calendar;
mod fixed_window;
mod refill;
mod sharded;
mod sliding_log;
mod sliding_window;
mod token_bucket;

pub use calendar::{Calendar, Unit, local_date, zone};
pub use fixed_window::{FixedWindow, Start, Windows};
pub use sharded::{Shards, first_pass};
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;

use std::fmt;

use crate::Micros;

use refill::Refill;

/// A validated limit of one kind. Build one through `config`, which checks every range.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
}

/// The kinds of limits, as configs name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`TokenBucket`].
    TokenBucket,
    /// [`FixedWindow`].
    FixedWindow,
    /// [`SlidingWindow`].
    SlidingWindow,
    /// [`SlidingLog`].
    SlidingLog,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] =
        [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog];

    /// The name that a config has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::TokenBucket => "token bucket",
            Kind::FixedWindow => "fixed window",
            Kind::SlidingWindow => "sliding window",
            Kind::SlidingLog => "sliding log",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a limit remembers between calls: the columns of a row of `rateLimits`.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Token bucket and fixed window: tokens at `ts`, negative in debt. Sliding window: what the
    /// window that began at `ts` used. Sliding log: how many tokens the log holds.
    pub value: f64,
    /// When `value` was counted; for the window kinds, the window's start.
    pub ts: Micros,
    /// Sliding window only: what the window before used.
    pub prior: Option<f64>,
    /// Sliding log only: one entry a token, oldest first.
    pub log: Option<Vec<Micros>>,
}

/// What is in a limit at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Tokens; negative: debt.
    pub remaining: f64,
    /// When the limit is full again if nobody consumes; for the window kinds, when the window
    /// turns. `None`: not within what a timestamp can hold.
    pub reset_at: Option<Micros>,
}

/// The outcome of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub ok: bool,
    /// Denied: the span after which the same call passes if nobody else consumes, `None` if it
    /// never can. Allowed: `None`, or with a reservation the wait before the work may be done.
    pub retry_after: Option<Micros>,
    /// The limit after this call; unchanged by a denial.
    pub level: Level,
    /// The state to store; `None` where nothing changes: denied, or a count of zero.
    pub state: Option<State>,
}

impl Decision {
    fn denied(retry_after: Option<Micros>, level: Level) -> Decision {
        Decision { ok: false, retry_after, level, state: None }
    }
}

impl Limit {
    /// The most that the limit holds, in tokens.
    pub fn capacity(&self) -> f64 {
        match self {
            Limit::TokenBucket(limit) => limit.capacity,
            Limit::FixedWindow(limit) => limit.capacity,
            Limit::SlidingWindow(limit) => limit.rate,
            Limit::SlidingLog(limit) => limit.rate as f64,
        }
    }

    /// What a limit gives in the long run: a rate in tokens, and the period that it is for; `None`
    /// where that has no fixed length. A day counts as 24 hours.
    pub fn policy(&self) -> (f64, Option<Micros>) {
        match self {
            Limit::TokenBucket(limit) => (limit.rate, Some(limit.period)),
            Limit::FixedWindow(limit) => (limit.rate, limit.windows.length()),
            Limit::SlidingWindow(limit) => (limit.rate, Some(limit.period)),
            Limit::SlidingLog(limit) => (limit.rate.into(), Some(limit.period)),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Limit::TokenBucket(_) => Kind::TokenBucket,
            Limit::FixedWindow(_) => Kind::FixedWindow,
            Limit::SlidingWindow(_) => Kind::SlidingWindow,
            Limit::SlidingLog(_) => Kind::SlidingLog,
        }
    }

    /// Whether only whole counts can be taken: the sliding log keeps an entry a token.
    pub fn whole_counts(&self) -> bool {
        matches!(self, Limit::SlidingLog(_))
    }

    /// The state of a limit that nobody has used: full. `phase` is any boundary of the windows of
    /// a fixed window without a `start` of its own.
    pub fn initial_state(&self, now: Micros, phase: Micros) -> State {
        match self {
            Limit::TokenBucket(limit) => limit.initial_state(now),
            Limit::FixedWindow(limit) => limit.initial_state(now, phase),
            Limit::SlidingWindow(limit) => limit.initial_state(now),
            Limit::SlidingLog(limit) => limit.initial_state(now),
        }
    }

    /// Whether a stored state means something to this kind: token bucket and fixed window carry
    /// over into each other, to or from a sliding kind a limit starts fresh.
    pub fn accepts(&self, state: &State) -> bool {
        match self {
            Limit::TokenBucket(_) | Limit::FixedWindow(_) => {
                state.prior.is_none() && state.log.is_none()
            }
            Limit::SlidingWindow(_) => state.prior.is_some() && state.log.is_none(),
            Limit::SlidingLog(_) => state.prior.is_none() && state.log.is_some(),
        }
    }

    /// Whether a state says no more than none would: from `now` on, every call would be answered
    /// the same without it. `phase` as in [`fresh`](Limit::fresh).
    pub fn is_idle(&self, state: &State, now: Micros, phase: Micros) -> bool {
        match self {
            Limit::TokenBucket(limit) => limit.is_idle(state, now),
            Limit::FixedWindow(limit) => limit.is_idle(state, now, phase),
            Limit::SlidingWindow(limit) => limit.is_idle(state, now),
            Limit::SlidingLog(limit) => limit.is_idle(state, now),
        }
    }

    /// What the limit holds at `now` if nothing is taken.
    pub fn level(&self, state: &State, now: Micros) -> Level {
        match self {
            Limit::TokenBucket(limit) => limit.level(state, now),
            Limit::FixedWindow(limit) => limit.level(state, now),
            Limit::SlidingWindow(limit) => limit.level(state, now),
            Limit::SlidingLog(limit) => limit.level(state, now),
        }
    }
}

/// Whether `count` tokens can be taken from `state` at `now`, and the state after it.
///
/// `count` is finite and not negative. With `reserve`, token bucket and fixed window may go into
/// debt; the sliding kinds ignore it. `state` is one that the limit [`carries`](Limit::carries).
pub fn decide(limit: &Limit, state: &State, now: Micros, count: f64, reserve: bool) -> Decision {
    match limit {
        Limit::TokenBucket(limit) => limit.decide(state, now, count, reserve),
        Limit::FixedWindow(limit) => limit.decide(state, now, count, reserve),
        Limit::SlidingWindow(limit) => limit.decide(state, now, count),
        Limit::SlidingLog(limit) => limit.decide(state, now, count),
    }
}

/// Gives back `count` tokens that were taken and not used: debt first, never above the capacity. A
/// negative count takes without asking. `taken_at` is when they were taken: what a fixed window
/// gave before the current one began does not come back. `None` for the sliding kinds, which have
/// no tokens to give back to.
///
/// The decision is always `ok`; where a debt remains it says after which wait it is gone.
pub fn credit(
    limit: &Limit,
    state: &State,
    now: Micros,
    count: f64,
    taken_at: Option<Micros>,
) -> Option<Decision> {
    match limit {
        Limit::TokenBucket(limit) => Some(limit.credit(state, now, count, taken_at)),
        Limit::FixedWindow(limit) => Some(limit.credit(state, now, count, taken_at)),
        Limit::SlidingWindow(_) | Limit::SlidingLog(_) => None,
    }
}

/// By how many tokens a float may miss without deciding anything: 1e-9 of the capacity, at least
/// 1e-9. The residue stays in the stored value, so it never adds up: a plain `value >= count` lost
/// a grant in a million, this one none.
fn tolerance(capacity: f64) -> f64 {
    1e-9 * capacity.max(1.0)
}

/// What is left of `available` tokens. A count too small to change so large a float takes its last
/// bit instead: nothing is free.
fn left(available: f64, count: f64) -> f64 {
    let left = available - count;
    if left == available && count > 0.0 { available.next_down() } else { left }
}

/// A number of tokens as shown, of at most `capacity`: a whole one where only float error keeps it
/// from being one. Of a large limit the tolerance is many tokens, so here a millionth is the most.
fn shown(tokens: f64, capacity: f64) -> f64 {
    let whole = tokens.round();
    let near = (tokens - whole).abs() <= tolerance(capacity).min(1e-6);
    // Adding zero turns -0 into 0.
    if near && whole <= capacity { whole + 0.0 } else { tokens }
}

/// Turns a computed wait into one that provably ends in a pass: the float that it was computed
/// with may have missed the instant by its last bits, so the answer is tried, and moved on.
fn confirmed(wait: Option<Micros>, passes: impl Fn(Micros) -> bool) -> Option<Micros> {
    let mut wait = wait?;
    for _ in 0..4 {
        if passes(wait) {
            return Some(wait);
        }
        wait = wait.plus(Micros(1.max(wait.0 >> 50)));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_take_is_free() {
        assert_eq!(left(3.0, 1.0), 2.0);
        assert_eq!(left(3.0, 0.0), 3.0);
        assert!(left(1e15, 0.01) < 1e15);
    }

    #[test]
    fn shown_hides_float_error_only() {
        assert_eq!(shown(2.9999999999, 3.0), 3.0);
        assert_eq!(shown(-1e-10, 1.0), 0.0);
        assert!(shown(-1e-10, 1.0).is_sign_positive());
        assert_eq!(shown(2.99, 3.0), 2.99);
        assert_eq!(shown(0.999, 1e9), 0.999);
        assert_eq!(shown(2.9999999999, 2.9999999999), 2.9999999999);
    }
}

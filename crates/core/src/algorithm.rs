//! The algorithms: what a limit holds at a time, and whether a call passes.
//!
//! Owns the types that all kinds share, [`decide`] and [`credit`]. Time and state are arguments.
//!
//! | kind | state | a burst is bounded by | source |
//! |---|---|---|---|
//! | [`TokenBucket`] | 2 numbers | `capacity`, and `rate` a period on top | [Convex], [its code][convex-code] |
//! | [`FixedWindow`] | 3 numbers | `capacity` a window, twice that around a turn | [Convex], [its code][convex-code] |
//! | [`SlidingWindow`] | 3 numbers | about `rate` in any period | [Cloudflare], [Upstash] |
//! | [`SlidingLog`] | a time for each token | exactly `rate` in any period | [Figma] |
//! | [`Concurrency`] | an id and a time for each lease | exactly `slots` at once | see there |
//! | [`Unlimited`](Limit::Unlimited) | none | nothing | |
//!
//! [Convex]: https://stack.convex.dev/rate-limiting
//! [convex-code]: https://github.com/get-convex/rate-limiter/blob/main/src/shared.ts
//! [Cloudflare]: https://blog.cloudflare.com/counting-things-a-lot-of-different-things/
//! [Upstash]: https://upstash.com/docs/redis/sdks/ratelimit-ts/algorithms
//! [Figma]: https://www.figma.com/blog/an-alternative-approach-to-rate-limiting/
//!
//! # Time
//!
//! A state does not go back in time: where the clock shows less than the state has seen, a call is decided at
//! the state's own time, which stays, and nothing flows in until the clock has passed it. So whatever the clock
//! does, no more is admitted than up to the greatest instant that was seen.
//!
//! A state that is too far ahead was left by a clock that was wrong, and counts as if there were none. How far
//! that is, `Limit::horizon` says: an hour, or longer where the limit looks back or takes to fill up for longer. A
//! lease of a concurrency limit stays, since it has a holder.
//!
//! # Floats
//!
//! Tokens are floats, and a comparison of them allows 1e-9 of the capacity, at least 1e-9. What a
//! call misses by stays in the state, so that errors never add up: without the tolerance one call
//! in a million was denied for the last bit of a sum, with it none.

mod calendar;
mod concurrency;
mod fixed_window;
mod refill;
mod sharded;
mod sliding_log;
mod sliding_window;
mod state;
mod token_bucket;

pub use calendar::{Calendar, Unit, local_date, zone};
pub use concurrency::{Concurrency, Lease};
pub use fixed_window::{FixedWindow, Start, Windows};
pub use sharded::{Shards, first_pass};
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use state::{Counters, Leases, Log, Shape, State, Tokens};
pub use token_bucket::TokenBucket;

use std::borrow::Cow;
use std::fmt;

use crate::Micros;

use refill::Refill;

/// A clock that steps back by less is one that is being set, and no state is given up for it.
const HOUR: Micros = Micros(3_600 * 1_000_000);

/// A limit of one kind. Make one by [`config::parse`](crate::config::parse), which checks every range:
/// what is out of them has no meaning here.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// Tokens flow in steadily, up to a capacity.
    TokenBucket(TokenBucket),
    /// Tokens come when a window turns.
    FixedWindow(FixedWindow),
    /// A window that moves with the clock, counted approximately.
    SlidingWindow(SlidingWindow),
    /// A window that moves with the clock, counted exactly.
    SlidingLog(SlidingLog),
    /// So many at once.
    Concurrency(Concurrency),
    /// None: every call passes, and nothing is remembered.
    Unlimited,
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
    /// [`Concurrency`].
    Concurrency,
    /// [`Limit::Unlimited`].
    Unlimited,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [
        Kind::TokenBucket,
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingLog,
        Kind::Concurrency,
        Kind::Unlimited,
    ];

    /// The name that a config has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::TokenBucket => "token bucket",
            Kind::FixedWindow => "fixed window",
            Kind::SlidingWindow => "sliding window",
            Kind::SlidingLog => "sliding log",
            Kind::Concurrency => "concurrency",
            Kind::Unlimited => "unlimited",
        }
    }

    /// A limit of the kind, in a sentence.
    pub fn with_article(self) -> &'static str {
        match self {
            Kind::TokenBucket => "a token bucket",
            Kind::FixedWindow => "a fixed window",
            Kind::SlidingWindow => "a sliding window",
            Kind::SlidingLog => "a sliding log",
            Kind::Concurrency => "a concurrency limit",
            Kind::Unlimited => "an unlimited one",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is in a limit at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Tokens, at most the capacity; negative: debt; infinite without a limit.
    pub remaining: f64,
    /// When the limit is full again if nobody consumes; for the window kinds, when the window
    /// turns. `None`: not within what a timestamp can hold.
    pub reset_at: Option<Micros>,
}

/// The outcome of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Whether the tokens were taken.
    pub ok: bool,
    /// Denied: the span after which the same call passes if nobody else consumes, and but for the
    /// tolerance not before; `None` if it never can. Allowed: `None`, or with a
    /// reservation the wait before the work may be done.
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
    /// The most that the limit holds, in tokens; infinite without a limit.
    pub fn capacity(&self) -> f64 {
        match self {
            Limit::TokenBucket(limit) => limit.capacity,
            Limit::FixedWindow(limit) => limit.capacity,
            Limit::SlidingWindow(limit) => limit.rate,
            Limit::SlidingLog(limit) => limit.rate as f64,
            Limit::Concurrency(limit) => limit.slots.into(),
            Limit::Unlimited => f64::INFINITY,
        }
    }

    /// What the limit gives in the long run: a rate in tokens, and the period that it is for; `None`
    /// where that has no fixed length. A day counts as 24 hours.
    pub fn policy(&self) -> (f64, Option<Micros>) {
        match self {
            Limit::TokenBucket(limit) => (limit.rate, Some(limit.period)),
            Limit::FixedWindow(limit) => (limit.rate, limit.windows.length()),
            Limit::SlidingWindow(limit) => (limit.rate, Some(limit.period)),
            Limit::SlidingLog(limit) => (limit.rate.into(), Some(limit.period)),
            Limit::Concurrency(limit) => (limit.slots.into(), None),
            Limit::Unlimited => (f64::INFINITY, None),
        }
    }

    /// How long an empty state takes to be full again, a month counted as a twelfth of a leap year; of a concurrency
    /// limit, how long a lease is held.
    pub fn time_to_full(&self) -> Micros {
        const MONTH: Micros = Micros(Micros::YEAR.0 / 12);
        let periods = |count: f64, period: Micros| Micros((count * period.0 as f64) as i64);
        match self {
            Limit::TokenBucket(limit) => periods(limit.capacity / limit.rate, limit.period),
            Limit::FixedWindow(limit) => {
                let length = match &limit.windows {
                    Windows::Calendar(Calendar { unit: Unit::Months, every, .. }) => {
                        periods(*every as f64, MONTH)
                    }
                    windows => windows.length().unwrap_or(MONTH),
                };
                periods((limit.capacity / limit.rate).ceil(), length)
            }
            Limit::SlidingWindow(limit) => limit.period,
            Limit::SlidingLog(limit) => limit.period,
            Limit::Concurrency(limit) => limit.ttl,
            Limit::Unlimited => Micros(0),
        }
    }

    /// Whether half of the limit or more is used, by a state that has just been changed.
    pub fn is_half_used(&self, state: &State) -> bool {
        let used = match state {
            _ if *self == Limit::Unlimited => return false,
            State::Tokens(tokens) => return 2.0 * tokens.value <= self.capacity(),
            // The window before counts in part.
            State::Counters(counters) => counters.value + counters.prior,
            State::Log(_) | State::Leases(_) => state.value(),
        };
        2.0 * used >= self.capacity()
    }

    /// The kind of the limit.
    pub fn kind(&self) -> Kind {
        match self {
            Limit::TokenBucket(_) => Kind::TokenBucket,
            Limit::FixedWindow(_) => Kind::FixedWindow,
            Limit::SlidingWindow(_) => Kind::SlidingWindow,
            Limit::SlidingLog(_) => Kind::SlidingLog,
            Limit::Concurrency(_) => Kind::Concurrency,
            Limit::Unlimited => Kind::Unlimited,
        }
    }

    /// Whether only whole counts can be taken: the sliding log keeps an entry a token, and a slot is not
    /// divided.
    pub fn whole_counts(&self) -> bool {
        matches!(self, Limit::SlidingLog(_) | Limit::Concurrency(_))
    }

    /// The state of a limit that nobody has used: full. `phase` is any boundary of the windows of
    /// a fixed window without a `start` of its own, such as [`phase`](crate::phase()); other limits
    /// don't look at it.
    pub fn initial_state(&self, now: Micros, phase: Micros) -> State {
        match self {
            Limit::TokenBucket(limit) => State::Tokens(limit.initial_state(now)),
            Limit::FixedWindow(limit) => State::Tokens(limit.initial_state(now, phase)),
            Limit::SlidingWindow(limit) => State::Counters(limit.initial_state(now)),
            Limit::SlidingLog(_) => State::Log(SlidingLog::initial_state(now)),
            Limit::Concurrency(_) => State::Leases(Concurrency::initial_state(now)),
            Limit::Unlimited => State::Tokens(Tokens { value: 0.0, ts: now, brought: None }),
        }
    }

    /// Whether a stored state of this shape means something to this kind, whose config may have changed since: token
    /// bucket and fixed window accept each other's, with tokens and time. A state that isn't accepted counts as none,
    /// and is replaced by the [initial one](Limit::initial_state).
    pub fn accepts(&self, shape: Shape) -> bool {
        match self {
            Limit::TokenBucket(_) | Limit::FixedWindow(_) => shape == Shape::Tokens,
            Limit::SlidingWindow(_) => shape == Shape::Counters,
            Limit::SlidingLog(_) => shape == Shape::Log,
            Limit::Concurrency(_) => shape == Shape::Leases,
            Limit::Unlimited => false,
        }
    }

    /// Whether the limit is idle: from `now` on every call is answered as from the initial state,
    /// so the stored one can be deleted. `phase` as in [`initial_state`](Limit::initial_state).
    pub fn is_idle(&self, state: &State, now: Micros, phase: Micros) -> bool {
        self.current(state, now).is_idle(now, phase)
    }

    /// When the limit becomes [idle](Limit::is_idle) if nobody consumes: the earliest instant from `now`
    /// on, but for the last bits of a long span. `None`: never, as a window that turns in another phase,
    /// or not within what an instant can hold. `phase` as in [`initial_state`](Limit::initial_state).
    pub fn idle_at(&self, state: &State, now: Micros, phase: Micros) -> Option<Micros> {
        let current = self.current(state, now);
        let at = match &current {
            Current::TokenBucket(limit, tokens) => limit.full_at(tokens),
            Current::FixedWindow(limit, tokens) => limit.full_at(tokens),
            Current::SlidingWindow(limit, counters) => Some(limit.unused_at(counters)),
            Current::SlidingLog(limit, log) => Some(limit.unused_at(log)),
            Current::Concurrency(_, leases) => Some(Concurrency::unused_at(leases)),
            Current::Unlimited => Some(now),
        };
        let wait = at?.max(now).minus(now);
        // What counts now counts ever after.
        let idle = |wait| current.is_idle(now.plus(wait), phase);
        confirmed(Some(wait), idle).map(|wait| now.plus(wait))
    }

    /// What the limit holds at `now`.
    pub fn level(&self, state: &State, now: Micros) -> Level {
        match &self.current(state, now) {
            Current::TokenBucket(limit, tokens) => limit.level(tokens, now),
            Current::FixedWindow(limit, tokens) => limit.level(tokens, now),
            Current::SlidingWindow(limit, counters) => limit.level(counters, now),
            Current::SlidingLog(limit, log) => limit.level(log, now),
            Current::Concurrency(limit, leases) => limit.level(leases, now),
            Current::Unlimited => NO_LIMIT,
        }
    }

    /// The instant that a call at `now` is decided at: that, or the later one that the state has seen, as far as it
    /// tells; of windows, the start of the last one.
    pub fn present(&self, state: &State, now: Micros) -> Micros {
        let seen = match &self.current(state, now) {
            Current::TokenBucket(_, tokens) | Current::FixedWindow(_, tokens) => Some(tokens.ts),
            Current::SlidingWindow(_, counters) => Some(counters.ts),
            Current::SlidingLog(_, log) => log.entries.last().copied(),
            // It has no time of its own.
            Current::Concurrency(..) | Current::Unlimited => None,
        };
        seen.map_or(now, |seen| seen.max(now))
    }

    /// The state that counts at `now`: the stored one, or a full one in the same windows where that is of no shape
    /// that the limit [accepts](Limit::accepts), or beyond the horizon: later than it can be if the clock was only set.
    ///
    /// The horizon is an hour from now, and no less than a whole refill, the time in which this state is full, its
    /// debt included, or the whole windows that the kind looks back on.
    #[inline]
    fn current<'a>(&'a self, state: &'a State, now: Micros) -> Current<'a> {
        let soon = now.plus(HOUR);
        // `None`: later than an instant can be.
        let within = |horizon: Option<Micros>, seen| horizon.is_none_or(|horizon| seen <= horizon);
        match (self, state) {
            (Limit::TokenBucket(limit), State::Tokens(tokens))
                if tokens.ts <= soon || within(limit.whole_refill(tokens, now), tokens.ts) =>
            {
                Current::TokenBucket(limit, Cow::Borrowed(tokens))
            }
            (Limit::FixedWindow(limit), State::Tokens(tokens))
                if tokens.ts <= soon || within(limit.whole_refill(tokens, now), tokens.ts) =>
            {
                Current::FixedWindow(limit, Cow::Borrowed(tokens))
            }
            (Limit::SlidingWindow(limit), State::Counters(counters))
                if counters.ts <= soon.max(now.plus(limit.period).plus(limit.period)) =>
            {
                Current::SlidingWindow(limit, *counters)
            }
            (Limit::SlidingLog(limit), State::Log(log))
                if log.entries.last() <= Some(&soon.max(now.plus(limit.period))) =>
            {
                Current::SlidingLog(limit, Cow::Borrowed(log))
            }
            // A lease has a holder, and stays.
            (Limit::Concurrency(limit), State::Leases(leases)) => {
                Current::Concurrency(limit, Cow::Borrowed(leases))
            }
            (Limit::TokenBucket(limit), _) => {
                Current::TokenBucket(limit, Cow::Owned(limit.initial_state(now)))
            }
            (Limit::FixedWindow(limit), _) => {
                Current::FixedWindow(limit, Cow::Owned(limit.initial_state(now, state.ts())))
            }
            (Limit::SlidingWindow(limit), _) => {
                Current::SlidingWindow(limit, limit.initial_state(now))
            }
            (Limit::SlidingLog(limit), _) => {
                Current::SlidingLog(limit, Cow::Owned(SlidingLog::initial_state(now)))
            }
            (Limit::Concurrency(limit), _) => {
                Current::Concurrency(limit, Cow::Owned(Concurrency::initial_state(now)))
            }
            (Limit::Unlimited, _) => Current::Unlimited,
        }
    }
}

/// A kind beside the state of its shape that counts at an instant. Counters are changed, and so copied.
enum Current<'a> {
    TokenBucket(&'a TokenBucket, Cow<'a, Tokens>),
    FixedWindow(&'a FixedWindow, Cow<'a, Tokens>),
    SlidingWindow(&'a SlidingWindow, Counters),
    SlidingLog(&'a SlidingLog, Cow<'a, Log>),
    Concurrency(&'a Concurrency, Cow<'a, Leases>),
    Unlimited,
}

impl Current<'_> {
    /// See [`Limit::is_idle`].
    fn is_idle(&self, now: Micros, phase: Micros) -> bool {
        match self {
            Current::TokenBucket(limit, tokens) => limit.is_idle(tokens, now),
            Current::FixedWindow(limit, tokens) => limit.is_idle(tokens, now, phase),
            Current::SlidingWindow(limit, counters) => limit.is_idle(counters, now),
            Current::SlidingLog(limit, log) => limit.is_idle(log, now),
            Current::Concurrency(_, leases) => Concurrency::is_idle(leases, now),
            Current::Unlimited => true,
        }
    }

    /// The state alone; without a limit, as it is at `now`.
    fn into_state(self, now: Micros) -> State {
        match self {
            Current::TokenBucket(_, tokens) | Current::FixedWindow(_, tokens) => {
                State::Tokens(tokens.into_owned())
            }
            Current::SlidingWindow(_, counters) => State::Counters(counters),
            Current::SlidingLog(_, log) => State::Log(log.into_owned()),
            Current::Concurrency(_, leases) => State::Leases(leases.into_owned()),
            Current::Unlimited => Limit::Unlimited.initial_state(now, now),
        }
    }
}

/// What is in no limit.
const NO_LIMIT: Level = Level { remaining: f64::INFINITY, reset_at: None };

/// What is answered without a limit.
fn unlimited() -> Decision {
    Decision { ok: true, retry_after: None, level: NO_LIMIT, state: None }
}

/// Decides whether `count` tokens can be taken from `state` at `now`, and tells the state after it.
///
/// `count` is from 0 to [`MAX_TOKENS`](crate::config::MAX_TOKENS), and whole where
/// [`Limit::whole_counts`] says so; 0 passes unless the limit is in debt. With `reserve`, token
/// bucket and fixed window may go into debt, down to `max_reserved`, if it is paid back within ten
/// years; the other kinds ignore it. A `state` that the limit doesn't [accept](Limit::accepts) counts as none.
pub fn decide(limit: &Limit, state: &State, now: Micros, count: f64, reserve: bool) -> Decision {
    match &limit.current(state, now) {
        Current::TokenBucket(limit, tokens) => limit.decide(tokens, now, count, reserve),
        Current::FixedWindow(limit, tokens) => limit.decide(tokens, now, count, reserve),
        Current::SlidingWindow(limit, counters) => limit.decide(counters, now, count),
        Current::SlidingLog(limit, log) => limit.decide(log, now, count),
        Current::Concurrency(limit, leases) => limit.decide(leases, now, count),
        Current::Unlimited => unlimited(),
    }
}

/// Gives back `count` tokens that were taken and not used: debt first, never above the capacity. A
/// negative count takes unconditionally. `taken_at` is when they were taken: what a fixed window
/// gave before the current window began does not come back. `None` for the sliding kinds and for
/// concurrency, which hold no tokens to give back to.
///
/// `count` is finite, at most [`MAX_TOKENS`](crate::config::MAX_TOKENS) either way. The decision is
/// always `ok`; where a debt remains it says after which wait it is gone.
pub fn credit(
    limit: &Limit,
    state: &State,
    now: Micros,
    count: f64,
    taken_at: Option<Micros>,
) -> Option<Decision> {
    match &limit.current(state, now) {
        Current::TokenBucket(limit, tokens) => Some(limit.credit(tokens, now, count, taken_at)),
        Current::FixedWindow(limit, tokens) => Some(limit.credit(tokens, now, count, taken_at)),
        Current::SlidingWindow(..) | Current::SlidingLog(..) | Current::Concurrency(..) => None,
        Current::Unlimited => Some(unlimited()),
    }
}

/// How many tokens a float may miss by without deciding anything.
fn tolerance(capacity: f64) -> f64 {
    1e-9 * capacity.max(1.0)
}

/// Takes `count` from `available` tokens. A count too small to change so large a float takes its last
/// bit instead: nothing is free.
fn subtract(available: f64, count: f64) -> f64 {
    let left = available - count;
    if left == available && count > 0.0 { available.next_down() } else { left }
}

/// Rounds a number of tokens, of at most `capacity`, to a whole one where only float error keeps it
/// from being one. Of a large limit the tolerance is many tokens, so here a millionth is the most.
fn rounded(tokens: f64, capacity: f64) -> f64 {
    let whole = tokens.round();
    let near = (tokens - whole).abs() <= tolerance(capacity).min(1e-6);
    // Adding zero turns -0 into 0.
    if near && whole <= capacity { whole + 0.0 } else { tokens }
}

/// Checks that a call passes after a computed wait, and lengthens it where it doesn't: the float that
/// it was computed with may have missed the instant by its last bits.
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
        assert_eq!(subtract(3.0, 1.0), 2.0);
        assert_eq!(subtract(3.0, 0.0), 3.0);
        assert!(subtract(1e15, 0.01) < 1e15);
    }

    #[test]
    fn rounding_hides_float_error_only() {
        assert_eq!(rounded(2.9999999999, 3.0), 3.0);
        assert_eq!(rounded(-1e-10, 1.0), 0.0);
        assert!(rounded(-1e-10, 1.0).is_sign_positive());
        assert_eq!(rounded(2.99, 3.0), 2.99);
        assert_eq!(rounded(0.999, 1e9), 0.999);
        assert_eq!(rounded(2.9999999999, 2.9999999999), 2.9999999999);
    }
}

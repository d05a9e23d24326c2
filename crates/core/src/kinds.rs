//! The algorithms: how many tokens a limit has at a given time, and whether a call is admitted.
//!
//! This module has the types that all kinds share, [`decide`] and [`credit`]. Time and state are arguments.
//!
//! | kind | state | a burst is bounded by | source |
//! |---|---|---|---|
//! | [`TokenBucket`] | 2 numbers | `capacity`, and `rate` a period on top | [Convex], [its code][convex-code] |
//! | [`FixedWindow`] | 3 numbers | `capacity` a window, twice that at a boundary | [Convex], [its code][convex-code] |
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
//! A state never goes back in time. If the clock is behind the time of the state, the call is decided at the
//! state's time, and no tokens are added until the clock has passed it. So however the clock steps, no more is
//! admitted than up to the latest instant seen.
//!
//! A state too far in the future comes from a wrong clock and counts as no state. `Limit::horizon` says how far
//! that is: an hour, or longer for a limit that looks back or refills over a longer time. A lease of a concurrency
//! limit is kept, because it has a holder.
//!
//! # Floats
//!
//! Tokens are floats, and comparisons have a tolerance of 1e-9 of the capacity, at least 1e-9. The
//! residue stays in the state, so errors don't add up. Without the tolerance, one call in a million was
//! denied because of the last bit of a sum; with it, none was.

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

/// A clock that steps back by less is being adjusted: the states stay valid.
const HOUR: Micros = Micros(3_600 * 1_000_000);

/// A limit of one kind. Create it with [`config::parse`](crate::config::parse), which checks all ranges;
/// values outside them have no meaning here.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// Tokens are added continuously, up to a capacity.
    TokenBucket(TokenBucket),
    /// Tokens are added at the start of each window.
    FixedWindow(FixedWindow),
    /// A window that moves with the clock, counted approximately.
    SlidingWindow(SlidingWindow),
    /// A window that moves with the clock, counted exactly.
    SlidingLog(SlidingLog),
    /// A number of leases at a time.
    Concurrency(Concurrency),
    /// No limit: every call is admitted, and there is no state.
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

    /// The name of the kind in a config.
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

    /// Whether its slots are taken by leases.
    pub fn has_leases(self) -> bool {
        self == Kind::Concurrency
    }

    /// The SQL function that builds its config.
    pub fn builder(self) -> String {
        format!("rl_{}", self.as_str().replace(' ', "_"))
    }

    /// Arguments of the [builder](Kind::builder), as an example; with a time zone, if it is one of a `calendar`.
    pub fn example(self, calendar: bool) -> &'static str {
        match self {
            Kind::FixedWindow if calendar => {
                "rate => 1000, period => '1 month', timezone => 'Europe/Berlin'"
            }
            Kind::TokenBucket | Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog => {
                "rate => 10, period => '1 minute'"
            }
            Kind::Concurrency => "slots => 3, ttl => '5 minutes'",
            Kind::Unlimited => "",
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

/// How full a limit is at a given time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Tokens left, at most the capacity; negative: debt; infinite for an unlimited key.
    pub remaining: f64,
    /// When the limit is full again if nobody takes from it; for the window kinds, when the current
    /// window ends. `None`: later than a timestamp can hold.
    pub reset_at: Option<Micros>,
}

/// The outcome of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Whether the tokens were taken.
    pub ok: bool,
    /// Denied: the time after which the same call is admitted if nobody else takes tokens, and (within
    /// the tolerance) not earlier; `None` if it never can be. Allowed: `None`, or, for a reservation,
    /// the wait before the work may start.
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
    /// The most tokens that the limit can hold; infinite for an unlimited key.
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

    /// The long-term rate: tokens, and the period in which they are added; `None` if the period has no
    /// fixed length. A day counts as 24 hours.
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

    /// How long an empty limit takes to refill, with a month counted as a twelfth of a leap year; for a concurrency
    /// limit, the time to live of a lease.
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

    /// Whether half of the limit or more is used, for a state that was just changed.
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

    /// Whether it lets every call pass and remembers nothing.
    pub fn is_unlimited(&self) -> bool {
        matches!(self, Limit::Unlimited)
    }

    /// The limit as one of concurrency, the kind whose slots are taken by leases; `None` for the others.
    pub fn concurrency(&self) -> Option<&Concurrency> {
        match self {
            Limit::Concurrency(limit) => Some(limit),
            _ => None,
        }
    }

    /// Whether the `phase` of [`initial_state`](Limit::initial_state) matters.
    pub fn has_phase(&self) -> bool {
        matches!(self, Limit::FixedWindow(_))
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

    /// Whether only whole counts can be taken: a sliding log has one entry per token, and slots are not
    /// divided.
    pub fn whole_counts(&self) -> bool {
        matches!(self, Limit::SlidingLog(_) | Limit::Concurrency(_))
    }

    /// The state of an unused limit: full. `phase` is any boundary of the windows of a fixed window
    /// without a `start`, such as [`phase`](crate::phase()); other limits ignore it.
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

    /// Whether this kind can use a stored state of this shape, which may come from an earlier config: token bucket and
    /// fixed window accept each other's states, with tokens and time. A state that isn't accepted counts as no state
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

    /// Whether the limit is idle: from `now` on, every call has the same answer as with the initial state,
    /// so the stored state can be deleted. `phase` as in [`initial_state`](Limit::initial_state).
    pub fn is_idle(&self, state: &State, now: Micros, phase: Micros) -> bool {
        self.current(state, now).is_idle(now, phase)
    }

    /// When the limit becomes [idle](Limit::is_idle) if nobody takes from it: the earliest instant from `now`
    /// on, apart from float error over long spans. `None`: never (for example, a window with another phase),
    /// or later than an instant can hold. `phase` as in [`initial_state`](Limit::initial_state).
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

    /// How full the limit is at `now`.
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

    /// The instant at which a call at `now` is decided: `now`, or the time of the state if that is later; for windows,
    /// the time of the state is the start of its last window.
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

    /// The state that counts at `now`: the stored one, or a full one in the same windows if the limit doesn't
    /// [accept](Limit::accepts) its shape, or if it is beyond the horizon, too late for a clock that was adjusted.
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

/// A kind and the state of its shape that counts at an instant. Counters are changed, and so copied.
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

/// Decides whether `count` tokens can be taken from `state` at `now`, and returns the state after it.
///
/// `count` is from 0 to [`MAX_TOKENS`](crate::config::MAX_TOKENS), and a whole number if
/// [`Limit::whole_counts`]; 0 is admitted unless the limit is in debt. With `reserve`, token buckets and
/// fixed windows may go into debt, down to `-max_reserved`, if it is paid back within ten years; the
/// other kinds ignore it. A `state` that the limit doesn't [accept](Limit::accepts) counts as no state.
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

impl Limit {
    /// Takes `count` slots of a concurrency limit by a lease; see [`Concurrency::acquire`]. Of other kinds it takes
    /// tokens, as [`decide`] does.
    pub fn acquire(&self, state: &State, now: Micros, count: f64, id: Micros) -> Decision {
        match &self.current(state, now) {
            Current::Concurrency(limit, leases) => limit.acquire(leases, now, count, id),
            _ => decide(self, state, now, count, false),
        }
    }

    /// The state after a lease was extended; `None` where the state has no such lease. See [`Concurrency::extend`].
    pub fn extend(&self, state: &State, now: Micros, id: Micros) -> Option<State> {
        match &self.current(state, now) {
            Current::Concurrency(limit, leases) => limit.extend(leases, now, id).map(State::Leases),
            _ => None,
        }
    }

    /// The state after a lease was released; `None` where the state has no such lease. See [`Concurrency::release`].
    pub fn release(&self, state: &State, now: Micros, id: Micros) -> Option<State> {
        match &self.current(state, now) {
            Current::Concurrency(limit, leases) => {
                limit.release(leases, now, id).map(State::Leases)
            }
            _ => None,
        }
    }
}

/// Gives back `count` tokens that were taken but not used: first against a debt, never above the capacity.
/// A negative count takes tokens unconditionally. `taken_at` is when they were taken: tokens taken before
/// the current fixed window began are not given back. `None` for the sliding kinds and for concurrency
/// limits, which can't be credited.
///
/// `count` is finite, from `-`[`MAX_TOKENS`](crate::config::MAX_TOKENS) to `MAX_TOKENS`. The decision is
/// always `ok`; if a debt remains, `retry_after` is the wait until it is paid back.
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

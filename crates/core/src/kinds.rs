//! The kinds of limits: how many tokens a limit has at a given time, and whether a call is admitted.
//!
//! A kind is a file with a type that implements `LimitKind`, and its `Formulas` or those of `Refill`. `kinds!` lists
//! the kinds, and makes [`Limit`] and [`Kind`] from the list. This module also has [`decide`] and [`credit`]. Time and
//! state are arguments.
//!
//! | kind | state | a burst is bounded by | source |
//! |---|---|---|---|
//! | [`TokenBucket`] | 2 numbers | `capacity`, and `rate` a period on top | [Convex], [its code][convex-code] |
//! | [`FixedWindow`] | 3 numbers | `capacity` a window, twice that at a boundary | [Convex], [its code][convex-code] |
//! | [`SlidingWindow`] | 3 numbers | about `rate` in any period | [Cloudflare], [Upstash] |
//! | [`SlidingLog`] | a time for each token | exactly `rate` in any period | [Figma] |
//! | [`Concurrency`] | an id and a time for each lease | exactly `slots` at once | see there |
//! | [`Unlimited`] | none | nothing | |
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
//! A state too far in the future comes from a wrong clock and counts as no state. The horizon is an hour from now, or
//! more for a limit that looks back or refills over a longer time. A lease of a concurrency limit is kept, because it
//! has a holder.
//!
//! # Floats
//!
//! Tokens are floats, and comparisons have a tolerance of 1e-9 of the capacity, at least 1e-9. The
//! residue stays in the state, so errors don't add up. Without the tolerance, one call in a million was
//! denied because of the last bit of a sum; with it, none was.

mod as_many;
mod calendar;
mod concurrency;
mod fixed_window;
mod limit_kind;
mod refill;
mod sharded;
mod sliding_log;
mod sliding_window;
mod state;
mod take;
mod token_bucket;
mod unlimited;

pub use as_many::{AsMany, decide_as_many};
pub use calendar::{Calendar, Unit, local_date, zone};
pub use concurrency::{Concurrency, Lease};
pub use fixed_window::{FixedWindow, Start, Windows};
pub use sharded::Shards;
use sharded::first_pass;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use state::{Counters, Leases, Log, Shape, State, Tokens};
pub use take::Take;
pub use token_bucket::TokenBucket;
pub use unlimited::Unlimited;

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use crate::Micros;
use crate::fields::{FieldError, Fields};
use crate::headers::CallOutcome;

use limit_kind::{Formulas, LimitKind, Part};

/// Makes [`Limit`], [`Kind`] and the dispatch from a list of types. `$` is passed for the macros that it makes.
macro_rules! kinds {
    ($d:tt $($(#[$doc:meta])* $kind:ident,)*) => {
        /// A limit of one kind. Create it with [`config::parse`](crate::config::parse), which checks all ranges; values
        /// outside them have no meaning here.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Limit {
            $($(#[$doc])* $kind($kind),)*
        }

        /// The kinds of limits, as configs name them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $(#[doc = concat!("[`", stringify!($kind), "`]")] $kind,)*
        }

        impl Kind {
            /// All kinds, in the order used in messages.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];
        }

        impl Limit {
            /// The kind of the limit.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Limit::$kind(_) => Kind::$kind,)*
                }
            }
        }

        $(impl From<$kind> for Limit {
            fn from(limit: $kind) -> Limit {
                Limit::$kind(limit)
            }
        })*

        /// Evaluates an expression with the limit as the type of its kind.
        macro_rules! each_limit {
            ($d limit:expr, $d name:ident => $d value:expr) => {
                match $d limit {
                    $(Limit::$kind($d name) => $d value,)*
                }
            };
        }

        /// Evaluates an expression with the type of a kind.
        macro_rules! each_kind {
            ($d kind:expr, $d name:ident => $d value:expr) => {
                match $d kind {
                    $(Kind::$kind => {
                        type $d name = $kind;
                        $d value
                    })*
                }
            };
        }
    };
}

kinds! { $
    /// Tokens are added continuously, up to a capacity.
    TokenBucket,
    /// Tokens are added at the start of each window.
    FixedWindow,
    /// A window that moves with the clock, counted approximately.
    SlidingWindow,
    /// A window that moves with the clock, counted exactly.
    SlidingLog,
    /// A number of leases at the same time.
    Concurrency,
    /// No limit: every call is admitted, and there is no state.
    Unlimited,
}

impl Kind {
    /// The name of the kind in a config.
    pub fn as_str(self) -> &'static str {
        each_kind!(self, K => K::NAME)
    }

    /// A limit of the kind, in a sentence.
    pub fn with_article(self) -> &'static str {
        each_kind!(self, K => K::WITH_ARTICLE)
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }

    /// The names of all kinds, in quotes, for messages.
    pub fn names() -> &'static str {
        static NAMES: LazyLock<String> = LazyLock::new(|| {
            let names: Vec<_> = Kind::ALL.iter().map(|kind| format!("\"{kind}\"")).collect();
            let (last, others) =
                names.split_last().map_or(("", &[][..]), |(last, rest)| (last, rest));
            format!("{} or {last}", others.join(", "))
        });
        &NAMES
    }

    /// The SQL function that builds a config of the kind.
    pub fn builder(self) -> String {
        format!("rl_{}", self.as_str().replace(' ', "_"))
    }

    /// Example arguments of the [builder](Kind::builder); with a time zone if `calendar`.
    pub fn example(self, calendar: bool) -> &'static str {
        match self {
            Kind::FixedWindow if calendar => {
                "rate => 1000, period => '1 month', timezone => 'Europe/Berlin'"
            }
            Kind::Concurrency => "slots => 3, ttl => '5 minutes'",
            Kind::Unlimited => "",
            _ => "rate => 10, period => '1 minute'",
        }
    }

    /// The kind's own fields of a config, without those of all kinds.
    pub fn fields(self) -> &'static [&'static str] {
        each_kind!(self, K => K::FIELDS)
    }

    /// The fields of all kinds.
    pub fn all_fields() -> &'static [&'static str] {
        static FIELDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
            let mut fields = Vec::new();
            for &field in Kind::ALL.iter().flat_map(|kind| kind.fields()) {
                if !fields.contains(&field) {
                    fields.push(field);
                }
            }
            fields
        });
        &FIELDS
    }

    /// Reads and checks the kind's own fields of a config.
    pub(crate) fn limit(self, fields: &Fields) -> Result<Limit, FieldError> {
        each_kind!(self, K => K::read(fields).map(Limit::from))
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
    /// The time when the limit is full again if no tokens are taken; for the window kinds, the end of the current
    /// window. `None`: beyond the last timestamp.
    pub reset_at: Option<Micros>,
}

/// The outcome of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Whether the tokens were taken.
    pub ok: bool,
    /// Denied: the time after which the same call is admitted if no other takes tokens, and (within the tolerance) not
    /// earlier; `None` if it never can be. Allowed: `None`, or, for a reservation, the wait before the work may start.
    pub retry_after: Option<Micros>,
    /// The limit after this call; unchanged by a denial.
    pub level: Level,
    /// The state to store; `None` if nothing changes: denied, or a count of zero.
    pub state: Option<State>,
}

impl Decision {
    fn denied(retry_after: Option<Micros>, level: Level) -> Decision {
        Decision { ok: false, retry_after, level, state: None }
    }

    /// Admitted without a wait.
    fn admitted(level: Level, state: Option<State>) -> Decision {
        Decision { ok: true, retry_after: None, level, state }
    }

    /// Admitted without a change.
    pub fn unchanged(level: Level) -> Decision {
        Decision::admitted(level, None)
    }
}

impl Limit {
    /// The maximum number of tokens of the limit; infinite for an unlimited key.
    pub fn capacity(&self) -> f64 {
        each_limit!(self, limit => limit.capacity())
    }

    /// The long-term rate: tokens, and the period in which they are added; `None` if the period has no fixed length. A
    /// day counts as 24 hours.
    pub fn policy(&self) -> (f64, Option<Micros>) {
        each_limit!(self, limit => limit.policy())
    }

    /// A config of this limit, with its defaults; see [`config::resolved`](crate::config::resolved).
    pub(crate) fn json(&self, phase: Micros) -> serde_json::Value {
        let mut json = each_limit!(self, limit => limit.resolved(phase));
        if let Some(fields) = json.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
            fields.insert("kind".into(), self.kind().as_str().into());
        }
        json
    }

    /// The time that an empty limit takes to refill, with a month counted as a twelfth of a leap year; for a
    /// concurrency limit, the time to live of a lease.
    pub fn time_to_full(&self) -> Micros {
        each_limit!(self, limit => limit.time_to_full())
    }

    /// Whether half of the limit or more is used, for a state that was just changed.
    pub fn is_half_used(&self, state: &State) -> bool {
        let capacity = self.capacity();
        let used = match state {
            _ if capacity.is_infinite() => return false,
            State::Tokens(tokens) => return 2.0 * tokens.value <= capacity,
            // The window before counts partially.
            State::Counters(counters) => counters.value + counters.prior,
            State::Log(_) | State::Leases(_) => state.value(),
        };
        2.0 * used >= capacity
    }

    /// Whether only whole counts can be taken: a sliding log has one entry per token, and slots are not divided.
    pub fn whole_counts(&self) -> bool {
        matches!(self, Limit::SlidingLog(_) | Limit::Concurrency(_))
    }

    /// Whether the `phase` of [`initial_state`](Limit::initial_state) matters.
    pub fn has_phase(&self) -> bool {
        matches!(self, Limit::FixedWindow(_))
    }

    /// The number of shards, 1 to [`MAX_SHARDS`](crate::config::MAX_SHARDS); 1 for the kinds without shards.
    pub fn shards(&self) -> u32 {
        each_limit!(self, limit => limit.shards())
    }

    /// The limit of one of `shards` equal shards: rate, capacity and the largest debt divided by their number. For the
    /// kinds without shards the limit itself.
    pub fn shard_limit(&self, shards: u32) -> Cow<'_, Limit> {
        match shards {
            1 => Cow::Borrowed(self),
            shards => Cow::Owned(each_limit!(self, limit => limit.shard(shards).into())),
        }
    }

    /// The state that was found; if there is none, or one of another kind, the [initial](Limit::initial_state).
    pub fn state_or_initial(&self, found: Option<State>, now: Micros, phase: Micros) -> State {
        let accepted = found.filter(|state| self.accepts(state.shape()));
        accepted.unwrap_or_else(|| self.initial_state(now, phase))
    }

    /// The state of an unused limit: full. `phase` is any boundary of the windows of a fixed window
    /// without a `start`, such as [`phase`](crate::phase()); other limits ignore it.
    pub fn initial_state(&self, now: Micros, phase: Micros) -> State {
        each_limit!(self, limit => limit.initial_state(now, phase).into())
    }

    /// Whether this kind can use a stored state of this shape, which may come from an earlier config: token bucket and
    /// fixed window accept each other's states, with tokens and time. A state that isn't accepted counts as no state,
    /// and is replaced by the [initial one](Limit::initial_state).
    pub fn accepts(&self, shape: Shape) -> bool {
        self.shape() == Some(shape)
    }

    /// The shape of the limit's states; `None`: it has no state.
    pub(crate) fn shape(&self) -> Option<Shape> {
        match self {
            Limit::Unlimited(_) => None,
            limit => Some(each_kind!(limit.kind(), K => <K as LimitKind>::State::SHAPE)),
        }
    }

    /// Whether the limit is idle: from `now` on, every call has the same answer as with the initial state,
    /// so the stored state can be deleted. `phase` as in [`initial_state`](Limit::initial_state).
    pub fn is_idle(&self, state: &State, now: Micros, phase: Micros) -> bool {
        each_limit!(self, limit => limit.is_idle(&limit.current(state, now), now, phase))
    }

    /// The time when the limit becomes [idle](Limit::is_idle) if no tokens are taken: the earliest instant from `now`
    /// on, apart from float error over long spans. `None`: never (for example, a window with another phase), or beyond
    /// the last instant. `phase` as in [`initial_state`](Limit::initial_state).
    pub fn idle_at(&self, state: &State, now: Micros, phase: Micros) -> Option<Micros> {
        each_limit!(self, limit => {
            let state = limit.current(state, now);
            let wait = limit.unused_at(&state)?.max(now).minus(now);
            // A state that counts now counts ever after.
            let idle = |wait| limit.is_idle(&state, now.plus(wait), phase);
            confirmed(Some(wait), idle).map(|wait| now.plus(wait))
        })
    }

    /// How full the limit is at `now`.
    pub fn level(&self, state: &State, now: Micros) -> Level {
        each_limit!(self, limit => limit.level(&limit.current(state, now), now))
    }

    /// The instant at which a call at `now` is decided: `now`, or the time of the state if that is later; for windows,
    /// the time of the state is the start of its last window.
    pub fn present(&self, state: &State, now: Micros) -> Micros {
        let seen = match &*self.current(state, now) {
            State::Log(log) => log.entries.last().copied(),
            State::Leases(_) => None, // each has its own times
            state => Some(state.ts()),
        };
        seen.map_or(now, |seen| seen.max(now))
    }

    /// Whether the limit ignores a stored state of its shape at `now`: a state beyond the horizon, too late for a clock
    /// that was adjusted, counts as none.
    #[inline]
    pub fn ignores(&self, state: &State, now: Micros) -> bool {
        let is_current = |state: &State| matches!(self.current(state, now), Cow::Borrowed(_));
        self.accepts(state.shape()) && !is_current(state)
    }

    /// The state that counts at `now`: the stored one; or a full one in the same windows, if the limit doesn't
    /// [accept](Limit::accepts) its shape, or if it is beyond the horizon, too late for a clock that was adjusted.
    fn current<'a>(&self, state: &'a State, now: Micros) -> Cow<'a, State> {
        each_limit!(self, limit => match limit.current(state, now) {
            Cow::Borrowed(_) => Cow::Borrowed(state),
            Cow::Owned(initial) => Cow::Owned(initial.into()),
        })
    }

    /// Whether its windows add tokens, which its states may record.
    pub(crate) fn adds_windows(&self) -> bool {
        self.refill().is_some_and(|limit| limit.adds().is_some())
    }

    /// A stored state as `rl_value` reports it. Decisions on it from `now` on are those of calls; the tokens that a
    /// fixed window added are left out if no decision depends on them.
    pub fn reported(&self, state: State, now: Micros) -> State {
        match (state, self.refill()) {
            (State::Tokens(tokens), Some(limit)) => State::Tokens(limit.reported(&tokens, now)),
            (state, _) => state,
        }
    }

    /// The limit as tokens that come back up to a capacity; `None` for other kinds.
    fn refill(&self) -> Option<&dyn refill::Refill> {
        each_limit!(self, limit => limit.refill())
    }

    /// The time from `now` until more tokens are there than an outcome has left; `None`: unknown.
    pub(crate) fn until_more(&self, outcome: &CallOutcome, now: Micros) -> Option<Micros> {
        each_limit!(self, limit => limit.until_more(outcome, now))
    }
}

/// Decides whether `count` tokens can be taken from `state` at `now`, and returns the state after it.
///
/// `count` is from 0 to [`MAX_TOKENS`](crate::config::MAX_TOKENS), and a whole number if
/// [`Limit::whole_counts`]; 0 is admitted unless the limit is in debt. With `reserve`, token buckets and
/// fixed windows may go into debt, down to `-max_reserved`, if it is paid back within ten years; the
/// other kinds ignore it. A `state` that the limit doesn't [accept](Limit::accepts) counts as no state.
pub fn decide(limit: &Limit, state: &State, now: Micros, count: f64, reserve: bool) -> Decision {
    each_limit!(limit, limit => limit.take(&limit.current(state, now), now, count, reserve))
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
    each_limit!(limit, limit => limit.credit(&limit.current(state, now), now, count, taken_at))
}

/// The tokens that can be given back to a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Returnable {
    /// The earliest instant of a take that can be undone: for a window, its start.
    pub since: Micros,
    /// The number of tokens that there is room for.
    pub room: f64,
}

/// Returns the tokens that [`credit`] can give back at `now`. `None` for the kinds that can't be credited, and for an
/// unlimited key.
pub fn returnable(limit: &Limit, state: &State, now: Micros) -> Option<Returnable> {
    each_limit!(limit, limit => limit.returnable(&limit.current(state, now), now))
}

impl Limit {
    /// Whether tokens can be given back to it, as [`credit`] does.
    pub fn can_be_credited(&self) -> bool {
        let now = Micros(0);
        returnable(self, &self.initial_state(now, now), now).is_some()
    }
}

/// The number of reserved tokens that come in at `start`, the time when the last tokens of a reservation are there;
/// `after` is the state that it left. For windows, the tokens of one window; infinite if no window ends.
pub(crate) fn reserved_last(limit: &Limit, after: &State, start: Micros) -> f64 {
    match (limit.refill(), after) {
        (Some(refill), State::Tokens(tokens)) => refill.reserved_last(tokens, start),
        _ => f64::INFINITY,
    }
}

/// The error up to which a number of tokens decides nothing.
fn tolerance(capacity: f64) -> f64 {
    1e-9 * capacity.max(1.0)
}

/// Takes `count` from `available` tokens. A count too small to change the float takes its last bit instead: no take is
/// free.
fn subtract(available: f64, count: f64) -> f64 {
    let left = available - count;
    if left == available && count > 0.0 { available.next_down() } else { left }
}

/// Rounds a number of tokens, at most `capacity`, to a whole one if it differs from one only by float error. The
/// tolerance of a large limit is many tokens, so the maximum here is a millionth.
fn rounded(tokens: f64, capacity: f64) -> f64 {
    let whole = tokens.round();
    let near = (tokens - whole).abs() <= tolerance(capacity).min(1e-6);
    // Adding zero turns -0 into 0.
    if near && whole <= capacity { whole + 0.0 } else { tokens }
}

/// Checks that a call passes after a computed wait, and lengthens the wait otherwise: float error in the last bits may
/// have missed the instant.
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

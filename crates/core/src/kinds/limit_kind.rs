//! The traits that each kind implements: its properties and its formulas.

use std::borrow::Cow;

use super::refill::Refill;
use super::{Decision, Level, Returnable, Shape, State};
use crate::Micros;
use crate::fields::{FieldError, Fields};
use crate::headers::CallOutcome;

/// A kind of limit. Here and in its [`Formulas`], `now` is the instant of a call, and `state` the state that
/// counts then.
pub(super) trait LimitKind: Clone + Into<super::Limit> {
    /// The name of the kind in a config.
    const NAME: &'static str;
    /// A limit of the kind, in a sentence: `a token bucket`.
    const WITH_ARTICLE: &'static str;
    /// Its own fields of a config.
    const FIELDS: &'static [&'static str];

    /// The part of a [`State`] that the kind has.
    type State: Part;

    /// Reads the [fields](LimitKind::FIELDS) of a config, and checks the range of each.
    fn read(fields: &Fields) -> Result<Self, FieldError>;

    /// The fields of a config of this limit, with their defaults, and null for those that are left out; see
    /// [`config::resolved`](crate::config::resolved).
    fn resolved(&self, phase: Micros) -> serde_json::Value;

    /// See [`Limit::policy`](super::Limit::policy).
    fn policy(&self) -> (f64, Option<Micros>);

    /// See [`Limit::capacity`](super::Limit::capacity). Default: the rate.
    fn capacity(&self) -> f64 {
        self.policy().0
    }

    /// See [`Limit::time_to_full`](super::Limit::time_to_full). Default: the period, if any.
    fn time_to_full(&self) -> Micros {
        self.policy().1.unwrap_or_default()
    }

    /// The state of an unused limit.
    fn initial_state(&self, now: Micros, phase: Micros) -> Self::State;

    /// See [`Limit::is_idle`](super::Limit::is_idle).
    fn is_idle(&self, state: &Self::State, now: Micros, phase: Micros) -> bool;

    /// The earliest instant at which the limit can be idle, in the past too; `None`: beyond the last instant.
    fn unused_at(&self, state: &Self::State) -> Option<Micros>;

    /// The number of shards.
    fn shards(&self) -> u32 {
        1
    }

    /// One of `shards` equal shards of the limit.
    fn shard(&self, _shards: u32) -> Self {
        self.clone()
    }

    /// The time from `now` until more tokens are there than an outcome has left, for HTTP headers. `None`: unknown.
    /// Default, for tokens that come back at several times: the outcome's wait.
    fn until_more(&self, outcome: &CallOutcome, _now: Micros) -> Option<Micros> {
        outcome.wait()
    }
}

/// The formulas of a kind. Kinds with tokens that come back up to a capacity have them from [`Refill`].
pub(super) trait Formulas: LimitKind {
    /// Whether a stored state counts at `now`: its time is not beyond the horizon, too late for a clock that was
    /// adjusted. The horizon is [`soon`], or later: the time when this state will be full, with its debt paid back, or
    /// the end of the windows that the kind looks back on.
    fn counts(&self, state: &Self::State, now: Micros) -> bool;

    /// The state that counts at `now`: the stored one, or an initial one in the same windows.
    #[inline]
    fn current<'a>(&self, state: &'a State, now: Micros) -> Cow<'a, Self::State> {
        match Self::State::from_state(state) {
            Some(stored) if self.counts(stored, now) => Cow::Borrowed(stored),
            _ => Cow::Owned(self.initial_state(now, state.ts())),
        }
    }

    /// See [`decide`](super::decide()).
    fn take(&self, state: &Self::State, now: Micros, count: f64, reserve: bool) -> Decision;

    /// See [`credit`](super::credit()).
    fn credit(
        &self,
        _state: &Self::State,
        _now: Micros,
        _count: f64,
        _taken_at: Option<Micros>,
    ) -> Option<Decision> {
        None
    }

    /// See [`returnable`](super::returnable()).
    fn returnable(&self, _state: &Self::State, _now: Micros) -> Option<Returnable> {
        None
    }

    /// See [`Limit::level`](super::Limit::level).
    fn level(&self, state: &Self::State, now: Micros) -> Level;

    /// The limit as tokens that come back up to a capacity, which shards need.
    fn refill(&self) -> Option<&dyn Refill> {
        None
    }
}

/// The part of a [`State`] that a kind has.
pub(super) trait Part: Clone + Into<State> {
    /// Its shape.
    const SHAPE: Shape;

    /// The part of a stored state, if that has its shape.
    fn from_state(state: &State) -> Option<&Self>;
}

/// The latest instant that a clock at `now` may have shown before it was adjusted: an hour from now.
pub(super) fn soon(now: Micros) -> Micros {
    now.plus(Micros(3_600 * 1_000_000))
}

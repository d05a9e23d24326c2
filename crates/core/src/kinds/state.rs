//! The state of a limit between two calls, in one of four shapes, which kinds share.

use super::Lease;
use super::limit_kind::Part;
use crate::Micros;

/// The state of a limit between two calls. The caller stores it, as JSON by [`state`](crate::state) or in columns
/// of its own; until it has stored one, the state is [`Limit::initial_state`](crate::Limit::initial_state).
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// For a token bucket or a fixed window.
    Tokens(Tokens),
    /// For a sliding window.
    Counters(Counters),
    /// For a sliding log.
    Log(Log),
    /// For a concurrency limit.
    Leases(Leases),
}

/// The tokens of a token bucket or a fixed window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tokens {
    /// Tokens at `ts`, negative in debt.
    pub value: f64,
    /// The time when they were counted; for a fixed window, the start of its window.
    pub ts: Micros,
    /// For a fixed window, the tokens that its window added, 0 or more; `value` is the number left of them and of those
    /// rolled over. `None` for a bucket, and for a state without it, such as the Convex component's.
    pub added: Option<f64>,
}

/// The counters of a sliding window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// Tokens used in the window that began at `ts`.
    pub value: f64,
    /// Tokens used in the window before.
    pub prior: f64,
    /// The window's start.
    pub ts: Micros,
}

/// The log of a sliding log.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// The time of every token, oldest first.
    pub entries: Vec<Micros>,
    /// The time when the last was taken.
    pub ts: Micros,
}

/// The leases of a concurrency limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Leases {
    /// One for each slot, in no order.
    pub leases: Vec<Lease>,
    /// The latest instant at which they were changed.
    pub ts: Micros,
}

/// The variant of a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// [`Tokens`].
    Tokens,
    /// [`Counters`].
    Counters,
    /// [`Log`].
    Log,
    /// [`Leases`].
    Leases,
}

impl State {
    /// Tokens counted at `ts`, without the number that a window added.
    pub fn from_tokens(value: f64, ts: Micros) -> State {
        State::Tokens(Tokens { value, ts, added: None })
    }

    /// The time when it was counted; for the window kinds, the start of the window.
    pub fn ts(&self) -> Micros {
        match self {
            State::Tokens(tokens) => tokens.ts,
            State::Counters(counters) => counters.ts,
            State::Log(log) => log.ts,
            State::Leases(leases) => leases.ts,
        }
    }

    /// The number that represents the state: the tokens left in a token bucket or fixed window, the tokens used in a
    /// sliding window or sliding log, or the slots taken.
    pub fn value(&self) -> f64 {
        match self {
            State::Tokens(tokens) => tokens.value,
            State::Counters(counters) => counters.value,
            State::Log(log) => log.entries.len() as f64,
            State::Leases(leases) => leases.leases.len() as f64,
        }
    }

    /// Its shape; see [`Limit::accepts`](crate::Limit::accepts).
    pub fn shape(&self) -> Shape {
        match self {
            State::Tokens(_) => Shape::Tokens,
            State::Counters(_) => Shape::Counters,
            State::Log(_) => Shape::Log,
            State::Leases(_) => Shape::Leases,
        }
    }
}

impl State {
    /// The lease with this id, possibly expired.
    pub fn lease(&self, id: Micros) -> Option<Lease> {
        match self {
            State::Leases(leases) => leases.leases.iter().copied().find(|lease| lease.id == id),
            _ => None,
        }
    }
}

impl Leases {
    /// The lease that was given last.
    pub fn given(&self) -> Option<Lease> {
        self.leases.last().copied()
    }
}

/// Implements [`Part`] for the variants of a state.
macro_rules! parts {
    ($($part:ident)*) => {
        $(impl From<$part> for State {
            fn from(part: $part) -> State {
                State::$part(part)
            }
        }

        impl Part for $part {
            const SHAPE: Shape = Shape::$part;

            #[inline]
            fn from_state(state: &State) -> Option<&$part> {
                match state {
                    State::$part(part) => Some(part),
                    _ => None,
                }
            }
        })*
    };
}

parts! { Tokens Counters Log Leases }

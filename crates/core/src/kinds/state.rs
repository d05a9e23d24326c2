//! What a limit remembers between two calls, in the shape of its kind.

use super::Lease;
use crate::Micros;

/// What a limit remembers between two calls. The caller stores it, as JSON by [`state`](crate::state) or in columns
/// of its own; what nobody has stored is [`Limit::initial_state`](crate::Limit::initial_state).
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Of a token bucket or a fixed window.
    Tokens(Tokens),
    /// Of a sliding window.
    Counters(Counters),
    /// Of a sliding log.
    Log(Log),
    /// Of a concurrency limit.
    Leases(Leases),
}

/// What a token bucket or a fixed window holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tokens {
    /// Tokens at `ts`, negative in debt.
    pub value: f64,
    /// When they were counted; of a fixed window, its window's start.
    pub ts: Micros,
    /// For a fixed window, the tokens that its window added, 0 or more; `value` is what is left of them and of what
    /// rolled over. `None` for a bucket, and for a state that does not tell it, as that of the Convex component.
    pub brought: Option<f64>,
}

/// What was used of a sliding window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// Tokens that the window which began at `ts` used.
    pub value: f64,
    /// Tokens that the window before it used.
    pub prior: f64,
    /// The window's start.
    pub ts: Micros,
}

/// What was taken of a sliding log.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// The time of every token, oldest first.
    pub entries: Vec<Micros>,
    /// When the last was taken.
    pub ts: Micros,
}

/// Which slots of a concurrency limit are taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Leases {
    /// One for each slot, in no order.
    pub leases: Vec<Lease>,
    /// The latest instant at which they were changed.
    pub ts: Micros,
}

/// Of which kinds a state can be: the variant of a [`State`].
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
    /// So many tokens, counted at `ts`, of which nothing else is known.
    pub fn of_tokens(value: f64, ts: Micros) -> State {
        State::Tokens(Tokens { value, ts, brought: None })
    }

    /// When it was counted; of the window kinds, the window's start.
    pub fn ts(&self) -> Micros {
        match self {
            State::Tokens(tokens) => tokens.ts,
            State::Counters(counters) => counters.ts,
            State::Log(log) => log.ts,
            State::Leases(leases) => leases.ts,
        }
    }

    /// The number that stands for it: tokens of a token bucket or a fixed window, what the window used of a sliding
    /// window, how many tokens the log of a sliding log has, how many slots of a concurrency limit are taken.
    pub fn value(&self) -> f64 {
        match self {
            State::Tokens(tokens) => tokens.value,
            State::Counters(counters) => counters.value,
            State::Log(log) => log.entries.len() as f64,
            State::Leases(leases) => leases.leases.len() as f64,
        }
    }

    /// Of which kinds it can be; see [`Limit::accepts`](crate::Limit::accepts).
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
    /// The lease of this id, which may have expired.
    pub fn lease(&self, id: Micros) -> Option<Lease> {
        match self {
            State::Leases(leases) => leases.leases.iter().copied().find(|lease| lease.id == id),
            _ => None,
        }
    }
}

impl Leases {
    /// The lease that the call gave which left this state.
    pub fn given(&self) -> Option<Lease> {
        self.leases.last().copied()
    }
}

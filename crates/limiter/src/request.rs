//! A call: its request, what it takes, and its answer.

use ratelimit_core::config::Definition;
use ratelimit_core::kinds::{Lease, Leases};
use ratelimit_core::{Decision, Level, Micros, State};

use crate::ports::{Counted, InlineConfig, Verdict};

/// The arguments of a call.
pub struct Request<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, likewise.
    pub key: &'a [u8],
    /// Tokens.
    pub count: f64,
    /// Whether a take may go into debt, to be waited for.
    pub reserve: bool,
    /// The config to use instead of the definition.
    pub config: Option<&'a dyn InlineConfig>,
}

impl<'a> Request<'a> {
    /// The tokens that it asks for.
    pub fn tokens(&self) -> Take {
        Take { count: self.count, reserve: self.reserve, lease: None }
    }

    /// What is counted of it.
    pub fn counted(&self, verdict: Verdict, answer: &Answer) -> Counted<'a> {
        let retry_after = answer.retry_after;
        Counted { name: self.name, key: self.key, count: self.count, verdict, retry_after }
    }
}

/// The answer of a call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether the call is allowed.
    pub ok: bool,
    /// From `now`; see [`Decision::retry_after`].
    pub retry_after: Option<Micros>,
    /// After the call; before it, for a check.
    pub level: Level,
    /// Tokens; see [`Limit::capacity`](ratelimit_core::Limit::capacity).
    pub capacity: f64,
    /// The instant of the decision.
    pub now: Micros,
    /// Whether a denial is enforced; otherwise it is a dry run, which only reports it.
    pub enforced: bool,
    /// Until when the key is blocked, or [`FOREVER`](crate::target::FOREVER), if that is why it is denied.
    pub blocked: Option<Micros>,
    /// The lease that was taken or extended, of a concurrency limit.
    pub lease: Option<Lease>,
}

impl Answer {
    /// The answer of a call decided at `now`, which leaves this level.
    pub fn new(definition: &Definition, decision: &Decision, level: Level, now: Micros) -> Answer {
        Answer {
            ok: decision.ok,
            retry_after: decision.retry_after,
            level,
            capacity: definition.limit.capacity(),
            now,
            enforced: definition.enforce,
            blocked: None,
            lease: given(decision),
        }
    }

    /// How it is counted.
    pub fn verdict(&self) -> Verdict {
        if self.ok { Verdict::Allowed } else { Verdict::Denied { enforced: self.enforced } }
    }

    /// The same answer, but admitted if a dry run would deny it; nothing has changed.
    pub fn or_let_pass(self) -> Answer {
        match self.ok || self.enforced {
            true => self,
            false => Answer { ok: true, retry_after: None, ..self },
        }
    }
}

/// How much a call takes.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// Tokens.
    pub count: f64,
    /// As in [`Request`].
    pub reserve: bool,
    /// The id of the lease that a concurrency limit gives; `None`: no lease is stored.
    pub lease: Option<Micros>,
}

/// The lease that a decision gave.
fn given(decision: &Decision) -> Option<Lease> {
    match &decision.state {
        Some(State::Leases(leases)) => Leases::given(leases),
        _ => None,
    }
}

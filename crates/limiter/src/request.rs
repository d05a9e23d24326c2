//! A call: its request, what it takes, and its answer.

use ratelimit_core::config::Definition;
use ratelimit_core::kinds::{Lease, Leases};
use ratelimit_core::{
    AsMany, Decision, Level, Limit, Micros, Shards, State, decide, decide_as_many,
};

use crate::ports::{Counted, InlineConfig, Verdict};
use crate::target::Target;

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
        Take { count: self.count, reserve: self.reserve, lease: None, at_least: None }
    }

    /// What is counted of it.
    pub fn counted(&self, verdict: Verdict, answer: &Answer) -> Counted<'a> {
        let retry_after = answer.retry_after;
        Counted { name: self.name, key: self.key, count: self.count, verdict, retry_after }
    }
}

/// What denies a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    /// The key is blocked.
    Block,
    /// Leases have every slot.
    Slots,
    /// Too few tokens are left.
    Tokens,
}

impl LimitedBy {
    /// What of a limit denies a call that no block denies.
    pub(crate) fn of(limit: &Limit) -> LimitedBy {
        if limit.kind().has_leases() { LimitedBy::Slots } else { LimitedBy::Tokens }
    }

    /// Its name in SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            LimitedBy::Block => "block",
            LimitedBy::Slots => "slots",
            LimitedBy::Tokens => "tokens",
        }
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
    /// What denies it; also where `ok` is true because it is a dry run, and never only because of another limit.
    pub limited_by: Option<LimitedBy>,
    /// The lease that was taken or extended, of a concurrency limit.
    pub lease: Option<Lease>,
    /// Tokens that were taken by a take of as many as there are; 0 for any other call.
    pub taken: f64,
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
            limited_by: (!decision.ok).then(|| LimitedBy::of(&definition.limit)),
            lease: given(decision),
            taken: 0.0,
        }
    }

    /// How it is counted.
    pub fn verdict(&self) -> Verdict {
        if self.ok { Verdict::Allowed } else { Verdict::Denied { enforced: self.enforced } }
    }

    /// Says that a block, until this instant, denies the call, if there is one.
    pub fn of_block(self, until: Option<Micros>) -> Answer {
        match until {
            None => self,
            Some(_) => Answer {
                enforced: true,
                blocked: until,
                limited_by: Some(LimitedBy::Block),
                ..self
            },
        }
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
    /// Takes as many tokens as there are up to `count`, if these are at least this number; `None`: all of `count` or none.
    /// With neither `reserve` nor a lease.
    pub at_least: Option<f64>,
}

impl Take {
    /// The numbers of a take of as many tokens as there are; `None`: it is one of a count.
    pub(crate) fn as_many(&self) -> Option<AsMany> {
        self.at_least.map(|at_least| AsMany { count: self.count, at_least })
    }

    /// Whether it passes on any state.
    pub(crate) fn always_passes(&self) -> bool {
        self.as_many().is_some_and(|wanted| wanted.fewest() == 0.0)
    }

    /// Whether it is denied at `now` by a limit in full, too.
    pub(crate) fn never_passes(&self, target: &Target, now: Micros) -> bool {
        let full = target.limit().initial_state(now, target.phase());
        !self.on_state(target.limit(), &full, now, &mut 0.0).ok
    }

    /// Decides it on a state, but for its lease, and notes the tokens that one of as many as there are takes.
    pub(crate) fn on_state(
        &self,
        limit: &Limit,
        state: &State,
        now: Micros,
        taken: &mut f64,
    ) -> Decision {
        let Some(wanted) = self.as_many() else {
            return decide(limit, state, now, self.count, self.reserve);
        };
        let decision;
        (decision, *taken) = decide_as_many(limit, state, now, wanted);
        decision
    }

    /// Decides it on all shards together, likewise.
    pub(crate) fn on_shards(&self, shards: &Shards, now: Micros, taken: &mut f64) -> Decision {
        let Some(wanted) = self.as_many() else {
            return shards.decide(now, self.count, self.reserve);
        };
        let decision;
        (decision, *taken) = shards.decide_as_many(now, wanted);
        decision
    }
}

/// The lease that a decision gave.
fn given(decision: &Decision) -> Option<Lease> {
    match &decision.state {
        Some(State::Leases(leases)) => Leases::given(leases),
        _ => None,
    }
}

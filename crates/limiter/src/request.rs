//! A call: its request, and its answer.

use ratelimit_core::config::Definition;
use ratelimit_core::kinds::{Lease, Leases};
use ratelimit_core::{Decision, Level, Limit, Micros, State, Take};

use crate::ports::{Counted, InlineConfig, Verdict};

/// The arguments of a call.
#[derive(Clone)]
pub struct Request<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, in the server's encoding.
    pub key: &'a [u8],
    /// Tokens.
    pub count: f64,
    /// Whether a take may go into debt, for which the caller waits.
    pub reserve: bool,
    /// The config to use instead of the definition.
    pub config: Option<&'a dyn InlineConfig>,
}

impl<'a> Request<'a> {
    /// The take that it asks for.
    pub fn tokens(&self) -> Take {
        Take { count: self.count, reserve: self.reserve, lease: None, at_least: None }
    }

    /// The request and its outcome, to be counted.
    pub(crate) fn counted(&self, answer: &Answer) -> Counted<'a> {
        let verdict = match answer.limited_by {
            None => Verdict::Allowed,
            Some(_) => Verdict::Denied { enforced: answer.enforced },
        };
        let retry_after = answer.retry_after;
        Counted { name: self.name, key: self.key, count: self.count, verdict, retry_after }
    }
}

/// The reason for a denial.
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
    /// The reason why a limit denies a call that no block denies.
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
    /// The wait from `now`; see [`Decision::retry_after`].
    pub retry_after: Option<Micros>,
    /// The level after the call; for a check, before it.
    pub level: Level,
    /// Tokens; see [`Limit::capacity`](ratelimit_core::Limit::capacity).
    pub capacity: f64,
    /// The instant of the decision.
    pub now: Micros,
    /// Whether a denial is enforced; otherwise it is a dry run, which only reports it.
    pub enforced: bool,
    /// The end of the block that denies the call, or [`Micros::FOREVER`].
    pub blocked: Option<Micros>,
    /// The reason for a denial, also if `ok` is true because of a dry run; never another limit alone.
    pub limited_by: Option<LimitedBy>,
    /// The lease of a concurrency limit that was taken or extended.
    pub lease: Option<Lease>,
    /// Tokens taken by a take of as many as there are; 0 for any other call.
    pub taken: f64,
    /// Whether a request of a list can never be admitted, and so never lets the whole call pass.
    pub never: bool,
}

impl Answer {
    /// The answer of a call decided at `now`.
    #[inline]
    pub fn new(definition: &Definition, decision: &Decision, now: Micros) -> Answer {
        Answer {
            ok: decision.ok,
            retry_after: decision.retry_after,
            level: decision.level,
            capacity: definition.limit.capacity(),
            now,
            enforced: definition.enforce,
            blocked: None,
            limited_by: (!decision.ok).then(|| LimitedBy::of(&definition.limit)),
            lease: match &decision.state {
                Some(State::Leases(leases)) => Leases::given(leases),
                _ => None,
            },
            taken: 0.0,
            never: false,
        }
    }

    /// Whether its own limit admits the request; a dry run always does.
    pub(crate) fn passes(&self) -> bool {
        self.ok || !self.enforced
    }

    /// Whether the request never passes.
    pub(crate) fn is_never(&self) -> bool {
        !self.passes() && self.retry_after.is_none()
    }

    /// The same answer, but admitted if a dry run denies it; nothing has changed.
    pub fn or_let_pass(self) -> Answer {
        match self.ok || self.enforced {
            true => self,
            false => Answer { ok: true, retry_after: None, ..self },
        }
    }
}

/// The terms of a hold.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// How long it lasts, from 1 ms to 366 days.
    pub ttl: Micros,
    /// Its id, from 1 to 200 bytes in the server's encoding; `None`: a random one.
    pub id: Option<&'a [u8]>,
    /// Whether its tokens stay taken when it expires.
    pub charge: bool,
}

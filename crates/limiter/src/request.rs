//! A call: its request, what it takes, the checks of these numbers, and its answer.

use ratelimit_core::config::{Definition, MAX_TOKENS};
use ratelimit_core::kinds::{Lease, Leases};
use ratelimit_core::text::float_text;
use ratelimit_core::{ArgumentError, AsMany, Decision, Level, Limit, Micros, Shards, State};

use crate::error::{LimiterError, Result};
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
    /// The end of the block that denies the call, or [`FOREVER`](crate::target::FOREVER).
    pub blocked: Option<Micros>,
    /// The reason for a denial, also if `ok` is true because of a dry run; never another limit alone.
    pub limited_by: Option<LimitedBy>,
    /// The lease of a concurrency limit that was taken or extended.
    pub lease: Option<Lease>,
    /// Tokens taken by a take of as many as there are; 0 for any other call.
    pub taken: f64,
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

/// How much a call takes.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// Tokens.
    pub count: f64,
    /// As in [`Request`].
    pub reserve: bool,
    /// The id of the lease that a concurrency limit gives; `None`: no lease is stored.
    pub lease: Option<Micros>,
    /// Takes as many tokens as there are up to `count`, if these are at least this number; `None`: all of `count` or
    /// none. Used with neither `reserve` nor a lease.
    pub at_least: Option<f64>,
}

impl Take {
    /// The numbers of a take of as many tokens as there are; `None`: it takes a fixed count.
    pub(crate) fn as_many(&self) -> Option<AsMany> {
        self.at_least.map(|at_least| AsMany { count: self.count, at_least })
    }

    /// Checks its numbers for a limit.
    ///
    /// # Errors
    /// 22023: a number that is not a count, or `at_least` above `count`.
    pub(crate) fn check(&self, limit: &Limit) -> Result<()> {
        check_tokens(limit, "count", self.count)?;
        let Some(at_least) = self.at_least else { return Ok(()) };
        check_tokens(limit, "at_least", at_least)?;
        check_at_least(at_least, self.count)
    }

    /// Decides it on a limit's state or shards, ignoring its lease; sets `taken` if it takes as many tokens as there
    /// are.
    pub(crate) fn decide(&self, shards: &Shards, now: Micros, taken: &mut f64) -> Decision {
        let Some(wanted) = self.as_many() else {
            return shards.decide(now, self.count, self.reserve);
        };
        let decision;
        (decision, *taken) = shards.decide_as_many(now, wanted);
        decision
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

/// Checks an argument with a number of tokens for a limit.
///
/// # Errors
/// 22023: not a number from 0 to 1e15, or not a whole number for a kind with whole counts.
pub fn check_tokens(limit: &Limit, argument: &'static str, tokens: f64) -> Result<()> {
    valid_tokens(argument, tokens)?;
    if limit.whole_counts() && tokens.fract() != 0.0 {
        let kind = limit.kind().with_article();
        return Err(bad_tokens(argument, tokens, &format!("a whole number, for {kind}")));
    }
    Ok(())
}

/// Checks the least number of tokens of a take.
///
/// # Errors
/// 22023: not a number from 0 to the count.
pub(crate) fn check_at_least(at_least: f64, count: f64) -> Result<()> {
    if (0.0..=count).contains(&at_least) {
        return Ok(());
    }
    let allowed = format!("a number from 0 to count, which is {}", float_text(count));
    Err(bad_tokens("at_least", at_least, &allowed))
}

/// Checks an argument with a number of tokens.
///
/// # Errors
/// 22023: not a number from 0 to 1e15.
pub fn valid_tokens(argument: &'static str, tokens: f64) -> Result<f64> {
    if (0.0..=MAX_TOKENS).contains(&tokens) {
        return Ok(tokens);
    }
    Err(bad_tokens(argument, tokens, "a number from 0 to 1e15"))
}

/// The error for a number of tokens that an argument does not allow (22023).
pub(crate) fn bad_tokens(argument: &'static str, tokens: f64, allowed: &str) -> LimiterError {
    ArgumentError::invalid(argument, float_text(tokens), allowed).into()
}

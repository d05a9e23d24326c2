//! A call: its request, the change that it makes, what it is decided on, and its answer.

use ratelimit_core::algorithm::{Lease, Leases};
use ratelimit_core::config::{Definition, MAX_TOKENS};
use ratelimit_core::text::float_text;
use ratelimit_core::{Decision, Level, Limit, Micros, Shards, State, algorithm, decide};

use crate::error::{LimiterError, Result};
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
    /// What the request takes.
    pub fn take(&self) -> Take {
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
    /// Tokens; see [`Limit::capacity`].
    pub capacity: f64,
    /// The instant of the decision.
    pub now: Micros,
    /// Whether a denial is one; otherwise it only tells what one would be, in a dry run.
    pub enforced: bool,
    /// Until when the key is blocked, or [`FOR_GOOD`](crate::target::FOR_GOOD), if that is why it is denied.
    pub blocked: Option<Micros>,
    /// The lease that was taken, from a concurrency limit.
    pub lease: Option<Lease>,
}

impl Answer {
    /// The answer of a call decided at `now`, which leaves this level.
    pub fn of(limit: &Definition, decision: &Decision, level: Level, now: Micros) -> Answer {
        Answer {
            ok: decision.ok,
            retry_after: decision.retry_after,
            level,
            capacity: limit.capacity(),
            now,
            enforced: limit.enforce,
            blocked: None,
            lease: given(decision),
        }
    }

    /// How it is counted.
    pub fn verdict(&self) -> Verdict {
        if self.ok { Verdict::Allowed } else { Verdict::Denied { enforced: self.enforced } }
    }

    /// The same, where a dry run lets pass what it would deny; nothing has changed.
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

impl Take {
    /// Decides it on a state.
    pub fn decide(self, limit: &Limit, state: &State, now: Micros) -> Decision {
        match (limit, state, self.lease) {
            (Limit::Concurrency(limit), State::Leases(leases), Some(id)) => {
                limit.acquire(leases, now, self.count, id)
            }
            _ => decide(limit, state, now, self.count, self.reserve),
        }
    }
}

/// The change that a call makes.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Takes tokens; see [`algorithm::decide`].
    Take(Take),
    /// Gives tokens back; see [`algorithm::credit`].
    Credit {
        /// Tokens; negative: takes them unconditionally.
        count: f64,
        /// The instant of the take that is undone.
        taken_at: Option<Micros>,
    },
}

/// What a change is decided on.
#[derive(Clone, Copy)]
pub enum Contents<'c> {
    /// The only state of the limit.
    One(&'c State),
    /// All of its shards.
    All(&'c Shards<'c>),
    /// One of its shards, counted from 0, which alone is to change.
    OneOf(&'c Shards<'c>, usize),
    /// All of its shards, of which others have those that it needs, and can't be waited for.
    Busy(&'c Shards<'c>),
}

impl Change {
    /// The tokens that it is asked to add; negative: to take.
    pub fn amount(self) -> f64 {
        match self {
            Change::Take(Take { count, .. }) => -count,
            Change::Credit { count, .. } => count,
        }
    }

    /// Decides it. The state after it is that of what is to change: of the shards together their total.
    ///
    /// # Errors
    /// [`LimiterError::NotForKind`] (0A000): a credit to a sliding kind or a concurrency limit.
    /// [`LimiterError::Busy`]: a credit
    /// whose rows others have, since no token may be lost.
    pub fn decide(self, limit: &Limit, contents: Contents, now: Micros) -> Result<Decision> {
        match (self, contents) {
            (_, Contents::One(state)) => self.apply(limit, state, now),
            (_, Contents::OneOf(shards, shard)) => {
                self.apply(shards.shard_limit(), &shards.states()[shard], now)
            }
            (Change::Take(take), Contents::All(shards)) => {
                Ok(shards.decide(now, take.count, take.reserve))
            }
            (Change::Credit { .. }, Contents::All(shards)) => {
                self.apply(limit, &shards.total(now), now)
            }
            // Retried at once.
            (Change::Take(_), Contents::Busy(shards)) => {
                let level = shards.level(now);
                Ok(Decision { ok: false, retry_after: Some(Micros(0)), level, state: None })
            }
            (Change::Credit { .. }, Contents::Busy(_)) => Err(LimiterError::Busy),
        }
    }

    /// Decides it on a state.
    ///
    /// # Errors
    /// [`LimiterError::NotForKind`] (0A000), as [`decide`](Change::decide).
    fn apply(self, limit: &Limit, state: &State, now: Micros) -> Result<Decision> {
        match self {
            Change::Take(take) => Ok(take.decide(limit, state, now)),
            Change::Credit { count, taken_at } => {
                algorithm::credit(limit, state, now, count, taken_at)
                    .ok_or(LimiterError::NotForKind { function: "rl_credit", kind: limit.kind() })
            }
        }
    }
}

/// The lease that a decision gave.
fn given(decision: &Decision) -> Option<Lease> {
    match &decision.state {
        Some(State::Leases(leases)) => Leases::given(leases),
        _ => None,
    }
}

/// Checks the count of a take for a limit.
///
/// # Errors
/// 22023: no number from 0 to 1e15; for a kind with whole counts, no whole number.
pub fn check_count(limit: &Limit, count: f64) -> Result<()> {
    valid_count(count)?;
    if limit.whole_counts() && count.fract() != 0.0 {
        let kind = limit.kind().with_article();
        return Err(bad_count(count, &format!("a whole number, for {kind}")));
    }
    Ok(())
}

/// Checks the count of a take, in tokens.
///
/// # Errors
/// 22023: no number from 0 to 1e15.
pub fn valid_count(count: f64) -> Result<f64> {
    if (0.0..=MAX_TOKENS).contains(&count) {
        return Ok(count);
    }
    Err(bad_count(count, "a number from 0 to 1e15"))
}

/// The error for a count that is not allowed (22023).
pub(crate) fn bad_count(count: f64, allowed: &str) -> LimiterError {
    LimiterError::InvalidArgument {
        argument: "count",
        value: float_text(count),
        allowed: allowed.into(),
    }
}

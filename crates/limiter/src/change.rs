//! A change of what a limit has, as a value: a store reads, asks `Change::decide`, and writes the state after it.

use ratelimit_core::{Decision, Level, Limit, Micros, Shards, State, kinds};

use ratelimit_faults::Fault;

use crate::error::{LimiterError, Result};
use crate::ports::Stored;
use crate::request::{Answer, Take};
use crate::target::Target;

/// What a call changes.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Takes tokens; see [`kinds::decide`] and [`kinds::decide_as_many`].
    Take(Take),
    /// Gives tokens back; see [`kinds::credit`].
    Credit {
        /// Tokens; negative: takes them unconditionally.
        count: f64,
        /// The instant of the take that is undone.
        taken_at: Option<Micros>,
    },
    /// Lets the lease with this id expire its `ttl` from now on.
    Extend(Micros),
    /// Frees the slots of the lease with this id.
    Release(Micros),
}

/// What a change is decided on.
#[derive(Clone, Copy)]
pub enum Contents<'c> {
    /// The only state of the limit.
    One(&'c State),
    /// Its only row; `None`: there is none.
    Row(Option<&'c Stored>),
    /// All of its shards.
    All(&'c Shards<'c>),
    /// One of its shards, counted from 0, which alone is to change.
    OneOf(&'c Shards<'c>, usize),
    /// All of its shards, some of which other transactions have locked and can't be waited for.
    Busy(&'c Shards<'c>),
}

/// A decided change.
pub struct Decided {
    /// What the call answers.
    pub answer: Answer,
    /// The state after it, of shards together their total; `None`: nothing changes.
    pub after: Option<State>,
}

/// How a row is written that another transaction has locked when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// After a wait, as it was decided before, or decided again.
    Write,
    /// After a wait for its lock in a subtransaction, which releases it where nothing changes then.
    Lock,
}

impl Change {
    /// Whether it moves tokens, which chooses among shards.
    pub(crate) fn moves_tokens(&self) -> bool {
        match *self {
            Change::Take(Take { count, .. }) | Change::Credit { count, .. } => count != 0.0,
            Change::Extend(_) | Change::Release(_) => false,
        }
    }

    /// The tokens that it adds to shards which were seen to have these; negative: that it takes.
    pub(crate) fn tokens(&self, _seen: &Shards, _now: Micros) -> f64 {
        match *self {
            Change::Take(Take { count, .. }) => -count,
            Change::Credit { count, .. } => count,
            Change::Extend(_) | Change::Release(_) => 0.0,
        }
    }

    /// Whether an answer gives a take of as many tokens as there are fewer than all that it may take. Then how many there
    /// are depends on all shards.
    pub(crate) fn takes_part(&self, answer: &Answer) -> bool {
        matches!(self, Change::Take(Take { count, at_least: Some(_), .. })
            if answer.taken < *count && !Fault::PartOfSomeShards.is_on())
    }

    /// How it is written to a row. A lease is gone more often than not where a call waits for its row.
    pub(crate) fn wait(&self) -> Wait {
        match self {
            Change::Take(_) | Change::Credit { .. } => Wait::Write,
            Change::Extend(_) | Change::Release(_) => Wait::Lock,
        }
    }

    /// Decides it on what was read, at an instant after that.
    ///
    /// # Errors
    /// [`LimiterError::BadState`] (55000): a row with a value that no call writes.
    /// [`LimiterError::NotForKind`] (0A000): a credit to a sliding kind or a concurrency limit.
    /// [`LimiterError::Busy`]: a credit whose rows others have locked, since no token may be lost.
    pub(crate) fn decide(
        &self,
        target: &Target,
        contents: Contents,
        now: Micros,
    ) -> Result<Decided> {
        let limit = target.limit();
        let mut taken = 0.0;
        let decision = match contents {
            Contents::One(state) => self.on_state(limit, state, now, &mut taken)?,
            Contents::Row(stored) => {
                self.on_state(limit, &*target.state(limit, stored, now)?, now, &mut taken)?
            }
            Contents::OneOf(shards, shard) => {
                self.on_state(shards.shard_limit(), &shards.states()[shard], now, &mut taken)?
            }
            Contents::All(shards) => self.on_shards(limit, shards, now, &mut taken)?,
            Contents::Busy(shards) => match self {
                Change::Take(take) if take.always_passes() => {
                    Decision { ok: true, ..refusal(None, shards.level(now)) }
                }
                // Retried at once.
                Change::Take(_) => refusal(Some(Micros(0)), shards.level(now)),
                Change::Credit { .. } => return Err(LimiterError::Busy),
                Change::Extend(_) | Change::Release(_) => refusal(None, shards.level(now)),
            },
        };
        let mut answer = target.answer(&decision, decision.level, now);
        answer.taken = taken;
        if let (Change::Extend(id), Some(State::Leases(after))) = (self, &decision.state) {
            answer.lease = after.leases.iter().find(|lease| lease.id == *id).copied();
        }
        let is_lost = matches!(self, Change::Extend(_)) && Fault::ExtensionNotWritten.is_on();
        Ok(Decided { answer, after: decision.state.filter(|_| !is_lost) })
    }

    /// Decides it on a state, and notes the tokens taken, as in [`Answer::taken`].
    ///
    /// # Errors
    /// [`LimiterError::NotForKind`] (0A000), as [`decide`](Change::decide).
    fn on_state(
        &self,
        limit: &Limit,
        state: &State,
        now: Micros,
        taken: &mut f64,
    ) -> Result<Decision> {
        let after = match *self {
            Change::Take(Take { count, lease: Some(id), .. }) => {
                return Ok(limit.acquire(state, now, count, id));
            }
            Change::Take(ref take) => return Ok(take.on_state(limit, state, now, taken)),
            Change::Credit { count, taken_at } => {
                let credited = kinds::credit(limit, state, now, count, taken_at);
                return credited.ok_or_else(|| not_for_credit(limit));
            }
            Change::Extend(id) => limit.extend(state, now, id),
            Change::Release(id) => limit.release(state, now, id),
        };
        let level = limit.level(after.as_ref().unwrap_or(state), now);
        Ok(Decision { ok: after.is_some(), retry_after: None, level, state: after })
    }

    /// Decides it on all shards together, likewise.
    ///
    /// # Errors
    /// [`LimiterError::NotForKind`] (0A000), as [`decide`](Change::decide).
    fn on_shards(
        &self,
        limit: &Limit,
        shards: &Shards,
        now: Micros,
        taken: &mut f64,
    ) -> Result<Decision> {
        match *self {
            // A lease has the id that was drawn for it.
            Change::Take(Take { lease: Some(_), .. }) => {
                self.on_state(limit, &shards.total(now), now, taken)
            }
            Change::Take(ref take) => Ok(take.on_shards(shards, now, taken)),
            Change::Credit { count, taken_at } => {
                shards.credit(now, count, taken_at).ok_or_else(|| not_for_credit(limit))
            }
            // Rows of another kind, from before.
            Change::Extend(_) | Change::Release(_) => Ok(refusal(None, shards.level(now))),
        }
    }
}

/// The decision that nothing changes.
fn refusal(retry_after: Option<Micros>, level: Level) -> Decision {
    Decision { ok: false, retry_after, level, state: None }
}

/// The error for a kind that can't be credited (0A000).
fn not_for_credit(limit: &Limit) -> LimiterError {
    LimiterError::NotForKind { function: "rl_credit", kind: limit.kind() }
}

//! A change of a limit's contents, as a value. [`Change::decide`] alone decides the answer of a call, the state
//! afterwards and the hold afterwards, also for a blocked key, a dry run, a hold and its settlement.

pub(crate) mod held;
pub(crate) mod takes;

use ratelimit_core::hold::Hold;
use ratelimit_core::{Decision, Level, Limit, Micros, Shards, State, kinds};

use ratelimit_faults::Fault;

use crate::error::{LimiterError, Result};
use crate::ports::Host;
use crate::request::{Answer, LimitedBy, Take};
use crate::target::{FOREVER, Target, after_block};
use held::{HeldTake, HoldChange, Settlement};

/// A change that a call makes.
pub(crate) enum Change<'a> {
    /// Takes tokens; see [`kinds::decide`] and [`kinds::decide_as_many`].
    Take(Take),
    /// Takes tokens for several requests, one after the other: all or none.
    Takes(Vec<Take>),
    /// Takes tokens for several requests, one after the other, each on its own: one that is denied takes nothing.
    Each(Vec<Take>),
    /// Takes tokens and holds them.
    Hold(HeldTake<'a>),
    /// Settles a hold.
    Settle(Settlement),
    /// Gives tokens back; see [`kinds::credit`].
    Credit {
        /// Tokens; negative: takes them unconditionally.
        count: f64,
        /// The instant of the take that is undone.
        taken_at: Option<Micros>,
    },
    /// Extends the lease with this id: it expires its `ttl` from now.
    Extend(Micros),
    /// Frees the slots of the lease with this id.
    Release(Micros),
}

/// The contents that a change is decided on.
#[derive(Clone, Copy)]
pub(crate) enum Contents<'c> {
    /// The state to change, with its limit: the target's, or that of a shard.
    One(&'c Limit, &'c State),
    /// All shards of the limit, and the hold with the call's id.
    All(&'c Shards<'c>, Option<&'c Hold>),
}

/// A decided change.
pub(crate) struct Decided {
    /// The answer; with several requests, the first one's.
    pub(crate) answer: Answer,
    /// The state afterwards; with shards, their total; `None`: nothing changes.
    pub(crate) after: Option<State>,
    /// Parts that only some changes have.
    more: Option<Box<More>>,
}

/// The rest of a decision on several requests, or on a hold.
#[derive(Default)]
struct More {
    /// The answers of the requests after the first, in their order.
    later: Vec<Answer>,
    /// The change of the hold, if the call takes or settles one.
    hold: Option<HoldChange>,
}

/// How to write a row that another transaction had locked when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Waits, then writes the change as decided before, or decides again.
    Write,
    /// Waits for the lock in a subtransaction, which releases it if nothing changes then.
    Lock,
}

impl Decided {
    /// Makes a decision on one request, without a hold.
    pub(crate) fn of(answer: Answer, after: Option<State>) -> Decided {
        Decided { answer, after, more: None }
    }

    /// Makes a decision on a hold.
    fn of_hold(answer: Answer, after: Option<State>, hold: HoldChange) -> Decided {
        let more = More { hold: Some(hold), ..More::default() };
        Decided { answer, after, more: Some(Box::new(more)) }
    }

    /// Makes the decision on a hold that a credit has settled.
    pub(crate) fn of_settled(answer: Answer, hold: Hold) -> Decided {
        let (before, after) = (Some(hold), None);
        let change = HoldChange { before, had: 0.0, took: 0.0, asks: false, after };
        Decided::of_hold(answer, None, change)
    }

    /// The change of the hold, if the call takes or settles one.
    pub(crate) fn hold(&self) -> Option<&HoldChange> {
        self.more.as_ref()?.hold.as_ref()
    }

    /// The answers, in the order of the requests.
    pub(crate) fn answers(&self) -> impl Iterator<Item = &Answer> {
        std::iter::once(&self.answer).chain(self.more.iter().flat_map(|more| &more.later))
    }

    /// As [`answers`](Decided::answers), mutable.
    pub(crate) fn answers_mut(&mut self) -> impl Iterator<Item = &mut Answer> {
        let later = self.more.iter_mut().flat_map(|more| &mut more.later);
        std::iter::once(&mut self.answer).chain(later)
    }

    /// Whether this limit admits the call; a dry run always does.
    pub(crate) fn passes(&self) -> bool {
        self.answers().all(Answer::passes)
    }

    /// Whether a request never passes.
    pub(crate) fn is_never(&self) -> bool {
        self.answers().any(Answer::is_never)
    }

    /// Whether there is anything to write.
    pub(crate) fn changes(&self) -> bool {
        self.after.is_some() || self.hold_after().is_some()
    }

    /// The hold to write.
    pub(crate) fn hold_after(&self) -> Option<Hold> {
        self.hold().and_then(|hold| hold.after)
    }

    /// Sets the level of all answers.
    pub(crate) fn set_level(&mut self, level: Level) {
        self.answers_mut().for_each(|answer| answer.level = level);
    }

    /// Refuses the call as if there were no tokens: others have locked rows that can't be waited for. It can be retried
    /// at once.
    pub(crate) fn give_up(&mut self, change: &Change, limit: &Limit) {
        self.after = None;
        if let Some(More { hold: Some(hold), .. }) = self.more.as_deref_mut() {
            (hold.took, hold.after) = (0.0, None);
        }
        let passes = matches!(change, Change::Take(take) if take.always_passes());
        for answer in self.answers_mut() {
            (answer.taken, answer.lease) = (0.0, None);
            if !passes {
                (answer.ok, answer.retry_after) = (false, Some(Micros(0)));
                answer.limited_by = Some(LimitedBy::of(limit));
            }
        }
    }
}

impl<'a> Change<'a> {
    /// Whether it takes tokens, which a block denies.
    pub(crate) fn is_take(&self) -> bool {
        matches!(self, Change::Take(_) | Change::Takes(_) | Change::Each(_) | Change::Hold(_))
    }

    /// The end of the block that denies it.
    #[inline]
    pub(crate) fn block(&self, target: &Target, now: Micros) -> Option<Micros> {
        target.block(now).filter(|_| self.is_take() && !Fault::BlockOverlooked.is_on())
    }

    /// The tokens that it adds to shards; negative: takes. 0: it chooses no shard.
    pub(crate) fn tokens(&self) -> f64 {
        match *self {
            Change::Take(Take { count, .. }) => -count,
            Change::Credit { count, .. } => count,
            _ => 0.0,
        }
    }

    /// Whether a take of as many tokens as there are gets fewer than its count. Their number then depends on all
    /// shards.
    pub(crate) fn takes_part(&self, answer: &Answer) -> bool {
        matches!(self, Change::Take(Take { count, at_least: Some(_), .. })
            if answer.taken < *count && !Fault::PartOfSomeShards.is_on())
    }

    /// How to write it to a row. When a call waits for a lease's row, the lease is usually gone by then.
    pub(crate) fn wait(&self) -> Wait {
        match self {
            Change::Extend(_) | Change::Release(_) => Wait::Lock,
            _ => Wait::Write,
        }
    }

    /// Whether even a full limit denies it at `now`, whatever tokens come back.
    pub(crate) fn never_passes(&self, target: &Target, now: Micros) -> bool {
        match self {
            Change::Take(take) => target.never_takes(take, now),
            Change::Takes(takes) => matches!(&takes[..], [take] if target.never_takes(take, now)),
            _ => false,
        }
    }

    /// Decides it on these contents, at an instant after they were read.
    ///
    /// # Errors
    /// [`LimiterError::NotForKind`] (0A000): a credit to a sliding kind or a concurrency limit.
    #[inline(always)]
    pub(crate) fn decide(
        &self,
        host: &impl Host,
        target: &Target,
        contents: Contents,
        now: Micros,
    ) -> Result<Decided> {
        match self.block(target, now) {
            None => self.decide_unblocked(host, target, contents, now),
            Some(until) => self.decide_blocked(host, target, contents, until, now),
        }
    }

    /// Decides that a block denies it, with the wait until the limit admits it after the block. A dry run doesn't
    /// override a block, but admits every call after it.
    #[cold]
    fn decide_blocked(
        &self,
        host: &impl Host,
        target: &Target,
        contents: Contents,
        until: Micros,
        now: Micros,
    ) -> Result<Decided> {
        // A state too far in the future now may no longer be so when the block ends.
        let at = if until == FOREVER { now } else { until };
        let mut decided = self.decide_unblocked(host, target, contents, at)?;
        let level = match contents {
            Contents::One(limit, state) => limit.level(state, now),
            Contents::All(shards, _) => shards.level(now),
        };
        for answer in decided.answers_mut() {
            let passes = answer.ok || !target.definition.enforce;
            let rest = if passes { Some(Micros(0)) } else { answer.retry_after };
            (answer.ok, answer.enforced, answer.now, answer.level) = (false, true, now, level);
            answer.retry_after = after_block(until, now, |_| rest);
            (answer.blocked, answer.limited_by) = (Some(until), Some(LimitedBy::Block));
            (answer.lease, answer.taken) = (None, 0.0);
        }
        decided.after = None;
        if let (Change::Hold(hold), Contents::All(shards, own)) = (self, contents) {
            let denied = hold.denied(target, &shards.total(now), own, now);
            return Ok(Decided::of_hold(decided.answer, None, denied));
        }
        Ok(decided)
    }

    /// Decides it, ignoring blocks.
    #[inline(always)]
    pub(crate) fn decide_unblocked(
        &self,
        host: &impl Host,
        target: &Target,
        contents: Contents,
        now: Micros,
    ) -> Result<Decided> {
        let mut taken = 0.0;
        let decision = match contents {
            Contents::One(limit, state) => self.on_state(limit, state, now, &mut taken)?,
            Contents::All(shards, own) => match self {
                Change::Takes(takes) => return Ok(takes::decide(host, target, takes, shards, now)),
                Change::Each(takes) => return Ok(takes::one_by_one(target, takes, shards, now)),
                Change::Hold(hold) => return Ok(hold.decide(target, shards, own, now)),
                Change::Settle(settlement) => {
                    return Ok(settlement.decide(target, shards, own, now));
                }
                _ => self.on_shards(target.limit(), shards, now, &mut taken)?,
            },
        };
        let mut answer = Answer::new(&target.definition, &decision, now);
        answer.taken = taken;
        if matches!(self, Change::Take(_)) {
            return Ok(Decided::of(answer, decision.state));
        }
        if let (Change::Extend(id), Some(State::Leases(after))) = (self, &decision.state) {
            answer.lease = after.leases.iter().find(|lease| lease.id == *id).copied();
        }
        let is_lost = matches!(self, Change::Extend(_)) && Fault::ExtensionNotWritten.is_on();
        Ok(Decided::of(answer, decision.state.filter(|_| !is_lost)))
    }

    /// Decides it on a state, and sets `taken` as in [`Answer::taken`].
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
            // These are decided on the whole contents.
            Change::Takes(_) | Change::Each(_) | Change::Hold(_) | Change::Settle(_) => None,
        };
        let level = limit.level(after.as_ref().unwrap_or(state), now);
        Ok(Decision { ok: after.is_some(), retry_after: None, level, state: after })
    }

    /// Decides it on all shards together, as [`on_state`](Change::on_state).
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
            Change::Take(ref take) if take.lease.is_none() => {
                Ok(take.on_shards(shards, now, taken))
            }
            Change::Credit { count, taken_at } => {
                shards.credit(now, count, taken_at).ok_or_else(|| not_for_credit(limit))
            }
            // A limit with leases has no shards.
            _ => self.on_state(limit, &shards.total(now), now, taken),
        }
    }
}

/// The error for a kind that can't be credited (0A000).
fn not_for_credit(limit: &Limit) -> LimiterError {
    LimiterError::NotForKind { function: "rl_credit", kind: limit.kind() }
}

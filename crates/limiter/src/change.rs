//! A change of a limit's contents, as a value. [`Ask::decide`] alone decides the answer of a call, the state
//! afterwards and the hold afterwards, also for a blocked key, a dry run, a hold and its settlement.

pub(crate) mod held;

use std::slice::from_ref;

use ratelimit_core::hold::{Hold, HoldChange};
use ratelimit_core::{Decision, Level, Limit, Micros, Shards, State, Take};

use ratelimit_faults::Fault;

use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Host, Id};
use crate::request::{Answer, LimitedBy};
use crate::target::Target;
use held::{HeldTake, Settlement};

/// The change that a call asks of one limit.
pub(crate) struct Ask<'a> {
    pub(crate) target: Target<'a>,
    pub(crate) change: Change<'a>,
    /// The address of its entry in memory, if known.
    pub(crate) entry: Option<Id>,
}

/// A change that a call makes.
pub(crate) enum Change<'a> {
    /// Takes tokens; see [`decide`](Take::decide).
    Take(Take),
    /// Takes tokens for several requests, one after the other: all or none, or each on its own, so that one that is
    /// denied takes nothing.
    Takes(Vec<Take>, Mode),
    /// Takes tokens and holds them.
    Hold(HeldTake<'a>),
    /// Settles a hold.
    Settle(Settlement<'a>),
    /// Gives tokens back; see [`credit`](ratelimit_core::kinds::credit).
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

/// How several requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All or none.
    Together,
    /// Each on its own.
    Each,
}

/// A decided change.
pub(crate) struct Decided {
    /// The answer; with several requests, the first one's.
    pub(crate) answer: Answer,
    /// The answers of the requests after the first, in their order.
    later: Vec<Answer>,
    /// The state afterwards; with shards, their total; `None`: nothing changes.
    pub(crate) after: Option<State>,
    /// The change of the hold, if the call takes or settles one.
    pub(crate) hold: Option<Box<HoldChange>>,
}

impl Decided {
    /// Makes a decision on one request, without a hold.
    pub(crate) fn of(answer: Answer, after: Option<State>) -> Decided {
        Decided { answer, later: Vec::new(), after, hold: None }
    }

    /// The answers, in the order of the requests.
    pub(crate) fn answers(&self) -> impl Iterator<Item = &Answer> {
        std::iter::once(&self.answer).chain(&self.later)
    }

    /// As [`answers`](Decided::answers), mutable.
    pub(crate) fn answers_mut(&mut self) -> impl Iterator<Item = &mut Answer> {
        std::iter::once(&mut self.answer).chain(&mut self.later)
    }

    /// Whether this limit admits the call; a dry run always does.
    pub(crate) fn passes(&self) -> bool {
        self.answers().all(Answer::passes)
    }

    /// Whether there is anything to write.
    pub(crate) fn changes(&self) -> bool {
        self.after.is_some() || self.hold_after().is_some()
    }

    /// The hold to write.
    pub(crate) fn hold_after(&self) -> Option<Hold> {
        self.hold.as_ref().and_then(|hold| hold.after)
    }

    /// Sets the level of all answers.
    pub(crate) fn set_level(&mut self, level: Level) {
        self.answers_mut().for_each(|answer| answer.level = level);
    }

    /// Refuses the call as if there were no tokens: others have locked rows that can't be waited for. It can be retried
    /// at once. `may_be`: the limit may be the reason.
    pub(crate) fn give_up(&mut self, change: &Change, limit: &Limit, may_be: bool) {
        self.after = None;
        if let Some(hold) = &mut self.hold {
            (hold.took, hold.after) = (0.0, None);
        }
        let needs_none = |take: &Take| take.as_many().is_some_and(|wanted| wanted.fewest() == 0.0);
        let passes = matches!(change, Change::Take(take) if needs_none(take));
        for answer in self.answers_mut() {
            (answer.taken, answer.lease) = (0.0, None);
            if !passes {
                (answer.ok, answer.retry_after) = (false, Some(Micros(0)));
                let reason = may_be.then(|| LimitedBy::of(limit));
                answer.limited_by = answer.limited_by.or(reason);
            }
        }
    }
}

impl Change<'_> {
    /// Whether it takes tokens, which a block denies.
    pub(crate) fn is_take(&self) -> bool {
        matches!(self, Change::Take(_) | Change::Takes(..) | Change::Hold(_))
    }

    /// The takes of its requests, unless it is a hold.
    pub(crate) fn takes(&self) -> &[Take] {
        match self {
            Change::Take(take) => from_ref(take),
            Change::Takes(takes, _) => takes,
            _ => &[],
        }
    }

    /// The tokens that it adds to shards; negative: takes. 0: it chooses no shard.
    pub(crate) fn tokens(&self) -> f64 {
        match *self {
            Change::Take(Take { count, .. }) => -count,
            Change::Credit { count, .. } => count,
            _ => 0.0,
        }
    }

    /// Whether to write it to a row that another transaction has locked, and wait for that, as if it changed nothing.
    /// Otherwise locks it first, and releases it if nothing changes then: a lease is usually gone after such a wait.
    pub(crate) fn waits_to_write(&self) -> bool {
        !matches!(self, Change::Extend(_) | Change::Release(_))
    }
}

impl Ask<'_> {
    /// Whether it takes from a limit in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.target.store.is_in_memory() && self.change.is_take()
    }

    /// The end of the block that denies it.
    #[inline]
    pub(crate) fn block(&self, now: Micros) -> Option<Micros> {
        self.target.block(now).filter(|_| self.change.is_take() && !Fault::BlockOverlooked.is_on())
    }

    /// A state of its limit, to decide it on.
    #[inline(always)]
    pub(crate) fn on<'s>(&'s self, state: &'s State) -> Shards<'s> {
        Shards::new(self.target.limit(), from_ref(state))
    }

    /// Whether even a full limit denies it at `now`, whatever tokens come back.
    pub(crate) fn never_passes(&self, now: Micros) -> bool {
        let [take] = self.change.takes() else { return false };
        let target = &self.target;
        let full = target.limit().initial_state(now, target.phase());
        !take.decide(&self.on(&full), now, &mut 0.0).ok
    }

    /// Decides it on a limit's state or shards, at an instant after they were read. The limit is the target's, or that
    /// of one of its shards. `own`: the hold with the call's id.
    ///
    /// # Errors
    /// [`LimiterError::NotForKind`] (0A000): a credit to a sliding kind or a concurrency limit.
    #[inline(always)]
    pub(crate) fn decide(
        &self,
        host: &impl Host,
        shards: &Shards,
        own: Option<&HoldRow>,
        now: Micros,
    ) -> Result<Decided> {
        let own = own.map(|own| &own.hold);
        match self.block(now) {
            None => self.decide_unblocked(host, shards, own, now),
            Some(until) => self.decide_blocked(host, shards, own, until, now),
        }
    }

    /// Decides that a block denies it, with the wait until the limit admits it after the block. A dry run doesn't
    /// override a block, but admits every call after it.
    #[cold]
    fn decide_blocked(
        &self,
        host: &impl Host,
        shards: &Shards,
        own: Option<&Hold>,
        until: Micros,
        now: Micros,
    ) -> Result<Decided> {
        // A state too far in the future now may no longer be so when the block ends.
        let at = if until == Micros::FOREVER { now } else { until };
        let mut decided = self.decide_unblocked(host, shards, own, at)?;
        let (target, level) = (&self.target, shards.level(now));
        for answer in decided.answers_mut() {
            let passes = answer.ok || !target.definition.enforce;
            let rest = if passes { Some(Micros(0)) } else { answer.retry_after };
            (answer.ok, answer.enforced, answer.now, answer.level) = (false, true, now, level);
            answer.retry_after = until.then(now, |_| rest);
            (answer.blocked, answer.limited_by) = (Some(until), Some(LimitedBy::Block));
            (answer.lease, answer.taken) = (None, 0.0);
        }
        decided.after = None;
        if let Change::Hold(hold) = &self.change {
            let denied = hold.of_core().denied(target.limit(), &shards.total(now), own, now);
            decided.hold = Some(Box::new(denied));
        }
        Ok(decided)
    }

    /// Decides it, ignoring blocks.
    #[inline(always)]
    pub(crate) fn decide_unblocked(
        &self,
        host: &impl Host,
        shards: &Shards,
        own: Option<&Hold>,
        now: Micros,
    ) -> Result<Decided> {
        let Ask { target, change, .. } = self;
        let (limit, mut taken, mut hold) = (shards.limit(), 0.0, None);
        let decision = match *change {
            Change::Take(ref take) => take.decide(shards, now, &mut taken),
            Change::Takes(ref takes, mode) => {
                return Ok(self.decide_in_turn(host, takes, mode, shards, now));
            }
            Change::Hold(ref held) => {
                let (held, enforced) = (held.of_core(), target.definition.enforce);
                let (decision, change) = held.decide(limit, &shards.total(now), own, now, enforced);
                hold = Some(Box::new(change));
                decision
            }
            Change::Settle(ref settlement) => {
                let (decision, change) = settlement.decide(target, shards, own, now);
                hold = Some(Box::new(change));
                decision
            }
            Change::Credit { count, taken_at } => {
                let refused = LimiterError::NotForKind("rl_credit", limit.kind());
                shards.credit(now, count, taken_at).ok_or(refused)?
            }
            Change::Extend(id) => of_lease(shards, now, |state| limit.extend(state, now, id)),
            Change::Release(id) => of_lease(shards, now, |state| limit.release(state, now, id)),
        };
        let mut answer = Answer::new(&target.definition, &decision, now);
        answer.taken = taken;
        if let (Change::Extend(id), Some(State::Leases(after))) = (change, &decision.state) {
            answer.lease = after.leases.iter().find(|lease| lease.id == *id).copied();
        }
        let is_lost = matches!(change, Change::Extend(_)) && Fault::ExtensionNotWritten.is_on();
        Ok(Decided { hold, ..Decided::of(answer, decision.state.filter(|_| !is_lost)) })
    }

    /// Decides takes at `now`, each on the state that those before it left. Together, all that are denied have one
    /// wait.
    fn decide_in_turn(
        &self,
        host: &impl Host,
        takes: &[Take],
        mode: Mode,
        shards: &Shards,
        now: Micros,
    ) -> Decided {
        let (target, limit, before) = (&self.target, self.target.limit(), shards.total(now));
        let (mut first, mut later) = (None, Vec::new());
        let answer = |decision: &Decision| Answer::new(&target.definition, decision, now);
        let after = limit.decide_in_turn(takes, &before, now, |decision| match first {
            None => first = Some(answer(decision)),
            Some(_) => later.push(answer(decision)),
        });
        let nothing = || answer(&Decision::unchanged(limit.level(&before, now)));
        let mut decided = Decided { later, ..Decided::of(first.unwrap_or_else(nothing), after) };
        if mode == Mode::Together && decided.answers().any(|answer| !answer.ok) {
            let (check, phase) = (|| host.check_for_interrupts(), || target.phase());
            let retry_after = shards.retry_after_in_turn(takes, phase, now, check);
            for answer in decided.answers_mut().filter(|answer| !answer.ok) {
                answer.retry_after = retry_after;
            }
        }
        decided
    }
}

/// Decides on a lease: it is found if its state changes.
fn of_lease(
    shards: &Shards,
    now: Micros,
    change: impl FnOnce(&State) -> Option<State>,
) -> Decision {
    let before = shards.total(now);
    let state = change(&before);
    let level = shards.limit().level(state.as_ref().unwrap_or(&before), now);
    Decision { ok: state.is_some(), retry_after: None, level, state }
}

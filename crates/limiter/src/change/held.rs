//! Takes with a hold, and their settlements.

use ratelimit_core::hold::{Hold, Took};
use ratelimit_core::kinds::Lease;
use ratelimit_core::{AsMany, Decision, Limit, Micros, Shards, State, Take, decide};

use ratelimit_faults::Fault;

use super::Decided;
use crate::error::Result;
use crate::ports::{HoldRow, Host};
use crate::request::{Answer, Terms};
use crate::target::{Store, Target};

/// A take that holds its tokens.
pub(crate) struct HeldTake<'a> {
    /// The take that the hold asks for: with `at_least`, of as many tokens as there are; for slots, with the id of
    /// their lease if the hold has none yet.
    pub(crate) take: Take,
    /// The terms of the hold.
    pub(crate) terms: Terms<'a>,
    /// The hold's id: the one of the terms, or a random one.
    pub(crate) id: &'a [u8],
    /// The config to store, as in [`HoldRow`].
    pub(crate) config: Option<Vec<u8>>,
}

/// The change that a call makes to a hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoldChange {
    /// The hold before; `None`: there was none.
    pub(crate) before: Option<Hold>,
    /// The part of it that still counts: tokens, or live slots.
    pub(crate) had: f64,
    /// Tokens taken now.
    pub(crate) took: f64,
    /// Whether the call asks for any: a repeat takes nothing.
    pub(crate) asks: bool,
    /// The hold to write; `None`: nothing, or the hold is settled.
    pub(crate) after: Option<Hold>,
}

impl HoldChange {
    /// The number of tokens held once the call has passed; without a hold, the number that would be.
    pub(crate) fn held(&self, answer: &Answer, limit: &Limit, count: f64) -> f64 {
        match &self.after {
            _ if !answer.passes() => self.had,
            // Slots that it had may have been freed since.
            Some(_) if answer.enforced && limit.concurrency().is_some() => self.had + self.took,
            Some(after) if answer.enforced => after.count,
            // A dry run admits everything, whatever the limit has.
            _ => count.max(self.had),
        }
    }
}

impl HeldTake<'_> {
    /// Decides on the missing tokens; `own`: the hold with the same id.
    pub(super) fn decide(
        &self,
        target: &Target,
        shards: &Shards,
        own: Option<&Hold>,
        now: Micros,
    ) -> Decided {
        let (limit, state) = (target.limit(), shards.total(now));
        let before = suited(limit, own);
        let (decision, took) = self.on_state(limit, &state, now, before);
        let took = if decision.ok { took } else { 0.0 };
        let answer = Answer::new(&target.definition, &decision, now);
        let mut hold = HoldChange { took, ..self.denied(target, &state, own, now) };
        let is_held =
            answer.passes() && target.store != Store::Nowhere && (decision.ok || before.is_some());
        if is_held {
            let wait = decision.retry_after.filter(|_| decision.ok);
            let expires_at = now.plus(wait.unwrap_or(Micros(0))).plus(self.terms.ttl);
            let slots = hold.had + took;
            hold.after = Some(match limit.concurrency() {
                Some(_) if slots > 0.0 => {
                    let until =
                        before.map_or(expires_at, |before| before.expires_at.max(expires_at));
                    let taken_at = before.map_or(now, |before| before.taken_at);
                    Hold::of_slots(slots, self.lease(before), taken_at, until)
                }
                _ => {
                    let after = decision.state.as_ref().unwrap_or(&state);
                    let taken = Took { tokens: took, wait };
                    let charge = self.terms.charge;
                    let after = Hold::of(before, limit, after, now, taken, expires_at, charge);
                    // The sum may differ in its last bit.
                    let is_all = took == (self.take.count - hold.had).max(0.0);
                    let least = if is_all { self.take.count } else { 0.0 };
                    Hold { count: after.count.max(least), ..after }
                }
            });
        }
        Decided { hold: Some(Box::new(hold)), ..Decided::of(answer, decision.state) }
    }

    /// The hold as a denial leaves it.
    pub(super) fn denied(
        &self,
        target: &Target,
        state: &State,
        own: Option<&Hold>,
        now: Micros,
    ) -> HoldChange {
        let before = suited(target.limit(), own);
        let had = match state {
            State::Leases(_) => slots(state, self.lease(before), now),
            _ => before.map_or(0.0, |before| before.count),
        };
        let asks = self.take.count > had || before.is_none();
        HoldChange { before: own.copied(), had, took: 0.0, asks, after: None }
    }

    /// The lease id of its slots.
    fn lease(&self, before: Option<&Hold>) -> Micros {
        let own = before.and_then(|before| before.lease);
        own.or(self.take.lease).unwrap_or(Micros(0))
    }

    /// Decides on the missing tokens on a state, ignoring blocks, and returns how many it takes.
    fn on_state(
        &self,
        limit: &Limit,
        state: &State,
        now: Micros,
        before: Option<&Hold>,
    ) -> (Decision, f64) {
        let lease = Lease { id: self.lease(before), expires_at: now.plus(self.terms.ttl) };
        if let Some(decision) = limit.hold_slots(state, now, self.take.count, lease) {
            let own = |state: &State| slots(state, lease.id, now);
            let took = decision.state.as_ref().map_or(0.0, |after| own(after) - own(state));
            return (decision, took);
        }
        let had = before.map_or(0.0, |before| before.count);
        let missing = (self.take.count - had).max(0.0);
        if let Some(before) = before.filter(|_| missing == 0.0) {
            // A reservation keeps its start.
            let (retry_after, level) = (before.wait(limit, state, now), limit.level(state, now));
            return (Decision { ok: true, retry_after, level, state: None }, 0.0);
        }
        let take = |count| decide(limit, state, now, count, self.take.reserve);
        match self.take.at_least {
            // In a top-up, `at_least` is of the total.
            Some(at_least) => {
                let at_least = (at_least - had).max(0.0);
                AsMany { count: missing, at_least }.decide(limit.capacity(), take)
            }
            None => (take(missing), missing),
        }
    }
}

/// The hold, unless the limit's kind has changed: a hold of tokens means nothing to slots, nor a hold of slots to
/// tokens.
fn suited<'h>(limit: &Limit, own: Option<&'h Hold>) -> Option<&'h Hold> {
    own.filter(|own| own.lease.is_some() == limit.concurrency().is_some())
}

/// The number of live slots of a lease.
fn slots(state: &State, lease: Micros, now: Micros) -> f64 {
    match state {
        State::Leases(leases) => {
            let own = leases.leases.iter().filter(|own| own.id == lease && own.is_live(now));
            own.count() as f64
        }
        _ => 0.0,
    }
}

/// A random id, as text of a UUID (version 4).
pub(crate) fn random_id(host: &impl Host) -> Result<Vec<u8>> {
    let (high, low) = (host.unguessable()?, host.unguessable()?);
    let high = high & !0xf000 | 0x4000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    let (d, e) = (low >> 48, low & 0xffff_ffff_ffff);
    Ok(format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}").into_bytes())
}

/// The settlement of one limit of a hold.
pub(crate) struct Settlement<'a> {
    /// The hold, as it was found.
    pub(crate) row: &'a HoldRow,
    /// The number of tokens used; `None`: all that it held.
    pub(crate) used: Option<f64>,
}

impl Settlement<'_> {
    /// Whether something can come back to the limit's rows: tokens, if it can be credited; slots, if it has them.
    pub(crate) fn counts(&self, target: &Target) -> bool {
        match (self.row.hold.lease, target.store) {
            (Some(_), Store::Row) => target.limit().concurrency().is_some(),
            (None, Store::Row | Store::Shards(_)) => target.limit().can_be_credited(),
            _ => false,
        }
    }

    /// Decides it; `own`: the hold as read under the locks; `None`: it was settled before.
    pub(super) fn decide(
        &self,
        target: &Target,
        shards: &Shards,
        own: Option<&Hold>,
        now: Micros,
    ) -> Decided {
        let (limit, counts) = (target.limit(), self.counts(target));
        let is_ignored = |state| limit.ignores(state, now);
        // The state begins again, as after a reset.
        let is_gone = counts && shards.states().iter().any(is_ignored);
        let own = own.filter(|_| !is_gone);
        let level = shards.level(now);
        let mut decision = Decision::unchanged(level);
        if let Some(own) = own.filter(|_| counts) {
            let before = shards.total(now);
            match own.lease {
                Some(lease) => decision.state = limit.release(&before, now, lease),
                None => {
                    let is_any = Fault::RefundedToAnyWindow.is_on();
                    let taken_at = if is_any { now } else { own.taken_at };
                    let own = Hold { taken_at, ..*own };
                    let settled = own.settle(limit, &before, now, self.used);
                    decision = settled.unwrap_or(decision);
                }
            }
        }
        // An expired hold waits to give back until its limit has holds again.
        let waits = |own: &&Hold| !counts && own.returns() && own.expires_at <= now;
        let after = own.filter(waits).copied();
        let hold = HoldChange { before: own.copied(), after, ..HoldChange::default() };
        let answer = Answer::new(&target.definition, &decision, now);
        Decided { hold: Some(Box::new(hold)), ..Decided::of(answer, decision.state) }
    }
}

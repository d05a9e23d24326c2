//! Takes with a hold, and their settlements.

use ratelimit_core::hold::{self, Hold, HoldChange};
use ratelimit_core::{Decision, Micros, Shards, Take};

use ratelimit_faults::Fault;

use crate::error::Result;
use crate::ports::{HoldRow, Host};
use crate::request::Terms;
use crate::target::{Store, Target};

/// A take that holds its tokens.
pub(crate) struct HeldTake<'a> {
    /// The take that the hold asks for.
    pub(crate) take: Take,
    /// The terms of the hold.
    pub(crate) terms: Terms<'a>,
    /// The hold's id: the one of the terms, or a random one.
    pub(crate) id: &'a [u8],
    /// The config to store, as in [`HoldRow`].
    pub(crate) config: Option<Vec<u8>>,
}

impl HeldTake<'_> {
    /// The part of it that the core decides on.
    pub(super) fn of_core(&self) -> hold::HeldTake {
        hold::HeldTake { take: self.take, ttl: self.terms.ttl, charge: self.terms.charge }
    }
}

/// A random id, as text of a UUID (version 4).
pub(crate) fn random_id(host: &impl Host) -> Result<Vec<u8>> {
    let (high, low) = (host.unguessable()?, host.unguessable()?);
    let random = u128::from(high) << 64 | u128::from(low);
    let id = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
    Ok(id.to_string().into_bytes())
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
    ) -> (Decision, HoldChange) {
        let (limit, counts) = (target.limit(), self.counts(target));
        let is_ignored = |state| limit.ignores(state, now);
        // The state begins again, as after a reset.
        let is_gone = counts && shards.states().iter().any(is_ignored);
        let own = own.filter(|_| !is_gone);
        let mut decision = Decision::unchanged(shards.level(now));
        if let Some(own) = own.filter(|_| counts) {
            let taken_at = if Fault::RefundedToAnyWindow.is_on() { now } else { own.taken_at };
            let settled =
                Hold { taken_at, ..*own }.settle(limit, &shards.total(now), now, self.used);
            decision = settled.unwrap_or(decision);
        }
        // An expired hold waits to give back until its limit has holds again.
        let waits = |own: &&Hold| !counts && own.returns() && own.expires_at <= now;
        let after = own.filter(waits).copied();
        (decision, HoldChange { before: own.copied(), after, ..HoldChange::default() })
    }
}

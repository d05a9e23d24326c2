//! Leases of concurrency limits: taken as tokens are, and extended and released by their ids.
//!
//! In the table a key's leases are the state of its row, in memory they are those of its
//! [slots](crate::limiter::slots).

use pgrx::pg_sys;
use ratelimit_core::algorithm::{Concurrency, Lease, Leases};
use ratelimit_core::config::Store as Kept;
use ratelimit_core::{Kind, Limit, Micros, State};

use crate::limiter::blocks::FOR_GOOD;
use crate::limiter::in_memory;
use crate::limiter::request::{Answer, Request, Take, Target, check_count};
use crate::limiter::single::{self, lock_to_change};
use crate::limiter::slots::Slots;
use crate::limiter::tally::{self, Verdict};
use crate::pg::catalog::{self, TableLock};
use crate::pg::clock;
use crate::pg::error::{Error, Result};
use crate::pg::interrupts::check_for_interrupts;
use crate::pg::shared_memory;
use crate::pg::transaction::refuse_read_only_call;
use crate::store::memory::Memory;
use crate::store::{self, Store, Stored, with_locked};

/// Returns the concurrency limit of a target.
///
/// # Errors
/// [`Error::NotForKind`] (0A000): it is another kind.
fn concurrency<'a>(target: &'a Target, function: &'static str) -> Result<&'a Concurrency> {
    match &target.limit.limit {
        Limit::Concurrency(limit) => Ok(limit),
        limit => Err(Error::NotForKind { function, kind: limit.kind() }),
    }
}

/// Takes slots; the answer has the id of their lease, and when it expires.
///
/// # Errors
/// As [`single::limit`]; 0A000: the limit is of another kind.
pub fn acquire(function: pg_sys::Oid, request: &Request) -> Result<(Answer, Option<Micros>)> {
    catalog::with(function, lock_to_change(), |catalog| {
        let place = tally::place(catalog, request)?;
        let target = request.resolve(catalog).map_err(Error::for_leases)?;
        let ttl = match target.limit.kind() {
            Kind::Unlimited => Micros(0), // there is no lease, and none is needed
            _ => concurrency(&target, "rl_acquire")?.ttl,
        };
        check_count(&target.limit, request.count)?;
        let take = Take { lease: Some(draw_id()?), ..request.take() };
        let mut answer = single::take(function, catalog, &target, take, None)?;
        let verdict = match answer.ok {
            true => Verdict::Allowed,
            false => Verdict::Denied { enforced: answer.enforced },
        };
        tally::count(catalog, place, request, &answer, verdict);
        if !answer.enforced && !answer.ok {
            answer.let_pass();
        }
        let expires_at = answer.lease.map(|_| answer.now.plus(ttl));
        Ok((answer, expires_at))
    })
}

/// Draws the id of a lease. Not made of the clock, which may stand or step back, nor of what is stored, which may be
/// reset, pruned, rolled back or lost: a holder from before could then release another's lease.
///
/// # Errors
/// [`Error::NoRandom`] (58000).
fn draw_id() -> Result<Micros> {
    let mut random = [0];
    if shared_memory::random(&mut random) {
        Ok(Lease::random_id(random[0]))
    } else {
        Err(Error::NoRandom)
    }
}

/// What becomes of a lease.
#[derive(Clone, Copy)]
pub enum Fate {
    /// It expires `ttl` from now on.
    Extended,
    /// Its slots are free.
    Released,
}

impl Fate {
    /// Returns the leases after it; `None` where this one has expired.
    fn apply(self, limit: &Concurrency, state: &State, now: Micros, id: Micros) -> Option<Leases> {
        let State::Leases(leases) = state else { return None };
        match self {
            Fate::Extended => limit.extend(leases, now, id),
            Fate::Released => limit.release(leases, now, id),
        }
    }

    fn function(self) -> &'static str {
        match self {
            Fate::Extended => "rl_extend",
            Fate::Released => "rl_release",
        }
    }
}

/// Extends or releases a lease; `None` where it has expired or was released, otherwise when it expires now. Where the
/// key is exempt meanwhile its holder may go on for good, and its slots are left to expire.
///
/// # Errors
/// As [`acquire`], but for the count.
pub fn settle(
    function: pg_sys::Oid,
    request: &Request,
    id: Micros,
    fate: Fate,
) -> Result<Option<Micros>> {
    catalog::with(function, lock_to_change(), |catalog| {
        let target = request.resolve_lease(catalog).map_err(Error::for_leases)?;
        if target.limit.kind() == Kind::Unlimited {
            return Ok(matches!(fate, Fate::Extended).then_some(FOR_GOOD));
        }
        let limit = concurrency(&target, fate.function())?;
        if target.limit.store == Kept::Memory {
            let memory = Memory::get()?;
            let slots = Slots::of(limit.slots, memory, in_memory::id(memory, catalog, &target));
            return Ok(slots.change(|state, now| {
                let after = fate.apply(limit, state, now, id);
                let expires_at = after.as_ref().map(|after| expiry(after, id).unwrap_or(now));
                (expires_at, after.map(State::Leases))
            }));
        }
        refuse_read_only_call(function)?;
        store::with_store(catalog, TableLock::Write, |store| {
            settle_row(store, &target, limit, id, fate)
        })
    })
}

/// Extends or releases a lease in the table.
///
/// # Errors
/// As [`settle`].
fn settle_row(
    store: &dyn Store,
    target: &Target,
    limit: &Concurrency,
    id: Micros,
    fate: Fate,
) -> Result<Option<Micros>> {
    let row = target.row(0);
    check_for_interrupts();
    // A lease that is not there is of no use to wait for: who has its id has seen it committed, or took it.
    let Some(seen) = store.read(row)? else { return Ok(None) };
    if matches!(seen.stored, Stored::Marker) {
        return Ok(None);
    }
    let now = clock::now();
    let state = target.state(&target.limit, Some(seen.stored.clone()), now)?;
    let Some(after) = fate.apply(limit, &state, now, id) else { return Ok(None) };
    let expires_at = expiry(&after, id).unwrap_or(now);
    // Not after waiting: then it is decided again, at that time.
    if store.replace(row, &seen, &State::Leases(after).into(), false)? {
        return Ok(Some(expires_at));
    }
    // Of a lease that has expired meanwhile the row is released.
    with_locked(store, row, |locked| {
        if matches!(locked.stored, Stored::Marker) {
            return Ok(None);
        }
        let now = clock::now();
        let state = target.state(&target.limit, Some(locked.stored), now)?;
        let Some(after) = fate.apply(limit, &state, now, id) else { return Ok(None) };
        let expires_at = expiry(&after, id).unwrap_or(now);
        store.update(row, locked.tuple, &State::Leases(after).into())?;
        Ok(Some(expires_at))
    })
}

/// Returns when a lease of a state expires.
fn expiry(state: &Leases, id: Micros) -> Option<Micros> {
    state.leases.iter().find(|lease| lease.id == id).map(|lease| lease.expires_at)
}

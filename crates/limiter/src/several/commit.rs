//! All or none: locks, decides again at one instant, and writes.

use ratelimit_core::{Micros, Shards};
use ratelimit_faults::Fault;

use super::decide::{Group, GroupVerdict};
use super::{RequestOutcome, at_once, decided, outcomes, peek, plan, with_expiries};
use crate::error::{LimiterError, Result};
use crate::ports::{Host, Rows, TRIES};
use crate::stores::shards::{self, LockedRows};

/// Where the rows are locked that a group is to change.
enum Locks {
    /// This transaction's, or as first seen there is nothing to change.
    Own,
    /// Those of others, for a dry run; it takes nothing then.
    Others,
    /// None: it is in memory.
    None,
}

/// The groups' contents, of which what is to be changed is locked.
type LockedGroups<'a> = Vec<(LockedRows<'a>, Locks)>;

/// Takes tokens for all groups, of which none is in the table, or for none.
pub(super) fn take_without_rows<H: Host>(
    host: &H,
    groups: &[Group],
) -> Result<Vec<RequestOutcome>> {
    let mut verdicts = Vec::new();
    if groups.iter().any(|group| group.entry.is_none()) {
        verdicts = peek(host, None, groups)?;
        if !verdicts.iter().all(GroupVerdict::allows) {
            return Ok(outcomes(groups, &verdicts, false));
        }
    }
    let (in_memory, ok) = plan::take(host, groups)?;
    if verdicts.is_empty() {
        return Ok(outcomes(groups, &in_memory, ok));
    }
    put(groups, &mut verdicts, in_memory);
    Ok(outcomes(groups, &verdicts, ok))
}

/// Takes tokens for all groups, or for none.
///
/// # Errors
/// [`LimiterError::NotWritten`] (55000) when rows keep vanishing.
pub(super) fn take<H: Host>(
    host: &H,
    rows: &dyn Rows,
    groups: &[Group],
) -> Result<Vec<RequestOutcome>> {
    for attempt in 0..TRIES {
        host.check_for_interrupts();
        let peeked = decided(host, Some(rows), groups)?;
        let ok = peeked.iter().all(GroupVerdict::allows);
        if !ok || peeked.iter().all(|verdict| verdict.change.is_none()) {
            return Ok(outcomes(groups, &peeked, ok));
        }
        let refusal = outcomes(groups, &peeked, false);
        // One row of each limit with shards on the first try, then as many as needed.
        match take_locked(host, rows, groups, peeked, attempt == 0) {
            Err(LimiterError::Busy) => return Ok(at_once(groups, refusal)),
            Ok(Some(outcomes)) => return Ok(outcomes),
            Ok(None) => {}
            Err(error) => return Err(error),
        }
    }
    Err(LimiterError::not_written())
}

/// Locks the rows that were peeked at, decides, and writes; `None` where they must be read again.
///
/// # Errors
/// [`LimiterError::Busy`]: rows are locked that can't be waited for.
fn take_locked<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    groups: &'a [Group],
    peeked: Vec<GroupVerdict<'a>>,
    single_row: bool,
) -> Result<Option<Vec<RequestOutcome>>> {
    let mut refused = None;
    let taken = host.attempt(|| {
        let Some(mut locked) = lock(host, rows, groups, peeked, single_row)? else {
            return Ok(None);
        };
        let Some(now) = apply_expired(host, rows, groups, &mut locked)? else {
            return Ok(None);
        };
        let (mut verdicts, sufficient) = decide(host, groups, &locked, now);
        if !verdicts.iter().all(GroupVerdict::allows) && !Fault::PartOfSeveral.is_on() {
            // A limit of which only some rows are locked may have enough in the others.
            if locked.iter().all(|(locked, _)| locked.is_whole()) {
                with_expiries(host, groups, &mut verdicts)?;
                refused = Some(outcomes(groups, &verdicts, false));
            }
            return Ok(None);
        }
        if !sufficient && !Fault::TooFewRowsSuffice.is_on() {
            return Ok(None);
        }
        let (in_memory, ok) = plan::take(host, groups)?;
        if !ok && !Fault::MemoryOverlooked.is_on() {
            put(groups, &mut verdicts, in_memory);
            refused = Some(outcomes(groups, &verdicts, false));
            return Ok(None);
        }
        for ((group, verdict), (locked, _)) in groups.iter().zip(&mut verdicts).zip(&locked) {
            if let (None, Some((before, after))) = (group.entry, &verdict.change) {
                let shards = &mut verdict.shards;
                locked.write(host, rows, &group.target, shards, verdict.now, (before, after))?;
            }
        }
        put(groups, &mut verdicts, in_memory);
        Ok(Some(outcomes(groups, &verdicts, true)))
    })?;
    Ok(taken.or(refused))
}

/// Locks the rows to be changed, limit by limit; of a limit with shards only one where `single_row`.
/// `None` if they must be read again.
///
/// # Errors
/// [`LimiterError::Busy`].
fn lock<'a, H: Host>(
    host: &H,
    rows: &dyn Rows,
    groups: &'a [Group],
    peeked: Vec<GroupVerdict<'a>>,
    single_row: bool,
) -> Result<Option<LockedGroups<'a>>> {
    let mut locked = Vec::with_capacity(groups.len());
    for (group, verdict) in groups.iter().zip(peeked) {
        host.check_for_interrupts();
        if group.entry.is_some() {
            locked.push((LockedRows::none(verdict.shards, None), Locks::None));
            continue;
        }
        let Some((before, after)) = &verdict.change else {
            locked.push((LockedRows::none(verdict.shards, verdict.holds_due), Locks::Own));
            continue;
        };
        let amount = after.value() - before.value();
        let seen = (!verdict.enforced).then(|| verdict.shards.clone());
        match (shards::lock(host, rows, &group.target, verdict.shards, amount, single_row), seen) {
            (Err(LimiterError::Busy), Some(seen)) => {
                locked.push((LockedRows::none(seen, None), Locks::Others))
            }
            (rows, _) => match rows? {
                Some(rows) => locked.push((rows, Locks::Own)),
                None => return Ok(None),
            },
        }
    }
    Ok(Some(locked))
}

/// Applies what has expired to the locked rows; returns the instant to decide at. `None` where rows must be read again.
fn apply_expired<H: Host>(
    host: &H,
    rows: &dyn Rows,
    groups: &[Group],
    locked: &mut LockedGroups,
) -> Result<Option<Micros>> {
    loop {
        let now = host.now();
        let is_due =
            |locked: &LockedRows| locked.holds_due.is_some_and(|holds_due| holds_due <= now);
        let Some(due) = locked.iter().position(|(locked, _)| is_due(locked)) else {
            return Ok(Some(now));
        };
        if !locked[due].0.apply_expired(host, rows, &groups[due].target)? {
            return Ok(None);
        }
    }
}

/// Decides all groups at one instant; whether the locked rows suffice for the changes.
fn decide<'a, H: Host>(
    host: &H,
    groups: &'a [Group],
    locked: &LockedGroups<'a>,
    now: Micros,
) -> (Vec<GroupVerdict<'a>>, bool) {
    let (mut verdicts, mut sufficient) = (Vec::with_capacity(groups.len()), true);
    for (group, (locked, locks)) in groups.iter().zip(locked) {
        host.check_for_interrupts();
        let shards: Shards<'a> = locked.shards.clone();
        let mut verdict = group.decide(host, shards, now);
        match locks {
            Locks::None => {}
            Locks::Others => verdict.give_up(),
            Locks::Own => {
                if let Some((before, after)) = &verdict.change {
                    sufficient &= locked.suffices(&verdict.shards, now, before, after);
                }
            }
        }
        verdicts.push(verdict);
    }
    (verdicts, sufficient)
}

/// Puts the verdicts of the groups that are in memory into their places among all.
fn put<'a>(groups: &[Group], verdicts: &mut [GroupVerdict<'a>], in_memory: Vec<GroupVerdict<'a>>) {
    let places = groups.iter().zip(verdicts).filter(|(group, _)| group.entry.is_some());
    places.zip(in_memory).for_each(|((_, place), verdict)| *place = verdict);
}

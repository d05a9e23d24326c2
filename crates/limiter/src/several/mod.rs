//! Several limits in one call, all or nothing.
//!
//! First a read without locks: if a limit refuses, that is the answer. Otherwise the rows are locked
//! in the order of name, key and shard, whatever the order of the requests, so that two such calls
//! never deadlock; then all limits are decided again, at one instant. If one refuses now, the locks
//! are released.
//!
//! Limits in memory come last, when no row is waited for any more: they are decided, and their entries locked and
//! written together, all or none, if they are still the same. Only then rows are written; where that fails,
//! what was taken from memory stays taken.

mod commit;
mod decide;
mod plan;

use std::collections::BTreeMap;

use ratelimit_core::{ArgumentError, Micros};
use ratelimit_faults::Fault;

use crate::error::{LimiterError, Result};
use crate::holds::expiry;
use crate::ports::{Host, RowAccess, Rows, TRIES, Verdict};
use crate::request::{Answer, LimitedBy, Request};
use crate::stores::{self, Peeked};
use crate::target::{Store, Target, check_count};

use decide::{Group, GroupVerdict, Taken};

/// How many requests of one call may be for limits in memory: what they take is written under locks that others wait
/// for.
pub const MAX_IN_MEMORY: usize = 1_000;

/// The outcome of one request.
pub struct RequestOutcome {
    /// Whether it refuses for ever, and so never lets the whole call pass.
    pub never: bool,
    /// The answer; its `ok` is that of the whole call, and its `limited_by` is about this limit alone, after the earlier
    /// requests for it.
    pub answer: Answer,
}

/// Takes tokens from all the limits, or from none.
///
/// # Errors
/// Those of [`single::limit`](crate::single::limit), each with the number of its request.
pub fn limit<H: Host>(host: &H, requests: &[Request]) -> Result<Vec<RequestOutcome>> {
    let groups = group("rl_limit_all", host, requests)?;
    let outcomes = if groups.iter().any(|group| group.target.store.is_in_table()) {
        host.refuse_read_only()?;
        host.with_rows(RowAccess::Write, |rows| commit::take(host, rows, &groups))?
    } else {
        // No row is read, and no table locked.
        commit::take_without_rows(host, &groups)?
    };
    for (request, outcome) in requests.iter().zip(&outcomes) {
        let verdict = match (outcome.answer.limited_by, outcome.answer.ok) {
            (None, true) => Verdict::Allowed,
            (None, false) => continue, // it took nothing, because of another
            _ => Verdict::Denied { enforced: outcome.answer.enforced },
        };
        let counter = host.counter(request.name, request.key)?;
        host.count(counter, request.counted(verdict, &outcome.answer));
    }
    Ok(outcomes)
}

/// Answers as [`limit`] would, without locking or writing anything.
pub fn check<H: Host>(host: &H, requests: &[Request]) -> Result<Vec<RequestOutcome>> {
    let groups = group("rl_check_all", host, requests)?;
    let check = |rows: Option<&dyn Rows>| {
        let peeked = decided(host, rows, &groups)?;
        Ok(outcomes(&groups, &peeked, peeked.iter().all(GroupVerdict::allows)))
    };
    if groups.iter().any(|group| group.target.store.is_in_table()) {
        host.with_rows(RowAccess::Read, |rows| check(Some(rows)))
    } else {
        check(None)
    }
}

/// Groups the requests by (name, key), in the order in which rows are locked.
///
/// # Errors
/// [`LimiterError::InRequest`]: as [`Target::resolve`], [`Target::refuse_leases`] or [`check_count`];
/// 22023 also for two configs of one limit, and for more requests of limits in memory than [`MAX_IN_MEMORY`].
fn group<'a, H: Host>(
    function: &'static str,
    host: &H,
    requests: &'a [Request],
) -> Result<Vec<Group<'a>>> {
    let mut groups: BTreeMap<(&[u8], &[u8]), Group> = BTreeMap::new();
    let mut in_memory = 0;
    for (n, request) in requests.iter().enumerate() {
        let in_request = |error| LimiterError::in_request(n + 1, error);
        let defined = request.config.is_none();
        let earlier = groups.get_mut(&(request.name, request.key));
        let target = match &earlier {
            // Not resolved again, since the definition may have changed meanwhile.
            Some(group) if defined && group.defined => group.target.clone(),
            _ => Target::resolve(host, request).map_err(in_request)?,
        };
        target.refuse_leases(function).map_err(in_request)?;
        check_count(target.limit(), request.count).map_err(in_request)?;
        let taken = Taken { n, count: request.count, reserve: request.reserve };
        in_memory += usize::from(target.store.is_in_memory());
        match earlier {
            Some(group) if group.target.definition != target.definition => {
                let error = ArgumentError::invalid(
                    "config",
                    "different from that of an earlier request for the same name and key",
                    "one config per name and key",
                );
                return Err(in_request(error.into()));
            }
            Some(group) => {
                group.defined |= defined;
                group.takes.push(taken);
            }
            None => {
                let entry = match target.store.is_in_memory() {
                    false => None,
                    true => Some(stores::memory::id(host.entries()?, &target, None)),
                };
                let phase = target.phase();
                let group = Group { target, defined, takes: vec![taken], phase, entry };
                groups.insert((request.name, request.key), group);
            }
        }
    }
    if in_memory > MAX_IN_MEMORY {
        let value = format!("a list with {in_memory} requests for limits in memory");
        let allowed = format!("at most {MAX_IN_MEMORY} of them in one call");
        return Err(ArgumentError::invalid("requests", value, allowed).into());
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    if Fault::RequestsUnsorted.is_on() {
        groups.sort_by_key(|group| group.takes[0].n);
    }
    Ok(groups)
}

/// Decides every group under the latest state, without locks. Where none is in the table there are no rows.
fn peek<'a, H: Host>(
    host: &H,
    rows: Option<&dyn Rows>,
    groups: &'a [Group],
) -> Result<Vec<GroupVerdict<'a>>> {
    for _ in 0..TRIES {
        let mut contents = Vec::with_capacity(groups.len());
        for group in groups {
            host.check_for_interrupts();
            contents.push(match without_holds(host, rows, group)? {
                Some(peeked) => (peeked, true),
                None => (stores::peek_with(host, rows, &group.target, group.entry)?, false),
            });
        }
        let now = host.now();
        let is_over = |(group, (peeked, is_unexpired)): (&Group, &(Peeked, bool))| {
            // It has expired since it was read, or its block has ended.
            peeked.holds_due.is_some_and(|holds_due| holds_due <= now)
                || *is_unexpired && group.target.block(now) != group.target.block(peeked.now)
        };
        if groups.iter().zip(&contents).any(is_over) {
            continue;
        }
        let decide = |(group, (peeked, _)): (&'a Group, (Peeked<'a>, bool))| {
            host.check_for_interrupts();
            let verdict = group.decide(host, peeked.shards, now);
            GroupVerdict { holds_due: peeked.holds_due, ..verdict }
        };
        return Ok(groups.iter().zip(contents).map(decide).collect());
    }
    Err(LimiterError::not_written())
}

/// Reads a group whose answer no hold that has expired can change, as [`single::look`](crate::single::look) does; `None`:
/// none has, or it matters.
fn without_holds<'a, H: Host>(
    host: &H,
    rows: Option<&dyn Rows>,
    group: &'a Group,
) -> Result<Option<Peeked<'a>>> {
    let now = host.now();
    let may_be = group.target.block(now).is_some() || group.never_passes(now);
    let Some(rows) = rows.filter(|_| may_be) else { return Ok(None) };
    let Some(peeked) = stores::peek_unexpired(host, rows, &group.target)? else { return Ok(None) };
    let verdict = group.decide(host, peeked.shards.clone(), peeked.now);
    Ok(Some(peeked).filter(|_| group.is_final(&verdict)))
}

/// Decides every group likewise; refusals know what expires.
fn decided<'a, H: Host>(
    host: &H,
    rows: Option<&dyn Rows>,
    groups: &'a [Group],
) -> Result<Vec<GroupVerdict<'a>>> {
    let verdicts = peek(host, rows, groups)?;
    let waits = |verdict: &GroupVerdict| verdict.holds_due.is_some() && !verdict.allows();
    let (Some(rows), true) = (rows, verdicts.iter().any(waits)) else { return Ok(verdicts) };
    let targets: Vec<&Target> = groups.iter().map(|group| &group.target).collect();
    expiry::in_one_state(host, rows, &targets, || {
        let mut verdicts = peek(host, Some(rows), groups)?;
        with_expiries(host, groups, &mut verdicts)?;
        Ok(verdicts)
    })
}

/// Has refusals know what expires.
fn with_expiries<H: Host>(host: &H, groups: &[Group], verdicts: &mut [GroupVerdict]) -> Result<()> {
    for (group, verdict) in groups.iter().zip(verdicts) {
        if verdict.holds_due.is_some() && !verdict.allows() {
            group.wait_for_expiries(host, verdict)?;
        }
    }
    Ok(())
}

/// The outcomes in the order of the requests.
fn outcomes(groups: &[Group], verdicts: &[GroupVerdict], ok: bool) -> Vec<RequestOutcome> {
    let mut outcomes: Vec<(usize, RequestOutcome)> = Vec::new();
    let never = !ok && verdicts.iter().any(GroupVerdict::is_never);
    for (group, verdict) in groups.iter().zip(verdicts) {
        let level = verdict.shards.level(verdict.now);
        for (taken, decision) in group.takes.iter().zip(&verdict.decisions) {
            let block = group.target.block(verdict.now);
            let mut answer = group.target.answer(decision, level, verdict.now).of_block(block);
            answer.ok = ok;
            // In a refused call a request that its limit allows has nothing to wait for; and a call
            // with a request that never passes never passes.
            let waits = if ok { decision.ok } else { !(verdict.passes(decision) || never) };
            answer.retry_after = answer.retry_after.filter(|_| waits);
            let never = !verdict.passes(decision) && decision.retry_after.is_none();
            outcomes.push((taken.n, RequestOutcome { never, answer }));
        }
    }
    outcomes.sort_by_key(|&(n, _)| n);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The outcomes where rows of shards are locked that can't be waited for: to be retried at once.
fn at_once(groups: &[Group], mut outcomes: Vec<RequestOutcome>) -> Vec<RequestOutcome> {
    for group in groups {
        for taken in &group.takes {
            let Some(RequestOutcome { answer, .. }) = outcomes.get_mut(taken.n) else { continue };
            answer.retry_after = Some(Micros(0));
            if matches!(group.target.store, Store::Shards(_)) {
                answer.limited_by = answer.limited_by.or(Some(LimitedBy::Tokens));
            }
        }
    }
    outcomes
}

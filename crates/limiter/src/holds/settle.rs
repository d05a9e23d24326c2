//! The settlement of holds: gives back what was not used, or takes what was used beyond it; once.

use std::rc::Rc;

use ratelimit_core::config::{Definition, MAX_TOKENS};
use ratelimit_core::hold::Hold;
use ratelimit_core::text::float_text;
use ratelimit_core::{ArgumentError, Decision, Micros};

use ratelimit_faults::Fault;

use super::expiry::{Limits, can_be_credited};
use super::{Settled, Used, random_id};
use crate::change::Change;
use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Host, RowAccess, RowId, Rows, TRIES};
use crate::request::Answer;
use crate::stores::shards::{self, LockedRows};
use crate::stores::{self, Peeked};
use crate::target::{Store, Target};

/// Refuses a number of used tokens.
///
/// # Errors
/// 22023: it is no number from 0 to 1e15.
pub(super) fn check_used(used: f64) -> Result<()> {
    match (0.0..=MAX_TOKENS).contains(&used) {
        true => Ok(()),
        false => {
            Err(ArgumentError::invalid("used", float_text(used), "a number from 0 to 1e15").into())
        }
    }
}

/// A limit of a hold that is being settled.
struct Part {
    row: HoldRow,
    /// `None`: it has no limit any more.
    definition: Option<Rc<Definition>>,
}

impl Part {
    fn target<H: Host>(&self) -> Option<Target<'_>> {
        let definition = self.definition.clone()?;
        Some(Target::defined::<H>(&self.row.name, &self.row.key, definition, None))
    }

    /// Whether something can come of the hold in the rows of its limit.
    fn is_in_rows(&self, target: &Target) -> bool {
        match (self.row.hold.lease, target.store) {
            (Some(_), Store::Row) => target.limit().concurrency().is_some(),
            (None, Store::Row | Store::Shards(_)) => can_be_credited(target.limit()),
            _ => false,
        }
    }
}

/// Settles the limits of a hold, which are in the order of name and key. Those that are gone by then are left out.
pub(super) fn settle<H: Host>(host: &H, held: Vec<HoldRow>, used: &Used) -> Result<Vec<Settled>> {
    let mut parts = Vec::with_capacity(held.len());
    for row in held {
        let mut limits = Limits::new(host, &row.name, &row.key, None)?;
        let definition = host.with_holds(|holds| limits.of(holds, &row))?;
        parts.push(Part { row, definition });
    }
    let targets: Vec<Option<Target>> = parts.iter().map(Part::target::<H>).collect();
    let answers = host.with_rows(RowAccess::Write, |rows| {
        if Fault::HoldDeletedFirst.is_on() {
            for HoldRow { id, name, key, .. } in parts.iter().map(|part| &part.row) {
                host.with_holds(|holds| holds.delete(id, name, key))?;
            }
        }
        for _ in 0..TRIES {
            host.check_for_interrupts();
            if let Some(locked) = lock(host, rows, &parts, &targets)? {
                return settle_locked(host, rows, &parts, &targets, locked, used);
            }
        }
        Err(LimiterError::not_written())
    })?;
    let mut settled = Vec::with_capacity(parts.len());
    for ((part, target), answer) in parts.iter().zip(&targets).zip(answers) {
        let answer = match (answer, target) {
            (Outcome::Gone, _) => continue,
            (Outcome::Settled(answer), _) => Some(answer),
            (Outcome::Deleted, None) => None,
            (Outcome::Deleted, Some(target)) => Some(level(host, target)?),
        };
        let HoldRow { name, key, .. } = &part.row;
        settled.push(Settled { name: name.clone(), key: key.clone(), answer });
    }
    Ok(settled)
}

/// What became of one limit of a hold.
enum Outcome {
    /// It was settled before.
    Gone,
    /// Nothing comes of it.
    Deleted,
    Settled(Answer),
}

/// The answer that nothing has changed.
fn level<H: Host>(host: &H, target: &Target) -> Result<Answer> {
    let Peeked { now, shards, .. } = stores::peek(host, target)?;
    let level = shards.level(now);
    Ok(target.answer(&Decision { ok: true, retry_after: None, level, state: None }, level, now))
}

/// Locks the rows in which something comes of a hold; `None` where they must be read again. None of a limit with shards
/// where this transaction has one already and another session another.
fn lock<'t, H: Host>(
    host: &H,
    rows: &dyn Rows,
    parts: &[Part],
    targets: &'t [Option<Target<'t>>],
) -> Result<Option<Vec<Option<LockedRows<'t>>>>> {
    let mut locked = Vec::with_capacity(parts.len());
    for (part, target) in parts.iter().zip(targets) {
        host.check_for_interrupts();
        let Some(target) = target.as_ref().filter(|target| part.is_in_rows(target)) else {
            if part.row.hold.returns() {
                // So that no other gives back what has expired of it.
                rows.lock(RowId { name: &part.row.name, key: &part.row.key, shard: 0 }, true)?;
            }
            locked.push(None);
            continue;
        };
        match shards::lock_whole(host, rows, target) {
            Ok(Some(row)) => locked.push(Some(row)),
            Ok(None) => return Ok(None),
            Err(LimiterError::Busy) if target.store != Store::Row => locked.push(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(locked))
}

/// Settles all at one instant, once what has expired by then is applied.
fn settle_locked<H: Host>(
    host: &H,
    rows: &dyn Rows,
    parts: &[Part],
    targets: &[Option<Target>],
    mut locked: Vec<Option<LockedRows>>,
    used: &Used,
) -> Result<Vec<Outcome>> {
    let mut now = apply_expired(host, rows, targets, &mut locked)?;
    let (mut deleted, has_waited) = delete(host, rows, parts)?;
    if has_waited {
        // Another session had a hold without its row. As if it were not deleted yet, what has expired meanwhile comes
        // first.
        for row in deleted.iter().flatten() {
            host.with_holds(|holds| holds.insert(row))?;
        }
        now = apply_expired(host, rows, targets, &mut locked)?;
        deleted = delete(host, rows, parts)?.0;
    }
    let mut outcomes = Vec::with_capacity(parts.len());
    for (((part, target), locked), deleted) in parts.iter().zip(targets).zip(locked).zip(deleted) {
        host.check_for_interrupts();
        let earlier = || Fault::HoldDeletedFirst.is_on().then(|| part.row.clone());
        let Some(mut row) = deleted.or_else(earlier) else {
            outcomes.push(Outcome::Gone);
            continue;
        };
        if Fault::HoldReadFirst.is_on() {
            row.hold = part.row.hold;
        }
        if Fault::RefundedToAnyWindow.is_on() && row.hold.lease.is_none() {
            row.hold.taken_at = now;
        }
        let is_in_rows = target.as_ref().is_some_and(|target| part.is_in_rows(target));
        if !is_in_rows && row.hold.returns() && row.hold.expires_at <= now {
            // It has come back, and waits for a limit that has holds again; its new id is known to no caller.
            let id = random_id(host)?;
            host.with_holds(|holds| holds.insert(&HoldRow { id, ..row.clone() }))?;
        }
        let used = used.of(&part.row.name);
        let answer = match (target, locked) {
            (Some(target), Some(locked)) => {
                let is_ignored = |state| target.limit().ignores(state, now);
                if locked.shards.states().iter().any(is_ignored) {
                    outcomes.push(Outcome::Gone); // as after a reset
                    continue;
                }
                Some(in_rows(host, rows, target, locked, now, &row.hold, used)?)
            }
            (Some(target), None) => in_shards(host, rows, target, &row.hold, used)?,
            (None, _) => None,
        };
        outcomes.push(answer.map_or(Outcome::Deleted, Outcome::Settled));
    }
    Ok(outcomes)
}

/// Applies what has expired to the rows that are locked; returns the instant until which it has.
fn apply_expired<H: Host>(
    host: &H,
    rows: &dyn Rows,
    targets: &[Option<Target>],
    locked: &mut [Option<LockedRows>],
) -> Result<Micros> {
    loop {
        let now = host.now();
        let due = locked.iter_mut().zip(targets).find_map(|(locked, target)| {
            let locked = locked.as_mut()?;
            let is_due = locked.holds_due.is_some_and(|holds_due| holds_due <= now);
            if is_due { Some((locked, target.as_ref()?)) } else { None }
        });
        let Some((locked, target)) = due else { return Ok(now) };
        if !locked.apply_expired(host, rows, target)? {
            return Err(LimiterError::not_written());
        }
    }
}

/// Deletes the limits of a hold; returns those that were there, and whether it waited for another session.
fn delete<H: Host>(
    host: &H,
    rows: &dyn Rows,
    parts: &[Part],
) -> Result<(Vec<Option<HoldRow>>, bool)> {
    let (mut deleted, mut has_waited) = (Vec::with_capacity(parts.len()), false);
    for HoldRow { id, name, key, .. } in parts.iter().map(|part| &part.row) {
        let began = host.now();
        deleted.push(host.with_holds(|holds| holds.delete(id, name, key))?);
        has_waited |= host.now().minus(began) >= rows.facts().patience;
    }
    Ok((deleted, has_waited))
}

/// Settles a hold in rows that are locked.
fn in_rows<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    locked: LockedRows,
    now: Micros,
    hold: &Hold,
    used: Option<f64>,
) -> Result<Answer> {
    let (limit, before) = (target.limit(), locked.shards.total(now));
    let decision = match hold.lease {
        Some(lease) => {
            let state = limit.release(&before, now, lease);
            let level = limit.level(state.as_ref().unwrap_or(&before), now);
            Some(Decision { ok: true, retry_after: None, level, state })
        }
        None => hold.settle(limit, &before, now, used),
    };
    let level = locked.shards.level(now);
    let unchanged = Decision { ok: true, retry_after: None, level, state: None };
    let decision = decision.unwrap_or(unchanged);
    let (mut shards, mut level) = (locked.shards.clone(), decision.level);
    if let Some(after) = &decision.state {
        locked.write(host, rows, target, &mut shards, now, (&before, after))?;
    }
    if target.store != Store::Row {
        level = shards.level(now);
    }
    Ok(target.answer(&decision, level, now))
}

/// Settles a hold, whose row is gone, of a limit that has got shards since, in those that this transaction has or can
/// have; `None`: nothing comes of it.
fn in_shards<H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &Target,
    hold: &Hold,
    used: Option<f64>,
) -> Result<Option<Answer>> {
    let is_sharded = matches!(target.store, Store::Shards(_));
    if !is_sharded || hold.lease.is_some() || !can_be_credited(target.limit()) {
        return Ok(None);
    }
    let (count, taken_at) = hold.credit(used);
    shards::apply(host, rows, target, &Change::Credit { count, taken_at }).map(Some)
}

//! The rows of a key: their shard numbers, their contents, and resharding.

use std::mem::take;

use ratelimit_core::kinds::Shape;
use ratelimit_core::{Limit, Micros, Shards, State};
use ratelimit_faults::Fault;

use super::super::delete::{lock_key, lock_or_busy};
use super::super::expiry::{self, Found};
use super::locked::Contents;
use crate::error::{LimiterError, Result};
use crate::ports::{Host, Row, RowId, Rows, ShardRow, Stored, tries};
use crate::target::Target;

/// Returns the number in the `shard` column for a shard, counted from 0, of a limit with this number of shards.
pub(super) fn shard_number(shard_count: u32, shard: usize) -> i32 {
    if shard_count == 1 { 0 } else { shard_count as i32 * 10_000 + 1 + shard as i32 }
}

/// The primary key of the row of a target's shard, counted from 0.
pub(super) fn row_of<'a>(target: &Target<'a>, shard: usize) -> RowId<'a> {
    target.row(shard_number(target.limit().shards(), shard))
}

/// The number of shards of the limit that a row with this shard number belongs to.
pub(crate) fn shards_of(number: i32) -> u32 {
    (number / 10_000).max(1) as u32
}

/// The rows of a key's shards: all but the marker.
pub(crate) fn of_shards(rows: &[ShardRow]) -> impl Iterator<Item = &ShardRow> {
    rows.iter().filter(|(_, row)| !row.stored.is_marker())
}

/// Whether a key has one row for each shard of a limit.
fn match_limit(limit: &Limit, rows: &[ShardRow]) -> bool {
    let count = limit.shards();
    let wanted = (0..count as usize).map(|shard| shard_number(count, shard));
    of_shards(rows).map(|&(number, _)| number).eq(wanted)
}

/// Interprets all rows of a key at `now`, an instant after the read: with a shard for each row, or for each shard of
/// the limit if it can't carry over any of their states.
pub fn interpret<'a>(
    target: &'a Target,
    mut rows: Vec<ShardRow>,
    now: Micros,
) -> Result<Found<'a>> {
    let limit = target.limit();
    let shard_count = limit.shards();
    let may_return = |root: &Row| shard_count == 1 && expiry::may_return(target, &root.stored);
    let root = rows.first().map(|(_, root)| root).filter(|root| !root.stored.is_marker());
    let due = root.filter(|root| may_return(root)).and_then(|root| root.holds_due);
    rows.retain(|(_, found)| !found.stored.is_marker());
    let matches_limit = match_limit(limit, &rows);
    let is_accepted = |(_, found): &ShardRow| match &found.stored {
        Stored::Reset { .. } => limit.accepts(Shape::Tokens), // as if it had been tokens, and were full
        stored => stored.suits(limit) == Some(true),
    };
    let is_fresh = !rows.iter().any(is_accepted);
    let state = |limit: &Limit, stored: Option<&Stored>| -> Result<State> {
        Ok(target.state(limit, stored, now)?.into_owned())
    };
    let shards = if matches_limit || is_fresh {
        let shard_limit = limit.shard_limit(shard_count);
        let mut rows = if matches_limit { rows } else { Vec::new() }.into_iter();
        let next =
            |_| state(&shard_limit, rows.next().map(|(_, found)| found.version.stored).as_ref());
        Shards::new(limit, (0..shard_count).map(next).collect::<Result<Vec<State>>>()?)
    } else {
        // Rows of another number of shards, which only a take reshards.
        let rows = rows.into_iter().map(|(number, found)| {
            let shard_limit = limit.shard_limit(shards_of(number)).into_owned();
            let state = state(&shard_limit, Some(&found.stored))?;
            Ok((shard_limit, state))
        });
        Shards::unequal(limit, rows.collect::<Result<_>>()?)
    };
    Ok(Found { shards, due })
}

/// Reads a target's rows on the latest state, without locks, as if expired holds were applied.
pub(crate) fn peek<'a>(
    host: &impl Host,
    rows: &dyn Rows,
    target: &'a Target,
) -> Result<(Found<'a>, Micros)> {
    let mut found = Vec::new();
    if target.limit().shards() == 1 {
        found.extend(rows.read(target.row(0))?.map(|row| (0, row)));
    }
    let is_marked = found.first().is_some_and(|(_, row)| row.stored.is_marker());
    if target.limit().shards() > 1 || is_marked {
        found = rows.read_key(target.name, target.key, None)?;
    }
    peek_found(host, rows, target, found, host.now())
}

/// As [`peek`], of rows that were read before `now`.
pub(crate) fn peek_found<'a>(
    host: &impl Host,
    rows: &dyn Rows,
    target: &'a Target,
    mut found: Vec<ShardRow>,
    mut now: Micros,
) -> Result<(Found<'a>, Micros)> {
    let contents = |found, now| -> Result<(Found<'a>, Micros)> {
        let Found { shards, due } = interpret(target, found, now)?;
        Ok((Found { shards, due: due.filter(|&due| due > now) }, now))
    };
    tries(host, || {
        let is_due = |row: &Row| target.limit().shards() == 1 && expiry::is_due(target, row, now);
        let Some((_, row)) = found.first().filter(|(_, row)| is_due(row)) else {
            return contents(take(&mut found), now).map(Some);
        };
        let mut one = row.clone();
        if row.stored.is_marker() {
            // As if the rows of a limit that had shards were one again.
            let shards = interpret(target, found.clone(), now)?.shards;
            let joined = shards.resharded(1, now).pop().map(Stored::State);
            one.version.stored = joined.unwrap_or(one.version.stored);
        }
        let one = expiry::on_copy(host, target, &one, now)?;
        // The holds were read after the rows.
        let again = rows.read_key(target.name, target.key, None)?;
        if again == found {
            return contents(vec![(0, one)], now).map(Some);
        }
        (found, now) = (again, host.now());
        Ok(None)
    })
}

/// The stored state in a target's rows, which have just been read, with shards their total, and the instant after the
/// read; `None`: nothing is stored.
pub(crate) fn stored(
    host: &impl Host,
    rows: &dyn Rows,
    target: &Target,
    found: Vec<ShardRow>,
) -> Result<(Option<State>, Micros)> {
    let is_stored = found.iter().any(|(_, row)| row.stored.suits(target.limit()) == Some(true));
    let (Found { shards, .. }, now) = peek_found(host, rows, target, found, host.now())?;
    let total = || shards.undivided().cloned().unwrap_or_else(|| shards.total(now).into_owned());
    Ok((is_stored.then(total), now))
}

/// Locks all rows of a key, row 0 first, and changes them to one for each shard of the limit, without changing their
/// total. `None`: another session has just made row 0, and the rows must be read again.
///
/// # Errors
/// [`Busy`](LimiterError::Busy): a row is locked, and `wait` is false; 55000: a trigger undoes it.
pub(crate) fn lock_all<'a>(
    host: &impl Host,
    rows: &dyn Rows,
    target: &'a Target,
    wait: bool,
) -> Result<Option<Contents<'a>>> {
    let (root, is_one) = (target.row(0), target.limit().shards() == 1);
    // Every change of the number of rows locks row 0 first: none can follow until this transaction ends.
    let mut first = lock_or_busy(rows, root, wait)?;
    if first.is_none() {
        // A row that was reset counts as none until it is written.
        let new = if is_one { Stored::Reset { ts: host.now() } } else { MARKER };
        if !rows.insert(root, &new.into(), true)? {
            return Ok(None);
        }
        first = if is_one { rows.lock(root, true)? } else { None };
    }
    let mut present = match first.filter(|row| is_one && !row.stored.is_marker()) {
        Some(row) => vec![(0, row)],
        None if Fault::ReshardWithoutLocks.is_on() => rows.read_key(root.name, root.key, None)?,
        None => lock_key(host, rows, root, wait)?,
    };
    let now = host.now();
    if !match_limit(target.limit(), &present) {
        let shards = interpret(target, present.clone(), now)?.shards;
        reshard(host, rows, target, present, &shards, now)?;
        present = lock_key(host, rows, root, wait)?;
        // Only a trigger of the owner can have changed them since.
        if !match_limit(target.limit(), &present) {
            return Err(LimiterError::not_written());
        }
    }
    let begins_anew = |(_, row): &ShardRow| target.begins_anew(&row.stored, now);
    let begins_anew = is_one && present.iter().any(begins_anew);
    let locked = of_shards(&present).map(|(_, row)| row.tuple).enumerate().collect();
    let found = interpret(target, present, now)?;
    Ok(Some(Contents { begins_anew, ..Contents::of(found, locked) }))
}

/// Row 0 of a limit with shards.
const MARKER: Stored = Stored::Marker { reset: false };

/// Replaces a key's locked rows, which hold `shards`, by one for each shard of the limit.
fn reshard(
    host: &impl Host,
    rows: &dyn Rows,
    target: &Target,
    mut locked: Vec<ShardRow>,
    shards: &Shards,
    now: Micros,
) -> Result<()> {
    let shard_count = target.limit().shards();
    let root = locked.iter().position(|&(number, _)| number == 0);
    let (_, root) = locked.remove(root.ok_or_else(LimiterError::not_written)?);
    for (number, found) in locked {
        rows.delete(target.row(number), found.tuple)?;
    }
    let states = shards.resharded(shard_count, now);
    if let [state] = &states[..] {
        let joined = root.with(Stored::State(state.clone()));
        return rows.update(target.row(0), root.tuple, &joined);
    }
    if !root.stored.is_marker() {
        rows.update(target.row(0), root.tuple, &root.with(MARKER))?;
    }
    for (shard, state) in states.into_iter().enumerate() {
        host.check_for_interrupts();
        rows.insert(row_of(target, shard), &Stored::State(state).into(), true)?;
    }
    Ok(())
}

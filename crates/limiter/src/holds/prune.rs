//! What a prune does about holds: gives back what has expired, of keys that no call is for and of limits that have got
//! shards since, and deletes what expired long ago.

use ratelimit_core::Micros;

use super::expiry::{self, Limits};
use super::settle::can_be_credited;
use crate::change::Change;
use crate::error::{LimiterError, Result};
use crate::ports::{HoldRow, Host, Row, RowAccess, RowId, Rows, Stored};
use crate::stores::{self, row, shards};
use crate::target::{FOREVER, Store, Target};

/// How many keys are listed at a time.
const PAGE: i64 = 100;

/// How long a settlement counts after the expiry.
const SETTLED_LATE: Micros = Micros::DAY;

/// The earliest time of a clock: 4714 BC.
const EARLIEST: Micros = Micros(-210_866_803_200_000_000);

/// The most holds of a key of a limit with shards that are given back at a time.
const MOST: i64 = 10_000;

/// Gives back what has expired, and then deletes holds that expired more than a day ago, at most `most` keys and holds;
/// returns how many. Keys that others have locked are left, and those whose rows have a value that no call writes.
pub(crate) fn prune<H: Host>(host: &H, most: i64) -> Result<i64> {
    if !host.has_holds() {
        return Ok(0);
    }
    let mut after = (Vec::new(), Vec::new());
    let mut given = 0;
    while given < most {
        host.check_for_interrupts();
        let (name, key) = &after;
        let page = PAGE.min(most - given);
        let due = host.with_holds(|holds| holds.due_keys((name, key), host.now(), page))?;
        let Some(last) = due.last().cloned() else { break };
        given += host.with_rows(RowAccess::Write, |rows| {
            due.iter().try_fold(0, |sum, (name, key)| {
                Ok(sum + i64::from(give_back_if_valid(host, rows, name, key)?))
            })
        })?;
        after = last;
    }
    if given >= most {
        return Ok(given);
    }
    let long_ago = host.now().minus(SETTLED_LATE);
    Ok(given + host.with_holds(|holds| holds.prune(long_ago, most - given))?)
}

/// Gives back what has expired of a key, unless its row can't be read, or another session has it locked. Returns whether it
/// did.
pub(crate) fn give_back_if_valid<H: Host>(
    host: &H,
    rows: &dyn Rows,
    name: &[u8],
    key: &[u8],
) -> Result<bool> {
    host.check_for_interrupts();
    match give_back(host, rows, RowId { name, key, shard: 0 }) {
        Err(LimiterError::BadState { .. } | LimiterError::Busy) => Ok(false),
        given => given,
    }
}

/// Gives back what has expired of a key. Returns whether it had its row to itself.
///
/// # Errors
/// [`LimiterError::BadState`] (55000); [`LimiterError::Busy`].
fn give_back<H: Host>(host: &H, rows: &dyn Rows, id: RowId) -> Result<bool> {
    let locked = match rows.lock(id, false)? {
        Some(row) => Some(row),
        None if rows.read(id)?.is_some() => return Ok(false), // the session that has it locked gives back
        None => {
            let full = Stored::Reset { ts: host.now() };
            match rows.insert(id, &full, None, false)? {
                true => rows.lock(id, true)?,
                false => None,
            }
        }
    };
    let Some(row) = locked else { return Ok(false) };
    if row.stored.is_marker() {
        return give_back_to_shards(host, rows, id, row).map(|()| true);
    }
    // Its row may have been deleted since a hold, which names the first.
    expiry::apply_locked(host, rows, id, Row { expires: Some(EARLIEST), ..row }).map(|_| true)
}

/// Gives back what has expired of a key that has shards, whose row 0 is locked.
fn give_back_to_shards<H: Host>(host: &H, rows: &dyn Rows, id: RowId, root: Row) -> Result<()> {
    let (RowId { name, key, .. }, now) = (id, host.now());
    let (mut due, next) = host.with_holds(|holds| {
        let due = holds.returning(name, key, EARLIEST, now, MOST)?;
        Ok((due, holds.returning(name, key, now.plus(Micros(1)), FOREVER, 1)?))
    })?;
    let mut limits = Limits::new(host, name, key)?;
    // First nothing of them comes back, so that no call gives it back as well.
    let mut back = due.clone();
    due.iter_mut().for_each(|hold| hold.hold = hold.hold.lost());
    rows.update(id, root.tuple, &root.stored, next.first().map(|next| next.hold.expires_at))?;
    host.with_holds(|holds| holds.expire(name, key, &due))?;
    for hold in &mut back {
        host.check_for_interrupts();
        give_back_one(host, rows, &mut limits, hold)?;
    }
    host.with_holds(|holds| holds.expire(name, key, &back))
}

/// Gives back what one hold has, and notes it there.
fn give_back_one<H: Host>(
    host: &H,
    rows: &dyn Rows,
    limits: &mut Limits,
    row: &mut HoldRow,
) -> Result<()> {
    let definition = host.with_holds(|holds| limits.of(holds, row))?;
    let (hold, mut back) = (row.hold, 0.0);
    if let Some(definition) = definition {
        let target = Target::defined::<H>(&row.name, &row.key, definition, None);
        if target.store.is_in_table() && can_be_credited(&target) {
            let held = hold.count - hold.old;
            let change = Change::Credit { count: held, taken_at: Some(hold.taken_at) };
            let before = stores::peek_rows(host, rows, &target)?;
            let had = before.shards.level(before.now).remaining;
            let answer = match target.store {
                Store::Row => row::apply(host, rows, &target, &change)?,
                _ => shards::apply(host, rows, &target, &change)?,
            };
            back = (answer.level.remaining - had).clamp(0.0, held);
        }
    }
    row.hold.count = hold.count - back;
    row.hold.back = hold.back + back;
    row.hold = row.hold.lost();
    Ok(())
}

//! Prunes holds: gives back expired ones, for keys without calls and for limits that have got shards since, and deletes
//! those that expired long ago.

use std::ops::ControlFlow;
use std::rc::Rc;

use ratelimit_core::Micros;
use ratelimit_core::config::{Definition, StoreKind};
use ratelimit_core::hold::{Hold, SETTLED_LATE};

use crate::error::{LimiterError, Result};
use crate::ports::{Host, Row, RowAccess, RowId, Rows, Stored, Version};
use crate::stores::expiry::{self, Limits};
use crate::stores::shards;
use crate::target::{FOREVER, Store, Target, if_valid};

/// The number of keys to list at a time.
const PAGE: i64 = 100;

/// The earliest time of a clock: 4714 BC.
const EARLIEST: Micros = Micros(-210_866_803_200_000_000);

/// The most holds of a key to give back at a time, if its limit has shards.
const MOST: i64 = 10_000;

/// Gives back expired holds, then deletes holds that expired more than a day ago, at most `most` keys and holds;
/// returns how many. Skips keys that others have locked, and keys with rows that have a value that no call writes.
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
        let due = host.with_key_holds(|holds| holds.due_keys((name, key), host.now(), page))?;
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
    Ok(given + host.with_key_holds(|holds| holds.prune(long_ago, most - given))?)
}

/// Gives back the expired holds of a key, unless its row can't be read, or another session has it locked. Returns
/// whether it did.
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

/// Gives back the expired holds of the keys of a name that are saved by now. Memory takes over their states, and
/// nothing comes back to them there.
pub fn give_back_to_saved<H: Host>(host: &H, rows: &dyn Rows, name: &[u8]) -> Result<()> {
    if !host.has_holds() {
        return Ok(());
    }
    for (name, key) in host.with_key_holds(|holds| holds.keys(Some(name), None, None))? {
        host.check_for_interrupts();
        let definition = if_valid(host.defined(&name, &key))?;
        let Some(definition) = definition.filter(|own| own.save.is_some()) else { continue };
        let in_table = Definition { store: StoreKind::Table, save: None, ..(*definition).clone() };
        let target = Target::defined::<H>(&name, &key, Rc::new(in_table), None);
        if let Some(row) = rows.lock(target.row(0), true)? {
            expiry::apply_locked(host, rows, target.row(0), Some(&target), row)?;
        }
    }
    Ok(())
}

/// Gives back the expired holds of a key. Returns whether it could.
///
/// # Errors
/// [`LimiterError::Busy`].
fn give_back<H: Host>(host: &H, rows: &dyn Rows, id: RowId) -> Result<bool> {
    let locked = match rows.lock(id, false)? {
        Some(row) => Some(row),
        None if rows.read(id)?.is_some() => return Ok(false), // the session that has it locked gives back
        None => {
            let full = Stored::Reset { ts: host.now() };
            match rows.insert(id, &full.into(), false)? {
                true => rows.lock(id, true)?,
                false => None,
            }
        }
    };
    let Some(mut row) = locked else { return Ok(false) };
    if row.stored.is_marker() {
        match give_back_to_shards(host, rows, id)? {
            ControlFlow::Break(done) => return Ok(done),
            ControlFlow::Continue(joined) => row = joined,
        }
    }
    // The row that named the first expiry may have been deleted since the hold.
    row.version.holds_due = Some(EARLIEST);
    let after = expiry::apply_locked(host, rows, id, None, row)?;
    // Expired holds may wait for a limit that has holds.
    Ok(after.holds_due != Some(EARLIEST))
}

/// Gives back the expired holds of a key with shards, under the locks of all its rows; breaks with whether all that can
/// come back has come back: not if the limit has no holds now. Goes on with the rows if they are one by now, locked.
///
/// # Errors
/// [`LimiterError::Busy`]: another session has locked one.
fn give_back_to_shards<H: Host>(
    host: &H,
    rows: &dyn Rows,
    id: RowId,
) -> Result<ControlFlow<bool, Row>> {
    let (RowId { name, key, .. }, now) = (id, host.now());
    let mut due = host.with_key_holds(|holds| holds.returning(name, key, EARLIEST, now, MOST))?;
    let mut limits = Limits::new(host, name, key, None)?;
    let Some(first) = due.first() else { return Ok(ControlFlow::Break(true)) };
    let Some(definition) = limits.of_expiry(first)? else { return Ok(ControlFlow::Break(false)) };
    let target = Target::defined::<H>(name, key, definition, None);
    let locked = host.attempt(|| shards::lock_all(host, rows, &target, false))?;
    let Some(mut locked) = locked else { return Ok(ControlFlow::Break(false)) };
    if target.store == Store::Row {
        let joined = rows.lock(id, true)?.ok_or_else(LimiterError::not_written)?;
        return Ok(ControlFlow::Continue(joined));
    }
    let before = locked.found.shards.total(now).into_owned();
    let mut after = before.clone();
    for row in &mut due {
        host.check_for_interrupts();
        // The rows show the state of now.
        let at_once = Hold { expires_at: now, ..row.hold };
        let (hold, state) = at_once.expired(target.limit(), &after);
        row.hold = Hold { expires_at: row.hold.expires_at, ..hold };
        after = state.unwrap_or(after);
    }
    if after != before {
        locked.write(rows, &target, now, &after)?;
    }
    let root = rows.lock(id, true)?.ok_or_else(LimiterError::not_written)?;
    let next = host.with_key_holds(|holds| {
        holds.expire(name, key, &due)?;
        holds.returning(name, key, EARLIEST, FOREVER, 1)
    })?;
    let holds_due = next.first().map(|next| next.hold.expires_at);
    let version = Version { holds_due, ..root.version };
    rows.update(id, root.tuple, &version)?;
    Ok(ControlFlow::Break(true))
}

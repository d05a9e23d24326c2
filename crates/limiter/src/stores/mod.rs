//! Where states live, and what is done to them there.
//!
//! Each has an `apply`, which locks, decides and writes a [`Change`](crate::change::Change), again where what it was
//! decided on has changed meanwhile; [`peek`] reads without that. Only this module knows of reset rows, of the row that marks that there are others, of the numbers
//! of shards and slots, and of whom to wait for.

mod delete;
mod saved;

pub mod memory;
pub(crate) mod row;
pub mod shards;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::rc::Rc;

use ratelimit_core::config::{Definition, MAX_SLOTS_IN_MEMORY};
use ratelimit_core::{Micros, Shards, State};

use crate::error::{LimiterError, Result};
use crate::holds::expiry;
use crate::keys::each_key;
use crate::ports::{Entries, Host, Id, KeyRows, Pool, RowAccess, RowId, Rows, SavedKey, ShardRow};
use crate::target::{Store, Target, has_no_rows, of_state};
use shards::contents::KeyShards;

pub use delete::{Batch, delete_key, prune_key, reset_key};
pub(crate) use delete::{forget_held, holders, shards_present};
pub use saved::write as save;

/// What a target holds, as it was read.
pub struct Peeked<'t> {
    /// The instant after the read.
    pub now: Micros,
    /// Its shards.
    pub shards: Shards<'t>,
    /// As in [`Row`](crate::ports::Row); later than `now`.
    pub holds_due: Option<Micros>,
}

/// Reads what a target holds, without locking, writing or waiting. What has expired by then is computed.
///
/// # Errors
/// [`LimiterError::BadState`] (55000).
pub fn peek<'t, H: Host>(host: &H, target: &'t Target) -> Result<Peeked<'t>> {
    match target.store {
        Store::Row | Store::Shards(_) => {
            host.with_rows(RowAccess::Read, |rows| peek_rows(host, rows, target))
        }
        _ => without_rows(host, target),
    }
}

/// Reads what a target holds, for a call, through rows that are in hand, if it has any, or in its entry.
pub fn peek_with<'t, H: Host>(
    host: &H,
    rows: Option<&dyn Rows>,
    target: &'t Target,
    entry: Option<Id>,
) -> Result<Peeked<'t>> {
    match (rows, entry) {
        (_, Some(id)) => {
            let found = memory::touch(host, target, id)?.state;
            let now = host.now();
            let state = memory::state(target, found, now, target.phase());
            Ok(Peeked { now, shards: Shards::new(target.limit(), vec![state]), holds_due: None })
        }
        (Some(rows), None) if target.store.is_in_table() => peek_rows(host, rows, target),
        _ => without_rows(host, target),
    }
}

/// What a target holds in these rows, which were read before `now`.
pub fn of_rows<'t>(target: &'t Target, rows: Vec<ShardRow>, now: Micros) -> Result<Shards<'t>> {
    Ok(shards::contents::interpret(target, rows, now)?.shards)
}

/// What a target holds in these rows, likewise, once what has expired is computed.
pub(crate) fn peek_found<'t, H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &'t Target,
    found: Vec<ShardRow>,
    now: Micros,
) -> Result<Peeked<'t>> {
    let is_due = |(_, row): &ShardRow| expiry::is_due(target, row, now);
    if target.store == Store::Row && found.first().is_some_and(is_due) {
        return peek_rows(host, rows, target);
    }
    Ok(peeked(target, now, shards::contents::interpret(target, found, now)?))
}

/// The shards of a target in these rows, which were read before `now`; what expires is not applied.
pub fn shards_of_rows<'t>(
    target: &'t Target,
    found: Vec<ShardRow>,
    now: Micros,
) -> Result<Shards<'t>> {
    Ok(shards::contents::interpret(target, found, now)?.shards)
}

/// Reads what a target holds that has no row: in memory, or full.
pub fn without_rows<'t, H: Host>(host: &H, target: &'t Target) -> Result<Peeked<'t>> {
    let found = match target.store {
        Store::Memory | Store::Saved => memory::read(host, target)?,
        _ => None,
    };
    let now = host.now();
    let state = found.unwrap_or_else(|| target.limit().initial_state(now, target.phase()));
    Ok(Peeked { now, shards: Shards::new(target.limit(), vec![state]), holds_due: None })
}

/// Reads the rows of a target, likewise.
pub(crate) fn peek_rows<'t, H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &'t Target,
) -> Result<Peeked<'t>> {
    let (now, found) = shards::contents::peek(host, rows, target)?;
    Ok(peeked(target, now, found))
}

/// What was found, with when something of it expires: of a limit with shards that is applied by a prune, and to one
/// without holds nothing comes back.
fn peeked<'t>(target: &Target, now: Micros, found: KeyShards<'t>) -> Peeked<'t> {
    let holds_due = found
        .holds_due
        .filter(|_| target.store == Store::Row && expiry::returns(&target.definition));
    Peeked { now, shards: found.shards, holds_due }
}

/// Reads the rows of a target as they are, likewise; `None`: nothing has expired that counts.
pub(crate) fn peek_unexpired<'t, H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &'t Target,
) -> Result<Option<Peeked<'t>>> {
    if target.store != Store::Row || !expiry::returns(&target.definition) {
        return Ok(None);
    }
    let Some(row) = rows.read(target.row(0))?.filter(|row| !row.stored.is_marker()) else {
        return Ok(None);
    };
    let now = host.now();
    if !expiry::is_due(target, &row, now) {
        return Ok(None);
    }
    let shards = shards::contents::interpret(target, vec![(0, row)], now)?.shards;
    Ok(Some(Peeked { now, shards, holds_due: None }))
}

/// Reads what is stored of a target: of a limit with shards their total; `None`: nothing, so that it is full. With the
/// instant after the read.
///
/// # Errors
/// [`LimiterError::BadState`] (55000).
pub fn stored<H: Host>(host: &H, target: &Target) -> Result<(Micros, Option<State>)> {
    match target.store {
        Store::Nowhere => Ok((host.now(), None)),
        Store::Memory | Store::Saved => {
            let found = memory::read(host, target)?;
            Ok((host.now(), found))
        }
        Store::Row | Store::Shards(_) => host.with_rows(RowAccess::Read, |rows| {
            let found = rows.read_key(target.name, target.key, None)?;
            let (now, shards) = shards::peek(host, rows, target)?;
            let total = || shards.undivided().cloned().unwrap_or_else(|| shards.total(now));
            Ok((now, delete::has_state(target.limit(), &found).then(total)))
        }),
    }
}

/// Forgets what is stored of a name and key, under its definition or a config in a call; false if there was nothing.
pub fn forget<H: Host>(
    host: &H,
    name: &[u8],
    key: &[u8],
    definition: Option<&Rc<Definition>>,
) -> Result<bool> {
    if let Some(definition) = definition.filter(|definition| definition.save.is_some()) {
        return saved::forget(host, &Target::defined::<H>(name, key, definition.clone(), None));
    }
    let in_memory_only = definition.is_some_and(|definition| has_no_rows(definition));
    if !in_memory_only {
        host.refuse_read_only()?;
    }
    let was_in_memory = forget_entries(host, name, key, definition)?;
    if in_memory_only {
        return Ok(was_in_memory);
    }
    let was_in_table = host.with_rows(RowAccess::Write, |rows| {
        let was = delete::reset_key(host, rows, name, key)?;
        if was {
            expiry::forget(host, RowId { name, key, shard: 0 })?;
        } else if !delete::holders(host, Some(name), Some(key))?.is_empty() {
            return delete::forget_holds(host, rows, name, key, true);
        }
        Ok(was)
    })?;
    Ok(was_in_memory || was_in_table)
}

/// Forgets what memory has of a name and key, as [`forget`] does, and locks no row; false if there was nothing. The row of
/// a limit that is saved is reset when it is written.
pub fn forget_in_memory<H: Host>(host: &H, name: &[u8], key: &[u8]) -> Result<bool> {
    match definition(host, name, key)? {
        Some(definition) if definition.save.is_some() => {
            saved::forget(host, &Target::defined::<H>(name, key, definition, None))
        }
        definition => forget_entries(host, name, key, definition.as_ref()),
    }
}

/// Forgets the entries of a name and key; false if there were none.
fn forget_entries<H: Host>(
    host: &H,
    name: &[u8],
    key: &[u8],
    definition: Option<&Rc<Definition>>,
) -> Result<bool> {
    // Without a definition, as many as any limit has; with another kind, those left from before the definition.
    let slots = match definition {
        Some(definition) if definition.limit.concurrency().is_none() => 0,
        _ => MAX_SLOTS_IN_MEMORY,
    };
    let entries = match definition.is_some_and(|definition| has_no_rows(definition)) {
        true => Some(host.entries()?),
        false => host.entries_if_any()?,
    };
    Ok(entries.is_some_and(|entries| {
        let id = entries.id(name, key);
        // No definition shows the kind of a config in a call.
        let inline = Id { pool: Pool::Inline, ..id };
        let was_inline = memory::forget(entries, inline, MAX_SLOTS_IN_MEMORY);
        memory::forget(entries, id, slots) || was_inline
    }))
}

/// Forgets what is stored of every key of a name, where the key's limit is, and adds how many there were to `count`: the
/// rows of a key that is in memory are left. Rows are locked and deleted key by key, in the order in which every call locks rows, or together where that takes too many messages: a
/// key that appears behind the current one counts as created after the call.
pub fn forget_name<H: Host>(
    host: &H,
    name: &[u8],
    may_be_in_table: bool,
    count: &mut i64,
) -> Result<()> {
    if may_be_in_table {
        host.refuse_read_only()?;
    }
    let entries = if may_be_in_table { host.entries_if_any()? } else { Some(host.entries()?) };
    let mut saved = BTreeSet::new();
    if let Some(entries) = entries {
        *count += entries.forget_name(name) as i64;
        saved.extend(entries.saved_keys(Some(name)).into_iter().map(|SavedKey { key, .. }| key));
    }
    if !may_be_in_table {
        return Ok(());
    }
    // Together only where the rows of each key are to be deleted, according to the name's own definition.
    let together = !definition(host, name, b"")?.is_some_and(|definition| has_no_rows(&definition));
    host.with_rows(RowAccess::Write, |rows| {
        if together && delete::delete_name(host, rows, name, count)? {
            return Ok(());
        }
        let mut delete = |key: &[u8], count: &mut i64| -> Result<()> {
            host.check_for_interrupts();
            match definition(host, name, key)? {
                Some(definition) if definition.save.is_some() => drop(saved.insert(key.to_vec())),
                Some(definition) if has_no_rows(&definition) => {}
                _ => *count += i64::from(delete::delete_key(host, rows, name, key)?),
            }
            Ok(())
        };
        let mut held = delete::holders(host, Some(name), None)?;
        delete(b"", count)?; // the first key, which comes after no other
        let visit = |found: KeyRows| {
            let due = |(_, key): &(Vec<u8>, Vec<u8>)| *key < found.key;
            delete::forget_held(host, rows, &mut held, true, due, |_| *count += 1)?;
            delete(&found.key, count)?;
            Ok(ControlFlow::Continue(()))
        };
        let _ = each_key(host, rows, (name, b""), true, visit)?;
        // With those that came meanwhile, of keys that are locked here; others would be locked out of order.
        held = delete::holders(host, Some(name), None)?;
        delete::forget_held(host, rows, &mut held, false, |_| true, |_| *count += 1)
    })?;
    // Their rows are written when they are saved: what is being saved now would bring the old state back.
    for key in saved {
        host.check_for_interrupts();
        if let Some(definition) =
            definition(host, name, &key)?.filter(|definition| definition.save.is_some())
        {
            let target = Target::defined::<H>(name, &key, definition, None);
            *count += i64::from(saved::forget(host, &target)?);
        }
    }
    Ok(())
}

/// The definition that has a key's state; `None`: there is none, or no valid one.
fn definition<H: Host>(host: &H, name: &[u8], key: &[u8]) -> Result<Option<Rc<Definition>>> {
    match of_state(host, name, key) {
        Err(LimiterError::StoredConfig { .. }) => Ok(None),
        definition => definition,
    }
}

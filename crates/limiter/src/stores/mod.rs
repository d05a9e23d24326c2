//! Stores of states, and the operations on them.
//!
//! [`peek`] reads; a change of shards or of an entry in memory is locked, decided and written here, and repeated if the
//! contents have changed meanwhile. Only this module knows of reset rows, of the row that marks other rows, and of
//! the numbers of shards and slots.

mod delete;

pub(crate) mod expiry;
pub mod memory;
pub mod shards;

use std::collections::BTreeSet;
use std::rc::Rc;

use ratelimit_core::config::{Definition, MAX_SLOTS_IN_MEMORY};
use ratelimit_core::{Micros, Shards, State};

use crate::error::Result;
use crate::ports::{Entries, Host, Id, KeyRef, Listing, Pool, Row, RowAccess, RowId, Rows};
use crate::target::{Store, Target, if_valid, of_state};
use delete::lock_or_busy;
use expiry::Found;
use shards::contents;

pub(crate) use delete::{Keys, holders};
pub use delete::{delete_key, prune_key, reset_key};
pub use expiry::give_back_to_saved;
pub use memory::save;
pub use shards::contents::interpret;
pub(crate) use shards::contents::{of_shards, peek_found};

/// Reads a target's contents, without locking, writing or waiting, and returns them with the instant after the read.
/// Computes expired holds: those in the contents are due later. Reads from `rows`, which are opened if the target needs
/// them and the call has none, or for a call from its `entry`.
pub fn peek<'t, H: Host>(
    host: &H,
    rows: Option<&dyn Rows>,
    target: &'t Target,
    entry: Option<Id>,
) -> Result<(Found<'t>, Micros)> {
    if target.store.is_in_table() {
        return match rows {
            Some(rows) => contents::peek(host, rows, target),
            None => host.with_rows(RowAccess::Read, |rows| contents::peek(host, rows, target)),
        };
    }
    let (found, now) = match entry {
        Some(id) => (memory::touch(host, target, id)?.state, host.now()),
        None => stored(host, target)?,
    };
    let state = target.limit().state_or_initial(found, now, target.phase());
    Ok((Shards::new(target.limit(), vec![state]).into(), now))
}

/// Reads the rows of a target as they are; `None`: nothing has expired that counts.
pub(crate) fn peek_unexpired<'t, H: Host>(
    host: &H,
    rows: &dyn Rows,
    target: &'t Target,
) -> Result<Option<Found<'t>>> {
    let row = match target.store {
        Store::Row if expiry::returns(&target.definition) => rows.read(target.row(0))?,
        _ => None,
    };
    let now = host.now();
    let due = row.filter(|row| !row.stored.is_marker() && expiry::is_due(target, row, now));
    due.map(|row| Ok(interpret(target, vec![(0, row)], now)?.shards.into())).transpose()
}

/// Reads a target's stored state, with the instant after the read; with shards, their total; `None`: nothing is stored,
/// and the limit is full.
pub fn stored<H: Host>(host: &H, target: &Target) -> Result<(Option<State>, Micros)> {
    if target.store.is_in_table() {
        return host.with_rows(RowAccess::Read, |rows| {
            contents::stored(host, rows, target, rows.read_key(target.name, target.key, None)?)
        });
    }
    let found = memory::read(host, target)?;
    Ok((found, host.now()))
}

/// Forgets the stored state of a name and key, under its definition or a config in a call; false if there was none.
pub fn forget<H: Host>(host: &H, of: KeyRef, definition: Option<&Rc<Definition>>) -> Result<bool> {
    let (name, key) = of;
    let is_in_memory = definition.is_some_and(|own| own.has_no_rows() || own.save.is_some());
    if !is_in_memory {
        host.refuse_read_only()?;
    }
    let was_in_memory = forget_in_memory(host, of, definition)?;
    if is_in_memory {
        return Ok(was_in_memory);
    }
    let id = RowId { name, key, shard: 0 };
    let listing = Listing { name: Some(name), key: Some(key), after: None };
    let was_in_table = host.with_rows(RowAccess::Write, |rows| {
        if delete::reset_key(host, rows, id)? {
            return expiry::forget(host, id).map(|()| true);
        }
        let is_held = !delete::holders(host, listing, false)?.is_empty();
        Ok(is_held && delete::forget_holds(host, rows, id, true)?)
    })?;
    Ok(was_in_memory || was_in_table)
}

/// Forgets the state in memory of a name and key, as [`forget`] does, and locks no row; false if there was none. The
/// row of a saved limit is reset when it is written.
pub fn forget_in_memory<H: Host>(
    host: &H,
    (name, key): KeyRef,
    definition: Option<&Rc<Definition>>,
) -> Result<bool> {
    if let Some(saved) = definition.filter(|own| own.save.is_some()) {
        return memory::forget_saved(host, &Target::defined::<H>(name, key, saved.clone(), None));
    }
    // Without a definition, as many as any limit has; with another kind, those left from before the definition.
    let slots = match definition {
        Some(definition) if definition.limit.concurrency().is_none() => 0,
        _ => MAX_SLOTS_IN_MEMORY,
    };
    let entries = match definition.is_some_and(|definition| definition.has_no_rows()) {
        true => Some(host.entries()?),
        false => host.entries_if_any()?,
    };
    Ok(entries.is_some_and(|entries| {
        let id = entries.id(name, key);
        // A config in a call may be of any kind.
        let inline = Id { pool: Pool::Inline, ..id };
        let was_inline = memory::remove(entries, inline, MAX_SLOTS_IN_MEMORY);
        memory::remove(entries, id, slots) || was_inline
    }))
}

/// Forgets the stored state of every key of a name, in the store of the key's limit, and adds the number of these keys
/// to `count`. Leaves the rows of a key that is in memory. Locks and deletes rows key by key, in the order in which
/// every call locks rows, or together if that takes too many messages: a key that appears behind the current one counts
/// as created after the call.
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
        saved.extend(entries.saved_keys(Some(name)).into_iter().map(|(_, key)| key));
    }
    if !may_be_in_table {
        return Ok(());
    }
    // Together only if the rows of each key are to be deleted, by the name's own definition.
    let together = !if_valid(of_state(host, name, b""))?.is_some_and(|own| own.has_no_rows());
    host.with_rows(RowAccess::Write, |rows| {
        if together && delete::delete_name(host, rows, name, count)? {
            return Ok(());
        }
        let delete = |id: RowId| {
            host.check_for_interrupts();
            match if_valid(of_state(host, id.name, id.key))? {
                Some(own) if own.save.is_some() => drop(saved.insert(id.key.to_vec())),
                Some(own) if own.has_no_rows() => {}
                _ => return delete::delete_key(host, rows, id),
            }
            Ok(false)
        };
        let listing = Listing { name: Some(name), ..Listing::default() };
        delete::forget_keys(host, rows, listing, delete, |_| *count += 1)
    })?;
    // Rows of saved keys are written when they are saved: a save in progress would bring the old state back.
    for key in saved {
        host.check_for_interrupts();
        let saved = if_valid(of_state(host, name, &key))?.filter(|own| own.save.is_some());
        if saved.is_some() {
            *count += i64::from(forget_in_memory(host, (name, &key), saved.as_ref())?);
        }
    }
    Ok(())
}

/// Forgets the state in memory of a key, of these names and of the names for which it is saved; adds to `forgotten` the
/// names that had a state of it. Locks no row: all rows of the key are locked later, in one order. As with a reset, a
/// rollback doesn't undo it.
///
/// # Errors
/// 53100 or 53200: a name's limit is in memory, and there is no memory.
pub fn forget_key_in_memory<H: Host>(
    host: &H,
    mut names: BTreeSet<Vec<u8>>,
    key: &[u8],
    forgotten: &mut BTreeSet<Vec<u8>>,
) -> Result<()> {
    if let Some(entries) = host.entries_if_any()? {
        let saved = entries.saved_keys(None).into_iter().filter(|(_, saved)| saved == key);
        names.extend(saved.map(|(name, _)| name));
    }
    for name in names {
        host.check_for_interrupts();
        let definition = if_valid(of_state(host, &name, key))?;
        if forget_in_memory(host, (&name, key), definition.as_ref())? {
            forgotten.insert(name);
        }
    }
    Ok(())
}

/// Deletes the rows of a key, in the order in which every call locks rows; adds to `forgotten` the names that had a
/// state of it there.
pub fn delete_rows<H: Host>(host: &H, key: &[u8], forgotten: &mut BTreeSet<Vec<u8>>) -> Result<()> {
    host.with_rows(RowAccess::Write, |rows| {
        let listing = Listing { key: Some(key), ..Listing::default() };
        let delete = |id: RowId| delete_key(host, rows, id);
        delete::forget_keys(host, rows, listing, delete, |name| forgotten.extend([name]))
    })
}

/// Locks a row and runs `work` on it, in a subtransaction, so that `None` releases the row. If rows are locked before
/// each write, does so only after a wait, since many subtransactions are slow. `None` also if the row is gone.
pub(crate) fn with_locked<T>(
    host: &impl Host,
    rows: &dyn Rows,
    id: RowId,
    work: impl FnOnce(Row) -> Result<Option<T>>,
) -> Result<Option<T>> {
    if rows.facts().locks_first
        && let Some(row) = rows.lock(id, false)?
    {
        return work(row);
    }
    host.attempt(|| rows.lock(id, true)?.map_or(Ok(None), work))
}

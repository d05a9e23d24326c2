//! Erases a key of all names. As with a reset, a rollback doesn't undo the changes in memory.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::ports::{Entries, Host, Listing, RowAccess, RowId};
use crate::stores;
use crate::target::{if_valid, of_state};

/// Resets a key in memory, of these names and of the names for which it is saved; adds to `forgotten` the names that
/// had a state of it. Locks no row: all rows of the key are locked later, in one order.
///
/// # Errors
/// 53100 or 53200: a name's limit is in memory, and there is no memory.
pub fn reset_in_memory<H: Host>(
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
        if stores::forget_in_memory(host, (&name, key), definition.as_ref())? {
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
        let delete = |id: RowId| stores::delete_key(host, rows, id);
        stores::forget_keys(host, rows, listing, delete, |name| forgotten.extend([name]))
    })
}

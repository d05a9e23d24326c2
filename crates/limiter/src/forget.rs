//! Erases a key of all names. As with a reset, a rollback doesn't undo the changes in memory.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::ports::{Entries, Host, RowAccess, SavedKey};
use crate::stores;

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
        let saved = entries.saved_keys(None).into_iter().filter(|saved| saved.key == key);
        names.extend(saved.map(|SavedKey { name, .. }| name));
    }
    for name in names {
        host.check_for_interrupts();
        if stores::forget_in_memory(host, &name, key)? {
            forgotten.insert(name);
        }
    }
    Ok(())
}

/// Deletes the rows of a key, in the order in which every call locks rows; adds to `forgotten` the names that had a
/// state of it there.
///
/// # Errors
/// [`LimiterError::NotWritten`](crate::error::LimiterError::NotWritten) (55000).
pub fn delete_rows<H: Host>(host: &H, key: &[u8], forgotten: &mut BTreeSet<Vec<u8>>) -> Result<()> {
    host.with_rows(RowAccess::Write, |rows| {
        let delete =
            |name: &[u8], of: &[u8]| Ok(of == key && stores::delete_key(host, rows, name, key)?);
        let had = |name| forgotten.extend([name]);
        stores::forget_keys(host, rows, None, Some(key), delete, had)
    })
}

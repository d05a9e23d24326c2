//! Erases a key of all names. A transaction that is rolled back doesn't undo what it does in memory, as with a reset.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::error::Result;
use crate::keys::each_key;
use crate::ports::{Entries, Host, KeyRows, RowAccess, SavedKey};
use crate::{single, stores};

/// Resets a key of these names and of those of which it is saved; adds the number of its states to `count`.
///
/// # Errors
/// Those of [`single::reset`].
pub fn reset<H: Host>(
    host: &H,
    mut names: BTreeSet<Vec<u8>>,
    key: &[u8],
    count: &mut i64,
) -> Result<()> {
    if let Some(entries) = host.entries_if_any()? {
        let saved = entries.saved_keys(None).into_iter().filter(|saved| saved.key == key);
        names.extend(saved.map(|SavedKey { name, .. }| name));
    }
    for name in names {
        host.check_for_interrupts();
        *count += i64::from(single::reset(host, &name, key)?);
    }
    Ok(())
}

/// Deletes the rows of a key; adds the number of names of which it had a state there to `count`.
///
/// # Errors
/// [`LimiterError::NotWritten`](crate::error::LimiterError::NotWritten) (55000).
pub fn delete_rows<H: Host>(host: &H, key: &[u8], count: &mut i64) -> Result<()> {
    host.with_rows(RowAccess::Write, |rows| {
        let visit = |found: KeyRows| {
            if found.key == key {
                *count += i64::from(stores::delete_key(host, rows, &found.name, key)?);
            }
            Ok(ControlFlow::Continue(()))
        };
        each_key(host, rows, (b"", b""), false, visit).map(|_| ())
    })
}

//! The cached tables: `rl_config`, the definitions of limits, and `rl_blocks`, the blocks of their keys.

pub mod blocks;
pub mod changed;
pub mod definitions;

use pgrx::pg_sys;
use ratelimit_pg::values::text_datum;

use crate::schema::catalog::{Catalog, Table, TableLock};
use crate::schema::error::Result;
use crate::schema::spi::{self, Connection, Statement};

/// Selects rows, under a lock, and reads their names.
fn names(
    catalog: &Catalog,
    table: Table,
    lock: TableLock,
    select: &Statement,
    parameters: &[Option<pg_sys::Datum>],
) -> Result<Vec<Vec<u8>>> {
    spi::with_owner(catalog, table, lock, |spi| {
        let count = spi.execute(select, parameters)?;
        Ok((0..count).filter_map(|row| spi.text(row, 1)).collect())
    })
}

/// Deletes the row of a name and key by two statements: the first locks it, because a row locked by another session
/// would be taken for one that a trigger keeps; the second deletes it. Returns the result of `read` on the locked row,
/// or `None` if there is no row.
///
/// # Errors
/// 55000: the row could not be deleted; the errors of `read`.
fn delete<T>(
    catalog: &Catalog,
    table: Table,
    [lock, delete]: [&Statement; 2],
    name: &[u8],
    key: &[u8],
    read: impl FnOnce(&Connection) -> Result<T>,
) -> Result<Option<T>> {
    spi::with_owner(catalog, table, TableLock::Write, |spi| {
        let id = [Some(text_datum(name)), Some(text_datum(key))];
        // A row deleted during the wait may have been inserted again.
        if spi.execute(lock, &id)? == 0 && spi.execute(lock, &id)? == 0 {
            return Ok(None);
        }
        let found = read(spi)?;
        if spi.execute(delete, &id)? > 0 { Ok(Some(found)) } else { Err(spi.not_written()) }
    })
}

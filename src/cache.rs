//! Keyed rows that sessions cache: the definitions of limits and the blocks of their keys.

pub mod blocks;
pub mod changed;
pub mod definitions;

use ratelimit_pg::values::text_datum;

use crate::schema::catalog::{Catalog, Table, TableLock};
use crate::schema::error::Result;
use crate::schema::spi::{self, Connection, Statement};

/// Reads the names in rows of a key, by a statement that selects them.
fn names_of(
    catalog: &Catalog,
    table: Table,
    select: &Statement,
    key: &[u8],
) -> Result<Vec<Vec<u8>>> {
    spi::with_owner(catalog, table, TableLock::Write, |spi| {
        let count = spi.execute(select, &[Some(text_datum(key))])?;
        Ok((0..count).filter_map(|row| spi.text(row, 1)).collect())
    })
}

/// Deletes the row of a name and key by two statements: one that locks it first, since another session's row would else
/// be taken for one that a trigger keeps, and one that deletes it. Returns what `read` makes of the locked row; `None`
/// where there is none.
///
/// # Errors
/// 55000: the row could not be deleted; those of `read`.
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
        // One that was deleted during the wait may have been made again.
        if spi.execute(lock, &id)? == 0 && spi.execute(lock, &id)? == 0 {
            return Ok(None);
        }
        let found = read(spi)?;
        if spi.execute(delete, &id)? > 0 { Ok(Some(found)) } else { Err(spi.not_written()) }
    })
}

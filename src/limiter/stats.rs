//! `rl_stats`, `rl_top_denied` and `rl_memory`: what the counters in shared memory say.

use pgrx::pg_sys;

use crate::pg::catalog::{self, TableLock};
use crate::pg::error::Result;
use crate::store::memory::{Denied, Memory, Scope, Totals};

/// Returns where the names of a function's limits are from.
///
/// # Errors
/// Those of the catalog.
fn scope(function: pg_sys::Oid) -> Result<Scope> {
    Ok(Scope::new(catalog::current(function, TableLock::Read)?.extension))
}

/// Returns the memory, without what is counted of dropped databases and extensions, and whose names these are.
///
/// # Errors
/// As [`totals`].
fn counted(function: pg_sys::Oid) -> Result<(&'static Memory, Scope)> {
    let (memory, scope) = (Memory::get()?, scope(function)?);
    memory.forget_dropped(scope);
    Ok((memory, scope))
}

/// Returns the counters of all names, in their order.
///
/// # Errors
/// Those of the catalog; raises 53100 or 53200 where there is no memory.
pub fn totals(function: pg_sys::Oid) -> Result<Vec<Totals>> {
    let (memory, scope) = counted(function)?;
    let mut totals = memory.tallies.totals(scope);
    totals.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(totals)
}

/// Sets the counters of a name to zero, or those of all names, and forgets which of their keys were
/// denied; returns of how many names.
///
/// # Errors
/// As [`totals`].
pub fn reset(function: pg_sys::Oid, name: Option<&[u8]>) -> Result<i64> {
    let (memory, scope) = counted(function)?;
    memory.rankings.forget(scope, name);
    Ok(memory.tallies.reset(scope, name) as i64)
}

/// Returns the keys that are denied most, of a name or of all.
///
/// # Errors
/// As [`totals`].
pub fn most_denied(
    function: pg_sys::Oid,
    name: Option<&[u8]>,
    max_rows: i64,
) -> Result<Vec<Denied>> {
    let (memory, scope) = counted(function)?;
    Ok(memory.rankings.most_denied(scope, name, max_rows as usize))
}

/// Returns the memory, which tells how much of it is in use.
///
/// # Errors
/// Raises 53100 or 53200 where there is no memory.
pub fn memory() -> Result<&'static Memory> {
    Memory::get()
}

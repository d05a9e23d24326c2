//! The row types that SQL functions return, cached for the session: a look-up costs as much as a good part of a call.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;

use pgrx::pg_sys;

use crate::error::{PgError, Result};

struct CachedType {
    function: pg_sys::Oid,
    /// CHANGES before the look-up.
    changes: u64,
    description: pg_sys::TupleDesc,
}

thread_local! {
    static KNOWN: RefCell<Vec<CachedType>> = const { RefCell::new(Vec::new()) };
    /// The relations of the composite types among them.
    static TYPES: RefCell<Vec<pg_sys::Oid>> = const { RefCell::new(Vec::new()) };
    /// Counts the invalidations that may concern one of these.
    static CHANGES: Cell<u64> = const { Cell::new(1) };
}

/// Counts the invalidation of a relation, or of all relations.
pub fn changed(relation: pg_sys::Oid) {
    let types = TYPES.try_with(|types| match types.try_borrow() {
        Ok(types) => types.contains(&relation),
        Err(_) => true,
    });
    if types.unwrap_or(true) || relation == pg_sys::InvalidOid {
        CHANGES.set(CHANGES.get() + 1);
    }
}

/// Counts invalidations of a composite type from now on, given by its relation.
fn watch(relation: pg_sys::Oid) {
    TYPES.with_borrow_mut(|types| {
        if !types.contains(&relation) {
            types.push(relation);
        }
    });
}

/// Returns the description of the rows that the function is declared to return, which must be `columns`
/// ([`PgError::Declaration`]). It stays allocated: after a change of the type, an outer call may still use it. If the
/// type turns out unchanged, the same description is returned, so that invalidations don't grow the session.
///
/// # Safety
/// `fcinfo` is that of the call.
pub unsafe fn row_type(
    fcinfo: pg_sys::FunctionCallInfo,
    columns: &[pg_sys::BuiltinOid],
) -> Result<pg_sys::TupleDesc> {
    // SAFETY: flinfo is set for every call through the function manager.
    let function = unsafe { (*(*fcinfo).flinfo).fn_oid };
    let changes = CHANGES.get();
    let known = KNOWN.with_borrow(|known| {
        let known = known.iter().find(|known| known.function == function);
        known.map(|known| (known.description, known.changes))
    });
    let known = match known {
        Some((description, seen)) if seen == changes => return Ok(description),
        known => known.map(|(description, _)| description),
    };
    // SAFETY: look-ups in the system catalogs; the copy lives as long as the backend.
    let description = unsafe {
        let mut declared: pg_sys::TupleDesc = std::ptr::null_mut();
        pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut declared);
        // The type's owner can alter its columns.
        let fits = |(n, column): (usize, &pg_sys::BuiltinOid)| {
            pg_sys::SPI_gettypeid(declared, n as c_int + 1) == column.value()
        };
        if declared.is_null()
            || (*declared).natts as usize != columns.len()
            || !columns.iter().enumerate().all(fits)
        {
            return Err(PgError::Declaration);
        }
        watch(pg_sys::get_typ_typrelid((*declared).tdtypeid));
        match known.filter(|&known| pg_sys::equalTupleDescs(known, declared)) {
            Some(same) => same,
            None => {
                let caller = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
                let description = pg_sys::BlessTupleDesc(pg_sys::CreateTupleDescCopy(declared));
                pg_sys::MemoryContextSwitchTo(caller);
                description
            }
        }
    };
    KNOWN.with_borrow_mut(|known| {
        known.retain(|known| known.function != function);
        known.push(CachedType { function, changes, description });
    });
    Ok(description)
}

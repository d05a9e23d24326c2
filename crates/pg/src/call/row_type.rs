//! The row types that SQL functions are declared to return: the library's column of each attribute, by its name. A type
//! may have more attributes than the library has columns, because newer scripts add some at its end, which are NULL; or
//! fewer. Cached for the session, because a look-up takes a large part of the time of a call.

use std::cell::{Cell, RefCell};

use pgrx::pg_sys;

use super::Call;
use super::sql_types::ResultColumn;
use crate::error::{PgError, Result};

/// A row type that a function is declared to return.
pub struct RowType {
    function: pg_sys::Oid,
    /// CHANGES before the last look-up.
    changes: Cell<u64>,
    /// Its attributes.
    pub description: pg_sys::TupleDesc,
    /// The source of the attributes' values.
    pub order: Order,
}

/// The columns in the order of a type's attributes.
pub enum Order {
    /// The attributes are the columns.
    Same,
    /// The column of each attribute; `None`: NULL.
    Other(Box<[Option<usize>]>),
}

impl Order {
    /// Finds the columns of a type's attributes. [`PgError::Declaration`]: an attribute with the name of a column has
    /// another type, or no attribute has the name of a column.
    ///
    /// # Safety
    /// The description is valid.
    pub unsafe fn of(description: pg_sys::TupleDesc, columns: &[ResultColumn]) -> Result<Order> {
        // SAFETY: as the caller says.
        let mut order = vec![None; unsafe { (*description).natts } as usize];
        for (n, column) in columns.iter().enumerate() {
            // SAFETY: as the caller says; the number is that of an attribute if it is positive.
            let (number, of) = unsafe {
                let number = pg_sys::SPI_fnumber(description, column.name.as_ptr());
                match number {
                    1.. => (number as usize, pg_sys::SPI_gettypeid(description, number)),
                    _ => continue,
                }
            };
            if of != column.oid.value() {
                return Err(PgError::Declaration);
            }
            order[number - 1] = Some(n);
        }
        if order.iter().all(Option::is_none) {
            return Err(PgError::Declaration);
        }
        let is_same = order.len() == columns.len()
            && order.iter().enumerate().all(|(n, &column)| column == Some(n));
        Ok(if is_same { Order::Same } else { Order::Other(order.into()) })
    }

    /// Passes columns to `work` in the order of the attributes: the values, and whether each is NULL.
    pub fn arrange<T>(
        &self,
        values: &mut [pg_sys::Datum],
        nulls: &mut [bool],
        work: impl FnOnce(&mut [pg_sys::Datum], &mut [bool]) -> T,
    ) -> T {
        let Order::Other(order) = self else { return work(values, nulls) };
        let value = |column: &Option<usize>| {
            let column = column.filter(|&n| nulls.get(n) == Some(&false));
            let value = column.and_then(|n| values.get(n));
            value.map_or((pg_sys::Datum::from(0), true), |&value| (value, false))
        };
        let (mut values, mut nulls): (Vec<_>, Vec<_>) = order.iter().map(value).unzip();
        work(&mut values, &mut nulls)
    }
}

thread_local! {
    static KNOWN: RefCell<Vec<&'static RowType>> = const { RefCell::new(Vec::new()) };
    /// The relations of the composite types among them.
    static TYPES: RefCell<Vec<pg_sys::Oid>> = const { RefCell::new(Vec::new()) };
    /// Counts the invalidations that may concern one of these types.
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

/// The number of changes of types seen so far.
pub fn changes() -> u64 {
    CHANGES.get()
}

/// Counts the invalidations of a composite type from now on, given by its relation.
fn watch(relation: pg_sys::Oid) {
    TYPES.with_borrow_mut(|types| {
        if !types.contains(&relation) {
            types.push(relation);
        }
    });
}

/// Returns the row type that the function is declared to return, which must fit `columns` ([`PgError::Declaration`]).
/// It stays allocated: after a change of the type, an outer call may still use it. If the type turns out unchanged, the
/// same one is returned, so that invalidations don't grow the session.
pub fn row_type(call: &Call, columns: &[ResultColumn]) -> Result<&'static RowType> {
    let function = call.function();
    let changes = CHANGES.get();
    let known =
        KNOWN.with_borrow(|all| all.iter().copied().find(|known| known.function == function));
    if let Some(known) = known.filter(|known| known.changes.get() == changes) {
        return Ok(known);
    }
    // SAFETY: look-ups in the system catalogs; the copy lives as long as the backend.
    unsafe {
        let mut declared: pg_sys::TupleDesc = std::ptr::null_mut();
        pg_sys::get_call_result_type(call.fcinfo, std::ptr::null_mut(), &mut declared);
        if declared.is_null() {
            return Err(PgError::Declaration);
        }
        watch(pg_sys::get_typ_typrelid((*declared).tdtypeid));
        if let Some(same) =
            known.filter(|known| pg_sys::equalTupleDescs(known.description, declared))
        {
            same.changes.set(changes);
            return Ok(same);
        }
        let (order, changes) = (Order::of(declared, columns)?, Cell::new(changes));
        let caller = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
        let description = pg_sys::BlessTupleDesc(pg_sys::CreateTupleDescCopy(declared));
        pg_sys::MemoryContextSwitchTo(caller);
        let new = &*Box::leak(Box::new(RowType { function, changes, description, order }));
        KNOWN.with_borrow_mut(|all| {
            all.retain(|known| known.function != function);
            all.push(new);
        });
        Ok(new)
    }
}

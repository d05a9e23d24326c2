//! A row as an argument: its columns by name and type.

use std::ffi::CStr;

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{BOOLOID, FLOAT8OID, TIMESTAMPTZOID};
use ratelimit_core::{ArgumentError, Micros};

use super::sql_types::{Argument, ResultColumn};
use crate::clock::instant;
use crate::error::Result;

/// A row of any type.
pub struct Composite {
    argument: &'static str,
    row: pg_sys::HeapTupleData,
    descriptor: pg_sys::TupleDesc,
}

impl Argument<'_> for Composite {
    const SQL: &'static str = "record";

    /// The value lives as long as the current memory context.
    unsafe fn read(datum: pg_sys::Datum, argument: &'static str) -> Result<Composite> {
        // SAFETY: as the caller says; the description is a copy of that of the type in the value's header.
        unsafe {
            let header: pg_sys::HeapTupleHeader =
                pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
            let r#type = (*header).t_choice.t_datum;
            Ok(Composite {
                argument,
                row: pg_sys::HeapTupleData {
                    t_len: pgrx::varsize(header.cast()) as u32,
                    t_data: header,
                    ..Default::default()
                },
                descriptor: pg_sys::lookup_rowtype_tupdesc_copy(
                    r#type.datum_typeid,
                    r#type.datum_typmod,
                ),
            })
        }
    }
}

impl Composite {
    /// The number of a column, if it has this type.
    fn number(&self, column: &CStr, of: pg_sys::BuiltinOid) -> Option<i32> {
        // SAFETY: the description is that of the row's type.
        unsafe {
            let number = pg_sys::SPI_fnumber(self.descriptor, column.as_ptr());
            let is_there =
                number > 0 && pg_sys::SPI_gettypeid(self.descriptor, number) == of.value();
            is_there.then_some(number)
        }
    }

    /// Refuses a row that has not all of these columns, with these types. `allowed`: the rows that have them,
    /// for the error.
    ///
    /// # Errors
    /// [`ArgumentError::Invalid`] (22023).
    pub fn require(&self, columns: &[ResultColumn], allowed: &str) -> Result<()> {
        match columns.iter().find(|column| self.number(column.name, column.oid).is_none()) {
            None => Ok(()),
            Some(ResultColumn { name, sql, .. }) => {
                let value = format!("a row without a column {} {sql}", name.to_string_lossy());
                Err(ArgumentError::invalid(self.argument, value, allowed).into())
            }
        }
    }

    /// Reads a column; `None`: NULL, or no such column.
    fn field(&self, column: &CStr, of: pg_sys::BuiltinOid) -> Option<pg_sys::Datum> {
        let number = self.number(column, of)?;
        let mut is_null = false;
        let row = (&raw const self.row).cast_mut();
        // SAFETY: the description is that of the row's type, and the row is only read.
        let datum = unsafe { pg_sys::heap_getattr(row, number, self.descriptor, &mut is_null) };
        (!is_null).then_some(datum)
    }

    /// Reads a boolean column.
    pub fn bool(&self, column: &CStr) -> Option<bool> {
        Some(self.field(column, BOOLOID)?.value() as u8 != 0)
    }

    /// Reads a double precision column.
    pub fn float(&self, column: &CStr) -> Option<f64> {
        Some(f64::from_bits(self.field(column, FLOAT8OID)?.value() as u64))
    }

    /// Reads a timestamptz column; `Some(None)` if it is infinite.
    pub fn timestamptz(&self, column: &CStr) -> Option<Option<Micros>> {
        self.field(column, TIMESTAMPTZOID).map(|at| instant(at.value() as i64))
    }
}

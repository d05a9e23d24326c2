//! A row as an argument: its columns by name and type.

use std::ffi::CStr;

use pgrx::pg_sys;
use ratelimit_core::ArgumentError;

use super::sql_types::{Argument, SqlValue};
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
    /// Reads a column; `None`: NULL. `allowed`: the rows that have it, with this type, for the error.
    ///
    /// # Errors
    /// [`ArgumentError::Invalid`] (22023).
    pub fn field<T: SqlValue + Argument<'static>>(
        &self,
        column: &CStr,
        allowed: &str,
    ) -> Result<Option<T>> {
        let row = (&raw const self.row).cast_mut();
        // SAFETY: the description is that of the row's type, and the row is only read.
        unsafe {
            let number = pg_sys::SPI_fnumber(self.descriptor, column.as_ptr());
            let is_of = || pg_sys::SPI_gettypeid(self.descriptor, number);
            if number <= 0 || is_of() != <T as SqlValue>::OID.value() {
                let (column, sql) = (column.to_string_lossy(), <T as SqlValue>::SQL);
                let value = format!("a row without a column {column} {sql}");
                return Err(ArgumentError::invalid(self.argument, value, allowed).into());
            }
            let mut is_null = false;
            let datum = pg_sys::heap_getattr(row, number, self.descriptor, &mut is_null);
            (!is_null).then(|| T::read(datum, self.argument)).transpose()
        }
    }
}

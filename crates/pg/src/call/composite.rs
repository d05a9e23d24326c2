//! A composite argument: its columns by name and type.

use std::ffi::CStr;
use std::marker::PhantomData;

use pgrx::pg_sys;
use ratelimit_core::Micros;

use super::sql_types::{Argument, SqlRow};
use crate::clock::instant;
use crate::error::{PgError, Result};

/// A value of R's composite type. Reading a column: `None` if it is NULL; [`PgError::AlteredColumn`] (42804) if the type
/// has no such column of that type.
pub struct Composite<R> {
    row: pg_sys::HeapTupleData,
    descriptor: pg_sys::TupleDesc,
    r#type: PhantomData<R>,
}

impl<R: SqlRow> Argument<'_> for Composite<R> {
    const SQL: &'static str = R::TYPE;

    /// The value lives as long as the current memory context.
    unsafe fn read(datum: pg_sys::Datum, _: &'static str) -> Result<Composite<R>> {
        // SAFETY: as the caller says; the description is a copy of that of the type in the value's header.
        unsafe {
            let header: pg_sys::HeapTupleHeader =
                pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
            let r#type = (*header).t_choice.t_datum;
            Ok(Composite {
                row: pg_sys::HeapTupleData {
                    t_len: pgrx::varsize(header.cast()) as u32,
                    t_data: header,
                    ..Default::default()
                },
                descriptor: pg_sys::lookup_rowtype_tupdesc_copy(
                    r#type.datum_typeid,
                    r#type.datum_typmod,
                ),
                r#type: PhantomData,
            })
        }
    }
}

impl<R> Composite<R> {
    /// Reads a column. Its type is checked, since the owner of a table or type can alter its columns.
    fn field(&self, name: &CStr, of: pg_sys::BuiltinOid) -> Result<Option<pg_sys::Datum>> {
        // SAFETY: the description is that of the row's type, and the row is only read.
        unsafe {
            let number = pg_sys::SPI_fnumber(self.descriptor, name.as_ptr());
            if number <= 0 || pg_sys::SPI_gettypeid(self.descriptor, number) != of.value() {
                return Err(PgError::AlteredColumn { column: name.to_string_lossy().into() });
            }
            let mut is_null = false;
            let row = (&raw const self.row).cast_mut();
            let datum = pg_sys::heap_getattr(row, number, self.descriptor, &mut is_null);
            Ok((!is_null).then_some(datum))
        }
    }

    /// Reads a boolean column.
    pub fn bool(&self, name: &CStr) -> Result<Option<bool>> {
        let datum = self.field(name, pg_sys::BuiltinOid::BOOLOID)?;
        Ok(datum.map(|datum| datum.value() as u8 != 0))
    }

    /// Reads a double precision column.
    pub fn float(&self, name: &CStr) -> Result<Option<f64>> {
        let datum = self.field(name, pg_sys::BuiltinOid::FLOAT8OID)?;
        Ok(datum.map(|datum| f64::from_bits(datum.value() as u64)))
    }

    /// Reads a timestamptz column; `Some(None)` if it is infinite.
    pub fn timestamptz(&self, name: &CStr) -> Result<Option<Option<Micros>>> {
        Ok(self.field(name, pg_sys::BuiltinOid::TIMESTAMPTZOID)?.map(instant))
    }
}

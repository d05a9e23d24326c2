//! Results of SQL functions: a value, a row, or a set of rows.

use pgrx::pg_sys;

use super::sql_types::{ResultColumn, SqlRow, SqlValue};
use super::{Call, Rows};
use crate::error::Result;

/// The declared result of a function.
#[derive(Clone, Copy)]
pub enum Returned {
    /// A value of an SQL type.
    Value(&'static str),
    /// A row of a composite type, of these columns.
    Row(&'static str, &'static [ResultColumn]),
    /// A set of rows.
    Rows(&'static str, &'static [ResultColumn]),
}

/// The result of an SQL function.
pub trait SqlResult: Sized {
    /// How it is declared.
    const RETURNED: Returned;

    /// Runs before the arguments are read. [`PgError::Declaration`](crate::error::PgError::Declaration): the declared
    /// result is different.
    fn begin(_: &Call) -> Result<()> {
        Ok(())
    }

    /// Converts the result to a datum.
    fn end(self, call: &Call) -> Result<pg_sys::Datum>;
}

impl<T: SqlValue> SqlResult for T {
    const RETURNED: Returned = Returned::Value(T::SQL);

    fn end(self, call: &Call) -> Result<pg_sys::Datum> {
        Ok(self.datum().unwrap_or_else(|| call.null()))
    }
}

impl<R: SqlRow> SqlResult for Rows<R> {
    const RETURNED: Returned = Returned::Rows(R::TYPE, R::COLUMNS);

    fn end(self, call: &Call) -> Result<pg_sys::Datum> {
        Ok(call.null())
    }
}

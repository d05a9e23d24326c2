//! Descriptions of tuples without their trailing NULLs. A column missing from a tuple is NULL, as after ADD COLUMN. So
//! a row with NULLs only at the end needs no NULL flags, and is 8 bytes shorter.

use std::cell::Cell;

use pgrx::{PgMemoryContexts, pg_sys};

use crate::schema::unaltered_table::{self, COLUMNS, Column, HOLD_COLUMNS};

/// The descriptions for an unaltered table of `N` columns, by the number of columns in a tuple. Each is made once
/// per session.
pub struct Shortened<const N: usize> {
    columns: &'static [Column; N],
    made: [Cell<pg_sys::TupleDesc>; N],
}

thread_local! {
    /// The descriptions of rateLimits.
    pub static LIMITS: Shortened<COLUMNS> = const { Shortened::new(&unaltered_table::LIMITS) };
    /// The descriptions of rl_holds.
    pub static HOLDS: Shortened<HOLD_COLUMNS> = const { Shortened::new(&unaltered_table::HOLDS) };
}

impl<const N: usize> Shortened<N> {
    const fn new(columns: &'static [Column; N]) -> Shortened<N> {
        Shortened { columns, made: [const { Cell::new(std::ptr::null_mut()) }; N] }
    }

    /// Describes a tuple of the columns up to the last that is not NULL; `whole` describes one of all columns. Calls
    /// Postgres: not inside a guard.
    pub fn description(&self, whole: pg_sys::TupleDesc, nulls: &[bool; N]) -> pg_sys::TupleDesc {
        let count = nulls.iter().rposition(|null| !null).map_or(0, |last| last + 1);
        let Some(short) = self.made.get(count) else { return whole };
        if short.get().is_null() {
            // SAFETY: an array of as many columns as are then described; it lives as long as the session.
            short.set(unsafe {
                PgMemoryContexts::TopMemoryContext.switch_to(|_| {
                    let made = pg_sys::CreateTemplateTupleDesc(count as _);
                    for n in 0..count {
                        let Column { name, data_type, .. } = self.columns[n];
                        let (number, data_type) = (n as i16 + 1, data_type.value());
                        pg_sys::TupleDescInitEntry(made, number, name.as_ptr(), data_type, -1, 0);
                    }
                    made
                })
            });
        }
        short.get()
    }
}

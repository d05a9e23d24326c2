//! Forms rows by copying a template and setting the values, because `heap_form_tuple` takes a fifth of the time of a
//! call that writes no table.
//!
//! The header of a tuple depends on the description and on the columns with NULLs, and minor releases have added to it.
//! So `heap_form_tuple` forms the template for each pattern of NULLs. Its values follow the header, each aligned to its
//! width. A constant is the last column, and part of the template.

use std::cell::RefCell;

use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{BOOLOID, FLOAT8OID, TIMESTAMPTZOID};

use super::sql_types::ResultColumn;
use crate::unguarded;

/// The tuple for a description, pattern of NULLs and constant, with every other value 0.
struct Template {
    description: pg_sys::TupleDesc,
    nulls: Vec<bool>,
    /// 0: none, or NULL.
    constant: pg_sys::Datum,
    bytes: Vec<u8>,
    /// The place and width of each value, in bytes; width 0 for NULL and the constant.
    places: Vec<(usize, usize)>,
}

thread_local! {
    static TEMPLATES: RefCell<Vec<Template>> = const { RefCell::new(Vec::new()) };
}

/// Returns the width of a type with values that can be copied into a template: a type passed by value.
const fn width(column: &ResultColumn) -> Option<usize> {
    match column.oid {
        BOOLOID => Some(1),
        FLOAT8OID | TIMESTAMPTZOID => Some(8),
        _ => None,
    }
}

/// Whether rows of these columns can be formed by a template.
pub const fn fits(columns: &[ResultColumn]) -> bool {
    let mut n = 0;
    while n < columns.len() {
        let is_last_constant = n + 1 == columns.len() && columns[n].is_constant;
        if width(&columns[n]).is_none() && !is_last_constant {
            return false;
        }
        n += 1;
    }
    true
}

/// Forms a row of columns that [fit](fits), as a composite datum in the current memory context; `None` if there is no
/// memory. Each type of row `R` has its own copy of this code, to inline it.
///
/// # Safety
/// The description lives as long as the session, and has these columns.
pub unsafe fn row<R>(
    description: pg_sys::TupleDesc,
    columns: &[ResultColumn],
    values: &[pg_sys::Datum],
    nulls: &[bool],
) -> Option<pg_sys::Datum> {
    let constant = match (columns, values) {
        ([.., last], [.., value]) if last.is_constant => *value,
        _ => pg_sys::Datum::from(0),
    };
    TEMPLATES.with_borrow_mut(|templates| {
        let of = |known: &Template| {
            known.description == description && known.constant == constant && known.nulls == nulls
        };
        let n = templates.iter().position(of).unwrap_or_else(|| {
            // SAFETY: as the caller says.
            templates.push(unsafe { template(description, columns, nulls, constant) });
            templates.len() - 1
        });
        let template = &templates[n];
        // SAFETY: the copy is as long as the template, and the places are within it.
        unsafe {
            let row =
                unguarded::palloc_extended(template.bytes.len(), pg_sys::MCXT_ALLOC_NO_OOM as i32)
                    .cast::<u8>();
            if row.is_null() {
                return None;
            }
            row.copy_from_nonoverlapping(template.bytes.as_ptr(), template.bytes.len());
            for (value, &(place, width)) in values.iter().zip(&template.places) {
                let value = value.value();
                match width {
                    1 => row.add(place).write(value as u8),
                    8 => row.add(place).cast::<u64>().write_unaligned(value as u64),
                    _ => {}
                }
            }
            Some(pg_sys::Datum::from(row))
        }
    })
}

/// Forms the template for a pattern of NULLs and a constant.
///
/// # Safety
/// As [`row`].
unsafe fn template(
    description: pg_sys::TupleDesc,
    columns: &[ResultColumn],
    nulls: &[bool],
    constant: pg_sys::Datum,
) -> Template {
    let mut values = vec![pg_sys::Datum::from(0); nulls.len()];
    if let Some(last) = values.last_mut() {
        *last = constant;
    }
    let nulls = nulls.to_vec();
    // SAFETY: as the caller says; the tuple has the length that its header says.
    let (bytes, mut end) = unsafe {
        let tuple =
            pg_sys::heap_form_tuple(description, values.as_mut_ptr(), nulls.as_ptr().cast_mut());
        let header = (*tuple).t_data;
        let bytes = std::slice::from_raw_parts(header.cast::<u8>(), (*tuple).t_len as usize);
        let copy = (bytes.to_vec(), usize::from((*header).t_hoff));
        pg_sys::heap_freetuple(tuple);
        copy
    };
    let place = |(column, &null): (&ResultColumn, &bool)| match width(column) {
        Some(width) if !null => {
            let place = end.next_multiple_of(width);
            end = place + width;
            (place, width)
        }
        _ => (end, 0),
    };
    let places = columns.iter().zip(&nulls).map(place).collect();
    Template { description, nulls, constant, bytes, places }
}

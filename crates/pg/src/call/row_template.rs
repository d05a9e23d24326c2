//! Forms rows by copying a template and setting the values, because `heap_form_tuple` takes a fifth of the time of a
//! call that writes no table.
//!
//! A tuple's header depends on the description and on which columns are NULL, and minor releases have added to it. So
//! `heap_form_tuple` forms the template for each pattern of NULLs, and the place of a value is found by forming the
//! tuple with another value and comparing the bytes.

use std::cell::RefCell;
use std::ops::Range;

use pgrx::pg_sys;

use crate::unguarded;

/// The tuple for a description and pattern of NULLs, with every value 0; no bytes: it can't be used.
struct Template {
    description: pg_sys::TupleDesc,
    nulls: Vec<bool>,
    bytes: Vec<u8>,
    /// The place of each column's value; empty for NULL.
    places: Vec<Range<usize>>,
}

thread_local! {
    static TEMPLATES: RefCell<Vec<Template>> = const { RefCell::new(Vec::new()) };
}

/// Forms a row of values that are passed by value, as a composite datum in the current memory context; `None` if there
/// is no memory, or no template can be used.
///
/// # Safety
/// The description lives as long as the session, and has these columns, none by reference.
pub unsafe fn row(
    description: pg_sys::TupleDesc,
    values: &[pg_sys::Datum],
    nulls: &[bool],
) -> Option<pg_sys::Datum> {
    TEMPLATES.with_borrow_mut(|templates| {
        let of = |known: &Template| known.description == description && known.nulls == nulls;
        let place = templates.iter().position(of).unwrap_or_else(|| {
            // SAFETY: as the caller says.
            templates.push(unsafe { learn(description, nulls) });
            templates.len() - 1
        });
        let template = &templates[place];
        if template.bytes.is_empty() {
            return None;
        }
        // SAFETY: the copy is as long as the template, and the places are within it.
        unsafe {
            let row =
                unguarded::palloc_extended(template.bytes.len(), pg_sys::MCXT_ALLOC_NO_OOM as i32)
                    .cast::<u8>();
            if row.is_null() {
                return None;
            }
            row.copy_from_nonoverlapping(template.bytes.as_ptr(), template.bytes.len());
            for (value, place) in values.iter().zip(&template.places) {
                let value = value.value();
                match place.len() {
                    1 => row.add(place.start).write(value as u8),
                    8 => row.add(place.start).cast::<u64>().write_unaligned(value as u64),
                    _ => {}
                }
            }
            Some(pg_sys::Datum::from(row))
        }
    })
}

/// Makes the template for a pattern of NULLs; without bytes if a value's place is not 1 or 8 adjacent bytes.
///
/// # Safety
/// As [`row`].
unsafe fn learn(description: pg_sys::TupleDesc, nulls: &[bool]) -> Template {
    let form = |values: &mut [pg_sys::Datum]| {
        let mut nulls = nulls.to_vec();
        // SAFETY: as the caller says; the row is as long as it says.
        unsafe {
            let tuple =
                pg_sys::heap_form_tuple(description, values.as_mut_ptr(), nulls.as_mut_ptr());
            let bytes =
                std::slice::from_raw_parts((*tuple).t_data.cast::<u8>(), (*tuple).t_len as usize);
            let bytes = bytes.to_vec();
            pg_sys::heap_freetuple(tuple);
            bytes
        }
    };
    let zero = pg_sys::Datum::from(0);
    let mut values = vec![zero; nulls.len()];
    let mut bytes = form(&mut values);
    let mut places = Vec::new();
    for (n, &null) in nulls.iter().enumerate() {
        values[n] = pg_sys::Datum::from(usize::MAX);
        let other = form(&mut values);
        values[n] = zero;
        let changed = |&at: &usize| bytes.get(at) != other.get(at);
        let place: Vec<usize> = (0..bytes.len().max(other.len())).filter(changed).collect();
        let place = match (place.first(), place.last()) {
            (Some(&first), Some(&last)) if last - first + 1 == place.len() => first..last + 1,
            _ => 0..0,
        };
        let alone = if null { place.is_empty() } else { [1, 8].contains(&place.len()) };
        if !alone || other.len() != bytes.len() {
            bytes.clear();
            break;
        }
        places.push(place);
    }
    Template { description, nulls: nulls.to_vec(), bytes, places }
}

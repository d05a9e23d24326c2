//! Rows made from a template equal those that heap_form_tuple forms.

#[pgrx::pg_schema]
mod tests {
    use fastrand::Rng;
    use pgrx::pg_sys;
    use pgrx::prelude::*;

    use super::super::get;
    use crate::functions::RlResult;
    use ratelimit_pg::call::row_template;
    use ratelimit_pg::call::sql_types::{SqlColumns, constant_text};

    /// Returns the description of a row type, which lives as long as the session.
    fn description(of: &str) -> pg_sys::TupleDesc {
        let oid: pg_sys::Oid = get(&format!("SELECT '{of}'::regtype::oid"));
        // SAFETY: the type exists; the copy is in a context that lives as long as the backend.
        unsafe {
            let of_type = pg_sys::lookup_rowtype_tupdesc_copy(oid, -1);
            let caller = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            let description = pg_sys::BlessTupleDesc(pg_sys::CreateTupleDescCopy(of_type));
            pg_sys::MemoryContextSwitchTo(caller);
            description
        }
    }

    /// Returns the bytes of a composite datum.
    ///
    /// # Safety
    /// The datum is a composite.
    unsafe fn bytes(row: pg_sys::Datum) -> Vec<u8> {
        // SAFETY: as the caller says.
        unsafe {
            let length = pgrx::varsize_any(row.cast_mut_ptr());
            std::slice::from_raw_parts(row.cast_mut_ptr::<u8>(), length).to_vec()
        }
    }

    #[pg_test]
    fn a_row_is_that_of_heap_form_tuple_bit_for_bit() {
        let random = &mut Rng::with_seed(1);
        static BY: [&[u8]; 3] = [
            &constant_text::<6>("block"),
            &constant_text::<6>("slots"),
            &constant_text::<7>("tokens"),
        ];
        let rl_result = description("rl_result");
        for _ in 0..2_000 {
            let mut nulls: [bool; 7] = std::array::from_fn(|_| random.u8(..3) == 0);
            let mut values: [pg_sys::Datum; 7] = std::array::from_fn(|n| match n {
                0 => random.bool().into(),
                6 if nulls[6] => 0.into(),
                6 => BY[random.usize(..3)].as_ptr().into(),
                _ => random.i64(..).into(),
            });
            // SAFETY: the type's columns are a boolean, floats, times and a text.
            unsafe {
                let row =
                    row_template::row::<RlResult>(rl_result, RlResult::COLUMNS, &values, &nulls)
                        .unwrap();
                let tuple =
                    pg_sys::heap_form_tuple(rl_result, values.as_mut_ptr(), nulls.as_mut_ptr());
                let formed = pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data);
                assert_eq!(bytes(row), bytes(formed), "{values:?} {nulls:?}");
            }
        }
    }
}

//! The values that a window function keeps for a partition, however it calls `in_partition`.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::{get, run};
    use crate::declaration::sql_function;
    use crate::schema::error::{Error, Result};
    use ratelimit_pg::call::Call;
    use ratelimit_pg::call::sql_types::sql_row;

    sql_row! {
        /// The values before a row.
        pub struct TestKept as "kept_before" {
            sum: f64,
            text: i32,
            inner: f64,
        }
    }

    sql_function! {
        /// Remembers a value, and calls for it and for one of another type while it is in use.
        #[effect(Window)]
        fn test_kept(call: &Call, n: f64) -> TestKept {
            call.in_partition(|sum: &mut f64| -> Result<_, Error> {
                let inner = call.in_partition(|sum: &mut f64| -> Result<_, Error> {
                    *sum += 1000.0;
                    Ok(*sum)
                })?;
                let text = call.in_partition(|text: &mut String| -> Result<_, Error> {
                    text.push('.');
                    Ok(text.len() as i32 - 1)
                })?;
                let before = *sum;
                *sum += n;
                Ok(TestKept { sum: before, text, inner })
            })
        }
    }

    #[pg_test]
    fn each_partition_keeps_a_value() {
        let name = test_kept.name;
        run(&format!(
            "CREATE TYPE kept_before AS (sum float8, text integer, \"inner\" float8);
             CREATE FUNCTION {name}(n float8) RETURNS kept_before
             LANGUAGE c WINDOW AS 'ratelimit', '{name}'"
        ));
        let kept: Vec<String> =
            get("SELECT array_agg(format('%s %s: %s', p, n, kept) ORDER BY p, n) FROM (
                SELECT p, n, test_kept(n) OVER (PARTITION BY p ORDER BY n) AS kept
                FROM (VALUES ('a', 1), ('a', 2), ('b', 5), ('a', 4), ('b', 6)) rows (p, n)) every");
        let expected = [
            "a 1: (0,0,1000)",
            "a 2: (1,0,1000)",
            "a 4: (3,0,1000)",
            "b 5: (0,0,1000)",
            "b 6: (5,0,1000)",
        ];
        assert_eq!(kept, expected);
    }
}

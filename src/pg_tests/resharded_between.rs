//! Changes the number of shards between two steps of a reset: listing a key's rows, and locking each. The rows are the
//! table's; the test only chooses the moment of the other session's call.

#[pgrx::pg_schema]
mod tests {
    use std::cell::Cell;

    use pgrx::prelude::*;
    use ratelimit_limiter::error::Result;
    use ratelimit_limiter::pass_on;
    use ratelimit_limiter::ports::{
        KeyRows, KeyedRow, Row, RowFacts, RowId, Rows, ShardRow, TupleId, Version,
    };
    use ratelimit_limiter::stores::{delete_key, reset_key};

    use super::super::{get, run, with_session};
    use crate::host::Session;

    const ID: RowId = RowId { name: b"between", key: b"", shard: 0 };

    /// A store in which others call before and after the first list of a key's rows.
    struct Between<'a> {
        rows: &'a dyn Rows,
        lists: Cell<usize>,
    }

    impl Rows for Between<'_> {
        fn read_key(
            &self,
            name: &[u8],
            key: &[u8],
            shards: Option<&[i32]>,
        ) -> Result<Vec<ShardRow>> {
            let first = self.lists.replace(self.lists.get() + 1) == 0;
            if first {
                run(
                    "SELECT public.rl_limit('between', count => 2, config => public.rl_token_bucket(4, '1 day'))",
                );
            }
            let rows = self.rows.read_key(name, key, shards);
            if first {
                let sharded = "public.rl_token_bucket(4, '1 day', shards => 2)";
                run(&format!("SELECT public.rl_limit('between', count => 2, config => {sharded})"));
            }
            rows
        }

        pass_on! { rows:
            read(id: RowId) -> Result<Option<Row>>;
            read_after(after: (&[u8], &[u8]), same_name: bool, rows: i64) -> Result<Vec<KeyedRow>>;
            random_key() -> Result<Option<(Vec<u8>, Vec<u8>)>>;
            lock(id: RowId, wait: bool) -> Result<Option<Row>>;
            insert(id: RowId, version: &Version, wait: bool) -> Result<bool>;
            update(id: RowId, locked: TupleId, version: &Version) -> Result<()>;
            delete(id: RowId, locked: TupleId) -> Result<()>;
        }

        fn facts(&self) -> RowFacts {
            RowFacts { locks_first: true, ..self.rows.facts() }
        }

        fn replace(&self, _: RowId, _: &Row, _: &Version, _: bool) -> Result<bool> {
            Ok(false)
        }

        fn remove(&self, _: &[KeyRows]) -> Result<u64> {
            Ok(0)
        }

        fn delete_name(&self, _: &[u8]) -> Result<Option<Vec<KeyedRow>>> {
            Ok(None)
        }
    }

    /// Runs work on such a store in either mode, and returns how many of the 4 tokens are left.
    fn left_after(work: fn(&Session, &dyn Rows) -> Result<bool>) -> Vec<f64> {
        let left = |access| {
            run(&format!("SET LOCAL ratelimit.access = {access}"));
            // A reset reads row 0 first, and lists the rows only if that is a marker.
            run(
                "SELECT public.rl_limit('between', config => public.rl_token_bucket(8, '1 day', shards => 2))",
            );
            let was = with_session(|host, rows| work(host, &Between { rows, lists: Cell::new(0) }))
                .unwrap();
            assert!(was, "{access}");
            let sharded = "public.rl_token_bucket(4, '1 day', shards => 2)";
            let left = get(&format!(
                "SELECT remaining FROM public.rl_check('between', config => {sharded})"
            ));
            run("DELETE FROM public.ratelimits");
            left
        };
        ["heap", "sql"].map(left).to_vec()
    }

    #[pg_test]
    fn a_reset_finds_the_rows_that_others_have_made_meanwhile() {
        run("SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00'");
        assert_eq!(left_after(|host, rows| reset_key(host, rows, ID)), [4.0, 4.0]);
        assert_eq!(left_after(|host, rows| delete_key(host, rows, ID)), [4.0, 4.0]);
    }
}

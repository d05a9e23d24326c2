//! Subtransactions that are rolled back: their locks, their writes, and what was remembered of them.

#[pgrx::pg_schema]
mod tests {
    use pgrx::pg_sys;
    use pgrx::prelude::*;
    use ratelimit_core::kinds::Tokens;
    use ratelimit_core::{Micros, State};

    use super::super::{and_rolled_back, attempt, get, run, with_rows};
    use crate::schema::error::Error;
    use crate::store::own_locks;
    use ratelimit_limiter::error::LimiterError;
    use ratelimit_limiter::ports::{Row, RowId, Stored, Version};

    const ID: RowId = RowId { name: b"rolled back", key: b"k", shard: 0 };

    fn tokens(value: f64) -> Version {
        Stored::State(State::Tokens(Tokens { value, ts: Micros(1_000_000), added: None })).into()
    }

    fn value_of(row: Row) -> f64 {
        match row.version.stored {
            Stored::State(state) => state.value(),
            of_none => panic!("{of_none:?}"),
        }
    }

    fn holds(lock: &str) -> bool {
        get(&format!(
            "SELECT EXISTS (SELECT FROM pg_locks
                            WHERE pid = pg_backend_pid() AND relation = 'other'::regclass AND mode = '{lock}')"
        ))
    }

    #[pg_test]
    fn a_failed_attempt_releases_its_locks() {
        run("CREATE TABLE other ()");
        run("LOCK TABLE other IN SHARE MODE");
        let lock = || run("LOCK TABLE other IN EXCLUSIVE MODE");
        let kept = attempt(|| {
            lock();
            assert!(holds("ExclusiveLock"));
            Ok(None::<()>)
        });
        assert!(kept.unwrap().is_none() && !holds("ExclusiveLock") && holds("ShareLock"));
        let kept = attempt(|| {
            lock();
            Err::<Option<()>, Error>(LimiterError::Busy.into())
        });
        assert!(matches!(kept, Err(Error::Limiter(LimiterError::Busy))) && !holds("ExclusiveLock"));
        let kept = attempt(|| {
            lock();
            Ok(Some(()))
        });
        assert!(kept.unwrap().is_some());
        assert!(holds("ExclusiveLock"));
    }

    #[pg_test]
    fn an_error_of_postgres_leaves_no_attempt_behind() {
        // SAFETY: reads the state of the transaction.
        let depth = || unsafe { pg_sys::GetCurrentTransactionNestLevel() };
        let before = depth();
        run("CREATE TABLE other (n int)");
        let caught = PgTryBuilder::new(|| {
            attempt(|| {
                run("INSERT INTO other VALUES (1)");
                run("LOCK TABLE other IN EXCLUSIVE MODE");
                run("SELECT 1 / 0");
                Ok(Some(false))
            })
            .unwrap()
            .unwrap()
        })
        .catch_when(PgSqlErrorCode::ERRCODE_DIVISION_BY_ZERO, |_| true)
        .execute();
        assert!(caught && !holds("ExclusiveLock"));
        assert_eq!(get::<i64>("SELECT count(*) FROM other"), 0);
        assert_eq!(depth(), before);
        run("INSERT INTO other VALUES (2)");
        assert_eq!(get::<i64>("SELECT count(*) FROM other"), 1);
    }

    #[pg_test]
    fn what_was_written_is_gone_and_the_row_is_found_as_it_was() {
        for access in ["heap", "sql"] {
            run(&format!("SET LOCAL ratelimit.access = {access}"));
            let value = || with_rows(|rows| Ok(rows.read(ID)?.map(value_of))).unwrap();
            let write = |value| {
                with_rows(|rows| {
                    let locked = rows.lock(ID, true)?.unwrap();
                    rows.update(ID, locked.tuple, &tokens(value))
                })
                .unwrap()
            };
            assert_eq!(value(), None);
            and_rolled_back(|| {
                assert!(with_rows(|rows| rows.insert(ID, &tokens(1.0), true)).unwrap());
                assert_eq!(value(), Some(1.0));
            });
            assert_eq!(value(), None, "{access}");
            assert!(with_rows(|rows| rows.insert(ID, &tokens(2.0), true)).unwrap());
            write(3.0);
            and_rolled_back(|| {
                write(4.0);
                and_rolled_back(|| write(5.0));
                assert_eq!(value(), Some(4.0), "{access}");
                write(6.0);
            });
            assert_eq!(value(), Some(3.0), "{access}");
            write(7.0);
            assert_eq!(value(), Some(7.0), "{access}");
            run("DELETE FROM ratelimits");
        }
    }

    /// Returns the shard, of 64, with the row that a call changes.
    fn shard_taken() -> i32 {
        let shards =
            "SELECT array_agg(round(value)::int ORDER BY shard) FROM ratelimits WHERE shard > 0";
        let before: Vec<i32> = get(shards);
        assert!(get::<bool>("SELECT ok FROM rl_limit('sharded')"));
        let after: Vec<i32> = get(shards);
        assert_eq!(before.len(), after.len());
        let changed: Vec<usize> = (0..after.len()).filter(|&n| before[n] != after[n]).collect();
        assert_eq!(changed.len(), 1, "{before:?} {after:?}");
        changed[0] as i32
    }

    #[pg_test]
    fn a_locked_shard_is_taken_from_again_until_its_lock_is_rolled_back() {
        run("SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00'");
        run("SELECT rl_define('sharded', rl_token_bucket(64000, '1 day', shards => 64))");
        // Writes all rows, as if by another transaction.
        run("SELECT rl_limit('sharded', count => 32000)");
        assert_eq!(get::<i64>("SELECT count(*) FROM ratelimits WHERE shard > 0"), 64);
        own_locks::forget(1);
        let taken: Vec<i32> = (0..20)
            .map(|_| {
                and_rolled_back(|| {
                    let shard = shard_taken();
                    assert!((0..5).all(|_| shard_taken() == shard));
                    shard
                })
            })
            .collect();
        assert!(taken.iter().any(|&shard| shard != taken[0]), "{taken:?}");
        let shard = shard_taken();
        and_rolled_back(|| assert_eq!(shard_taken(), shard));
        assert_eq!(shard_taken(), shard);
    }
}

//! The rows of holds: written, read and deleted as the limiter asks for them.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;
    use ratelimit_core::Micros;
    use ratelimit_core::hold::Hold;
    use ratelimit_limiter::error::Result as PortResult;
    use ratelimit_limiter::ports::{Deleted, HoldRow, Holds, Host, KeyHolds, Listing};

    use super::super::{function, get, run};
    use crate::host::{Session, Use};
    use crate::schema::error::{Error, Result};

    const NAME: &[u8] = "held ä".as_bytes();

    fn with_holds<T>(mut work: impl FnMut(&dyn Holds) -> PortResult<T>) -> Result<T> {
        Session::run(Use::Writes, function(), |session| session.with_holds(&mut work))
    }

    fn with_both<T>(mut work: impl FnMut(&dyn Holds, &dyn KeyHolds) -> PortResult<T>) -> Result<T> {
        Session::run(Use::Writes, function(), |session| {
            session.with_holds(|holds| session.with_key_holds(|of_keys| work(holds, of_keys)))
        })
    }

    /// 10 tokens of a key from second 5 to a second.
    fn row(id: &str, key: &str, expires_at: i64) -> HoldRow {
        let hold = Hold {
            count: 10.0,
            spent: 0.0,
            returned: 0.0,
            taken_at: Micros(5_000_000),
            expires_at: Micros(expires_at * 1_000_000),
            charge: false,
            lease: None,
        };
        HoldRow { id: id.into(), name: NAME.into(), key: key.into(), hold, config: None }
    }

    fn ids(rows: Vec<HoldRow>) -> Vec<String> {
        rows.into_iter().map(|row| String::from_utf8(row.id).unwrap()).collect()
    }

    fn same(one: &HoldRow, other: &HoldRow) -> bool {
        format!("{one:?}") == format!("{other:?}")
    }

    #[pg_test]
    fn a_hold_is_read_as_it_was_written() {
        run("SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'");
        let mut row = HoldRow {
            hold: Hold {
                count: 0.1 + 0.2,
                spent: 0.2,
                returned: 5e-324,
                taken_at: Micros(1_798_761_600_000_001),
                expires_at: Micros(1_798_761_600_000_002),
                charge: true,
                lease: Some(Micros(i64::MIN)),
            },
            config: Some(r#"{"rate": 1, "period": "ä"}"#.into()),
            ..row("id ä", "key 'ä'", 0)
        };
        let (id, key) = (row.id.clone(), row.key.clone());
        with_holds(|holds| {
            assert!(holds.one(&id, NAME, &key)?.is_none());
            assert!(!holds.update(&row)?);
            holds.insert(&row)?;
            assert!(same(&holds.one(&id, NAME, &key)?.unwrap(), &row));
            assert!(!holds.insert(&row)?, "twice");
            row.hold = Hold { spent: 0.25, charge: false, expires_at: Micros(1), ..row.hold };
            row.config = None;
            assert!(holds.update(&row)?);
            assert!(same(&holds.of_id(&id)?[0], &row));
            Ok(())
        })
        .unwrap();
        let written = r#"("id ä","held ä","key 'ä'",0.30000000000000004,0.25,5e-324,"2027-01-01 00:00:00.000001+00","1970-01-01 00:00:00.000001+00",f,-9223372036854775808,)"#;
        assert_eq!(get::<String>("SELECT h::text FROM rl_holds h"), written);
        with_holds(|holds| {
            let deleted = holds.delete(&id, NAME, &key)?;
            assert!(matches!(&deleted, Deleted::Row(deleted) if same(deleted, &row)));
            assert!(matches!(holds.delete(&id, NAME, &key)?, Deleted::Gone));
            assert!(holds.of_id(&id)?.is_empty());
            Ok(())
        })
        .unwrap();
    }

    /// PostgreSQL 18 has NOT NULL constraints that hold for new rows only.
    #[pg_test]
    fn a_null_behind_a_constraint_is_an_error_and_no_number() {
        for column in ["count", "spent", "returned", "taken_at", "expires_at", "charge"] {
            let before = row(column, column, 10);
            with_holds(|holds| holds.insert(&before)).unwrap();
            run(&format!(
                "ALTER TABLE rl_holds ALTER {column} DROP NOT NULL;
                 UPDATE rl_holds SET {column} = NULL WHERE id = '{column}';
                 UPDATE pg_attribute SET attnotnull = true
                 WHERE attrelid = 'rl_holds'::regclass AND attname = '{column}'"
            ));
            let [id, key] = [column.as_bytes(); 2];
            let read = with_holds(|holds| holds.one(id, NAME, key).map(|_| ()));
            let of_id = with_holds(|holds| holds.of_id(id).map(|_| ()));
            let deleted = with_holds(|holds| holds.delete(id, NAME, key).map(|_| ()));
            for result in [read, of_id, deleted] {
                match result {
                    Err(Error::NullState { table: "rl_holds", column: named }) => {
                        assert_eq!(named, column);
                    }
                    other => panic!("{column}: {other:?}"),
                }
            }
        }
    }

    #[pg_test]
    fn those_that_give_tokens_back_come_in_the_order_of_their_expiry() {
        with_both(|holds, of_keys| {
            for (id, at) in [("c", 20), ("b", 20), ("a", 30), ("d", 10), ("e", 40)] {
                holds.insert(&row(id, "k", at))?;
            }
            holds.insert(&row("other", "l", 20))?;
            let mut never = row("never", "k", 20);
            never.hold.charge = true;
            holds.insert(&never)?;
            let mut over = row("over", "k", 20);
            over.hold.spent = over.hold.count;
            holds.insert(&over)?;
            let at = |second: i64| Micros(second * 1_000_000);
            let found = |from, until, most| {
                Ok::<_, ratelimit_limiter::error::LimiterError>(ids(of_keys.returning(
                    (NAME, b"k"),
                    at(from),
                    at(until),
                    most,
                )?))
            };
            assert_eq!(found(0, 100, 100)?, ["d", "b", "c", "a", "e"]);
            assert_eq!(found(20, 30, 100)?, ["b", "c", "a"]);
            assert_eq!(found(0, 100, 2)?, ["d", "b"]);
            assert_eq!(of_keys.held((NAME, b"k"), at(5), at(10))?, 50.0);
            assert_eq!(of_keys.held((NAME, b"k"), at(6), at(10))?, 0.0);
            assert_eq!(of_keys.held((NAME, b"none"), at(0), at(0))?, 0.0);
            Ok(())
        })
        .unwrap();
    }

    #[pg_test]
    fn thousands_expire_at_once() {
        let mut rows: Vec<HoldRow> = (0..2500).map(|n| row(&format!("id {n}"), "k", n)).collect();
        with_both(|holds, of_keys| {
            for row in &rows {
                assert!(holds.insert(row)?);
            }
            for (n, row) in rows.iter_mut().enumerate() {
                row.hold = Hold { count: 3.0, spent: 3.0, returned: n as f64, ..row.hold };
            }
            of_keys.expire((NAME, b"k"), &rows)?;
            of_keys.expire((NAME, b"k"), &[])?;
            for row in &rows {
                assert!(same(&holds.one(&row.id, NAME, b"k")?.unwrap(), row));
            }
            // One that is gone is an error: its tokens would come back again.
            holds.delete(b"id 7", NAME, b"k")?;
            assert!(of_keys.expire((NAME, b"k"), &rows).is_err());
            Ok(())
        })
        .unwrap();
    }

    #[pg_test]
    fn keys_are_listed_and_their_holds_deleted() {
        let text = |keys: Vec<(Vec<u8>, Vec<u8>)>| -> Vec<String> {
            keys.into_iter().map(|(_, key)| String::from_utf8(key).unwrap()).collect()
        };
        let at = |second: i64| Micros(second * 1_000_000);
        with_both(|holds, of_keys| {
            for (key, second) in [("a", 10), ("b", 20), ("c", 30)] {
                holds.insert(&row("1", key, second))?;
                holds.insert(&row("2", key, second))?;
            }
            holds.insert(&HoldRow { name: b"other".into(), ..row("1", "a", 10) })?;
            assert_eq!(text(of_keys.due_keys((b"", b""), at(20), 10)?), ["a", "b", "a"]);
            assert_eq!(text(of_keys.due_keys((b"", b""), at(20), 1)?), ["a"]);
            assert_eq!(text(of_keys.due_keys((NAME, b"a"), at(20), 10)?), ["b", "a"]);
            let keys = |name, key, second| {
                Ok::<_, ratelimit_limiter::error::LimiterError>(text(
                    of_keys
                        .keys(Listing { name, key, after: None }, Some(at(second)))?
                        .into_iter()
                        .collect(),
                ))
            };
            assert_eq!(keys(None, None, 5)?, ["a", "b", "c", "a"]);
            assert_eq!(keys(None, Some(b"a"), 5)?, ["a", "a"]);
            assert_eq!(keys(Some(NAME), None, 10)?, ["b", "c"]);
            assert_eq!(keys(Some(NAME), Some(b"c"), 10)?, ["c"]);
            assert_eq!(keys(Some(NAME), Some(b"a"), 10)?, [""; 0]);
            let of_id = holds.of_id(b"1")?;
            assert_eq!(
                text(of_id.into_iter().map(|row| (row.name, row.key)).collect()),
                ["a", "b", "c", "a"]
            );
            let holders = |name, key| {
                Ok::<_, ratelimit_limiter::error::LimiterError>(text(
                    of_keys.keys(Listing { name, key, after: None }, None)?.into_iter().collect(),
                ))
            };
            assert_eq!(holders(None, Some(b"a"))?, ["a", "a"]);
            assert_eq!(holders(Some(NAME), None)?, ["a", "b", "c"]);
            assert_eq!(holders(Some(NAME), Some(b"b"))?, ["b"]);
            assert_eq!(of_keys.delete_of_key((NAME, b"b"))?, 2);
            assert_eq!(of_keys.delete_of_key((NAME, b"b"))?, 0);
            assert_eq!(holders(Some(NAME), Some(b"b"))?, [""; 0]);
            Ok(())
        })
        .unwrap();
    }

    #[pg_test]
    fn what_gives_nothing_back_is_pruned() {
        with_both(|holds, of_keys| {
            for n in 0..10 {
                let mut row = row(&n.to_string(), "k", n);
                row.hold.charge = n % 3 == 0;
                row.hold.spent = if n % 3 == 1 { 10.0 } else { 0.0 };
                holds.insert(&row)?;
            }
            assert_eq!(of_keys.prune(Micros(7_000_000), 3)?, 3);
            assert_eq!(of_keys.prune(Micros(7_000_000), 100)?, 2);
            assert_eq!(of_keys.prune(Micros(7_000_000), 100)?, 0);
            Ok(())
        })
        .unwrap();
        assert_eq!(
            get::<String>("SELECT string_agg(id, ' ' ORDER BY id) FROM rl_holds"),
            "2 5 7 8 9"
        );
    }

    /// A row has no place for its trailing NULLs.
    #[pg_test]
    fn rows_have_the_columns_of_their_kind() {
        // The servers that are fetched for tests lack it.
        let shows_rows = "SELECT count(*) FROM pg_available_extensions WHERE name = 'pageinspect'";
        if get::<i64>(shows_rows) == 0 {
            return;
        }
        run("SET LOCAL ratelimit.access = heap");
        run("SELECT rl_define('held', rl_token_bucket(5, '1 day')), rl_limit('held', 'k', 1)");
        run("CREATE EXTENSION IF NOT EXISTS pageinspect");
        let columns_and_header = "SELECT (t_infomask2 & 2047) || ', ' || t_hoff
            FROM (SELECT ctid::text::point AS place FROM ratelimits WHERE name = 'held') AS row,
                 LATERAL heap_page_items(get_raw_page('ratelimits', place[0]::int)) WHERE lp = place[1]::int";
        assert_eq!(get::<String>(columns_and_header), "6, 24");
        run("SELECT rl_limit('held', 'k', 1)");
        assert_eq!(get::<String>(columns_and_header), "6, 24");
        run("UPDATE ratelimits SET holds_due = 'infinity'; SELECT rl_limit('held', 'k', 1)");
        assert_eq!(get::<String>(columns_and_header), "11, 32");
        let kinds = [
            ("rl_fixed_window(5, '1 day')", "7, 24"),
            ("rl_sliding_window(5, '1 day')", "8, 24"),
            ("rl_sliding_log(5, '1 day')", "9, 32"),
        ];
        for (config, expected) in kinds {
            run(&format!(
                "TRUNCATE ratelimits; SELECT rl_define('held', {config}), rl_limit('held', 'k', 1)"
            ));
            assert_eq!(get::<String>(columns_and_header), expected, "{config}");
        }
    }
}

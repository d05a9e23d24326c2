//! Rows on their way in and out, by both stores, and as other SQL has written them.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;
    use ratelimit_core::{Micros, State};

    use super::super::{get, run, with_rows};
    use crate::pg::clock::INFINITE;
    use crate::pg::error::Error;
    use crate::store::{MARKER, RowId};

    const STORES: [&str; 2] = ["heap", "sql"];

    fn by(access: &str) {
        run(&format!("SET LOCAL ratelimit.access = {access}"));
    }

    /// The first and the last timestamptz, and some between them, each to the microsecond.
    const TIMES: [i64; 6] =
        [-210_866_803_200_000_000, -1, 0, 1, 1_798_761_600_123_456, i64::MAX - 1];

    /// States that differ in every column, and in whether a column is NULL.
    fn states() -> Vec<State> {
        let values = [0.0, -0.0, 1.5, -1e15, f64::MAX, f64::MIN_POSITIVE, 5e-324, 0.1 + 0.2];
        let logs = [
            None,
            Some(vec![]),
            Some(vec![Micros(TIMES[0]), Micros(TIMES[5])]),
            // More than fits on a page.
            Some((0..5000).map(|n| Micros(n * 1_000_003)).collect()),
        ];
        let mut states = Vec::new();
        for (n, &value) in values.iter().enumerate() {
            states.push(State {
                value,
                ts: Micros(TIMES[n % TIMES.len()]),
                prior: (n % 3 > 0).then_some(-value),
                log: logs[n % logs.len()].clone(),
            });
        }
        states
    }

    fn same(a: &State, b: &State) -> bool {
        a.value.to_bits() == b.value.to_bits()
            && a.ts == b.ts
            && a.prior.map(f64::to_bits) == b.prior.map(f64::to_bits)
            && a.log == b.log
    }

    #[pg_test]
    fn a_row_is_read_by_either_store_as_either_wrote_it() {
        for (n, state) in states().iter().enumerate() {
            for writer in STORES {
                let key = format!("{writer} {n}");
                let id =
                    RowId { name: "codec ä".as_bytes(), key: key.as_bytes(), shard: n as i32 };
                by(writer);
                assert!(with_rows(|rows| rows.insert(id, state)).unwrap());
                assert!(!with_rows(|rows| rows.insert(id, state)).unwrap(), "twice");
                let of_next = &states()[(n + 1) % states().len()];
                for (write, expected) in [(false, state), (true, of_next)] {
                    by(writer);
                    if write {
                        with_rows(|rows| {
                            let locked = rows.lock(id)?.unwrap();
                            assert!(same(&locked.state, state));
                            rows.update(id, locked.tuple, of_next)
                        })
                        .unwrap();
                    }
                    for reader in STORES {
                        by(reader);
                        let what = format!("{key} by {reader}: {expected:?}");
                        let read = with_rows(|rows| rows.read(id)).unwrap().unwrap().state;
                        assert!(same(&read, expected), "{what} {read:?}");
                        let shards =
                            with_rows(|rows| rows.read_shards(id.name, id.key, &[99, id.shard]))
                                .unwrap();
                        assert_eq!(shards.len(), 1, "{what}");
                        assert!(
                            shards[0].0 == id.shard && same(&shards[0].1.state, expected),
                            "{what}"
                        );
                        let of_key = with_rows(|rows| rows.read_key(id.name, id.key)).unwrap();
                        assert!(of_key.len() == 1 && same(&of_key[0].1.state, expected), "{what}");
                        let after =
                            with_rows(|rows| rows.read_after((id.name, b""), true, 1000)).unwrap();
                        let found =
                            after.iter().filter(|row| row.key == id.key).collect::<Vec<_>>();
                        assert_eq!(found.len(), 1, "{what}");
                        assert!(
                            found[0].name == id.name && same(&found[0].row.1.state, expected),
                            "{what}"
                        );
                    }
                }
            }
        }
        assert_eq!(get::<i64>("SELECT count(*) FROM ratelimits"), 16);
    }

    #[pg_test]
    fn what_is_written_is_what_sql_reads() {
        for writer in STORES {
            by(writer);
            let id = RowId { name: b"codec", key: writer.as_bytes(), shard: 3 };
            let state = State {
                value: -2.5,
                ts: Micros(1_798_761_600_000_001),
                prior: Some(0.25),
                log: Some(vec![Micros(-1), Micros(1)]),
            };
            assert!(with_rows(|rows| rows.insert(id, &state)).unwrap());
            run("SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'");
            assert_eq!(
                get::<String>(&format!("SELECT r::text FROM ratelimits r WHERE key = '{writer}'")),
                format!(
                    "(codec,{writer},3,-2.5,\"2027-01-01 00:00:00.000001+00\",0.25,\"{{\"\"1969-12-31 23:59:59.999999+00\"\",\"\"1970-01-01 00:00:00.000001+00\"\"}}\")"
                )
            );
        }
    }

    #[pg_test]
    fn infinities_are_read_as_such_and_a_marker_is_a_row_0_only() {
        run("INSERT INTO ratelimits (name, key, shard, value, ts, prior, log) VALUES
            ('codec', 'marker', 0, 0, '-infinity', NULL, NULL),
            ('codec', 'tokens', 0, 1, '-infinity', NULL, NULL),
            ('codec', 'shard', 1, 0, '-infinity', NULL, NULL),
            ('codec', 'all', 0, 'Infinity', 'infinity', '-Infinity', '{infinity,-infinity}'),
            ('codec', 'nan', 0, 'NaN', 'epoch', 'NaN', '{}')");
        for access in STORES {
            by(access);
            let read = |key: &str, shard| {
                let id = RowId { name: b"codec", key: key.as_bytes(), shard };
                with_rows(|rows| rows.read(id)).unwrap().unwrap().state
            };
            assert_eq!(read("marker", 0).ts, MARKER);
            assert_eq!(read("tokens", 0).ts, INFINITE[0]);
            assert_eq!(read("shard", 1).ts, INFINITE[0]);
            let all = read("all", 0);
            assert_eq!(
                (all.value, all.ts, all.prior),
                (f64::INFINITY, INFINITE[1], Some(f64::NEG_INFINITY))
            );
            assert_eq!(all.log.unwrap(), [INFINITE[1], INFINITE[0]]);
            let nan = read("nan", 0);
            assert!(
                nan.value.is_nan() && nan.prior.unwrap().is_nan() && nan.log.unwrap().is_empty()
            );
        }
    }

    #[pg_test]
    fn a_log_is_read_sorted_and_without_its_nulls() {
        run("INSERT INTO ratelimits VALUES ('codec', 'log', 0, 0, 'epoch', NULL,
             ARRAY['2000-01-02', NULL, '2000-01-01', NULL, '2000-01-03']::timestamptz[])");
        for access in STORES {
            by(access);
            let id = RowId { name: b"codec", key: b"log", shard: 0 };
            let log = with_rows(|rows| rows.read(id)).unwrap().unwrap().state.log.unwrap();
            assert_eq!(log.len(), 3);
            assert!(log.is_sorted() && log[2].0 - log[0].0 == 2 * 86_400_000_000, "{log:?}");
        }
    }

    /// They are pairs, in the order in which they were given.
    #[pg_test]
    fn leases_are_read_as_they_stand() {
        run("INSERT INTO ratelimits VALUES ('codec', 'leases', 0, 2, 'epoch', 0,
             ARRAY['2000-01-01', '2000-01-09', '2000-01-02', '2000-01-03']::timestamptz[])");
        for access in STORES {
            by(access);
            let id = RowId { name: b"codec", key: b"leases", shard: 0 };
            let log = with_rows(|rows| rows.read(id)).unwrap().unwrap().state.log.unwrap();
            let days: Vec<i64> = log.iter().map(|at| (at.0 - log[0].0) / 86_400_000_000).collect();
            assert_eq!(days, [0, 8, 1, 2]);
        }
    }

    /// Longer than any that a call brings; a key of 1,024 bytes is the longest of those.
    #[pg_test]
    fn names_and_keys_of_any_length_are_told_apart() {
        run("INSERT INTO ratelimits SELECT repeat('n', n), repeat('k', n), 0, n, 'epoch'
             FROM unnest(ARRAY[1, 1023, 1024, 1025, 1200]) n");
        for access in STORES {
            by(access);
            for length in [1usize, 1023, 1024, 1025, 1200] {
                let (name, key) = ("n".repeat(length), "k".repeat(length));
                let id = RowId { name: name.as_bytes(), key: key.as_bytes(), shard: 0 };
                let row = with_rows(|rows| rows.read(id)).unwrap();
                assert_eq!(row.unwrap().state.value, length as f64, "{access}");
                let id = RowId { key: &id.key[1..], ..id };
                assert!(with_rows(|rows| rows.read(id)).unwrap().is_none(), "{access}");
            }
        }
    }

    #[pg_test]
    fn a_null_that_the_owner_let_in_is_an_error_and_no_number() {
        run("ALTER TABLE ratelimits ALTER value DROP NOT NULL, ALTER ts DROP NOT NULL");
        run(
            "INSERT INTO ratelimits VALUES ('codec', 'value', 0, NULL, 'epoch'), ('codec', 'ts', 0, 1, NULL)",
        );
        for column in ["value", "ts"] {
            let id = RowId { name: b"codec", key: column.as_bytes(), shard: 0 };
            match with_rows(|rows| rows.read(id)).map(|row| row.map(|row| row.state)) {
                Err(Error::NullState { column: named }) => assert_eq!(named, column),
                other => panic!("{column}: {other:?}"),
            }
        }
    }

    #[pg_test]
    fn a_column_of_another_type_is_an_error_and_no_number() {
        run("ALTER TABLE ratelimits ALTER prior TYPE real");
        run("INSERT INTO ratelimits VALUES ('codec', 'prior', 0, 1, 'epoch', 1)");
        let id = RowId { name: b"codec", key: b"prior", shard: 0 };
        match with_rows(|rows| rows.read(id)).map(|row| row.map(|row| row.state)) {
            Err(Error::AlteredColumn { column }) => assert_eq!(column, "prior"),
            other => panic!("{other:?}"),
        }
    }

    #[pg_test]
    fn a_row_that_was_only_read_is_replaced_unless_it_has_changed() {
        by("heap");
        let id = RowId { name: b"codec", key: b"replace", shard: 0 };
        let state = |value| State { value, ts: Micros(0), prior: None, log: None };
        with_rows(|rows| {
            assert!(rows.insert(id, &state(1.0))?);
            let seen = rows.read(id)?.unwrap();
            assert!(rows.replace(id, &seen, &state(2.0), true)?);
            let seen = rows.read(id)?.unwrap();
            assert_eq!(seen.state.value, 2.0);
            let locked = rows.lock(id)?.unwrap();
            rows.delete(id, locked.tuple)?;
            assert!(rows.read(id)?.is_none());
            assert!(rows.insert(id, &state(3.0))?);
            assert_eq!(rows.read(id)?.unwrap().state.value, 3.0);
            Ok(())
        })
        .unwrap();
    }
}

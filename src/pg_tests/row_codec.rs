//! Encodes and decodes rows, by both stores, and rows that other SQL has written.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;
    use ratelimit_core::kinds::{Counters, Lease, Leases, Log, Shape, Tokens};
    use ratelimit_core::{Micros, State};

    use super::super::{get, run, with_rows};
    use crate::schema::error::Error;
    use ratelimit_limiter::ports::{RowId, Stored};
    use ratelimit_pg::clock::INFINITE;
    use ratelimit_pg::error::PgError;

    const STORES: [&str; 2] = ["heap", "sql"];

    fn by(access: &str) {
        run(&format!("SET LOCAL ratelimit.access = {access}"));
    }

    /// The first and the last timestamptz and some between them, to the microsecond.
    const TIMES: [i64; 6] =
        [-210_866_803_200_000_000, -1, 0, 1, 1_798_761_600_123_456, i64::MAX - 1];

    fn tokens(value: f64) -> Stored {
        State::Tokens(Tokens { value, ts: Micros(0), added: None }).into()
    }

    /// Rows that differ in every column, and in whether a column is NULL.
    fn rows() -> Vec<Stored> {
        let values = [0.0, -0.0, 1.5, -1e15, f64::MAX, f64::MIN_POSITIVE, 5e-324, 0.1 + 0.2];
        let logs = [
            vec![],
            vec![Micros(TIMES[0]), Micros(TIMES[5])],
            // Does not fit on a page.
            (0..5000).map(|n| Micros(n * 1_000_003)).collect(),
        ];
        let mut rows =
            vec![Stored::Marker { reset: false }, Stored::Reset { ts: Micros(TIMES[4]) }];
        for (n, &value) in values.iter().enumerate() {
            let (ts, prior) = (Micros(TIMES[n % TIMES.len()]), value.abs());
            rows.push(State::Tokens(Tokens { value, ts, added: None }).into());
            rows.push(State::Tokens(Tokens { value, ts, added: Some(prior) }).into());
            rows.push(State::Counters(Counters { value, prior, ts }).into());
        }
        for (entries, ts) in logs.into_iter().zip(TIMES.map(Micros)) {
            let lease = |&id: &Micros| Lease { id, expires_at: Micros(TIMES[4] - id.0 % 1000) };
            let leases = entries.iter().rev().map(lease).collect();
            rows.push(State::Leases(Leases { leases, ts }).into());
            rows.push(State::Log(Log { entries, ts }).into());
        }
        rows
    }

    /// To the bit, of floats too.
    fn same(a: &Stored, b: &Stored) -> bool {
        a == b && format!("{a:?}") == format!("{b:?}")
    }

    #[pg_test]
    fn a_row_is_read_by_either_store_as_either_wrote_it() {
        let (all, mut written) = (rows(), 0);
        for (n, stored) in all.iter().enumerate() {
            for writer in STORES {
                let key = format!("{writer} {n}");
                // The marker is a row 0.
                let id =
                    RowId { name: "codec ä".as_bytes(), key: key.as_bytes(), shard: n as i32 };
                written += 1;
                by(writer);
                // With the expiry of a hold, or without.
                let first = (n % 3 > 0).then_some(Micros(TIMES[n % TIMES.len()]));
                let then = (n % 2 > 0).then_some(Micros(TIMES[(n + 1) % TIMES.len()]));
                assert!(with_rows(|rows| rows.insert(id, stored, first, true)).unwrap());
                assert!(!with_rows(|rows| rows.insert(id, stored, first, true)).unwrap(), "twice");
                let of_next = all.get(n + 1).unwrap_or(&all[1]);
                for (write, expected, expires) in [(false, stored, first), (true, of_next, then)] {
                    by(writer);
                    if write {
                        with_rows(|rows| {
                            let locked = rows.lock(id, true)?.unwrap();
                            assert!(same(&locked.stored, stored) && locked.expires == first);
                            rows.update(id, locked.tuple, of_next, then)
                        })
                        .unwrap();
                    }
                    for reader in STORES {
                        by(reader);
                        let what = format!("{key} by {reader}: {expected:?}");
                        let row = with_rows(|rows| rows.read(id)).unwrap().unwrap();
                        let read = row.stored;
                        assert!(same(&read, expected), "{what} {read:?}");
                        assert_eq!(row.expires, expires, "{what}");
                        let shards =
                            with_rows(|rows| rows.read_key(id.name, id.key, Some(&[99, id.shard])))
                                .unwrap();
                        assert_eq!(shards.len(), 1, "{what}");
                        assert!(
                            shards[0].0 == id.shard && same(&shards[0].1.stored, expected),
                            "{what}"
                        );
                        let of_key =
                            with_rows(|rows| rows.read_key(id.name, id.key, None)).unwrap();
                        assert!(of_key.len() == 1 && same(&of_key[0].1.stored, expected), "{what}");
                        let after =
                            with_rows(|rows| rows.read_after((id.name, b""), true, 1000)).unwrap();
                        let found =
                            after.iter().filter(|row| row.key == id.key).collect::<Vec<_>>();
                        assert_eq!(found.len(), 1, "{what}");
                        assert!(
                            found[0].name == id.name && same(&found[0].row.1.stored, expected),
                            "{what}"
                        );
                        assert_eq!(found[0].row.1.expires, expires, "{what}");
                    }
                }
            }
        }
        assert_eq!(get::<i64>("SELECT count(*) FROM ratelimits"), written);
    }

    #[pg_test]
    fn what_is_written_is_what_sql_reads() {
        let ts = Micros(1_798_761_600_000_001);
        let at = r#""2027-01-01 00:00:00.000001+00""#;
        let lease = Lease { id: Micros(-1), expires_at: Micros(1) };
        let times = r#""{""1969-12-31 23:59:59.999999+00"",""1970-01-01 00:00:00.000001+00""}""#;
        let of_states = [
            (State::Tokens(Tokens { value: -2.5, ts, added: None }), format!("-2.5,{at},,,")),
            (State::Tokens(Tokens { value: 1.0, ts, added: Some(4.0) }), format!("1,{at},,,4")),
            (State::Tokens(Tokens { value: 0.0, ts, added: Some(0.0) }), format!("0,{at},,,0")),
            (State::Counters(Counters { value: 2.0, prior: 0.25, ts }), format!("2,{at},0.25,,")),
            (State::Counters(Counters { value: 2.0, prior: 0.0, ts }), format!("2,{at},0,,")),
            (
                State::Log(Log { entries: vec![Micros(-1), Micros(1)], ts }),
                format!("2,{at},,{times},"),
            ),
            (State::Leases(Leases { leases: vec![lease], ts }), format!("1,{at},0,{times},")),
        ];
        let mut all: Vec<(Stored, String)> =
            of_states.into_iter().map(|(state, columns)| (state.into(), columns)).collect();
        all.push((Stored::Reset { ts }, format!("Infinity,{at},,,")));
        all.push((Stored::Marker { reset: false }, "0,-infinity,,,".into()));
        all.push((Stored::Marker { reset: true }, "Infinity,-infinity,,,".into()));
        run("SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'");
        for writer in STORES {
            by(writer);
            for (n, (stored, columns)) in all.iter().enumerate() {
                let id = RowId { name: b"codec", key: writer.as_bytes(), shard: n as i32 };
                let holds = n % 2 == 1;
                let first = holds.then_some(ts);
                let expires = if holds { at } else { "" };
                assert!(with_rows(|rows| rows.insert(id, stored, first, true)).unwrap());
                let row = format!(
                    "SELECT r::text FROM ratelimits r WHERE key = '{writer}' AND shard = {n}"
                );
                assert_eq!(
                    get::<String>(&row),
                    format!("(codec,{writer},{n},{columns},{expires})")
                );
            }
        }
    }

    #[pg_test]
    fn a_row_that_no_call_writes_is_reported_by_its_first_invalid_column() {
        run("INSERT INTO ratelimits (name, key, shard, value, ts, prior, log) VALUES
            ('codec', 'marker', 0, 0, '-infinity', NULL, NULL),
            ('codec', 'reset marker', 0, 'Infinity', '-infinity', NULL, NULL),
            ('codec', 'reset', 0, 'Infinity', 'infinity', '-Infinity', '{infinity,-infinity}'),
            ('codec', 'tokens', 0, 1, '-infinity', NULL, NULL),
            ('codec', 'shard', 1, 0, '-infinity', NULL, NULL),
            ('codec', 'value', 0, '-Infinity', 'infinity', 'NaN', '{infinity}'),
            ('codec', 'prior', 0, 1, 'infinity', '-Infinity', NULL),
            ('codec', 'ts', 0, 1, 'infinity', -1, NULL),
            ('codec', 'first', 0, 1, 'epoch', NULL, '{epoch,infinity,-infinity}'),
            ('codec', 'last', 0, 1, 'epoch', NULL, '{infinity,epoch}'),
            ('codec', 'leases', 0, 1, 'epoch', 0, '{epoch,epoch,epoch,infinity,epoch,epoch}'),
            ('codec', 'nan', 0, 'NaN', 'epoch', 'NaN', '{}')");
        run("INSERT INTO ratelimits (name, key, value, ts, added) VALUES
            ('codec', 'added', 1, 'infinity', 'NaN'), ('codec', 'value and added', 'NaN', 'epoch', 'NaN')");
        let epoch = Micros(0);
        let [past, future] = INFINITE;
        let invalid = |shape, ts, column, value: f64| {
            format!("{:?}", Stored::Invalid { shape, ts, column, value })
        };
        let inf = f64::INFINITY;
        let expected = [
            ("marker", 0, "Marker { reset: false }".into()),
            ("reset marker", 0, "Marker { reset: true }".into()),
            ("reset", 0, format!("{:?}", Stored::Reset { ts: future })),
            ("tokens", 0, invalid(Shape::Tokens, past, "ts", -inf)),
            ("shard", 1, invalid(Shape::Tokens, past, "ts", -inf)),
            ("value", 0, invalid(Shape::Leases, future, "value", -inf)),
            ("prior", 0, invalid(Shape::Counters, future, "prior", -inf)),
            ("ts", 0, invalid(Shape::Counters, future, "ts", inf)),
            ("first", 0, invalid(Shape::Log, epoch, "log", -inf)),
            ("last", 0, invalid(Shape::Log, epoch, "log", inf)),
            ("leases", 0, invalid(Shape::Leases, epoch, "log", inf)),
            ("nan", 0, invalid(Shape::Leases, epoch, "value", f64::NAN)),
            ("added", 0, invalid(Shape::Tokens, future, "added", f64::NAN)),
            ("value and added", 0, invalid(Shape::Tokens, epoch, "value", f64::NAN)),
        ];
        for access in STORES {
            by(access);
            for (key, shard, expected) in &expected {
                let id = RowId { name: b"codec", key: key.as_bytes(), shard: *shard };
                let stored = with_rows(|rows| rows.read(id)).unwrap().unwrap().stored;
                assert_eq!(&format!("{stored:?}"), expected, "{key} by {access}");
            }
        }
    }

    #[pg_test]
    fn a_log_is_read_sorted_and_without_its_nulls() {
        run("INSERT INTO ratelimits VALUES ('codec', 'log', 0, 0, 'epoch', NULL,
             ARRAY['2000-01-02', NULL, '2000-01-01', NULL, '2000-01-03']::timestamptz[])");
        for access in STORES {
            by(access);
            let id = RowId { name: b"codec", key: b"log", shard: 0 };
            let stored = with_rows(|rows| rows.read(id)).unwrap().unwrap().stored;
            let Stored::State(State::Log(Log { entries, .. })) = stored else {
                panic!("{stored:?}")
            };
            assert_eq!(entries.len(), 3);
            assert!(entries.is_sorted() && entries[2].0 - entries[0].0 == 2 * 86_400_000_000);
        }
    }

    /// A log of leases has pairs in their order; an odd last element is ignored.
    #[pg_test]
    fn leases_are_read_as_stored() {
        run("INSERT INTO ratelimits VALUES ('codec', 'leases', 0, 2, 'epoch', 0,
             ARRAY['2000-01-01', '2000-01-09', '2000-01-02', '2000-01-03', '2000-01-04']::timestamptz[])");
        for access in STORES {
            by(access);
            let id = RowId { name: b"codec", key: b"leases", shard: 0 };
            let stored = with_rows(|rows| rows.read(id)).unwrap().unwrap().stored;
            let Stored::State(State::Leases(Leases { leases, .. })) = stored else {
                panic!("{stored:?}")
            };
            let first = leases[0].id.0;
            let day = |at: Micros| (at.0 - first) / 86_400_000_000;
            let days: Vec<_> =
                leases.iter().map(|lease| (day(lease.id), day(lease.expires_at))).collect();
            assert_eq!(days, [(0, 8), (1, 2)]);
        }
    }

    /// Only the table's owner writes `added` for other states.
    #[pg_test]
    fn added_is_no_part_of_another_state() {
        run("INSERT INTO ratelimits (name, key, value, ts, prior, log, added) VALUES
            ('codec', 'window', 1, 'epoch', 2, NULL, 'NaN'), ('codec', 'log', 0, 'epoch', NULL, '{}', 5),
            ('codec', 'leases', 0, 'epoch', 0, '{}', 5)");
        let ts = Micros(0);
        let states = [
            ("window", State::Counters(Counters { value: 1.0, prior: 2.0, ts })),
            ("log", State::Log(Log { entries: vec![], ts })),
            ("leases", State::Leases(Leases { leases: vec![], ts })),
        ];
        for access in STORES {
            by(access);
            for (key, state) in &states {
                let id = RowId { name: b"codec", key: key.as_bytes(), shard: 0 };
                let stored = with_rows(|rows| rows.read(id)).unwrap().unwrap().stored;
                assert_eq!(stored, state.clone().into(), "{access}");
            }
        }
    }

    /// Longer than any key of a call, which has at most 1,024 bytes.
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
                assert_eq!(row.unwrap().stored, tokens(length as f64), "{access}");
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
            match with_rows(|rows| rows.read(id)).map(|row| row.map(|row| row.stored)) {
                Err(Error::NullState { column: named, .. }) => assert_eq!(named, column),
                other => panic!("{column}: {other:?}"),
            }
        }
    }

    #[pg_test]
    fn a_column_of_another_type_is_an_error_and_no_number() {
        run("ALTER TABLE ratelimits ALTER prior TYPE real");
        run("INSERT INTO ratelimits VALUES ('codec', 'prior', 0, 1, 'epoch', 1)");
        let id = RowId { name: b"codec", key: b"prior", shard: 0 };
        match with_rows(|rows| rows.read(id)).map(|row| row.map(|row| row.stored)) {
            Err(Error::Pg(PgError::AlteredColumn { column })) => assert_eq!(column, "prior"),
            other => panic!("{other:?}"),
        }
    }

    #[pg_test]
    fn a_row_that_was_only_read_is_replaced_unless_it_has_changed() {
        by("heap");
        let id = RowId { name: b"codec", key: b"replace", shard: 0 };
        with_rows(|rows| {
            assert!(rows.insert(id, &tokens(1.0), None, true)?);
            let seen = rows.read(id)?.unwrap();
            assert!(rows.replace(id, &seen, &tokens(2.0), None, true)?);
            let seen = rows.read(id)?.unwrap();
            assert_eq!(seen.stored, tokens(2.0));
            let locked = rows.lock(id, true)?.unwrap();
            rows.delete(id, locked.tuple)?;
            assert!(rows.read(id)?.is_none());
            assert!(rows.insert(id, &tokens(3.0), None, true)?);
            assert_eq!(rows.read(id)?.unwrap().stored, tokens(3.0));
            Ok(())
        })
        .unwrap();
    }
}

//! Encodes and decodes rows, by both stores, and rows that other SQL has written.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;
    use ratelimit_core::kinds::{Counters, Lease, Leases, Log, Tokens};
    use ratelimit_core::{Micros, State};

    use super::super::{get, run, with_rows};
    use crate::schema::error::Error;
    use ratelimit_limiter::ports::{RowId, Stored, Version};
    use ratelimit_pg::error::PgError;

    const STORES: [&str; 2] = ["heap", "sql"];

    fn by(access: &str) {
        run(&format!("SET LOCAL ratelimit.access = {access}"));
    }

    /// The first and the last timestamptz and some between them, to the microsecond.
    const TIMES: [i64; 6] =
        [-210_866_803_200_000_000, -1, 0, 1, 1_798_761_600_123_456, i64::MAX - 1];

    fn tokens(value: f64) -> Stored {
        Stored::State(State::Tokens(Tokens { value, ts: Micros(0), added: None }))
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
            rows.push(Stored::State(State::Tokens(Tokens { value, ts, added: None })));
            rows.push(Stored::State(State::Tokens(Tokens { value, ts, added: Some(prior) })));
            rows.push(Stored::State(State::Counters(Counters { value, prior, ts })));
        }
        for (entries, ts) in logs.into_iter().zip(TIMES.map(Micros)) {
            let lease = |(n, &id): (i64, &Micros)| Lease {
                id,
                expires_at: Micros(i64::MAX - 10_000 + n / 2),
            };
            let leases = (0..).zip(entries.iter().rev()).map(lease).collect();
            rows.push(Stored::State(State::Leases(Leases { leases, ts })));
            rows.push(Stored::State(State::Log(Log { entries, ts })));
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
                let due = |often: bool, n: usize| often.then_some(Micros(TIMES[n % TIMES.len()]));
                let first = Version { stored: stored.clone(), holds_due: due(n % 3 > 0, n) };
                let stored = all.get(n + 1).unwrap_or(&all[1]).clone();
                let next = Version { stored, holds_due: due(n % 2 > 0, n + 1) };
                assert!(with_rows(|rows| rows.insert(id, &first, true)).unwrap());
                assert!(!with_rows(|rows| rows.insert(id, &first, true)).unwrap(), "twice");
                for (write, version) in [(false, &first), (true, &next)] {
                    let expected = &version.stored;
                    by(writer);
                    if write {
                        with_rows(|rows| {
                            let locked = rows.lock(id, true)?.unwrap();
                            assert!(same(&locked.stored, &first.stored));
                            assert_eq!(locked.version, first);
                            rows.update(id, locked.tuple, &next)
                        })
                        .unwrap();
                    }
                    for reader in STORES {
                        by(reader);
                        let what = format!("{key} by {reader}: {expected:?}");
                        let row = with_rows(|rows| rows.read(id)).unwrap().unwrap();
                        assert!(same(&row.stored, expected), "{what} {row:?}");
                        assert_eq!(row.holds_due, version.holds_due, "{what}");
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
                        let mut found = after.iter().filter(|((_, key), _)| key == id.key);
                        let Some(((name, _), (_, row))) = found.next() else { panic!("{what}") };
                        assert!(found.next().is_none(), "{what}");
                        assert!(name == id.name && same(&row.stored, expected), "{what}");
                        assert_eq!(row.holds_due, version.holds_due, "{what}");
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
        let leases =
            [(-1, 3), (7, 2)].map(|(id, at)| Lease { id: Micros(id), expires_at: Micros(at) });
        let times = r#""{""1969-12-31 23:59:59.999999+00"",""1970-01-01 00:00:00.000001+00""}""#;
        let of_states = [
            (State::Tokens(Tokens { value: -2.5, ts, added: None }), format!("t,-2.5,{at},,,,")),
            (State::Tokens(Tokens { value: 1.0, ts, added: Some(4.0) }), format!("t,1,{at},4,,,")),
            (State::Tokens(Tokens { value: 0.0, ts, added: Some(0.0) }), format!("t,0,{at},0,,,")),
            (
                State::Counters(Counters { value: 2.0, prior: 0.25, ts }),
                format!("s,2,{at},,0.25,,"),
            ),
            (State::Counters(Counters { value: 2.0, prior: 0.0, ts }), format!("s,2,{at},,0,,")),
            (
                State::Log(Log { entries: vec![Micros(-1), Micros(1)], ts }),
                format!("l,2,{at},,,{times},"),
            ),
            (
                State::Leases(Leases { leases: leases.to_vec(), ts }),
                format!(r#"c,2,{at},,,,"{{7,2,-1,3}}""#),
            ),
        ];
        let mut all: Vec<(Stored, String)> =
            of_states.into_iter().map(|(state, columns)| (Stored::State(state), columns)).collect();
        all.push((Stored::Reset { ts }, format!("-,0,{at},,,,")));
        let epoch = r#""1970-01-01 00:00:00+00""#;
        all.push((Stored::Marker { reset: false }, format!("#,0,{epoch},,,,")));
        all.push((Stored::Marker { reset: true }, format!("=,0,{epoch},,,,")));
        run("SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'");
        for writer in STORES {
            by(writer);
            for (n, (stored, columns)) in all.iter().enumerate() {
                let id = RowId { name: b"codec", key: writer.as_bytes(), shard: n as i32 };
                let holds = n % 2 == 1;
                let version = Version { stored: stored.clone(), holds_due: holds.then_some(ts) };
                let holds_due = if holds { at } else { "" };
                assert!(with_rows(|rows| rows.insert(id, &version, true)).unwrap());
                let row = format!(
                    "SELECT r::text FROM ratelimits r WHERE key = '{writer}' AND shard = {n}"
                );
                assert_eq!(
                    get::<String>(&row),
                    format!("(codec,{writer},{n},{columns},{holds_due})")
                );
            }
        }
    }

    #[pg_test]
    fn a_row_that_no_call_writes_is_reported_by_its_first_invalid_column() {
        run("INSERT INTO ratelimits (name, key, shard, kind, value, ts, added, prior, log, leases) VALUES
            ('codec', 'marker', 0, '#', 1, '2000-01-01', 1, 1, '{}', '{}'),
            ('codec', 'reset marker', 0, '=', 0, 'epoch', NULL, NULL, NULL, NULL),
            ('codec', 'reset', 0, '-', 7, 'epoch', 'NaN', 'NaN', '{infinity}', '{1}'),
            ('codec', 'shard', 1, '#', 0, 'epoch', NULL, NULL, NULL, NULL),
            ('codec', 'marker NaN', 0, '#', 'NaN', 'epoch', NULL, NULL, NULL, NULL),
            ('codec', 'marker ts', 0, '=', 0, '-infinity', NULL, NULL, NULL, NULL),
            ('codec', 'reset ts', 0, '-', 0, 'infinity', NULL, NULL, NULL, NULL),
            ('codec', 'kind', 0, 'b', 'NaN', 'infinity', NULL, NULL, NULL, NULL),
            ('codec', 'quote', 0, '''', 1, 'epoch', NULL, NULL, NULL, NULL),
            ('codec', 'zero', 0, '', 1, 'epoch', NULL, NULL, NULL, NULL),
            ('codec', 'byte', 0, (-23)::\"char\", 1, 'epoch', NULL, NULL, NULL, NULL),
            ('codec', 'tokens', 0, 't', 1, '-infinity', NULL, NULL, NULL, NULL),
            ('codec', 'value', 0, 't', '-Infinity', 'infinity', 'NaN', NULL, NULL, NULL),
            ('codec', 'added', 0, 't', 1, 'infinity', 'NaN', NULL, NULL, NULL),
            ('codec', 'prior', 0, 's', 1, 'infinity', NULL, '-Infinity', NULL, NULL),
            ('codec', 'no prior', 0, 's', 1, 'epoch', 1, NULL, '{}', '{}'),
            ('codec', 'first', 0, 'l', 1, 'epoch', NULL, NULL, '{epoch,infinity,-infinity}', NULL),
            ('codec', 'last', 0, 'l', 1, 'epoch', NULL, NULL, '{infinity,epoch}', NULL),
            ('codec', 'no log', 0, 'l', 1, 'epoch', 1, 1, NULL, '{}'),
            ('codec', 'leases', 0, 'c', 1, 'epoch', NULL, NULL, NULL, '{1,2,3}'),
            ('codec', 'no leases', 0, 'c', 1, 'epoch', 1, 1, '{}', NULL)");
        let invalid = |column, value: &str| {
            format!("{:?}", Stored::Invalid { ts: Micros(0), column, value: value.into() })
        };
        let expected = [
            ("marker", 0, "Marker { reset: false }".into()),
            ("reset marker", 0, "Marker { reset: true }".into()),
            ("reset", 0, format!("{:?}", Stored::Reset { ts: Micros(0) })),
            ("shard", 1, invalid("kind", "#")),
            ("marker NaN", 0, invalid("value", "NaN")),
            ("marker ts", 0, invalid("ts", "-Infinity")),
            ("reset ts", 0, invalid("ts", "Infinity")),
            ("kind", 0, invalid("kind", "b")),
            ("quote", 0, invalid("kind::integer", "39")),
            ("zero", 0, invalid("kind::integer", "0")),
            ("byte", 0, invalid("kind::integer", "-23")),
            ("tokens", 0, invalid("ts", "-Infinity")),
            ("value", 0, invalid("value", "-Infinity")),
            ("added", 0, invalid("added", "NaN")),
            ("prior", 0, invalid("prior", "-Infinity")),
            ("no prior", 0, invalid("prior", "NULL")),
            ("first", 0, invalid("log", "-Infinity")),
            ("last", 0, invalid("log", "Infinity")),
            ("no log", 0, invalid("log", "NULL")),
            ("leases", 0, invalid("cardinality(leases)", "3")),
            ("no leases", 0, invalid("leases", "NULL")),
        ];
        for access in STORES {
            by(access);
            for (key, shard, expected) in &expected {
                let id = RowId { name: b"codec", key: key.as_bytes(), shard: *shard };
                let stored = with_rows(|rows| rows.read(id)).unwrap().unwrap().version.stored;
                assert_eq!(&format!("{stored:?}"), expected, "{key} by {access}");
            }
        }
    }

    #[pg_test]
    fn a_log_is_read_sorted_and_without_its_nulls() {
        run("INSERT INTO ratelimits VALUES ('codec', 'log', 0, 'l', 0, 'epoch', NULL, NULL,
             ARRAY['2000-01-02', NULL, '2000-01-01', NULL, '2000-01-03']::timestamptz[])");
        for access in STORES {
            by(access);
            let id = RowId { name: b"codec", key: b"log", shard: 0 };
            let stored = with_rows(|rows| rows.read(id)).unwrap().unwrap().version.stored;
            let Stored::State(State::Log(Log { entries, .. })) = stored else {
                panic!("{stored:?}")
            };
            assert_eq!(entries.len(), 3);
            assert!(entries.is_sorted() && entries[2].0 - entries[0].0 == 2 * 86_400_000_000);
        }
    }

    #[pg_test]
    fn leases_are_read_in_the_order_of_expiry_and_without_nulls() {
        run("INSERT INTO ratelimits VALUES ('codec', 'leases', 0, 'c', 2, 'epoch', NULL, NULL, NULL,
             '{9,300,NULL,7,-100,1,300,NULL}')");
        for access in STORES {
            by(access);
            let id = RowId { name: b"codec", key: b"leases", shard: 0 };
            let stored = with_rows(|rows| rows.read(id)).unwrap().unwrap().version.stored;
            let Stored::State(State::Leases(Leases { leases, .. })) = stored else {
                panic!("{stored:?}")
            };
            let pairs: Vec<_> =
                leases.iter().map(|lease| (lease.id.0, lease.expires_at.0)).collect();
            assert_eq!(pairs, [(7, -100), (9, 300), (1, 300)]);
        }
    }

    /// Only the table's owner writes them.
    #[pg_test]
    fn columns_of_other_kinds_are_no_part_of_a_state() {
        run("INSERT INTO ratelimits (name, key, kind, value, ts, added, prior, log, leases) VALUES
            ('codec', 'bucket', 't', 1, 'epoch', NULL, 'NaN', '{infinity}', '{1}'),
            ('codec', 'window', 's', 1, 'epoch', 'NaN', 2, '{infinity}', '{1}'),
            ('codec', 'log', 'l', 0, 'epoch', 'NaN', 'NaN', '{}', '{1}'),
            ('codec', 'leases', 'c', 0, 'epoch', 'NaN', 'NaN', '{infinity}', '{}')");
        let ts = Micros(0);
        let states = [
            ("bucket", State::Tokens(Tokens { value: 1.0, ts, added: None })),
            ("window", State::Counters(Counters { value: 1.0, prior: 2.0, ts })),
            ("log", State::Log(Log { entries: vec![], ts })),
            ("leases", State::Leases(Leases { leases: vec![], ts })),
        ];
        for access in STORES {
            by(access);
            for (key, state) in &states {
                let id = RowId { name: b"codec", key: key.as_bytes(), shard: 0 };
                let stored = with_rows(|rows| rows.read(id)).unwrap().unwrap().version.stored;
                assert_eq!(stored, Stored::State(state.clone()), "{access}");
            }
        }
    }

    /// Longer than any key of a call, which has at most 1,024 bytes.
    #[pg_test]
    fn names_and_keys_of_any_length_are_told_apart() {
        run("INSERT INTO ratelimits SELECT repeat('n', n), repeat('k', n), 0, 't', n, 'epoch'
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
        run(
            "ALTER TABLE ratelimits ALTER kind DROP NOT NULL, ALTER value DROP NOT NULL, ALTER ts DROP NOT NULL",
        );
        run("INSERT INTO ratelimits VALUES ('codec', 'kind', 0, NULL, 1, 'epoch'),
            ('codec', 'value', 0, 't', NULL, 'epoch'), ('codec', 'ts', 0, 't', 1, NULL)");
        for column in ["kind", "value", "ts"] {
            let id = RowId { name: b"codec", key: column.as_bytes(), shard: 0 };
            match with_rows(|rows| rows.read(id)).map(|row| row.map(|row| row.version.stored)) {
                Err(Error::NullState { column: named, .. }) => assert_eq!(named, column),
                other => panic!("{column}: {other:?}"),
            }
        }
    }

    #[pg_test]
    fn a_column_of_another_type_is_an_error_and_no_number() {
        run("ALTER TABLE ratelimits ALTER prior TYPE real");
        run("INSERT INTO ratelimits VALUES ('codec', 'prior', 0, 's', 1, 'epoch', NULL, 1)");
        let id = RowId { name: b"codec", key: b"prior", shard: 0 };
        match with_rows(|rows| rows.read(id)).map(|row| row.map(|row| row.version.stored)) {
            Err(Error::Pg(PgError::AlteredColumn { column })) => assert_eq!(column, "prior"),
            other => panic!("{other:?}"),
        }
    }

    #[pg_test]
    fn a_row_that_was_only_read_is_replaced_unless_it_has_changed() {
        by("heap");
        let id = RowId { name: b"codec", key: b"replace", shard: 0 };
        with_rows(|rows| {
            assert!(rows.insert(id, &tokens(1.0).into(), true)?);
            let seen = rows.read(id)?.unwrap();
            assert!(rows.replace(id, &seen, &tokens(2.0).into(), true)?);
            let seen = rows.read(id)?.unwrap();
            assert_eq!(seen.stored, tokens(2.0));
            let locked = rows.lock(id, true)?.unwrap();
            rows.delete(id, locked.tuple)?;
            assert!(rows.read(id)?.is_none());
            assert!(rows.insert(id, &tokens(3.0).into(), true)?);
            assert_eq!(rows.read(id)?.unwrap().stored, tokens(3.0));
            Ok(())
        })
        .unwrap();
    }
}

//! Changes by this transaction, and what the session has cached from before.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;
    use ratelimit_limiter::ports::{Host, RowAccess};

    use super::super::{and_rolled_back, error_of, function, get, run, with_catalog};
    use crate::host::{Session, Use};
    use crate::schema::invalidation;

    fn capacity() -> f64 {
        get("SELECT capacity FROM rl_check('announced')")
    }

    #[pg_test]
    fn a_definition_that_is_changed_by_whatever_sql_counts_at_once() {
        run("SELECT rl_define('announced', rl_token_bucket(1, '1 day'))");
        assert_eq!(capacity(), 1.0);
        run("SELECT rl_define('announced', rl_token_bucket(2, '1 day'))");
        assert_eq!(capacity(), 2.0);
        run("UPDATE rl_config SET config = rl_token_bucket(3, '1 day')");
        assert_eq!(capacity(), 3.0);
        and_rolled_back(|| {
            run("UPDATE rl_config SET config = rl_token_bucket(4, '1 day')");
            assert_eq!(capacity(), 4.0);
        });
        assert_eq!(capacity(), 3.0);
        run("INSERT INTO rl_config VALUES ('announced', 'vip', rl_token_bucket(5, '1 day'))");
        assert_eq!(get::<f64>("SELECT capacity FROM rl_check('announced', 'vip')"), 5.0);
        assert_eq!(capacity(), 3.0);
        run("TRUNCATE rl_config");
        assert_eq!(error_of("SELECT rl_check('announced')").sqlstate, "42704");
    }

    #[pg_test]
    fn only_what_concerns_the_tables_is_counted_as_a_change() {
        let counts = || {
            run("SELECT rl_reset('announced')"); // processes what was announced
            (invalidation::changes(), invalidation::definition_changes())
        };
        run("CREATE TABLE other (n int)");
        let (tables, definitions) = counts();
        run("ALTER TABLE other ADD m int");
        run("CREATE INDEX ON other (m)");
        assert_eq!(counts(), (tables, definitions));
        run("COMMENT ON TABLE ratelimits IS 'no change'");
        assert_eq!(counts(), (tables, definitions));
        run("ALTER TABLE ratelimits SET (fillfactor = 50)");
        let (tables, definitions) = match counts() {
            (more, same) if more > tables && same == definitions => (more, same),
            other => panic!("{other:?} after {:?}", (tables, definitions)),
        };
        run("SELECT rl_define('announced', rl_token_bucket(1, '1 day'))");
        assert!(counts().1 > definitions);
        assert!(counts().0 > tables);
    }

    /// As when Postgres discards its caches at each chance, or other sessions keep changing definitions.
    #[pg_test]
    fn a_call_ends_although_changes_are_announced_all_the_time() {
        for access in ["auto", "sql"] {
            run(&format!("SET LOCAL ratelimit.access = {access}"));
            let (mut tries, mut before) = (0, 0);
            let worked = Session::run(Use::Writes, function(), |session| {
                tries += 1;
                before = invalidation::changes();
                // SAFETY: in a transaction.
                unsafe { pgrx::pg_sys::InvalidateSystemCaches() };
                session.with_rows(RowAccess::Write, |_| Ok(invalidation::changes() > before))
            });
            assert!(worked.unwrap());
            // It has begun again once, and read what was announced.
            assert_eq!(tries, 2, "{access}");
        }
    }

    /// A call that has begun with another table does not go on.
    #[pg_test]
    fn a_call_begins_again_where_the_table_is_another() {
        let mut tries = 0;
        let found = Session::run(Use::Writes, function(), |session| {
            tries += 1;
            if tries < 4 {
                run(if tries % 2 == 1 {
                    "CREATE INDEX more ON ratelimits (ts)"
                } else {
                    "DROP INDEX more"
                });
            }
            session.with_rows(RowAccess::Write, |_| Ok(()))
        });
        found.unwrap();
        assert_eq!(tries, 4);
        assert_eq!(with_catalog(|catalog| catalog.index), Err("has an additional index"));
    }

    #[pg_test]
    fn a_result_type_that_is_altered_is_read_again_until_it_is_as_it_was() {
        run("SELECT rl_define('announced', rl_token_bucket(1, '1 day'))");
        assert_eq!(capacity(), 1.0);
        and_rolled_back(|| {
            run("ALTER TYPE rl_result ADD ATTRIBUTE more int");
            assert_eq!(capacity(), 1.0);
            assert!(get::<bool>("SELECT more IS NULL FROM rl_check('announced')"));
        });
        assert_eq!(capacity(), 1.0);
        and_rolled_back(|| {
            run("ALTER TYPE rl_result DROP ATTRIBUTE reset_at");
            assert_eq!(capacity(), 1.0);
        });
        assert_eq!(capacity(), 1.0);
        and_rolled_back(|| {
            run("ALTER TYPE rl_result ALTER ATTRIBUTE capacity TYPE real");
            assert_eq!(error_of("SELECT rl_check('announced')").sqlstate, "42P13");
        });
        assert_eq!(capacity(), 1.0);
    }

    #[pg_test]
    fn the_tables_are_found_in_a_schema_that_is_renamed() {
        let schema = || with_catalog(|catalog| catalog.schema.to_str().unwrap().to_owned());
        let home: String = get(
            "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'ratelimit'",
        );
        assert_eq!(schema(), home);
        run("SELECT rl_define('announced', rl_token_bucket(1, '1 day'))");
        and_rolled_back(|| {
            run(&format!("ALTER SCHEMA {home} RENAME TO \"the Limits\""));
            run("SET LOCAL search_path = \"the Limits\"");
            assert_eq!(schema(), "\"the Limits\"");
            assert!(get::<bool>("SELECT rl_undefine('announced')"));
        });
        assert_eq!(schema(), home);
        assert_eq!(capacity(), 1.0);
    }

    #[pg_test]
    fn a_table_that_is_no_longer_the_extension_s_is_missed() {
        run("SELECT rl_define('announced', rl_token_bucket(1, '1 day'))");
        assert_eq!(capacity(), 1.0);
        and_rolled_back(|| {
            run("ALTER EXTENSION ratelimit DROP TABLE ratelimits");
            run("ALTER TABLE ratelimits RENAME TO gone");
            run("CREATE TABLE ratelimits (LIKE gone INCLUDING ALL)");
            assert_eq!(error_of("SELECT rl_check('announced')").sqlstate, "42P01");
        });
        assert_eq!(capacity(), 1.0);
    }
}

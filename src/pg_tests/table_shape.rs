//! Each way of altering the table, and the reason that is then given for using SQL.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::{and_rolled_back, error_of, get, run, with_catalog};

    /// A change of the table, and the reason why it can't be accessed directly.
    const CHANGES: &[(&str, &str)] = &[
        (
            "ALTER EXTENSION ratelimit DROP TABLE ratelimits; ALTER TABLE ratelimits RENAME TO gone;
             CREATE TABLE ratelimits (LIKE gone) PARTITION BY HASH (name);
             ALTER EXTENSION ratelimit ADD TABLE ratelimits",
            "is not an ordinary table",
        ),
        (
            "CREATE ACCESS METHOD another TYPE TABLE HANDLER heap_tableam_handler;
             ALTER TABLE ratelimits SET ACCESS METHOD another",
            "does not use the heap access method",
        ),
        (
            "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
             CREATE TRIGGER noted AFTER INSERT ON ratelimits FOR EACH STATEMENT EXECUTE FUNCTION noted()",
            "has a trigger, or has had one",
        ),
        (
            "CREATE TABLE child (n text, k text, s int, FOREIGN KEY (n, k, s) REFERENCES ratelimits)",
            "has a trigger, or has had one",
        ),
        ("CREATE RULE noted AS ON INSERT TO ratelimits DO ALSO NOTHING", "has a rule, or has had one"),
        ("ALTER TABLE ratelimits ENABLE ROW LEVEL SECURITY", "has row security"),
        (
            "CREATE TABLE whole (LIKE ratelimits) PARTITION BY HASH (name);
             ALTER TABLE whole ATTACH PARTITION ratelimits FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
            "is a partition",
        ),
        (
            "ALTER TABLE ratelimits SET (user_catalog_table = true)",
            "is used as a catalog table, where ON CONFLICT is refused",
        ),
        ("ALTER TABLE ratelimits REPLICA IDENTITY FULL", "does not have the default replica identity"),
        ("ALTER TABLE ratelimits ADD note text", "has different columns"),
        ("ALTER TABLE ratelimits ADD note text; ALTER TABLE ratelimits DROP note", "has different columns"),
        ("ALTER TABLE ratelimits DROP log", "has different columns"),
        ("ALTER TABLE ratelimits ALTER kind TYPE text", "has different columns"),
        ("ALTER TABLE ratelimits ALTER kind SET DEFAULT 't'", "has an altered column"),
        ("ALTER TABLE ratelimits DROP added", "has different columns"),
        ("ALTER TABLE ratelimits DROP holds_due", "has different columns"),
        ("ALTER TABLE ratelimits ALTER added SET NOT NULL", "has an altered column"),
        ("ALTER TABLE ratelimits RENAME prior TO before", "has different columns"),
        ("ALTER TABLE ratelimits ALTER prior TYPE real", "has different columns"),
        ("ALTER TABLE ratelimits ALTER ts DROP NOT NULL", "has an altered column"),
        ("ALTER TABLE ratelimits ALTER prior SET DEFAULT 1", "has an altered column"),
        ("ALTER TABLE ratelimits ALTER key DROP DEFAULT", "has an altered column"),
        ("ALTER TABLE ratelimits ALTER log SET STORAGE EXTERNAL", "has an altered column"),
        ("ALTER TABLE ratelimits ALTER name TYPE text COLLATE \"POSIX\"", "has an altered column"),
        ("ALTER TABLE ratelimits ALTER ts TYPE timestamptz(3)", "has an altered column"),
        ("ALTER TABLE ratelimits ADD CHECK (value > 0)", "has a check constraint"),
        ("ALTER TABLE ratelimits DROP CONSTRAINT ratelimits_pkey", "has no primary key"),
        ("CREATE INDEX ON ratelimits (ts)", "has an additional index"),
        (
            "CREATE PUBLICATION ours FOR TABLE ratelimits WHERE (value > 0)",
            "has a publication whose filter or columns forbid updates",
        ),
        (
            "CREATE PUBLICATION ours FOR TABLE ratelimits (name)",
            "has a publication whose filter or columns forbid updates",
        ),
        (
            "ALTER TABLE ratelimits DROP CONSTRAINT ratelimits_pkey, ADD PRIMARY KEY (key, name, shard)",
            "has a different primary key",
        ),
        (
            "ALTER TABLE ratelimits DROP CONSTRAINT ratelimits_pkey, ADD PRIMARY KEY (name, key)",
            "has a different primary key",
        ),
        (
            "ALTER TABLE ratelimits DROP CONSTRAINT ratelimits_pkey,
                                    ADD PRIMARY KEY (name, key, shard) INCLUDE (value)",
            "has a different primary key",
        ),
        (
            "ALTER TABLE ratelimits DROP CONSTRAINT ratelimits_pkey, ADD PRIMARY KEY (name, key, shard) DEFERRABLE",
            // Its check is a trigger.
            "has a trigger, or has had one",
        ),
    ];

    fn refusal() -> Option<&'static str> {
        with_catalog(|catalog| catalog.index.err())
    }

    #[pg_test]
    fn the_table_of_create_extension_is_unaltered() {
        assert_eq!(refusal(), None);
        let index = with_catalog(|catalog| catalog.index).unwrap();
        assert_eq!(index, get("SELECT 'ratelimits_pkey'::regclass::oid"));
        assert!(with_catalog(|catalog| catalog.usual_key));
    }

    #[pg_test]
    fn every_change_that_matters_to_the_executor_has_its_reason() {
        for &(change, reason) in CHANGES {
            and_rolled_back(|| {
                run(change);
                assert_eq!(refusal(), Some(reason), "{change}");
            });
            assert_eq!(refusal(), None, "after {change}");
        }
    }

    #[pg_test]
    fn what_makes_no_difference_is_not_refused() {
        for change in [
            "ALTER TABLE ratelimits SET UNLOGGED",
            "ALTER TABLE ratelimits SET (fillfactor = 10)",
            "ALTER TABLE ratelimits SET (user_catalog_table = false)",
            "CREATE TABLE child () INHERITS (ratelimits)",
            "CREATE TABLE parent (); ALTER TABLE ratelimits INHERIT parent",
            "ALTER TABLE ratelimits ALTER key SET DEFAULT 'other'",
            "ALTER TABLE ratelimits ALTER name SET STATISTICS 0",
            "ALTER INDEX ratelimits_pkey RENAME TO other",
            "ALTER TABLE ratelimits DROP CONSTRAINT ratelimits_pkey, ADD PRIMARY KEY (name, key, shard)",
            "CREATE PUBLICATION ours FOR TABLE ratelimits",
            "CREATE ROLE other; GRANT ALL ON ratelimits TO other; ALTER TABLE ratelimits OWNER TO other",
        ] {
            and_rolled_back(|| {
                run(change);
                assert_eq!(refusal(), None, "{change}");
            });
        }
    }

    #[pg_test]
    fn heap_is_refused_where_auto_goes_by_sql() {
        run("SELECT rl_define('shape', rl_token_bucket(5, '1 day'))");
        run("CREATE INDEX ON ratelimits (ts)");
        run("SET LOCAL ratelimit.access = heap");
        let error = error_of("SELECT rl_limit('shape')");
        assert_eq!(error.sqlstate, "0A000");
        assert!(error.detail.contains("has an additional index"), "{error:?}");
        run("SET LOCAL ratelimit.access = auto");
        assert_eq!(get::<f64>("SELECT remaining FROM rl_limit('shape')").round(), 4.0);
        assert!(with_catalog(|catalog| catalog.usual_key));
    }
}

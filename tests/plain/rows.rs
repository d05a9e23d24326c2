//! What the SQL file does to rows: which locks rl_prune takes while it reads, how triggers distinguish keys, and how
//! holds are found, given back and written.

use postgres::error::SqlState;

use crate::database::{Database, OWNER};

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn rl_prune_locks_no_row_while_it_reads() {
    let database = Database::new("plain_pruned");
    let mut owner = database.connect_as(OWNER);
    // Counts reads, and those after the transaction got an id: then it had changed something.
    owner
        .batch_execute(
            "SELECT rl_define('idle', rl_token_bucket(10, '1 ms')), rl_define('live', rl_token_bucket(10, '1 day'));
             SELECT rl_limit('idle', n::text), rl_limit('live', n::text) FROM generate_series(1, 50) n;
             SELECT rl_block('live', 'over', until => 'infinity');
             UPDATE ratelimit.rl_blocks SET until = clock_timestamp() - interval '1 second';
             SELECT pg_sleep(0.05);
             SELECT set_config('test.reads', '0', false), set_config('test.reads_with_locks', '0', false);
             ALTER FUNCTION ratelimit._defined(text, text, boolean) RENAME TO _defined_as_it_was;
             CREATE FUNCTION ratelimit._defined(name text, key text, of_state boolean DEFAULT false)
             RETURNS ratelimit._limit LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM set_config(counter, (current_setting(counter)::int + 1)::text, false)
                 FROM (VALUES ('test.reads', true), ('test.reads_with_locks', pg_current_xact_id_if_assigned() IS NOT NULL))
                     AS counters (counter, counts) WHERE counts;
                 RETURN ratelimit._defined_as_it_was(name, key, of_state);
             END $$",
        )
        .unwrap();
    let pruned = |owner: &mut postgres::Client, max_rows: i32| -> i64 {
        owner.query_one("SELECT rl_prune($1)", &[&max_rows]).unwrap().get(0)
    };
    assert_eq!(pruned(&mut owner, 1000), 51);
    let sql = "SELECT current_setting('test.reads'), current_setting('test.reads_with_locks')";
    let counts = owner.query_one(sql, &[]).unwrap();
    // It reads all 100 rows, and then each of the 50 idle ones again before it deletes it.
    assert_eq!((counts.get(0), counts.get(1)), ("150", "50"));
    assert_eq!(pruned(&mut owner, 1000), 0);
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_trigger_compares_the_bytes_of_keys_and_reads_generated_columns_of_deleted_rows() {
    let database = Database::new("plain_trigger_keys");
    let mut owner = database.connect_as(OWNER);
    owner
        .batch_execute(
            "SELECT rl_define('n', rl_token_bucket(10, '1 day'));
             CREATE TABLE public.deleted (name text, lower text GENERATED ALWAYS AS (lower(name)) STORED);
             CREATE TRIGGER limited BEFORE DELETE ON public.deleted FOR EACH ROW EXECUTE FUNCTION rl_trigger('n', 'key=lower');
             INSERT INTO public.deleted VALUES ('ANN'), ('Bob');
             DELETE FROM public.deleted",
        )
        .unwrap();
    let keys = |owner: &mut postgres::Client| -> Vec<(String, f64)> {
        let rows = owner
            .query("SELECT key, 10 - remaining FROM rl_status('n') ORDER BY key COLLATE \"C\"", &[])
            .unwrap();
        rows.iter().map(|row| (row.get(0), f64::round(row.get(1)))).collect()
    };
    assert_eq!(keys(&mut owner), [("ann".to_owned(), 1.0), ("bob".to_owned(), 1.0)]);
    let made = owner.batch_execute(
        "CREATE COLLATION public.any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    );
    if made.as_ref().is_err_and(|error| error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED)) {
        return; // a PostgreSQL without ICU
    }
    made.unwrap();
    owner
        .batch_execute(
            "SELECT rl_reset_keys('n');
             CREATE TABLE public.written (author text COLLATE public.any_case);
             CREATE TRIGGER limited AFTER INSERT ON public.written REFERENCING NEW TABLE AS new FOR EACH STATEMENT
                 EXECUTE FUNCTION rl_trigger('n', 'key=author');
             INSERT INTO public.written VALUES ('carl'), ('Carl'), ('carl')",
        )
        .unwrap();
    let written: Vec<_> = keys(&mut owner).into_iter().filter(|(_, used)| *used > 0.0).collect();
    assert_eq!(written, [("Carl".to_owned(), 1.0), ("carl".to_owned(), 2.0)]);
}

/// A plan that was made while the table was empty, too, finds a hold by its id, not all holds of the key.
#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn a_hold_is_found_by_its_id_whenever_the_plan_was_made() {
    let database = Database::new("plain_hold_plans");
    let mut owner = database.connect_as(OWNER);
    owner
        .batch_execute(
            "ANALYZE rl_holds; SELECT rl_define('q', rl_token_bucket(1000000, '1 hour'));
             SELECT rl_hold('q', 'k', 1, id => 'h' || n) FROM generate_series(1, 300) n;
             SELECT rl_hold('q', 'k', 2, id => 'h' || n) FROM generate_series(1, 300) n;
             SELECT rl_settle('h' || n, 1) FROM generate_series(1, 300) n",
        )
        .unwrap();
    // Until the session reports it.
    drop(owner);
    let mut owner = database.connect_as(OWNER);
    let sql = "SELECT sum(idx_tup_read)::float8 FROM pg_stat_user_indexes WHERE indexrelname = 'rl_holds_of_key'";
    let read: f64 = owner.query_one(sql, &[]).unwrap().get(0);
    assert!(read < 3000.0, "{read} holds were read");
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn rl_prune_gives_back_as_many_keys_as_it_may_and_ends_with_0() {
    let database = Database::new("plain_hold_prune");
    let mut owner = database.connect_as(OWNER);
    owner
        .batch_execute(
            "SET ratelimit.clock = '2027-01-01 12:00:00+00';
             SELECT rl_define('q', rl_token_bucket(10, '100 days'));
             SELECT rl_limit('q', n::text, 1), rl_hold('q', n::text, 2, '1 minute') FROM generate_series(1, 25) n;
             UPDATE rateLimits SET value = 'NaN' WHERE key = '1';
             SET ratelimit.clock = '2027-01-01 12:02:00+00'",
        )
        .unwrap();
    let left = "SELECT count(*) FILTER (WHERE count > spent) FROM rl_holds";
    for (pruned, expected) in [(10, 15), (10, 5), (4, 1), (0, 1)] {
        let now: i64 = owner.query_one("SELECT rl_prune(10)", &[]).unwrap().get(0);
        assert_eq!(now, pruned);
        let left: i64 = owner.query_one(left, &[]).unwrap().get(0);
        assert_eq!(left, expected);
    }
}

#[test]
#[ignore = "needs a server: make test ONLY=plain"]
fn what_a_trigger_swallows_of_a_hold_is_an_error() {
    let database = Database::new("plain_hold_swallowed");
    let mut owner = database.connect_as(OWNER);
    owner
        .batch_execute(
            "SET ratelimit.clock = '2027-01-01 12:00:00+00';
             SELECT rl_define('q', rl_token_bucket(10, '100 days')), rl_hold('q', 'k', 2, '1 minute', 'h');
             CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER swallow BEFORE INSERT OR UPDATE ON rl_holds FOR EACH ROW EXECUTE FUNCTION swallow()",
        )
        .unwrap();
    for (minute, call) in [
        (0, "rl_hold('q', 'k', 3, id => 'h')"),
        (0, "rl_hold('q', 'k', 3)"),
        (0, "rl_hold_all('[{\"name\": \"q\", \"key\": \"k\"}]')"),
        (2, "rl_limit('q', 'k')"),
        (2, "rl_limit_all('[{\"name\": \"q\", \"key\": \"k\"}]')"),
        (2, "rl_limit_each('[{\"name\": \"q\", \"key\": \"k\"}]')"),
        (2, "rl_limit_each('[{\"name\": \"q\", \"key\": \"k\"}]', '1 second')"),
    ] {
        let clock = format!("SET ratelimit.clock = '2027-01-01 12:0{minute}:00+00'");
        owner.batch_execute(&clock).unwrap();
        let error = owner.batch_execute(&format!("SELECT * FROM {call}")).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{call}: {error:?}");
        assert!(error.detail().unwrap().contains("the table rl_holds"), "{call}: {error:?}");
    }
    // The first call to notice the expiry afterwards does all of it.
    owner.batch_execute("DROP TRIGGER swallow ON rl_holds").unwrap();
    let left = "SELECT remaining FROM rl_limit('q', 'k', 0)";
    let left: f64 = owner.query_one(left, &[]).unwrap().get(0);
    assert_eq!(left.round(), 10.0);
}

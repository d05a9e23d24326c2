//! What the SQL file does to rows: which locks rl_prune takes while it reads, and how triggers distinguish keys.

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
            "SELECT rl_reset_all('n');
             CREATE TABLE public.written (author text COLLATE public.any_case);
             CREATE TRIGGER limited AFTER INSERT ON public.written REFERENCING NEW TABLE AS new FOR EACH STATEMENT
                 EXECUTE FUNCTION rl_trigger('n', 'key=author');
             INSERT INTO public.written VALUES ('carl'), ('Carl'), ('carl')",
        )
        .unwrap();
    let written: Vec<_> = keys(&mut owner).into_iter().filter(|(_, used)| *used > 0.0).collect();
    assert_eq!(written, [("Carl".to_owned(), 1.0), ("carl".to_owned(), 2.0)]);
}

//! Limits in memory that are saved, and the same limit elsewhere: in the table, with another kind, on a standby, under
//! a fixed clock.

use std::io::Write;
use std::thread;

use postgres::Client;
use postgres::error::SqlState;

use crate::saved::{
    CAPACITY, KEYS, SAVE, TAKE_EACH, UNSAVED, config, define, number, server, taken, under_load,
    until, written,
};
use crate::scale;
use crate::shared_memory::set_keys;

/// Ways to define the limit; `$` stands for the config.
const WAYS: [&str; 9] = [
    "SELECT rl_define('saved', $)",
    "UPDATE rl_config SET config = $ WHERE name = 'saved'",
    "BEGIN; DELETE FROM rl_config WHERE name = 'saved'; INSERT INTO rl_config VALUES ('saved', '', $); COMMIT",
    "BEGIN; TRUNCATE rl_config; INSERT INTO rl_config VALUES ('saved', '', $); COMMIT",
    "BEGIN; SELECT rl_undefine('saved'); SELECT rl_define('saved', $); COMMIT",
    "BEGIN; SAVEPOINT s; SELECT rl_define('saved', $); RELEASE s; COMMIT",
    "BEGIN; SELECT rl_define('saved', $); SELECT rl_define('saved', $ || '{\"store\": \"memory\", \"save\": 100}');
        SELECT rl_define('saved', $); COMMIT",
    "BEGIN; SAVEPOINT s; SELECT rl_define('saved', $); ROLLBACK TO s; SELECT rl_prune(); SELECT rl_define('saved', $); COMMIT",
    "COPY",
];

fn change(client: &mut Client, way: &str, save: Option<&str>) {
    let config = config(save);
    if way != "COPY" {
        let sql = way.replace('$', &format!("({config})"));
        return client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    // As a dump is restored.
    let row: String =
        client.query_one(&format!("SELECT 'saved\t\t' || ({config})::text"), &[]).unwrap().get(0);
    let mut transaction = client.transaction().unwrap();
    transaction.batch_execute("DELETE FROM rl_config").unwrap();
    let mut writer = transaction.copy_in("COPY rl_config FROM STDIN").unwrap();
    writeln!(writer, "{row}").unwrap();
    writer.finish().unwrap();
    transaction.commit().unwrap();
}

#[test]
#[ignore = "needs a server: make test"]
fn every_way_to_change_the_store_carries_every_take() {
    let (_server, mut client) = server("1 hour");
    let mut total = 0;
    for (out, into) in WAYS.into_iter().zip(WAYS.into_iter().rev()) {
        client.batch_execute(TAKE_EACH).unwrap();
        change(&mut client, out, None);
        total += KEYS;
        assert_eq!(written(&mut client, "saved"), total, "{out}");
        assert_eq!(number(&mut client, UNSAVED), 0, "{out}");
        client.batch_execute(TAKE_EACH).unwrap();
        change(&mut client, into, Some("1 hour"));
        client.batch_execute(TAKE_EACH).unwrap();
        total += 2 * KEYS;
        assert_eq!(written(&mut client, "saved"), total - KEYS, "{into}");
        assert_eq!(taken(&mut client, "saved"), total, "{into}");
    }
    // Only one key of it, whose override ends.
    let define = |save, key| format!("SELECT rl_define('saved', {}, '{key}')", config(save));
    client.batch_execute(&define(Some("1 hour"), "7")).unwrap();
    client.batch_execute(&define(None, "")).unwrap();
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, UNSAVED), 1);
    client.batch_execute("SELECT rl_undefine('saved', '7')").unwrap();
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(written(&mut client, "saved"), total + 2 * KEYS);
}

/// Calls meanwhile may be missed, but never fail.
#[test]
#[ignore = "needs a server: make test"]
fn a_change_of_store_under_load_fails_no_call_and_no_change() {
    let (server, mut client) = server("100 milliseconds");
    let told = under_load(&server, |_| {
        for n in 0..scale(36, 1000) {
            let save = if n % 2 == 0 { None } else { Some("100 milliseconds") };
            change(&mut client, WAYS[n / 2 % WAYS.len()], save);
        }
    });
    let taken_then = taken(&mut client, "saved");
    println!("{taken_then} of {told}");
    assert!(told > 1000, "{told}");
    assert!((1..=told).contains(&taken_then), "{taken_then} of {told}");
    // From then on none is.
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    assert_eq!(written(&mut client, "saved"), taken_then + KEYS);
}

/// One key can't be written, so that it stays unsaved.
#[test]
#[ignore = "needs a server: make test"]
fn a_change_of_store_that_ends_in_a_rollback_leaves_everything_as_it_was() {
    let (_server, mut client) = server("1 hour");
    let poison = "ALTER TABLE rateLimits ADD CONSTRAINT poison CHECK (key <> '7') NOT VALID";
    client.batch_execute(poison).unwrap();
    let out = format!("SELECT rl_define('saved', {})", config(None));
    let mut total = 0;
    for (how, error) in [
        ("BEGIN; $; ROLLBACK", None),
        ("BEGIN; SAVEPOINT s; $; ROLLBACK TO s; COMMIT", None),
        // Its own calls are in the row, and go with it.
        ("BEGIN; $; SELECT rl_limit('saved', '1'); ROLLBACK", None),
        ("BEGIN; DELETE FROM rl_config; ROLLBACK", None),
        ("BEGIN; TRUNCATE rl_config; ROLLBACK", None),
        ("BEGIN; DROP EXTENSION ratelimit; CREATE EXTENSION ratelimit; ROLLBACK", None),
        ("BEGIN; $; PREPARE TRANSACTION 'change'", Some(SqlState::FEATURE_NOT_SUPPORTED)),
        ("BEGIN; $; COMMIT", Some(SqlState::CHECK_VIOLATION)),
        ("BEGIN; $; SELECT 1 / 0", Some(SqlState::DIVISION_BY_ZERO)),
    ] {
        client.batch_execute(TAKE_EACH).unwrap();
        total += KEYS;
        let done = client.batch_execute(&how.replace('$', &out));
        if let Err(error) = &done {
            let _ = client.batch_execute("ROLLBACK");
            let error = error.as_db_error().unwrap();
            let is_prepare = *error.code() == SqlState::FEATURE_NOT_SUPPORTED;
            assert_eq!(error.hint().is_some(), is_prepare, "{error:?}");
            assert!(!format!("{error:?}").contains("Failing row"), "{error:?}");
        }
        assert_eq!(done.err().and_then(|error| error.code().cloned()), error, "{how}");
        assert_eq!(taken(&mut client, "saved"), total, "{how}");
        assert!(number(&mut client, UNSAVED) > 0, "{how}");
        assert_eq!(number(&mut client, SAVE), 1, "{how}");
        assert_eq!(written(&mut client, "saved"), total - total / KEYS, "{how}");
    }
    client.batch_execute("ALTER TABLE rateLimits DROP CONSTRAINT poison").unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    assert_eq!(written(&mut client, "saved"), total);
}

#[test]
#[ignore = "needs a server: make test"]
fn the_commit_of_a_change_of_store_waits_for_a_locked_row_as_an_update_does() {
    let (server, mut client) = server("1 hour");
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    client.batch_execute(TAKE_EACH).unwrap();
    let mut holder = server.client();
    holder.batch_execute("BEGIN; SELECT FROM rateLimits WHERE key = '7' FOR UPDATE").unwrap();
    let define = format!("SELECT rl_define('saved', {})", config(None));
    client.batch_execute(&format!("SET lock_timeout = '200ms'; BEGIN; {define}")).unwrap();
    let error = client.batch_execute("COMMIT").unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE), "{error:?}");
    assert_eq!(taken(&mut client, "saved"), 2 * KEYS);
    assert_eq!(number(&mut client, UNSAVED), 1);
    for (release, code) in
        [("SELECT pg_cancel_backend($)", Some(SqlState::QUERY_CANCELED)), ("COMMIT", None)]
    {
        let mut changer = server.client();
        let pid: i32 = changer.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        let change = format!("BEGIN; {define}; COMMIT");
        let changed = thread::scope(|scope| {
            let changed = scope.spawn(move || changer.batch_execute(&change));
            let waits = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'"
            );
            until("it waits", || number(&mut client, &waits) == 1);
            // No other session does.
            client
                .batch_execute("SELECT rl_limit('saved', '1'), rl_credit('saved', '1', 1)")
                .unwrap();
            holder.batch_execute(&release.replace('$', &pid.to_string())).unwrap();
            changed.join().unwrap()
        });
        assert_eq!(changed.err().and_then(|error| error.code().cloned()), code);
        assert_eq!(taken(&mut client, "saved"), 2 * KEYS);
    }
    assert_eq!(written(&mut client, "saved"), 2 * KEYS);
    assert_eq!(number(&mut client, UNSAVED), 0);
}

/// What one session meets that has the server for itself.
#[test]
#[ignore = "needs a server: make test"]
fn changes_resets_and_configs_of_one_session_are_exact() {
    let (_server, mut client) = server("1 hour");
    let saved =
        |config: &str| format!("{config} || '{{\"store\": \"memory\", \"save\": \"1 hour\"}}'");
    let (bucket, slots) = ("rl_token_bucket(10, '1000 days')", "rl_concurrency(10, '1 hour')");
    let left = |client: &mut Client, call: &str| -> f64 {
        let sql = format!("SELECT round(remaining::numeric, 3)::float8 FROM {call}");
        client.query_one(&sql, &[]).unwrap().get(0)
    };
    // Each in a transaction of its own.
    let run = |client: &mut Client, all: &[String]| {
        all.iter().for_each(|sql| client.batch_execute(sql).unwrap());
    };
    // Its own locks block no session.
    let change = [
        format!(
            "SELECT rl_define('u', {bucket}), rl_define('v', {0}), rl_define('w', {0})",
            saved(bucket)
        ),
        "SELECT rl_limit('u', '1'), rl_limit('v', '1'), rl_limit('w', '1')".into(),
        format!(
            "BEGIN; SELECT rl_define('u', {}), rl_define('v', {bucket}); COMMIT",
            saved(bucket)
        ),
        format!("BEGIN; SELECT rl_prune(); SELECT rl_define('w', {bucket}); COMMIT"),
    ];
    run(&mut client, &change);
    for name in ["u", "v", "w"] {
        assert_eq!(left(&mut client, &format!("rl_limit('{name}', '1')")), 8.0, "{name}");
    }
    // A reset is one of all kinds.
    let kinds = [saved(bucket), saved(slots)];
    client.batch_execute(&format!("SELECT rl_define('kind', {})", kinds[0])).unwrap();
    assert_eq!(left(&mut client, "rl_limit('kind', '1', 2)"), 8.0);
    client
        .batch_execute(&format!("SELECT rl_save(); SELECT rl_define('kind', {})", kinds[1]))
        .unwrap();
    client.batch_execute("SELECT rl_reset('kind', '1')").unwrap();
    client.batch_execute(&format!("SELECT rl_define('kind', {})", kinds[0])).unwrap();
    assert_eq!(left(&mut client, "rl_check('kind', '1')"), 10.0);
    // One of all keys, too, also where only an override is saved.
    for rest in [
        "",
        ", rl_define('all', rl_token_bucket(10, '1000 days'), 'row'), rl_limit('all', 'row', 4)",
    ] {
        let reset = [
            format!("SELECT rl_define('all', {bucket} || '{{\"store\": \"memory\"}}'){rest}"),
            format!("SELECT rl_define('all', {}, 'saved')", kinds[0]),
            "SELECT rl_limit('all', 'saved', 4)".into(),
            "SELECT rl_save(), rl_reset_keys('all')".into(),
        ];
        run(&mut client, &reset);
        for key in ["saved", "row"] {
            assert_eq!(left(&mut client, &format!("rl_check('all', '{key}')")), 10.0, "{key}");
        }
    }
    // A config in the call counts where its name does.
    let of_call = "config => rl_token_bucket(20, '1000 days')";
    assert_eq!(left(&mut client, &format!("rl_limit('kind', 'call', 5, {of_call})")), 15.0);
    assert_eq!(left(&mut client, &format!("rl_limit('kind', 'call', 5, {of_call})")), 10.0);
    assert_eq!(number(&mut client, SAVE), 0);
    let row = "SELECT round(value)::bigint FROM rateLimits WHERE name = 'kind' AND key = 'call'";
    assert_eq!(number(&mut client, row), 10);
    let other = format!("SELECT rl_limit('kind', 'call', {of_call} || '{{\"store\": \"table\"}}')");
    let error = client.batch_execute(&other).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INVALID_PARAMETER_VALUE), "{error:?}");
}

#[test]
#[ignore = "needs a server: make test"]
fn a_fixed_clock_has_states_of_its_own_that_are_never_saved() {
    let (_server, mut client) = server("100 milliseconds");
    let bucket = "rl_token_bucket(10, '1 day', store => 'memory', save => '100 milliseconds')";
    client.batch_execute(&format!("SELECT rl_define('day', {bucket})")).unwrap();
    client.batch_execute("SELECT rl_limit('day', 'k', 4)").unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    let version = "SELECT ctid::text || xmin FROM rateLimits";
    let before: String = client.query_one(version, &[]).unwrap().get(0);
    client
        .batch_execute(
            "BEGIN; SELECT set_config('ratelimit.clock', (now() + interval '30 minutes')::text, true)",
        )
        .unwrap();
    let take = "SELECT count(*) FROM generate_series(1, 12) n, rl_limit('day', left('k' || n, 1)) WHERE ok";
    assert_eq!(number(&mut client, take), 10);
    assert_eq!(number(&mut client, SAVE), 0);
    client.batch_execute("ROLLBACK").unwrap();
    assert_eq!(number(&mut client, UNSAVED), 0);
    let after: String = client.query_one(version, &[]).unwrap().get(0);
    assert_eq!(after, before);
    assert_eq!(number(&mut client, take), 6);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_standby_counts_for_itself_and_from_its_promotion_on_from_the_rows() {
    let (server, mut primary) = server("1 hour");
    primary
        .batch_execute(
            "SELECT rl_define('plain', rl_token_bucket(1e-300, '1 day', capacity => 100, store => 'memory')),
                    rl_define('leases', rl_concurrency(3, '1 hour', store => 'memory', save => '1 hour'))",
        )
        .unwrap();
    primary
        .batch_execute("SELECT rl_limit('saved', '1', 100), rl_acquire('leases', 'k', 2)")
        .unwrap();
    set_keys(&mut primary, 1000);
    assert_eq!(number(&mut primary, SAVE), 0);
    let standby = server.standby();
    let mut replica = standby.client();
    let take = |client: &mut Client, call: &str| -> (bool, f64) {
        let row = client.query_one(&format!("SELECT ok, remaining FROM {call}"), &[]).unwrap();
        (row.get(0), row.get(1))
    };
    // What it forgets can't be had from the row.
    let dropped = "SELECT dropped_live FROM rl_memory()";
    let before = number(&mut replica, dropped);
    let flood = "SELECT rl_limit('saved', 'flood ' || n) FROM generate_series(1, 20000) n";
    replica.batch_execute(flood).unwrap();
    assert!(number(&mut replica, dropped) > before + 10_000);
    // On what it has.
    assert_eq!(take(&mut replica, "rl_limit('saved', '1', 1)"), (true, CAPACITY - 101.0));
    assert_eq!(take(&mut replica, "rl_limit('saved', '2', 50)"), (true, CAPACITY - 50.0));
    assert_eq!(take(&mut replica, "rl_limit('plain', 'k', 5)"), (true, 95.0));
    let lease: String =
        replica.query_one("SELECT lease FROM rl_acquire('leases', 'k')", &[]).unwrap().get(0);
    replica.execute("SELECT rl_release($1)", &[&lease]).unwrap();
    assert_eq!(take(&mut primary, "rl_acquire('leases', 'k')"), (true, 0.0));
    primary.batch_execute("SELECT rl_limit('saved', '1', 900), rl_limit('saved', '2', 7)").unwrap();
    assert_eq!(number(&mut primary, SAVE), 0);
    until("it is replicated", || written(&mut replica, "saved") == 1007);
    assert_eq!(take(&mut replica, "rl_limit('saved', '1', 1)"), (true, CAPACITY - 102.0));
    replica.batch_execute("SELECT pg_promote()").unwrap();
    for restart in [false, true] {
        if restart {
            drop(replica);
            standby.restart();
            replica = standby.client();
        }
        let more = if restart { 1.0 } else { 0.0 };
        assert_eq!(take(&mut replica, "rl_limit('saved', '1')"), (true, CAPACITY - 1001.0 - more));
        assert_eq!(take(&mut replica, "rl_limit('saved', '2')"), (true, CAPACITY - 8.0 - more));
        assert_eq!(take(&mut replica, "rl_acquire('leases', 'k')"), (false, 0.0));
        let plain = if restart { 99.0 } else { 94.0 };
        assert_eq!(take(&mut replica, "rl_limit('plain', 'k')"), (true, plain));
    }
    assert_eq!(number(&mut replica, SAVE), 0);
    assert_eq!(written(&mut replica, "saved"), 1011);
    // Nothing of what was counted before is left.
    assert_eq!(number(&mut replica, "SELECT count(*) FROM rateLimits"), 3);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_dump_is_at_most_a_turn_old_and_goes_on_where_it_is_restored() {
    let (server, mut client) = server("1 hour");
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    client.batch_execute(TAKE_EACH).unwrap();
    client.batch_execute("CREATE DATABASE copy").unwrap();
    let folder = server.folder();
    server.exec(&format!(
        "pg_dump -h {folder} -U postgres postgres >data/dump &&
         psql -q -v ON_ERROR_STOP=1 -h {folder} -U postgres copy <data/dump"
    ));
    let mut copy = server.connect("copy").unwrap();
    assert_eq!(taken(&mut copy, "saved"), KEYS);
    copy.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut copy, SAVE), 0);
    assert_eq!(written(&mut copy, "saved"), 2 * KEYS);
    // And where it is restored again into the database that goes on.
    define(&mut copy, "saved", "100 milliseconds");
    assert_eq!(taken(&mut copy, "saved"), 2 * KEYS);
}

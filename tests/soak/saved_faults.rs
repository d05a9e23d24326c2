//! Limits in memory that are saved, while something is in the way: a killed writer, held rows, locked tables, a full
//! disk, settings that forbid to write, databases and roles that come and go.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::failures::{whole, wide_key};
use crate::own::{Server, children};
use crate::rules::Random;
use crate::saved::{TAKERS, define, number, taken, under_load, until, written};
use crate::scale;

const TAKE_EACH: &str = "SELECT rl_limit('saved', key::text) FROM generate_series(1, 20) key";
const SAVE: &str = "SELECT rl_save()";
const UNSAVED: &str = "SELECT unsaved_keys FROM rl_memory()";

/// A server with a bucket that is saved so often.
fn server(save: &str) -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", save);
    (server, client)
}

/// The server's first process.
fn postmaster(server: &Server) -> String {
    server.exec("head -n 1 data/postmaster.pid")
}

/// A writer, also one that is not connected.
pub fn writer(postmaster: &str) -> Option<String> {
    let is_writer = |process: &String| {
        std::fs::read_to_string(format!("/proc/{process}/cmdline"))
            .is_ok_and(|title| title.contains("ratelimit writer"))
    };
    children(postmaster).into_iter().find(is_writer)
}

/// Kills a server's writer as soon as there is one, after a while; whether it was still there.
fn kill_writer(server: &Server, after: Duration) -> bool {
    let postmaster = postmaster(server);
    let mut found = None;
    until("there is a writer", || {
        found = writer(&postmaster);
        found.is_some()
    });
    thread::sleep(after);
    // At once: a script of the server's user takes longer than a writer lives.
    let mut kill = Command::new("kill");
    kill.args(["-KILL", &found.unwrap()]).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
#[ignore = "needs a server: make test"]
fn a_row_that_a_prepared_transaction_holds_keeps_neither_the_others_nor_a_stop() {
    let (server, mut client) = server("1 hour");
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    client
        .batch_execute(
            "BEGIN; SELECT FROM rateLimits WHERE key = '7' FOR UPDATE; PREPARE TRANSACTION 'held'",
        )
        .unwrap();
    for (mode, round) in [("fast", 1), ("smart", 2)] {
        client.batch_execute(TAKE_EACH).unwrap();
        drop(client);
        server.restart_by(mode); // which fails where it doesn't stop within a minute
        client = server.client();
        assert_eq!(written(&mut client, "saved"), 20 + 19 * round, "{mode}");
    }
    client.batch_execute("COMMIT PREPARED 'held'").unwrap();
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    assert_eq!(written(&mut client, "saved"), 78);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_session_that_saves_at_its_end_does_not_wait_for_a_row_that_is_held() {
    let (server, mut client) = server("100 milliseconds");
    client.batch_execute("ALTER SYSTEM SET max_worker_processes = 0").unwrap();
    client.batch_execute("ALTER DATABASE postgres SET default_transaction_read_only = on").unwrap();
    server.restart();
    server.client().batch_execute(TAKE_EACH).unwrap();
    let mut client = server.client();
    until("it is saved", || written(&mut client, "saved") == 20);
    client.batch_execute("SET default_transaction_read_only = off").unwrap();
    client.batch_execute("BEGIN; SELECT FROM rateLimits WHERE key = '7' FOR UPDATE").unwrap();
    let mut taker = server.client();
    let process: i32 = taker.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    taker.batch_execute(TAKE_EACH).unwrap();
    drop(taker);
    let process = format!("/proc/{process}");
    let ended = || !Path::new(&process).exists();
    until("the session has ended", ended);
    assert_eq!(written(&mut client, "saved"), 39);
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(number(&mut client, UNSAVED), 1);
    server.client().batch_execute("SELECT rl_limit('saved', '8')").unwrap();
    until("all is saved", || written(&mut client, "saved") == 41);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_locked_table_delays_the_writer_and_a_stop_under_the_lock_loses_nothing() {
    let (server, mut client) = server("100 milliseconds");
    client.batch_execute(TAKE_EACH).unwrap();
    until("it is saved", || written(&mut client, "saved") == 20);
    let mut saved = 20;
    for (lock, mode) in
        [("ACCESS EXCLUSIVE", None), ("SHARE", Some("fast")), ("EXCLUSIVE", Some("fast"))]
    {
        let mut holder = server.client();
        client.batch_execute(TAKE_EACH).unwrap();
        let begin = format!("BEGIN; LOCK TABLE rateLimits IN {lock} MODE");
        holder.batch_execute(&begin).unwrap();
        thread::sleep(Duration::from_millis(700));
        match mode {
            None => holder.batch_execute("COMMIT").unwrap(),
            Some(mode) => {
                server.restart_by(mode);
                client = server.client();
            }
        }
        saved += 20;
        until(&format!("it is saved after {lock}"), || {
            written(&mut client, "saved") == saved || mode.is_some()
        });
        assert_eq!(written(&mut client, "saved"), saved, "{lock} {mode:?}");
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn an_extension_that_is_made_again_many_times_is_saved_each_time() {
    let (server, mut client) = server("100 milliseconds");
    for round in 0..scale(70, 300) {
        client.batch_execute("SELECT rl_limit('saved', '1', 5)").unwrap();
        let saved = "SELECT count(*) FROM rateLimits";
        let begun = Instant::now();
        while number(&mut client, saved) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "round {round} was not saved");
            thread::sleep(Duration::from_millis(5));
        }
        client.batch_execute("DROP EXTENSION ratelimit; CREATE EXTENSION ratelimit").unwrap();
        define(&mut client, "saved", "100 milliseconds");
    }
    drop(server);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_writer_that_is_killed_in_any_phase_loses_at_most_a_turn_and_another_comes() {
    let (server, mut client) = server("100 milliseconds");
    let mut random = Random(1);
    let (mut least, mut most, mut killed) = (0, 0, 0);
    for round in 0..scale(5, 100) {
        let mut saved = 0;
        // Asleep; about to connect, connected, writing; before and after its commit.
        let after = if round % 4 == 0 { 0 } else { 70 + random.below(80) };
        let told = under_load(&server, |told| {
            thread::sleep(Duration::from_millis(150));
            let before = told.load(Ordering::SeqCst);
            // What comes meanwhile is unsaved again.
            client.batch_execute(SAVE).unwrap();
            saved = before;
            // All sessions are ended by it, unless it was just leaving by itself.
            until("the server restarts", || {
                while !kill_writer(&server, Duration::from_millis(after)) {}
                (0..1000).any(|_| {
                    thread::sleep(Duration::from_millis(5));
                    client.batch_execute("SELECT").is_err()
                })
            });
            killed += 1;
        });
        client = server.client();
        (least, most) = (least + saved, most + told + TAKERS as i64);
        let taken = taken(&mut client, "saved");
        assert!((least..=most).contains(&taken), "round {round}: {taken} of {least} to {most}");
        // Another one comes.
        client.batch_execute("SELECT rl_limit('saved', '1')").unwrap();
        until("it is saved", || written(&mut client, "saved") == taken + 1);
        (least, most) = (taken + 1, taken + 1);
    }
    println!("{killed} writers killed");
    whole(&mut client);
}

/// The limit is on every process that the server starts from now on.
fn limit_files_of_all(server: &Server, bytes: &str) {
    server.exec(&format!("prlimit --pid {} --fsize={bytes}:", postmaster(server)));
}

#[test]
#[ignore = "needs a server: make test"]
fn a_full_disk_costs_nothing_once_there_is_room() {
    // A WAL file is no larger, so that only the table is limited.
    const BYTES: i64 = 16 << 20;
    let (server, mut client) = server("100 milliseconds");
    let fill = "INSERT INTO rateLimits (name, key, shard, value, ts)
                SELECT 'filler', repeat('x', 800) || $1 || ' ' || n, 0, 1, now() FROM generate_series(1, 100) n";
    let mut round = 0_i64;
    while number(&mut client, "SELECT pg_relation_size('rateLimits')") < BYTES - 200_000 {
        client.execute(fill, &[&round.to_string()]).unwrap();
        round += 1;
    }
    limit_files_of_all(&server, &BYTES.to_string());
    let keys = 2000;
    for n in 0..keys {
        client.execute("SELECT rl_limit('saved', $1)", &[&wide_key(n)]).unwrap();
    }
    let error = "SELECT count(*) FROM rl_memory() WHERE save_error LIKE 'could not extend file%'";
    until("the disk is full", || number(&mut client, error) == 1);
    assert!(number(&mut client, SAVE) > 0);
    // Calls go on.
    client.execute("SELECT rl_limit('saved', $1)", &[&wide_key(0)]).unwrap();
    limit_files_of_all(&server, "unlimited");
    until("all is saved", || number(&mut client, UNSAVED) == 0);
    assert_eq!(written(&mut client, "saved"), keys as i64 + 1);
    assert_eq!(number(&mut client, "SELECT count(save_error) FROM rl_memory()"), 0);
    whole(&mut client);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_database_and_its_owner_can_be_changed_while_keys_are_unsaved() {
    let (server, mut client) = server("100 milliseconds");
    for sql in [
        "CREATE ROLE one LOGIN; CREATE ROLE two LOGIN",
        "ALTER ROLE one SET default_transaction_read_only = on",
        "CREATE DATABASE tenant OWNER one",
    ] {
        client.batch_execute(sql).unwrap();
    }
    let mut tenant = server.client_of("one", "tenant");
    tenant.batch_execute("SET default_transaction_read_only = off").unwrap();
    tenant.batch_execute("CREATE EXTENSION ratelimit").unwrap();
    define(&mut tenant, "saved", "100 milliseconds");
    let mut expected = 0;
    let mut superuser = server.connect("tenant").unwrap();
    for sql in [
        "REASSIGN OWNED BY one TO two",
        "DROP OWNED BY one",
        "ALTER ROLE two RENAME TO three",
        "ALTER ROLE three NOLOGIN",
        "ALTER DATABASE tenant SET default_transaction_read_only = on",
        "ALTER DATABASE tenant SET statement_timeout = '1ms'",
        "ALTER DATABASE tenant SET search_path = pg_catalog",
        "ALTER DATABASE tenant CONNECTION LIMIT 0",
    ] {
        superuser.batch_execute(&format!("SELECT rl_limit('saved', '1'); {sql}")).unwrap();
        expected += 1;
        until(sql, || written(&mut superuser, "saved") == expected);
    }
    drop(tenant);
    superuser.batch_execute("ALTER DATABASE tenant RESET ALL").unwrap();
    let read_only = "ALTER DATABASE tenant SET default_transaction_read_only = on";
    superuser.batch_execute(read_only).unwrap();
    client.batch_execute("DROP ROLE one").unwrap();
    superuser.batch_execute("SELECT rl_limit('saved', '1')").unwrap();
    // Renamed, while the writer is asleep or at work.
    drop(superuser);
    let rename = "ALTER DATABASE tenant RENAME TO other";
    until("it is renamed", || client.batch_execute(rename).is_ok());
    let mut other = server.connect("other").unwrap();
    until("it is saved", || written(&mut other, "saved") == expected + 1);
    other.batch_execute("SELECT rl_limit('saved', '1')").unwrap();
    drop(other);
    let copy = "CREATE DATABASE copy TEMPLATE other";
    until("it is copied", || client.batch_execute(copy).is_ok());
    // The copy has what was saved, and counts for itself.
    let mut copied = server.connect("copy").unwrap();
    copied.batch_execute("SET default_transaction_read_only = off").unwrap();
    let before = written(&mut copied, "saved");
    assert!((expected + 1..=expected + 2).contains(&before), "{before} of {expected}");
    copied.batch_execute("SELECT rl_limit('saved', '1')").unwrap();
    until("the copy is saved", || written(&mut copied, "saved") == before + 1);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_session_that_fails_to_save_at_its_end_leaves_that_to_the_next() {
    let server = Server::start();
    server.client().batch_execute("ALTER SYSTEM SET max_worker_processes = 0").unwrap();
    server.restart();
    let mut client = server.client();
    define(&mut client, "saved", "100 milliseconds");
    let refuse = "ALTER TABLE rateLimits ADD CONSTRAINT none CHECK (name = 'none') NOT VALID";
    client.batch_execute(refuse).unwrap();
    server.client().batch_execute(TAKE_EACH).unwrap();
    let others = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'";
    until("it has ended", || number(&mut client, others) == 0);
    assert_eq!(number(&mut client, UNSAVED), 20);
    client.batch_execute("ALTER TABLE rateLimits DROP CONSTRAINT none").unwrap();
    server.client().batch_execute(TAKE_EACH).unwrap();
    until("the next has saved", || written(&mut client, "saved") == 40);
}

#[test]
#[ignore = "needs a server: make test"]
fn writers_that_sleep_make_room_once_their_extension_is_dropped() {
    let (_server, mut client) = server("1 hour");
    // More than there are places for workers.
    for _ in 0..12 {
        client.batch_execute(TAKE_EACH).unwrap();
        client.batch_execute("DROP EXTENSION ratelimit; CREATE EXTENSION ratelimit").unwrap();
        define(&mut client, "saved", "1 hour");
    }
    client.batch_execute(TAKE_EACH).unwrap();
    until("it is saved", || number(&mut client, SAVE) == 0);
    assert_eq!(written(&mut client, "saved"), 20);
}

//! Limits in memory that are saved: nothing is lost where the server stops cleanly, a crash forgets at most what was
//! taken since they were saved last, and nothing that is unsaved is evicted.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, Row};
use ratelimit_judge::{Asked, Recorder, Recording, Reply, Storage, judge};

use crate::history::FOLDER;
use crate::own::Server;
use crate::scale;
use crate::shared_memory::set_keys;
use crate::work::Ends;

/// The tokens that a key has, which never refill.
pub const CAPACITY: f64 = 1e9;
pub const KEYS: i64 = 20;
pub const TAKERS: usize = 4;

/// A bucket in memory, saved so often.
pub fn define(client: &mut Client, name: &str, save: &str) {
    let sql = format!(
        "SELECT rl_define('{name}', rl_token_bucket(1e-300, '1 day', capacity => {CAPACITY})
                                    || '{{\"store\": \"memory\", \"save\": \"{save}\"}}')"
    );
    client.batch_execute(&sql).unwrap();
}

pub fn number(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap().get(0)
}

/// How much was taken of all keys, as calls are answered.
pub fn taken(client: &mut Client, name: &str) -> i64 {
    let sql = format!(
        "SELECT sum({CAPACITY} - remaining)::bigint
         FROM generate_series(1, {KEYS}) AS key, rl_check('{name}', key::text)"
    );
    number(client, &sql)
}

/// How much the rows say that was taken.
pub fn written(client: &mut Client, name: &str) -> i64 {
    let sql = format!(
        "SELECT coalesce(sum({CAPACITY} - value), 0)::bigint FROM rateLimits WHERE name = '{name}'"
    );
    number(client, &sql)
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What sessions were told that they took, while `work` was done; they end with their connections.
pub fn under_load(server: &Server, work: impl FnOnce(&AtomicI64)) -> i64 {
    let (told, stop) = (AtomicI64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for taker in 0..TAKERS {
            let (mut client, told, stop) = (server.client(), &told, &stop);
            scope.spawn(move || {
                let sql = "SELECT FROM rl_limit('saved', $1)";
                let take = client.prepare(sql).unwrap();
                for n in (taker as i64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    if client.execute(&take, &[&(1 + n % KEYS).to_string()]).is_err() {
                        return;
                    }
                    told.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let ends = Ends(&stop);
        work(&told);
        drop(ends);
    });
    told.into_inner()
}

#[test]
#[ignore = "needs a server: make test"]
fn a_clean_stop_loses_nothing_and_a_crash_what_was_taken_since_the_last_save() {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", "100 milliseconds");
    let (mut least, mut most) = (0, 0);
    for round in 0..scale(6, 30) {
        let crashes = round % 3 == 2;
        let mut saved = 0;
        let told = under_load(&server, |told| {
            thread::sleep(Duration::from_millis(400));
            if !crashes {
                return server.restart();
            }
            let before = told.load(Ordering::SeqCst);
            assert_eq!(number(&mut client, "SELECT rl_save()").min(0), 0);
            saved = before;
            server.kill();
            server.restart();
        });
        client = server.client();
        // A take whose answer got lost may count, of each session one.
        most += told + TAKERS as i64;
        least += if crashes { saved } else { told };
        let taken = taken(&mut client, "saved");
        println!("round {round}: told {told}, taken {taken} of {least} to {most}");
        assert!((least..=most).contains(&taken), "round {round}: {taken} of {least} to {most}");
        (least, most) = (taken, taken);
    }
}

/// For what is answered of keys of which so much is left: as if the rest had been taken at once.
fn recorder(left: &[f64]) -> Recorder {
    let recorder = Recorder::new();
    let config = format!(
        r#"{{"kind": "token bucket", "rate": 1e-300, "period": "1 day", "capacity": {CAPACITY}, "store": "memory", "save": "100 milliseconds"}}"#
    );
    for key in 1..=KEYS {
        recorder.key("saved", &key.to_string(), &config, Storage::Memory);
    }
    let taken = |left: &&[f64]| {
        let take = |left: f64| {
            let reply = Reply { ok: true, remaining: Some(left), retry_at: None };
            (Asked::Limit { count: CAPACITY - left, reserve: false }, None, reply)
        };
        let all = left.iter().map(|&left| take(left));
        (0..).zip(all).map(|(key, (asked, now, reply))| (key, asked, now, reply)).collect()
    };
    recorder.session().call(|| Ok::<_, ()>(left), taken).unwrap();
    recorder
}

/// What is left of each key.
fn left(client: &mut Client) -> Vec<f64> {
    let sql = format!(
        "SELECT remaining FROM generate_series(1, {KEYS}) key, rl_check('saved', key::text) ORDER BY key"
    );
    client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Takes and checks until the connection is lost, and with it the answer of the last call; counts by key what it was
/// told.
fn take_until_lost(client: &mut Client, mut recording: Recording, told: &[AtomicI64]) {
    let statements = ["rl_limit", "rl_check"].map(|call| {
        client.prepare(&format!("SELECT ok, remaining FROM {call}('saved', $1)")).unwrap()
    });
    for n in 0.. {
        let (key, checks) = ((n * 7 % KEYS) as usize, n % 5 == 0);
        let asked = match checks {
            true => Asked::Check { count: 1.0, reserve: false },
            false => Asked::Limit { count: 1.0, reserve: false },
        };
        let read = |row: &Row| {
            let reply = Reply { ok: row.get(0), remaining: Some(row.get(1)), retry_at: None };
            vec![(key as u32, asked, None, reply)]
        };
        let name = (key + 1).to_string();
        let call = || client.query_one(&statements[usize::from(checks)], &[&name]);
        match (recording.call(call, read), checks) {
            (Ok(_), false) => drop(told[key].fetch_add(1, Ordering::SeqCst)),
            (Ok(_), true) => {}
            (Err(_), false) => return recording.unanswered([(key as u32, asked)]),
            (Err(_), true) => return,
        }
    }
}

/// Has the judge say whether some order explains every answer; it refuses them when one is changed.
fn judged(recorder: &Recorder) {
    println!("{}", recorder.judge(FOLDER.as_ref(), "refused-saved").unwrap());
    let changed = recorder.history().with_a_denial().expect("a take");
    judge(&changed).expect_err("a take that is told to be a denial");
}

#[test]
#[ignore = "needs a server: make test"]
fn one_order_explains_every_answer_over_all_clean_stops_and_up_to_each_crash() {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", "100 milliseconds");
    let mut recorder = recorder(&left(&mut client));
    let now = |told: &[AtomicI64]| -> Vec<i64> {
        told.iter().map(|told| told.load(Ordering::SeqCst)).collect()
    };
    let told: Vec<AtomicI64> = (0..KEYS).map(|_| AtomicI64::new(0)).collect();
    for round in 0..scale(6, 30) {
        let (crashes, mut saved) = (round % 3 == 2, Vec::new());
        thread::scope(|scope| {
            for _ in 0..TAKERS {
                let (mut taker, recording) = (server.client(), recorder.session());
                let told = &told;
                scope.spawn(move || take_until_lost(&mut taker, recording, told));
            }
            thread::sleep(Duration::from_millis(300));
            if crashes {
                saved = now(&told);
                assert_eq!(number(&mut client, "SELECT rl_save()").min(0), 0);
                server.kill();
            }
            server.restart();
        });
        client = server.client();
        if !crashes {
            continue;
        }
        judged(&recorder);
        let (left, told_now) = (left(&mut client), now(&told));
        for (key, left) in left.iter().enumerate() {
            let taken = (CAPACITY - left) as i64;
            // A take whose answer got lost may count, of each session one a round.
            let most = told_now[key] + 3 * TAKERS as i64;
            assert!((saved[key]..=most).contains(&taken), "{taken} of {} to {most}", saved[key]);
            told[key].store(taken, Ordering::SeqCst);
        }
        recorder = self::recorder(&left);
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn what_is_taken_while_a_turn_is_under_way_survives_a_clean_stop() {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", "100 milliseconds");
    let mut told = 0;
    for round in 0..scale(5, 30) {
        let mut many = server.client();
        told += under_load(&server, |_| {
            thread::scope(|scope| {
                // Of many keys, so that there is always a turn, which takes long.
                let many = scope.spawn(move || {
                    let take =
                        "SELECT rl_limit('saved', 'k' || n) FROM generate_series(1, 20000) n";
                    while many.batch_execute(take).is_ok() {}
                });
                thread::sleep(Duration::from_millis(500 + round % 5 * 30));
                server.restart();
                many.join().unwrap();
            });
        });
        client = server.client();
        let taken = taken(&mut client, "saved");
        assert!((told..=told + TAKERS as i64).contains(&taken), "round {round}: {taken} of {told}");
        told = taken;
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn a_clean_stop_waits_for_no_row_that_a_prepared_transaction_holds() {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", "100 milliseconds");
    let take = "SELECT rl_limit('saved', key::text) FROM generate_series(1, 20) key";
    client.batch_execute(take).unwrap();
    assert_eq!(number(&mut client, "SELECT rl_save()"), 0);
    let hold =
        "BEGIN; SELECT FROM rateLimits WHERE key = '7' FOR UPDATE; PREPARE TRANSACTION 'held'";
    client.batch_execute(hold).unwrap();
    client.batch_execute(take).unwrap();
    server.restart();
    let mut client = server.client();
    assert_eq!(written(&mut client, "saved"), 39);
    client.batch_execute("ROLLBACK PREPARED 'held'").unwrap();
}

#[test]
#[ignore = "needs a server: make test"]
fn a_change_is_in_its_row_soon_and_each_key_is_written_once_a_turn() {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", "100 milliseconds");
    client.batch_execute("SELECT rl_limit('saved', '1') FROM generate_series(1, 1000)").unwrap();
    until("it is saved", || written(&mut client, "saved") == 1000);
    let unsaved = "SELECT unsaved_keys FROM rl_memory()";
    until("nothing is unsaved", || number(&mut client, unsaved) == 0);
    // Nothing is written where nothing changes.
    let version = "SELECT ctid::text || xmin FROM rateLimits";
    let version =
        |client: &mut Client| -> String { client.query_one(version, &[]).unwrap().get(0) };
    let before = version(&mut client);
    client.batch_execute("SELECT rl_check('saved', '1'), rl_limit('saved', '1', 2e9)").unwrap();
    assert_eq!(number(&mut client, "SELECT rl_save()"), 0);
    assert_eq!(version(&mut client), before);
    // What is rolled back, and taken where nothing can be written, counts.
    client
        .batch_execute(
            "BEGIN READ ONLY; SELECT rl_limit('saved', '1', 10); COMMIT;
             BEGIN; SELECT rl_limit('saved', '1', 100); ROLLBACK",
        )
        .unwrap();
    assert_eq!(number(&mut client, "SELECT rl_save()"), 0);
    assert_eq!(written(&mut client, "saved"), 1110);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_row_that_somebody_holds_is_saved_when_it_is_free() {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", "100 milliseconds");
    let take = "SELECT rl_limit('saved', key::text) FROM generate_series(1, 20) key";
    client.batch_execute(take).unwrap();
    assert_eq!(number(&mut client, "SELECT rl_save()"), 0);
    let mut holder = server.client();
    holder.batch_execute("BEGIN; SELECT FROM rateLimits WHERE key = '7' FOR UPDATE").unwrap();
    client.batch_execute(take).unwrap();
    until("the others are saved", || written(&mut client, "saved") == 39);
    assert_eq!(number(&mut client, "SELECT rl_save()"), 1);
    let age = "SELECT count(*) FROM rl_memory() WHERE unsaved_keys = 1 AND unsaved_since < now()";
    assert_eq!(number(&mut client, age), 1);
    holder.batch_execute("COMMIT").unwrap();
    until("it is saved", || written(&mut client, "saved") == 40);
    // As long as nobody can write at all, and then.
    holder.batch_execute("BEGIN; LOCK TABLE rateLimits IN SHARE MODE").unwrap();
    client.batch_execute(take).unwrap();
    assert_eq!(number(&mut client, "SELECT rl_save()"), 20);
    let error = "SELECT count(*) FROM rl_memory() WHERE save_error LIKE '%locked%'";
    assert_eq!(number(&mut client, error), 1);
    holder.batch_execute("COMMIT").unwrap();
    until("they are saved", || written(&mut client, "saved") == 60);
}

#[test]
#[ignore = "needs a server: make test"]
fn new_keys_evict_nothing_that_is_unsaved() {
    let server = Server::start();
    let mut client = server.client();
    set_keys(&mut client, 1000);
    define(&mut client, "saved", "1 hour");
    define(&mut client, "other", "1 hour");
    // Ten times as many as there is room for, in one statement: they are saved as room is needed.
    let flood = "SELECT rl_limit('saved', key::text) FROM generate_series(1, 10000) key";
    client.batch_execute(flood).unwrap();
    client.batch_execute(flood).unwrap();
    assert_eq!(number(&mut client, "SELECT rl_save()"), 0);
    assert_eq!(written(&mut client, "saved"), 20_000);
    // Where nothing can be written, new keys are refused; keys that are there, and those of other limits, go on.
    client
        .batch_execute("ALTER TABLE rateLimits ADD CONSTRAINT none CHECK (name = 'none') NOT VALID")
        .unwrap();
    let take = |client: &mut Client, name: &str, key: i64| {
        let taken = client.execute("SELECT FROM rl_limit($1, $2)", &[&name, &key.to_string()]);
        taken.map_err(|error| error.code().expect("an answer").clone())
    };
    let mut admitted = 0;
    for key in 20_001..25_000 {
        match take(&mut client, "saved", key) {
            Ok(_) => admitted += 1,
            Err(error) => {
                assert_eq!(error, SqlState::OUT_OF_MEMORY);
                break;
            }
        }
    }
    assert!((500..2000).contains(&admitted), "{admitted}");
    assert_eq!(take(&mut client, "saved", 20_001), Ok(1));
    assert_eq!(take(&mut client, "other", 1), Ok(1));
    let error =
        "SELECT count(*) FROM rl_memory() WHERE save_error LIKE '%violates check constraint%'";
    assert_eq!(number(&mut client, error), 1);
    client.batch_execute("ALTER TABLE rateLimits DROP CONSTRAINT none").unwrap();
    assert_eq!(number(&mut client, "SELECT rl_save()"), 0);
    assert_eq!(written(&mut client, "saved"), 20_000 + admitted + 1);
}

#[test]
#[ignore = "needs a server: make test"]
fn without_a_worker_sessions_save_when_they_end() {
    let server = Server::start();
    let mut client = server.client();
    client.batch_execute("ALTER SYSTEM SET max_worker_processes = 0").unwrap();
    server.restart();
    let (mut client, warnings) = server.client_with_notices();
    // Which an end of the session must not heed.
    let defaults = "SET default_transaction_isolation = 'serializable'; SET default_transaction_deferrable = on";
    client.batch_execute(defaults).unwrap();
    define(&mut client, "saved", "100 milliseconds");
    client.batch_execute("SELECT rl_limit('saved', '1', 5)").unwrap();
    assert!(warnings.recv().unwrap().contains("max_worker_processes"));
    assert_eq!(number(&mut client, "SELECT rl_save()"), 1);
    drop(client);
    let mut client = server.client();
    until("it is saved", || written(&mut client, "saved") == 5);
    // A clean stop of sessions that are in the midst of it.
    let told = under_load(&server, |_| {
        thread::sleep(Duration::from_millis(200));
        server.restart();
    });
    let taken = taken(&mut server.client(), "saved");
    assert!((5 + told..=5 + told + TAKERS as i64).contains(&taken), "{taken} of {told}");
}

#[test]
#[ignore = "needs a server: make test"]
fn the_writer_is_in_nobodys_way() {
    let server = Server::start();
    let mut client = server.client();
    client.batch_execute("CREATE DATABASE other").unwrap();
    client.batch_execute("ALTER DATABASE other SET default_transaction_read_only = on").unwrap();
    let mut other = server.connect("other").unwrap();
    other.batch_execute("SET default_transaction_read_only = off").unwrap();
    other.batch_execute("CREATE EXTENSION ratelimit").unwrap();
    define(&mut other, "saved", "100 milliseconds");
    other.batch_execute("SELECT rl_limit('saved', '1', 5)").unwrap();
    until("it is saved", || written(&mut other, "saved") == 5);
    // A writer that is asked to end saves; one that is cancelled goes on.
    let signal =
        "SELECT count(CASE WHEN $1 THEN pg_terminate_backend(pid) ELSE pg_cancel_backend(pid) END)
                  FROM pg_stat_activity WHERE backend_type = 'ratelimit writer'";
    for (round, ends) in (0..200).map(|round| (round, round % 2 == 0)) {
        other.batch_execute("SELECT rl_limit('saved', '1')").unwrap();
        thread::sleep(Duration::from_millis(round % 7));
        client.query(signal, &[&ends]).unwrap();
    }
    until("all is saved", || written(&mut other, "saved") == 205);
    // Without the extension, and without the database, while something is unsaved.
    other.batch_execute("SELECT rl_limit('saved', '1'); DROP EXTENSION ratelimit").unwrap();
    other.batch_execute("CREATE EXTENSION ratelimit").unwrap();
    define(&mut other, "saved", "100 milliseconds");
    other.batch_execute("SELECT rl_limit('saved', '1')").unwrap();
    until("it is saved", || written(&mut other, "saved") == 1);
    other.batch_execute("SELECT rl_limit('saved', '1')").unwrap();
    drop(other);
    until("nobody is there", || client.batch_execute("DROP DATABASE other").is_ok());
    define(&mut client, "saved", "100 milliseconds");
    client.batch_execute("SELECT rl_limit('saved', '1')").unwrap();
    until("it is saved", || written(&mut client, "saved") == 1);
    until("nothing is unsaved", || {
        number(&mut client, "SELECT unsaved_keys FROM rl_memory()") == 0
    });
}

#[test]
#[ignore = "needs a server: make test"]
fn a_standby_that_is_promoted_gives_back_nothing() {
    let server = Server::start();
    let mut primary = server.client();
    define(&mut primary, "saved", "100 milliseconds");
    primary.batch_execute("SELECT rl_limit('saved', '1', 100)").unwrap();
    assert_eq!(number(&mut primary, "SELECT rl_save()"), 0);
    let standby = server.standby();
    let mut replica = standby.client();
    let take = |client: &mut Client, key: &str, count: f64| -> f64 {
        let sql = "SELECT remaining FROM rl_limit('saved', $1, $2)";
        client.query_one(sql, &[&key, &count]).unwrap().get(0)
    };
    // It counts for itself, on what it has.
    assert_eq!(take(&mut replica, "1", 1.0), CAPACITY - 101.0);
    assert_eq!(take(&mut replica, "2", 50.0), CAPACITY - 50.0);
    primary.batch_execute("SELECT rl_limit('saved', '1', 900), rl_limit('saved', '2', 7)").unwrap();
    assert_eq!(number(&mut primary, "SELECT rl_save()"), 0);
    until("it is replicated", || written(&mut replica, "saved") == 1007);
    assert_eq!(take(&mut replica, "1", 1.0), CAPACITY - 102.0);
    replica.batch_execute("SELECT pg_promote()").unwrap();
    // The lesser of the two counts.
    assert_eq!(take(&mut replica, "1", 1.0), CAPACITY - 1001.0);
    assert_eq!(take(&mut replica, "2", 1.0), CAPACITY - 51.0);
    until("it is saved", || written(&mut replica, "saved") == 1052);
}

/// Defines the limit anew, `times` times: in the table and in memory by turns, in the ways in which that can be done.
fn change_store(client: &mut Client, times: usize) {
    let config = |store: &str| {
        format!("rl_token_bucket(1e-300, '1 day', capacity => {CAPACITY}) || '{{{store}}}'")
    };
    let stores = ["\"store\": \"table\"", "\"store\": \"memory\", \"save\": \"100 milliseconds\""];
    for n in 0..times {
        let config = config(stores[n % 2]);
        let change = match n / 2 % 3 {
            0 => format!("SELECT rl_define('saved', {config})"),
            1 => format!(
                "BEGIN; SELECT rl_define('saved', {config}); ROLLBACK;
                 UPDATE rl_config SET config = {config} WHERE name = 'saved'"
            ),
            _ => format!(
                "BEGIN; SAVEPOINT s; SELECT rl_define('saved', {config}); ROLLBACK TO s;
                 DELETE FROM rl_config; INSERT INTO rl_config VALUES ('saved', '', {config}); COMMIT"
            ),
        };
        client.batch_execute(&change).unwrap_or_else(|error| panic!("{change}: {error:?}"));
        thread::sleep(Duration::from_millis(n as u64 % 7 * 5));
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn a_change_of_store_carries_every_take() {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", "100 milliseconds");
    let told = under_load(&server, |_| change_store(&mut client, scale(40, 1000)));
    let mut client = server.client();
    assert!(told > 1000, "{told}");
    assert_eq!(taken(&mut client, "saved"), told);
}

//! Limits in memory that are saved: the row is what lasts, memory is what has been taken since. What a stop of any kind
//! leaves is judged.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, Row};
use ratelimit_judge::{Asked, Recorder, Recording, Reply, Storage, judge};

use crate::history::FOLDER;
use crate::own::{Server, children};
use crate::scale;
use crate::shared_memory::set_keys;
use crate::work::Ends;

/// The tokens that a key has, which never refill.
pub const CAPACITY: f64 = 1e9;
pub const KEYS: i64 = 20;
pub const TAKERS: usize = 4;

pub const TAKE_EACH: &str = "SELECT rl_limit('saved', key::text) FROM generate_series(1, 20) key";
pub const SAVE: &str = "SELECT rl_save()";
pub const UNSAVED: &str = "SELECT unsaved_keys FROM rl_memory()";

/// A bucket's config as an SQL expression: in the table, or in memory, saved so often.
pub fn config(save: Option<&str>) -> String {
    let store = match save {
        None => r#""store": "table""#.to_owned(),
        Some(save) => format!(r#""store": "memory", "save": "{save}""#),
    };
    format!("rl_token_bucket(1e-300, '1 day', capacity => {CAPACITY}) || '{{{store}}}'")
}

/// Defines a bucket in memory, saved so often.
pub fn define(client: &mut Client, name: &str, save: &str) {
    let sql = format!("SELECT rl_define('{name}', {})", config(Some(save)));
    client.batch_execute(&sql).unwrap();
}

/// Starts a server with such a bucket.
pub fn server(save: &str) -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", save);
    (server, client)
}

pub fn number(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap().get(0)
}

/// Returns the tokens taken of all keys, according to calls.
pub fn taken(client: &mut Client, name: &str) -> i64 {
    let sql = format!(
        "SELECT sum({CAPACITY} - remaining)::bigint
         FROM generate_series(1, {KEYS}) AS key, rl_check('{name}', key::text)"
    );
    number(client, &sql)
}

/// Returns the tokens taken according to the rows.
pub fn written(client: &mut Client, name: &str) -> i64 {
    let sql = format!(
        "SELECT coalesce(sum({CAPACITY} - value), 0)::bigint FROM rateLimits WHERE name = '{name}'"
    );
    number(client, &sql)
}

pub fn save_error(client: &mut Client) -> Option<String> {
    client.query_one("SELECT save_error FROM rl_memory()", &[]).unwrap().get(0)
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "not within two minutes: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a writer, also one that is not connected.
pub fn writer(postmaster: &str) -> Option<String> {
    let is_writer = |process: &String| {
        std::fs::read_to_string(format!("/proc/{process}/cmdline"))
            .is_ok_and(|title| title.contains("ratelimit writer"))
    };
    children(postmaster).into_iter().find(is_writer)
}

/// Sends a signal to a process, if it is still there; at once: a script of the server's user takes longer than a writer
/// lives.
pub fn signal(signal: &str, process: &str) {
    Command::new("kill").args([signal, process]).stderr(Stdio::null()).status().unwrap();
}

/// Kills the writer as soon as there is one, which `call` leaves something to do, again and again until the server has
/// restarted by that.
pub fn kill_writer(server: &Server, call: &str) {
    let mut client = server.client();
    let postmaster = server.postmaster();
    until("the server restarts", || {
        if let Some(writer) = writer(&postmaster) {
            signal("-KILL", &writer);
        }
        client.batch_execute(call).is_err()
    });
}

/// Returns what sessions took by the answers, while `work` was done; they end with their connections. No call fails.
pub fn under_load(server: &Server, work: impl FnOnce(&AtomicI64)) -> i64 {
    let (told, stop) = (AtomicI64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for taker in 0..TAKERS {
            let (mut client, told, stop) = (server.client(), &told, &stop);
            scope.spawn(move || {
                let take = client.prepare("SELECT FROM rl_limit('saved', $1)").unwrap();
                for n in (taker as i64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    match client.execute(&take, &[&(1 + n % KEYS).to_string()]) {
                        Ok(_) => told.fetch_add(1, Ordering::SeqCst),
                        Err(error) if is_lost(&error) => return,
                        Err(error) => panic!("{error:?}"),
                    };
                }
            });
        }
        let ends = Ends(&stop);
        work(&told);
        drop(ends);
    });
    told.into_inner()
}

fn is_lost(error: &postgres::Error) -> bool {
    let ends = [&SqlState::ADMIN_SHUTDOWN, &SqlState::CRASH_SHUTDOWN];
    error.code().is_none_or(|code| ends.contains(&code))
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

/// Returns what is left of each key.
fn left(client: &mut Client) -> Vec<f64> {
    let sql = format!(
        "SELECT remaining FROM generate_series(1, {KEYS}) key, rl_check('saved', key::text) ORDER BY key"
    );
    client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Takes and checks until `stop`, or until the connection is lost, and with it the answer of the last call; counts the
/// answers by key.
fn take(client: &mut Client, mut recording: Recording, told: &[AtomicI64], stop: &AtomicBool) {
    let statements = ["rl_limit", "rl_check"].map(|call| {
        client.prepare(&format!("SELECT ok, remaining FROM {call}('saved', $1)")).unwrap()
    });
    for n in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
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
            (Err(error), _) if !is_lost(&error) => panic!("{error:?}"),
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

/// Ways to end a server, or its writer; what follows `Kill` is a crash.
const STOPS: [&str; 7] =
    ["fast", "terminate", "smart", "kill", "held", "immediate", "kill the writer"];

/// Ends the server like this, while sessions take; returns what was answered before all was saved, if it is a crash.
fn stop(server: &Server, how: &str, told: &[AtomicI64], ends: &AtomicBool) -> Option<Vec<i64>> {
    let save = || {
        let told = told.iter().map(|told| told.load(Ordering::SeqCst)).collect();
        // What comes meanwhile is unsaved again.
        server.client().batch_execute(SAVE).unwrap();
        Some(told)
    };
    match how {
        "fast" => server.restart(),
        // With a row that can't be written.
        "held" => {
            let hold = "BEGIN; UPDATE rateLimits SET ts = ts WHERE name = 'held'; PREPARE TRANSACTION 'held'";
            server.client().batch_execute(hold).unwrap();
            server.client().batch_execute("SELECT rl_limit('held')").unwrap();
            server.restart();
            server.client().batch_execute("ROLLBACK PREPARED 'held'").unwrap();
        }
        // It ends once the sessions have, which take meanwhile.
        "smart" => thread::scope(|scope| {
            scope.spawn(|| server.restart_by("smart"));
            thread::sleep(Duration::from_millis(300));
            ends.store(true, Ordering::Relaxed);
        }),
        "terminate" => {
            let mut client = server.client();
            // Each once: a second signal ends what it writes.
            let sql = "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE backend_type = 'ratelimit writer' AND pid <> ALL ($1)";
            let mut ended: Vec<i32> = Vec::new();
            until("several are ended", || {
                let rows = client.query(sql, &[&ended]).unwrap();
                ended.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
                ended.len() > 3
            });
            ends.store(true, Ordering::Relaxed);
        }
        crash => {
            let saved = save();
            match crash {
                "kill" => {
                    server.kill();
                    server.restart();
                }
                "immediate" => server.restart_by("immediate"),
                _ => kill_writer(server, "SELECT"),
            }
            return saved;
        }
    }
    None
}

#[test]
#[ignore = "needs a server: make test"]
fn one_order_explains_every_answer_over_all_clean_stops_and_up_to_each_crash() {
    let (server, mut client) = server("100 milliseconds");
    define(&mut client, "many", "100 milliseconds");
    define(&mut client, "held", "100 milliseconds");
    client.batch_execute("SELECT rl_limit('held'), rl_save()").unwrap();
    let mut recorder = recorder(&left(&mut client));
    drop(client);
    let told: Vec<AtomicI64> = (0..KEYS).map(|_| AtomicI64::new(0)).collect();
    for round in 0..scale(STOPS.len(), 30) {
        let (how, ends) = (STOPS[round % STOPS.len()], AtomicBool::new(false));
        let saved = thread::scope(|scope| {
            for _ in 0..TAKERS {
                let (mut taker, recording) = (server.client(), recorder.session());
                let (told, ends) = (&told, &ends);
                scope.spawn(move || take(&mut taker, recording, told, ends));
            }
            // Takes of many keys, so that the writer is always busy.
            let (mut many, stop_many) = (server.client(), &ends);
            scope.spawn(move || {
                let take = "SELECT rl_limit('many', n::text) FROM generate_series(1, 5000) n";
                while !stop_many.load(Ordering::Relaxed) && many.batch_execute(take).is_ok() {}
            });
            thread::sleep(Duration::from_millis(300));
            let _ends = Ends(&ends);
            stop(&server, how, &told, &ends)
        });
        let Some(saved) = saved else { continue };
        judged(&recorder);
        let left = left(&mut server.client());
        for (key, left) in left.iter().enumerate() {
            let taken = (CAPACITY - left) as i64;
            // A take whose answer got lost may count, of each session one a round.
            let most = told[key].load(Ordering::SeqCst) + (STOPS.len() * TAKERS) as i64;
            let least = saved[key];
            assert!((least..=most).contains(&taken), "{how}: {taken} of {least} to {most}");
            told[key].store(taken, Ordering::SeqCst);
        }
        recorder = self::recorder(&left);
    }
    judged(&recorder);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_change_is_in_its_row_soon_and_each_key_is_written_once_a_turn() {
    let (_server, mut client) = server("100 milliseconds");
    client.batch_execute("SELECT rl_limit('saved', '1') FROM generate_series(1, 1000)").unwrap();
    until("it is saved", || written(&mut client, "saved") == 1000);
    until("nothing is unsaved", || number(&mut client, UNSAVED) == 0);
    // Nothing is written where nothing changes.
    let version = "SELECT ctid::text || xmin FROM rateLimits";
    let version =
        |client: &mut Client| -> String { client.query_one(version, &[]).unwrap().get(0) };
    let before = version(&mut client);
    client.batch_execute("SELECT rl_check('saved', '1'), rl_limit('saved', '1', 2e9)").unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    assert_eq!(version(&mut client), before);
    // What is rolled back, and taken where nothing can be written, counts.
    client
        .batch_execute(
            "BEGIN READ ONLY; SELECT rl_limit('saved', '1', 10); COMMIT;
             BEGIN; SELECT rl_limit('saved', '1', 100); ROLLBACK",
        )
        .unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    assert_eq!(written(&mut client, "saved"), 1110);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_call_holds_no_lock_and_leaves_nothing_to_the_end_of_its_session() {
    let (server, mut client) = server("1 hour");
    let process: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    client.batch_execute(&format!("BEGIN; {TAKE_EACH}; {TAKE_EACH}")).unwrap();
    let locks = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()
                 AND relation IN ('rateLimits'::regclass, 'rl_config'::regclass)";
    assert_eq!(number(&mut client, locks), 0);
    // Nor does it block a session that wants the whole table.
    server.client().batch_execute("SET lock_timeout = '10s'; REINDEX TABLE rateLimits").unwrap();
    client.batch_execute(TAKE_EACH).unwrap();
    // Nor does a first call, which only reads, wait for a session that keeps others from writing.
    let mut holder = server.client();
    holder.batch_execute("BEGIN; LOCK TABLE rateLimits IN SHARE ROW EXCLUSIVE MODE").unwrap();
    let first = "SET lock_timeout = '10s'; SELECT rl_limit('saved', 'new')";
    server.client().batch_execute(first).unwrap();
    holder.batch_execute("COMMIT").unwrap();
    drop(client);
    let mut client = server.client();
    let ended = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}");
    until("the session has ended", || number(&mut client, &ended) == 0);
    assert_eq!(written(&mut client, "saved"), 0);
    assert_eq!(number(&mut client, UNSAVED), KEYS + 1);
    assert_eq!(number(&mut client, SAVE), 0);
    assert_eq!(written(&mut client, "saved"), 3 * KEYS + 1);
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
    assert_eq!(number(&mut client, SAVE), 0);
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
    until("it is told", || save_error(&mut client).is_some());
    let error = save_error(&mut client).unwrap();
    assert!(error.starts_with("23514: rate limit \""), "{error}");
    client.batch_execute("ALTER TABLE rateLimits DROP CONSTRAINT none").unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    assert_eq!(written(&mut client, "saved"), 20_000 + admitted + 1);
}

/// In a list of new keys none blocks the next: all limits allow.
#[test]
#[ignore = "needs a server: make test"]
fn a_list_of_new_keys_is_never_denied_for_want_of_memory() {
    let server = Server::start();
    let mut client = server.client();
    set_keys(&mut client, 1000);
    define(&mut client, "saved", "1 hour");
    let mut lists = 0_i64;
    let mut take = |client: &mut Client| -> Result<bool, SqlState> {
        lists += 1;
        let sql = "SELECT bool_and(ok) FROM rl_limit_all((
                       SELECT jsonb_agg(jsonb_build_object('name', 'saved', 'key', $1::bigint || ' ' || n))
                       FROM generate_series(1, 100) n))";
        let row = client.query_one(sql, &[&lists]);
        row.map(|row| row.get(0)).map_err(|error| error.code().expect("an answer").clone())
    };
    for _ in 0..scale(60, 1000) {
        assert_eq!(take(&mut client), Ok(true));
    }
    client
        .batch_execute("ALTER TABLE rateLimits ADD CONSTRAINT none CHECK (name = 'none') NOT VALID")
        .unwrap();
    let refused = (0..30).map(|_| take(&mut client)).find(|taken| *taken != Ok(true));
    assert_eq!(refused, Some(Err(SqlState::OUT_OF_MEMORY)));
}

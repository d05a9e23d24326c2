//! The shared memory of limits: lost with the server and with nothing less, and where there is no room
//! for it, limits in the table go on.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, Row};
use ratelimit_judge::{Asked, Recorder, Recording, Reply, Storage, judge};

use crate::history::FOLDER;
use crate::own::{Server, segments};
use crate::{SESSIONS, scale};

/// Starts a server with a bucket of 100 tokens in memory and one in the table, which never refill.
fn server() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    client
        .batch_execute(
            "SELECT rl_define('memory', rl_token_bucket(1e-300, '1 day', capacity => 100, store => 'memory')),
                    rl_define('table', rl_token_bucket(1e-300, '1 day', capacity => 100))",
        )
        .unwrap();
    (server, client)
}

fn remaining(client: &mut Client, name: &str) -> f64 {
    client.query_one("SELECT remaining FROM rl_check($1, 'k')", &[&name]).unwrap().get(0)
}

fn take(client: &mut Client, name: &str) -> Result<f64, SqlState> {
    let taken = client.query_one("SELECT remaining FROM rl_limit($1, 'k')", &[&name]);
    taken.map(|row| row.get(0)).map_err(|error| error.code().expect("an answer").clone())
}

/// Sets the room, which the next server has.
pub fn set_keys(client: &mut Client, keys: u32) {
    client.batch_execute("LOAD 'ratelimit'").unwrap();
    client.batch_execute(&format!("ALTER SYSTEM SET ratelimit.memory_keys = {keys}")).unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    // A session learns it between two statements.
    let setting = "SELECT current_setting('ratelimit.memory_keys')::int";
    while client.query_one(setting, &[]).unwrap().get::<_, i32>(0) != keys as i32 {}
}

fn room(client: &mut Client) -> i64 {
    client.query_one("SELECT room FROM rl_memory()", &[]).unwrap().get(0)
}

/// As many keys, each of which a statement takes from.
const KEYS: u32 = 100;

/// For what is answered until the memory is lost: its keys are full.
fn recorder() -> Recorder {
    let recorder = Recorder::new();
    let config = r#"{"kind": "token bucket", "rate": 1e-300, "period": "1 day", "capacity": 100, "store": "memory"}"#;
    for n in 1..=KEYS {
        recorder.key("memory", &n.to_string(), config, Storage::Memory);
    }
    recorder
}

/// Takes from all keys again and again, until the connection is lost, and with it the answers of the last calls.
fn take_until_lost(client: &mut Client, mut recording: Recording, stop: &AtomicBool) {
    let sql = format!(
        "SELECT ok, remaining FROM generate_series(1, {KEYS}) n, rl_limit('memory', n::text) ORDER BY n"
    );
    let asked = Asked::Limit { count: 1.0, reserve: false };
    let told = |rows: &Vec<Row>| {
        let replies = rows.iter().map(|row| Reply {
            ok: row.get(0),
            remaining: Some(row.get(1)),
            retry_at: None,
        });
        (0..).zip(replies).map(|(key, reply)| (key, asked, None, reply)).collect()
    };
    while !stop.load(Ordering::Relaxed) {
        if recording.call(|| client.query(&sql, &[]), told).is_err() {
            recording.unanswered((0..KEYS).map(|key| (key, asked)));
            return;
        }
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn a_restart_and_a_crash_make_limits_in_memory_full_again() {
    let (server, mut client) = server();
    for round in 0..scale(3, 12) {
        assert_eq!(take(&mut client, "memory"), Ok(99.0), "round {round}");
        let (stop, recorder) = (AtomicBool::new(false), recorder());
        thread::scope(|scope| {
            for _ in 0..SESSIONS {
                let (mut client, recording) = (server.client(), recorder.session());
                let stop = &stop;
                scope.spawn(move || take_until_lost(&mut client, recording, stop));
            }
            thread::sleep(Duration::from_millis(100));
            match round % 3 {
                0 => {}
                1 => {
                    // One session, wherever it is: the server ends all others, and starts again.
                    let sql = "SELECT pid::text FROM pg_stat_activity
                               WHERE query LIKE '%rl_limit%' AND pid <> pg_backend_pid() LIMIT 1";
                    let pid: String = client.query_one(sql, &[]).unwrap().get(0);
                    server.kill_session(&pid);
                }
                _ => server.kill(),
            }
            if round % 3 != 1 {
                server.restart();
            }
            stop.store(true, Ordering::Relaxed);
        });
        println!("{}", recorder.judge(FOLDER.as_ref(), "refused-memory").unwrap());
        let changed = recorder.history().with_a_denial().expect("a take");
        judge(&changed).expect_err("a take that is told to be a denial");
        let start = Instant::now();
        client = server.client();
        while client.batch_execute("SELECT").is_err() {
            assert!(start.elapsed() < Duration::from_secs(60));
            client = server.client();
        }
        assert_eq!(remaining(&mut client, "memory"), 100.0, "round {round}");
        let sql = "SELECT keys, dropped_live FROM rl_memory()";
        let row = client.query_one(sql, &[]).unwrap();
        assert_eq!((row.get(0), row.get(1)), (0i64, 0i64));
        assert!(client.query("SELECT FROM rl_stats()", &[]).unwrap().is_empty());
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn the_room_is_that_of_the_start_until_the_server_starts_again() {
    let (server, mut client) = server();
    set_keys(&mut client, 200_000);
    let mut client = server.client();
    assert_eq!(room(&mut client), 200_000);
    assert_eq!(take(&mut client, "memory"), Ok(99.0));
    set_keys(&mut client, 2_000);
    let sizes = |client: &mut Client| -> (i64, i64) {
        let row = client.query_one("SELECT room, configured FROM rl_memory()", &[]).unwrap();
        (row.get(0), row.get(1))
    };
    // Sessions of before and after have the same memory, and see what the next start will make.
    assert_eq!(sizes(&mut server.client()), (200_000, 2_000));
    let mut other = server.client();
    assert_eq!((room(&mut client), room(&mut other)), (room(&mut other), room(&mut client)));
    assert_eq!(room(&mut other), 200_000);
    assert_eq!(take(&mut other, "memory"), Ok(98.0));
    assert_eq!(take(&mut client, "memory"), Ok(97.0));
    server.restart();
    let mut client = server.client();
    assert_eq!(sizes(&mut client), (2_000, 2_000));
}

/// Names and keys that were counted often, of a database and an extension that were dropped since, keep none of others
/// from being counted; and what is no longer counted is reported.
#[test]
#[ignore = "needs a server: make test"]
fn what_was_dropped_leaves_its_room_to_others() {
    const NAMES: i64 = 40;
    let config = "'{\"kind\": \"token bucket\", \"rate\": 1, \"period\": 1000000000}'";
    // Each name and key is called and denied more often than any of the new ones.
    let fill = format!(
        "SELECT count(rl_limit('old ' || n / 60, 'k', 2, config => {config})) FROM generate_series(0, 2000 * 60 - 1) n"
    );
    let calls = format!(
        "SELECT count(rl_limit('new ' || n % {NAMES}, 'k', 2, config => {config})) FROM generate_series(1, {NAMES} * 50) n"
    );
    let count =
        |client: &mut Client, sql: &str| -> i64 { client.query_one(sql, &[]).unwrap().get(0) };
    let (server, mut client) = server();
    let others = |server: &Server| {
        let mut postgres = server.client();
        postgres.batch_execute("CREATE DATABASE other").unwrap();
        let mut other = server.connect("other").unwrap();
        other.batch_execute("CREATE EXTENSION ratelimit").unwrap();
        other.batch_execute(&fill).unwrap();
        other
    };
    let drop_others =
        |client: &mut Client| client.batch_execute("DROP DATABASE other (FORCE)").unwrap();
    let counted = "SELECT count(*) FROM rl_stats() WHERE name LIKE 'new %' AND denied = 50";
    let of_all = "SELECT coalesce(sum(allowed + denied), 0)::bigint FROM rl_stats()";
    let dropped = "SELECT dropped_calls FROM rl_memory()";

    // While they are there the new ones sometimes find no space; every call is shown or reported.
    let mut other = others(&server);
    client.batch_execute(&calls).unwrap();
    let shown = count(&mut client, of_all) + count(&mut other, of_all);
    let told = count(&mut client, dropped);
    assert!(told > 0);
    assert_eq!(shown + told, 2000 * 60 + 50 * NAMES);
    client.batch_execute("SELECT rl_stats_reset()").unwrap();
    drop(other);
    drop_others(&mut client);
    client.batch_execute(&calls).unwrap();
    assert_eq!(count(&mut client, counted), NAMES);
    let told = count(&mut client, dropped);

    // The same of an extension.
    client.batch_execute("DROP EXTENSION ratelimit; CREATE EXTENSION ratelimit").unwrap();
    client.batch_execute(&fill).unwrap();
    client.batch_execute("DROP EXTENSION ratelimit; CREATE EXTENSION ratelimit").unwrap();
    client.batch_execute(&calls).unwrap();
    assert_eq!(count(&mut client, counted), NAMES);
    assert!(count(&mut client, dropped) >= told);

    // The keys that were denied most: a look at them is enough.
    client.batch_execute("SELECT rl_stats_reset()").unwrap();
    drop(others(&server));
    drop_others(&mut client);
    client.batch_execute("SELECT rl_top_denied()").unwrap();
    client.batch_execute(&calls).unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM rl_top_denied(max_rows => 1000)"), NAMES);
}

#[test]
#[ignore = "needs a server: make test"]
fn without_room_limits_in_memory_fail_and_limits_in_the_table_go_on() {
    let (server, mut client) = server();
    // 64 GB, and no less is there below /dev/shm on a machine that tests this.
    set_keys(&mut client, 1_000_000_000);
    let (mut client, warnings) = server.client_with_notices();
    for taken in [99.0, 98.0, 97.0] {
        assert_eq!(take(&mut client, "memory"), Err(SqlState::DISK_FULL));
        assert_eq!(take(&mut client, "table"), Ok(taken));
        let check = client.query_one("SELECT ok FROM rl_check('memory', 'k')", &[]);
        assert_eq!(check.unwrap_err().code(), Some(&SqlState::DISK_FULL));
    }
    // Nor does a call that finds none leave anything behind.
    let mut kept = || -> i64 {
        let fail = "DO $$ BEGIN FOR n IN 1..500 LOOP
            BEGIN PERFORM rl_limit('memory', 'k'); EXCEPTION WHEN disk_full THEN END;
        END LOOP; END $$";
        client.batch_execute(fail).unwrap();
        let sql =
            "SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext'";
        client.query_one(sql, &[]).unwrap().get(0)
    };
    let (before, after) = (kept(), kept());
    assert!(after - before < 500 * 8, "{} bytes of 500 calls stay", after - before);
    client.batch_execute("BEGIN").unwrap();
    assert_eq!(take(&mut client, "table"), Ok(96.0));
    client.batch_execute("ROLLBACK").unwrap();
    assert_eq!(remaining(&mut client, "table"), 97.0);
    for call in
        ["rl_stats()", "rl_memory()", "rl_top_denied()", "rl_stats_reset()", "rl_reset('memory')"]
    {
        let error = client.query(&format!("SELECT {call}"), &[]).unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::DISK_FULL), "{call}");
    }
    assert!(client.query_one("SELECT rl_reset('table', 'k')", &[]).unwrap().get::<_, bool>(0));
    // A definition needs none: where there is none, nothing is unsaved.
    let config = "rl_token_bucket(100, '1 day')";
    let (memory, saved) = (r#"{"store": "memory"}"#, r#"{"store": "memory", "save": "1 second"}"#);
    for define in [
        format!("rl_define('later', {config} || '{memory}')"),
        format!("rl_define('later', {config})"),
        format!("rl_define('saved', {config} || '{saved}')"),
        format!("rl_define('saved', {config})"),
        "rl_undefine('saved')".to_owned(),
        format!("rl_define('saved', {config} || '{saved}')"),
    ] {
        assert!(client.query_one(&format!("SELECT {define}"), &[]).unwrap().get::<_, bool>(0));
    }
    let error = client.query("SELECT rl_limit('saved')", &[]).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DISK_FULL));
    assert_eq!(warnings.try_iter().count(), 1);
    // As soon as there is room, the same session has it.
    set_keys(&mut client, 2_000);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(take(&mut client, "memory"), Ok(99.0));
    drop(server);
}

#[test]
#[ignore = "needs a server: make test"]
fn memory_that_is_taken_away_costs_limits_in_the_table_nothing() {
    let (server, mut client) = server();
    let postmaster = server.postmaster();
    let before = segments(&postmaster);
    assert_eq!(take(&mut client, "memory"), Ok(99.0));
    // As systemd does to a server of a user who has logged out.
    for segment in segments(&postmaster).difference(&before) {
        std::fs::remove_file(format!("/dev/shm/{segment}")).unwrap();
    }
    let (mut other, warnings) = server.client_with_notices();
    assert_eq!(take(&mut other, "memory"), Err(SqlState::UNDEFINED_FILE));
    assert_eq!(take(&mut other, "table"), Ok(99.0));
    assert_eq!(take(&mut other, "table"), Ok(98.0));
    assert!(other.query_one("SELECT rl_reset('table', 'k')", &[]).unwrap().get::<_, bool>(0));
    assert_eq!(warnings.try_iter().count(), 1);
    // A session that goes on without it can still be cancelled.
    let mut third = server.client();
    assert_eq!(take(&mut third, "table"), Ok(99.0));
    let sleep = third.batch_execute("SET statement_timeout = '50ms'; SELECT pg_sleep(3)");
    assert_eq!(sleep.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
    // A session that has mapped it goes on.
    assert_eq!(take(&mut client, "memory"), Ok(98.0));
}

#[test]
#[ignore = "needs a server: make test"]
fn sessions_that_need_it_at_once_make_one_memory() {
    let (server, _) = server();
    let start = Barrier::new(SESSIONS);
    let postmaster = server.postmaster();
    let before = segments(&postmaster);
    let bytes = || -> u64 {
        // One of two that were made at once may be gone again.
        let size =
            |name: &String| std::fs::metadata(format!("/dev/shm/{name}")).map(|file| file.len());
        segments(&postmaster).difference(&before).filter_map(|name| size(name).ok()).sum()
    };
    let most = thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|_| {
                let mut client = server.client();
                let (start, bytes) = (&start, &bytes);
                scope.spawn(move || {
                    start.wait();
                    take(&mut client, "memory").unwrap();
                    bytes()
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).max()
    });
    let most = most.unwrap();
    assert!((5_000_000..25_000_000).contains(&most), "{most} bytes");
    assert_eq!(remaining(&mut server.client(), "memory"), 100.0 - SESSIONS as f64);
}

#[test]
#[ignore = "needs a server: make test"]
fn keys_that_are_used_much_survive_a_flood_of_others() {
    let (server, mut client) = server();
    let (keys, heavy) = (scale(10_000, 100_000), scale(100, 1_000));
    set_keys(&mut client, keys);
    let (mut client, messages) = server.client_with_notices();
    client.batch_execute("SET client_min_messages = log").unwrap();
    client
        .batch_execute("SELECT rl_define('ip', rl_token_bucket(100, '1 hour', store => 'memory'))")
        .unwrap();
    // A fixed clock has memory of its own, and its losses are not counted.
    client
        .batch_execute(
            "SET ratelimit.clock = '2050-01-01 00:00:00+00';
             SELECT count(rl_limit('ip', n::text, 90)) FROM generate_series(1, 10000) n;
             RESET ratelimit.clock",
        )
        .unwrap();
    let sql = format!(
        "SELECT count(*) FROM generate_series(1, {heavy}) n, rl_limit('ip', 'heavy ' || n, 90) WHERE ok"
    );
    assert_eq!(client.query_one(&sql, &[]).unwrap().get::<_, i64>(0), i64::from(heavy));
    // Those that are used much are called with each tenth of the others.
    let heavy_again = format!(
        "SELECT count(*) FROM generate_series(1, {heavy}) n, rl_limit('ip', 'heavy ' || n, 90) WHERE ok"
    );
    for tenth in 0..10 {
        let flood = format!(
            "SELECT count(*) FROM generate_series(1, {}) n, rl_limit('ip', 'new {tenth} ' || n)",
            keys * 2
        );
        client.batch_execute(&flood).unwrap();
        assert_eq!(client.query_one(&heavy_again, &[]).unwrap().get::<_, i64>(0), 0);
    }
    // The line in the server's log, once a minute at most.
    let told = messages.try_iter().filter(|message| message.contains("keys in use were evicted"));
    assert!(told.count() >= 1);
    let sql = format!(
        "SELECT count(*) FILTER (WHERE remaining < 20) FROM generate_series(1, {heavy}) n, rl_check('ip', 'heavy ' || n)"
    );
    assert_eq!(client.query_one(&sql, &[]).unwrap().get::<_, i64>(0), i64::from(heavy));
    let row = client
        .query_one("SELECT keys, room, dropped_idle, dropped_live FROM rl_memory()", &[])
        .unwrap();
    let (used, room, idle, live): (i64, i64, i64, i64) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    println!("{used} keys of {room}, {idle} idle and {live} others dropped");
    assert!(used >= room);
    assert_eq!(used + idle + live, i64::from(keys * 20 + heavy));
}

/// A session is stopped while it makes the memory: sessions that only count go on, and a wait can be cancelled.
#[test]
#[ignore = "needs a server: make test"]
fn nobody_waits_for_the_memory_to_be_made_but_who_needs_it() {
    let (server, mut client) = server();
    set_keys(&mut client, 1_000_000);
    let making =
        "SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND database = 0 AND granted";
    let signal = |signal, pid: &str| {
        std::process::Command::new("kill").args([signal, pid]).status().unwrap().success()
    };
    for _ in 0..20 {
        server.restart();
        let (mut watching, mut making_client, mut client) =
            (server.client(), server.client(), server.client());
        client.batch_execute("SET statement_timeout = '200 ms'").unwrap();
        // With its session, which stays.
        let maker = thread::spawn(move || (take(&mut making_client, "memory"), making_client));
        let mut stopped = None;
        while stopped.is_none() && !maker.is_finished() {
            stopped = watching.query_opt(making, &[]).unwrap().map(|row| row.get::<_, String>(0));
        }
        let Some(pid) = stopped.filter(|pid| signal("-STOP", pid)) else {
            let _ = maker.join().unwrap();
            continue;
        };
        if watching.query_opt(making, &[]).unwrap().is_none() {
            // Too late: it is made.
            assert!(signal("-CONT", &pid));
            let _ = maker.join().unwrap();
            continue;
        }
        let waiting = take(&mut client, "memory");
        let counted = take(&mut client, "table");
        let ended = watching.query_one("SELECT rl_reset('table', 'k')", &[]);
        assert!(signal("-CONT", &pid));
        assert_eq!(waiting, Err(SqlState::QUERY_CANCELED));
        assert!(counted.is_ok() && ended.is_ok());
        assert_eq!(maker.join().unwrap().0, Ok(99.0));
        assert_eq!(take(&mut client, "memory"), Ok(98.0));
        let sql = "SELECT count(*) FROM rl_stats() WHERE name = 'table'";
        assert_eq!(client.query_one(sql, &[]).unwrap().get::<_, i64>(0), 0, "it went on uncounted");
        return;
    }
    panic!("the memory was never seen while it was made");
}

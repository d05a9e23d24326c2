//! A stop of the server saves all limits in memory that can be saved, and ends whatever else is in the way: pg_ctl
//! fails where it has not within a minute.

use std::thread;
use std::time::Duration;

use postgres::Client;

use crate::own::Server;
use crate::saved::{
    KEYS, SAVE, TAKE_EACH, TAKERS, UNSAVED, define, number, server, taken, under_load, until,
    written,
};
use crate::scale;

/// Starts a server that logs warnings, with a bucket that is saved once an hour.
fn begin() -> (Server, Client) {
    let (server, client) = server("1 hour");
    drop(client);
    server.set(&["log_min_messages = warning"]);
    let client = server.client();
    (server, client)
}

/// Restarts it, without this session; a new one, and what was logged. A stopping server starts no writer, so one must
/// be there.
fn restart(server: &Server, mut client: Client, mode: &str) -> (Client, String) {
    let is_there =
        "SELECT count(*) FROM rl_memory() WHERE unsaved_keys = 0 OR writer_pid IS NOT NULL";
    until("a writer is there", || number(&mut client, is_there) == 1);
    let before = server.log().len();
    drop(client);
    server.restart_by(mode);
    (server.client(), server.log().split_off(before))
}

#[test]
#[ignore = "needs a server: make test"]
fn a_stop_saves_all_but_what_nobody_can_write_and_logs_how_much_that_is() {
    let (server, mut client) = begin();
    let (row, table) = (
        "SELECT FROM rateLimits WHERE key = '7' FOR UPDATE",
        "LOCK TABLE rateLimits IN SHARE MODE",
    );
    let mut expected = 0;
    let all = [("smart", row, 1), ("fast", table, KEYS), ("fast", row, 1), ("smart", table, KEYS)];
    for (mode, hold, lost) in all.into_iter().take(scale(2, 4)) {
        client.batch_execute(TAKE_EACH).unwrap();
        assert_eq!(number(&mut client, SAVE), 0);
        client.batch_execute(&format!("BEGIN; {hold}; PREPARE TRANSACTION 'held'")).unwrap();
        client.batch_execute(TAKE_EACH).unwrap();
        expected += 2 * KEYS - lost;
        let log;
        (client, log) = restart(&server, client, mode);
        assert_eq!(written(&mut client, "saved"), expected, "{mode}, {hold}");
        assert_eq!(taken(&mut client, "saved"), expected, "{mode}, {hold}");
        let keys = if lost == 1 { "1 key" } else { "20 keys" };
        let told = format!("rate limits in memory could not be saved: {keys} of \"saved\"");
        assert!(log.contains(&told), "{log}");
        client.batch_execute("ROLLBACK PREPARED 'held'").unwrap();
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn a_stop_logs_the_limits_of_keys_that_are_refused_and_never_a_key() {
    let (server, mut client) = begin();
    define(&mut client, "other", "1 hour");
    let poison = "ALTER TABLE rateLimits ADD CONSTRAINT poison CHECK (key NOT LIKE 'secret%')";
    client.batch_execute(poison).unwrap();
    client
        .batch_execute(
            "SELECT rl_limit(name, key) FROM (VALUES ('saved', 'secret 1'), ('saved', 'k'), ('saved', 'secret 2'),
                 ('other', 'k'), ('other', 'secret 3'), ('saved', 'z'), ('saved', 'secret 4')) AS keys (name, key)",
        )
        .unwrap();
    let (mut client, log) = restart(&server, client, "fast");
    assert_eq!(
        number(&mut client, "SELECT count(*) FROM rateLimits WHERE key IN ('k', 'z')"),
        3,
        "{log}"
    );
    let told: Vec<_> = log.lines().filter(|line| line.contains("could not be saved")).collect();
    let [told] = told[..] else { panic!("{log}") };
    assert!(
        told.contains(r#"3 keys of "saved""#) && told.contains(r#"1 key of "other""#),
        "{told}"
    );
    assert!(!log.contains("secret"), "{log}");
}

/// The postmaster sends each signal twice, and the second may come when the last turn has begun.
#[test]
#[ignore = "needs a server: make test"]
fn a_signal_that_comes_twice_ends_no_last_turn() {
    let (server, mut client) = begin();
    client
        .batch_execute(
            "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_sleep(0.05); RETURN NEW; END $$;
             CREATE TRIGGER sleep BEFORE INSERT ON rateLimits FOR EACH ROW EXECUTE FUNCTION sleep()",
        )
        .unwrap();
    client.batch_execute(TAKE_EACH).unwrap();
    let writers = "SELECT count(writer_pid) FROM rl_memory()";
    until("a writer is there", || number(&mut client, writers) == 1);
    let writer = number(&mut client, "SELECT writer_pid::bigint FROM rl_memory()");
    server.exec(&format!("kill -TERM {writer} && sleep 0.3 && kill -TERM {writer}"));
    until("all is written", || written(&mut client, "saved") == KEYS);
    assert!(!server.log().contains("terminating background worker"), "{}", server.log());
}

/// A writer is between two turns most of the time: many keys are in memory, of which few are unsaved.
#[test]
#[ignore = "needs a server: make test"]
fn a_stop_between_two_turns_saves_all() {
    let (server, client) = begin();
    drop(client);
    server.set(&["fsync = off"]);
    let mut client = server.client();
    define(&mut client, "many", "1 hour");
    let mut expected = 0;
    for _ in 0..scale(2, 40) {
        let many = "SELECT count(rl_limit('many', n::text)) FROM generate_series(1, 50000) n";
        client.batch_execute(many).unwrap();
        drop(client);
        let told = under_load(&server, |_| {
            let mut saver = server.client();
            thread::scope(|scope| {
                scope.spawn(move || while saver.batch_execute(SAVE).is_ok() {});
                thread::sleep(Duration::from_millis(1500));
                server.restart();
            });
        });
        client = server.client();
        let taken = taken(&mut client, "saved");
        // The last take of each session may count without an answer.
        let most = expected + told + TAKERS as i64;
        assert!((expected + told..=most).contains(&taken), "{taken} of {expected} + {told}");
        expected = taken;
    }
}

/// Where the standby that commits wait for is gone, saves don't wait.
#[test]
#[ignore = "needs a server: make test"]
fn no_save_and_no_stop_waits_for_a_synchronous_standby() {
    let (server, mut client) = begin();
    let set = |client: &mut Client, what: &str| {
        client.batch_execute(&format!("ALTER SYSTEM {what}")).unwrap();
        client.batch_execute("SELECT pg_reload_conf()").unwrap();
    };
    set(&mut client, "SET synchronous_standby_names = 'nobody'");
    let is_set = "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_standby_names' AND setting = 'nobody'";
    until("it is set", || number(&mut client, is_set) == 1);
    let mut expected = 0;
    for mode in ["fast", "smart"] {
        client.batch_execute(TAKE_EACH).unwrap();
        assert_eq!(number(&mut client, SAVE), 0);
        client.batch_execute(TAKE_EACH).unwrap();
        expected += 2 * KEYS;
        (client, _) = restart(&server, client, mode);
        assert_eq!(written(&mut client, "saved"), expected, "{mode}");
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn a_stop_saves_what_sessions_take_until_they_end() {
    let (server, mut client) = begin();
    let mut expected = 0;
    for (mode, sleep) in [("fast", 600), ("smart", 1)] {
        let mut session = server.client();
        let take = format!(
            "SELECT rl_limit('saved', '1'); SELECT pg_sleep({sleep}); SELECT rl_limit('saved', '2')"
        );
        client = thread::scope(|scope| {
            let session = scope.spawn(move || session.batch_execute(&take).is_ok());
            until("it has begun", || number(&mut client, UNSAVED) > 0);
            let (client, _) = restart(&server, client, mode);
            let is_done = session.join().unwrap();
            assert_eq!(is_done, mode == "smart");
            expected += 1 + i64::from(is_done);
            client
        });
        assert_eq!(written(&mut client, "saved"), expected, "{mode}");
    }
}

/// A trigger of the owner's that sleeps.
#[test]
#[ignore = "needs a server: make test"]
fn a_stop_waits_for_no_slow_row() {
    let (server, mut client) = begin();
    client
        .batch_execute(
            "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_sleep(TG_ARGV[0]::float8); RETURN NEW; END $$;
             CREATE TRIGGER sleep BEFORE INSERT ON rateLimits FOR EACH ROW
                 WHEN (NEW.key = '7') EXECUTE FUNCTION sleep(600)",
        )
        .unwrap();
    client.batch_execute(TAKE_EACH).unwrap();
    let (mut client, log) = restart(&server, client, "fast");
    assert_eq!(written(&mut client, "saved"), KEYS - 1);
    assert!(log.contains("rate limits in memory could not be saved: 1 key of \"saved\""), "{log}");
    // Of many that are each a little slow it writes as many as it can.
    client
        .batch_execute(
            "CREATE TRIGGER slow BEFORE INSERT ON rateLimits FOR EACH ROW
                 WHEN (NEW.key LIKE 'slow%') EXECUTE FUNCTION sleep(0.01);
             SELECT count(rl_limit('saved', 'slow ' || n)) FROM generate_series(1, 5000) n",
        )
        .unwrap();
    let (mut client, log) = restart(&server, client, "fast");
    let slow = "SELECT count(*) FROM rateLimits WHERE key LIKE 'slow%'";
    assert!((1..5000).contains(&number(&mut client, slow)));
    assert!(log.contains("rate limits in memory could not be saved: "), "{log}");
}

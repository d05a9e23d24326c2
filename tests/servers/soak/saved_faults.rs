//! Limits in memory that are saved, while something is in the way: no place for a writer, rows that can't be written,
//! locked tables, a full disk, settings that forbid to write, databases and roles that come and go.

use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::failures::{whole, wide_key};
use crate::own::Server;
use crate::saved::{
    KEYS, SAVE, TAKE_EACH, UNSAVED, define, number, save_error, server, signal, taken, until,
    writer, written,
};
use crate::scale;

const TAKE_ONE: &str = "SELECT rl_limit('saved', '1')";
const ROWS: &str = "SELECT count(*) FROM rateLimits";

/// Restarts it with `places` for background workers.
fn set_places(server: &Server, places: usize) {
    let workers = format!("max_worker_processes = {places}");
    server.set(&[&workers, "max_logical_replication_workers = 0", "fsync = off"]);
}

/// A connection to a new database with such a limit.
fn other(server: &Server, save: &str) -> Client {
    server.client().batch_execute("CREATE DATABASE other").unwrap();
    let mut other = server.connect("other").unwrap();
    other.batch_execute("CREATE EXTENSION ratelimit").unwrap();
    define(&mut other, "saved", save);
    other
}

#[test]
#[ignore = "needs a server: make test"]
fn without_a_place_rl_save_tells_at_once_what_is_unsaved_and_a_stop_loses_that() {
    let (server, client) = server("100 milliseconds");
    drop(client);
    set_places(&server, 0);
    let mut client = server.client();
    client.batch_execute("SET statement_timeout = '5s'").unwrap();
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, SAVE), KEYS);
    assert_eq!(number(&mut client, UNSAVED), KEYS);
    drop(client);
    server.restart();
    let mut client = server.client();
    assert_eq!(number(&mut client, ROWS), 0);
    assert_eq!(taken(&mut client, "saved"), 0);
}

#[test]
#[ignore = "needs a server: make test"]
fn one_place_is_enough_for_a_key_that_is_called_all_the_time_and_for_others() {
    let (server, client) = server("100 milliseconds");
    drop(client);
    set_places(&server, 1);
    let mut client = server.client();
    client.batch_execute(TAKE_EACH).unwrap();
    let mut told = KEYS;
    for most in [1, 2, 3] {
        until("it is saved, once more", || {
            client.batch_execute(TAKE_ONE).unwrap();
            told += 1;
            let row = "SELECT 1e9::bigint - min(value)::bigint FROM rateLimits";
            number(&mut client, ROWS) == KEYS && number(&mut client, row) > most
        });
    }
    assert_eq!(number(&mut client, SAVE), 0);
    assert_eq!(written(&mut client, "saved"), told);
    // Another database has it while the writer of the first sleeps, and the other way around.
    define(&mut client, "saved", "1 hour");
    let mut other = other(&server, "100 milliseconds");
    for _ in 0..2 {
        client.batch_execute(TAKE_EACH).unwrap();
        told += KEYS;
        let before = written(&mut other, "saved");
        other.batch_execute(TAKE_EACH).unwrap();
        until("the other's is saved", || {
            other.batch_execute(TAKE_ONE).unwrap();
            written(&mut other, "saved") > before + KEYS
        });
        until("the first's is saved", || {
            client.batch_execute(SAVE).unwrap();
            written(&mut client, "saved") == told
        });
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn writers_that_sleep_leave_their_places_to_others_which_need_no_second_call() {
    let (server, client) = server("1 hour");
    drop(client);
    set_places(&server, 2);
    let mut client = server.client();
    drop(other(&server, "1 hour"));
    let mut clients: Vec<Client> = (0..4)
        .map(|n| {
            client.batch_execute(&format!("CREATE DATABASE copy{n} TEMPLATE other")).unwrap();
            let mut copy = server.connect(&format!("copy{n}")).unwrap();
            if n >= 2 {
                define(&mut copy, "saved", "100 milliseconds");
            }
            copy
        })
        .collect();
    let postmaster = server.postmaster();
    // Two sleep in all places, or are about to, when two others are needed.
    for key in 1..=6 {
        let starts_none = key % 2 == 0;
        until("no writer is there", || writer(&postmaster).is_none());
        if starts_none {
            signal("-STOP", &postmaster);
        }
        for client in &mut clients {
            client.batch_execute(&format!("SELECT rl_limit('saved', '{key}')")).unwrap();
        }
        if starts_none {
            signal("-CONT", &postmaster);
        }
        for (n, client) in clients.iter_mut().enumerate() {
            until(&format!("that of database {n} is saved"), || number(client, ROWS) == key);
        }
    }
}

/// Has a number of parallel queries take as many places, while something is done.
fn with_places_taken(server: &Server, places: usize, work: impl FnOnce()) {
    let mut client = server.client();
    let mode = "SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')";
    let mode: String = client.query_one(mode, &[]).unwrap().get(0);
    let workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'";
    thread::scope(|scope| {
        for _ in 0..places {
            let (mut client, mode) = (server.client(), &mode);
            scope.spawn(move || {
                client.batch_execute(&format!("SET {mode} = on")).unwrap();
                client.batch_execute("SELECT pg_sleep(600)").unwrap_err();
            });
        }
        until("all places are taken", || number(&mut client, workers) == places as i64);
        work();
        let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                      WHERE query LIKE '%pg_sleep(600)' AND backend_type = 'client backend'";
        client.batch_execute(cancel).unwrap();
    });
}

#[test]
#[ignore = "needs a server: make test"]
fn what_many_databases_could_not_save_for_want_of_a_place_is_saved_when_there_is_one() {
    let (server, client) = server("100 milliseconds");
    drop(client);
    set_places(&server, 4);
    drop(other(&server, "100 milliseconds"));
    let mut client = server.client();
    let mut clients: Vec<Client> = (0..66)
        .map(|n| {
            let create = format!("CREATE DATABASE copy{n} TEMPLATE other STRATEGY wal_log");
            client.batch_execute(&create).unwrap();
            server.connect(&format!("copy{n}")).unwrap()
        })
        .collect();
    let take = |client: &mut Client, key: i32| {
        client.batch_execute(&format!("SELECT rl_limit('saved', '{key}')")).unwrap();
    };
    with_places_taken(&server, 4, || {
        clients.iter_mut().for_each(|client| take(client, 1));
        assert_eq!(number(&mut clients[65], SAVE), 1);
    });
    // Any call will do, also of another key.
    until("all are saved", || {
        clients.iter_mut().for_each(|client| take(client, 2));
        clients.retain_mut(|client| number(client, ROWS) < 2);
        clients.is_empty()
    });
}

#[test]
#[ignore = "needs a server: make test"]
fn a_shorter_save_holds_for_what_is_unsaved() {
    let (_server, mut client) = server("1 hour");
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, UNSAVED), KEYS);
    define(&mut client, "saved", "100 milliseconds");
    until("all is saved", || {
        client.batch_execute(TAKE_ONE).unwrap();
        number(&mut client, ROWS) == KEYS
    });
}

#[test]
#[ignore = "needs a server: make test"]
fn a_writer_that_is_cancelled_or_ended_leaves_nothing_unsaved() {
    let (server, mut client) = server("100 milliseconds");
    let sends = |client: &mut Client, what: &str| {
        let sql = format!(
            "SELECT {what}(pid) FROM pg_stat_activity WHERE backend_type = 'ratelimit writer'"
        );
        !client.query(&sql, &[]).unwrap().is_empty()
    };
    client.batch_execute(TAKE_EACH).unwrap();
    let mut total = KEYS;
    for what in ["pg_cancel_backend", "pg_terminate_backend"] {
        let mut holder = server.client();
        holder.batch_execute("BEGIN; LOCK TABLE rateLimits IN SHARE MODE").unwrap();
        client.batch_execute(TAKE_EACH).unwrap();
        total += KEYS;
        let mut take = |client: &mut Client| {
            client.batch_execute(TAKE_ONE).unwrap();
            total += 1;
            total
        };
        for _ in 0..3 {
            until("one is there", || {
                take(&mut client);
                sends(&mut client, what)
            });
        }
        holder.batch_execute("COMMIT").unwrap();
        let before = take(&mut client);
        until("all is saved", || {
            take(&mut client);
            written(&mut client, "saved") >= before
        });
    }
    // One that sleeps saves now.
    let postmaster = server.postmaster();
    define(&mut client, "saved", "1 hour");
    for _ in 0..2 {
        assert_eq!(number(&mut client, SAVE), 0);
        until("the last one has left", || writer(&postmaster).is_none());
        client.batch_execute(TAKE_EACH).unwrap();
        total += KEYS;
        let mut asleep = None;
        until("there is one", || {
            asleep = writer(&postmaster);
            asleep.is_some()
        });
        signal("-TERM", &asleep.unwrap());
        until("it is saved", || written(&mut client, "saved") == total);
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn a_writer_is_seen_as_long_as_it_is_there() {
    let (server, mut client) = server("1 hour");
    let seen = "SELECT writer_pid::text, writer_since <= clock_timestamp() FROM rl_memory()";
    let postmaster = server.postmaster();
    let none = client.query_one(seen, &[]).unwrap();
    assert_eq!((none.get(0), none.get(1)), (None::<String>, None::<bool>));
    client.batch_execute(TAKE_EACH).unwrap();
    let mut found = None;
    until("it is seen", || {
        let row = client.query_one(seen, &[]).unwrap();
        found = row.get::<_, Option<String>>(0);
        found.is_none() || row.get::<_, Option<bool>>(1) == Some(true)
    });
    until("it is there", || found.is_some() && found == writer(&postmaster));
    // Of another database it is none.
    let mut other = other(&server, "1 hour");
    assert_eq!(other.query_one(seen, &[]).unwrap().get::<_, Option<String>>(0), None);
    // It ends once somebody sees that its extension is another one.
    client.batch_execute("DROP EXTENSION ratelimit; CREATE EXTENSION ratelimit").unwrap();
    until("it ends with the extension", || {
        client.batch_execute(seen).unwrap();
        writer(&postmaster).is_none()
    });
}

/// Each change comes before the writer has been idle for a second; where this session was slower, another one may.
#[test]
#[ignore = "needs a server: make test"]
fn a_writer_stays_a_second_after_each_save() {
    let (_server, mut client) = server("100 milliseconds");
    let mut last: Option<(i64, Instant)> = None;
    for _ in 0..8 {
        let before = Instant::now();
        client.batch_execute(TAKE_ONE).unwrap();
        let pid = "SELECT writer_pid::bigint FROM rl_memory() WHERE writer_pid IS NOT NULL";
        until("it is there", || client.query_opt(pid, &[]).unwrap().is_some());
        let found = number(&mut client, pid);
        if let Some((pid, at)) = last
            && at.elapsed() < Duration::from_secs(1)
        {
            assert_eq!(found, pid);
        }
        last = Some((found, before));
        thread::sleep(Duration::from_millis(300));
    }
}

/// Whatever a writer may meet is in the server's log neither with every save nor with a row.
#[test]
#[ignore = "needs a server: make test"]
fn what_the_database_warns_of_is_not_logged_with_every_save() {
    let (server, mut client) = server("1 hour");
    // By one that can't know yet what is valid.
    let mut first = server.client();
    first
        .batch_execute(
            "ALTER DATABASE postgres SET ratelimit.clock = 'nonsense';
             UPDATE pg_database SET datcollversion = '0' WHERE datname = 'postgres'",
        )
        .unwrap();
    client.batch_execute("ALTER SYSTEM SET log_min_messages = warning").unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    let (before, postmaster) = (server.log().len(), server.postmaster());
    for _ in 0..5 {
        client.batch_execute(TAKE_EACH).unwrap();
        // The next one connects again.
        signal("-TERM", &writer(&postmaster).unwrap_or_default());
        assert_eq!(number(&mut client, SAVE), 0);
    }
    let log = server.log().split_off(before);
    for warning in ["ratelimit.clock", "collation version"] {
        assert!(log.matches(warning).count() <= 1, "{log}");
    }
}

/// 2,000 keys, of which one after the other set can't be written.
#[test]
#[ignore = "needs a server: make test"]
fn a_key_that_can_t_be_written_keeps_no_other_wherever_it_is() {
    let (server, mut client) = server("100 milliseconds");
    client.batch_execute("ALTER SYSTEM SET log_min_messages = info").unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    let take = "SELECT rl_limit('saved', 'secret ' || lpad(n::text, 4, '0')) FROM generate_series(0, 1999) n";
    let mut total = 0;
    for (poison, keys, by_itself) in [
        ("= 0", 1, true),
        ("= 1000", 1, false),
        ("= 1999", 1, false),
        ("IN (0, 999, 1000, 1999)", 4, true),
        ("BETWEEN 500 AND 999", 500, false),
        ("% 4 = 1", 500, false),
        ("< 1999", 1999, false),
    ] {
        let constrain = format!(
            "ALTER TABLE rateLimits ADD CONSTRAINT poison CHECK (NOT right(key, 4)::int {poison}) NOT VALID"
        );
        client.batch_execute(&constrain).unwrap();
        client.batch_execute(take).unwrap();
        total += 2000;
        until("all others are saved", || number(&mut client, UNSAVED) == keys);
        assert_eq!(written(&mut client, "saved"), total - keys, "{poison}");
        until("it is told", || save_error(&mut client).is_some());
        assert_eq!(save_error(&mut client).unwrap(), r#"23514: rate limit "saved""#);
        client.batch_execute("ALTER TABLE rateLimits DROP CONSTRAINT poison").unwrap();
        if !by_itself {
            // It tries all, whatever their pauses.
            assert_eq!(number(&mut client, SAVE), 0, "{poison}");
        }
        until("they are saved", || written(&mut client, "saved") == total);
        until("nothing is told", || save_error(&mut client).is_none());
    }
    assert!(!server.log().contains("secret"), "{}", server.log());
}

#[test]
#[ignore = "needs a server: make test"]
fn what_others_do_with_a_row_keeps_no_other_row() {
    let (server, mut client) = server("100 milliseconds");
    client.batch_execute("ALTER SYSTEM SET log_min_messages = info").unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    client
        .batch_execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE 'refused % %', NEW.name, NEW.key; END $$",
        )
        .unwrap();
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON rateLimits FOR EACH ROW
                   WHEN (NEW.key = 'secret 7') EXECUTE FUNCTION refuse()";
    let lock = "BEGIN; SELECT FROM rateLimits WHERE key = 'secret 7' FOR UPDATE";
    let insert = "BEGIN; DELETE FROM rateLimits WHERE key = 'secret 7';
                  INSERT INTO rateLimits (name, key, shard, kind, value, ts) VALUES ('saved', 'secret 7', 0, 't', 1, now())";
    let first = "BEGIN; INSERT INTO rateLimits (name, key, shard, kind, value, ts) VALUES ('saved', 'secret 7', 0, 't', 1, now())";
    let mut holder = server.client();
    let mut total = 0;
    for (hold, release, error) in [
        (first, "ROLLBACK", "55P03"),
        (trigger, "DROP TRIGGER refuse ON rateLimits", "P0001"),
        (lock, "COMMIT", "55P03"),
        (insert, "ROLLBACK", "55P03"),
    ] {
        holder.batch_execute(hold).unwrap();
        let take = "SELECT rl_limit('saved', 'secret ' || n) FROM generate_series(1, 20) n";
        client.batch_execute(take).unwrap();
        total += KEYS;
        until("all others are saved", || number(&mut client, UNSAVED) == 1);
        assert_eq!(number(&mut client, SAVE), 1);
        assert_eq!(written(&mut client, "saved"), total - 1, "{hold}");
        let told = save_error(&mut client);
        assert_eq!(told, Some(format!(r#"{error}: rate limit "saved""#)), "{hold}");
        holder.batch_execute(release).unwrap();
        until("it is saved", || written(&mut client, "saved") == total);
    }
    // While no session can write at all, and afterwards.
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, SAVE), 0);
    total += KEYS;
    holder.batch_execute("BEGIN; LOCK TABLE rateLimits IN SHARE MODE").unwrap();
    client.batch_execute(TAKE_EACH).unwrap();
    assert_eq!(number(&mut client, SAVE), KEYS);
    assert_eq!(save_error(&mut client).unwrap(), r#"55P03: rate limit "saved""#);
    holder.batch_execute("COMMIT").unwrap();
    until("they are saved", || written(&mut client, "saved") == total + KEYS);
    let log = server.log();
    assert!(!log.contains("refused") && !log.contains("Failing row"), "{log}");
}

/// The limit is on the writer, and on every process that the server starts from now on.
fn limit_files_of_all(server: &Server, bytes: &str) {
    server.exec(&format!(
        "postmaster=$(head -n 1 data/postmaster.pid)
         for process in $postmaster $(pgrep -P $postmaster -f 'ratelimit writer'); do prlimit --pid $process --fsize={bytes}: || true; done"
    ));
}

#[test]
#[ignore = "needs a server: make test"]
fn a_full_disk_costs_nothing_once_there_is_room() {
    // A WAL file is no larger, so that only the table is limited.
    const BYTES: i64 = 16 << 20;
    let (server, mut client) = server("100 milliseconds");
    let fill = "INSERT INTO rateLimits (name, key, kind, value, ts)
                SELECT 'filler', repeat('x', 800) || $1 || ' ' || n, 't', 1, now() FROM generate_series(1, 100) n";
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
    let is_told = |error: String| error.ends_with(r#": rate limit "saved""#) && error.len() == 25;
    until("the disk is full", || save_error(&mut client).is_some_and(is_told));
    assert!(number(&mut client, SAVE) > 0);
    // Calls go on.
    client.execute("SELECT rl_limit('saved', $1)", &[&wide_key(0)]).unwrap();
    limit_files_of_all(&server, "unlimited");
    until("all is saved", || number(&mut client, SAVE) == 0);
    assert_eq!(written(&mut client, "saved"), keys as i64 + 1);
    assert_eq!(save_error(&mut client), None);
    whole(&mut client);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_database_and_its_owner_can_be_changed_while_keys_are_unsaved() {
    let (server, mut client) = server("100 milliseconds");
    for sql in ["CREATE ROLE one LOGIN; CREATE ROLE two LOGIN", "CREATE DATABASE other OWNER one"] {
        client.batch_execute(sql).unwrap();
    }
    let mut tenant = server.client_of("one", "other");
    tenant.batch_execute("CREATE EXTENSION ratelimit").unwrap();
    define(&mut tenant, "saved", "100 milliseconds");
    drop(tenant);
    let mut other = server.connect("other").unwrap();
    let version = number(&mut client, "SELECT current_setting('server_version_num')::bigint");
    let mut expected = 0;
    for sql in [
        "ALTER ROLE one SET default_transaction_read_only = on",
        "REASSIGN OWNED BY one TO two",
        "DROP OWNED BY one",
        "ALTER ROLE two RENAME TO three",
        "ALTER ROLE three NOLOGIN",
        "ALTER DATABASE other SET default_transaction_read_only = on",
        "ALTER DATABASE other SET statement_timeout = '1ms'",
        match version {
            170_000.. => "ALTER DATABASE other SET transaction_timeout = '1ms'",
            _ => "ALTER DATABASE other SET idle_in_transaction_session_timeout = '1ms'",
        },
        "ALTER DATABASE other SET search_path = pg_catalog",
        "ALTER DATABASE other CONNECTION LIMIT 0",
        "ALTER DATABASE other ALLOW_CONNECTIONS false",
    ] {
        let by = if sql.starts_with("ALTER") { &mut client } else { &mut other };
        by.batch_execute(sql).unwrap();
        other.batch_execute(TAKE_ONE).unwrap();
        expected += 1;
        until(sql, || written(&mut other, "saved") == expected);
    }
    // Also at a stop, after all sessions.
    define(&mut other, "saved", "1 hour");
    other.batch_execute(TAKE_ONE).unwrap();
    drop((other, client));
    server.restart();
    let mut client = server.client();
    client.batch_execute("ALTER DATABASE other ALLOW_CONNECTIONS true").unwrap();
    client.batch_execute("ALTER DATABASE other RESET ALL").unwrap();
    let mut other = server.connect("other").unwrap();
    assert_eq!(written(&mut other, "saved"), expected + 1);
    // Renamed, copied and dropped, while the writer is asleep or at work.
    define(&mut other, "saved", "100 milliseconds");
    other.batch_execute(TAKE_ONE).unwrap();
    drop(other);
    let rename = "ALTER DATABASE other RENAME TO renamed";
    until("it is renamed", || client.batch_execute(rename).is_ok());
    let mut other = server.connect("renamed").unwrap();
    until("it is saved", || written(&mut other, "saved") == expected + 2);
    drop(other);
    let copy = "CREATE DATABASE copy TEMPLATE renamed";
    until("it is copied", || client.batch_execute(copy).is_ok());
    // The copy has what was saved, and counts for itself.
    let mut copied = server.connect("copy").unwrap();
    copied.batch_execute(TAKE_ONE).unwrap();
    until("the copy is saved", || written(&mut copied, "saved") == expected + 3);
    copied.batch_execute(TAKE_ONE).unwrap();
    drop(copied);
    until("it is dropped", || client.batch_execute("DROP DATABASE copy").is_ok());
    client.batch_execute(TAKE_ONE).unwrap();
    until("nothing is unsaved", || number(&mut client, UNSAVED) == 0);
}

#[test]
#[ignore = "needs a server: make test"]
fn an_extension_that_is_made_again_many_times_is_saved_each_time() {
    let (_server, mut client) = server("1 hour");
    let make_again = "DROP EXTENSION ratelimit; CREATE EXTENSION ratelimit";
    // With more writers that sleep than there are places for.
    for _ in 0..12 {
        client.batch_execute(TAKE_EACH).unwrap();
        client.batch_execute(make_again).unwrap();
        define(&mut client, "saved", "1 hour");
    }
    client.batch_execute(TAKE_EACH).unwrap();
    until("it is saved", || number(&mut client, SAVE) == 0);
    assert_eq!(written(&mut client, "saved"), KEYS);
    for round in 0..scale(10, 300) {
        client.batch_execute(make_again).unwrap();
        define(&mut client, "saved", "100 milliseconds");
        client.batch_execute(TAKE_ONE).unwrap();
        until(&format!("round {round} is saved"), || number(&mut client, ROWS) == 1);
    }
}

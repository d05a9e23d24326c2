//! Many sessions, keys, databases and saves of limits in memory that are saved: the rows have every take, and whoever
//! saves needs no more memory for more turns.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::own::Server;
use crate::saved::{KEYS, TAKERS, define, number, taken, under_load, until, written};
use crate::saved_faults::writer;
use crate::shared_memory::set_keys;
use crate::{SESSIONS, scale};

#[test]
#[ignore = "needs a server: make test"]
fn the_rows_have_every_take_of_many_sessions() {
    let server = Server::start();
    let mut client = server.client();
    let keys = scale(2_000, 100_000);
    define(&mut client, "one", "100 milliseconds");
    define(&mut client, "many", "100 milliseconds");
    let mut sums = [0, 0];
    for round in 0..scale(2, 10) {
        thread::scope(|scope| {
            for session in 0..SESSIONS {
                let mut client = server.client();
                scope.spawn(move || {
                    let mut take = |name: &str, key: i64| {
                        let sql = "SELECT FROM rl_limit($1, $2) WHERE ok";
                        assert_eq!(client.execute(sql, &[&name, &key.to_string()]).unwrap(), 1);
                    };
                    (0..300).for_each(|_| take("one", 0));
                    // Each session in an order of its own.
                    let many = "SELECT count(*) FROM
                                    (SELECT n FROM generate_series(1, $1::bigint) n
                                     ORDER BY n * $2::bigint % 97, n) AS keys,
                                    rl_limit('many', n::text) WHERE ok";
                    let order = (session as i64 + 1) * (round + 1);
                    let row = client.query_one(many, &[&keys, &order]).unwrap();
                    assert_eq!(row.get::<_, i64>(0), keys);
                });
            }
        });
        sums[0] += 300 * SESSIONS as i64;
        sums[1] += keys * SESSIONS as i64;
        assert_eq!(number(&mut client, "SELECT rl_save()"), 0);
        assert_eq!(written(&mut client, "one"), sums[0]);
        assert_eq!(written(&mut client, "many"), sums[1]);
        let equal = "SELECT count(DISTINCT value) FROM rateLimits WHERE name = 'many'";
        assert_eq!(number(&mut client, equal), 1);
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn what_idle_sessions_took_is_saved_in_every_database() {
    let server = Server::start();
    let databases = ["postgres", "one", "two"];
    let mut clients: Vec<Vec<Client>> = Vec::new();
    for name in databases {
        if name != "postgres" {
            let create = format!("CREATE DATABASE {name}");
            server.client().batch_execute(&create).unwrap();
            let mut client = server.connect(name).unwrap();
            client.batch_execute("CREATE EXTENSION ratelimit").unwrap();
        }
        let mut sessions: Vec<_> = (0..4).map(|_| server.connect(name).unwrap()).collect();
        define(&mut sessions[0], "saved", "100 milliseconds");
        clients.push(sessions);
    }
    for turn in 1..=scale(5, 100) {
        // All in a transaction that stays open, and idle from then on.
        for (n, client) in clients.iter_mut().flatten().enumerate() {
            let begin = if n.is_multiple_of(2) { "" } else { "COMMIT; BEGIN;" };
            let take = format!("{begin} SELECT rl_limit('saved', '{}', 2)", n % 3);
            client.batch_execute(&take).unwrap();
        }
        for name in databases {
            let mut client = server.connect(name).unwrap();
            until("it is saved", || written(&mut client, "saved") == 4 * 2 * turn);
        }
    }
}

/// The memory of a process that nobody shares, in kB.
fn memory(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The most memory that a writer had until nothing is unsaved.
fn most_memory(server: &Server, client: &mut Client) -> u64 {
    let postmaster = server.exec("head -n 1 data/postmaster.pid");
    let (mut most, begun) = (0, Instant::now());
    while number(client, "SELECT unsaved_keys FROM rl_memory()") > 0 {
        for _ in 0..20 {
            let found = writer(&postmaster).and_then(|process| memory(&process));
            most = most.max(found.unwrap_or(0));
            thread::sleep(Duration::from_millis(1));
        }
        assert!(begun.elapsed() < Duration::from_secs(600), "it is not saved");
    }
    most
}

#[test]
#[ignore = "needs a server: make test"]
fn more_keys_and_more_turns_need_little_more_memory() {
    let server = Server::start();
    let mut client = server.client();
    let keys = scale(20_000, 1_000_000);
    set_keys(&mut client, keys as u32);
    define(&mut client, "saved", "100 milliseconds");
    let take = |client: &mut Client, keys: i64| {
        let sql = "SELECT FROM generate_series(1, $1::bigint) key, rl_limit('saved', key::text)";
        client.execute(sql, &[&keys]).unwrap();
    };
    take(&mut client, 100);
    let few = most_memory(&server, &mut client);
    let process = number(&mut client, "SELECT pg_backend_pid()::bigint").to_string();
    let mut most = Vec::new();
    for _ in 0..scale(3, 10) {
        take(&mut client, keys);
        most.push(most_memory(&server, &mut client));
    }
    println!("kB for 100 keys {few}, for {keys} {most:?}");
    // A copy of each key, and what a transaction remembers of the rows that it wrote.
    let bound = few + 6_000 + keys as u64 * 3 / 10;
    assert!(most.iter().all(|&most| most < bound), "{most:?} kB of {bound}");
    // The session that asks for writers does not grow by it.
    let before = memory(&process).unwrap();
    for _ in 0..scale(20, 1000) {
        take(&mut client, 100);
        let unsaved = "SELECT unsaved_keys FROM rl_memory()";
        until("it is saved", || number(&mut client, unsaved) == 0);
    }
    let after = memory(&process).unwrap();
    assert!(after < before + 2_000, "from {before} to {after} kB");
    assert_eq!(number(&mut client, "SELECT count(*) FROM rateLimits"), keys);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_dump_is_at_most_a_turn_old_and_goes_on_where_it_is_restored() {
    let server = Server::start();
    let mut client = server.client();
    define(&mut client, "saved", "100 milliseconds");
    client.batch_execute("CREATE DATABASE copy").unwrap();
    let folder = server.folder();
    let (mut before, mut after) = (0, 0);
    under_load(&server, |told| {
        thread::sleep(Duration::from_millis(300));
        before = told.load(Ordering::SeqCst);
        until("it is saved", || written(&mut client, "saved") >= before);
        server.exec(&format!("pg_dump -h {folder} -U postgres postgres >data/dump"));
        after = told.load(Ordering::SeqCst) + TAKERS as i64;
    });
    let restore = format!("psql -q -v ON_ERROR_STOP=1 -h {folder} -U postgres copy <data/dump");
    server.exec(&restore);
    let mut copy = server.connect("copy").unwrap();
    let dumped = written(&mut copy, "saved");
    println!("{dumped} of {before} to {after}");
    assert!((before..=after).contains(&dumped), "{dumped} of {before} to {after}");
    assert_eq!(taken(&mut copy, "saved"), dumped);
    let take = format!("SELECT rl_limit('saved', key::text) FROM generate_series(1, {KEYS}) key");
    copy.batch_execute(&take).unwrap();
    assert_eq!(number(&mut copy, "SELECT rl_save()"), 0);
    assert_eq!(written(&mut copy, "saved"), dumped + KEYS);
}

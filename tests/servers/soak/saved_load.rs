//! Many sessions, keys and saves of limits in memory that are saved: the rows have every take, and more turns need no
//! more memory.

use std::thread;
use std::time::Duration;

use postgres::Client;

use crate::own::Server;
use crate::saved::{SAVE, UNSAVED, define, number, server, until, writer, written};
use crate::shared_memory::set_keys;
use crate::{SESSIONS, scale};

#[test]
#[ignore = "needs a server: make test"]
fn the_rows_have_every_take_of_many_sessions() {
    let (server, mut client) = server("100 milliseconds");
    define(&mut client, "many", "100 milliseconds");
    let keys = scale(2_000, 100_000);
    let mut sums = [0, 0];
    for round in 0..scale(1, 10) {
        thread::scope(|scope| {
            for session in 0..SESSIONS {
                let mut client = server.client();
                scope.spawn(move || {
                    let mut take = |name: &str, key: i64| {
                        let sql = "SELECT FROM rl_limit($1, $2) WHERE ok";
                        assert_eq!(client.execute(sql, &[&name, &key.to_string()]).unwrap(), 1);
                    };
                    (0..300).for_each(|_| take("saved", 0));
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
        assert_eq!(number(&mut client, SAVE), 0);
        assert_eq!(written(&mut client, "saved"), sums[0]);
        assert_eq!(written(&mut client, "many"), sums[1]);
        let equal = "SELECT count(DISTINCT value) FROM rateLimits WHERE name = 'many'";
        assert_eq!(number(&mut client, equal), 1);
    }
}

/// Returns the memory that is the process's own, in kB.
fn memory(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the most memory that a writer had until nothing is unsaved.
fn most_memory(postmaster: &str, client: &mut Client) -> u64 {
    let mut most = 0;
    until("all is saved", || {
        for _ in 0..20 {
            let found = writer(postmaster).and_then(|process| memory(&process));
            most = most.max(found.unwrap_or(0));
            thread::sleep(Duration::from_millis(1));
        }
        number(client, UNSAVED) == 0
    });
    most
}

#[test]
#[ignore = "needs a server: make test"]
fn more_keys_and_more_turns_need_little_more_memory() {
    let server = Server::start();
    let (mut client, postmaster) = (server.client(), server.postmaster());
    let keys = scale(20_000, 1_000_000);
    set_keys(&mut client, keys as u32);
    define(&mut client, "saved", "100 milliseconds");
    let take = |client: &mut Client, keys: i64| {
        let sql = "SELECT FROM generate_series(1, $1::bigint) key, rl_limit('saved', key::text)";
        client.execute(sql, &[&keys]).unwrap();
    };
    take(&mut client, 100);
    let few = most_memory(&postmaster, &mut client);
    let process = number(&mut client, "SELECT pg_backend_pid()::bigint").to_string();
    let mut most = Vec::new();
    for _ in 0..scale(3, 10) {
        take(&mut client, keys);
        most.push(most_memory(&postmaster, &mut client));
    }
    println!("kB for 100 keys {few}, for {keys} {most:?}");
    // A copy of each key, and what a transaction remembers of the rows that it wrote.
    let bound = few + 6_000 + keys as u64 * 3 / 10;
    assert!(most.iter().all(|&most| most < bound), "{most:?} kB of {bound}");
    // The session that asks for writers does not grow by it.
    let before = memory(&process).unwrap();
    for _ in 0..scale(10, 1000) {
        take(&mut client, 100);
        until("it is saved", || number(&mut client, UNSAVED) == 0);
    }
    let after = memory(&process).unwrap();
    assert!(after < before + 2_000, "from {before} to {after} kB");
    assert_eq!(number(&mut client, "SELECT count(*) FROM rateLimits"), keys);
}

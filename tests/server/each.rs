//! Several requests in one call, each on its own: as calls of rl_limit one after the other, and what it does about rows
//! that others have locked.

use std::thread;
use std::time::Duration;

use fastrand::Rng;
use postgres::Client;
use postgres::error::SqlState;
use ratelimit_tests::seed;

use crate::database::Database;

const NOW: &str = "SET ratelimit.clock = '2027-01-01 00:00:00+00'";

/// Limits of every kind, a dry run, one with shards, one without a limit and one that takes no key.
const LIMITS: [&str; 8] = [
    "rl_token_bucket(5, '1 minute', max_reserved => 3)",
    "rl_fixed_window(4, '1 minute', start => '2027-01-01 00:00:00+00')",
    "rl_sliding_window(4, '1 minute')",
    "rl_sliding_log(3, '1 minute')",
    "rl_token_bucket(2, '1 minute') || '{\"enforce\": false}'",
    "rl_fixed_window(8, '1 minute', shards => 4, start => '2027-01-01 00:00:00+00')",
    "'{\"kind\": \"unlimited\"}'",
    "rl_token_bucket(3, '1 minute') || '{\"keyed\": false}'",
];

/// Defines them, with names that begin so.
fn define(client: &mut Client, prefix: &str) {
    for (n, config) in LIMITS.iter().enumerate() {
        let sql = format!("SELECT rl_define('{prefix}{n}', {})", Database::limits(config));
        client.batch_execute(&sql).unwrap();
    }
    let block = format!("SELECT rl_block('{prefix}0', 'k2', until => 'infinity')");
    client.batch_execute(&block).unwrap();
}

/// A call's answer, or the code of its error; of a limit with shards without `remaining`, an estimate.
fn alone(client: &mut Client, name: &str, key: &str, count: f64, reserve: bool) -> String {
    let sql = "SELECT concat_ws(' ', ok, retry_after, CASE WHEN $1 !~ '5$' THEN remaining END, capacity, reset_at, limited_by)
               FROM rl_limit($1, $2, $3, $4)";
    match client.query_one(sql, &[&name, &key, &count, &reserve]) {
        Ok(row) => row.get(0),
        Err(error) => format!("f {}", error.code().expect("an answer").code()),
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn each_request_is_answered_as_by_rl_limit() {
    let database = Database::new("each");
    let mut client = database.connect();
    client.batch_execute(NOW).unwrap();
    define(&mut client, "each");
    define(&mut client, "lone");
    let mut random = Rng::with_seed(seed(62));
    for round in 0..Database::part(300) {
        if round % 20 == 0 {
            let sql =
                format!("SET ratelimit.clock = {}", 1_798_761_600_000_i64 + 7_000 * round as i64);
            client.batch_execute(&sql).unwrap();
        }
        let requests: Vec<(usize, usize, f64, bool)> = (0..random.usize(1..12))
            .map(|_| {
                let count = *random.choice(&[1.0, 1.0, 1.0, 0.0, 2.0, 6.0, -1.0]).unwrap();
                let limit = random.usize(..LIMITS.len());
                // A reservation that needs several shards is refused in a transaction that holds one.
                (limit, random.usize(..4), count, random.u8(..5) == 0 && limit != 5)
            })
            .collect();
        let key = |n: &usize| if *n == 3 { String::new() } else { format!("k{n}") };
        let json = |(limit, of, count, reserve): &(usize, usize, f64, bool)| {
            let key = key(of);
            format!(
                r#"{{"name": "each{limit}", "key": "{key}", "count": {count}, "reserve": {reserve}}}"#
            )
        };
        let list = format!("[{}]", requests.iter().map(json).collect::<Vec<_>>().join(", "));
        let sql = "SELECT concat_ws(' ', ok, error ->> 'code', retry_after, CASE WHEN name !~ '5$' THEN remaining END, capacity, reset_at, limited_by)
                   FROM rl_limit_each($1::text::jsonb) ORDER BY n";
        let rows = client.query(sql, &[&list]).unwrap();
        let answers: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let expected: Vec<String> = requests
            .iter()
            .map(|(limit, of, count, reserve)| {
                alone(&mut client, &format!("lone{limit}"), &key(of), *count, *reserve)
            })
            .collect();
        assert_eq!(answers, expected, "{list}");
    }
}

/// The codes of the answers to a list, in its order: of an error, or `ok`.
fn codes(client: &mut Client, list: &str, wait: &str) -> Vec<String> {
    let sql = format!(
        "SELECT coalesce(error ->> 'code', ok::text) FROM rl_limit_each('{list}', {wait}) ORDER BY n"
    );
    client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

const LIST: &str = r#"[{"name": "b", "key": "2"}, {"name": "b", "key": "1"}, {"name": "b", "key": "3"},
    {"name": "b", "key": "1"}]"#;

#[test]
#[ignore = "needs a server: make test"]
fn a_locked_row_is_given_up_and_the_others_are_taken() {
    let database = Database::new("each");
    let (mut client, mut holder) = (database.connect(), database.connect());
    client.batch_execute("SELECT rl_define('b', rl_token_bucket(2, '1 day'))").unwrap();
    for key_is_new in [true, false] {
        holder.batch_execute("BEGIN; SELECT rl_limit('b', '1')").unwrap();
        client.batch_execute("SET lock_timeout = '1234ms'").unwrap();
        for wait in ["'0'", "'2 milliseconds'"] {
            client.batch_execute("BEGIN").unwrap();
            assert_eq!(codes(&mut client, LIST, wait), ["true", "55P03", "true", "55P03"]);
            let timeout: String = client.query_one("SHOW lock_timeout", &[]).unwrap().get(0);
            assert_eq!(timeout, "1234ms");
            client.batch_execute("ROLLBACK").unwrap();
        }
        // Without a bound it waits, and fails, as rl_limit.
        client.batch_execute("SET lock_timeout = '10ms'").unwrap();
        let error = client.query("SELECT rl_limit_each($1::text::jsonb)", &[&LIST]).unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE), "{key_is_new}");
        client.batch_execute("RESET lock_timeout").unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| codes(&mut client, LIST, "'1 minute'"));
            thread::sleep(Duration::from_millis(30));
            holder.batch_execute("COMMIT").unwrap();
            assert_eq!(waits.join().unwrap(), ["true", "true", "true", "false"]);
        });
        client
            .batch_execute("SELECT rl_reset('b', key) FROM (VALUES ('1'), ('2'), ('3')) k (key)")
            .unwrap();
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn a_denial_that_the_committed_row_proves_waits_for_nobody() {
    let database = Database::new("each");
    let (mut client, mut holder) = (database.connect(), database.connect());
    client
        .batch_execute("SELECT rl_define('b', rl_fixed_window(1, '1 day')), rl_limit('b', '1')")
        .unwrap();
    holder.batch_execute("BEGIN; SELECT rl_reset('b', '1')").unwrap();
    client.batch_execute("SET lock_timeout = '10ms'").unwrap();
    for wait in ["NULL", "'0'"] {
        assert_eq!(codes(&mut client, r#"[{"name": "b", "key": "1"}]"#, wait), ["false"]);
    }
    holder.batch_execute("ROLLBACK").unwrap();
}

#[test]
#[ignore = "needs a server: make test"]
fn rows_of_shards_that_others_hold_are_given_up_too() {
    let database = Database::new("each");
    let mut client = database.connect();
    let config = Database::limits("rl_fixed_window(2, '1 day', shards => 2)");
    client
        .batch_execute(&format!(
            "SELECT rl_define('s', {config}), rl_limit('s', 'k'), rl_credit('s', 'k')"
        ))
        .unwrap();
    let mut holders = [database.connect(), database.connect()];
    for holder in &mut holders {
        holder.batch_execute("BEGIN; SELECT rl_limit('s', 'k')").unwrap();
    }
    let list = r#"[{"name": "s", "key": "k"}, {"name": "s", "key": "free"}]"#;
    assert_eq!(codes(&mut client, list, "'0'"), ["55P03", "true"]);
    holders.iter_mut().for_each(|holder| holder.batch_execute("ROLLBACK").unwrap());
    assert_eq!(codes(&mut client, list, "'0'"), ["true", "true"]);
}

#[test]
#[ignore = "needs a server: make test"]
fn requests_of_one_key_write_one_version() {
    let database = Database::new("each");
    let mut client = database.connect();
    client
        .batch_execute("SELECT rl_define('b', rl_token_bucket(100, '1 day')), rl_limit('b', 'hot')")
        .unwrap();
    let list = format!("[{}]", vec![r#"{"name": "b", "key": "hot"}"#; 150].join(", "));
    let sql = "SELECT pg_stat_get_xact_tuples_updated('ratelimits'::regclass)";
    client.batch_execute("BEGIN").unwrap();
    let before: i64 = client.query_one(sql, &[]).unwrap().get(0);
    for wait in ["NULL", "'0'"] {
        let admitted =
            codes(&mut client, &list, wait).iter().filter(|code| *code == "true").count();
        assert_eq!(admitted, if wait == "NULL" { 99 } else { 0 });
    }
    let updated: i64 = client.query_one(sql, &[]).unwrap().get(0);
    assert_eq!(updated - before, 1);
    client.batch_execute("COMMIT").unwrap();
}

/// Sessions share out few tokens, until none is left: each is taken once.
#[test]
#[ignore = "needs a server: make test"]
fn every_token_is_taken_once() {
    const TOKENS: usize = 300;
    let database = Database::new("each");
    let mut client = database.connect();
    let sql = format!("SELECT rl_define('b', rl_fixed_window({TOKENS}, '1 day'))");
    client.batch_execute(&sql).unwrap();
    let taken = thread::scope(|scope| {
        let sessions: Vec<_> = (0..8)
            .map(|session| {
                let database = &database;
                scope.spawn(move || {
                    let mut client = database.connect();
                    let mut random = Rng::with_seed(session);
                    let (mut taken, mut denied) = (0, 0);
                    while denied < 40 {
                        let keys = (0..random.usize(1..6)).map(|_| random.usize(..4));
                        let request = |key| format!(r#"{{"name": "b", "key": "{key}"}}"#);
                        let list =
                            format!("[{}]", keys.map(request).collect::<Vec<_>>().join(", "));
                        let wait = *random
                            .choice(&["NULL", "'0'", "'3 milliseconds'", "'1 second'"])
                            .unwrap();
                        let codes = codes(&mut client, &list, wait);
                        taken += codes.iter().filter(|code| *code == "true").count();
                        denied += usize::from(codes.iter().all(|code| code == "false"));
                    }
                    taken
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).sum::<usize>()
    });
    assert_eq!(taken, 4 * TOKENS);
}

//! Floods of new keys into the memory of limits: an empty key stays empty, whatever the flood.

use postgres::Client;
use postgres::error::SqlState;

use crate::own::Server;
use crate::scale;
use crate::shared_memory::set_keys;

/// Limits of ten that fill again within a day at the earliest, of each kind that lives in memory.
const KINDS: [(&str, &str); 6] = [
    ("token bucket", r#"{"kind": "token bucket", "rate": 10, "period": "366 days"}"#),
    ("fixed window", r#"{"kind": "fixed window", "rate": 10, "period": "300 days"}"#),
    (
        "from the first request",
        r#"{"kind": "fixed window", "rate": 10, "period": "1 day", "start": "first request"}"#,
    ),
    (
        "calendar",
        r#"{"kind": "fixed window", "rate": 10, "period": "12 months", "timezone": "UTC"}"#,
    ),
    ("sliding window", r#"{"kind": "sliding window", "rate": 10, "period": "300 days"}"#),
    ("concurrency", r#"{"kind": "concurrency", "slots": 10, "ttl": "1 day"}"#),
];
/// The keys that are empty.
const EMPTY: i64 = 20;

/// What brings the new keys.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// The same limit, each key called so often, with so much.
    Same { calls: u32, count: u32 },
    /// Another limit of the database.
    Other,
    /// Another database, whose owner defines a limit a key.
    Database,
    /// A role that may do nothing but take, with configs in its calls.
    Inline,
}

fn in_memory(config: &str) -> String {
    config.replacen('{', r#"{"store": "memory", "#, 1)
}

/// Returns the function that takes from a kind.
fn take(kind: &str) -> &'static str {
    if kind == "concurrency" { "rl_acquire" } else { "rl_limit" }
}

/// How many new keys come, in 40 parts: fewer of a kind that has an entry a slot, all in one of the 128 partitions.
fn new_keys(kind: &str) -> i64 {
    scale(30_000, 300_000) / if kind == "concurrency" { 10 } else { 1 }
}

/// A server with room for some 74,000 keys of defined limits, and 36,000 of others: a part of a flood
/// is far less than what the limit has of any partition.
fn server() -> Server {
    let server = Server::start();
    let mut client = server.client();
    set_keys(&mut client, 60_000);
    server.restart();
    let mut client = server.client();
    client
        .batch_execute(
            "CREATE ROLE app LOGIN; CREATE ROLE stranger LOGIN;
             GRANT EXECUTE ON FUNCTION rl_limit, rl_acquire TO app, stranger",
        )
        .unwrap();
    client.batch_execute("CREATE DATABASE other").unwrap();
    server.client_of("postgres", "other").batch_execute("CREATE EXTENSION ratelimit").unwrap();
    server
}

/// Returns how many of `times` calls pass for each of the empty keys; the config, if any, is in the call.
fn passed(client: &mut Client, call: &str, name: &str, config: &str, times: i64) -> i64 {
    let sql = format!(
        "SELECT count(*) FROM generate_series(1, {EMPTY}) n, generate_series(1, {times}) call,
         {call}($1, 'empty ' || n || left(call::text, 0), config => {config}) AS taken WHERE taken.ok"
    );
    client.query_one(&sql, &[&name]).unwrap().get(0)
}

fn flood(server: &Server, name: &str, call: &str, config: &str, flood: Flood, from: i64, to: i64) {
    let keys = format!("generate_series({from}, {to}) n");
    let (user, database, sql) = match flood {
        Flood::Same { calls, count } => {
            let sql = format!(
                "SELECT {call}('{name}', 'new ' || n, {count}) FROM {keys}, generate_series(1, {calls})"
            );
            ("app", "postgres", sql)
        }
        Flood::Other => {
            ("app", "postgres", format!("SELECT rl_limit('other', 'new ' || n, 10) FROM {keys}"))
        }
        Flood::Database => {
            let limit = in_memory(r#"{"kind": "sliding window", "rate": 10, "period": "1 day"}"#);
            let sql = format!(
                "SELECT rl_define('other ' || n % 100, '{limit}') FROM generate_series(0, 99) n;
                 SELECT rl_limit('other ' || n % 100, 'new ' || n, 10) FROM {keys}"
            );
            ("postgres", "other", sql)
        }
        Flood::Inline => {
            let sql =
                format!("SELECT {call}('new ' || n, 'k', 10, config => '{config}') FROM {keys}");
            ("stranger", "postgres", sql)
        }
    };
    server.client_of(user, database).batch_execute(&sql).unwrap();
}

#[test]
#[ignore = "needs a server: make test"]
fn a_flood_of_new_keys_fills_no_limit_that_is_empty() {
    let server = server();
    let mut client = server.client();
    let other = in_memory(r#"{"kind": "token bucket", "rate": 10, "period": "1 day"}"#);
    client.execute("SELECT rl_define('other', $1::text::jsonb)", &[&other]).unwrap();
    // The flag: keys that aren't called meanwhile stay, too.
    let floods = [
        (Flood::Same { calls: 1, count: 1 }, false),
        (Flood::Same { calls: 3, count: 1 }, false),
        (Flood::Same { calls: 3, count: 4 }, false),
        (Flood::Other, true),
        (Flood::Database, true),
        (Flood::Inline, true),
    ];
    for (kind, config) in KINDS {
        let config = in_memory(config);
        for (n, (by, unseen_stay)) in floods.into_iter().enumerate() {
            let (name, call) = (format!("{kind} {n}"), take(kind));
            client.execute("SELECT rl_define($1, $2::text::jsonb)", &[&name, &config]).unwrap();
            let unseen = format!("{name} unseen");
            client.execute("SELECT rl_define($1, $2::text::jsonb)", &[&unseen, &config]).unwrap();
            for name in [&name, &unseen] {
                assert_eq!(
                    passed(&mut client, call, name, "NULL", 10),
                    EMPTY * 10,
                    "{name}, {by:?}"
                );
            }
            let keys = new_keys(kind);
            for from in (1..=keys).step_by(keys as usize / 40) {
                flood(&server, &name, call, &config, by, from, from + keys / 40 - 1);
                let passed = passed(&mut client, call, &name, "NULL", 1);
                assert_eq!(passed, 0, "{name}, {by:?}, after {from}");
            }
            if unseen_stay {
                assert_eq!(
                    passed(&mut client, call, &unseen, "NULL", 1),
                    0,
                    "{unseen}, {by:?}, unseen"
                );
            }
            client.execute("SELECT rl_reset_keys($1)", &[&name]).unwrap();
        }
    }
}

/// Of configs in calls: those of another role drive nothing out; those of the same, nothing that is called again.
#[test]
#[ignore = "needs a server: make test"]
fn limits_in_calls_stay_empty_beside_a_flood_of_others() {
    let server = server();
    let mut app = server.client_of("app", "postgres");
    for (kind, config) in KINDS {
        let (config, call) = (in_memory(config), take(kind));
        let literal = format!("'{config}'");
        let strangers = format!("{kind} unseen");
        for name in [kind, &strangers] {
            assert_eq!(passed(&mut app, call, name, &literal, 10), EMPTY * 10, "{name}");
        }
        let keys = new_keys(kind);
        for from in (1..=keys).step_by(keys as usize / 40) {
            flood(&server, kind, call, &config, Flood::Inline, from, from + keys / 40 - 1);
            assert_eq!(passed(&mut app, call, kind, &literal, 1), 0, "{kind} after {from}");
        }
        assert_eq!(passed(&mut app, call, &strangers, &literal, 1), 0, "{strangers}");
        for from in (1..=keys).step_by(keys as usize / 40) {
            let to = from + keys / 40 - 1;
            let sql = format!(
                "SELECT {call}('new ' || n, 'k', 10, config => {literal}) FROM generate_series({from}, {to}) n"
            );
            app.batch_execute(&sql).unwrap();
            assert_eq!(
                passed(&mut app, call, kind, &literal, 1),
                0,
                "{kind} after {from} of its role"
            );
        }
    }
}

/// The number of keys that is set fits, and a state of years has no place in memory.
#[test]
#[ignore = "needs a server: make test"]
fn as_many_keys_fit_as_are_set() {
    let server = server();
    for keys in [1_000i32, 5_000, 100_000] {
        set_keys(&mut server.client(), keys as u32);
        for _ in 0..scale(3, 20) {
            server.restart();
            let mut client = server.client();
            let config = in_memory(r#"{"kind": "token bucket", "rate": 10, "period": "1 day"}"#);
            client.execute("SELECT rl_define('x', $1::text::jsonb)", &[&config]).unwrap();
            let sql = "SELECT count(rl_limit('x', n::text)), count(rl_limit('y' || n, config => c))
                         FILTER (WHERE n <= $1 / 2)
                       FROM generate_series(1, $1) n, LATERAL (SELECT $2::text::jsonb) AS of(c)";
            client.query_one(sql, &[&keys, &config]).unwrap();
            let sql = "SELECT keys, room, inline_keys, inline_room, dropped_live FROM rl_memory()";
            let row = client.query_one(sql, &[]).unwrap();
            let found: Vec<i64> = (0..5).map(|n| row.get(n)).collect();
            let keys = i64::from(keys);
            assert_eq!(found, [keys, keys, keys / 2, keys / 2, 0]);
        }
    }
    let mut client = server.client_of("app", "postgres");
    let sql = r#"SELECT rl_acquire('z', config => '{"kind": "concurrency", "slots": 100, "ttl": 1000000000000000, "store": "memory"}')"#;
    let refused = client.batch_execute(sql).unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::INVALID_PARAMETER_VALUE));
}

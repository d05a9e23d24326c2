//! Random configs, arguments, triggers and rows, mostly invalid. Each has an answer, or an error for the
//! user: no panic, no internal error, no memory leak. TIMES multiplies the duration.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use postgres::Client;
use ratelimit_core::config;
use ratelimit_core::kinds::{Counters, Lease, Leases, Log, Tokens};
use ratelimit_core::{AsMany, Micros, Shards, State, decide};
use ratelimit_tests::{seed, times};

use crate::database::Database;

fn duration() -> Duration {
    Duration::from_secs_f64(3.0 * times())
}

fn one_of<'a>(random: &mut Rng, among: &[&'a str]) -> &'a str {
    random.choice(among).copied().unwrap()
}

const CONFIGS: &[&str] = &[
    r#"{"kind": "token bucket", "rate": 10, "period": 60000}"#,
    r#"{"kind": "token bucket", "rate": 10, "period": 60000, "capacity": 30, "maxReserved": 20, "shards": 4}"#,
    r#"{"kind": "fixed window", "rate": 100, "period": 1000, "start": 500}"#,
    r#"{"kind": "fixed window", "rate": 5, "period": 86400000, "timezone": "Europe/Berlin"}"#,
    r#"{"kind": "fixed window", "rate": 5, "period": "1 month", "timezone": "America/Sao_Paulo", "start": "2024-01-31"}"#,
    r#"{"kind": "fixed window", "rate": 5, "period": 1000, "start": "first request"}"#,
    r#"{"kind": "sliding window", "rate": 5, "period": 1000}"#,
    r#"{"kind": "sliding log", "rate": 5, "period": 1000}"#,
    r#"{"kind": "token bucket", "rate": 5, "period": 1000, "store": "memory"}"#,
    r#"{"kind": "fixed window", "rate": 5, "period": 1000, "store": "memory", "enforce": false}"#,
    r#"{"kind": "sliding window", "rate": 5, "period": 1000, "store": "memory"}"#,
    r#"{"kind": "token bucket", "rate": 5, "period": 1000, "store": "memory", "save": "100 ms"}"#,
    r#"{"kind": "concurrency", "slots": 3, "ttl": 1000, "store": "memory", "save": 3600000}"#,
    r#"{"kind": "fixed window", "rate": 5, "period": 1000, "overage": true}"#,
    r#"{"kind": "concurrency", "slots": 3, "ttl": 1000}"#,
    r#"{"kind": "concurrency", "slots": 3, "ttl": 1000, "store": "memory"}"#,
    r#"{"kind": "unlimited"}"#,
];
const FIELDS: &[&str] = &[
    "kind",
    "rate",
    "period",
    "capacity",
    "maxReserved",
    "max_reserved",
    "shards",
    "start",
    "timezone",
    "store",
    "save",
    "enforce",
    "keyed",
    "overage",
    "slots",
    "ttl",
    "",
];
const VALUES: &[&str] = &[
    "0",
    "-0.0",
    "1",
    "-1",
    "0.1",
    "1e-300",
    "1e15",
    "1e16",
    "1e308",
    "123456789012345678901234567890",
    "null",
    "true",
    "false",
    "\"memory\"",
    "\"table\"",
    "[]",
    "{}",
    "\"\"",
    "\"NaN\"",
    "\"1 month\"",
    "\"2 weeks\"",
    "\"1 day\"",
    "\"first request\"",
    "\"UTC\"",
    "\"Europe/Berlin\"",
    "\"2024-02-29\"",
    "\"9999-12-31\"",
    "\"token bucket\"",
    "\"fixed window\"",
    "\"sliding window\"",
    "\"sliding log\"",
    "\"concurrency\"",
    "\"unlimited\"",
    "\"\\u0000\"",
    "\"é\"",
    "[[[[[]]]]]",
];

/// A config with some of its fields replaced, added, taken away or doubled, or its text damaged.
fn config(random: &mut Rng) -> String {
    let mut text = one_of(random, CONFIGS).to_owned();
    for _ in 0..random.usize(..4) {
        let (field, value) = (one_of(random, FIELDS), one_of(random, VALUES));
        match random.u8(..4) {
            0 => text = text.replacen('{', &format!("{{\"{field}\": {value}, "), 1),
            1 => text = text.replacen('}', &format!(", \"{field}\": {value}}}"), 1),
            2 => text = text.replacen(&format!("\"{field}\""), "\"other\"", 1),
            _ => {
                // Another value for one of its fields.
                if let Some(at) = text.find(&format!("\"{field}\": ")) {
                    let from = at + field.len() + 4;
                    let to = text[from..].find([',', '}']).map_or(text.len(), |n| from + n);
                    text.replace_range(from..to, value);
                }
            }
        }
    }
    text
}

fn float(random: &mut Rng) -> f64 {
    match random.u8(..4) {
        0 => f64::from_bits(random.u64(..)),
        1 => random.i32(-20..20).into(),
        2 => random.f64(),
        _ => *random.choice(&[0.0, -0.0, 1e15, -1e15, f64::NAN, f64::INFINITY, 1e-308]).unwrap(),
    }
}

#[test]
fn no_config_and_no_state_makes_the_algorithm_panic() {
    let mut random = Rng::with_seed(seed(1));
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..30_000 {
        let mut text = config(&mut random);
        if random.u8(..8) == 0 && !text.is_empty() {
            // A byte is removed or changed.
            let at = random.usize(..text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
                text.replace_range(at..=at, one_of(&mut random, &["", "\"", "{", "9", "\\", "é"]));
            }
        }
        let Ok(limit) = config::parse(&text) else {
            refused += 1;
            continue;
        };
        accepted += 1;
        let instant = |random: &mut Rng| match random.u8(..3) {
            0 => Micros(random.i64(..)),
            1 => Micros(random.i64(-10_000_000..10_000_000)),
            _ => Micros(1_800_000_000_000_000 + random.i64(0..10_000_000_000)),
        };
        for _ in 0..4 {
            let (value, ts) = (float(&mut random), instant(&mut random));
            // Also of a shape that the limit does not take.
            let state = match random.u8(..4) {
                0 => {
                    let added = random.bool().then(|| float(&mut random));
                    State::Tokens(Tokens { value, ts, added })
                }
                1 => State::Counters(Counters { value, prior: float(&mut random), ts }),
                2 => {
                    let mut entries: Vec<_> =
                        (0..random.usize(..4)).map(|_| instant(&mut random)).collect();
                    if random.bool() {
                        entries.sort_unstable();
                    }
                    State::Log(Log { entries, ts })
                }
                _ => {
                    let mut lease =
                        || Lease { id: instant(&mut random), expires_at: instant(&mut random) };
                    let leases = vec![lease(), lease(), lease()];
                    State::Leases(Leases { leases, ts })
                }
            };
            let (now, count) = (instant(&mut random), float(&mut random).abs());
            let decision = decide(&limit, &state, now, count, random.bool());
            assert!(decision.ok || decision.state.is_none(), "{text}");
            let parts = Shards::new(&limit, vec![state; limit.shards() as usize]);
            parts.decide(now, count, random.bool());
            let at_least = float(&mut random).abs();
            let (decision, taken) = parts.decide_as_many(now, AsMany { count, at_least });
            assert!(decision.ok || taken == 0.0, "{text}");
        }
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 3_000 && refused > 3_000);
}

/// An SQL function and the types of its arguments.
struct Function {
    name: String,
    arguments: Vec<String>,
    is_window: bool,
}

/// An argument at random, as SQL.
fn argument(random: &mut Rng, r#type: &str) -> String {
    if random.u8(..12) == 0 {
        return "NULL".into();
    }
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    match r#type {
        "text" => match random.u8(..8) {
            0..5 => quoted(one_of(
                random,
                &["a", "b", "c", "ab", "\u{1}", "it's", "é", "ietf", "github", "d//1", "a/b/2"],
            )),
            5 => "''".into(),
            6 => format!(
                "repeat('x', {})",
                random.choice([199, 200, 201, 1024, 1025, 5000]).unwrap()
            ),
            _ => quoted(one_of(random, VALUES)),
        },
        "double precision" => {
            let value = float(random);
            if value.is_nan() {
                "'NaN'".into()
            } else {
                format!("'{value:e}'").replace("inf", "infinity")
            }
        }
        "boolean" => random.bool().to_string(),
        "integer" => random
            .choice(["0", "1", "2", "10", "1024", "1025", "-1", "2147483647"])
            .unwrap()
            .to_string(),
        "jsonb" if random.bool() => quoted(&config(random)).replace("\\u0000", "\\u0001"),
        "jsonb" => {
            let request = format!(
                "{{\"name\": \"{}\", \"key\": {}, \"count\": {}}}",
                one_of(random, &["a", "b", "nothing"]),
                one_of(random, VALUES),
                one_of(random, VALUES)
            );
            quoted(&match random.u8(..4) {
                0 => one_of(random, VALUES).to_owned(),
                1 => format!("[{request}]"),
                // A state, of rl_calculate.
                2 => {
                    let more =
                        ["", ", \"prior\": 2", ", \"log\": [0, 1.5e12]", ", \"log\": [null]"];
                    let (value, ts) = (one_of(random, VALUES), one_of(random, VALUES));
                    format!("{{\"value\": {value}, \"ts\": {ts}{}}}", one_of(random, &more))
                }
                _ => {
                    format!("[{request}, {{\"name\": \"a\"}}, {{\"name\": \"c\", \"key\": \"k\"}}]")
                }
            })
            .replace("\\u0000", "\\u0001")
        }
        "interval" => quoted(one_of(
            random,
            &[
                "0",
                "1 us",
                "1 second",
                "-1 second",
                "1 day",
                "1 month",
                "-1 month 40 days",
                "1 year 1 second",
                "100000 years",
                "178000000 years",
                "2147483647 days",
            ],
        )),
        "timestamp with time zone" => quoted(one_of(
            random,
            &[
                "now",
                "infinity",
                "-infinity",
                "4713-01-01 00:00:00+00 BC",
                "294276-12-31 23:59:59.999999+00",
                "1970-01-01 00:00:00+00",
                "2100-02-28 23:59:59.9999+00",
                "2024-02-29 00:00:00+00",
            ],
        )),
        "inet" => quoted(one_of(
            random,
            &["192.0.2.7", "192.0.2.0/24", "::ffff:192.0.2.7", "2001:db8::1", "::/0", "fe80::1/10"],
        )),
        "record" => match random.u8(..4) {
            0 => "rl_check('a')".into(),
            1 => "rl_take('a')".into(),
            2 => "(SELECT r FROM (SELECT true AS ok, 1 AS remaining) r)".into(),
            _ => {
                let mut column = |r#type| argument(random, r#type);
                let (number, time) = ("double precision", "timestamp with time zone");
                let columns = [
                    ("ok", "boolean"),
                    ("retry_after", number),
                    ("retry_at", time),
                    ("remaining", number),
                    ("capacity", number),
                    ("reset_at", time),
                    ("limited_by", "text"),
                ];
                let columns = columns.map(|(name, of)| format!("({})::{of} AS {name}", column(of)));
                format!("(SELECT r FROM (SELECT {}) r)", columns.join(", "))
            }
        },
        "regclass" => ["'rateLimits'::regclass", "'pg_class'::regclass", "0::regclass"]
            [random.usize(..3)]
        .into(),
        "text[]" => one_of(
            random,
            &[
                "VARIADIC '{}'::text[]",
                "VARIADIC '{a,b}'::text[]",
                "VARIADIC '{a,NULL}'::text[]",
                "VARIADIC '{{a},{b}}'::text[]",
                "VARIADIC NULL::text[]",
                "'a', 'é'",
            ],
        )
        .into(),
        other => panic!("an argument of type {other}"),
    }
}

/// Fails at an error that must never occur: internal ones, corruption, a lost connection.
fn refused(outcome: Result<(), postgres::Error>, sql: &str, seen: &mut BTreeMap<String, usize>) {
    let code = match &outcome {
        Ok(()) => "00000".to_owned(),
        Err(error) => match error.as_db_error() {
            Some(error) => error.code().code().to_owned(),
            None => panic!("{sql}: {error:?}"),
        },
    };
    let expected = ["00", "22", "23", "42", "PT", "0A", "55", "54", "39"];
    assert!(expected.iter().any(|class| code.starts_with(class)), "{sql}: {outcome:?}");
    *seen.entry(code).or_default() += 1;
}

#[test]
#[ignore = "needs a server: make test"]
fn whatever_is_passed_there_is_an_answer_or_an_error_that_says_why() {
    let database = Database::new("fuzz");
    let mut client = database.connect();
    let mut random = Rng::with_seed(seed(1));
    let functions: Vec<Function> = client
        .query(
            "SELECT proname, ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes) t), prokind = 'w' FROM pg_proc
             WHERE proname LIKE 'rl\\_%' AND prorettype <> 'trigger'::regtype ORDER BY proname",
            &[],
        )
        .unwrap()
        .iter()
        .map(|row| Function { name: row.get(0), arguments: row.get(1), is_window: row.get(2) })
        .collect();
    assert!(functions.len() > 15);
    client
        .batch_execute(
            "SELECT rl_define(name, rl_token_bucket(100, '1 second', max_reserved => 50)) FROM unnest(ARRAY['a', 'b', 'c']) name;
             SELECT rl_define('b', rl_sliding_log(5, '1 second'), 'k');
             SELECT rl_define('c', rl_token_bucket(5, '1 second', store => 'memory'));
             SELECT rl_define('d', rl_concurrency(5, '1 second'));
             SELECT rl_define('ab', rl_token_bucket(5, '1 second', store => 'memory', save => '100 ms'));
             SELECT rl_define('é', rl_concurrency(5, '1 second', store => 'memory', save => '100 ms'));
             CREATE TABLE written (author text, number int, amount float8, at timestamptz);
             SET client_min_messages = error; SET statement_timeout = '20s'",
        )
        .unwrap();
    let (mut seen, mut calls) = (BTreeMap::new(), 0);
    let started = Instant::now();
    while started.elapsed() < duration() {
        calls += 1;
        let sql = match random.u8(..20) {
            // A row that no call writes.
            0 => {
                let letters = ["kind", "'t'", "'s'", "'l'", "'c'", "'-'", "'#'", "'b'"];
                let kind = one_of(&mut random, &letters);
                let mut column = |r#type| argument(&mut random, r#type);
                let (number, time) = ("double precision", "timestamp with time zone");
                format!(
                    "UPDATE rateLimits SET kind = {kind}, value = {}, ts = {}, prior = {}, log = ARRAY[{}, {}]::timestamptz[]
                     WHERE name = {} AND hashtext(key) % 3 = 0",
                    column(number), column(time), column(number), column(time), column(time), column("text"),
                )
            }
            1 if calls % 50 == 0 => "TRUNCATE rateLimits".into(),
            2 => {
                let options = [
                    "key=author",
                    "key=number",
                    "key=at",
                    "count=amount",
                    "count=number",
                    "key=nothing",
                    "key",
                    "key=",
                    "=",
                    "",
                    "count=1",
                    "KEY=author",
                    "key=author ",
                    "key=author,number",
                    "key=author,",
                    "name=author",
                    "message=slow down",
                ];
                let arguments: Vec<String> = (0..random.usize(..4))
                    .map(|n| match (n, random.u8(..4)) {
                        (0, 0..3) => argument(&mut random, "text"),
                        _ => format!("'{}'", one_of(&mut random, &options)),
                    })
                    .filter(|argument| argument.starts_with('\''))
                    .collect();
                let when = one_of(
                    &mut random,
                    &[
                        "BEFORE INSERT ON written FOR EACH ROW",
                        "BEFORE UPDATE OR DELETE ON written FOR EACH ROW",
                        "AFTER INSERT ON written FOR EACH ROW",
                        "BEFORE INSERT ON written FOR EACH STATEMENT",
                        "AFTER INSERT ON written REFERENCING NEW TABLE AS n FOR EACH STATEMENT",
                        "AFTER DELETE ON written REFERENCING OLD TABLE AS o FOR EACH STATEMENT",
                        "AFTER UPDATE ON written REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT",
                        "BEFORE TRUNCATE ON written FOR EACH STATEMENT",
                    ],
                );
                format!(
                    "CREATE OR REPLACE TRIGGER t {when} EXECUTE FUNCTION rl_trigger({})",
                    arguments.join(", ")
                )
            }
            3 => {
                let mut column = |r#type| argument(&mut random, r#type);
                let row = [
                    column("text"),
                    column("integer"),
                    column("double precision"),
                    column("timestamp with time zone"),
                ];
                let insert = format!("INSERT INTO written VALUES ({})", row.join(", "));
                let others = [
                    "UPDATE written SET number = number",
                    "DELETE FROM written",
                    "TRUNCATE written",
                ];
                if random.bool() { insert } else { one_of(&mut random, &others).into() }
            }
            _ => {
                let function = random.choice(&functions).unwrap();
                // Batches that last, on a table of some rows, are no news.
                let arguments: Vec<_> =
                    function.arguments.iter().map(|r#type| argument(&mut random, r#type)).collect();
                let call = format!("{}({})", function.name, arguments.join(", "));
                match function.is_window {
                    true => format!("SELECT {call} OVER () FROM generate_series(1, 3)"),
                    false => format!("SELECT * FROM {call}"),
                }
            }
        };
        refused(client.batch_execute(&sql), &sql, &mut seen);
    }
    println!("{calls} statements: {seen:?}");
    assert!(seen["00000"] > calls / 10 && seen["22023"] > calls / 50);
}

/// Returns the memory of a backend, in bytes: that of PostgreSQL's contexts, and all.
fn memory(client: &mut Client) -> (i64, i64) {
    let contexts =
        "SELECT sum(total_bytes)::bigint, pg_backend_pid() FROM pg_backend_memory_contexts";
    let row = client.query_one(contexts, &[]).unwrap();
    let status = format!("/proc/{}/status", row.get::<_, i32>(1));
    let status = std::fs::read_to_string(status).unwrap_or_default();
    // Without the shared buffers that it has touched.
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap_or("RssAnon: 0");
    let kilobytes: i64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (row.get(0), kilobytes * 1024)
}

#[test]
#[ignore = "needs a server: make test"]
fn calls_leave_no_memory_behind() {
    let database = Database::new("fuzz_memory");
    let mut client = database.connect();
    let calls = (20_000.0 * times()) as i32;
    client
        .batch_execute(
            "SELECT rl_define('a', rl_token_bucket(1000, '1 second')), rl_define('full', rl_sliding_log(10, '1 day')),
                    rl_define('shards', rl_token_bucket(1000000, '1 second', shards => 8)),
                    rl_define('memory', rl_token_bucket(10, '1 second', store => 'memory'));
             SET jit = off",
        )
        .unwrap();
    let works = [
        (
            "allowed",
            "SELECT count((rl_limit('a', (n % 100)::text, 0.001)).ok) FROM generate_series(1, $1) n",
        ),
        ("denied", "SELECT count((rl_limit('full', 'k', 5)).ok) FROM generate_series(1, $1) n"),
        (
            "in a config",
            "SELECT count((rl_limit('inline', 'k', config => rl_sliding_window(5, '1 second'))).ok) FROM generate_series(1, $1) n",
        ),
        (
            "shards",
            "SELECT count((rl_limit('shards', (n % 10)::text)).ok) FROM generate_series(1, $1) n",
        ),
        (
            "in memory",
            "SELECT count((rl_limit('memory', (n % 1000)::text)).ok) FROM generate_series(1, $1) n",
        ),
        (
            "held and settled",
            "SELECT count((rl_settle((rl_hold('a', (n % 100)::text, 0.001)).hold, 0)).ok) FROM generate_series(1, $1) n",
        ),
        (
            "held together",
            r#"SELECT count(s.key) FROM generate_series(1, $1) n,
               LATERAL rl_hold_all('[{"name": "a", "count": 0.001}, {"name": "a", "key": "k", "count": 0.001}]') h, rl_settle_all(h.hold, '0') s WHERE h.n = 1"#,
        ),
        (
            "checked, status",
            "SELECT count((rl_check('a', n::text)).ok), (SELECT count(*) FROM rl_status()) FROM generate_series(1, $1) n",
        ),
    ];
    for (what, sql) in works {
        let statement = client.prepare(sql).unwrap();
        // The first round fills caches.
        for round in ["warm-up", "measured"] {
            let before = memory(&mut client);
            for _ in 0..10 {
                client.query_one(&statement, &[&(calls / 10)]).unwrap();
            }
            let after = memory(&mut client);
            let (contexts, all) = (after.0 - before.0, after.1 - before.1);
            println!("{what}, {round}: {calls} calls, contexts {contexts:+}, all {all:+} bytes");
            // Some 50 bytes a call would be a megabyte.
            assert!(round == "warm-up" || (contexts < 100_000 && all < 1_000_000), "{what}");
        }
    }
    // Calls that fail, each in a statement of its own.
    let failing = "DO $$ BEGIN FOR n IN 1..2000 LOOP BEGIN PERFORM rl_limit('a', 'k', 'NaN'); EXCEPTION WHEN OTHERS THEN NULL; END;
                   BEGIN PERFORM rl_limit('full', 'k', 5, throws => true); EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$";
    for round in ["warm-up", "measured"] {
        let before = memory(&mut client);
        for _ in 0..5 {
            client.batch_execute(failing).unwrap();
        }
        let after = memory(&mut client);
        println!(
            "errors, {round}: contexts {:+}, all {:+} bytes",
            after.0 - before.0,
            after.1 - before.1
        );
        assert!(
            round == "warm-up" || (after.0 - before.0 < 100_000 && after.1 - before.1 < 1_000_000)
        );
    }
}

/// Compares the pure algorithm with the server, with the same limits and calls.
#[test]
#[ignore = "needs a server: make test"]
fn every_answer_is_that_of_the_algorithm() {
    let database = Database::new("fuzz_oracle");
    let mut client = database.connect();
    let mut random = Rng::with_seed(seed(1));
    // With a start: without one the windows depend on the key.
    let configs = [
        r#"{"kind": "token bucket", "rate": 7, "period": 1000}"#,
        r#"{"kind": "token bucket", "rate": 3, "period": 7000, "capacity": 20, "maxReserved": 10}"#,
        r#"{"kind": "fixed window", "rate": 5, "period": 1000, "start": 0}"#,
        r#"{"kind": "fixed window", "rate": 5, "period": 3000, "start": 500, "capacity": 12, "maxReserved": 8}"#,
        r#"{"kind": "fixed window", "rate": 4, "period": 1500, "start": "first request", "capacity": 9}"#,
        r#"{"kind": "fixed window", "rate": 20, "period": "1 day", "timezone": "Europe/Berlin"}"#,
        r#"{"kind": "sliding window", "rate": 6, "period": 2000}"#,
        r#"{"kind": "sliding log", "rate": 6, "period": 2000}"#,
    ];
    let limits = configs.map(|text| config::parse(text).unwrap());
    for (n, text) in configs.iter().enumerate() {
        client
            .execute("SELECT rl_define($1, $2::text::jsonb)", &[&format!("limit {n}"), text])
            .unwrap();
    }
    let functions = ["rl_limit", "rl_check"].map(|function| {
        let sql = format!(
            "SELECT ok, remaining, retry_after, extract(epoch FROM retry_at)::float8, \
                extract(epoch FROM reset_at)::float8, capacity FROM {function}($1, $2, $3, $4)"
        );
        client.prepare(&sql).unwrap()
    });
    let mut states: BTreeMap<(usize, u32), State> = BTreeMap::new();
    let mut now = 1_800_000_000_000_000;
    let (mut calls, mut passed) = (0, 0);
    let started = Instant::now();
    while started.elapsed() < duration() || calls < 2_000 {
        calls += 1;
        now += match random.u8(..6) {
            0 => random.i64(-50_000..2_000_000),
            1 => random.i64(0..60_000_000),
            _ => random.i64(0..100_000),
        };
        // In whole milliseconds, the precision of the setting.
        now -= now.rem_euclid(1000);
        client.batch_execute(&format!("SET ratelimit.clock = '{}'", now / 1000)).unwrap();
        let (n, key) = (random.usize(..limits.len()), random.u32(..3));
        let count = *random.choice(&[0.0, 1.0, 1.0, 1.0, 2.0, 3.0, 9.0, 30.0]).unwrap();
        let reserve = random.u8(..4) == 0;
        let take = random.u8(..4) > 0;
        let (limit, at) = (&limits[n], Micros(now));
        let state =
            states.get(&(n, key)).cloned().unwrap_or_else(|| limit.initial_state(at, Micros(0)));
        let decision = decide(limit, &state, at, count, reserve);
        let row = client
            .query_one(
                &functions[usize::from(!take)],
                &[&format!("limit {n}"), &key.to_string(), &count, &reserve],
            )
            .unwrap();
        let (ok, remaining): (bool, f64) = (row.get(0), row.get(1));
        // A check shows the level before a take.
        let level = if take { decision.level } else { limit.level(&state, at) };
        let call = format!("call {calls} of {}, {count}, reserve {reserve}, {state:?}", configs[n]);
        assert_eq!(ok, decision.ok, "{call}");
        assert_eq!(row.get::<_, f64>(5), limit.capacity(), "{call}");
        assert!(
            (remaining - level.remaining).abs() < 2e-6,
            "{call}: {remaining} {}",
            level.remaining
        );
        let retry_at = decision.retry_after.map(|wait| at.plus(wait));
        for (column, time) in [(2, decision.retry_after), (3, retry_at), (4, level.reset_at)] {
            let (shown, time) = (row.get::<_, Option<f64>>(column), time.map(Micros::as_millis));
            match (shown, time) {
                // Rounded up to a millisecond.
                (Some(seconds), Some(time)) => {
                    let late = seconds * 1e3 - time;
                    assert!((-1e-3..1.0 + 1e-3).contains(&late), "{call}: {seconds} s, {time} ms");
                }
                _ => assert_eq!(shown.is_some(), time.is_some(), "{call}: column {column}"),
            }
        }
        passed += usize::from(ok);
        if let (true, Some(after)) = (take, decision.state) {
            states.insert((n, key), after);
        }
    }
    println!("{calls} calls, {passed} of them passed");
    assert!(passed > calls / 4 && passed < calls);
}

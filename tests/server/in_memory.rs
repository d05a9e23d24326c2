//! Limits in memory: the answers of the same limit in the table, no token twice among 16 sessions, and
//! whose state is whose.

use std::sync::Barrier;
use std::thread;

use fastrand::Rng;
use postgres::error::SqlState;
use postgres::{Client, Row};
use ratelimit_judge::{Asked, Recorder, Reply, Storage};
use ratelimit_tests::seed;
use serde_json::{Value, json};

use crate::database::{Database, connect};
use crate::load::FOLDER;

const SESSIONS: usize = 16;

/// A limit in the table and one in memory, of the same name and key, and so with the same windows.
struct Twins<'a> {
    client: &'a mut Client,
    configs: [String; 2],
    name: String,
}

impl Twins<'_> {
    fn new<'a>(client: &'a mut Client, name: &str, config: &Value) -> Twins<'a> {
        let kept = |store: &str| {
            let mut config = config.clone();
            config["store"] = store.into();
            config.to_string()
        };
        Twins { client, configs: ["table", "memory"].map(kept), name: name.into() }
    }

    fn at(&mut self, millis: f64) {
        self.client.batch_execute(&format!("SET ratelimit.clock = '{millis}'")).unwrap();
    }

    /// Makes a call on both, which must answer alike; whether it is allowed. `CONFIG` in it becomes the
    /// config, `NAME` the name.
    fn call(&mut self, call: &str) -> bool {
        let answers = self.configs.clone().map(|config| {
            let call = call.replace("CONFIG", &format!("'{config}'")).replace("NAME", &self.name);
            let sql = format!("SELECT string_agg(r::text, '; '), bool_and(ok) FROM {call} r");
            match self.client.query_one(&sql, &[]) {
                Ok(row) => (row.get::<_, Option<String>>(0).unwrap(), row.get::<_, bool>(1)),
                Err(error) => (error.as_db_error().expect("an answer").to_string(), false),
            }
        });
        assert_eq!(answers[0], answers[1], "{call} with {}", self.configs[1]);
        answers[0].1
    }

    /// Makes a query on each, and returns its columns.
    fn each(&mut self, query: &str) -> [[Option<String>; 2]; 2] {
        self.configs.clone().map(|config| {
            let sql = query.replace("CONFIG", &format!("'{config}'")).replace("NAME", &self.name);
            let row = self.client.query_one(&sql, &[]).unwrap();
            [row.get(0), row.get(1)]
        })
    }

    fn forget(&mut self) {
        // Undefined: what is in the table and what is in memory.
        self.client.batch_execute(&format!("SELECT rl_reset_keys('{}')", self.name)).unwrap();
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn the_golden_vectors_have_the_same_answers_in_memory() {
    let database = Database::new("memory_vectors");
    let mut client = database.connect();
    let vectors = include_str!("../../crates/core/tests/vectors/vectors.jsonl");
    let (mut steps, mut allowed) = (0, 0);
    for (n, vector) in vectors.lines().enumerate() {
        let vector: Value = serde_json::from_str(vector).unwrap();
        let config = &vector["config"];
        if config["kind"] == "sliding log" || config["shards"].as_f64().unwrap_or(1.0) > 1.0 {
            continue;
        }
        let mut twins = Twins::new(&mut client, &format!("vector {n}"), config);
        for step in vector["steps"].as_array().unwrap() {
            twins.at(step["now"].as_f64().unwrap());
            let count = step["count"].as_f64().unwrap_or(1.0);
            let reserve = step["reserve"].as_bool().unwrap_or(false);
            let function = if step["op"] == "check" { "rl_check" } else { "rl_limit" };
            let call =
                format!("{function}('NAME', 'k', {count:e}::float8, {reserve}, config => CONFIG)");
            steps += 1;
            allowed += usize::from(twins.call(&call));
        }
        twins.forget();
    }
    println!("{steps} steps, {allowed} allowed");
    assert!(steps > 4_000 && allowed > 1_000 && allowed < steps - 500);
}

#[test]
#[ignore = "needs a server: make test"]
fn a_limit_in_memory_answers_as_its_twin_in_the_table() {
    let database = Database::new("memory_twins");
    let mut client = database.connect();
    let mut random = Rng::with_seed(seed(1));
    let (mut calls, mut allowed) = (0, 0);
    for n in 0..60 {
        let rate = random.choice([1.0, 3.0, 0.5, 100.0, 1e12]).unwrap();
        let period = random.choice([1.0, 1000.0, 86_400_000.0]).unwrap();
        let mut config = match random.u8(..4) {
            0 => json!({"kind": "token bucket", "rate": rate, "period": period}),
            1 => json!({"kind": "fixed window", "rate": rate, "period": period}),
            2 => json!({"kind": "sliding window", "rate": rate, "period": period}),
            _ => {
                json!({"kind": "fixed window", "rate": rate, "period": "1 day", "timezone": "Europe/Berlin"})
            }
        };
        if config["kind"] != "sliding window" && random.bool() {
            config["capacity"] = random.choice([0.0, 2.0, 50.0]).unwrap().into();
            config["maxReserved"] = random.choice([0.0, 10.0]).unwrap().into();
        }
        if config["kind"] == "fixed window" && config["timezone"].is_null() && random.bool() {
            config["start"] =
                random.choice([json!("first request"), json!(12_345)]).unwrap().clone();
        }
        let mut now = 1_800_000_000_000.0 + random.f64() * 1e9;
        let mut twins = Twins::new(&mut client, &format!("twin {n}"), &config);
        for _ in 0..40 {
            // Time passes, stands still, leaps, and once in a while goes back.
            now += match random.u8(..8) {
                0 => 0.0,
                1 => period * random.f64() * 20.0,
                2 => -period * random.f64(),
                _ => (period * random.f64() * 1e3).round() / 1e3,
            };
            twins.at(now);
            let key = random.choice(["", "k", "é"]).unwrap();
            let count = random.choice(["0", "1", "0.1", "2.5", "60", "1e15", "-1", "NaN"]).unwrap();
            let reserve = random.bool();
            let call = match random.u8(..8) {
                0 => format!("rl_check('NAME', '{key}', '{count}', {reserve}, config => CONFIG)"),
                1 => format!("rl_credit('NAME', '{key}', '{count}', config => CONFIG)"),
                2 => format!(
                    "rl_credit('NAME', '{key}', '{count}', taken_at => 'epoch'::timestamptz + interval '1 ms' * {}, config => CONFIG)",
                    now - period
                ),
                3 => {
                    let request = |key: &str| {
                        format!(
                            "jsonb_build_object('name', 'NAME', 'key', '{key}', 'count', '{count}'::numeric, 'config', CONFIG::jsonb)"
                        )
                    };
                    let function = random.choice(["rl_limit_all", "rl_check_all"]).unwrap();
                    format!("{function}(jsonb_build_array({}, {}))", request(key), request("k"))
                }
                _ => format!("rl_limit('NAME', '{key}', '{count}', {reserve}, config => CONFIG)"),
            };
            calls += 1;
            allowed += usize::from(twins.call(&call));
        }
        twins.forget();
    }
    println!("{calls} calls, {allowed} allowed");
    assert!(allowed > calls / 5 && allowed < calls * 4 / 5);
}

/// Leases that are taken, extended and released while the definition changes and the clock trembles, and that are
/// forgotten: what one store answers the other does, and what was given before frees nothing.
#[test]
#[ignore = "needs a server: make test"]
fn a_lease_in_memory_is_as_its_twin_in_the_table() {
    let database = Database::new("memory_leases");
    let mut client = database.connect();
    let mut random = Rng::with_seed(seed(1));
    let (mut given, mut settled) = (0, 0);
    for n in 0..25 {
        let mut now: f64 = 1_800_000_000_000.0;
        let mut leases: Vec<[String; 2]> = Vec::new();
        let name = format!("lease twin {n}");
        for _ in 0..120 {
            let (slots, ttl) =
                (random.choice([1, 2, 3, 5, 100]).unwrap(), random.choice([1, 5, 20]).unwrap());
            let config = json!({"kind": "concurrency", "slots": slots, "ttl": ttl});
            let mut twins = Twins::new(&mut client, &name, &config);
            now += f64::from(random.choice([0, 0, 0, 1, 3, 7, -1, -2, -6]).unwrap());
            twins.at(now);
            let count = random.choice([0, 1, 1, 2, 5, 60]).unwrap();
            match random.u8(..12) {
                0..5 => {
                    let [table, memory] = twins.each(&format!(
                        "SELECT lease, concat_ws(' ', ok, expires_at, retry_after, retry_at, remaining, lease IS NULL) FROM rl_acquire('NAME', 'k', {count}, config => CONFIG)"
                    ));
                    assert_eq!(table[1], memory[1], "{count} of {config}");
                    if let [Some(table), Some(memory)] = [&table[0], &memory[0]] {
                        assert!(
                            !leases.iter().flatten().any(|known| known == table || known == memory)
                        );
                        leases.push([table.clone(), memory.clone()]);
                        given += 1;
                    }
                }
                what @ 5..10 if !leases.is_empty() => {
                    // Of any age: most have expired, or were released.
                    let recent = random.usize(..leases.len().min(4));
                    let mine = leases[if what == 5 {
                        random.usize(..leases.len())
                    } else {
                        leases.len() - 1 - recent
                    }]
                    .clone();
                    let call = if random.bool() { "rl_extend" } else { "rl_release" };
                    let answers = [0, 1].map(|store| {
                        let sql = format!(
                            "SELECT {call}('{}', '{}')::text",
                            mine[store], twins.configs[store]
                        );
                        twins.client.query_one(&sql, &[]).unwrap().get::<_, Option<String>>(0)
                    });
                    assert_eq!(answers[0], answers[1], "{call} {mine:?} with {config}");
                    settled +=
                        usize::from(answers[0].as_deref().is_some_and(|answer| answer != "false"));
                }
                10 if random.u8(..4) == 0 => {
                    let forget = random
                        .choice(["rl_reset('NAME', 'k')", "rl_reset_keys('NAME')", "rl_prune()"])
                        .unwrap();
                    twins
                        .client
                        .batch_execute(&format!("SELECT {}", forget.replace("NAME", &name)))
                        .unwrap();
                }
                _ => {}
            }
            let count = random.choice([1, 3, 100]).unwrap();
            twins.call(&format!("rl_check('NAME', 'k', {count}, config => CONFIG)"));
        }
    }
    println!("{given} leases given, {settled} extended or released");
    assert!(given > 400 && settled > 200);
}

/// Runs `work` in as many sessions at once, and adds up what they return.
fn at_once(
    database: &Database,
    setup: &str,
    work: impl Fn(&mut Client, usize) -> i64 + Sync,
) -> i64 {
    let start = Barrier::new(SESSIONS);
    thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|n| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    let mut client = database.connect();
                    client.batch_execute(setup).unwrap();
                    start.wait();
                    work(&mut client, n)
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).sum()
    })
}

#[test]
#[ignore = "needs a server: make test"]
fn sixteen_sessions_take_what_there_is_and_no_more() {
    let database = Database::new("memory_exact");
    let mut client = database.connect();
    client
        .batch_execute(
            "CREATE FUNCTION define(name text, config jsonb) RETURNS boolean LANGUAGE sql RETURN rl_define(name, config || '{\"store\": \"memory\"}');
             SELECT define('bucket', rl_token_bucket(1e-300, '1 day', capacity => 5000)),
                    define('window', rl_fixed_window(5000, '100000 days')),
                    define('sliding', rl_sliding_window(5000, '100000 days')),
                    define('first', rl_fixed_window(5000, '100000 days', first_request => true))",
        )
        .unwrap();
    for name in ["bucket", "window", "sliding", "first"] {
        let passed = at_once(&database, "", |client, n| {
            // Read-only, rolled back, and as calls of a statement of many.
            let (begin, end) = [
                ("BEGIN READ ONLY", "COMMIT"),
                ("BEGIN", "ROLLBACK"),
                ("BEGIN ISOLATION LEVEL SERIALIZABLE", "COMMIT"),
            ][n % 3];
            let call = client
                .prepare("SELECT count(*) FROM generate_series(1, 25) n, rl_limit($1, substr('key', 1, n + 2)) WHERE ok")
                .unwrap();
            let mut passed = 0;
            for _ in 0..40 {
                client.batch_execute(begin).unwrap();
                passed += client.query_one(&call, &[&name]).unwrap().get::<_, i64>(0);
                client.batch_execute(end).unwrap();
            }
            passed
        });
        assert_eq!(passed, 5000, "{name}");
    }
    let row = client
        .query_one("SELECT allowed, denied, tokens FROM rl_stats() WHERE name = 'bucket'", &[])
        .unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), (5000i64, 11_000i64, 5000.0), "of 16,000");
    let row = client
        .query_one("SELECT denied - overcount, denied, key FROM rl_top_denied('bucket')", &[])
        .unwrap();
    assert!(row.get::<_, i64>(0) <= 11_000 && row.get::<_, i64>(1) >= 11_000, "{row:?}");
    assert_eq!(row.get::<_, &str>(2), "key");
}

/// Takes, checks and resets by the real clock, of every kind, also rolled back: some order explains every answer.
#[test]
#[ignore = "needs a server: make test"]
fn an_order_explains_every_answer_in_memory() {
    let database = Database::new("memory_judged");
    let configs = [
        json!({"kind": "token bucket", "rate": 2000, "period": 1000, "capacity": 20, "store": "memory"}),
        json!({"kind": "fixed window", "rate": 20, "period": 20, "capacity": 30, "store": "memory"}),
        json!({"kind": "sliding window", "rate": 20, "period": 20, "store": "memory"}),
    ]
    .map(|config| config.to_string());
    let recorder = Recorder::new();
    for (n, config) in configs.iter().enumerate() {
        recorder.key(&n.to_string(), "k", config, Storage::Memory);
        let define = format!("SELECT rl_define('{n}', '{config}')");
        database.connect().batch_execute(&define).unwrap();
    }
    at_once(&database, "", |client, session| {
        let mut random = Rng::with_seed(session as u64);
        let mut recording = recorder.session();
        let call = |function: &str| {
            format!(
                "SELECT ok, remaining, (extract(epoch FROM retry_at) * 1000000)::bigint
                 FROM {function}($1, 'k', $2)"
            )
        };
        let limit = client.prepare(&call("rl_limit")).unwrap();
        let check = client.prepare(&call("rl_check")).unwrap();
        let reset = "SELECT rl_reset($1, 'k'), NULL::float8, NULL::bigint";
        for _ in 0..150 {
            let (n, count) = (random.u32(..3), f64::from(random.u8(1..4)));
            let name = n.to_string();
            let in_transaction = random.bool();
            if in_transaction {
                client.batch_execute("BEGIN").unwrap();
                recording.begin();
            }
            let asked = match random.u8(..20) {
                0 => Asked::Reset,
                1..4 => Asked::Check { count, reserve: false },
                _ => Asked::Limit { count, reserve: false },
            };
            let ask = || match asked {
                Asked::Reset => client.query_one(reset, &[&name]),
                Asked::Check { .. } => client.query_one(&check, &[&name, &count]),
                _ => client.query_one(&limit, &[&name, &count]),
            };
            let answer = |row: &Row| {
                let (ok, remaining, retry_at): (bool, _, _) = (row.get(0), row.get(1), row.get(2));
                let retry_at = (!ok && asked != Asked::Reset).then_some(retry_at);
                vec![(n, asked, None, Reply { ok, remaining, retry_at })]
            };
            recording.call(ask, answer).unwrap();
            if in_transaction {
                recording.roll_back(|| client.batch_execute("ROLLBACK")).unwrap();
            }
        }
        0
    });
    println!("{}", recorder.judge(FOLDER.as_ref(), "refused-memory").unwrap());
}

#[test]
#[ignore = "needs a server: make test"]
fn several_limits_are_taken_together_or_not_at_all() {
    let database = Database::new("memory_several");
    let mut client = database.connect();
    client
        .batch_execute(
            "SELECT rl_define('m', rl_token_bucket(1e-300, '1 day', capacity => 2000, store => 'memory')),
                    rl_define('t', rl_token_bucket(1e-300, '1 day', capacity => 2000))",
        )
        .unwrap();
    // A ring of keys: each call takes from two neighbours, in either order, a third of them also a row.
    let passed = at_once(&database, "", |client, session| {
        let mut random = Rng::with_seed(session as u64);
        let mut passed = 0;
        for _ in 0..600 {
            let key = random.usize(..8);
            let (a, b) = if random.bool() { (key, (key + 1) % 8) } else { ((key + 1) % 8, key) };
            let row = if random.u8(..3) == 0 { r#", {"name": "t"}"# } else { "" };
            let list = format!(
                r#"[{{"name": "m", "key": "{a}", "count": 3}}, {{"name": "m", "key": "{b}", "count": 2}}{row}]"#
            );
            let sql = format!("SELECT bool_and(ok), bool_or(ok) FROM rl_limit_all('{list}')");
            let row = client.query_one(&sql, &[]).unwrap();
            let (all, any): (bool, bool) = (row.get(0), row.get(1));
            assert_eq!(all, any);
            passed += i64::from(all);
        }
        passed
    });
    let left = "SELECT sum(2000 - remaining), min(remaining) FROM generate_series(0, 7) n, rl_check('m', n::text)";
    let row = client.query_one(left, &[]).unwrap();
    assert_eq!((row.get::<_, f64>(0), row.get::<_, f64>(1) >= 0.0), (5.0 * passed as f64, true));
    println!("{passed} of {} calls passed", 600 * SESSIONS);
    assert!((2_000..3_300).contains(&passed));
}

/// Lists so long that of what was decided without locks much has changed when it is written: a few keys, and many.
#[test]
#[ignore = "needs a server: make test"]
fn long_lists_take_from_every_limit_or_from_none() {
    const KEYS: usize = 300;
    let database = Database::new("memory_long");
    let mut client = database.connect();
    client
        .batch_execute(
            "SELECT rl_define('m', rl_token_bucket(1e-300, '1 day', capacity => 1000, store => 'memory')),
                    rl_define('d', rl_fixed_window(1000, '10 years', timezone => 'Europe/Berlin', store => 'memory'))",
        )
        .unwrap();
    for (name, length, calls) in [("m", 10, 300), ("d", 100, 60), ("m", KEYS, 20)] {
        client.batch_execute("SELECT rl_reset_keys('m'), rl_reset_keys('d')").unwrap();
        // Uncounted: its denials would crowd out those that the documents' examples show.
        let taken = at_once(&database, "SET ratelimit.track = off", |client, session| {
            let mut random = Rng::with_seed(session as u64);
            let mut taken = 0;
            for _ in 0..calls {
                let first = random.usize(..KEYS);
                let list: Vec<_> = (first..first + length)
                    .map(|key| json!({"name": name, "key": (key % KEYS).to_string(), "count": 7}))
                    .collect();
                let sql = "SELECT bool_and(ok), bool_or(ok), bool_and(limited_by IS NULL), min(remaining) FROM rl_limit_all($1::text::jsonb)";
                let row = client.query_one(sql, &[&json!(list).to_string()]).unwrap();
                let (all, any): (bool, bool) = (row.get(0), row.get(1));
                assert_eq!(all, any);
                // Denied, one of them refuses at least.
                assert_eq!(all, row.get::<_, bool>(2));
                assert!(row.get::<_, f64>(3) >= 0.0);
                taken += if all { 7 * length as i64 } else { 0 };
            }
            taken
        });
        let left = format!(
            "SELECT sum(1000 - remaining) FROM generate_series(0, {KEYS} - 1) n, rl_check('{name}', n::text)"
        );
        let gone: f64 = client.query_one(&left, &[]).unwrap().get(0);
        println!("{taken} taken by lists of {length}");
        assert_eq!(gone, taken as f64, "by lists of {length}");
        assert!(taken > 100_000);
    }
}

#[test]
#[ignore = "needs a server: make test"]
fn a_database_and_an_extension_have_states_of_their_own() {
    let database = Database::new("memory_one");
    let take = |client: &mut Client| {
        let row = client.query_one("SELECT ok, remaining FROM rl_limit('m', 'k')", &[]).unwrap();
        (row.get::<_, bool>(0), row.get::<_, f64>(1))
    };
    let define =
        "SELECT rl_define('m', rl_token_bucket(1e-300, '1 day', capacity => 3, store => 'memory'))";
    let stats = |client: &mut Client| -> Vec<i64> {
        let rows = client.query("SELECT allowed FROM rl_stats()", &[]).unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let mut one = database.connect();
    one.batch_execute(define).unwrap();
    assert_eq!([take(&mut one), take(&mut one)], [(true, 2.0), (true, 1.0)]);
    // A copy of the database has the definition, and none of the states.
    drop(one);
    let mut postgres = connect("postgres");
    postgres
        .batch_execute("DROP DATABASE IF EXISTS memory_copy (FORCE)")
        .and_then(|()| postgres.batch_execute("CREATE DATABASE memory_copy TEMPLATE memory_one"))
        .unwrap();
    let mut copy = connect("memory_copy");
    assert!(stats(&mut copy).is_empty());
    assert_eq!(take(&mut copy), (true, 2.0));
    let mut one = database.connect();
    assert_eq!(take(&mut one), (true, 0.0));
    assert_eq!((stats(&mut one), stats(&mut copy)), (vec![3], vec![1]));
    // Nor has an extension those of one that was dropped; a rolled back DROP drops nothing.
    one.batch_execute("BEGIN; DROP EXTENSION ratelimit; ROLLBACK").unwrap();
    assert_eq!(take(&mut one), (false, 0.0));
    one.batch_execute("DROP EXTENSION ratelimit; CREATE EXTENSION ratelimit").unwrap();
    one.batch_execute(define).unwrap();
    assert_eq!((take(&mut one), stats(&mut one)), ((true, 2.0), vec![1]));
    drop(copy);
    postgres.batch_execute("DROP DATABASE memory_copy (FORCE)").unwrap();
}

/// Databases with one OID: the second has no states of the first, and the unsaved ones of the first are never saved.
/// Changes of a database leave its states.
#[test]
#[ignore = "needs a server: make test"]
fn a_database_has_no_states_of_another_that_had_its_number() {
    const NUMBER: u32 = 3_999_999_999;
    let database = Database::new("memory_template");
    let mut template = database.connect();
    template
        .batch_execute(
            "SELECT rl_define('m', rl_token_bucket(1e-300, '1 day', capacity => 10, store => 'memory')),
                    rl_define('s', rl_token_bucket(1e-300, '1 day', capacity => 10, store => 'memory', save => '3 seconds'));
             SELECT rl_limit('m', 'k', 9)",
        )
        .unwrap();
    drop(template);
    let mut postgres = connect("postgres");
    let drop_clone = |postgres: &mut Client| {
        for name in ["memory_clone", "memory_renamed"] {
            let drop = format!("DROP DATABASE IF EXISTS {name} (FORCE)");
            postgres.batch_execute(&drop).unwrap();
        }
    };
    let take = |clone: &mut Client| -> Vec<f64> {
        let sql = "SELECT remaining FROM unnest('{m,s}'::text[]) n, rl_limit(n, 'k')";
        clone.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    let counted = |clone: &mut Client| -> i64 {
        let sql =
            "SELECT coalesce(sum(allowed), 0)::bigint FROM rl_stats() WHERE name IN ('m', 's')";
        clone.query_one(sql, &[]).unwrap().get(0)
    };
    // The sessions end before the database is changed, but the server knows it a moment later.
    let change = |postgres: &mut Client, sql: &str| {
        let end = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE datname LIKE 'memory_%'";
        postgres.execute(end, &[]).unwrap();
        postgres.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    };
    drop_clone(&mut postgres);
    for sql in [
        "SET allow_in_place_tablespaces = on",
        "DROP TABLESPACE IF EXISTS memory_space",
        "CREATE TABLESPACE memory_space LOCATION ''",
    ] {
        postgres.batch_execute(sql).unwrap();
    }
    for strategy in ["wal_log", "file_copy"] {
        let create = format!(
            "CREATE DATABASE memory_clone TEMPLATE memory_template OID {NUMBER} STRATEGY {strategy}"
        );
        for round in 0..2 {
            postgres.batch_execute(&create).unwrap();
            let mut clone = connect("memory_clone");
            assert_eq!(counted(&mut clone), 0, "{strategy} {round}");
            assert_eq!(take(&mut clone), [9.0, 9.0], "{strategy} {round}");
            assert_eq!(take(&mut clone), [8.0, 8.0], "{strategy} {round}");
            assert_eq!(counted(&mut clone), 4, "{strategy} {round}");
            // Its unsaved states are left to the worker, which wakes when there is another database.
            drop(clone);
            drop_clone(&mut postgres);
        }
        postgres.batch_execute(&create).unwrap();
        let workers =
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'ratelimit writer'";
        while postgres.query_one(workers, &[]).unwrap().get::<_, i64>(0) > 0 {
            thread::sleep(std::time::Duration::from_millis(50));
        }
        let mut clone = connect("memory_clone");
        let rows = "SELECT count(*) FROM rateLimits WHERE name = 's'";
        assert_eq!(clone.query_one(rows, &[]).unwrap().get::<_, i64>(0), 0, "{strategy}");
        assert_eq!(take(&mut clone), [9.0, 9.0], "{strategy}");
        drop(clone);
        // The same database all along.
        for (n, (name, sql)) in (1u8..).zip([
            ("memory_clone", "ALTER DATABASE memory_clone CONNECTION LIMIT 50"),
            ("memory_renamed", "ALTER DATABASE memory_clone RENAME TO memory_renamed"),
            ("memory_clone", "ALTER DATABASE memory_renamed RENAME TO memory_clone"),
            ("memory_clone", "ALTER DATABASE memory_clone SET TABLESPACE memory_space"),
            ("memory_clone", "VACUUM FULL pg_database"),
            ("memory_clone", "ALTER DATABASE memory_clone SET TABLESPACE pg_default"),
        ]) {
            change(&mut postgres, sql);
            let left = 9.0 - f64::from(n);
            assert_eq!(take(&mut connect(name)), [left, left], "{sql}");
        }
        // Another one, in another tablespace.
        drop_clone(&mut postgres);
        postgres.batch_execute(&format!("{create} TABLESPACE memory_space")).unwrap();
        assert_eq!(take(&mut connect("memory_clone")), [9.0, 9.0], "{strategy}");
        drop_clone(&mut postgres);
    }
    postgres.batch_execute("DROP TABLESPACE memory_space").unwrap();
}

#[test]
#[ignore = "needs a server: make test"]
fn a_cancel_stops_the_statement_and_keeps_what_was_taken() {
    let database = Database::new("memory_cancel");
    let mut client = database.connect();
    client
        .batch_execute(
            "SELECT rl_define('m', rl_token_bucket(1e-300, '1 day', capacity => 1e12, store => 'memory'))",
        )
        .unwrap();
    let cancelled = at_once(&database, "SET statement_timeout = '40ms'", |client, _| {
        let mut cancelled = 0;
        for _ in 0..5 {
            let all = client.batch_execute(
                "DO $$ BEGIN LOOP PERFORM rl_limit('m', floor(random() * 10)::text); END LOOP; END $$",
            );
            assert_eq!(all.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
            cancelled += 1;
        }
        cancelled
    });
    assert_eq!(cancelled, 80);
    let sql = "SELECT sum(1e12 - remaining)::float8, (SELECT tokens FROM rl_stats() WHERE name = 'm') FROM generate_series(0, 9) n, rl_check('m', n::text)";
    let row = client.query_one(sql, &[]).unwrap();
    let (taken, counted): (f64, f64) = (row.get(0), row.get(1));
    assert!(taken > 1000.0);
    // A cancel may come between the take and its count.
    assert!((0.0..=80.0).contains(&(taken - counted)), "{taken} taken, {counted} counted");
}

#[test]
#[ignore = "needs a server: make test"]
fn a_dry_run_that_passes_after_a_wait_takes_its_row_with_the_others() {
    let database = Database::new("memory_dry");
    let mut holder = database.connect();
    holder
        .batch_execute(
            "SELECT rl_define('dry', rl_token_bucket(1, '50 ms', enforce => false)),
                    rl_define('held', rl_token_bucket(100, '1 day')),
                    rl_define('memory', rl_token_bucket(1e-300, '1 day', capacity => 100, store => 'memory'));
             SELECT rl_limit('held')",
        )
        .unwrap();
    let mut waiter = database.connect();
    for round in 0..5 {
        holder.batch_execute("BEGIN; SELECT rl_limit('held')").unwrap();
        let (name, count): (bool, i64) = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                // Empty when it is first looked at, and no longer when the wait ends.
                let sql = "SELECT bool_and(ok), count(*) FROM (SELECT rl_limit('dry')) AS drained,
                           rl_limit_all('[{\"name\": \"dry\"}, {\"name\": \"held\"}, {\"name\": \"memory\"}]')";
                let row = waiter.query_one(sql, &[]).unwrap();
                (row.get(0), row.get(1))
            });
            thread::sleep(std::time::Duration::from_millis(150));
            holder.batch_execute("COMMIT").unwrap();
            waiting.join().unwrap()
        });
        assert_eq!((name, count), (true, 3), "round {round}");
    }
    let left = holder.query_one("SELECT remaining FROM rl_check('memory')", &[]).unwrap();
    assert_eq!(left.get::<_, f64>(0), 95.0);
}

//! The stores side by side: the same random calls in three databases, through SQL, by direct access and
//! alternating, have the same answers, errors and rows. And direct access finds every row by the index,
//! in trees of several levels, and no other.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use postgres::{Client, SimpleQueryMessage};
use ratelimit_tests::seed;

use crate::database::Database;

/// Runs a statement, and returns its rows as text, or its error.
fn outcome(client: &mut Client, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
    let messages = client.simple_query(sql).map_err(|error| match error.as_db_error() {
        Some(error) => format!("{} {}", error.code().code(), error.message()),
        None => panic!("{sql}: {error:?}"),
    })?;
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect())
        }
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Texts that are hard to distinguish or to store: prefixes of each other, compressible and
/// incompressible ones, around the lengths at which PostgreSQL changes their storage.
fn text(random: &mut Rng, longest: usize) -> String {
    let length = match random.u8(..6) {
        0..=2 => random.usize(..4),
        3 => random.usize(120..130),
        4 => random.usize(500..520),
        _ => random.usize(..=1024),
    }
    .min(longest);
    let alphabet = match random.u8(..3) {
        0 => "a",
        1 => "ab\u{1}'é",
        _ => "0123456789abcdefghijklmnopqrstuvwxyzäöüß",
    };
    let letters: Vec<char> = alphabet.chars().collect();
    let mut text = String::new();
    while text.len() < length {
        text.push(*random.choice(&letters).unwrap());
    }
    while text.len() > longest {
        text.pop();
    }
    text
}

/// The state of a random run.
struct Things {
    names: Vec<String>,
    keys: Vec<String>,
    /// Microseconds since the epoch.
    clock: i64,
    savepoints: usize,
    /// Whether the last statement failed.
    failed: bool,
}

impl Things {
    fn new(random: &mut Rng) -> Things {
        let mut texts = |count: usize, longest| {
            let mut texts: Vec<_> = (0..count).map(|_| text(random, longest)).collect();
            texts.retain(|text| !text.is_empty());
            texts
        };
        let mut keys = texts(25, 1024);
        keys.push(String::new());
        Things {
            names: texts(8, 200),
            keys,
            clock: 1_800_000_000_000_000,
            savepoints: 0,
            failed: false,
        }
    }

    fn name(&self, random: &mut Rng) -> String {
        quoted(random.choice(&self.names).unwrap())
    }

    fn key(&self, random: &mut Rng) -> String {
        quoted(random.choice(&self.keys).unwrap())
    }

    /// Returns a random statement, deterministic when it runs: no shards, which are chosen at random.
    fn statement(&mut self, random: &mut Rng) -> String {
        let (name, key) = (self.name(random), self.key(random));
        let count = *random.choice(&["0", "1", "2", "2.5", "7", "-1", "'NaN'"]).unwrap();
        let yes = random.bool();
        if self.failed && random.u8(..4) > 0 {
            // A failed transaction accepts nothing else.
            let back = self.savepoints > 0 && random.bool();
            return if back { "ROLLBACK TO SAVEPOINT s1" } else { "ROLLBACK" }.into();
        }
        match random.u8(..56) {
            0..15 => format!("SELECT * FROM rl_limit({name}, {key}, {count}, reserve => {yes})"),
            15 => format!("SELECT * FROM rl_limit({name}, {key}, throws => true)"),
            16 => {
                let config = config(random);
                format!("SELECT * FROM rl_limit({name}, {key}, config => {config})")
            }
            17..20 => format!("SELECT * FROM rl_check({name}, {key}, {count})"),
            20..22 => format!("SELECT * FROM rl_credit({name}, {key}, {count})"),
            22 => format!("SELECT rl_reset({name}, {key})"),
            23 if random.u8(..4) == 0 => format!("SELECT rl_reset_keys({name})"),
            23 if random.u8(..4) == 0 => format!("SELECT rl_forget({key})"),
            24 if yes => "SELECT * FROM rl_status()".into(),
            24 => format!("SELECT * FROM rl_status({name})"),
            25 if random.u8(..4) == 0 => "SELECT rl_prune(1000000)".into(),
            26..28 => {
                let requests: Vec<_> = (0..random.usize(1..4))
                    .map(|_| {
                        let (name, key) = (self.name(random), self.key(random));
                        format!("jsonb_build_object('name', {name}, 'key', {key}, 'count', 2)")
                    })
                    .collect();
                let functions = ["rl_check_all", "rl_limit_all", "rl_limit_each"];
                let function = functions[usize::from(yes) * random.usize(1..3)];
                format!("SELECT * FROM {function}(jsonb_build_array({}))", requests.join(", "))
            }
            28 => format!("INSERT INTO posts SELECT {key} FROM generate_series(1, 3)"),
            29 if random.u8(..4) == 0 => {
                let config = config(random);
                format!("SELECT rl_define({name}, {config})")
            }
            // Many versions of a row in one transaction, and of many rows.
            30 => format!("SELECT count((rl_limit({name}, {key})).ok) FROM generate_series(1, 50)"),
            31 => {
                let keys = "(VALUES (''), ('a'), ('b'), ('ab'), ('c')) AS keys (key)";
                format!("SELECT r.* FROM {keys}, rl_limit({name}, key) AS r")
            }
            40 => format!(
                "SELECT ok, lease IS NOT NULL, expires_at, retry_after, remaining FROM rl_acquire({name}, {key}, {count}, config => {SLOTS})"
            ),
            41 => format!(
                "SELECT rl_extend(lease, {SLOTS}) FROM rl_acquire({name}, {key}, config => {SLOTS}) WHERE ok"
            ),
            42 => format!(
                "SELECT rl_release(lease, {SLOTS}) FROM rl_acquire({name}, {key}, config => {SLOTS}) WHERE ok"
            ),
            43 => {
                let values = format!("rl_value({name}, {key}), rl_value({name}, {key}, {SLOTS})");
                format!("SELECT regexp_replace(row({values})::text, '[[][0-9.]+, ', '[', 'g')")
            }
            38 => {
                let least = u8::from(yes);
                format!("SELECT * FROM rl_take({name}, {key}, {count}, at_least => {least})")
            }
            45..49 => {
                let (id, ttl) = (random.u8(..20), random.u32(1..8_000));
                let on_expiry = if random.u8(..4) == 0 { "charge" } else { "refund" };
                let least = if yes { ", at_least => 1" } else { "" };
                format!(
                    "SELECT * FROM rl_hold({name}, {key}, {count}, '{ttl} ms', '{id}', on_expiry => '{on_expiry}'{least})"
                )
            }
            49 => {
                let id = random.u8(..20);
                let requests =
                    format!("jsonb_build_array(jsonb_build_object('name', {name}, 'key', {key}))");
                format!("SELECT * FROM rl_hold_all({requests}, '2 s', '{id}')")
            }
            50..52 => format!("SELECT * FROM rl_settle('{}', {count})", random.u8(..20)),
            52..54 => {
                format!("SELECT * FROM rl_settle_all('{}', '{}')", random.u8(..20), random.u8(..5))
            }
            44 if yes => format!("SELECT rl_block({name}, {key}, '{} ms')", random.u32(1..5_000)),
            44 => format!("SELECT rl_unblock({name}, {key})"),
            32 => format!("DELETE FROM rateLimits WHERE key = {key}"),
            33 => format!("UPDATE rateLimits SET value = value / 2 WHERE key = {key}"),
            34 => {
                self.savepoints = 0;
                let levels = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
                format!("BEGIN ISOLATION LEVEL {}", random.choice(levels).unwrap())
            }
            35 => {
                self.savepoints += 1;
                format!("SAVEPOINT s{}", self.savepoints)
            }
            36 if self.savepoints > 0 => {
                format!("ROLLBACK TO SAVEPOINT s{}", random.usize(1..=self.savepoints))
            }
            37 => if yes { "COMMIT" } else { "ROLLBACK" }.into(),
            _ => {
                self.clock += random.i64(-100_000..3_000_000);
                let at = self.clock / 1000;
                format!("SET ratelimit.clock = '{at}'")
            }
        }
    }
}

/// A config of leases, which the names have besides their own.
const SLOTS: &str = "rl_concurrency(3, '2 s')";

fn config(random: &mut Rng) -> String {
    let builder = *random
        .choice(&[
            "rl_token_bucket({rate}, '{s} s', max_reserved => 5)",
            "rl_token_bucket({rate}, '{s} s', capacity => 20)",
            "rl_fixed_window({rate}, '{s} s', max_reserved => 5)",
            "rl_fixed_window({rate}, '{s} s', start => '2027-01-15 10:00:00+00')",
            "rl_sliding_window({rate}, '{s} s')",
            "rl_sliding_log({rate}, '{s} s')",
            "rl_fixed_window({rate}, '{s} s', start => '2027-01-15 10:00:00+00', overage => true)",
            "rl_unlimited()",
        ])
        .unwrap();
    builder
        .replace("{rate}", &random.u32(1..10).to_string())
        .replace("{s}", &random.u32(1..5).to_string())
}

#[test]
#[ignore = "needs a server: make test"]
fn the_stores_give_the_same_answers_and_leave_the_same_rows() {
    const STEPS: usize = 4000;
    let mut random = Rng::with_seed(seed(1));
    let mut things = Things::new(&mut random);
    let databases = ["stores_sql", "stores_heap", "stores_mixed"].map(Database::beside);
    let mut clients = databases.each_ref().map(Database::connect);
    let mut setup = vec!["CREATE TABLE posts (author text)".to_owned()];
    setup.extend(things.names.iter().enumerate().map(|(n, name)| {
        let kind = ["rl_token_bucket", "rl_fixed_window", "rl_sliding_window", "rl_sliding_log"];
        format!("SELECT rl_define({}, {}(5, '3 s'))", quoted(name), kind[n % 4])
    }));
    setup.push(format!(
        "CREATE TRIGGER posts BEFORE INSERT ON posts FOR EACH ROW EXECUTE FUNCTION rl_trigger({}, 'key=author')",
        quoted(&things.names[0])
    ));
    setup.push("SET ratelimit.clock = '1800000000000'".into());
    for (client, access) in clients.iter_mut().zip(["sql", "heap", "heap"]) {
        for sql in &setup {
            client.batch_execute(sql).unwrap();
        }
        client.batch_execute(&format!("SET ratelimit.access = {access}")).unwrap();
    }
    let [sql, heap, mixed] = &mut clients;
    let (mut passed, mut errors) = (0, 0);
    for step in 0..STEPS {
        let statement = things.statement(&mut random);
        let expected = outcome(sql, &statement);
        match &expected {
            Ok(rows) => passed += usize::from(!rows.is_empty()),
            Err(_) => errors += 1,
        }
        things.failed = expected.is_err();
        assert_eq!(outcome(heap, &statement), expected, "step {step}, heap: {statement}");
        // In a failed transaction the setting stays.
        let access = if random.bool() { "sql" } else { "heap" };
        let _ = mixed.batch_execute(&format!("SET ratelimit.access = {access}"));
        assert_eq!(outcome(mixed, &statement), expected, "step {step}, mixed: {statement}");

        // But for the ids of leases, which are random.
        let rows =
            "SELECT name, key, shard, kind, value, ts, added, prior, log,
            (SELECT array_agg(leases[n] ORDER BY n) FROM generate_series(2, cardinality(leases), 2) n), holds_due,
            (SELECT string_agg(h::text, ' ' ORDER BY id) FROM rl_holds h WHERE (h.name, h.key) = (r.name, r.key) AND shard = 0)
            FROM rateLimits r ORDER BY name, key, shard";
        let expected = outcome(sql, rows);
        assert_eq!(outcome(heap, rows), expected, "step {step}, rows of heap: {statement}");
        assert_eq!(outcome(mixed, rows), expected, "step {step}, rows of mixed: {statement}");
    }
    println!("{passed} statements returned rows, {errors} failed");
    assert!(passed > STEPS / 3 && errors > STEPS / 20);
    for client in &mut clients {
        client.batch_execute("ROLLBACK").unwrap();
        assert_sound(client);
    }
}

/// Checks the table and its index by amcheck.
fn assert_sound(client: &mut Client) {
    let there = "SELECT FROM pg_available_extensions WHERE name = 'amcheck'";
    if client.query(there, &[]).unwrap().is_empty() {
        // Past the capture of a test's output; scripts/test counts it.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "skipped: a check by amcheck, which is not installed").unwrap();
        return;
    }
    client.batch_execute("CREATE EXTENSION IF NOT EXISTS amcheck").unwrap();
    let corrupt = client.query("SELECT * FROM verify_heapam('rateLimits')", &[]).unwrap();
    assert!(corrupt.is_empty(), "{corrupt:?}");
    client.batch_execute("SELECT bt_index_parent_check('ratelimits_pkey', true, true)").unwrap();
}

/// Counts a session as done, also if it panics.
struct Done<'a>(&'a AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pages of the index split during a search, again and again, and others are recycled.
#[test]
#[ignore = "needs a server: make test"]
fn rows_are_found_while_others_come_and_go() {
    const TAKERS: u64 = 6;
    const KEYS: usize = 1500;
    let database = Database::new("stores_splits");
    database
        .connect()
        .batch_execute(
            "SELECT rl_define('api', rl_token_bucket(1000, '1 day'));
             CREATE TABLE there AS SELECT format('%s-there', to_hex(n)) AS key FROM generate_series(0, 1500, 3) n;
             INSERT INTO rateLimits (name, key, kind, value, ts) SELECT 'api', key, 't', 999, '2027-01-01 00:00:00+00' FROM there",
        )
        .unwrap();
    let database = &database;
    let connect = || {
        let mut client = database.connect();
        client.batch_execute("SET ratelimit.clock = '2027-01-01 00:00:00+00'").unwrap();
        client
    };
    let running = AtomicU64::new(TAKERS);
    let running = &running;
    std::thread::scope(|scope| {
        for session in 0..TAKERS {
            scope.spawn(move || {
                let _done = Done(running);
                let mut client = connect();
                let take = client.prepare("SELECT remaining FROM rl_limit('api', $1)").unwrap();
                // Next to those of all others, and long, so that a page holds few.
                let key = |n: usize| {
                    let mut random = Rng::with_seed(n as u64);
                    let long: String = (0..300).map(|_| random.alphanumeric()).collect();
                    format!("{:x}-{long}-{session}", n * 7919 % KEYS)
                };
                for round in ["new", "deleted"] {
                    for n in 0..KEYS {
                        let left: f64 = client.query_one(&take, &[&key(n)]).unwrap().get(0);
                        assert_eq!(left, 999.0, "a {round} key");
                    }
                    let delete = "DELETE FROM rateLimits WHERE key LIKE '%-' || $1";
                    client.execute(delete, &[&session.to_string()]).unwrap();
                    if session == 0 {
                        client.batch_execute("VACUUM rateLimits").unwrap();
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(move || {
                let mut client = connect();
                let sql = "SELECT key FROM there WHERE (rl_check('api', key)).remaining <> 999";
                while running.load(Ordering::Relaxed) > 0 {
                    let missed = client.query(sql, &[]).unwrap();
                    assert!(missed.is_empty(), "{missed:?}");
                }
            });
        }
    });
    assert_sound(&mut database.connect());
}

/// A search moves right where a page has split since its downlink was read. The keys differ at their
/// ends only, so that pages hold few of them.
#[test]
#[ignore = "needs a server: make test"]
fn rows_are_found_while_their_pages_split() {
    let database = Database::new("stores_page_splits");
    let connect = || {
        let mut client = database.connect();
        client.batch_execute("SET ratelimit.clock = '2027-01-01 00:00:00+00'").unwrap();
        client
    };
    let mut client = connect();
    client
        .batch_execute(
            "SELECT rl_define('api', rl_token_bucket(1000, '1 day'));
             CREATE FUNCTION key(round int, rest text) RETURNS text LANGUAGE sql AS $$
                 SELECT string_agg(md5(n::text), '') || to_char(round, '0000-') || rest FROM generate_series(1, 28) AS n
             $$;
             CREATE TABLE there (round int, key text)",
        )
        .unwrap();
    let running = AtomicU64::new(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = connect();
            let sql =
                "SELECT key FROM (SELECT key FROM there ORDER BY round DESC LIMIT 3) AS there,
                                       generate_series(1, 30)
                       WHERE (rl_check('api', key)).remaining <> 999";
            while running.load(Ordering::Relaxed) > 0 {
                let missed = client.query(sql, &[]).unwrap();
                assert!(missed.is_empty(), "{missed:?}");
            }
        });
        let _done = Done(&running);
        for round in 0..50 {
            // Three rows, and then many between them.
            client
                .batch_execute(&format!(
                    "WITH keys AS (INSERT INTO there SELECT {round}, key({round}, n || '-')
                                   FROM unnest(ARRAY['4', '8', 'c']) AS n RETURNING key)
                     SELECT count((rl_limit('api', key)).ok) FROM keys;
                     SELECT count((rl_limit('api', key({round}, md5(n::text)))).ok) FROM generate_series(1, 500) AS n"
                ))
                .unwrap();
        }
    });
    assert_sound(&mut client);
}

#[test]
#[ignore = "needs a server: make test"]
fn the_direct_search_finds_every_row_and_no_other() {
    let database = Database::new("stores_search");
    let mut client = database.connect();
    let mut random = Rng::with_seed(2);
    client
        .batch_execute(
            "SET ratelimit.clock = '2027-01-01 00:00:00+00'; SET ratelimit.access = heap;
             SELECT rl_define(name, rl_token_bucket(1000000, '1 day')) FROM (VALUES ('a'), ('b'), ('c')) n (name);
             CREATE TABLE wanted (name text COLLATE \"C\", key text COLLATE \"C\", value float8);",
        )
        .unwrap();
    // Short keys in order, long ones at random: several levels, with truncated and untruncated pivot
    // keys.
    let insert = client
        .prepare("INSERT INTO wanted SELECT $1, key, 0 FROM unnest($2::text[]) AS keys (key)")
        .unwrap();
    for name in ["a", "b", "c"] {
        let keys: Vec<String> = match name {
            "a" => (0..30_000).map(|n| n.to_string()).collect(),
            "b" => (0..4_000).map(|_| text(&mut random, 1024)).collect(),
            // Equal up to the end: no pivot can be truncated, and compressible ones are compressed.
            _ => (0..3_000).map(|n| format!("{}{n:04}", "long ".repeat(200))).collect(),
        };
        client.execute(&insert, &[&name, &keys]).unwrap();
    }
    client
        .batch_execute(
            "DELETE FROM wanted a USING wanted b WHERE a.name = b.name AND a.key = b.key AND a.ctid > b.ctid;
             UPDATE wanted SET value = 1 + abs(hashtext(name || key)) % 1000000;
             INSERT INTO rateLimits (name, key, kind, value, ts)
                 SELECT name, key, 't', value, '2027-01-01 00:00:00+00' FROM wanted ORDER BY hashtext(key)",
        )
        .unwrap();
    let check = |client: &mut Client, what: &str| {
        let sql = "SELECT count(*), count(*) FILTER (WHERE (rl_check(name, key)).remaining IS DISTINCT FROM value)
                   FROM wanted";
        let row = client.query_one(sql, &[]).unwrap();
        let (rows, wrong): (i64, i64) = (row.get(0), row.get(1));
        assert!(rows > 20_000 && wrong == 0, "{what}: {wrong} of {rows}");
        // Keys next to existing ones.
        let sql = "SELECT count(*), count(*) FILTER (WHERE (rl_check(name, near)).remaining IS DISTINCT FROM 1000000)
                   FROM wanted, LATERAL (VALUES (key || '!'), (left(key, -1)), (key || '~')) AS n (near)
                   WHERE octet_length(near) <= 1024
                     AND NOT EXISTS (SELECT FROM wanted AS other WHERE other.name = wanted.name AND other.key = near)";
        let row = client.query_one(sql, &[]).unwrap();
        let (others, wrong): (i64, i64) = (row.get(0), row.get(1));
        assert!(others > 20_000 && wrong == 0, "{what}, none: {wrong} of {others}");
    };
    check(&mut client, "as inserted");
    // Many updates of every row, so that index entries lead to other pages, and become posting lists.
    for _ in 0..3 {
        client
            .batch_execute(
                "SELECT count(*) FROM wanted, rl_limit(name, key, 0.25) WHERE hashtext(key) % 2 = 0;
                 UPDATE wanted SET value = value - 0.25 WHERE hashtext(key) % 2 = 0",
            )
            .unwrap();
        check(&mut client, "after updates");
    }
    // Pages that are deleted from the tree.
    client
        .batch_execute(
            "DELETE FROM rateLimits WHERE name = 'a' AND length(key) = 5 AND key < '20000';
             DELETE FROM wanted WHERE name = 'a' AND length(key) = 5 AND key < '20000'",
        )
        .unwrap();
    client.batch_execute("VACUUM rateLimits").unwrap();
    check(&mut client, "after deletions");
    client.batch_execute("REINDEX INDEX ratelimits_pkey").unwrap();
    check(&mut client, "after REINDEX");
    // More entries of one row than a page of the index holds: a version that can't be removed yet, every
    // few updates of a long row.
    let long: String = (0..1000).map(|_| random.alphanumeric()).collect();
    let mut reader = database.connect();
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT").unwrap();
    let take = "SELECT count((rl_limit('b', $1)).ok) FROM generate_series(1, 20000)";
    client.execute(take, &[&long]).unwrap();
    let mut left = |what: &str| {
        let sql = "SELECT remaining FROM rl_check('b', $1)";
        let left: f64 = client.query_one(sql, &[&long]).unwrap().get(0);
        assert_eq!(left, 980_000.0, "{what}");
    };
    for what in ["while they are kept", "while they are kept, again"] {
        left(what);
    }
    reader.batch_execute("COMMIT").unwrap();
    for what in ["when they are dead", "when they are marked"] {
        left(what);
    }
    assert_sound(&mut client);
}

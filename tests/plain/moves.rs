//! Moves from dist/ratelimit.sql to the extension and back, by their scripts: what is carried, what is refused, and
//! what calls see meanwhile. `make plain` makes the three files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use postgres::{Client, Error};

use crate::database::Database;

const SESSIONS: u64 = 12;
const SLOTS: i64 = 5;
const KEYS: [&str; 3] = ["k1", "k2", "k3"];



fn file(name: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist").join(name);
    assert!(file.exists(), "{} is missing: make plain", file.display());
    file
}

/// Runs a script in one transaction; returns whether it succeeded, and what it said.
fn run(database: &str, name: &str) -> Result<String, String> {
    let server = std::env::var("RATELIMIT_TEST_SERVER").unwrap();
    let output = Command::new("psql")
        .args(["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d"])
        .arg(format!("{server} dbname={database}"))
        .arg("-f")
        .arg(file(name))
        .output()
        .expect("psql runs");
    let said = String::from_utf8(output.stderr).unwrap();
    if output.status.success() { Ok(said) } else { Err(said) }
}

const FILE: &str = "ratelimit.sql";
const UP: &str = "ratelimit-to-extension.sql";
const BACK: &str = "ratelimit-from-extension.sql";

fn move_up(database: &str) {
    run(database, UP).unwrap();
}
fn move_back(database: &str) {
    run(database, BACK).unwrap();
}

/// A database with the file in it, and a session for which nothing refills.
fn with_file(name: &'static str) -> (Database, Client) {
    let database = Database::empty(name);
    run(name, FILE).unwrap();
    let client = session(&database);
    (database, client)
}

fn session(database: &Database) -> Client {
    let mut client = database.connect();
    client
        .batch_execute(
            "SET search_path = ratelimit, public; SET ratelimit.clock = '2027-01-01 00:00:00+00'",
        )
        .unwrap();
    client
}

/// Rows of text, one a line.
fn text(client: &mut Client, query: &str) -> String {
    let rows = client.query(&format!("SELECT q::text FROM ({query}) AS q"), &[]).unwrap();
    rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
}

/// What sessions have taken and what they met while they ran.
#[derive(Default)]
struct Notes {
    /// Committed tokens by name and key.
    taken: Mutex<BTreeMap<(String, String), f64>>,
    errors: Mutex<BTreeMap<String, u64>>,
    calls: AtomicU64,
    held: AtomicI64,
    most: AtomicI64,
    done: AtomicBool,
}

impl Notes {
    fn take(&self, name: &str, key: &str, count: f64) {
        *self.taken.lock().unwrap().entry((name.into(), key.into())).or_default() += count;
    }

    /// Counts a call; of one that failed, the error.
    fn call<T>(&self, answer: Result<T, Error>) -> Option<T> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                let cause = error.as_db_error().expect("the server answers");
                let what = format!("{} {}", cause.code().code(), cause.message());
                *self.errors.lock().unwrap().entry(what).or_default() += 1;
                None
            }
        }
    }

    /// Waits until the sessions have made so many more calls.
    fn wait_for(&self, calls: u64) {
        let before = self.calls.load(Ordering::SeqCst);
        while self.calls.load(Ordering::SeqCst) < before + calls {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Calls until told to end: by statements that are prepared once, prepared each time, in PL/pgSQL, by triggers, in a
/// view, several limits at once, and leases.
fn call(database: &Database, notes: &Notes, seed: u64) {
    let mut client = session(database);
    let mut random = Rng::with_seed(seed);
    let limit = "SELECT ok FROM rl_limit($1, $2, $3)";
    let prepared = client.prepare(limit).unwrap();
    while !notes.done.load(Ordering::SeqCst) {
        let key = KEYS[random.usize(..KEYS.len())];
        let count = random.u8(1..=3).into();
        let name = if random.bool() { "plenty" } else { "few" };
        let row = match random.u8(..7) {
            0 => client.query_one(&prepared, &[&name, &key, &count]),
            1 => client.query_one("SELECT take($1, $2, $3)", &[&name, &key, &count]),
            2 => client.query_one("SELECT ok, few_left >= 0 FROM seen WHERE key = $1", &[&key]),
            3 => {
                both(&mut client, notes, key, count);
                continue;
            }
            4 => {
                write(&mut client, notes, key, random.bool());
                continue;
            }
            5 => {
                hold(&mut client, notes);
                continue;
            }
            _ => client.query_one(limit, &[&name, &key, &count]),
        };
        let looked = matches!(&row, Ok(row) if row.len() == 2);
        if let Some(row) = notes.call(row)
            && !looked
            && row.get(0)
        {
            notes.take(name, key, count);
        }
    }
}

/// Takes from two limits at once.
fn both(client: &mut Client, notes: &Notes, key: &str, count: f64) {
    let requests = format!(
        r#"[{{"name": "plenty", "key": "{key}", "count": {count}}},
            {{"name": "few", "key": "{key}", "count": {count}}}]"#
    );
    let sql = format!("SELECT bool_and(ok) FROM rl_limit_all('{requests}')");
    if notes.call(client.query_one(&sql, &[])).is_some_and(|row| row.get(0)) {
        notes.take("plenty", key, count);
        notes.take("few", key, count);
    }
}

/// Writes rows that triggers limit, on a table and on one with partitions, in a transaction.
fn write(client: &mut Client, notes: &Notes, key: &str, commit: bool) {
    let end = if commit { "COMMIT" } else { "ROLLBACK" };
    let write = format!(
        "BEGIN; INSERT INTO messages VALUES ('{key}', 1), ('{key}', 2);
         INSERT INTO parted VALUES ('{key}', 1), ('{key}', 2); {end}"
    );
    let written = notes.call(client.batch_execute(&write));
    if written.is_none() {
        client.batch_execute("ROLLBACK").unwrap();
    } else if commit {
        notes.take("rows", key, 4.0);
    }
}

/// Holds a slot for a moment; gives it back however often that fails.
fn hold(client: &mut Client, notes: &Notes) {
    let acquired = client.query_opt("SELECT lease FROM rl_acquire('slots') WHERE ok", &[]);
    let Some(Some(row)) = notes.call(acquired) else { return };
    notes.most.fetch_max(notes.held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    let lease: String = row.get(0);
    client.batch_execute("SELECT pg_sleep(0.001)").unwrap();
    notes.held.fetch_sub(1, Ordering::SeqCst);
    loop {
        if let Some(row) = notes.call(client.query_one("SELECT rl_release($1)", &[&lease])) {
            assert!(row.get::<_, bool>(0), "the lease was lost");
            return;
        }
    }
}

const LIMITS: &str = "
    SELECT rl_define('plenty', rl_token_bucket(rate => 1e9, period => '1 day')),
           rl_define('few', rl_fixed_window(rate => 3000, period => '1 day')),
           rl_define('rows', rl_sliding_window(rate => 1e9, period => '1 day')),
           rl_define('slots', rl_concurrency(slots => 5, ttl => '1 day'));
    CREATE TABLE public.messages (author text, n int);
    CREATE TABLE public.parted (author text, n int) PARTITION BY LIST (n);
    CREATE TABLE public.parted_1 PARTITION OF public.parted FOR VALUES IN (1);
    CREATE TABLE public.parted_2 PARTITION OF public.parted FOR VALUES IN (2);
    CREATE TRIGGER limited BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION rl_trigger('rows', 'key=author');
    CREATE TRIGGER limited BEFORE INSERT ON parted FOR EACH ROW EXECUTE FUNCTION rl_trigger('rows', 'key=author');
    CREATE VIEW public.seen AS SELECT key, (rl_check('plenty', key)).ok, (rl_check('few', key)).remaining AS few_left
        FROM (VALUES ('k1'), ('k2'), ('k3')) AS keys (key);
    CREATE FUNCTION public.take(name text, key text, count float8) RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        answer ratelimit.rl_result;
    BEGIN
        answer := rl_limit(name, key, count);
        RETURN answer.ok;
    END $$";

/// Every token is accounted for, however often the limits move.
#[test]
#[ignore = "needs a server: make test"]
fn calls_go_on_while_limits_move_up_and_back() {
    let (database, mut client) = with_file("moves");
    client.batch_execute(LIMITS).unwrap();
    let notes = Notes::default();
    thread::scope(|scope| {
        for seed in 0..SESSIONS {
            let (database, notes) = (&database, &notes);
            scope.spawn(move || call(database, notes, seed));
        }
        for round in 0..4 {
            notes.wait_for(300);
            move_up("moves");
            notes.wait_for(300);
            report(&notes, &format!("{round}: up"));
            move_up("moves"); // drops what calls may have needed
            notes.wait_for(100);
            report(&notes, &format!("{round}: dropped"));
            move_back("moves");
            notes.wait_for(300);
            report(&notes, &format!("{round}: back"));
        }
        notes.done.store(true, Ordering::SeqCst);
    });
    assert!(notes.most.into_inner() <= SLOTS);
    for ((name, key), taken) in notes.taken.into_inner().unwrap() {
        let left = client
            .query_one("SELECT remaining, capacity FROM rl_check($1, $2)", &[&name, &key])
            .unwrap();
        let (remaining, capacity): (f64, f64) = (left.get(0), left.get(1));
        assert_eq!(remaining, capacity - taken, "{name} {key}");
    }
}

/// Prints the errors since the last one.
fn report(notes: &Notes, when: &str) {
    let errors = std::mem::take(&mut *notes.errors.lock().unwrap());
    println!("{when}: {} calls so far, errors: {errors:?}", notes.calls.load(Ordering::SeqCst));
}

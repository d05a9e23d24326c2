//! Moves from dist/ratelimit.sql to the extension and back, by their scripts: what they carry and refuse, and what
//! calls see during a move. `make plain` makes the three files.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
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

/// Runs a script in one transaction; returns its messages.
fn run(database: &str, name: &str) -> Result<String, String> {
    run_as("postgres", database, name)
}

fn run_as(role: &str, database: &str, name: &str) -> Result<String, String> {
    let server = std::env::var("RATELIMIT_TEST_SERVER").unwrap();
    let output = Command::new("psql")
        .args(["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d"])
        .arg(format!("{server} dbname={database} user={role}"))
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

/// A database with the file, and a session whose clock stands still.
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

/// What sessions have taken, and their errors.
#[derive(Default)]
struct Notes {
    /// Committed tokens by name and key.
    taken: Mutex<BTreeMap<(String, String), f64>>,
    errors: Mutex<BTreeMap<String, u64>>,
    calls: AtomicU64,
    slots: AtomicI64,
    most: AtomicI64,
    done: AtomicBool,
}

impl Notes {
    fn take(&self, name: &str, key: &str, count: f64) {
        *self.taken.lock().unwrap().entry((name.into(), key.into())).or_default() += count;
    }

    /// Counts a call, and its error.
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

    /// Judges the errors since the last time.
    fn check(&self, round: u32, way: &str) {
        let errors = std::mem::take(&mut *self.errors.lock().unwrap());
        println!("{round}, {way}: {errors:?}");
        assert!(
            errors.is_empty() || way == "back" && errors.values().sum::<u64>() <= SESSIONS,
            "{way}: {errors:?}"
        );
        assert!(
            errors.keys().all(|error| error.starts_with("42P01 table \"rateLimits\" of extension")),
            "{errors:?}"
        );
    }

    /// Waits for this number of further calls.
    fn wait_for(&self, calls: u64) {
        let before = self.calls.load(Ordering::SeqCst);
        while self.calls.load(Ordering::SeqCst) < before + calls {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Calls until all are done: by statements prepared once or each time, in PL/pgSQL, by triggers, in a view, several
/// limits at once, and leases.
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
                take_slot(&mut client, notes);
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

/// Writes rows with triggers, in a table and in a partitioned one, in a transaction.
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

/// Takes a slot for a moment; releases it, again if that fails.
fn take_slot(client: &mut Client, notes: &Notes) {
    let acquired = client.query_opt("SELECT lease FROM rl_acquire('slots') WHERE ok", &[]);
    let Some(Some(row)) = notes.call(acquired) else { return };
    notes.most.fetch_max(notes.slots.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    let lease: String = row.get(0);
    client.batch_execute("SELECT pg_sleep(0.001)").unwrap();
    notes.slots.fetch_sub(1, Ordering::SeqCst);
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
        answers ratelimit.rl_limit_all_result[];
    BEGIN
        answer := rl_limit(name, key, count);
        answers := ARRAY(SELECT r FROM rl_check_all(jsonb_build_array(jsonb_build_object('name', name, 'key', key))) AS r);
        RETURN answer.ok AND answers[1].name = name;
    END $$";

/// No token is lost or given twice. On the way up no call fails; on the way back those that wait in the extension do,
/// one a session at most.
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
        let moved = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for round in 1..=3 {
                for (way, script) in [("up", UP), ("dropped", UP), ("back", BACK)] {
                    notes.wait_for(300);
                    run("moves", script).unwrap();
                    notes.wait_for(300);
                    notes.check(round, way);
                }
            }
        }));
        notes.done.store(true, Ordering::SeqCst);
        moved.unwrap();
    });
    assert!(notes.most.into_inner() <= SLOTS);
    let free = client.query_one("SELECT remaining FROM rl_check('slots')", &[]).unwrap();
    assert_eq!(free.get::<_, f64>(0), SLOTS as f64);
    let taken = notes.taken.into_inner().unwrap();
    assert_eq!(taken.len(), 3 * KEYS.len());
    for ((name, key), taken) in taken {
        let left = client
            .query_one("SELECT remaining, capacity FROM rl_check($1, $2)", &[&name, &key])
            .unwrap();
        let (remaining, capacity): (f64, f64) = (left.get(0), left.get(1));
        assert_eq!(remaining, capacity - taken, "{name} {key}");
    }
}

/// Objects that name the limiter, of every kind that moves.
const NAMING: &str = "
    SET search_path = public, ratelimit; GRANT USAGE ON SCHEMA ratelimit TO mover;
    GRANT EXECUTE ON FUNCTION rl_limit, rl_check TO mover; GRANT SELECT ON rateLimits TO mover;
    REVOKE EXECUTE ON FUNCTION rl_sliding_log FROM PUBLIC;
    INSERT INTO rl_settings VALUES ('error_style', 'pgrst'), ('log_denials', '0.25');
    SELECT rl_define('rows', rl_token_bucket(rate => 9, period => '1 hour')),
           rl_define('rows', rl_unlimited(), 'boss'), rl_define('pro', rl_token_bucket(rate => 90, period => '1 hour')),
           rl_define('rows', '{\"plan\": \"pro\"}', 'planned'),
           rl_define('window', rl_fixed_window(rate => 9, period => '1 hour')),
           rl_define('sliding', rl_sliding_window(rate => 9, period => '1 hour')),
           rl_define('log', rl_sliding_log(rate => 9, period => '1 hour')),
           rl_define('slots', rl_concurrency(slots => 3, ttl => '1 hour')),
           rl_define('lowered', rl_fixed_window(rate => 20, period => '1 hour')),
           rl_block('rows', 'bad', until => '2027-02-01'), rl_block('log', 'worse', until => 'infinity');
    SELECT (rl_limit(name, 'k', 3)).ok FROM unnest('{rows,window,sliding,log}'::text[]) AS name;
    SELECT (rl_limit('lowered', 'k', 12)).ok, rl_define('lowered', rl_fixed_window(rate => 9, period => '1 hour'));
    SELECT rl_reset('rows', 'gone') FROM rl_limit('rows', 'gone');
    CREATE TABLE leases AS SELECT lease FROM rl_acquire('slots', 'k');
    SELECT rl_hold('rows', 'k', 2, '1 hour', 'held'), rl_hold('rows', 'k', 1, '2 hours', 'charged', on_expiry => 'charge'),
           rl_hold_all('[{\"name\": \"slots\", \"key\": \"k\"}, {\"name\": \"window\", \"key\": \"k\"}]', '1 day', 'several');
    CREATE TABLE messages (author text, n int);
    CREATE TABLE parted (author text, n int) PARTITION BY LIST (n);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
    CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
    CREATE TRIGGER each_row BEFORE INSERT ON messages FOR EACH ROW WHEN (NEW.n > 0)
        EXECUTE FUNCTION rl_trigger('rows', 'key=author');
    CREATE TRIGGER statement AFTER INSERT ON messages REFERENCING NEW TABLE AS rows FOR EACH STATEMENT
        EXECUTE FUNCTION rl_trigger('window', 'key=author', 'count=n');
    CREATE TRIGGER each_row BEFORE INSERT ON parted FOR EACH ROW EXECUTE FUNCTION rl_trigger('rows', 'key=author');
    COMMENT ON TRIGGER each_row ON messages IS 'a trigger';
    ALTER TABLE messages ENABLE ALWAYS TRIGGER each_row;
    ALTER TABLE messages ENABLE REPLICA TRIGGER statement;
    ALTER TABLE parted_2 DISABLE TRIGGER each_row;
    CREATE VIEW seen WITH (security_barrier) AS
        SELECT author COLLATE \"C\" AS author, n, (rl_check('rows', author)).remaining FROM messages;
    CREATE VIEW over_it AS SELECT remaining FROM seen; CREATE VIEW standing AS SELECT * FROM rl_status('window'); CREATE VIEW stored AS SELECT name, value FROM rateLimits;
    COMMENT ON VIEW seen IS 'a view'; COMMENT ON COLUMN seen.remaining IS 'a column'; GRANT SELECT ON seen TO mover;
    ALTER TABLE messages ENABLE ROW LEVEL SECURITY;
    CREATE POLICY ask ON messages AS RESTRICTIVE TO mover USING (n > 0) WITH CHECK ((rl_check('rows', author)).ok);
    COMMENT ON POLICY ask ON messages IS 'a policy';
    CREATE RULE noted AS ON DELETE TO messages WHERE (rl_check('rows', 'k')).ok DO ALSO NOTHING;
    CREATE FUNCTION left_of(key text, name text DEFAULT 'rows') RETURNS float8
        BEGIN ATOMIC SELECT remaining FROM rl_check(name, key); END;
    COMMENT ON FUNCTION left_of IS 'a function'; REVOKE ALL ON FUNCTION left_of FROM PUBLIC;
    CREATE DOMAIN config AS jsonb CONSTRAINT bounded CHECK (VALUE <> rl_unlimited());
    COMMENT ON CONSTRAINT bounded ON DOMAIN config IS 'a domain''s';
    CREATE TABLE plans (name text, config config DEFAULT rl_token_bucket(5, '1 minute'),
                        CONSTRAINT kind CHECK (config -> 'kind' = rl_token_bucket(1, '1 day') -> 'kind'));
    COMMENT ON CONSTRAINT kind ON plans IS 'a check';
    INSERT INTO plans VALUES ('free')";

/// Queries with the same answer before and after.
const SAME: &[&str] = &[
    "SELECT (rl_check(name, 'k')).* FROM unnest('{rows,window,sliding,log,slots}'::text[]) AS name",
    "SELECT name, (rl_check(name, 'new')).* FROM unnest('{rows,window,sliding,log,slots}'::text[]) AS name",
    "SELECT rl_value(name, 'k') - 'now' FROM unnest('{rows,window,sliding,log,slots}'::text[]) AS name",
    "SELECT (rl_check('lowered', 'k')).*, (rl_check('lowered', 'k', config => rl_fixed_window(20, '1 hour'))).remaining,
            added FROM rateLimits WHERE name = 'lowered'",
    "SELECT (rl_check('rows', key)).* FROM unnest('{boss,bad,gone,planned}'::text[]) AS key",
    "SELECT * FROM rl_config ORDER BY name, key", // without internal columns: see same()
    "SELECT * FROM rl_blocks ORDER BY name",
    "SELECT * FROM rl_holds ORDER BY id, name",
    "SELECT name, key, holds_due FROM rateLimits WHERE kind <> '-' ORDER BY name, key",
    "SELECT rl_extend(lease) FROM leases",
    "SELECT tgname, tgrelid::regclass, pg_get_triggerdef(oid), tgenabled, obj_description(oid, 'pg_trigger')
     FROM pg_trigger WHERE tgrelid::regclass::text ~ '^(messages|parted)' ORDER BY 2, 1",
    "SELECT relname, pg_get_viewdef(oid), relacl, reloptions, obj_description(oid), col_description(oid, 3)
     FROM pg_class WHERE relname IN ('seen', 'over_it', 'standing', 'stored') ORDER BY 1",
    "SELECT * FROM pg_policies",
    "SELECT obj_description(oid) FROM pg_policy",
    "SELECT * FROM pg_rules WHERE rulename = 'noted'",
    "SELECT pg_get_functiondef(p.oid), proacl, obj_description(p.oid) FROM pg_proc p WHERE proname = 'left_of'",
    "SELECT conname, convalidated, pg_get_constraintdef(oid), obj_description(oid) FROM pg_constraint
     WHERE conname IN ('kind', 'bounded') ORDER BY 1",
    "SELECT column_default FROM information_schema.columns WHERE table_name = 'plans'",
    "SELECT grantee::regrole, proname, is_grantable FROM pg_proc, aclexplode(proacl)
     WHERE grantee = 'mover'::regrole AND pronamespace = 'ratelimit'::regnamespace ORDER BY 2",
    "SELECT grantee::regrole, privilege_type FROM pg_class, aclexplode(relacl)
     WHERE relnamespace = 'ratelimit'::regnamespace AND relname = 'ratelimits' AND grantee = 'mover'::regrole",
    "SELECT has_function_privilege('mover', 'ratelimit.rl_sliding_log'::regproc::oid, 'EXECUTE')",
    "SELECT left_of('k'), (SELECT count(*) FROM seen), (SELECT sum(value) FROM stored WHERE name = 'window')",
];

fn same(client: &mut Client) -> String {
    let ask = |query: &&str| {
        text(client, &query.replace("SELECT * FROM rl_c", "SELECT name, key, config FROM rl_c"))
    };
    SAME.iter().map(ask).collect()
}

#[test]
#[ignore = "needs a server: make test"]
fn what_names_the_functions_works_after_a_move() {
    let (database, mut client) = with_file("moves_named");
    client.batch_execute("DROP ROLE IF EXISTS mover; CREATE ROLE mover").unwrap();
    client.batch_execute(NAMING).unwrap();
    let before = same(&mut client);
    for script in [UP, UP, BACK, UP, UP, BACK] {
        run("moves_named", script).unwrap();
        for (now, then) in same(&mut client).lines().zip(before.lines()) {
            assert_eq!(now, then, "{script}");
        }
        // Two triggers take from the 9; that of the other partition is off.
        let take = "BEGIN; INSERT INTO messages VALUES ('w', 1); INSERT INTO parted VALUES ('w', 1), ('w', 2)";
        client.batch_execute(take).unwrap();
        let left = client.query_one("SELECT left_of('w')", &[]).unwrap();
        assert_eq!(left.get::<_, f64>(0), 7.0);
        client.batch_execute("ROLLBACK").unwrap();
        // Settings move, too.
        let style = "SELECT rl_limit('rows', 'k', 100, throws => true)";
        let mut fresh = database.connect();
        fresh.batch_execute("SET search_path = ratelimit").unwrap();
        let denied = fresh.batch_execute(style).unwrap_err();
        assert_eq!(denied.code().unwrap().code(), "PGRST", "{denied:?}");
        let share = match script {
            UP => "SELECT current_setting('ratelimit.log_denials')",
            _ => "SELECT value FROM rl_settings WHERE name = 'log_denials'",
        };
        assert_eq!(text(&mut fresh, share), "(0.25)\n", "{script}");
    }
    let gone = text(&mut client, "SELECT nspname FROM pg_namespace WHERE nspname ~ '_moved$'");
    assert_eq!(gone, "");
    client.batch_execute("DROP OWNED BY mover; DROP ROLE mover").unwrap();
}

/// Only superusers may set the extension's log_denials.
#[test]
#[ignore = "needs a server: make test"]
fn a_setting_that_the_mover_may_not_set_is_reported() {
    let database = Database::empty("moves_setting");
    let mut client = database.connect();
    client
        .batch_execute(
            "DO $$ BEGIN CREATE ROLE moves_owner LOGIN; EXCEPTION WHEN duplicate_object THEN END $$;
             ALTER DATABASE moves_setting OWNER TO moves_owner",
        )
        .unwrap();
    run_as("moves_owner", "moves_setting", FILE).unwrap();
    client
        .batch_execute(
            "INSERT INTO ratelimit.rl_settings VALUES ('error_style', 'pgrst'), ('log_denials', '0.25')",
        )
        .unwrap();
    let said = run_as("moves_owner", "moves_setting", UP).unwrap();
    assert!(said.contains("WARNING:  the setting log_denials is not moved"), "{said}");
    assert!(
        said.contains("ALTER DATABASE moves_setting SET ratelimit.log_denials = '0.25'"),
        "{said}"
    );
    assert!(!said.contains("error_style"), "{said}");
}

/// Objects that a move can't carry, and their names in the error.
const REFUSED: [(&str, &str); 13] = [
    ("CREATE TABLE t (answer rl_result)", "column answer of table public.t"),
    ("CREATE TABLE t (answer rl_hold_all_result)", "column answer of table public.t"),
    ("CREATE TABLE t (answers rl_status_result[])", "column answers of table public.t"),
    ("CREATE VIEW v AS SELECT s FROM rl_status() AS s", "column s of view public.v"),
    ("CREATE VIEW v AS SELECT ARRAY[rl_take('a')] AS answers", "column answers of view public.v"),
    (
        "CREATE FUNCTION f(rl_result) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "function public.f(ratelimit.rl_result)",
    ),
    ("CREATE MATERIALIZED VIEW v AS SELECT rl_unlimited()", "materialized view public.v"),
    ("CREATE VIEW v AS SELECT rl_check('a') AS answer", "column answer of view public.v"),
    (
        "CREATE TABLE t (n int, c jsonb GENERATED ALWAYS AS (rl_token_bucket(n, '1 day')) STORED)",
        "column c of table public.t",
    ),
    (
        "CREATE TABLE t (n int, CONSTRAINT c CHECK ((rl_check('a')).ok))",
        "constraint c on table public.t",
    ),
    (
        "CREATE TABLE t (n int); CREATE INDEX i ON t ((rl_token_bucket(n, '1 day')))",
        "index public.i",
    ),
    (
        "CREATE TRIGGER t AFTER INSERT ON rateLimits EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "trigger t on table ratelimit.ratelimits",
    ),
    ("CREATE TABLE t () INHERITS (rateLimits)", "table public.t"),
];

#[test]
#[ignore = "needs a server: make test"]
fn a_move_that_can_not_carry_all_changes_nothing() {
    for (object, named) in REFUSED {
        let (_database, mut client) = with_file("moves_refused");
        client.batch_execute("SELECT rl_define('a', rl_unlimited())").unwrap();
        for (here, script) in [("file", UP), ("extension", BACK)] {
            client.batch_execute("BEGIN; SET LOCAL search_path = public, ratelimit").unwrap();
            client.batch_execute(object).unwrap();
            client.batch_execute("COMMIT").unwrap();
            let said = run("moves_refused", script).unwrap_err();
            assert!(
                said.contains("can't be moved") && said.contains(named),
                "{here}: {named}: {said}"
            );
            let kind = named.split(' ').next().unwrap();
            client.batch_execute("SELECT rl_check('a')").unwrap();
            let drop = match (kind, object.contains("VIEW"), object.contains("ON rateLimits")) {
                (_, true, _) if object.contains("MATERIALIZED") => {
                    "DROP MATERIALIZED VIEW public.v"
                }
                (_, true, _) => "DROP VIEW public.v",
                (_, _, true) => "DROP TRIGGER t ON rateLimits",
                ("function", ..) => "DROP FUNCTION public.f",
                _ => "DROP TABLE public.t",
            };
            client.batch_execute(drop).unwrap();
            if script == UP {
                run("moves_refused", UP).unwrap();
                run("moves_refused", UP).unwrap();
            }
        }
    }
}

/// If the extension can't be created, nothing changes.
#[test]
#[ignore = "needs a server: make test"]
fn without_the_extension_a_move_changes_nothing() {
    let database = Database::empty("moves_denied");
    let mut postgres = database.connect();
    postgres
        .batch_execute(
            "DROP ROLE IF EXISTS poor_mover; CREATE ROLE poor_mover;
             GRANT CREATE ON DATABASE moves_denied TO poor_mover;
             GRANT CREATE ON SCHEMA public TO poor_mover; ALTER DATABASE moves_denied SET role = 'poor_mover'",
        )
        .unwrap();
    run("moves_denied", FILE).unwrap();
    let mut client = database.connect();
    client
        .batch_execute(
            "SET search_path = ratelimit, public; SELECT rl_define('a', rl_token_bucket(9, '1000 days'));
             SELECT rl_limit('a', count => 4); CREATE VIEW public.v AS SELECT (rl_check('a')).ok",
        )
        .unwrap();
    postgres.batch_execute("REVOKE CREATE ON DATABASE moves_denied FROM poor_mover").unwrap();
    let objects =
        "SELECT oid, pronamespace, proname FROM pg_proc WHERE proname ~ '^(rl_|_)' ORDER BY oid";
    let before = text(&mut client, objects);
    let said = run("moves_denied", UP).unwrap_err();
    assert!(said.contains("permission denied"), "{said}");
    assert_eq!(text(&mut client, objects), before);
    assert_eq!(text(&mut client, "SELECT v.ok, floor(remaining) FROM v, rl_limit('a')"), "(t,4)\n");
    postgres
        .batch_execute(
            "ALTER DATABASE moves_denied RESET role; CREATE EXTENSION ratelimit SCHEMA public",
        )
        .unwrap();
    let said = run("moves_denied", UP).unwrap_err();
    assert!(said.contains("is installed already, in schema public"), "{said}");
    postgres.batch_execute("DROP OWNED BY poor_mover; DROP ROLE poor_mover").unwrap();
}

/// Shards are added up, and limits in memory that are saved move to the table.
#[test]
#[ignore = "needs a server: make test"]
fn shards_and_limits_in_memory_come_back_as_rows() {
    let (database, _) = with_file("moves_back");
    run("moves_back", UP).unwrap();
    run("moves_back", UP).unwrap();
    let mut client = database.connect();
    client
        .batch_execute(
            r#"SET search_path = ratelimit, public;
               SELECT rl_define('wide', rl_token_bucket(rate => 100, period => '1000 days', shards => 4)),
                      rl_define('spread', rl_fixed_window(rate => 100, period => '1000 days', shards => 4)),
                      rl_define('saved', rl_fixed_window(rate => 100, period => '1000 days', store => 'memory', save => '1 hour')),
                      rl_define('memory', rl_token_bucket(rate => 100, period => '1000 days', store => 'memory'));
               SELECT rl_define('planned', jsonb_build_object('plan', plan), plan), rl_limit('planned', plan, 20)
               FROM unnest('{wide,saved,memory}'::text[]) AS plan;
               SELECT rl_limit('wide', 'k', 7), rl_limit('wide', 'k', 30), rl_limit('wide', 'k', 8);
               SELECT rl_limit('spread', 'k', 7), rl_limit('spread', 'k', 38);
               SELECT rl_limit('saved', 'k', 40), rl_limit('memory', 'k', 50);
               SELECT rl_limit('inline', 'k', 60, config => rl_token_bucket(100, '1000 days', shards => 4))"#,
        )
        .unwrap();
    let said = run("moves_back", BACK).unwrap();
    assert!(said.contains("begin with all their tokens: 'memory', 'planned'"), "{said}");
    let mut client = database.connect();
    client.batch_execute("SET search_path = ratelimit, public").unwrap();
    let mut left = |name: &str, config: &str| -> f64 {
        let ask =
            format!("SELECT floor(remaining) FROM rl_check('{name}', 'k', config => {config})");
        client.query_one(&ask, &[]).unwrap().get(0)
    };
    assert_eq!(left("wide", "NULL"), 55.0);
    assert_eq!(left("spread", "NULL"), 55.0);
    assert_eq!(left("spread", "ratelimit.rl_fixed_window(1000, '1000 days')"), 955.0);
    assert_eq!(left("saved", "NULL"), 60.0);
    assert_eq!(left("memory", "NULL"), 100.0);
    assert_eq!(left("inline", "ratelimit.rl_token_bucket(100, '1000 days')"), 40.0);
    let planned = "SELECT key, floor(remaining) FROM unnest('{wide,saved,memory}'::text[]) AS key, rl_check('planned', key)";
    assert_eq!(text(&mut client, planned), "(wide,80)\n(saved,80)\n(memory,100)\n");
    let kinds = text(&mut client, "SELECT config ?| '{store,save,shards}' FROM rl_config");
    assert!(!kinds.contains('t'), "{kinds}");
}

/// An older file is refused until the newer one has run; the owner's own objects stay in the schema.
#[test]
#[ignore = "needs a server: make test"]
fn a_move_takes_what_the_present_file_has_made() {
    let database = Database::empty("move_made");
    let mut client = session(&database);
    run("move_made", FILE).unwrap();
    client
        .batch_execute(
            "UPDATE ratelimit.rl_installed SET version = 0;
             SELECT rl_define('l', rl_token_bucket(5, '1 day')), rl_limit('l', 'k', 2);
             CREATE FUNCTION ratelimit.rl_mine() RETURNS int LANGUAGE sql AS 'SELECT 1';
             CREATE FUNCTION ratelimit._mine() RETURNS int LANGUAGE sql AS 'SELECT 1';
             CREATE PROCEDURE ratelimit.rl_work() LANGUAGE sql AS 'SELECT 1';
             CREATE TABLE ratelimit._notes AS SELECT 'note' AS note",
        )
        .unwrap();
    let refused = run("move_made", UP).unwrap_err();
    assert!(refused.contains("version 0 of ratelimit.sql is installed"), "{refused}");
    assert!(refused.contains("Run the newer ratelimit.sql first."), "{refused}");
    run("move_made", FILE).unwrap();
    let mine = "SELECT count(*)::text FROM pg_proc WHERE pronamespace = 'ratelimit'::regnamespace
                AND proname IN ('rl_mine', '_mine', 'rl_work') AND (SELECT note FROM ratelimit._notes) = 'note'";
    // The second run drops what the file had made.
    for way in [UP, UP, BACK, FILE] {
        run("move_made", way).unwrap_or_else(|error| panic!("{way}: {error}"));
        assert_eq!(text(&mut client, mine), "(3)\n", "{way}");
        assert_eq!(text(&mut client, "SELECT remaining FROM rl_check('l', 'k')"), "(3)\n", "{way}");
    }
    client.batch_execute("UPDATE ratelimit.rl_installed SET version = 7").unwrap();
    let refused = run("move_made", UP).unwrap_err();
    assert!(refused.contains("Run the newer script."), "{refused}");
    client
        .batch_execute(
            "UPDATE ratelimit.rl_installed SET version = 1; DELETE FROM ratelimit.rl_made",
        )
        .unwrap();
    let refused = run("move_made", UP).unwrap_err();
    assert!(refused.contains("has not run to its end here"), "{refused}");
}

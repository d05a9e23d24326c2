//! 16 sessions at once (32 on the SQL file) over one key and over a few, with the real clock, random rollbacks and
//! savepoints, at every isolation level: no token is given twice, and none is lost.
//!
//! A session notes each take in a table of its own, in the same transaction, so the notes are the
//! committed takes. A row lock is held to the end of the transaction; so a take was decided after
//! the note of the key's previous take was written, and before its own was. The checks use these
//! bounds, and so never fail for a correct limiter, at any speed of the machine.

mod caller;
mod errors;
mod history;
mod limit_all;
mod owner;
mod rebuild;
mod reset_all;
mod rules;
mod shards;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

pub use history::FOLDER;
use history::{LIMITER, Notebook, Take as Taking};
use postgres::Client;
use postgres::error::SqlState;
use ratelimit_judge::{Recording, Storage};
use rules::Rule::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use rules::{Random, Rule, SECOND, Take, quick, slow};

use crate::database::Database;

const SESSIONS: usize = Database::SESSIONS;
const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// The savepoint around one take.
#[derive(Clone, Copy)]
enum Savepoint {
    None,
    Release,
    RollBack,
}

struct Step {
    name: String,
    key: String,
    count: f64,
    savepoint: Savepoint,
}

/// A transaction; every fourth ends in a rollback.
struct Script {
    steps: Vec<Step>,
    commit: bool,
}

impl Script {
    fn random(random: &mut Random, limits: &[(String, Rule)], keys: &[String]) -> Script {
        let steps = (0..1 + random.below(3))
            .map(|_| Step {
                name: limits[random.below(limits.len() as u64) as usize].0.clone(),
                key: keys[random.below(keys.len() as u64) as usize].clone(),
                count: 1.0 + random.below(3) as f64,
                savepoint: match random.below(6) {
                    0 => Savepoint::Release,
                    1 | 2 => Savepoint::RollBack,
                    _ => Savepoint::None,
                },
            })
            .collect();
        Script { steps, commit: random.below(4) > 0 }
    }
}

/// The takes of a session, or of all.
#[derive(Debug, Default)]
struct Tally {
    transactions: u64,
    rolled_back: u64,
    /// Serialization failures and deadlocks, each followed by another try.
    retries: u64,
    denied: u64,
    /// Committed.
    tokens: f64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.transactions += other.transactions;
        self.rolled_back += other.rolled_back;
        self.retries += other.retries;
        self.denied += other.denied;
        self.tokens += other.tokens;
    }
}

/// A connection that notes its takes.
struct Session<'n> {
    client: Client,
    take: Taking,
    notebook: &'n Notebook,
    recording: Recording<'n>,
    /// Whether a serialization failure may happen.
    conflicts: bool,
    tally: Tally,
}

const NOTE: &str = "$1, $2, $3, clock_timestamp()";

impl<'n> Session<'n> {
    /// `limiter` is a query of name, key and count that returns `ok`.
    fn new(database: &Database, level: &str, limiter: &str, notebook: &'n Notebook) -> Session<'n> {
        let mut client = database.connect();
        client
            .batch_execute(&format!(
                "SET default_transaction_isolation = '{level}'; SET deadlock_timeout = '10ms'"
            ))
            .unwrap();
        let take = Taking::prepare(&mut client, limiter, NOTE).unwrap();
        let conflicts = limiter != LIMITER || may_conflict(&mut client, level);
        let recording = notebook.recorder.session();
        Session { client, take, notebook, recording, conflicts, tally: Tally::default() }
    }

    /// Takes in a transaction of its own, with retries.
    fn take(&mut self, name: &str, key: &str, count: f64) -> bool {
        let step = Step { name: name.into(), key: key.into(), count, savepoint: Savepoint::None };
        self.run(&Script { steps: vec![step], commit: true }) > 0.0
    }

    /// Runs a transaction until it has no conflict; returns its takes.
    fn run(&mut self, script: &Script) -> f64 {
        loop {
            match self.try_run(script) {
                Ok((tokens, denied)) => {
                    self.tally.transactions += 1;
                    self.tally.denied += denied;
                    self.tally.tokens += tokens;
                    self.tally.rolled_back += u64::from(!script.commit);
                    return tokens;
                }
                Err(error) if is_deadlock(&error) => self.tally.retries += 1,
                Err(error) if self.conflicts && is_conflict(&error) => self.tally.retries += 1,
                Err(error) => panic!("{error:?}"),
            }
            let client = &mut self.client;
            self.recording.roll_back(|| client.batch_execute("ROLLBACK")).unwrap();
        }
    }

    fn try_run(&mut self, script: &Script) -> Result<(f64, u64), postgres::Error> {
        let (mut tokens, mut denied) = (0.0, 0);
        let Session { client, take, notebook, recording, .. } = self;
        client.batch_execute("BEGIN")?;
        recording.begin();
        for Step { name, key, count, savepoint } in &script.steps {
            if !matches!(savepoint, Savepoint::None) {
                client.batch_execute("SAVEPOINT s")?;
                recording.savepoint();
            }
            let answer = notebook.take((recording, client), take, (name, key, *count))?;
            denied += u64::from(!answer.ok);
            match savepoint {
                Savepoint::RollBack => {
                    recording.roll_back_to(|| client.batch_execute("ROLLBACK TO SAVEPOINT s"))?;
                }
                _ if answer.ok => tokens += count,
                _ => {}
            }
            if matches!(savepoint, Savepoint::Release) {
                client.batch_execute("RELEASE SAVEPOINT s")?;
            }
        }
        if !script.commit {
            recording.roll_back(|| client.batch_execute("ROLLBACK"))?;
            return Ok((0.0, denied));
        }
        recording.commit(|| client.batch_execute("COMMIT"))?;
        Ok((tokens, denied))
    }
}

/// Whether calls at this isolation level may meet a serialization failure: those through SQL, above READ COMMITTED.
fn may_conflict(client: &mut Client, level: &str) -> bool {
    level != LEVELS[0] && Database::may_conflict(client)
}

fn is_conflict(error: &postgres::Error) -> bool {
    error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
}

fn is_deadlock(error: &postgres::Error) -> bool {
    error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

/// The end of a session.
#[derive(Clone, Copy)]
enum End {
    Transactions(u64),
    After(Duration),
}

/// A database with limits, and the takes of all sessions.
struct Load<'a> {
    database: &'a Database,
    client: Client,
    limits: Vec<(String, Rule)>,
    keys: Vec<String>,
    /// The server's clock before the first take.
    from: i64,
    /// The history, for the judge.
    notebook: Arc<Notebook>,
}

fn notebook(limits: &[(String, Rule)], storage: Storage) -> Arc<Notebook> {
    let limits = limits.iter().map(|(name, rule)| (name.clone(), *rule, storage));
    Arc::new(Notebook::new(limits))
}

const MICROS: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

impl Load<'_> {
    fn new<'a>(database: &'a Database, rules: &[Rule], keys: usize) -> Load<'a> {
        let mut client = database.connect();
        client
            .batch_execute(
                "DROP TABLE IF EXISTS takes;
                 CREATE TABLE takes (name text, key text, count float8, at timestamptz);
                 TRUNCATE rl_config, rateLimits",
            )
            .unwrap();
        let limits: Vec<_> =
            rules.iter().enumerate().map(|(n, rule)| (format!("limit {n}"), *rule)).collect();
        for (name, rule) in &limits {
            let sql = format!("SELECT rl_define('{name}', '{}')", rule.config());
            client.batch_execute(&sql).unwrap();
        }
        let keys: Vec<_> = (0..keys).map(|n| format!("key {n}")).collect();
        let from = now(&mut client);
        let notebook = notebook(&limits, Storage::Row);
        Load { database, client, limits, keys, from, notebook }
    }

    /// The limits have got shards, and no calls yet.
    fn in_shards(&mut self) {
        self.notebook = notebook(&self.limits, Storage::Shards);
    }

    /// 16 sessions at once, each with random transactions.
    fn run(&self, seed: u64, level: &str, limiter: &str, end: End) -> Tally {
        let started = Instant::now();
        let mut total = Tally::default();
        let Load { database, limits, keys, notebook, .. } = self; // a connection stays with its thread
        thread::scope(|scope| {
            let sessions: Vec<_> = (0..SESSIONS)
                .map(|n| {
                    scope.spawn(move || {
                        let mut random = Random(seed << 8 | n as u64);
                        let mut session = Session::new(database, level, limiter, notebook);
                        while match end {
                            End::Transactions(count) => session.tally.transactions < count,
                            End::After(duration) => started.elapsed() < duration,
                        } {
                            session.run(&Script::random(&mut random, limits, keys));
                        }
                        session.tally
                    })
                })
                .collect();
            for session in sessions {
                total.add(&session.join().unwrap());
            }
        });
        println!(
            "seed {seed}, {level}, {} limits, {} keys: {total:?} in {:.1?}",
            self.limits.len(),
            self.keys.len(),
            started.elapsed()
        );
        total
    }

    fn takes(&mut self, name: &str, key: &str) -> Vec<Take> {
        let sql = "SELECT (extract(epoch FROM at) * 1000000)::bigint, count FROM takes
                   WHERE name = $1 AND key = $2 ORDER BY at";
        let rows = self.client.query(sql, &[&name, &key]).unwrap();
        rows.iter().map(|row| Take { at: row.get(0), count: row.get(1) }).collect()
    }

    /// Returns the tokens taken according to the row, or to the shards' rows; with its log, if any.
    fn row(&mut self, name: &str, key: &str, rule: &Rule) -> (f64, Vec<i64>) {
        let sql =
            "SELECT sum(value) OVER (), ARRAY(SELECT (extract(epoch FROM entry) * 1000000)::bigint
                                                    FROM unnest(log) AS entry) FROM rateLimits
                   WHERE name = $1 AND key = $2 AND kind <> '#' LIMIT 1";
        let Some(row) = self.client.query_opt(sql, &[&name, &key]).unwrap() else {
            return (0.0, Vec::new());
        };
        let (value, log): (f64, Vec<i64>) = (row.get(0), row.get(1));
        match rule {
            TokenBucket { .. } | FixedWindow { .. } => (rule.capacity() - value, log),
            SlidingWindow { .. } => (value, log),
            SlidingLog { .. } => {
                assert_eq!(log.len() as f64, value);
                assert!(log.is_sorted(), "{log:?}");
                (value, log)
            }
        }
    }

    /// Checks every limit and key. Without a refill, also against the row; then takes the rest, token
    /// by token, up to exactly the capacity.
    fn check(&mut self, tally: &Tally, refills: bool) -> Result<(), String> {
        let notebook = self.notebook.clone();
        let mut taker = Session::new(self.database, "read committed", LIMITER, &notebook);
        let mut tokens = 0.0;
        for (name, rule) in self.limits.clone() {
            for key in self.keys.clone() {
                let takes = self.takes(&name, &key);
                let taken: f64 = takes.iter().map(|take| take.count).sum();
                tokens += taken;
                let wrong = |problem| format!("{key} of {rule:?}: {problem}");
                rule.check(self.from, &takes).map_err(wrong)?;
                let (used, log) = self.row(&name, &key, &rule);
                logged(&takes, &log, self.from).map_err(wrong)?;
                if refills {
                    continue;
                }
                if used != taken {
                    return Err(wrong(format!("{taken} were taken, the row says {used}")));
                }
                while taker.take(&name, &key, 1.0) {}
                let all = taken + std::mem::take(&mut taker.tally.tokens);
                if all != rule.capacity() || self.row(&name, &key, &rule).0 != all {
                    return Err(wrong(format!("{all} could be taken in all")));
                }
            }
        }
        if tokens != tally.tokens {
            return Err(format!("{tokens} noted, {} committed", tally.tokens));
        }
        drop(taker);
        notebook.judge()
    }
}

/// Checks that a sliding log has an entry for each of the last tokens taken, with the time of the take.
fn logged(takes: &[Take], log: &[i64], from: i64) -> Result<(), String> {
    let mut before = from;
    let mut tokens = Vec::new();
    for take in takes {
        tokens.extend((0..take.count as usize).map(|_| (before, take.at)));
        before = take.at;
    }
    if log.len() > tokens.len() {
        return Err(format!("{} entries for {} tokens", log.len(), tokens.len()));
    }
    for (entry, (after, before)) in log.iter().rev().zip(tokens.iter().rev()) {
        if !(after..=before).contains(&entry) {
            return Err(format!("an entry of {entry}, taken from {after} to {before}"));
        }
    }
    Ok(())
}

fn now(client: &mut Client) -> i64 {
    client.query_one(&format!("SELECT {MICROS}"), &[]).unwrap().get(0)
}

/// One hot key of every kind, then a few keys of all kinds at once.
fn takes_every_token_once(database: &Database, level: &str) {
    for (n, rule) in slow(1000.0).into_iter().enumerate() {
        let mut load = Load::new(database, &[rule], 1);
        let tally =
            load.run(n as u64, level, LIMITER, End::Transactions(Database::part(25) as u64));
        load.check(&tally, false).unwrap();
    }
    let mut load = Load::new(database, &slow(100.0), 3);
    let tally = load.run(9, level, LIMITER, End::Transactions(Database::part(30) as u64));
    load.check(&tally, false).unwrap();
}

#[test]
#[ignore = "needs a server: make test"]
fn every_token_is_taken_once_at_read_committed() {
    takes_every_token_once(&Database::new("load_read_committed"), LEVELS[0]);
}

#[test]
#[ignore = "needs a server: make test"]
fn every_token_is_taken_once_at_repeatable_read() {
    takes_every_token_once(&Database::new("load_repeatable_read"), LEVELS[1]);
}

#[test]
#[ignore = "needs a server: make test"]
fn every_token_is_taken_once_at_serializable() {
    takes_every_token_once(&Database::new("load_serializable"), LEVELS[2]);
}

#[test]
#[ignore = "needs a server: make test"]
fn no_more_is_taken_than_flows_in() {
    let database = Database::new("load_refill");
    for level in LEVELS {
        for (n, rule) in quick().into_iter().enumerate() {
            let mut load = Load::new(&database, &[rule], 1);
            let end = End::After(Duration::from_millis(500));
            let tally = load.run(n as u64, level, LIMITER, end);
            load.check(&tally, true).unwrap();
        }
        let mut load = Load::new(&database, &quick(), 3);
        let tally = load.run(9, level, LIMITER, End::After(Duration::from_millis(1000)));
        load.check(&tally, true).unwrap();
    }
}

/// Pruning idle rows during the takes admits no more.
#[test]
#[ignore = "needs a server: make test"]
fn no_more_is_taken_than_flows_in_while_rows_are_pruned() {
    let database = Database::new("load_prune");
    let mut load = Load::new(&database, &quick(), 300);
    let mut pruner = database.connect();
    let duration = Duration::from_millis(3000);
    let (tally, pruned) = thread::scope(|scope| {
        let pruning = scope.spawn(|| {
            let (mut pruned, started) = (0, Instant::now());
            while started.elapsed() < duration {
                let rows: i64 = pruner.query_one("SELECT rl_prune(50)", &[]).unwrap().get(0);
                pruned += rows;
            }
            pruned
        });
        let tally = load.run(1, LEVELS[0], LIMITER, End::After(duration));
        (tally, pruning.join().unwrap())
    });
    println!("{pruned} rows pruned");
    assert!(pruned > 0);
    load.check(&tally, true).unwrap();
}

/// While definitions change, limits are reset, rows deleted and the table is rewritten, sessions meet
/// retryable errors only. Not judged: nothing says on which definition a call was decided.
#[test]
#[ignore = "needs a server: make test"]
fn nothing_but_retries_is_asked_for_while_limits_change() {
    let database = Database::new("load_changes");
    for level in LEVELS {
        let load = Load::new(&database, &quick(), 2);
        let mut changer = database.connect();
        changer.batch_execute("SET deadlock_timeout = '10ms'").unwrap();
        let changes = [
            "SELECT rl_define('limit 0', rl_token_bucket(1, '1 ms', capacity => 5))",
            "SELECT rl_define('limit 1', rl_fixed_window(9, '10 ms'), 'key 1')",
            "SELECT rl_define('limit 2', rl_sliding_log(9, '10 ms'))",
            "BEGIN; SELECT rl_undefine('limit 2');
             SELECT rl_define('limit 2', rl_sliding_window(9, '10 ms')); COMMIT",
            "SELECT rl_undefine('limit 1', 'key 1')",
            "BEGIN; SELECT rl_define('limit 0', rl_sliding_log(9, '10 ms')); ROLLBACK",
            "SELECT rl_reset('limit 0', 'key 0')",
            "SELECT rl_reset_keys('limit 3')",
            "SELECT rl_limit('limit 1', 'key 0')",
            "DELETE FROM rateLimits WHERE key = 'key 1'",
            "VACUUM rateLimits",
            "TRUNCATE rateLimits",
            "VACUUM FULL rateLimits",
        ];
        let duration = Duration::from_millis(1000);
        let done = thread::scope(|scope| {
            let changing = scope.spawn(|| {
                let (mut done, mut random, started) = (0, Random(1), Instant::now());
                while started.elapsed() < duration {
                    let change = changes[random.below(changes.len() as u64) as usize];
                    match changer.batch_execute(change) {
                        Ok(()) => done += 1,
                        Err(error) => {
                            assert!(is_deadlock(&error), "{change}: {error:?}");
                            changer.batch_execute("ROLLBACK").unwrap();
                        }
                    }
                }
                done
            });
            load.run(1, level, LIMITER, End::After(duration));
            changing.join().unwrap()
        });
        println!("{done} changes");
        assert!(done > 0);
    }
}

/// The bucket never overflows here, so every token of the inflow is either taken or still there.
#[test]
#[ignore = "needs a server: make test"]
fn hungry_clients_get_all_that_flows_in() {
    const RATE: f64 = 300.0;
    const ATTEMPTS: usize = 400;
    let database = Database::new("load_hungry");
    for level in LEVELS {
        let rule = TokenBucket { capacity: 1e6, rate: RATE, period: SECOND as f64 };
        let mut load = Load::new(&database, &[rule], 1);
        let sql = "INSERT INTO rateLimits (name, key, kind, value, ts)
             VALUES ('limit 0', 'key 0', 't', 0, clock_timestamp())
             RETURNING (extract(epoch FROM ts) * 1000000)::bigint";
        let from: i64 = load.client.query_one(sql, &[]).unwrap().get(0);
        let flowed_in = |until: i64| (until - from) as f64 * RATE / SECOND as f64;
        // Not judged: a judge takes a key without a history to be full.
        let notebook = &*load.notebook.clone();

        thread::scope(|scope| {
            for _ in 0..SESSIONS {
                scope.spawn(|| {
                    let mut session = Session::new(&database, level, LIMITER, notebook);
                    for _ in 0..ATTEMPTS {
                        session.take("limit 0", "key 0", 1.0);
                    }
                });
            }
        });
        // What the sessions were too slow for, at once: however fast it flows in, less than a token stays.
        let mut session = Session::new(&database, level, LIMITER, notebook);
        let before = now(&mut load.client);
        let sql = "SELECT floor(remaining) FROM rl_check('limit 0', 'key 0')";
        let rest: f64 = load.client.query_one(sql, &[]).unwrap().get(0);
        let after = now(&mut load.client);
        assert!(rest == 0.0 || session.take("limit 0", "key 0", rest));

        let taken: f64 = load.takes("limit 0", "key 0").iter().map(|take| take.count).sum();
        let (least, most) = (flowed_in(before).floor(), flowed_in(after).floor());
        println!("{level}: {taken} taken, {least} to {most} flowed in");
        assert!((least..=most).contains(&taken));
        let sql = "SELECT value, (extract(epoch FROM ts) * 1000000)::bigint FROM rateLimits";
        let row = load.client.query_one(sql, &[]).unwrap();
        let left: f64 = row.get(0);
        assert!((taken + left - flowed_in(row.get(1))).abs() < 1e-6, "{left} left");
    }
}

/// New keys, taken from by all sessions at the same moment; in every second round some of them roll
/// back.
#[test]
#[ignore = "needs a server: make test"]
fn the_first_take_of_a_key_happens_once() {
    const TOKENS: f64 = 5.0;
    const ROUNDS: usize = Database::part(40);
    let database = Database::new("load_first");
    for level in LEVELS {
        let mut load = Load::new(&database, &slow(TOKENS), ROUNDS);
        let notebook = load.notebook.clone();
        let mut sessions: Vec<Session> =
            (0..SESSIONS).map(|_| Session::new(&database, level, LIMITER, &notebook)).collect();
        for round in 0..ROUNDS {
            let (limit, key) = (&load.limits[round % 4], &load.keys[round]);
            let barrier = Barrier::new(SESSIONS);
            thread::scope(|scope| {
                for (n, session) in sessions.iter_mut().enumerate() {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        let step = Step {
                            name: limit.0.clone(),
                            key: key.clone(),
                            count: 1.0,
                            savepoint: Savepoint::None,
                        };
                        let commit = round % 8 < 4 || n % 3 > 0;
                        barrier.wait();
                        session.run(&Script { steps: vec![step], commit });
                    });
                }
            });
            let (limit, key) = (limit.clone(), key.clone());
            let taken = load.takes(&limit.0, &key).len() as f64;
            if round % 8 < 4 {
                assert_eq!(taken, TOKENS, "{key} of {limit:?}, {level}");
            }
        }
        let mut tally = Tally::default();
        sessions.iter().for_each(|session| tally.add(&session.tally));
        drop(sessions);
        println!("{level}: {tally:?}");
        load.check(&tally, false).unwrap();
    }
}

/// Limits with shards, emptied by all sessions at once, each take in a transaction of its own: every
/// token is taken, and no session needs a retry, since a waiting one holds no lock that another needs.
#[test]
#[ignore = "needs a server: make test"]
fn a_limit_with_shards_is_emptied_without_a_deadlock() {
    const TOKENS: f64 = 200.0;
    let database = Database::new("load_shards");
    let mut client = database.connect();
    for (shards, limiter) in [
        (2, LIMITER),
        (4, LIMITER),
        (16, LIMITER),
        (
            4,
            "SELECT bool_and(ok) AS ok FROM rl_limit_all(jsonb_build_array(
                 jsonb_build_object('name', $1::text, 'key', $2::text, 'count', $3::float8)))",
        ),
    ] {
        let config = format!("rl_token_bucket(1e-300, '1 day', {TOKENS}, shards => {shards})");
        client.batch_execute(&format!("SELECT rl_define('limit', {config})")).unwrap();
        let barrier = Barrier::new(SESSIONS);
        let (taken, errors): (f64, Vec<String>) = thread::scope(|scope| {
            let sessions: Vec<_> = (0..SESSIONS)
                .map(|n| {
                    let (mut client, barrier) = (database.connect(), &barrier);
                    scope.spawn(move || {
                        let mut random = Random(n as u64);
                        client.batch_execute("SET deadlock_timeout = '10ms'").unwrap();
                        let take = client.prepare(limiter).unwrap();
                        let (mut taken, mut errors) = (0.0, Vec::new());
                        for round in 0..40 {
                            let key = format!("{shards} shards, round {round}");
                            barrier.wait();
                            loop {
                                let count = 1.0 + random.below(5) as f64;
                                match client.query_one(&take, &[&"limit", &key, &count]) {
                                    Ok(row) if row.get(0) => taken += count,
                                    Ok(_) if count == 1.0 => break,
                                    Ok(_) => {}
                                    Err(error) => errors.push(format!("{error:?}")),
                                }
                            }
                        }
                        (taken, errors)
                    })
                })
                .collect();
            let outcomes = sessions.into_iter().map(|session| session.join().unwrap());
            outcomes.fold((0.0, Vec::new()), |(taken, errors), (more, others)| {
                (taken + more, [errors, others].concat())
            })
        });
        assert_eq!((taken, errors), (40.0 * TOKENS, vec![]), "{shards} shards");
        client.batch_execute("TRUNCATE rateLimits").unwrap();
    }
}

/// A call that waits is decided at the end of its wait.
#[test]
#[ignore = "needs a server: make test"]
fn the_clock_is_read_after_the_lock() {
    let database = Database::new("load_clock");
    let mut load = Load::new(&database, &quick()[..1], 1);
    let (mut first, mut second) = (database.connect(), database.connect());
    let take = "SELECT ok FROM rl_limit('limit 0', 'key 0')";
    let pid: i32 = second.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    // A key that is new for both, once for each end of the first; then one that is there.
    for (new, end) in [(true, "ROLLBACK"), (true, "COMMIT"), (false, "COMMIT")] {
        if new {
            load.client.batch_execute("DELETE FROM rateLimits").unwrap();
        }
        first.batch_execute(&format!("BEGIN; {take}")).unwrap();
        let (granted, released) = thread::scope(|scope| {
            let waiting = scope.spawn(|| second.query_one(take, &[]).unwrap().get::<_, bool>(0));
            let blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0";
            while !load.client.query_one(blocked, &[&pid]).unwrap().get::<_, bool>(0) {
                assert!(!waiting.is_finished(), "it did not wait");
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(20));
            let released = now(&mut load.client);
            first.batch_execute(end).unwrap();
            (waiting.join().unwrap(), released)
        });
        assert!(granted);
        let sql = "SELECT (extract(epoch FROM ts) * 1000000)::bigint FROM rateLimits";
        let ts: i64 = load.client.query_one(sql, &[]).unwrap().get(0);
        let early = released - ts;
        assert!(early <= 0, "new: {new}, {end}: decided {early} us too early");
    }
}

/// The same load and checks on a naive limiter, which reads and then writes.
#[test]
#[ignore = "needs a server: make test"]
fn the_checker_sees_an_unlocked_limiter_over_admit() {
    let database = Database::new("load_unlocked");
    let mut load = Load::new(&database, &slow(200.0)[..1], 1);
    load.client
        .batch_execute(
            "INSERT INTO rateLimits (name, key, kind, value, ts) VALUES ('limit 0', 'key 0', 't', 200, now());
             CREATE FUNCTION unlocked(text, text, float8) RETURNS boolean LANGUAGE plpgsql AS $$
             DECLARE
                 was float8 := (SELECT value FROM rateLimits WHERE name = $1 AND key = $2);
             BEGIN
                 PERFORM pg_sleep(0.001);
                 IF was >= $3 THEN
                     UPDATE rateLimits SET value = was - $3 WHERE name = $1 AND key = $2;
                 END IF;
                 RETURN was >= $3;
             END $$",
        )
        .unwrap();
    let unlocked = "SELECT unlocked($1, $2, $3) AS ok";
    let tally = load.run(1, LEVELS[0], unlocked, End::Transactions(40));
    let found = load.check(&tally, false).unwrap_err();
    println!("{found}");
    assert!(found.contains("was the most"), "{found}");
}

/// Takes of one token each, a thousandth of a second apart.
fn in_a_row(count: usize) -> Vec<Take> {
    (1..=count).map(|n| Take { at: n as i64 * 1_000, count: 1.0 }).collect()
}

#[test]
fn the_checks_allow_what_is_allowed_and_one_token_more_is_seen() {
    let full = 50 * SECOND;
    for rule in slow(20.0) {
        let late = |takes: Vec<Take>| -> Vec<Take> {
            takes.iter().map(|take| Take { at: take.at + full, ..*take }).collect()
        };
        assert_eq!(rule.check(full, &late(in_a_row(20))), Ok(()), "{rule:?}");
        assert!(rule.check(full, &late(in_a_row(21))).is_err(), "{rule:?}");
    }
}

#[test]
fn the_checks_see_too_much_in_any_window_and_after_any_pause() {
    // A pause, after which more is taken than a limit of 30 tokens and 10 a second has.
    for (rule, allowed) in [
        (TokenBucket { capacity: 30.0, rate: 10.0, period: SECOND as f64 }, 20),
        (FixedWindow { capacity: 30.0, rate: 10.0, period: SECOND, start: 0 }, 20),
        (SlidingWindow { rate: 30.0, period: 2 * SECOND }, 0),
        (SlidingLog { rate: 30.0, period: 3 * SECOND / 2 }, 30),
    ] {
        let takes = |more: usize| {
            let mut takes = in_a_row(30);
            takes.extend(
                in_a_row(more).iter().map(|take| Take { at: 2 * SECOND + take.at, ..*take }),
            );
            takes
        };
        assert_eq!(rule.check(0, &takes(allowed)), Ok(()), "{rule:?}");
        // Not the first take after the pause, whose time has the widest bounds.
        assert!(rule.check(0, &takes(allowed + 3)).is_err(), "{rule:?}");
    }
}

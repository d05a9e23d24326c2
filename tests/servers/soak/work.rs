//! Sessions that take tokens, note it in the same transaction, and remember the outcome, as far as they
//! know it: without an answer to COMMIT it is unknown. What they were answered is recorded for the judge.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::{Client, GenericClient};
use ratelimit_judge::{Recording, Storage, judge};

use crate::SESSIONS;
use crate::check::now;
use crate::history::{LIMITER, Notebook, Take};
use crate::own::Server;
use crate::rules::{Random, Rule, quick, slow};

/// A limit; one whose refill is below a float's precision is checked to the token.
pub struct Limit {
    pub name: String,
    pub rule: Rule,
    pub exact: bool,
    shards: u32,
}

/// Every kind, one of them in shards and one with a name as long as a name may be.
fn limits() -> Vec<Limit> {
    let slow = slow(1e6).into_iter().enumerate().map(|(n, rule)| match rule {
        // A log that is stored out of line, but not so long that it dominates the test.
        Rule::SlidingLog { period, .. } => (n, Rule::SlidingLog { rate: 500.0, period }),
        _ => (n, rule),
    });
    let long = |n| if n == 0 { "n".repeat(200) } else { format!("slow {n}") };
    let mut limits: Vec<Limit> =
        slow.map(|(n, rule)| Limit { name: long(n), rule, exact: true, shards: 1 }).collect();
    let rule = limits[0].rule;
    limits.push(Limit { name: "shards".into(), rule, exact: true, shards: 4 });
    let quick = quick().into_iter().enumerate();
    limits.extend(quick.map(|(n, rule)| Limit {
        name: format!("quick {n}"),
        rule,
        exact: false,
        shards: 1,
    }));
    limits
}

/// Starts a server with all of them, full since the returned instant.
pub fn begin() -> (Server, Vec<Limit>, i64) {
    let (server, limits) = (Server::start(), limits());
    let mut client = server.client();
    define(&mut client, &limits);
    let from = now(&mut client);
    (server, limits, from)
}

/// For what the sessions on these limits are answered, in all rounds since they were full.
pub fn notebook(limits: &[Limit]) -> Notebook {
    Notebook::new(limits.iter().map(|Limit { name, rule, shards, .. }| {
        (name.clone(), *rule, if *shards > 1 { Storage::Shards } else { Storage::Row })
    }))
}

/// Has the judge say whether some order of the transactions explains every answer; it refuses them when one is changed.
pub fn judged(notebook: &Notebook) {
    notebook.judge().unwrap();
    let changed = notebook.recorder.history().with_a_denial().expect("a take");
    judge(&changed).expect_err("a take that is told to be a denial");
}

/// The limits in a database, and the tables for notes and checks.
fn define(client: &mut Client, limits: &[Limit]) {
    client
        .batch_execute(
            "CREATE TABLE takes (work bigint, name text, key text, count float8, at timestamptz);
             CREATE TABLE limits (name text, capacity float8, sliding boolean, exact boolean)",
        )
        .unwrap();
    for Limit { name, rule, exact, shards } in limits {
        let mut config = rule.config();
        if *shards > 1 {
            config.insert_str(1, &format!("\"shards\": {shards}, "));
        }
        client.batch_execute(&format!("SELECT rl_define('{name}', '{config}')")).unwrap();
        let sliding = matches!(rule, Rule::SlidingWindow { .. } | Rule::SlidingLog { .. });
        let insert = "INSERT INTO limits VALUES ($1, $2, $3, $4)";
        client.execute(insert, &[name, &rule.capacity(), &sliding, exact]).unwrap();
    }
}

/// The outcome of a transaction, as its session knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    Committed,
    RolledBack,
    /// Prepared: it waits for COMMIT PREPARED.
    Prepared,
    /// The server was asked to commit, and gave no answer.
    Unknown,
}

/// A transaction; `tokens` is what it takes if it commits.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub outcome: Outcome,
    pub tokens: f64,
}

/// By number, which is that of the note and of a prepared transaction.
pub type Works = BTreeMap<i64, Work>;

/// A key: one of four hot ones, or of many as long as keys may be, which pglz can compress or not.
fn key(random: &mut Random, round: u64) -> String {
    let n = random.below(200);
    match random.below(8) {
        0..4 => format!("hot {}", n % 4),
        4 | 5 => format!("{}{}", "k".repeat(1000), round * 50 + n),
        _ => {
            let mut letters = Random(round * 50 + n);
            let letter = |_| char::from(b' ' + letters.below(95) as u8);
            (0..1024).map(letter).collect()
        }
    }
}

/// The options of a round.
#[derive(Clone, Copy)]
pub struct Round {
    pub number: u64,
    /// With synchronous_commit off a crash may lose a committed transaction, but only whole.
    pub synchronous: bool,
    /// Whether lost connections are reopened.
    pub reconnect: bool,
}

struct Session<'a> {
    client: Client,
    take: Take,
    notebook: &'a Notebook,
    recording: Recording<'a>,
    limits: &'a [Limit],
    random: Random,
    round: Round,
    next: i64,
    works: Works,
    /// The number of errors by SQLSTATE.
    errors: BTreeMap<String, u64>,
}

fn prepare(mut client: Client, n: usize, round: Round) -> Result<(Client, Take), postgres::Error> {
    let level = ["read committed", "repeatable read", "serializable"][n / 2 % 3];
    let timeouts = match n % 4 {
        1 => "statement_timeout = '20ms'",
        2 => "lock_timeout = '3ms'",
        _ => "lock_timeout = '300ms'",
    };
    let synchronous = if round.synchronous { "on" } else { "off" };
    client.batch_execute(&format!(
        "SET application_name = 'session'; SET synchronous_commit = {synchronous};
         SET default_transaction_isolation = '{level}'"
    ))?;
    let note = "current_setting('soak.work')::bigint, $1, $2, $3, clock_timestamp()";
    let take = Take::prepare(&mut client, LIMITER, note)?;
    // Last: a slow machine needs longer to prepare.
    client.batch_execute(&format!("SET {timeouts}"))?;
    Ok((client, take))
}

/// Returns the errors that a session may meet: it was cancelled, timed out, or must retry.
fn is_expected(error: &postgres::Error) -> bool {
    error.code().is_none_or(|code| {
        [
            SqlState::QUERY_CANCELED,
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
        ]
        .contains(code)
    })
}

impl Session<'_> {
    fn transaction(&mut self) -> Result<(), postgres::Error> {
        let work = self.next;
        self.next += 1;
        let mut tokens = 0.0;
        let mut told = |outcome, tokens| {
            self.works.insert(work, Work { outcome, tokens });
        };
        told(Outcome::RolledBack, 0.0);
        let Session { client, take, notebook, recording, limits, random, .. } = self;
        client.batch_execute(&format!("BEGIN; SET LOCAL soak.work = {work}"))?;
        recording.begin();
        for _ in 0..1 + random.below(3) {
            let limit = &limits[random.below(limits.len() as u64) as usize];
            let key = key(random, self.round.number);
            let count = 1.0 + random.below(3) as f64;
            let savepoint = random.below(6);
            if savepoint < 3 {
                client.batch_execute("SAVEPOINT s")?;
                recording.savepoint();
            }
            let answer = notebook.take((recording, client), take, (&limit.name, &key, count))?;
            if savepoint == 0 {
                recording.roll_back_to(|| client.batch_execute("ROLLBACK TO SAVEPOINT s"))?;
            } else if answer.ok {
                tokens += count;
            }
            if savepoint == 1 {
                client.batch_execute("RELEASE SAVEPOINT s")?;
            }
        }
        match random.below(20) {
            0..4 => recording.roll_back(|| client.batch_execute("ROLLBACK"))?,
            4 => {
                told(Outcome::Unknown, tokens);
                let prepare = format!("PREPARE TRANSACTION '{work}'");
                recording.prepare(|| client.batch_execute(&prepare))?;
                told(Outcome::Prepared, tokens);
                thread::sleep(Duration::from_millis(random.below(10)));
                let commit = random.below(2) > 0;
                told(Outcome::Unknown, tokens);
                recording.finish(commit, || finish(client, work, commit))?;
                told(if commit { Outcome::Committed } else { Outcome::RolledBack }, tokens);
            }
            _ => {
                told(Outcome::Unknown, tokens);
                recording.commit(|| client.batch_execute("COMMIT"))?;
                told(Outcome::Committed, tokens);
            }
        }
        Ok(())
    }
}

fn finish(client: &mut Client, work: i64, commit: bool) -> Result<(), postgres::Error> {
    let how = if commit { "COMMIT" } else { "ROLLBACK" };
    client.batch_execute(&format!("{how} PREPARED '{work}'"))
}

/// Finds the prepared transactions of these works, commits one half and rolls back the other.
pub fn end_prepared(client: &mut Client, works: &mut Works) -> Result<usize, postgres::Error> {
    let rows = client.query("SELECT gid::bigint FROM pg_prepared_xacts", &[])?;
    let prepared: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    for (number, work) in works.iter() {
        let waits = work.outcome == Outcome::Prepared;
        assert!(!waits || prepared.contains(number), "{number} was prepared, and is gone");
    }
    let mut ended = 0;
    for number in prepared {
        let Some(work) = works.get_mut(&number) else { continue };
        let commit = number % 2 == 0;
        work.outcome = Outcome::Unknown;
        finish(client, number, commit)?;
        work.outcome = if commit { Outcome::Committed } else { Outcome::RolledBack };
        ended += 1;
    }
    Ok(ended)
}

/// Stops the sessions when it is dropped, so also if what runs meanwhile fails.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs 16 sessions at once until they are stopped, or, unless they reconnect, terminated. `meanwhile`
/// runs at the same time; when it ends they stop.
pub fn load(
    server: &Server,
    (limits, notebook): (&[Limit], &Notebook),
    round: Round,
    meanwhile: impl FnOnce(),
) -> (Works, BTreeMap<String, u64>) {
    let stop = &AtomicBool::new(false);
    // All connect first.
    let connected: Vec<_> =
        (0..SESSIONS).map(|n| prepare(server.client(), n, round).unwrap()).collect();
    thread::scope(|scope| {
        let sessions: Vec<_> = connected
            .into_iter()
            .enumerate()
            .map(|(n, (client, take))| {
                scope.spawn(move || {
                    let seed = round.number << 8 | n as u64;
                    let mut session = Session {
                        client,
                        take,
                        notebook,
                        recording: notebook.recorder.session(),
                        limits,
                        random: Random(seed),
                        round,
                        next: (seed << 32) as i64,
                        works: Works::new(),
                        errors: BTreeMap::new(),
                    };
                    session.run(server, n, stop);
                    (session.works, session.errors)
                })
            })
            .collect();
        let ends = Ends(stop);
        meanwhile();
        drop(ends);
        let (mut works, mut errors) = (Works::new(), BTreeMap::new());
        for session in sessions {
            let (own, met) = session.join().unwrap();
            works.extend(own);
            met.into_iter().for_each(|(code, times)| *errors.entry(code).or_default() += times);
        }
        (works, errors)
    })
}

impl Session<'_> {
    fn run(&mut self, server: &Server, n: usize, stop: &AtomicBool) {
        let mut outcome = Ok(());
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = outcome {
                assert!(is_expected(&error), "{error:?}");
                let code = error.code().map_or("no answer", |code| code.code());
                *self.errors.entry(code.to_owned()).or_default() += 1;
                outcome = if !self.client.is_closed() {
                    self.roll_back()
                } else if self.round.reconnect {
                    self.recording.lost();
                    self.reconnect(server, n)
                } else {
                    return;
                };
                continue;
            }
            outcome = self.transaction();
        }
    }

    /// Also where COMMIT PREPARED was cancelled: a session that wants the whole table would wait for the round's end,
    /// which may wait for it.
    fn roll_back(&mut self) -> Result<(), postgres::Error> {
        self.recording.roll_back(|| self.client.batch_execute("ROLLBACK"))?;
        end_prepared(&mut self.client, &mut self.works)?;
        Ok(())
    }

    fn reconnect(&mut self, server: &Server, n: usize) -> Result<(), postgres::Error> {
        // First, since a session that waits for the whole table blocks all others, and waits for what is prepared.
        let mut client = server.client();
        end_prepared(&mut client, &mut self.works)?;
        (self.client, self.take) = prepare(client, n, self.round)?;
        Ok(())
    }
}

/// Returns the number of backends that run sessions, and one of them.
pub fn some_session(client: &mut impl GenericClient) -> Option<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'session'
               ORDER BY random() LIMIT 1";
    client.query_opt(sql, &[]).unwrap().map(|row| row.get(0))
}

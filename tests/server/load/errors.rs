//! Sessions that count their errors by SQLSTATE, and go on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use postgres::{Client, Error};

use super::Random;
use super::caller::STILL;
use crate::database::Database;

/// The number of errors by SQLSTATE, and the message of the first.
pub type Errors = BTreeMap<String, (u64, String)>;

/// Adds an error.
///
/// # Panics
/// If it is none of the server's.
pub fn note(errors: &mut Errors, error: &Error) {
    let Some(reported) = error.as_db_error() else { panic!("{error:?}") };
    let detail = reported.detail().unwrap_or_default();
    let (count, _) = errors
        .entry(reported.code().code().to_owned())
        .or_insert_with(|| (0, format!("{}: {detail}", reported.message())));
    *count += 1;
}

fn add(errors: &mut Errors, more: Errors) {
    for (code, (count, first)) in more {
        errors.entry(code).or_insert((0, first)).0 += count;
    }
}

/// Runs `calls` in each of `sessions` at once, with a fixed clock, and returns their errors.
/// A waiting session checks for a deadlock at once, so that hardly any is missed.
pub fn calls(
    database: &Database,
    (sessions, calls): (usize, usize),
    call: impl Fn(&mut Client, &mut Random, usize) -> Result<(), Error> + Sync,
) -> Errors {
    let mut all = Errors::new();
    thread::scope(|scope| {
        let sessions: Vec<_> = (0..sessions)
            .map(|session| {
                let call = &call;
                scope.spawn(move || {
                    let mut client = quick_to_see_deadlocks(database);
                    let mut random = Random(session as u64 + 1);
                    let mut errors = Errors::new();
                    for _ in 0..calls {
                        if let Err(error) = call(&mut client, &mut random, session) {
                            note(&mut errors, &error);
                        }
                    }
                    errors
                })
            })
            .collect();
        for session in sessions {
            add(&mut all, session.join().unwrap());
        }
    });
    all
}

/// As [`calls`], but while `beside` runs, which gets the count of calls so far; returns its result, too.
pub fn calls_beside<T>(
    database: &Database,
    sessions: usize,
    call: impl Fn(&mut Client, &mut Random, usize) -> Result<(), Error> + Sync,
    beside: impl FnOnce(&Made) -> T,
) -> (Errors, T) {
    let made = Made { calls: AtomicU64::new(0), running: AtomicBool::new(true) };
    let mut all = Errors::new();
    let result = thread::scope(|scope| {
        let sessions: Vec<_> = (0..sessions)
            .map(|session| {
                let (call, made) = (&call, &made);
                scope.spawn(move || {
                    let mut client = quick_to_see_deadlocks(database);
                    let mut random = Random(session as u64 + 1);
                    let mut errors = Errors::new();
                    let _stop = Stop(&made.running);
                    while made.running.load(Ordering::Relaxed) {
                        if let Err(error) = call(&mut client, &mut random, session) {
                            note(&mut errors, &error);
                        }
                        made.calls.fetch_add(1, Ordering::Relaxed);
                    }
                    errors
                })
            })
            .collect();
        let stop = Stop(&made.running);
        let result = beside(&made);
        drop(stop);
        for session in sessions {
            add(&mut all, session.join().unwrap());
        }
        result
    });
    (all, result)
}

/// How many calls the sessions have made.
pub struct Made {
    calls: AtomicU64,
    running: AtomicBool,
}

impl Made {
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Waits for this many more, or for a session that failed.
    pub fn wait_for(&self, more: u64) {
        let enough = self.calls() + more;
        while self.calls() < enough && self.running.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A session that looks for deadlocks at once.
pub fn quick_to_see_deadlocks(database: &Database) -> Client {
    let mut client = database.connect();
    client.batch_execute(&format!("SET deadlock_timeout = '10ms'; {STILL}")).unwrap();
    client
}

/// Stops the sessions when dropped, also after a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

//! The contract of a store on the model: one order of the steps, each call up to its end or a wait.

use ratelimit_core::config;

use cases::{Case, Store};

use crate::postgres::{Database, Primitive, SavedPlaces, StepReply, Xid};
use crate::run::{self, AccessPath, Given, Setting};
use crate::statement::{Answered, Command, KEYS, Outcome};
use crate::world::BEGIN;

#[path = "../../../tests/contract/mod.rs"]
mod cases;

/// The maximum number of sessions in a case. The worker is one more.
const SESSIONS: usize = 3;

/// Runs all cases; returns the number of runs, one or more of each case.
///
/// # Panics
/// An answer is not the expected one.
pub fn run() -> usize {
    let mut runs = 0;
    for case in &cases::cases() {
        for &store in &case.stores {
            for access in AccessPath::ALL {
                Sessions::new(case, store, access).run(case, &format!("{store:?}, {access:?}"));
                runs += 1;
            }
        }
    }
    runs
}

/// The sessions of a case.
struct Sessions {
    setting: Setting,
    database: Database,
    sessions: [Session; SESSIONS],
}

/// A session.
#[derive(Default)]
struct Session {
    /// The statement that has begun, and the replies to its steps.
    begun: Option<(Command, Vec<StepReply>)>,
    /// The transaction that it waits for.
    awaits: Option<Xid>,
    is_in_transaction: bool,
    savepoint: u8,
    leases: Vec<i64>,
}

impl Sessions {
    fn new(case: &Case, store: Store, access: AccessPath) -> Sessions {
        let parse = |text: &&str| {
            config::definition(&store.config(text)).unwrap_or_else(|error| panic!("{error}"))
        };
        let setting = Setting {
            limits: case.limits.iter().map(parse).collect(),
            access,
            clock_moves: false,
            by_key: false,
            definitions_change: false,
            has_holds: false,
            has_worker: true,
        };
        let mut database = Database::new(SESSIONS + 1);
        database.now = BEGIN;
        database.saved = SavedPlaces::new(KEYS.len());
        Sessions { setting, database, sessions: Default::default() }
    }

    fn run(mut self, case: &Case, how: &str) {
        let place = format!("{}, {how}", case.name);
        for step in &case.steps {
            if let Some(millis) = step.statement.strip_prefix("clock ") {
                self.database.now += 1000 * millis.parse::<i64>().unwrap_or_default();
                continue;
            }
            let answer = self.statement(step.session - 1, step.statement);
            step.check(&place, &answer);
        }
    }

    /// Executes a statement; returns its answer.
    fn statement(&mut self, number: usize, text: &str) -> String {
        let session = &mut self.sessions[number];
        match text {
            "begin" => session.is_in_transaction = true,
            "commit" => self.end(number, &Primitive::Commit),
            "rollback" => self.end(number, &Primitive::Rollback),
            "savepoint" => {
                self.database.begin(number);
                session.savepoint = self.database.open[number].len() as u8;
            }
            "rollback_to" => {
                self.database.execute(number, &Primitive::RollbackTo(session.savepoint), 0);
            }
            "ends" => return self.go_on(number),
            _ => {
                let requests = text.split(", ").map(|request| format!("{request} @defined"));
                let command = Command::parse(&requests.collect::<Vec<_>>().join(", "));
                session.begun = Some((command, Vec::new()));
                return self.go_on(number);
            }
        }
        String::new()
    }

    /// Executes what a session has begun, up to a wait.
    fn go_on(&mut self, number: usize) -> String {
        let session = &mut self.sessions[number];
        let (command, mut log) = session.begun.take().expect("a statement that waits");
        loop {
            let database = std::mem::take(&mut self.database);
            let given = Given { leases: &session.leases, ..Given::default() };
            let ran = run::run(&self.setting, database, number, &command, given, log);
            (self.database, log) = (ran.database, ran.log);
            match ran.state {
                Ok(outcome) => return self.outcome(number, outcome),
                Err(step) if self.database.is_enabled(number, &step) => {
                    log.push(self.database.execute(number, &step, 0));
                }
                Err(step) => {
                    session.awaits = match step {
                        Primitive::WaitForEnd(xid) => Some(xid),
                        _ => None,
                    };
                    session.begun = Some((command, log));
                    return "waits".into();
                }
            }
        }
    }

    fn outcome(&mut self, number: usize, outcome: Outcome) -> String {
        if !self.sessions[number].is_in_transaction {
            self.end(number, &Primitive::Commit);
        }
        let session = &mut self.sessions[number];
        let answer = |answered: &Answered| {
            let wait = answered.retry_after.map(|wait| wait.0 as f64 / 1e3);
            cases::answer(answered.ok, answered.remaining, wait)
        };
        match outcome {
            Outcome::Answered(answers) => {
                session.leases.extend(answers.iter().filter_map(|answered| answered.lease));
                answers.iter().map(answer).collect::<Vec<_>>().join("; ")
            }
            Outcome::Credited(_, left) => cases::answer(true, left, None),
            Outcome::Reset(was) => cases::yes(was),
            Outcome::Extended(_, until) => cases::yes(until.is_some()),
            Outcome::Released(_, was_there) => cases::yes(was_there),
            Outcome::Pruned(count) => count.to_string(),
            outcome => format!("{outcome:?}"),
        }
    }

    fn end(&mut self, number: usize, how: &Primitive) {
        self.database.awaited = self.sessions.iter().filter_map(|session| session.awaits).collect();
        self.database.execute(number, how, 0);
        self.sessions[number].is_in_transaction = false;
    }
}

//! Statements that calls share: those that come while one is under way go together in the next, by rl_limit_each. A
//! call that comes alone goes at once, by rl_limit.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, Sender};
use tokio::time::{Instant, timeout, timeout_at};

use crate::database::Database;
use crate::limit::parsed;
use crate::statement::{self, request};
use crate::{Error, Limit, Pool};

/// The most calls, and bytes of requests, of a statement.
const MOST_CALLS: usize = 64;
const MOST_BYTES: usize = 1_000_000;

/// A statement that is out for longer than this, or than 4 times the median, no longer counts.
const LATE: Duration = Duration::from_millis(20);

/// How long calls go alone where rl_limit_each can't be called.
const ALONE: Duration = Duration::from_secs(600);

/// The calls of layers that share statements, as one of the layers, which has one limit, makes them.
#[derive(Clone)]
pub(crate) struct Shared<P: Pool> {
    pub database: Database<P>,
    /// The statement of several calls.
    pub each: Arc<str>,
    pub state: Arc<Mutex<State<P>>>,
}

pub(crate) struct State<P: Pool> {
    /// A statement is under way, and counts.
    is_busy: bool,
    waiting: VecDeque<Waiting<P>>,
    /// Rows that another transaction has locked: one call waits for each, and these calls for that one.
    locked: HashMap<String, Vec<Waiting<P>>>,
    alone_until: Option<Instant>,
    /// How long the last statements took.
    took: VecDeque<Duration>,
}

/// A call, as a request of rl_limit_each.
struct Waiting<P: Pool> {
    /// The statement of its layer.
    each: Arc<str>,
    /// Names the row that it locks. Requests for one row go together only with one config.
    row: String,
    config: Option<String>,
    json: String,
    deadline: Instant,
    answer: Sender<Answer<P>>,
}

enum Answer<P: Pool> {
    Decided(Result<Value, Error>),
    /// Go in the next statement, which has no other call.
    Turn(Turn<P>),
    /// Go alone: the statement has taken nothing for it. Other calls for the row wait while this is kept.
    Alone(Option<Row<P>>),
}

impl<P: Pool> Default for State<P> {
    fn default() -> Self {
        Self {
            is_busy: false,
            waiting: VecDeque::new(),
            locked: HashMap::new(),
            alone_until: None,
            took: VecDeque::new(),
        }
    }
}

impl<P: Pool> State<P> {
    fn goes_alone(&self) -> bool {
        self.alone_until.is_some_and(|end| Instant::now() < end)
    }

    /// Takes the calls of the next statement: none that is given up, nor for a locked row, which waits.
    fn take(&mut self) -> Vec<Waiting<P>> {
        self.waiting.retain(|call| !call.answer.is_closed());
        let mut calls: Vec<Waiting<P>> = Vec::new();
        let mut bytes = 0;
        for call in mem::take(&mut self.waiting) {
            let Waiting { each, row, config, json, .. } = &call;
            let goes_with = |other: &Waiting<P>| {
                other.each == *each && (other.row != *row || other.config == *config)
            };
            let fits = calls.len() < MOST_CALLS && bytes + json.len() < MOST_BYTES;
            if let Some(line) = self.locked.get_mut(row) {
                line.push(call);
            } else if calls.is_empty() || fits && calls.iter().all(goes_with) {
                bytes += json.len() + 1;
                calls.push(call);
            } else {
                self.waiting.push_back(call);
            }
        }
        calls
    }
}

impl<P: Pool> Shared<P> {
    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call: sends its request with others, or itself `alone`.
    pub async fn call(
        &self,
        limit: &Limit,
        key: &str,
        count: f64,
        deadline: Instant,
        alone: impl Future<Output = Result<Value, Error>>,
    ) -> Result<Value, Error> {
        let row = format!("{} {} {key}", limit.name.len(), limit.name);
        let (answer, waits) = oneshot::channel();
        self.place(Waiting {
            each: self.each.clone(),
            row: row.clone(),
            config: limit.config.clone(),
            json: request(limit, key, count),
            deadline,
            answer,
        });
        match timeout_at(deadline, waits).await {
            Ok(Ok(Answer::Decided(result))) => result,
            Ok(Ok(Answer::Turn(turn))) => turn.run(Some(&row), alone).await.0,
            Ok(Ok(Answer::Alone(_row))) => alone.await,
            Ok(Err(_)) => Err(Error::unavailable("the runtime is shutting down")),
            Err(_) => Err(self.database.late("there was no answer of the database")),
        }
    }

    /// Answers a call at once if no statement is under way; otherwise it waits for the end of one.
    fn place(&self, call: Waiting<P>) {
        let mut state = self.state();
        let at_once = if state.goes_alone() {
            Answer::Alone(None)
        } else if let Some(line) = state.locked.get_mut(&call.row) {
            return line.push(call);
        } else if mem::replace(&mut state.is_busy, true) {
            return state.waiting.push_back(call);
        } else {
            Answer::Turn(Turn(self.clone()))
        };
        drop(state);
        drop(call.answer.send(at_once));
    }

    /// How long a statement counts.
    fn late(&self) -> Duration {
        let mut took = Vec::from(self.state().took.clone());
        took.sort_unstable();
        took.get(took.len() / 2).map_or(LATE, |median| LATE.max(*median * 4))
    }

    /// Sends the calls that wait, unless a statement is under way.
    fn next(&self, mut state: MutexGuard<'_, State<P>>) {
        if state.is_busy {
            return;
        }
        let runtime = Handle::try_current().ok().filter(|_| !state.goes_alone());
        let Some(runtime) = runtime else {
            let calls = mem::take(&mut state.waiting);
            drop(state);
            return calls.into_iter().for_each(|call| drop(call.answer.send(Answer::Alone(None))));
        };
        let calls = state.take();
        if calls.is_empty() {
            return;
        }
        state.is_busy = true;
        drop(state);
        let turn = Turn(self.clone());
        match <[_; 1]>::try_from(calls) {
            Ok([call]) => drop(call.answer.send(Answer::Turn(turn))),
            Err(calls) => drop(runtime.spawn(turn.send(calls))),
        }
    }

    /// Lets a call wait for a row, and the others for the row wait for this call; None: another one waits already.
    fn lock(&self, state: &mut State<P>, row: &str) -> Option<Row<P>> {
        if state.locked.contains_key(row) {
            return None;
        }
        state.locked.insert(row.to_owned(), Vec::new());
        Some(Row(self.clone(), row.to_owned()))
    }
}

/// The right to send the next statement. It ends with the statement, if that is late or given up before, then.
struct Turn<P: Pool>(Shared<P>);

impl<P: Pool> Drop for Turn<P> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_busy = false;
        self.0.next(state);
    }
}

/// A row that another transaction has locked. Held by the call that waits for it; those that wait for this call are
/// sent next.
struct Row<P: Pool>(Shared<P>, String);

impl<P: Pool> Drop for Row<P> {
    fn drop(&mut self) {
        let Self(shared, row) = self;
        let mut state = shared.state();
        for call in state.locked.remove(row).into_iter().flatten().rev() {
            state.waiting.push_front(call);
        }
        shared.next(state);
    }
}

impl<P: Pool> Turn<P> {
    /// Runs a statement, of the call for a `row` or of several, and returns the turn unless it was late: then the
    /// others for the row wait for this call.
    async fn run<T>(
        self,
        row: Option<&str>,
        statement: impl Future<Output = T>,
    ) -> (T, Option<Self>) {
        let (shared, began) = (self.0.clone(), Instant::now());
        let mut statement = pin!(statement);
        let result = match timeout(shared.late(), &mut statement).await {
            Ok(result) => (result, Some(self)),
            Err(_) => {
                let _row = row.and_then(|row| shared.lock(&mut shared.state(), row));
                drop(self);
                (statement.await, None)
            }
        };
        let mut state = shared.state();
        state.took.truncate(15);
        state.took.push_front(began.elapsed());
        result
    }

    /// Sends several calls, and answers each.
    async fn send(self, calls: Vec<Waiting<P>>) {
        let shared = self.0.clone();
        let database = &shared.database;
        let requests: Vec<_> = calls.iter().map(|call| &*call.json).collect();
        let requests = format!("[{}]", requests.join(","));
        let deadlines = calls.iter().map(|call| call.deadline);
        let deadline = deadlines.max().unwrap_or_else(|| database.deadline());
        let values = [None, None, None, Some(&*requests)];
        let (text, turn) = self.run(None, database.run(deadline, &calls[0].each, values)).await;
        let answers: Vec<_> = match text.and_then(|text| parsed(&text)) {
            Ok(Value::Array(results)) => {
                let answers = calls.into_iter().zip(results).filter_map(|(call, result)| {
                    let error = &result["error"];
                    let message = error["message"].as_str().unwrap_or_default();
                    let answer = match error["code"].as_str() {
                        None => Answer::Decided(Ok(result)),
                        Some("55P03") => {
                            let mut state = shared.state();
                            if let Some(line) = state.locked.get_mut(&call.row) {
                                line.push(call);
                                return None;
                            }
                            Answer::Alone(shared.lock(&mut state, &call.row))
                        }
                        Some(code) => Answer::Decided(Err(Error::new(message, Some(code)))),
                    };
                    Some((call.answer, answer))
                });
                let answers = answers.collect();
                drop(turn); // the next calls know which rows are locked
                answers
            }
            Ok(_) => return,
            Err(error) => {
                if matches!(error.code(), Some("42501" | "42883" | "0A000")) {
                    shared.state().alone_until = Some(Instant::now() + ALONE);
                }
                drop(turn);
                let fails = fails_each(&error, database).await;
                let answer = || match fails {
                    true => Answer::Decided(Err(error.clone())),
                    false => Answer::Alone(None),
                };
                calls.into_iter().map(|call| (call.answer, answer())).collect()
            }
        };
        for (call, answer) in answers {
            let _ = call.send(answer);
        }
    }
}

/// Connections, resources, and an operator who intervenes.
const CLASSES: [&str; 3] = ["08", "53", "57"];

/// Whether each call has this error of a statement as a whole; otherwise it can't have taken anything, and each is sent
/// again, alone. A serializable transaction can fail after limits in memory are taken.
async fn fails_each<P: Pool>(error: &Error, database: &Database<P>) -> bool {
    match error.code() {
        None => true,
        Some("40001") => {
            let sql = statement::isolation();
            let isolation = database.run(database.deadline(), &sql, [None; 4]).await;
            isolation.is_ok_and(|isolation| isolation == "serializable")
        }
        Some(code) => error.is_not_now() || CLASSES.iter().any(|class| code.starts_with(class)),
    }
}

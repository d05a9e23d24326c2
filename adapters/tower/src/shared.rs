//! Statements that calls share: those that come while one is under way go together in the next, by rl_limit_each. A
//! call that comes alone goes at once, by rl_limit.

use std::collections::VecDeque;
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, Receiver, Sender};
use tokio::time::{Instant, timeout, timeout_at};

use crate::database::Database;
use crate::limit::parsed;
use crate::statement::Statement;
use crate::{Error, Pool};

/// The most calls, and bytes of requests, of a statement.
const MOST_CALLS: usize = 64;
const MOST_BYTES: usize = 1_000_000;

/// A statement that is out for longer than this, or than 4 times the median, no longer counts.
const LATE: Duration = Duration::from_millis(20);

/// How long calls go alone where rl_limit_each can't be called.
const ALONE: Duration = Duration::from_secs(600);

/// The calls of a layer.
pub(crate) struct Shared<P: Pool>(Mutex<State<P>>);

struct State<P: Pool> {
    /// A statement is under way, and counts.
    is_busy: bool,
    waiting: VecDeque<Waiting<P>>,
    alone_until: Option<Instant>,
    /// How long the last statements took.
    took: VecDeque<Duration>,
}

struct Waiting<P: Pool> {
    /// The statement of the layer, and the request in it.
    each: Arc<Statement>,
    request: String,
    answer: Sender<Answer<P>>,
}

enum Answer<P: Pool> {
    Decided(Value),
    Failed(Error),
    /// It has taken nothing, and is to be sent alone; with the turn, if it is the only one.
    Alone(Option<Turn<P>>),
}

/// How a call goes on.
enum Place<P: Pool> {
    Alone,
    Turn(Turn<P>),
    Waiting(Receiver<Answer<P>>),
}

impl<P: Pool> Default for Shared<P> {
    fn default() -> Self {
        let (waiting, took) = (VecDeque::new(), VecDeque::new());
        Self(Mutex::new(State { is_busy: false, waiting, alone_until: None, took }))
    }
}

impl<P: Pool> Shared<P> {
    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call: sends a `request` in the statement `each`, or itself `alone`.
    pub async fn call(
        self: &Arc<Self>,
        database: &Database<P>,
        deadline: Instant,
        each: &Arc<Statement>,
        request: String,
        alone: impl Future<Output = Result<Value, Error>>,
    ) -> Result<Value, Error> {
        let waits = match self.place(database, each, request) {
            Place::Waiting(waits) => waits,
            Place::Turn(turn) => return turn.run(alone).await,
            Place::Alone => return alone.await,
        };
        match timeout_at(deadline, waits).await {
            Ok(Ok(Answer::Decided(result))) => Ok(result),
            Ok(Ok(Answer::Failed(error))) => Err(error),
            Ok(Ok(Answer::Alone(Some(turn)))) => turn.run(alone).await,
            Ok(Ok(Answer::Alone(None))) => alone.await,
            Ok(Err(_)) => Err(Error::unavailable("the runtime is shutting down")),
            Err(_) => Err(database.late("there was no answer of the database")),
        }
    }

    fn place(
        self: &Arc<Self>,
        database: &Database<P>,
        each: &Arc<Statement>,
        request: String,
    ) -> Place<P> {
        let mut state = self.state();
        if state.alone_until.is_some_and(|end| Instant::now() < end) {
            Place::Alone
        } else if mem::replace(&mut state.is_busy, true) {
            let (answer, waits) = oneshot::channel();
            state.waiting.push_back(Waiting { each: each.clone(), request, answer });
            Place::Waiting(waits)
        } else {
            Place::Turn(Turn { shared: self.clone(), database: database.clone() })
        }
    }

    /// How long a statement counts.
    fn late(&self) -> Duration {
        let mut took = Vec::from(self.state().took.clone());
        took.sort_unstable();
        took.get(took.len() / 2).map_or(LATE, |median| LATE.max(*median * 4))
    }

    fn took(&self, time: Duration) {
        let took = &mut self.state().took;
        took.truncate(15);
        took.push_front(time);
    }

    /// Sends the calls that wait, at the end of a statement.
    fn next(self: &Arc<Self>, database: &Database<P>) {
        let mut state = self.state();
        // Calls that are given up are not sent.
        state.waiting.retain(|call| !call.answer.is_closed());
        let (Some(first), Ok(runtime)) = (state.waiting.front(), Handle::try_current()) else {
            state.is_busy = false;
            let waiting = mem::take(&mut state.waiting);
            drop(state);
            return drop(waiting);
        };
        let each = first.each.clone();
        let mut bytes = 0;
        let mut fits = |call: &Waiting<P>| {
            bytes += call.request.len() + 1;
            call.each.sql == each.sql && bytes <= MOST_BYTES
        };
        let count = state.waiting.iter().take(MOST_CALLS).take_while(|call| fits(call)).count();
        let mut calls: Vec<_> = state.waiting.drain(..count.max(1)).collect();
        drop(state);
        let turn = Turn { shared: self.clone(), database: database.clone() };
        match calls.pop() {
            Some(only) if calls.is_empty() => drop(only.answer.send(Answer::Alone(Some(turn)))),
            last => {
                calls.extend(last);
                runtime.spawn(turn.send(each, calls));
            }
        }
    }
}

/// The right to send the next statement. It ends with the statement, if that is late or given up before, then.
struct Turn<P: Pool> {
    shared: Arc<Shared<P>>,
    database: Database<P>,
}

impl<P: Pool> Drop for Turn<P> {
    fn drop(&mut self) {
        self.shared.next(&self.database);
    }
}

impl<P: Pool> Turn<P> {
    /// Runs a statement.
    async fn run<T>(self, statement: impl Future<Output = T>) -> T {
        let (shared, began) = (self.shared.clone(), Instant::now());
        let mut statement = pin!(statement);
        let result = timeout(shared.late(), &mut statement).await;
        let turn = result.is_ok().then_some(self);
        let result = match result {
            Ok(result) => result,
            Err(_) => statement.await,
        };
        shared.took(began.elapsed());
        drop(turn);
        result
    }

    /// Sends several calls, and answers each.
    async fn send(self, each: Arc<Statement>, calls: Vec<Waiting<P>>) {
        let (shared, database) = (self.shared.clone(), self.database.clone());
        let requests: Vec<_> = calls.iter().map(|call| &*call.request).collect();
        let requests = format!("[{}]", requests.join(","));
        let values = [None, None, None, Some(&*requests)];
        let text = self.run(database.run(database.deadline(), &each, values)).await;
        match text.and_then(|text| parsed(&text)) {
            Ok(Value::Array(results)) => {
                for (call, result) in calls.into_iter().zip(results) {
                    let error = &result["error"];
                    let message = error["message"].as_str().unwrap_or_default();
                    let answer = match error["code"].as_str() {
                        None => Answer::Decided(result),
                        Some("55P03") => Answer::Alone(None),
                        Some(code) => Answer::Failed(Error::new(message, Some(code))),
                    };
                    let _ = call.answer.send(answer);
                }
            }
            Ok(_) => {}
            Err(error) => {
                if matches!(error.code(), Some("42501" | "42883" | "0A000")) {
                    shared.state().alone_until = Some(Instant::now() + ALONE);
                }
                let fails = fails_each(&error, &database).await;
                for call in calls {
                    let error = fails.then(|| Answer::Failed(error.clone()));
                    let _ = call.answer.send(error.unwrap_or(Answer::Alone(None)));
                }
            }
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
            let statement = Statement::isolation();
            let isolation = database.run(database.deadline(), &statement, [None; 4]).await;
            isolation.is_ok_and(|isolation| isolation == "serializable")
        }
        Some(code) => error.is_not_now() || CLASSES.iter().any(|class| code.starts_with(class)),
    }
}

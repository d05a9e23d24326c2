//! Records a history while sessions run: each has a [`Recording`], which makes the calls and times them.
//!
//! The clients' timeline is the machine's monotonic clock, set to the system's clock at the beginning. The difference
//! of the two is measured with each call: the skew.

use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::history::{Asked, End, History, Invocation, Limited, Reply, ShardSeen, Storage};
use crate::judge::{Judgement, judge};

/// Readings farther apart don't count: the thread was interrupted between them.
const APART: Duration = Duration::from_micros(20);

/// The clients' timeline.
struct Timeline {
    origin: Instant,
    epoch: i64,
    /// The least and the greatest difference of the system's clock from it.
    least: AtomicI64,
    greatest: AtomicI64,
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

impl Timeline {
    fn new() -> Timeline {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
        let (least, greatest) = (AtomicI64::new(0), AtomicI64::new(0));
        Timeline { origin: Instant::now(), epoch: since, least, greatest }
    }

    /// Now, in microseconds.
    fn now(&self) -> i64 {
        let now = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
        let at = self.epoch.saturating_add(micros(now.duration_since(self.origin)));
        if now.elapsed() < APART {
            self.least.fetch_min(wall.saturating_sub(at), Ordering::Relaxed);
            self.greatest.fetch_max(wall.saturating_sub(at), Ordering::Relaxed);
        }
        at
    }

    /// The maximum difference of the system's clock from the timeline, with the error of the readings.
    fn skew(&self) -> i64 {
        let (least, greatest) =
            (self.least.load(Ordering::Relaxed), self.greatest.load(Ordering::Relaxed));
        greatest.max(least.saturating_neg()).saturating_add(micros(APART))
    }
}

/// Collects the calls of sessions.
pub struct Recorder {
    timeline: Timeline,
    sessions: AtomicU32,
    transactions: AtomicU32,
    history: Mutex<History>,
    clock_is_set: bool,
}

impl Recorder {
    /// A recorder of calls that read the server's clock, on this machine.
    pub fn new() -> Recorder {
        Recorder {
            timeline: Timeline::new(),
            sessions: AtomicU32::new(0),
            transactions: AtomicU32::new(0),
            history: Mutex::default(),
            clock_is_set: false,
        }
    }

    /// A recorder of calls at a time set by the test, which each call must give.
    pub fn with_clock_set() -> Recorder {
        Recorder { clock_is_set: true, ..Recorder::new() }
    }

    /// Adds a limit and a key; returns its index.
    pub fn key(&self, name: &str, key: &str, config: &str, storage: Storage) -> u32 {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let limited =
            Limited { name: name.into(), key: key.into(), config: config.into(), storage };
        history.keys.push(limited);
        history.keys.len() as u32 - 1
    }

    /// Begins the recording of another session.
    pub fn session(&self) -> Recording<'_> {
        Recording {
            recorder: self,
            session: self.sessions.fetch_add(1, Ordering::Relaxed),
            transaction: 0,
            is_open: false,
            is_prepared: false,
            failed: None,
            open: Vec::new(),
            savepoint: 0,
            calls: Vec::new(),
            ends: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// The calls of the sessions that have ended.
    pub fn history(&self) -> History {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner).clone();
        History { skew: (!self.clock_is_set).then(|| self.timeline.skew()), ..history }
    }

    /// Judges the history. Writes a refused one to the file `name` in `folder`, after the reason.
    ///
    /// # Errors
    /// The reason, and the path of the file.
    pub fn judge(&self, folder: &Path, name: &str) -> Result<Judgement, String> {
        let history = self.history();
        judge(&history).map_err(|refusal| {
            let file = folder.join(format!("{name}.jsonl"));
            match history.write(&file, &refusal.to_string()) {
                Ok(()) => format!("{refusal}\nthe history is in {}", file.display()),
                Err(error) => format!("{refusal}\nthe history could not be written: {error}"),
            }
        })
    }
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new()
    }
}

/// The calls of one session, added to the recorder when this is dropped.
pub struct Recording<'r> {
    recorder: &'r Recorder,
    session: u32,
    transaction: u32,
    /// Whether a transaction is open.
    is_open: bool,
    is_prepared: bool,
    /// The time since which it has failed.
    failed: Option<i64>,
    /// The calls with an unknown end.
    open: Vec<Invocation>,
    /// The number of calls made before the savepoint.
    savepoint: usize,
    calls: Vec<Invocation>,
    ends: Vec<End>,
    rows: Vec<ShardSeen>,
}

impl Recording<'_> {
    /// Begins a transaction.
    pub fn begin(&mut self) {
        self.transaction = self.recorder.transactions.fetch_add(1, Ordering::Relaxed);
        (self.is_open, self.failed, self.savepoint) = (true, None, 0);
    }

    /// Makes a call; `read` returns the answers: the key, the arguments, the decision's instant if known, and the
    /// reply. An error ends the transaction, if one is open.
    pub fn call<T, E>(
        &mut self,
        call: impl FnOnce() -> Result<T, E>,
        read: impl FnOnce(&T) -> Vec<(u32, Asked, Option<i64>, Reply)>,
    ) -> Result<T, E> {
        let invoked = self.recorder.timeline.now();
        let result = call();
        let answered = self.recorder.timeline.now();
        let Ok(answer) = &result else {
            self.failed = self.failed.filter(|_| self.is_open).or(Some(invoked));
            return result;
        };
        if !self.is_open {
            self.transaction = self.recorder.transactions.fetch_add(1, Ordering::Relaxed);
        }
        let (session, transaction) = (self.session, self.transaction);
        for (key, asked, now, reply) in read(answer) {
            let made = Invocation {
                session,
                transaction,
                key,
                asked,
                invoked,
                answered,
                now,
                reply,
                end: None,
                unanswered: false,
            };
            if self.is_open { &mut self.open } else { &mut self.calls }.push(made);
        }
        result
    }

    /// Records the rows of a limit with shards after the transaction's last call on this key: shard, value and time.
    pub fn rows(&mut self, key: u32, rows: impl IntoIterator<Item = (i32, f64, i64)>) {
        let Some(call) = self.open.iter().rfind(|call| call.key == key) else { return };
        let &Invocation { transaction, key, invoked, .. } = call;
        let seen = |(shard, value, ts)| ShardSeen { transaction, key, invoked, shard, value, ts };
        self.rows.extend(rows.into_iter().map(seen));
    }

    /// Records that the call that has just failed may have taken this: it was a transaction of its own, or on limits in
    /// memory, and its connection was lost, or its end is in doubt.
    pub fn unanswered(&mut self, asked: impl IntoIterator<Item = (u32, Asked)>) {
        let answered = self.recorder.timeline.now();
        let invoked = self.failed.unwrap_or(answered);
        let transaction = self.recorder.transactions.fetch_add(1, Ordering::Relaxed);
        let reply = Reply { ok: true, ..Reply::default() };
        let made = |(key, asked)| Invocation {
            session: self.session,
            transaction,
            key,
            asked,
            invoked,
            answered,
            now: None,
            reply,
            end: None,
            unanswered: true,
        };
        let calls = asked.into_iter().map(made).collect();
        self.ended(calls, End { invoked, answered: i64::MAX, kept: None });
    }

    /// Sets the savepoint.
    pub fn savepoint(&mut self) {
        self.savepoint = self.open.len();
    }

    /// Rolls back to the savepoint.
    pub fn roll_back_to<T, E>(&mut self, statement: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        // A failed statement was rolled back then.
        let invoked = self.failed.unwrap_or_else(|| self.recorder.timeline.now());
        let result = statement()?;
        let answered = self.recorder.timeline.now();
        self.failed = None;
        let calls = self.open.split_off(self.savepoint);
        self.ended(calls, End { invoked, answered, kept: Some(false) });
        Ok(result)
    }

    /// Ends the transaction by COMMIT.
    ///
    /// # Errors
    /// The error of the statement: then it is unknown whether it committed.
    pub fn commit<T, E>(&mut self, statement: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.finish(true, statement)
    }

    /// Prepares the transaction by PREPARE TRANSACTION; [`finish`](Recording::finish) ends it, or else it ends some
    /// time later, either way.
    ///
    /// # Errors
    /// The error of the statement: then it is unknown whether it was prepared, and how it ends.
    pub fn prepare<T, E>(&mut self, statement: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let invoked = self.recorder.timeline.now();
        let result = statement();
        self.is_prepared = true;
        if result.is_err() {
            self.close(self.unknown(None, invoked));
        }
        result
    }

    /// Ends a prepared transaction by COMMIT PREPARED, or by ROLLBACK PREPARED without `keep`.
    ///
    /// # Errors
    /// The error of the statement: then it is unknown whether and how it has ended.
    pub fn finish<T, E>(
        &mut self,
        keep: bool,
        statement: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let invoked = self.recorder.timeline.now();
        let result = statement();
        let end = match result {
            Ok(_) => End { invoked, answered: self.recorder.timeline.now(), kept: Some(keep) },
            Err(_) => self.unknown(None, invoked),
        };
        self.close(end);
        result
    }

    /// An end without an answer: the session may have ended at any time since its last call that was answered was
    /// made. The server may have sent the answer and ended it before the client looked.
    fn unknown(&self, kept: Option<bool>, invoked: i64) -> End {
        let invoked = self.open.last().map_or(invoked, |call| call.invoked);
        End { invoked, answered: i64::MAX, kept }
    }

    /// Ends the transaction by ROLLBACK, even if it has failed.
    pub fn roll_back<T, E>(&mut self, statement: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let invoked = self.failed.take().unwrap_or_else(|| self.recorder.timeline.now());
        let result = statement();
        let kept = Some(false);
        let end = match result {
            Ok(_) => End { invoked, answered: self.recorder.timeline.now(), kept },
            Err(_) => self.unknown(kept, invoked),
        };
        self.close(end);
        result
    }

    /// Records that the connection was lost, and with it the transaction, unless it is prepared.
    pub fn lost(&mut self) {
        let kept = if self.is_prepared { None } else { Some(false) };
        self.close(self.unknown(kept, 0));
    }

    fn close(&mut self, end: End) {
        let calls = std::mem::take(&mut self.open);
        self.ended(calls, end);
        (self.is_open, self.is_prepared, self.failed) = (false, false, None);
    }

    fn ended(&mut self, calls: Vec<Invocation>, end: End) {
        if calls.is_empty() {
            return;
        }
        let number = Some(self.ends.len() as u32);
        self.ends.push(end);
        self.calls.extend(calls.into_iter().map(|call| Invocation { end: number, ..call }));
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.lost();
        }
        let mut history = self.recorder.history.lock().unwrap_or_else(PoisonError::into_inner);
        let first = history.ends.len() as u32;
        history.ends.append(&mut self.ends);
        history.rows.append(&mut self.rows);
        let calls = std::mem::take(&mut self.calls).into_iter();
        history.calls.extend(calls.map(|call| {
            let end = call.end.map(|end| first + end);
            Invocation { end, ..call }
        }));
    }
}

//! Who saves the keys in memory: a background worker, which a call asks for, or where the server has none, the sessions
//! that changed them, when they end.
//!
//! Of a database and extension one saves at a time: of two, the one with the older copy could commit last. Whoever
//! ceases to save looks once more what there is: a call that saw somebody saving left it to him.

use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use pgrx::pg_sys;
use ratelimit_core::Micros;

use super::Memory;
use super::id::Scope;
use super::saved::{NONE, SAVES, SavedMemory, WAITS, Writer};
use crate::schema::catalog::{self, Catalog};
use ratelimit_pg::background;
use ratelimit_pg::clock;
use ratelimit_pg::server_log;
use ratelimit_pg::transaction;

/// The worker's name in pg_stat_activity, and the function that it runs.
const WORKER: (&str, &str) = ("ratelimit writer", "ratelimit_writer_main");
/// How long nobody asks for a worker where there was none to be had, and how often that is told.
const AGAIN: Micros = Micros(1_000_000);
const TELL_EVERY: Micros = Micros(60_000_000);
/// After what time a row is tried again that somebody holds.
const AGAIN_AFTER: Micros = Micros(250_000);
/// How long a call waits for room.
const PATIENCE: Micros = Micros(10_000_000);

/// Where the keys of a database and extension are saved.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    scope: Scope,
    /// An SQL function of the extension, by which its tables are found.
    pub function: pg_sys::Oid,
    /// The table of the rows.
    pub table: pg_sys::Oid,
}

thread_local! {
    /// What this session changed.
    static CHANGED: Cell<Option<Origin>> = const { Cell::new(None) };
    /// What saves at the end of a session.
    static SAVE: Cell<Option<fn(&Origin)>> = const { Cell::new(None) };
    /// Whether this process saves.
    static SAVES_NOW: Cell<bool> = const { Cell::new(false) };
}

impl Origin {
    /// This database and its extension; see [`Scope::new`].
    pub fn new(memory: &Memory, catalog: &Catalog, function: pg_sys::Oid) -> Origin {
        let scope = Scope::new(memory, catalog.extension);
        Origin { scope, function, table: catalog.rate_limits.oid }
    }

    /// Whose keys they are.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The database.
    pub fn database(&self) -> pg_sys::Oid {
        self.scope.database()
    }

    /// As a worker is given it.
    fn to_text(self) -> String {
        let [database, extension] = self.scope.numbers();
        format!("{database} {extension} {} {}", self.function.to_u32(), self.table.to_u32())
    }

    /// From what a worker was given; `None`: nothing that `to_text` wrote.
    pub fn of_text(text: &str) -> Option<Origin> {
        let mut numbers = text.split(' ').map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let scope = Scope::of([next()?, next()?]);
        Some(Origin { scope, function: next()?.into(), table: next()?.into() })
    }
}

/// Whose keys those of the extension are that there is now in this database; of none, nobody's. In a transaction.
pub fn scope_now(memory: &Memory) -> Scope {
    Scope::new(memory, catalog::extension())
}

/// Sets what saves at the end of a session; called once, when the library is loaded.
pub fn init(save: fn(&Origin)) {
    SAVE.set(Some(save));
}

/// Sees to it that a key that was just changed is saved by then.
pub fn later(saved: &'static SavedMemory, origin: &Origin, due: Micros) {
    if CHANGED.replace(Some(*origin)).is_none() {
        background::at_exit(at_exit, leave);
    }
    let Some(writer) = saved.writer(origin.scope()) else { return };
    let before = writer.due.fetch_min(due.0, SeqCst);
    match writer.is_there(clock::system_time()) {
        true if due.0 < before => wake(writer),
        true => {}
        false => ask(writer, origin),
    }
}

/// Saves what this session changed, unless another does.
fn at_exit() {
    if let (Some(origin), Some(save)) = (CHANGED.get(), SAVE.get()) {
        save(&origin);
    }
}

/// Notes that this session saves no more, where an error has ended that.
fn leave() {
    let saved = SavedMemory::seen().zip(CHANGED.get());
    let writer = saved.and_then(|(saved, origin)| saved.writer(origin.scope()));
    if let Some(writer) = writer.filter(|_| SAVES_NOW.get()) {
        writer.state.store(NONE, SeqCst);
    }
}

/// Has a worker end that has nothing to save any more, as where its extension is gone.
pub fn send_away(writer: &Writer) {
    writer.due.store(0, SeqCst);
    wake(writer);
}

/// Wakes the worker, which looks when something is due.
fn wake(writer: &Writer) {
    if let Some(process) = writer.process.load(SeqCst).checked_sub(1) {
        background::wake(process as i32);
    }
}

/// Asks for a worker, unless another session does.
#[cold]
pub fn ask(writer: &Writer, origin: &Origin) {
    let now = clock::system_time();
    // One that was asked for and never came has its time of then.
    let at = writer.at.load(SeqCst);
    let state = writer.state.load(SeqCst);
    let is_refused = now.minus(Micros(writer.refused_at.load(SeqCst))) < AGAIN;
    if is_refused || writer.is_there(now) {
        return;
    }
    if writer.at.compare_exchange(at, now.0, SeqCst, SeqCst).is_err()
        || writer.state.compare_exchange(state, WAITS, SeqCst, SeqCst).is_err()
    {
        return;
    }
    if background::register(WORKER.0, WORKER.1, &origin.to_text()) {
        return;
    }
    writer.state.store(NONE, SeqCst);
    writer.refused_at.store(now.0, SeqCst);
    // Those of dropped ones may sleep still.
    if let Some(saved) = SavedMemory::seen().filter(|_| transaction::is_in_transaction()) {
        saved.forget_dropped(origin.scope());
    }
    let problem = "the server has no place for a background worker (max_worker_processes)";
    writer.set_problem(problem);
    if now.minus(Micros(writer.told_at.swap(now.0, SeqCst))) >= TELL_EVERY {
        server_log::warning(&format!(
            "rate limits in memory are saved when sessions end only: {problem}"
        ));
    }
}

/// Notes that this process is the worker, until it ends, however that is; false where none is wanted any more, or
/// another is there.
pub fn come(writer: &'static Writer) -> bool {
    thread_local! {
        static OWN: Cell<Option<&'static Writer>> = const { Cell::new(None) };
    }
    loop {
        if writer.process.compare_exchange(0, number(), SeqCst, SeqCst).is_err() {
            return false;
        }
        if writer.state.load(SeqCst) == WAITS {
            OWN.set(Some(writer));
            background::at_exit(|| OWN.get().map_or((), go), || ());
            return true;
        }
        // Another one that was asked for meanwhile may have left, since this one was there.
        let _ = writer.process.compare_exchange(number(), 0, SeqCst, SeqCst);
        if writer.state.load(SeqCst) != WAITS {
            return false;
        }
    }
}

/// Notes that the worker ends, which could not do what it was there for, as where its database is gone. Whoever else
/// saves by now goes on.
fn go(writer: &Writer) {
    let was_there = writer.process.compare_exchange(number(), 0, SeqCst, SeqCst).is_ok();
    if SAVES_NOW.get() {
        writer.state.store(NONE, SeqCst);
    } else if was_there && writer.state.compare_exchange(WAITS, NONE, SeqCst, SeqCst).is_ok() {
        writer.refused_at.store(clock::system_time().0, SeqCst);
    }
}

/// This process, as [`Writer::process`] has it.
fn number() -> u32 {
    background::process() as u32 + 1
}

/// Whether this process, which came as the worker, still is; a session may have saved meanwhile.
pub fn is_own(writer: &Writer) -> bool {
    writer.process.load(SeqCst) == number()
}

/// Begins to save, unless somebody does: then that one looks once more.
pub fn begin(writer: &Writer) -> bool {
    let from = |state| writer.state.compare_exchange(state, SAVES, SeqCst, SeqCst).is_ok();
    let has_begun = from(NONE) || from(WAITS);
    SAVES_NOW.set(has_begun);
    has_begun
}

/// Ends it; whether there is more to be saved by now, and nobody who does.
pub fn end(saved: &'static SavedMemory, writer: &Writer, origin: &Origin) -> bool {
    writer.turns.fetch_add(1, SeqCst);
    // A worker that sleeps while a session saves has nothing to stay for.
    let process = writer.process.swap(0, SeqCst);
    if process != 0 && process != number() {
        background::wake(process as i32 - 1);
    }
    writer.due.store(i64::MAX, SeqCst);
    SAVES_NOW.set(false);
    writer.state.store(NONE, SeqCst);
    let Some(due) = saved.due(origin.scope()) else { return false };
    // What could not be saved now is tried again, but not all the time.
    let soonest = clock::system_time().plus(AGAIN_AFTER);
    let due = due.max(soonest).0;
    if due < writer.due.fetch_min(due, SeqCst) {
        // One that was asked for since may sleep already.
        wake(writer);
    }
    true
}

/// Waits until somebody has saved what there is now; false if nobody saved any, or not in time.
pub fn wait(saved: &'static SavedMemory, origin: &Origin) -> bool {
    // What is dropped is saved by nobody.
    saved.forget_dropped(origin.scope());
    let Some(writer) = saved.writer(origin.scope()) else { return false };
    let begun = clock::system_time();
    // One may be under way that copied before.
    let turns = writer.turns.load(SeqCst);
    let wanted = turns + 1 + u64::from(writer.state.load(SeqCst) == SAVES);
    let before = writer.saved.load(SeqCst);
    while writer.turns.load(SeqCst) < wanted {
        if saved.due(origin.scope()).is_none() {
            return true;
        }
        writer.all.store(1, SeqCst);
        later(saved, origin, begun);
        if !writer.is_there(clock::system_time())
            && writer.refused_at.load(SeqCst) >= begun.0 - AGAIN.0
        {
            return false;
        }
        if clock::system_time().minus(begun) > PATIENCE {
            return false;
        }
        background::pause(Duration::from_millis(2));
    }
    writer.saved.load(SeqCst) != before
}

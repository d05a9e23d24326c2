//! The writer of a database and extension as sessions see it: whether it runs, when it is due, and how to start it.
//!
//! A call that leaves a key unsaved notes when the key is due, and starts a writer if none runs. A call that saw a
//! writer running started none, so before a writer stops it checks again for unsaved keys.

use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use pgrx::pg_sys;
use ratelimit_core::Micros;

use super::Memory;
use super::id::Scope;
use super::saved::{SavedMemory, Writer};
use crate::schema::catalog::Catalog;
use ratelimit_pg::background;
use ratelimit_pg::clock;
use ratelimit_pg::server_log;

/// The name of the writer in pg_stat_activity, and its main function.
const WORKER: (&str, &str) = ("ratelimit writer", "ratelimit_writer_main");
/// The interval between two requests for a writer that doesn't start, and between two log lines about it.
const ASK_EVERY: Micros = Micros(1_000_000);
const LOG_EVERY: Micros = Micros(60_000_000);
/// The maximum time that a session waits for a writer.
const PATIENCE: Micros = Micros(10_000_000);

/// The arguments for starting a writer.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The scope of the keys.
    pub scope: Scope,
    /// The table of the rows.
    pub table: pg_sys::Oid,
}

thread_local! {
    /// Set in a process that is a writer.
    static OWN: Cell<Option<&'static Writer>> = const { Cell::new(None) };
}

impl Origin {
    /// This database and its extension; see [`Scope::new`].
    pub fn new(memory: &Memory, catalog: &Catalog) -> Origin {
        let scope = Scope::new(memory, catalog.extension);
        Origin { scope, table: catalog.rate_limits.oid }
    }

    /// The argument of a writer.
    fn to_text(self) -> String {
        let [database, extension] = self.scope.numbers();
        format!("{database} {extension} {}", self.table.to_u32())
    }

    /// Reads what `to_text` wrote.
    pub fn from_text(text: &str) -> Option<Origin> {
        let mut numbers = text.split(' ').map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let scope = Scope::from_numbers([next()?, next()?]);
        Some(Origin { scope, table: next()?.into() })
    }
}

/// Notes when a key that this call has changed is due. Starts a writer if none runs and any key is unsaved.
#[inline]
pub fn note_and_start(saved: &SavedMemory, origin: &Origin, due: Option<Micros>) {
    let Some(writer) = note(saved, origin, due) else { return };
    if writer.process.load(SeqCst) == 0 && writer.due.load(SeqCst) != i64::MAX {
        start(saved, writer, origin, false);
    }
}

/// Notes when a key is due, and wakes a running writer. Calls nothing of PostgreSQL that could fail.
#[inline]
pub fn note(saved: &SavedMemory, origin: &Origin, due: Option<Micros>) -> Option<&'static Writer> {
    loop {
        let writer = saved.writer(origin.scope)?;
        due.inspect(|&due| due_by(writer, due));
        // Unless another scope got the place meanwhile.
        if writer.scope.load(SeqCst) == origin.scope.number() {
            return Some(writer);
        }
    }
}

/// Has a writer wake up at `due` at the latest: also one that has just come, and saw nothing due yet.
#[inline]
pub fn due_by(writer: &Writer, due: Micros) {
    if due.0 < writer.due.fetch_min(due.0, SeqCst) {
        wake(writer);
    }
}

/// Asks a writer to write everything and exit.
pub fn dismiss(writer: &Writer) {
    writer.is_to_go.store(true, SeqCst);
    wake(writer);
}

/// Wakes the writer, which then checks when it is due.
fn wake(writer: &Writer) {
    if let Some(process) = writer.process.load(SeqCst).checked_sub(1) {
        background::wake(process as i32);
    }
}

/// Starts a writer; false if the server has no place for one. After a refusal the writers of other databases are asked
/// to exit; with `again` it tries again soon.
#[cold]
pub fn start(saved: &SavedMemory, writer: &Writer, origin: &Origin, again: bool) -> bool {
    let now = clock::monotonic();
    let asked_at = writer.asked_at.load(SeqCst);
    let is_refused = writer.is_refused.load(SeqCst);
    if writer.process.load(SeqCst) != 0 {
        return true;
    }
    if now.0 - asked_at < ASK_EVERY.0 && !(again && is_refused) {
        return !is_refused;
    }
    if writer.asked_at.compare_exchange(asked_at, now.0, SeqCst, SeqCst).is_err() {
        return true;
    }
    writer.table.store(origin.table.to_u32(), SeqCst);
    let has_place = background::register(WORKER.0, WORKER.1, &origin.to_text());
    writer.is_refused.store(!has_place, SeqCst);
    if !has_place {
        let is_other =
            |other: &&Writer| !std::ptr::eq(*other, writer) && other.process.load(SeqCst) != 0;
        saved.writers().filter(is_other).for_each(dismiss);
        if now.minus(Micros(writer.told_at.load(SeqCst))) >= LOG_EVERY {
            writer.told_at.store(now.0, SeqCst);
            server_log::line(
                "rate limits in memory are not saved: the server has no place for a background worker (max_worker_processes)",
            );
        }
    }
    has_place
}

/// Registers this process as the writer until it leaves or exits; false if there is another.
pub fn come(saved: &SavedMemory, writer: &'static Writer) -> bool {
    if writer.process.compare_exchange(0, number(), SeqCst, SeqCst).is_err() {
        return false;
    }
    writer.pid.store(std::process::id(), SeqCst);
    writer.since.store(clock::system_time().0, SeqCst);
    writer.asked_at.store(0, SeqCst);
    writer.is_refused.store(false, SeqCst);
    writer.is_to_go.store(false, SeqCst);
    // Writers were refused before this one started: it must make room, too.
    if saved.refused_writers().next().is_some() {
        writer.is_to_go.store(true, SeqCst);
    }
    OWN.set(Some(writer));
    // After an error keys may be due, and the next writer is not started at once.
    background::at_exit(|| {
        if let Some(writer) = OWN.get().filter(|writer| writer.process.load(SeqCst) == number()) {
            writer.due.store(0, SeqCst);
            writer.asked_at.store(clock::monotonic().0, SeqCst);
            leave(writer);
        }
        if let Some(saved) = SavedMemory::seen() {
            stop_waiting(saved);
        }
    });
    true
}

/// Unregisters this process; false if it wasn't the writer.
pub fn leave(writer: &Writer) -> bool {
    writer.process.compare_exchange(number(), 0, SeqCst, SeqCst).is_ok()
}

/// The number of this process, as in [`Writer::process`].
fn number() -> u32 {
    background::process() as u32 + 1
}

/// Starts the refused writers, as this one leaves. If several leave, one of them waits for the others to leave, for a
/// second at most.
pub fn start_refused(saved: &SavedMemory) {
    let begun = clock::monotonic();
    while saved.refused_writers().next().is_some()
        && !background::is_asked_to_end()
        && clock::monotonic().minus(begun) < ASK_EVERY
    {
        let waits = &saved.header.waits_for_place;
        if waits.load(SeqCst) != number()
            && waits.compare_exchange(0, number(), SeqCst, SeqCst).is_err()
        {
            return;
        }
        for writer in saved.refused_writers() {
            let scope = Scope::from_number(writer.scope.load(SeqCst));
            let table = writer.table.load(SeqCst).into();
            if !start(saved, writer, &Origin { scope, table }, true) {
                break;
            }
        }
        background::rest(Duration::from_millis(5));
    }
    stop_waiting(saved);
}

fn stop_waiting(saved: &SavedMemory) {
    let _ = saved.header.waits_for_place.compare_exchange(number(), 0, SeqCst, SeqCst);
}

/// Waits until a writer has tried to write everything that is unsaved now; false if none could be started, or
/// not in time.
pub fn wait(saved: &SavedMemory, origin: &Origin) -> bool {
    // No writer writes the keys of dropped databases.
    saved.forget_dropped(origin.scope);
    let Some(writer) = saved.writer(origin.scope) else { return false };
    if saved.unsaved(Some(origin.scope)).keys == 0 {
        return true;
    }
    let wanted = writer.wanted.fetch_add(1, SeqCst) + 1;
    let begun = clock::monotonic();
    wake(writer);
    while writer.served.load(SeqCst) < wanted {
        if !start(saved, writer, origin, true) || clock::monotonic().minus(begun) > PATIENCE {
            return false;
        }
        background::pause(Duration::from_millis(2));
    }
    true
}

/// Waits, as [`wait`]; returns whether keys were written meanwhile, which can be evicted now.
pub fn wait_for_capacity(saved: &SavedMemory, origin: &Origin) -> bool {
    let written = || saved.writer(origin.scope).map(|writer| writer.written.load(SeqCst));
    let before = written();
    wait(saved, origin);
    written() != before
}

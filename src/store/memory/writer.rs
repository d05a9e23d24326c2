//! A background worker that writes what is unsaved of a database and extension, as sessions see it: whether it is
//! there, when it is to write, and how one is asked for.
//!
//! A call that leaves a key unsaved notes when that is due, and asks for a worker where none is there. Whoever ceases
//! to be the worker looks once more what there is: a call that saw it left that to it.

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

/// The worker's name in pg_stat_activity, and the function that it runs.
const WORKER: (&str, &str) = ("ratelimit writer", "ratelimit_writer_main");
/// How often a worker is asked for that does not come, and how often it is told that there is no place for one.
const ASK_EVERY: Micros = Micros(1_000_000);
const TELL_EVERY: Micros = Micros(60_000_000);
/// How long a session waits until all was written.
const PATIENCE: Micros = Micros(10_000_000);

/// Where the keys of a database and extension are saved.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Whose keys they are.
    pub scope: Scope,
    /// The table of the rows.
    pub table: pg_sys::Oid,
}

thread_local! {
    /// What this process is the worker of.
    static OWN: Cell<Option<&'static Writer>> = const { Cell::new(None) };
}

impl Origin {
    /// This database and its extension; see [`Scope::new`].
    pub fn new(memory: &Memory, catalog: &Catalog) -> Origin {
        let scope = Scope::new(memory, catalog.extension);
        Origin { scope, table: catalog.rate_limits.oid }
    }

    /// As a worker is given it.
    fn to_text(self) -> String {
        let [database, extension] = self.scope.numbers();
        format!("{database} {extension} {}", self.table.to_u32())
    }

    /// From what a worker was given; `None`: nothing that `to_text` wrote.
    pub fn of_text(text: &str) -> Option<Origin> {
        let mut numbers = text.split(' ').map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let scope = Scope::of([next()?, next()?]);
        Some(Origin { scope, table: next()?.into() })
    }
}

/// Sees to it that what is unsaved is written: what this call has changed by `due`, and what others have.
#[inline]
pub fn see_to(saved: &SavedMemory, origin: &Origin, due: Option<Micros>) {
    let Some(writer) = note(saved, origin, due) else { return };
    if writer.process.load(SeqCst) == 0 && writer.due.load(SeqCst) != i64::MAX {
        ask(saved, writer, origin, false);
    }
}

/// Notes when something is to be written, and tells the worker if it is there; calls nothing of Postgres that could fail.
#[inline]
pub fn note(saved: &SavedMemory, origin: &Origin, due: Option<Micros>) -> Option<&'static Writer> {
    loop {
        let writer = saved.writer(origin.scope)?;
        let is_sooner = due.is_some_and(|due| due.0 < writer.due.fetch_min(due.0, SeqCst));
        // Unless another scope has taken the place meanwhile.
        if writer.scope.load(SeqCst) == origin.scope.number() {
            if is_sooner {
                wake(writer);
            }
            return Some(writer);
        }
    }
}

/// Has a worker write what there is, and end.
pub fn send_away(writer: &Writer) {
    writer.is_to_go.store(true, SeqCst);
    wake(writer);
}

/// Wakes the worker, which looks when something is due.
fn wake(writer: &Writer) {
    if let Some(process) = writer.process.load(SeqCst).checked_sub(1) {
        background::wake(process as i32);
    }
}

/// Asks for a worker; false where there is no place for one. With `again` it asks again where there was none a moment
/// ago. Those of other databases write what they have, and make room.
#[cold]
pub fn ask(saved: &SavedMemory, writer: &Writer, origin: &Origin, again: bool) -> bool {
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
    let has_place = background::register(WORKER.0, WORKER.1, &origin.to_text());
    writer.is_refused.store(!has_place, SeqCst);
    if !has_place {
        let is_there = |writer: &&Writer| writer.process.load(SeqCst) != 0;
        saved.other_writers(writer).filter(is_there).for_each(send_away);
        if now.minus(Micros(writer.told_at.load(SeqCst))) >= TELL_EVERY {
            writer.told_at.store(now.0, SeqCst);
            server_log::line(
                "rate limits in memory are not saved: the server has no place for a background worker (max_worker_processes)",
            );
        }
    }
    has_place
}

/// Notes that this process is the worker, until it leaves or ends; false where another one is.
pub fn come(writer: &'static Writer) -> bool {
    if writer.process.compare_exchange(0, number(), SeqCst, SeqCst).is_err() {
        return false;
    }
    writer.pid.store(std::process::id(), SeqCst);
    writer.since.store(clock::system_time().0, SeqCst);
    writer.asked_at.store(0, SeqCst);
    writer.is_refused.store(false, SeqCst);
    writer.is_to_go.store(false, SeqCst);
    OWN.set(Some(writer));
    // Where an error ends it, something may be due, and the next one is not asked for at once.
    background::at_exit(|| {
        if let Some(writer) = OWN.get().filter(|writer| leave(writer)) {
            writer.due.store(0, SeqCst);
            writer.asked_at.store(clock::monotonic().0, SeqCst);
        }
    });
    true
}

/// Notes that this process is not the worker any more; false where it was not.
pub fn leave(writer: &Writer) -> bool {
    writer.process.compare_exchange(number(), 0, SeqCst, SeqCst).is_ok()
}

/// This process, as [`Writer::process`] has it.
fn number() -> u32 {
    background::process() as u32 + 1
}

/// Waits until a worker has tried to write all that is unsaved now; false where there is no place for one, or not in
/// time.
pub fn wait(saved: &SavedMemory, origin: &Origin) -> bool {
    // What is dropped is saved by nobody.
    saved.forget_dropped(origin.scope);
    let Some(writer) = saved.writer(origin.scope) else { return false };
    if saved.waiting(origin.scope).0 == 0 {
        return true;
    }
    let wanted = writer.wanted.fetch_add(1, SeqCst) + 1;
    let begun = clock::monotonic();
    wake(writer);
    while writer.served.load(SeqCst) < wanted {
        if !ask(saved, writer, origin, true) || clock::monotonic().minus(begun) > PATIENCE {
            return false;
        }
        background::pause(Duration::from_millis(2));
    }
    true
}

/// Waits as [`wait`]; whether keys were written meanwhile, which can be evicted now.
pub fn wait_for_room(saved: &SavedMemory, origin: &Origin) -> bool {
    let written = || saved.writer(origin.scope).map(|writer| writer.written.load(SeqCst));
    let before = written();
    wait(saved, origin);
    written() != before
}

//! Saves limits in memory to the table: in a background worker, or at the end of a session.
//!
//! The worker sleeps until the first key is due, and connects to its database only then: who is connected keeps others
//! from dropping or renaming it. It is the role that installed the server, and becomes the tables' owner where code of
//! the owner's could run, as every call does; it runs no SQL of a user's, and no trigger but the owner's own.

use std::cell::RefCell;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use pgrx::pg_sys;
use ratelimit_core::Micros;
use ratelimit_core::config::Definition;
use ratelimit_core::saved::Unsaved;
use ratelimit_limiter::homes;
use ratelimit_limiter::ports::{Definitions, Host, Id, RowAccess};
use ratelimit_limiter::target::{Home, has_no_rows};

use crate::host;
use crate::keyed::definitions;
use crate::schema::catalog::{self, TableLock};
use crate::schema::error::{Error, Result};
use crate::schema::settings;
use crate::store::memory::writer::{self, Origin};
use crate::store::memory::{Memory, SavedMemory, SavedUsage, Scope, Writer};
use ratelimit_pg::background;
use ratelimit_pg::clock;
use ratelimit_pg::shared_memory::Need;
use ratelimit_pg::transaction::{self, with_lasting_locks};
use ratelimit_pg::values::utf8;

/// How many keys are written in one transaction.
const TOGETHER: usize = 10_000;
/// Who saves for the last time tries again for so long where nothing can be written, as while sessions that hold rows
/// or the table are being ended, too; and how often.
const LAST_PATIENCE: Micros = Micros(2_000_000);
const LAST_AGAIN: Duration = Duration::from_millis(10);

/// The worker.
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn ratelimit_writer_main(_argument: pgrx::pg_sys::Datum) {
    let Some(origin) = Origin::of_text(background::begin()) else { return };
    // Nobody asks for one but who has seen the segment.
    let Ok(Some(saved)) = SavedMemory::open(Need::May) else { return };
    let Some(writer) = saved.writer(origin.scope()) else { return };
    if !writer::come(writer) {
        return;
    }
    let due = || if writer::is_own(writer) { writer.due.load(SeqCst) } else { 0 };
    let goes_on = background::sleep_until(|| Micros(due()));
    if goes_on && !writer::is_own(writer) {
        return;
    }
    background::connect(origin.database());
    if is_another_now(saved, &origin) {
        return;
    }
    if goes_on && writer::begin(writer) {
        let is_for_all = writer.all.swap(0, SeqCst) != 0;
        turn(saved, writer, &origin, (!is_for_all).then(clock::system_time));
        if writer::end(saved, writer, &origin) {
            writer::ask(writer, &origin);
        }
    }
    // The server starts no other when it stops.
    if !goes_on || background::is_asked_to_end() {
        save_all(saved, writer, &origin);
        if saved.due(origin.scope()).is_some() {
            writer::ask(writer, &origin);
        }
    }
}

/// Whether the database or the extension is another one than that whose keys are to be saved, as where both were made
/// anew with their old numbers. Then nobody saves these any more.
fn is_another_now(saved: &SavedMemory, origin: &Origin) -> bool {
    let is_another = background::transaction(|| {
        let Some(now) = scope_now()? else { return Ok(false) };
        if now != origin.scope() {
            saved.forget_dropped(now);
        }
        Ok(now != origin.scope())
    });
    is_another.unwrap_or(false)
}

/// Whose keys there are to be saved in this database now. In a transaction.
///
/// # Errors
/// What keeps the memory from being mapped.
fn scope_now() -> std::result::Result<Option<Scope>, String> {
    let memory = match Memory::seen() {
        Some(memory) => Some(memory),
        None => Memory::open(Need::May).map_err(|error| error.to_string())?,
    };
    Ok(memory.map(writer::scope_now))
}

/// Saves all that is unsaved, unless another does: what others hold not for long, and once more where sessions have
/// ended meanwhile, which left theirs to it.
fn save_all(saved: &'static SavedMemory, writer: &Writer, origin: &Origin) {
    let (mut before, mut last) = (writer.saved.load(SeqCst), clock::system_time());
    while writer::begin(writer) {
        let ended = writer.ended.load(SeqCst);
        let is_done = turn(saved, writer, origin, None);
        let is_more = writer::end(saved, writer, origin);
        if !is_more || (is_done && writer.ended.load(SeqCst) == ended) {
            return;
        }
        let (now, count) = (clock::system_time(), writer.saved.load(SeqCst));
        if count != before {
            (before, last) = (count, now);
        } else if now.minus(last) >= LAST_PATIENCE {
            return;
        }
        thread::sleep(LAST_AGAIN);
    }
}

/// Saves what is unsaved when a session ends, unless somebody is there who does.
pub fn at_exit(origin: &Origin) {
    let Some(saved) = SavedMemory::seen() else { return };
    let Some(writer) = saved.writer(origin.scope()) else { return };
    // Counted before the look whether somebody saves, who looks at the count after he has ceased to.
    writer.ended.fetch_add(1, SeqCst);
    if !writer.will_save() && saved.due(origin.scope()).is_some() {
        save_all(saved, writer, origin);
        if saved.due(origin.scope()).is_some() {
            writer::ask(writer, origin);
        }
    }
}

/// Sees to it that what is unsaved in this database is saved now; how many keys are not, as where rows are held by
/// others. Where the server has no place for a worker, they are when this session ends.
///
/// # Errors
/// Those of the catalog and of the memory; a cancel.
pub fn now(function: pgrx::pg_sys::Oid) -> Result<usize> {
    let Some(saved) = SavedMemory::open(Need::May)? else { return Ok(0) };
    let catalog = catalog::current(function, TableLock::Read)?;
    let origin = Origin::new(Memory::get()?, &catalog, function);
    writer::wait(saved, &origin);
    Ok(saved.unsaved(origin.scope()))
}

/// Prepares a change of the definition of a name and key so that their state moves with it. Where their limit comes
/// into memory, whoever takes from rows has ended his transaction, and nobody begins one until this ends, as where an
/// index is created. Where it leaves memory, nobody takes from it until this ends, and all is saved. `was_saved`: the
/// row was of a limit that is saved.
///
/// # Errors
/// As [`now`]; 55P03: it can't be saved, as where rows are held by others.
pub fn before_change(
    function: pgrx::pg_sys::Oid,
    (name, key): (&[u8], &[u8]),
    new: &Definition,
    was_saved: bool,
) -> Result<()> {
    let saved = SavedMemory::open(if was_saved { Need::Must } else { Need::May })?;
    if saved.is_none() && new.save.is_none() {
        return Ok(());
    }
    let catalog = catalog::current(function, TableLock::Read)?;
    let old = definitions::defined(&catalog, name, key)?;
    if new.save.is_some() {
        let had_rows = match &old {
            Some(old) => !has_no_rows(old),
            None => is_removed(name),
        };
        if had_rows {
            let table = catalog.rate_limits.oid;
            // SAFETY: in a transaction.
            with_lasting_locks(|| unsafe {
                pg_sys::LockRelationOid(table, pg_sys::ShareLock as _);
            });
        }
    }
    let Some(saved) = saved else { return Ok(()) };
    let origin = Origin::new(Memory::get()?, &catalog, function);
    if new.save.is_some() {
        saved.forget_saved(origin.scope(), name);
        return Ok(());
    }
    let (scope, id) = (origin.scope(), Memory::get()?.id(origin.scope(), name, key));
    let was_saved = was_saved
        || old.is_some_and(|old| old.save.is_some())
        || saved.is_left_by(scope, id, transaction::number_if_any());
    if was_saved || saved.has_unsaved(scope, name) {
        move_out(saved, &origin, (name, id))?;
    }
    Ok(())
}

/// Takes the keys of a name out of memory, once they are saved.
///
/// # Errors
/// As [`before_change`].
fn move_out(saved: &'static SavedMemory, origin: &Origin, (name, id): (&[u8], Id)) -> Result<()> {
    let scope = origin.scope();
    if !saved.leave(scope, Some(id), transaction::number()) {
        return Err(Error::Busy);
    }
    if saved.has_unsaved(scope, name) {
        writer::wait(saved, origin);
    }
    if saved.has_unsaved(scope, name) {
        return Err(Error::Unsaved { name: utf8(name).into_owned() });
    }
    saved.forget_saved(scope, name);
    Ok(())
}

thread_local! {
    /// The names whose definition a transaction, by its number in this session, has deleted; `None`: all.
    static REMOVED: RefCell<(u32, Vec<Option<Vec<u8>>>)> = const { RefCell::new((0, Vec::new())) };
}

/// Whether this transaction has deleted a definition of a name.
fn is_removed(name: &[u8]) -> bool {
    REMOVED.with_borrow(|(transaction, names)| {
        let is_meant = |of: &Option<Vec<u8>>| of.as_deref().is_none_or(|of| of == name);
        *transaction == transaction::local_transaction() && names.iter().any(is_meant)
    })
}

/// Prepares the deletion of a definition, `None`: of all, so that a new one in this transaction moves their state, too.
/// Where they are in memory, it takes them out, as [`before_change`]; of all, whose definitions nobody else can read
/// any more, the keys stay, and are saved later.
///
/// # Errors
/// As [`before_change`].
pub fn before_removal(
    function: pgrx::pg_sys::Oid,
    name: Option<&[u8]>,
    was_saved: bool,
) -> Result<()> {
    REMOVED.with_borrow_mut(|(transaction, names)| {
        let own = transaction::local_transaction();
        if *transaction != own {
            (*transaction, *names) = (own, Vec::new());
        }
        // Of very many, all are meant.
        if names.len() >= 1000 {
            *names = vec![None];
        } else if !names.iter().any(|of| of.as_deref() == name) {
            names.push(name.map(Into::into));
        }
    });
    if !was_saved {
        return Ok(());
    }
    let need = if name.is_some() { Need::Must } else { Need::May };
    let Some(saved) = SavedMemory::open(need)? else { return Ok(()) };
    let catalog = catalog::current(function, TableLock::Read)?;
    let origin = Origin::new(Memory::get()?, &catalog, function);
    match name {
        Some(name) => {
            let id = Memory::get()?.id(origin.scope(), name, b"");
            move_out(saved, &origin, (name, id))
        }
        None if saved.leave(origin.scope(), None, transaction::number()) => Ok(()),
        None => Err(Error::Busy),
    }
}

/// How much of the memory for saved keys is used, with its size in bytes, and what went wrong when they were saved
/// last.
///
/// # Errors
/// As [`now`].
pub fn usage(function: pgrx::pg_sys::Oid) -> Result<(SavedUsage, u64, String)> {
    let Some(saved) = SavedMemory::open(Need::May)? else {
        let room = settings::memory_keys() as u64;
        return Ok((SavedUsage { room, ..SavedUsage::default() }, 0, String::new()));
    };
    let catalog = catalog::current(function, TableLock::Read)?;
    let scope = Origin::new(Memory::get()?, &catalog, function).scope();
    saved.forget_dropped(scope);
    let problem = saved.writer(scope).map_or_else(String::new, Writer::problem);
    Ok((saved.usage(), saved.size(), problem))
}

/// Saves the keys that are to be by `due`, or all; false if some could not be.
fn turn(saved: &SavedMemory, writer: &Writer, origin: &Origin, due: Option<Micros>) -> bool {
    let copies = saved.copy(origin.scope(), due);
    let before = writer.saved.load(SeqCst);
    let mut problem = None;
    for batch in copies.chunks(TOGETHER) {
        let mut written = write(origin, batch);
        if written.is_err() && batch.len() > 1 {
            // One of them may be in the way of the others.
            let alone = |copy: &Unsaved| write(origin, std::slice::from_ref(copy));
            let mut each = Vec::with_capacity(batch.len());
            let mut failed = 0;
            for copy in batch {
                // Where nothing can be written, not each of them is tried.
                let one = if failed < 3 { alone(copy) } else { written.clone() };
                failed = if one.is_err() { failed + 1 } else { 0 };
                each.push(one.is_ok_and(|one| one == [true]));
            }
            settle(saved, writer, batch, &each);
            problem = written.err();
            continue;
        }
        if let Err(why) = &written {
            problem = Some(why.clone());
            written = Ok(vec![false; batch.len()]);
        }
        settle(saved, writer, batch, &written.unwrap_or_default());
    }
    if problem.is_some() {
        // The extension may be gone, and its tables.
        let _ = background::transaction(|| {
            if let Some(now) = scope_now()? {
                saved.forget_dropped(now);
            }
            Ok(())
        });
    }
    writer.set_problem(problem.as_deref().unwrap_or_default());
    writer.saved.load(SeqCst) - before == copies.len() as u64
}

/// Notes which copies were written.
fn settle(saved: &SavedMemory, writer: &Writer, copies: &[Unsaved], written: &[bool]) {
    writer.saved.fetch_add(written.iter().filter(|is| **is).count() as u64, SeqCst);
    saved.settle(copies.iter().zip(written.iter().copied()));
}

/// Writes copies to their rows, in a transaction; which of them, since rows that somebody holds are left.
///
/// # Errors
/// What ended the transaction.
fn write(origin: &Origin, copies: &[Unsaved]) -> std::result::Result<Vec<bool>, String> {
    background::transaction(|| {
        // A session that ends waits for nobody.
        if !background::lock_to_write(origin.table) {
            return Err("the table rateLimits is locked".into());
        }
        let work = |session: &host::Session| {
            session.with_rows(RowAccess::Write, |rows| {
                let write = |copy: &Unsaved| {
                    let (name, key) = (&copy.name[..], &copy.key[..]);
                    // Whose definition says otherwise by now has rows that others write.
                    let limit = session.defined(name, key).unwrap_or_default();
                    if limit.is_some_and(|limit| !Home::of(&limit).may_be_saved()) {
                        return Ok(true);
                    }
                    homes::save(session, rows, (name, key), copy.state.as_ref())
                };
                copies.iter().map(write).collect()
            })
        };
        host::write(origin.function, work).map_err(|error| error.to_string())
    })
}

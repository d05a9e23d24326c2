//! The writer: the background worker that writes saved limits from memory to the table.
//!
//! It sleeps until the first key is due, and connects to its database only then, because a connection keeps others from
//! dropping or renaming the database. After a turn it starts another writer for the next one and exits, unless the next
//! is soon or the server has no place for another. It also exits once nothing has been unsaved for a second. It runs as
//! the role that installed the server. It becomes the tables' owner wherever the owner's code could run, as every call
//! does; it runs no user's SQL, and no trigger but the owner's.
//!
//! SIGTERM, from a stop or pg_terminate_backend, causes one last turn. In a stop, that turn waits until no session is
//! left that could take tokens: sessions and workers get SIGTERM at the same time (PM_STOP_BACKENDS in postmaster.c).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use pgrx::pg_sys;
use ratelimit_core::Micros;
use ratelimit_core::config::Definition;
use ratelimit_limiter::error::Result as PortResult;
use ratelimit_limiter::ports::{Definitions, Host, RowAccess, Rows};
use ratelimit_limiter::stores;
use ratelimit_limiter::target::Store;
use ratelimit_memory::saved::{Outcome, SavedCopy};
use xxhash_rust::xxh64::xxh64;

use crate::host::{Session, Use};
use crate::schema::catalog;
use crate::schema::error::Result;
use crate::schema::settings;
use crate::store::memory::writer::{self, Origin};
use crate::store::memory::{Memory, SavedMemory, SavedUsage, Scope, Writer};
use ratelimit_pg::background;
use ratelimit_pg::clock;
use ratelimit_pg::error::Raised;
use ratelimit_pg::server_log;
use ratelimit_pg::shared_memory::Need;
use ratelimit_pg::transaction;
use ratelimit_pg::values::utf8;

/// The maximum number of keys in one transaction.
const TOGETHER: usize = 10_000;
/// The time until the next turn up to which a writer stays connected, and the time it stays when nothing is unsaved: a
/// server that is stopping starts no other.
const STAYS: Micros = Micros(1_000_000);
/// The time from SIGTERM to the end of the last turn, and the part of it that waits for sessions to end.
const LAST_TURN: Micros = Micros(9_000_000);
const WAITS: Micros = Micros(5_000_000);
/// The time after which a transaction commits what it has written, and the time after which it is cancelled.
const TRANSACTION: Micros = Micros(500_000);
const CANCELLED: Micros = Micros(1_000_000);
/// The time that a writer waits for the table, and for a row that it can't skip.
const TABLE_WAIT: &CStr = c"500ms";
const ROW_WAIT: &CStr = c"10ms";
/// The maximum number of names that the log lists.
const LOGGED: usize = 10;

/// The failure of a transaction.
struct Failed {
    sqlstate: String,
    /// Whether no key can be written now; otherwise one can't be, and others may be.
    fails_all: bool,
}

impl Failed {
    fn new(sqlstate: String, has_table: bool) -> Failed {
        // Classes 25, 53, 57 and 58 (transaction state, resources, operator, system) would affect every key, except a
        // cancel after a timeout.
        let is_general = ["25", "53", "57", "58"].contains(&&sqlstate[..2]) && sqlstate != "57014";
        Failed { sqlstate, fails_all: is_general || !has_table }
    }
}

/// The main function of a writer.
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn ratelimit_writer_main(_argument: pgrx::pg_sys::Datum) {
    let Some(origin) = Origin::from_text(background::begin()) else { return };
    // Only a session that has mapped the segment starts a writer.
    let Ok(Some(saved)) = SavedMemory::open(Need::May) else { return };
    let Some(writer) = saved.writer(origin.scope) else { return };
    serve(saved, writer, &origin);
    writer::leave(writer);
    writer::start_refused(saved);
}

/// Saves the keys that are due, until none is or another writer takes over.
fn serve(saved: &SavedMemory, writer: &'static Writer, origin: &Origin) {
    let (mut is_connected, mut idle_until) = (false, None);
    while writer::come(saved, writer) && writer.scope.load(SeqCst) == origin.scope.number() {
        let due = || match writer.writes_all() {
            true => Micros(0),
            false => Micros(writer.due.load(SeqCst)).min(idle_until.unwrap_or(Micros(i64::MAX))),
        };
        // Asked once a round: a later SIGTERM is handled in the next round, which begins at once.
        let asked_at = background::sleep_until(due);
        if !is_connected {
            background::connect(origin.scope.database());
            is_connected = true;
        }
        if is_another_now(saved, origin) {
            writer.due.store(i64::MAX, SeqCst);
            return;
        }
        let had_work = match asked_at {
            None => turn(saved, writer, origin, writer.writes_all(), None),
            Some(asked_at) => {
                last_turn(saved, writer, origin, asked_at.plus(LAST_TURN));
                true
            }
        };
        // A session that sees this process starts no other. So it looks for unsaved keys after it has left.
        writer::leave(writer);
        let next = saved.unsaved(Some(origin.scope)).due;
        next.inspect(|&next| writer::due_by(writer, next));
        if asked_at.is_some() {
            // Sessions that continue have left keys to this process: another one writes them.
            if next.is_some() && !background::is_server_stopping() {
                writer::start(saved, writer, origin, false);
            }
            return;
        }
        if background::is_asked_to_end() {
            continue;
        }
        let now = clock::monotonic();
        idle_until = match next {
            Some(_) => None,
            None => idle_until.filter(|_| !had_work).or(Some(now.plus(STAYS))),
        };
        let is_soon = match next {
            Some(next) => next.minus(now) <= STAYS,
            None => idle_until.is_some_and(|until| now < until),
        };
        if writer.is_to_go.load(SeqCst)
            || !is_soon && (next.is_none() || has_successor(saved, writer, origin))
        {
            return;
        }
    }
}

/// Starts another writer, and waits until it runs: in a stop the server starts none.
fn has_successor(saved: &SavedMemory, writer: &Writer, origin: &Origin) -> bool {
    if !writer::start(saved, writer, origin, false) {
        return false;
    }
    let begun = clock::monotonic();
    while writer.process.load(SeqCst) == 0 {
        if background::is_asked_to_end() || clock::monotonic().minus(begun) > STAYS {
            return false;
        }
        background::rest(Duration::from_millis(1));
    }
    true
}

/// Whether the database or the extension was dropped and created again with its old number. If so, drops its keys.
fn is_another_now(saved: &SavedMemory, origin: &Origin) -> bool {
    let look = || {
        let Some(memory) = Memory::open(Need::May).map_err(|_| ())? else { return Ok(false) };
        let now = Scope::new(memory, catalog::extension());
        if now != origin.scope {
            saved.forget_dropped(now);
        }
        Ok(now != origin.scope)
    };
    background::transaction(look, |_| ()).unwrap_or(false)
}

/// Writes everything for the last time, and logs what could not be written.
fn last_turn(saved: &SavedMemory, writer: &Writer, origin: &Origin, until: Micros) {
    background::end_at_once();
    let is_stop = background::is_server_stopping();
    let waits_until = clock::monotonic().plus(WAITS).min(until.minus(WAITS.minus(CANCELLED)));
    while is_stop
        && background::has_others(origin.scope.database())
        && clock::monotonic() < waits_until
    {
        background::rest(Duration::from_millis(5));
    }
    turn(saved, writer, origin, true, Some(until));
    // If sessions continue, the next writer writes their changes.
    let mut names: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for copy in saved.copy(origin.scope, None) {
        if is_stop || copy.tries > 0 {
            *names.entry(copy.name).or_default() += 1;
        }
    }
    if names.is_empty() {
        return;
    }
    let listed = names.iter().take(LOGGED).map(|(name, count)| {
        format!("{count} key{} of \"{}\"", if *count == 1 { "" } else { "s" }, utf8(name))
    });
    let mut listed = listed.collect::<Vec<_>>().join(", ");
    if names.len() > LOGGED {
        listed += &format!(", and of {} others", names.len() - LOGGED);
    }
    server_log::warning(&format!("rate limits in memory could not be saved: {listed}"));
}

/// Writes the keys that are due, or all; keys with a failed last write come last. The last turn ends at an instant, any
/// other at SIGTERM.
fn turn(
    saved: &SavedMemory,
    writer: &Writer,
    origin: &Origin,
    writes_all: bool,
    last_until: Option<Micros>,
) -> bool {
    let wanted = writer.wanted.load(SeqCst);
    writer.due.store(i64::MAX, SeqCst);
    let now = clock::monotonic();
    let copies = saved.copy(origin.scope, (!writes_all).then_some(now));
    let mut turn = Turn { saved, writer, origin, now, last_until, problem: Vec::new() };
    let new = copies.partition_point(|copy| copy.tries == 0);
    let (new, tried) = copies.split_at(new);
    let batches = new.chunks(TOGETHER).chain(tried.chunks(TOGETHER));
    for batch in batches {
        turn.write(batch);
    }
    writer.set_problem(&turn.problem);
    if writes_all {
        writer.served.fetch_max(wanted, SeqCst);
    }
    !copies.is_empty()
}

/// A turn of the writer.
struct Turn<'t> {
    saved: &'t SavedMemory,
    writer: &'t Writer,
    origin: &'t Origin,
    /// The time when the copies were made.
    now: Micros,
    last_until: Option<Micros>,
    /// The last failure: SQLSTATE and limit.
    problem: Vec<u8>,
}

impl Turn<'_> {
    /// Whether its time is up.
    fn is_up(&self) -> bool {
        match self.last_until {
            Some(until) => clock::monotonic() > until,
            None => background::is_asked_to_end(),
        }
    }

    /// Writes copies together, as many at a time as time allows. If one of them makes that fail, in halves.
    fn write(&mut self, mut copies: &[SavedCopy]) {
        while !copies.is_empty() && !self.is_up() {
            match write(self.origin, copies, || self.is_up()) {
                Ok(outcomes) => {
                    let (tried, others) = copies.split_at(outcomes.len());
                    for (copy, outcome) in tried.iter().zip(outcomes) {
                        if outcome == Outcome::Failed {
                            self.note("55P03", copy);
                        }
                        self.finish(copy, outcome);
                    }
                    copies = others;
                }
                Err(Failed { fails_all: false, .. }) if copies.len() > 1 => {
                    let (one, other) = copies.split_at(copies.len() / 2);
                    self.write(one);
                    copies = other;
                }
                Err(Failed { sqlstate, .. }) => {
                    self.note(&sqlstate, &copies[0]);
                    copies.iter().for_each(|copy| self.finish(copy, Outcome::Failed));
                    return;
                }
            }
        }
    }

    fn note(&mut self, sqlstate: &str, copy: &SavedCopy) {
        let limit = [b": rate limit \"", &copy.name[..], b"\""].concat();
        self.problem = [sqlstate.as_bytes(), &limit].concat();
    }

    fn finish(&self, copy: &SavedCopy, outcome: Outcome) {
        let is_done = matches!(outcome, Outcome::Written | Outcome::Gone);
        self.writer.written.fetch_add(is_done.into(), SeqCst);
        self.saved.finish(copy, outcome, self.now);
    }
}

/// Writes copies to their rows in a transaction, except rows that others have locked. Writes at least one copy, and
/// stops when that takes long or the time is up. Returns the outcomes.
fn write(
    origin: &Origin,
    copies: &[SavedCopy],
    is_up: impl Fn() -> bool,
) -> std::result::Result<Vec<Outcome>, Failed> {
    background::set_lock_timeout(TABLE_WAIT);
    let begun = clock::monotonic();
    let has_time = || clock::monotonic().minus(begun) < TRANSACTION && !is_up();
    let has_table = Cell::new(false);
    let work = || {
        // SAFETY: in a transaction.
        unsafe { pg_sys::LockRelationOid(origin.table, pg_sys::RowExclusiveLock as _) };
        has_table.set(true);
        background::set_lock_timeout(ROW_WAIT);
        let mut names = Names { locked: [None; NAME_LOCKS as usize] };
        let work = |session: &Session| {
            session.with_rows(RowAccess::Write, |rows| {
                let mut outcomes = Vec::with_capacity(copies.len());
                for copy in copies {
                    outcomes.push(match names.may_write(origin, copy) {
                        true => write_one(session, rows, copy)?,
                        false => Outcome::Later,
                    });
                    if !has_time() {
                        break;
                    }
                }
                Ok(outcomes)
            })
        };
        let function = catalog::function_beside(origin.table);
        if function == pg_sys::InvalidOid {
            return Err(Failed { sqlstate: "42P01".into(), fails_all: true });
        }
        Session::run(Use::Writes, function, work).map_err(|error| {
            let sqlstate = error.report().sqlstate;
            Failed::new(String::from_utf8_lossy(&sqlstate).into_owned(), true)
        })
    };
    let failed = |sqlstate: String| Failed::new(sqlstate, has_table.get());
    background::within(CANCELLED, || background::transaction(work, failed))
}

/// Writes one copy.
fn write_one(session: &Session, rows: &dyn Rows, copy: &SavedCopy) -> PortResult<Outcome> {
    let (name, key) = (&copy.name[..], &copy.key[..]);
    // By the stored definition, whatever the clock. With one that can't be read, the limit may still be saved.
    let known = session.look_up(name, key);
    let is_gone = known.is_ok_and(|known| !may_be_saved(known.definition.as_deref()));
    if is_gone {
        return Ok(Outcome::Gone);
    }
    let is_written = stores::save(session, rows, (name, key), copy.state.as_ref(), false)?;
    Ok(if is_written { Outcome::Written } else { Outcome::Failed })
}

/// Whether saved keys of a definition may be in memory. True for an exemption, too: the keys wait until it ends.
pub fn may_be_saved(definition: Option<&Definition>) -> bool {
    let store = definition.map(Store::from_definition);
    matches!(store, Some(Store::Saved | Store::Nowhere))
}

/// The names with keys that a transaction may write: no session is taking them out of memory.
struct Names {
    /// By [`name_lock`].
    locked: [Option<bool>; NAME_LOCKS as usize],
}

impl Names {
    fn may_write(&mut self, origin: &Origin, copy: &SavedCopy) -> bool {
        let lock = name_lock(&copy.name);
        let own = &mut self.locked[lock as usize];
        *own.get_or_insert_with(|| transaction::try_lock_against(lock_of(origin.scope, lock)))
    }
}

/// The number of locks for the names of a database.
const NAME_LOCKS: u32 = 256;

/// The lock of a name: excludes the writer's transactions and the sessions that take the name out of memory from each
/// other, but not such sessions among themselves.
fn name_lock(name: &[u8]) -> u32 {
    (xxh64(name, 0) % u64::from(NAME_LOCKS)) as u32
}

fn lock_of(scope: Scope, lock: u32) -> [u32; 3] {
    let [database, extension] = scope.numbers();
    [database, extension, lock]
}

/// Waits until the writer writes no key of these names (`None`: of any), and keeps it from writing one until the
/// transaction ends.
pub fn keep_from_writing(scope: Scope, names: &[Option<Vec<u8>>]) {
    for lock in 0..NAME_LOCKS {
        let is_meant =
            |name: &Option<Vec<u8>>| name.as_ref().is_none_or(|name| name_lock(name) == lock);
        if names.iter().any(is_meant) {
            transaction::lock(lock_of(scope, lock));
        }
    }
}

/// The memory of saved keys, if there is any, and the origin of this database's.
fn open(function: pg_sys::Oid) -> Result<Option<(&'static SavedMemory, Origin)>> {
    let Some(saved) = SavedMemory::open(Need::May)? else { return Ok(None) };
    let catalog = catalog::latest(function)?;
    Ok(Some((saved, Origin::new(Memory::get()?, &catalog))))
}

/// Makes the writer write everything that is unsaved in this database; returns the number of keys left, because their
/// rows are locked or no writer could be started.
///
/// # Errors
/// A cancel.
pub fn write_now(function: pg_sys::Oid) -> Result<usize> {
    let Some((saved, origin)) = open(function)? else { return Ok(0) };
    writer::wait(saved, &origin);
    Ok(saved.unsaved(Some(origin.scope)).keys)
}

/// Removes a saved key of every name from memory if its state is saved and full.
pub fn forget_saved(function: pg_sys::Oid, key: &[u8]) -> Result<()> {
    if let Some((saved, origin)) = open(function)? {
        let is_full =
            |copy: &SavedCopy| copy.key == key && copy.state.is_none() && !copy.is_unsaved();
        saved.remove(origin.scope, None, is_full);
    }
    Ok(())
}

/// How much of the memory for saved keys is used, and the writer of this database.
pub fn usage(function: pg_sys::Oid) -> Result<SavedUsage> {
    let capacity = settings::memory_keys() as u64;
    let none = SavedUsage { capacity, ..SavedUsage::default() };
    Ok(open(function)?.map_or(none, |(saved, origin)| saved.usage(origin.scope)))
}

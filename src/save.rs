//! The background worker that writes limits in memory to the table.
//!
//! It sleeps until the first key is due, and connects to its database only then: who is connected keeps others from
//! dropping or renaming it. After a turn it leaves the next one to a new worker, unless that is soon, or there is no
//! place for another. It is the role that installed the server, and becomes the tables' owner where code of the owner's
//! could run, as every call does; it runs no SQL of a user's, and no trigger but the owner's own.
//!
//! SIGTERM, of a stop or of pg_terminate_backend, means one last turn. In a stop that waits until no session is left
//! which could take: sessions and workers are told at the same time (PM_STOP_BACKENDS in postmaster.c).

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

use crate::host;
use crate::schema::catalog;
use crate::schema::error::{Error, Result};
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

/// How many keys are written in one transaction.
const TOGETHER: usize = 10_000;
/// For how long a worker stays connected until the next turn.
const STAYS: Micros = Micros(1_000_000);
/// How long a worker has from SIGTERM on, and how much of that it waits for sessions to end.
const LAST_TURN: Micros = Micros(9_000_000);
const WAITS: Micros = Micros(5_000_000);
/// After what time a transaction is committed with the keys that it has written so far, and cancelled.
const TRANSACTION: Micros = Micros(500_000);
const CANCELLED: Micros = Micros(1_000_000);
/// How long a worker waits for the table, and for a row where that can't be skipped.
const TABLE_WAIT: &CStr = c"500ms";
const ROW_WAIT: &CStr = c"10ms";
/// How many names the log has of keys that could not be written.
const LOGGED: usize = 10;

/// Why a transaction of the worker failed.
#[derive(Clone)]
enum Failed {
    /// A key can't be written, so that others may be: its SQLSTATE.
    AKey(String),
    /// Nothing can be written now.
    All(String),
}

impl Failed {
    fn of(sqlstate: String) -> Failed {
        // Transaction states, resources, an operator, the system: nothing that another key would not meet, but for what
        // was cancelled for its time.
        match &sqlstate[..] {
            "57014" => Failed::AKey(sqlstate),
            other if ["25", "53", "57", "58"].contains(&&other[..2]) => Failed::All(sqlstate),
            _ => Failed::AKey(sqlstate),
        }
    }
}

fn sqlstate_of(error: &Error) -> String {
    String::from_utf8_lossy(&error.report(&String::new).sqlstate).into_owned()
}

/// The worker.
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn ratelimit_writer_main(_argument: pgrx::pg_sys::Datum) {
    let Some(origin) = Origin::of_text(background::begin()) else { return };
    // Nobody asks for one but who has seen the segment.
    let Ok(Some(saved)) = SavedMemory::open(Need::May) else { return };
    let Some(writer) = saved.writer(origin.scope) else { return };
    let mut is_connected = false;
    while writer::come(writer) && writer.scope.load(SeqCst) == origin.scope.number() {
        let due = || if writer.is_for_all() { 0 } else { writer.due.load(SeqCst) };
        let goes_on = background::sleep_until(|| Micros(due()));
        if !is_connected {
            background::connect(origin.scope.database());
            is_connected = true;
        }
        if is_another_now(saved, &origin) {
            writer.due.store(i64::MAX, SeqCst);
            return;
        }
        if goes_on {
            turn(saved, writer, &origin, writer.is_for_all(), None);
        }
        if let Some(asked_at) = background::asked_at() {
            last_turn(saved, writer, &origin, asked_at.plus(LAST_TURN));
        }
        // Whoever sees this process there asks for no other, so it looks after it has left.
        writer::leave(writer);
        let Some(next) = saved.waiting(origin.scope).1 else { return };
        writer.due.fetch_min(next.0, SeqCst);
        let is_soon = next.minus(clock::monotonic()) <= STAYS;
        if background::is_asked_to_end() {
            // What sessions that go on have left to this process is for another one.
            if !background::is_server_stopping() {
                writer::ask(saved, writer, &origin, false);
            }
            return;
        }
        if writer.is_to_go.load(SeqCst) || !is_soon && has_successor(saved, writer, &origin) {
            return;
        }
    }
}

/// Asks for another worker, and waits until it is there: in a stop none comes any more.
fn has_successor(saved: &SavedMemory, writer: &Writer, origin: &Origin) -> bool {
    if !writer::ask(saved, writer, origin, false) {
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

/// Whether the database or the extension is another one than that whose keys are to be saved, as where both were
/// created again with their old numbers. Then nobody saves these any more.
fn is_another_now(saved: &SavedMemory, origin: &Origin) -> bool {
    let look = || {
        let memory = match Memory::seen() {
            Some(memory) => Some(memory),
            None => Memory::open(Need::May).map_err(|_| ())?,
        };
        let Some(memory) = memory else { return Ok(false) };
        let now = Scope::new(memory, catalog::extension());
        if now != origin.scope {
            saved.forget_dropped(now);
        }
        Ok(now != origin.scope)
    };
    background::transaction(look, |_| ()).unwrap_or(false)
}

/// Writes all that is unsaved for the last time, and logs what could not be written.
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
    // Where sessions go on, what they take meanwhile is for the next worker.
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

/// Writes the keys that are due, or all: first those that could be written so far. The last turn is over at an instant,
/// any other one when the last is due.
fn turn(
    saved: &SavedMemory,
    writer: &Writer,
    origin: &Origin,
    is_for_all: bool,
    last_until: Option<Micros>,
) {
    let wanted = writer.wanted.load(SeqCst);
    writer.due.store(i64::MAX, SeqCst);
    let now = clock::monotonic();
    let copies = saved.copy(origin.scope, (!is_for_all).then_some(now));
    let mut turn = Turn { saved, writer, origin, now, last_until, problem: Vec::new() };
    let new = copies.partition_point(|copy| copy.tries == 0);
    let (new, tried) = copies.split_at(new);
    let batches = new.chunks(TOGETHER).chain(tried.chunks(TOGETHER));
    for batch in batches {
        turn.write(batch);
    }
    writer.set_problem(&turn.problem);
    if is_for_all {
        writer.served.fetch_max(wanted, SeqCst);
    }
}

/// What a turn is about.
struct Turn<'t> {
    saved: &'t SavedMemory,
    writer: &'t Writer,
    origin: &'t Origin,
    /// When the copies were made.
    now: Micros,
    last_until: Option<Micros>,
    /// The last that could not be written: SQLSTATE and limit.
    problem: Vec<u8>,
}

impl Turn<'_> {
    /// Whether it is over before it is done.
    fn is_over(&self) -> bool {
        match self.last_until {
            Some(until) => clock::monotonic() > until,
            None => background::is_asked_to_end(),
        }
    }

    /// Writes copies together, as many at a time as there is time for; or where one is in the way of the others in
    /// halves.
    fn write(&mut self, mut copies: &[SavedCopy]) {
        while !copies.is_empty() && !self.is_over() {
            match write(self.origin, copies, || self.is_over()) {
                Ok(outcomes) => {
                    let (tried, others) = copies.split_at(outcomes.len());
                    for (copy, outcome) in tried.iter().zip(outcomes) {
                        if outcome == Outcome::Failed {
                            self.note("55P03", copy);
                        }
                        self.settle(copy, outcome);
                    }
                    copies = others;
                }
                Err(Failed::AKey(_)) if copies.len() > 1 => {
                    let (one, other) = copies.split_at(copies.len() / 2);
                    self.write(one);
                    copies = other;
                }
                Err(Failed::AKey(sqlstate) | Failed::All(sqlstate)) => {
                    self.note(&sqlstate, &copies[0]);
                    copies.iter().for_each(|copy| self.settle(copy, Outcome::Failed));
                    return;
                }
            }
        }
    }

    fn note(&mut self, sqlstate: &str, copy: &SavedCopy) {
        let limit = [b": rate limit \"", &copy.name[..], b"\""].concat();
        self.problem = [sqlstate.as_bytes(), &limit].concat();
    }

    fn settle(&self, copy: &SavedCopy, outcome: Outcome) {
        let is_done = matches!(outcome, Outcome::Written | Outcome::Gone);
        self.writer.written.fetch_add(is_done.into(), SeqCst);
        self.saved.settle(copy, outcome, self.now);
    }
}

/// Writes copies to their rows, in a transaction: what came of each, since rows that somebody holds are left; of at least
/// one, and no more once it takes long, or the turn is over.
///
/// # Errors
/// What ended the transaction.
fn write(
    origin: &Origin,
    copies: &[SavedCopy],
    is_over: impl Fn() -> bool,
) -> std::result::Result<Vec<Outcome>, Failed> {
    background::set_lock_timeout(TABLE_WAIT);
    let begun = clock::monotonic();
    let has_time = || clock::monotonic().minus(begun) < TRANSACTION && !is_over();
    let has_table = Cell::new(false);
    let work = || {
        // SAFETY: in a transaction.
        unsafe { pg_sys::LockRelationOid(origin.table, pg_sys::RowExclusiveLock as _) };
        has_table.set(true);
        background::set_lock_timeout(ROW_WAIT);
        let mut names = Names { locked: [None; NAME_LOCKS as usize] };
        let work = |session: &host::Session| {
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
            return Err(Failed::All("42P01".into()));
        }
        host::write(function, work).map_err(|error| Failed::of(sqlstate_of(&error)))
    };
    let failed = |sqlstate: String| match has_table.get() {
        true => Failed::of(sqlstate),
        false => Failed::All(sqlstate),
    };
    background::within(CANCELLED, || background::transaction(work, failed))
}

/// Writes one of them.
///
/// # Errors
/// Those of the rows.
fn write_one(session: &host::Session, rows: &dyn Rows, copy: &SavedCopy) -> PortResult<Outcome> {
    let (name, key) = (&copy.name[..], &copy.key[..]);
    // As it is stored, whatever the clock; where it can't be read it is not known to have gone.
    let known = session.known(name, key);
    let is_gone = known.is_ok_and(|known| !may_be_saved(known.definition.as_deref()));
    if is_gone {
        return Ok(Outcome::Gone);
    }
    let is_written = stores::save(session, rows, (name, key), copy.state.as_ref(), false)?;
    Ok(if is_written { Outcome::Written } else { Outcome::Failed })
}

/// Whether keys of a definition may be in memory to be saved: also of one without a limit, under which they wait.
pub fn may_be_saved(definition: Option<&Definition>) -> bool {
    definition.is_some_and(|definition| Store::of(definition).may_be_saved())
}

/// The names that may be written in a transaction: those that no session takes out of memory meanwhile.
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

/// How many locks there are for the names of a database.
const NAME_LOCKS: u32 = 256;

/// The lock of a name: that of the writer in its transactions, and of whoever takes the name out of memory, who don't
/// keep each other off.
fn name_lock(name: &[u8]) -> u32 {
    (xxh64(name, 0) % u64::from(NAME_LOCKS)) as u32
}

fn lock_of(scope: Scope, lock: u32) -> [u32; 3] {
    let [database, extension] = scope.numbers();
    [database, extension, lock]
}

/// Waits until the writer writes no key of these names, and keeps it from writing any until the transaction ends;
/// `None`: of all.
pub fn keep_from_writing(scope: Scope, names: &[Option<Vec<u8>>]) {
    for lock in 0..NAME_LOCKS {
        let is_meant =
            |name: &Option<Vec<u8>>| name.as_ref().is_none_or(|name| name_lock(name) == lock);
        if names.iter().any(is_meant) {
            transaction::lock(lock_of(scope, lock));
        }
    }
}

/// Has all that is unsaved in this database written now; how many keys are not, as where rows are held by others, or
/// there is no place for a worker.
///
/// # Errors
/// Those of the catalog and of the memory; a cancel.
pub fn now(function: pg_sys::Oid) -> Result<usize> {
    let Some(saved) = SavedMemory::open(Need::May)? else { return Ok(0) };
    let catalog = catalog::current(function)?;
    let origin = Origin::new(Memory::get()?, &catalog);
    writer::wait(saved, &origin);
    Ok(saved.waiting(origin.scope).0)
}

/// What `rl_memory` tells of it.
#[derive(Default)]
pub struct Usage {
    /// How much of the memory is used.
    pub saved: SavedUsage,
    /// Its size in bytes.
    pub bytes: u64,
    /// What went wrong when keys of this database were written last, in its encoding; empty: nothing.
    pub problem: Vec<u8>,
    /// The worker of this database: its process, and since when it is there.
    pub writer: Option<(u32, Micros)>,
}

/// How much of the memory for saved keys is used, and by whom it is saved.
///
/// # Errors
/// As [`now`].
pub fn usage(function: pg_sys::Oid) -> Result<Usage> {
    let Some(saved) = SavedMemory::open(Need::May)? else {
        let room = settings::memory_keys() as u64;
        return Ok(Usage {
            saved: SavedUsage { room, ..SavedUsage::default() },
            ..Usage::default()
        });
    };
    let catalog = catalog::current(function)?;
    let scope = Origin::new(Memory::get()?, &catalog).scope;
    saved.forget_dropped(scope);
    let writer = saved.writer(scope);
    let problem = writer.map_or_else(Vec::new, Writer::problem);
    Ok(Usage {
        saved: saved.usage(),
        bytes: saved.size(),
        problem,
        writer: writer.and_then(Writer::there),
    })
}

//! Runs one statement of a session by replay: the limiter runs from the beginning on the replies so far, and is unwound
//! at the first step without one. It runs again when that step has its reply.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use ratelimit_core::Micros;
use ratelimit_core::config::Definition;
use ratelimit_limiter::error::{LimiterError, Result};
use ratelimit_limiter::ports::{
    Block, Counted, Defined, Definitions, Holds, Host, Id, Key, KeyHolds, Listing, RowAccess, Rows,
    Transaction,
};
use ratelimit_limiter::target::Store;

use crate::postgres::{Database, Flaw, Primitive, StepReply};
use crate::statement::{Command, KEYS, Outcome, key_number};
use crate::turn::{self, TurnEnd};

/// The access path to the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessPath {
    /// Direct access: a row is replaced in one step.
    Heap,
    /// Through SQL: a row is locked first.
    Sql,
    /// Through SQL on other nodes: keys that are idle, or of one name, are also deleted together.
    Distributed,
}

impl AccessPath {
    /// All of them.
    pub const ALL: [AccessPath; 3] = [AccessPath::Heap, AccessPath::Sql, AccessPath::Distributed];
}

/// The settings of a scenario.
pub struct Setting {
    /// The definitions, by their numbers.
    pub limits: Vec<Definition>,
    /// The store.
    pub access: AccessPath,
    /// Whether the clock moves, so that reading it is a step.
    pub clock_moves: bool,
    /// Whether a key has the definition of its number, unless a call passes one.
    pub by_key: bool,
    /// Whether definitions or blocks change, so that reading them is a step.
    pub definitions_change: bool,
    /// Whether there are holds. Without a table of them, a reset doesn't look for them.
    pub has_holds: bool,
    /// Whether a worker can be started when a call waits for room.
    pub has_worker: bool,
}

impl Setting {
    /// Whether a limit is saved.
    pub fn has_saved(&self) -> bool {
        self.limits.iter().any(|limit| Store::from_definition(limit) == Store::Saved)
    }
}

/// The leases and holds that a session was given.
#[derive(Clone, Copy, Default)]
pub struct Given<'a> {
    /// Its leases, the last at the end.
    pub leases: &'a [i64],
    /// Its holds, the last at the end.
    pub holds: &'a [Vec<u8>],
}

/// A statement that runs.
pub struct Run<'a> {
    pub(crate) setting: &'a Setting,
    session: usize,
    /// Whether the steps are the worker's, for which the session waits.
    is_worker: Cell<bool>,
    statement: &'a Command,
    /// By key, the number of the definition that the statement uses.
    used: Cell<[u8; KEYS.len()]>,
    /// Whether a partition of the memory is locked.
    pub(crate) is_locked: Cell<bool>,
    inner: RefCell<Inner>,
}

struct Inner {
    database: Database,
    log: Vec<StepReply>,
    position: usize,
    pending: Option<Primitive>,
}

/// The position of a statement.
pub struct Ran {
    /// The shared things, after the steps that were taken at once.
    pub database: Database,
    /// The replies so far.
    pub log: Vec<StepReply>,
    /// By key, the number of the definition that it uses.
    pub used: [u8; KEYS.len()],
    /// The outcome, or else the next step.
    pub state: std::result::Result<Outcome, Primitive>,
}

/// Unwinds a statement at a step that has no reply.
struct Unreplied;

/// Runs a statement up to its next step.
pub fn run(
    setting: &Setting,
    database: Database,
    session: usize,
    statement: &Command,
    given: Given,
    log: Vec<StepReply>,
) -> Ran {
    let inner = RefCell::new(Inner { database, log, position: 0, pending: None });
    let is_locked = Cell::new(false);
    let used = Cell::new([0, 1].map(|key| statement.limit(key).unwrap_or(0)));
    let is_worker = Cell::new(false);
    let run = Run { setting, session, is_worker, statement, used, is_locked, inner };
    let outcome = catch_unwind(AssertUnwindSafe(|| statement.execute(&run, given)));
    let used = run.used.get();
    let Inner { database, log, pending, .. } = run.inner.into_inner();
    let state = match (outcome, pending) {
        (Ok(outcome), _) => Ok(outcome),
        (Err(_), Some(step)) => Err(step),
        (Err(panic), None) => resume_unwind(panic),
    };
    Ran { database, log, used, state }
}

impl Run<'_> {
    /// Takes a step, before which other sessions may take theirs.
    pub fn step(&self, step: Primitive) -> StepReply {
        let mut inner = self.inner.borrow_mut();
        if let Some(reply) = inner.log.get(inner.position).cloned() {
            inner.position += 1;
            return reply;
        }
        inner.pending = Some(self.by_whom(step));
        drop(inner);
        resume_unwind(Box::new(Unreplied))
    }

    /// Takes a step that other sessions can't distinguish from the one before it.
    pub fn at_once(&self, step: Primitive) -> StepReply {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        if inner.position == inner.log.len() {
            let reply = inner.database.execute(self.session, &self.by_whom(step), 0);
            inner.log.push(reply);
        }
        inner.position += 1;
        inner.log[inner.position - 1].clone()
    }

    fn by_whom(&self, step: Primitive) -> Primitive {
        if self.is_worker.get() { Primitive::OfWriter(Box::new(step)) } else { step }
    }

    /// Takes a step, at once unless `matters`.
    fn step_if(&self, matters: bool, step: Primitive) -> StepReply {
        if matters { self.step(step) } else { self.at_once(step) }
    }

    /// Whether the database has a flaw.
    pub fn has(&self, flaw: Flaw) -> bool {
        self.inner.borrow().database.has(flaw)
    }

    /// Looks up a key's definition, and whether it is blocked.
    fn look_up(&self, key: &[u8]) -> (Rc<Definition>, bool) {
        let step = Primitive::Known(key_number(key));
        let reply = self.step_if(self.setting.definitions_change, step);
        let StepReply::Known(defined, blocked) = reply else { unreachable!("{reply:?}") };
        let in_force = if self.setting.by_key { key_number(key) } else { defined };
        let number = self.statement.limit(key_number(key)).unwrap_or(in_force);
        let mut used = self.used.get();
        // No call is for the empty key.
        if let Some(used) = used.get_mut(usize::from(key_number(key))) {
            *used = number;
        }
        self.used.set(used);
        (Rc::new(self.setting.limits[usize::from(number)].clone()), blocked)
    }
}

impl Transaction for Run<'_> {
    fn utf8(bytes: &[u8]) -> Cow<'_, str> {
        String::from_utf8_lossy(bytes)
    }

    fn now(&self) -> Micros {
        // When the clock moves no more, no other session can distinguish the time of reading it.
        let moves = self.setting.clock_moves && !self.inner.borrow().database.clock_stands;
        let is_step = moves && !self.is_locked.get();
        let reply = self.step_if(is_step, Primitive::Clock);
        let StepReply::Instant(now) = reply else { unreachable!("{reply:?}") };
        Micros(now)
    }

    fn check_for_interrupts(&self) {}

    fn each_page<T: 'static>(&self, mut page: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(result) = page() {
                return result;
            }
        }
    }

    fn unguessable(&self) -> Result<u64> {
        let reply = self.at_once(Primitive::Draw);
        let StepReply::Number(number) = reply else { unreachable!("{reply:?}") };
        let drawn = 16 * self.session as u64 + u64::from(number);
        let id = match () {
            _ if self.has(Flaw::IdDrawnTwice) => 1,
            _ if self.has(Flaw::IdOfClock) => self.now().0 as u64,
            _ => 1 + drawn,
        };
        // Lease ids are made of the bits from the twelfth on.
        Ok(id << 12)
    }

    fn below(&self, end: usize) -> usize {
        if end == 1 {
            return 0;
        }
        let reply = self.step(Primitive::Choose(end as u8));
        let StepReply::Number(number) = reply else { unreachable!("{reply:?}") };
        usize::from(number)
    }

    fn attempt<T>(&self, work: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
        self.at_once(Primitive::BeginSub);
        let result = work();
        let is_kept = self.has(Flaw::DeniedRowKept) && result.is_ok();
        if is_kept || matches!(result, Ok(Some(_))) {
            self.at_once(Primitive::ReleaseSub);
        } else {
            self.step(Primitive::RollbackSub);
        }
        result
    }

    fn attempt_within<T>(
        &self,
        _: Micros,
        work: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<(Option<T>, Micros)> {
        Ok((self.attempt(work)?, Micros(0)))
    }

    fn own_rows(&self, _: &[u8], key: &[u8]) -> Vec<i32> {
        let reply = self.at_once(Primitive::OwnRows(key_number(key)));
        let StepReply::OwnRows(shards) = reply else { unreachable!("{reply:?}") };
        shards
    }

    fn refuse_read_only(&self) -> Result<()> {
        Ok(())
    }
}

impl Definitions for Run<'_> {
    fn look_up(&self, _: &[u8], key: &[u8]) -> Result<Defined> {
        let (limit, blocked) = self.look_up(key);
        // Blocks have no end here.
        let blocked_until = blocked.then_some(Micros::FOREVER);
        Ok(Defined { definition: Some(limit), blocked_until, ..Defined::default() })
    }

    fn defined(&self, _: &[u8], key: &[u8]) -> Result<Option<Rc<Definition>>> {
        Ok(Some(self.look_up(key).0))
    }

    fn in_force(&self, _: &[u8], definition: Rc<Definition>) -> Rc<Definition> {
        definition
    }

    fn may_be_in_table(&self, _: &[u8]) -> Result<bool> {
        Ok(!self.setting.limits.iter().all(Definition::has_no_rows))
    }

    fn may_define(&self) -> bool {
        true
    }

    fn blocks_in_force(&self, _: Listing) -> Result<Vec<(Key, Block)>> {
        Ok(Vec::new())
    }

    fn exempt_keys(&self, _: Listing) -> Result<Vec<(Key, Rc<Definition>)>> {
        Ok(Vec::new())
    }

    fn of_hold(&self, _: &[u8]) -> Result<Rc<Definition>> {
        Err(LimiterError::not_written()) // no hold has a config of its own
    }

    fn prune_blocks(&self, _: i64) -> Result<i64> {
        Ok(0)
    }

    fn check_definitions(&self) -> Result<()> {
        Ok(())
    }
}

impl Host for Run<'_> {
    type Entries = Self;
    type Counter = ();

    fn counter(&self, _: &[u8], _: &[u8]) -> Result<Option<()>> {
        Ok(None)
    }

    fn count(&self, _: Option<()>, _: Counted) {}

    fn with_rows<T>(&self, _: RowAccess, work: impl FnOnce(&dyn Rows) -> Result<T>) -> Result<T> {
        work(self)
    }

    fn entries(&self) -> Result<&Self> {
        Ok(self)
    }

    fn saved_entries(&self) -> Result<&Self> {
        Ok(self)
    }

    fn wait_for_save(&self) -> Result<bool> {
        if !self.setting.has_worker {
            return Ok(false);
        }
        self.is_worker.set(true);
        let saved = turn::save(self, TurnEnd::Committed);
        self.is_worker.set(false);
        saved
    }

    fn entries_if_any(&self) -> Result<Option<&Self>> {
        let is_in_memory = |limit: &Definition| Store::from_definition(limit).is_in_memory();
        Ok(self.setting.limits.iter().any(is_in_memory).then_some(self))
    }

    fn entry_of(&self, (): ()) -> Id {
        unreachable!("nothing is counted")
    }

    fn with_holds<T>(&self, work: impl FnOnce(&dyn Holds) -> Result<T>) -> Result<T> {
        work(self)
    }

    fn with_key_holds<T>(&self, work: impl FnOnce(&dyn KeyHolds) -> Result<T>) -> Result<T> {
        work(self)
    }

    fn has_holds(&self) -> bool {
        self.setting.has_holds
    }
}

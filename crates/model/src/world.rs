//! A state of the exploration: the shared things, the position of each session, and the books of the answers.

use std::collections::BTreeSet;

use ratelimit_core::Micros;
use ratelimit_core::config::Definition;
use ratelimit_core::kinds::Tokens;
use ratelimit_core::{State, config};
use ratelimit_limiter::ports::Stored;
use ratelimit_limiter::target::Store;

use crate::bounds::Bounds;
use crate::content::{Content, HoldOf, Total};
use crate::oracle::holds::Book;
use crate::oracle::{self, Applied, Change};
use crate::postgres::{
    Database, FROZEN, Flaw, LoadedKey, Primitive, RowKey, SavedPlaces, StepReply, Tid, Version,
};
use crate::run::{self, AccessPath, Given, Setting};
use crate::statement::{self, Command, KEYS};

/// A program of a few sessions, and the state at the beginning.
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The definitions and the store.
    pub setting: Setting,
    /// By session, its transactions.
    pub programs: Vec<Vec<Vec<Command>>>,
    /// By key, whether its limit is in memory: changes count at once, and no rollback undoes them.
    pub in_memory: [bool; KEYS.len()],
    /// The rows at first: key, shard number and contents.
    pub rows: Vec<(u8, i32, Stored)>,
    /// The moves of the clock, each at any instant, in this order: microseconds.
    pub clock: Vec<i64>,
    /// Whether the server may crash, at any instant, once.
    pub crashes: bool,
    /// Whether the server may be stopped and started, at any instant, once.
    pub stops: bool,
    /// Whether the first session may die, at any instant.
    pub dies: bool,
    /// Whether it is a standby at first.
    pub is_standby: bool,
    /// By key, whether its limit is in memory and saved.
    pub saved: [bool; KEYS.len()],
    /// The number of entries that fit into the memory; 0: all.
    pub room: u8,
    /// The maximum debt of a reservation, in tokens.
    pub debt: f64,
    /// Whether it may deadlock, as the documents say: rows are locked in two orders.
    pub may_deadlock: bool,
}

/// A violation of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wrong {
    /// More is admitted, committed and in progress, than the limit has.
    OverAdmitted,
    /// Fewer tokens are left than the answers explain.
    TokensLost,
    /// More tokens are left: a committed take is lost, or one was given back twice.
    TakeLost,
    /// No order explains an answer.
    Unexplained,
    /// A denial is right at no instant of the call.
    BadDenial,
    /// A call that took nothing keeps a lock.
    LockKept,
    /// Two transactions have changed a row at once.
    TwoWriters,
    /// Two rows have one key.
    TwoRows,
    /// An existing hold is not found.
    HoldLost,
    /// A hold that does not exist is settled.
    SettledTwice,
    /// A row claims that no hold expires before one does.
    ExpiryOverlooked,
    /// The rows of holds disagree with the answers.
    HoldsDiffer,
    /// Two leases have the same id.
    LeaseTwice,
    /// Sessions wait for each other.
    Deadlock,
    /// A call fails.
    Failed,
    /// A saved state is not in its row, or a row has a state that should not have been saved.
    NotSaved,
}

/// The view of a session at an instant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instant {
    /// The clock.
    pub now: i64,
    /// By key, the state before the expiries.
    pub states: Vec<Option<Total>>,
    /// By key, the holds.
    pub holds: Vec<Vec<HoldOf>>,
    /// The keys that are blocked.
    pub blocked: Vec<u8>,
    /// The number of the definition in force.
    pub defined: u8,
    /// By key, the bounds of its shards; none if the state is exact.
    pub bounds: Vec<Bounds>,
}

/// The position of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct SessionState {
    /// The transaction of its program, and the statement of that.
    pub transaction: u8,
    /// The statement.
    pub statement: u8,
    /// The replies to the statement's steps.
    pub log: Vec<StepReply>,
    /// Its next step; `None`: its program has ended.
    pub pending: Option<Primitive>,
    /// By key, the number of the definition that its call uses.
    pub used: [u8; KEYS.len()],
    /// The changes of its transaction.
    pub effects: Vec<Applied>,
    /// The states since the call was invoked.
    pub seen: Vec<Instant>,
    /// The rows that it had locked when the call began.
    pub locked: Vec<RowKey>,
    /// The number of transactions open at its savepoint, including the savepoint's.
    pub savepoint: Option<u8>,
    /// Its leases, the last at the end.
    pub leases: Vec<i64>,
    /// The ids of its holds, the last at the end.
    pub holds: Vec<Vec<u8>>,
    /// The first read of its transaction, in a database with [`Flaw::OldSnapshot`].
    pub first_read: Option<StepReply>,
    /// The key that its transaction renamed, the new one, and the new one's state.
    pub renamed: Option<(u8, u8, Option<Total>)>,
}

/// A state of the exploration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The shared state of the sessions.
    pub database: Database,
    /// The sessions.
    pub sessions: Vec<SessionState>,
    /// By key, the state that follows from the committed changes.
    pub committed: Vec<Option<Total>>,
    /// By key, its holds, likewise.
    pub holds: Vec<Vec<HoldOf>>,
    /// By key, the tokens that were used up: taken, or settled as used.
    pub used: Vec<i64>,
    /// By key, the state that was saved last; none if nothing is saved.
    pub kept: Vec<Option<Total>>,
    /// By key, the state in the writer's copy.
    pub copied: Vec<Option<Total>>,
    /// The committed changes of shards that are only known in bounds.
    pub history: Vec<Applied>,
    /// The violations.
    pub wrong: Vec<Wrong>,
    /// The number of moves of the clock so far.
    pub moves: u8,
    /// Whether the server has crashed, or was stopped.
    pub has_crashed: bool,
    /// Whether some call was denied.
    pub denied: bool,
    /// Whether some call was admitted.
    pub admitted: bool,
}

/// The number of inserts that a call may lose until it is cut off: while a third session's insert is in progress, two
/// sessions can lose theirs to each other without end.
const LOST_INSERTS: usize = 2;

/// The number of times that a call may load a key that is evicted before use, until it is cut off: two sessions can do
/// that to each other without end.
const LOST_LOADS: usize = 2;

/// The instant at which every scenario begins.
pub const BEGIN: i64 = 1_800_000_000_000_000;

/// The contents of a row with these tokens.
pub fn tokens(value: f64) -> Stored {
    Stored::State(State::Tokens(Tokens { value, ts: Micros(BEGIN), added: None }))
}

impl Scenario {
    /// The scenario of [programs](statement::programs) with these definitions.
    ///
    /// # Panics
    /// An invalid definition or statement.
    pub fn new(text: &str, limits: &[&str]) -> Scenario {
        let parse =
            |json: &&str| config::definition(json).unwrap_or_else(|error| panic!("{error}"));
        let programs = statement::programs(text);
        let limits: Vec<Definition> = limits.iter().map(parse).collect();
        let stores = [0, 1].map(|key| stores(&programs, &limits, key));
        let mut statements = programs.iter().flatten().flatten();
        let setting = Setting {
            limits,
            access: AccessPath::Heap,
            clock_moves: false,
            by_key: false,
            definitions_change: statements.any(Command::changes_definitions),
            has_holds: programs.iter().flatten().flatten().any(Command::is_of_holds),
            has_worker: true,
        };
        Scenario {
            name: text.into(),
            setting,
            programs,
            in_memory: stores.map(Store::is_in_memory),
            stops: false,
            dies: false,
            is_standby: false,
            saved: stores.map(|store| store == Store::Saved),
            rows: Vec::new(),
            clock: Vec::new(),
            crashes: false,
            room: 0,
            debt: 0.0,
            may_deadlock: false,
        }
    }

    /// Begins with a row of a key with these tokens.
    pub fn row(mut self, key: u8, tokens: f64) -> Scenario {
        self.rows.push((key, 0, self::tokens(tokens)));
        self
    }

    /// Begins with the rows of shards with these tokens.
    pub fn shards(mut self, key: u8, tokens: &[f64]) -> Scenario {
        self.rows.push((key, 0, Stored::Marker { reset: false }));
        let count = tokens.len() as i32;
        let numbers = (1..=count).map(|shard| 10_000 * count + shard);
        self.rows
            .extend(numbers.zip(tokens).map(|(number, &has)| (key, number, self::tokens(has))));
        self
    }

    /// Lets the clock move by these microseconds.
    pub fn clock(self, moves: &[i64]) -> Scenario {
        let setting = Setting { clock_moves: true, ..self.setting };
        Scenario { clock: moves.to_vec(), setting, ..self }
    }

    /// Reads and writes rows as the SQL store does.
    pub fn through_sql(self) -> Scenario {
        let setting = Setting { access: AccessPath::Sql, ..self.setting };
        Scenario { name: format!("{} (SQL)", self.name), setting, ..self }
    }

    /// Reads and writes rows as on other nodes.
    pub fn distributed(self) -> Scenario {
        let setting = Setting { access: AccessPath::Distributed, ..self.setting };
        Scenario { name: format!("{} (distributed)", self.name), setting, ..self }
    }

    /// Lets the server crash.
    pub fn crashing(self) -> Scenario {
        Scenario { name: format!("{} (crash)", self.name), crashes: true, ..self }
    }

    /// Lets the server be stopped and started again.
    pub fn stopping(self) -> Scenario {
        Scenario { name: format!("{} (stop)", self.name), stops: true, ..self }
    }

    /// Lets the first session die.
    pub fn dying(self) -> Scenario {
        Scenario { name: format!("{} (death)", self.name), dies: true, ..self }
    }

    /// Gives each key the definition of its number, unless a call passes one.
    pub fn by_key(self) -> Scenario {
        let setting = Setting { by_key: true, ..self.setting };
        Scenario { setting, ..self }
    }

    /// Has no worker that saves when a call waits for room.
    pub fn without_worker(self) -> Scenario {
        let setting = Setting { has_worker: false, ..self.setting };
        Scenario { name: format!("{} (no worker)", self.name), setting, ..self }
    }

    /// Begins on a standby.
    pub fn on_standby(self) -> Scenario {
        Scenario { name: format!("{} (standby)", self.name), is_standby: true, ..self }
    }

    /// Whether every limit is in one row or entry, so that its answers are exact.
    pub fn is_exact(&self) -> bool {
        self.setting.limits.iter().all(|definition| definition.limit.shards() == 1)
    }

    /// The state in which it begins.
    pub fn begin(&self, flaw: Option<Flaw>) -> World {
        let has_saved = self.saved.contains(&true);
        // The last session is the worker.
        let mut database = Database::new(self.programs.len() + usize::from(has_saved));
        (database.now, database.room, database.flaw) = (BEGIN, self.room, flaw);
        database.in_recovery = self.is_standby;
        if has_saved {
            let room = if self.room > 0 { self.room.into() } else { KEYS.len() };
            database.saved = SavedPlaces::new(room);
        }
        for (number, (key, shard, stored)) in (0..).zip(&self.rows) {
            let version = Version {
                place: RowKey { key: *key, shard: *shard },
                content: Content::Limit(stored.clone().into()),
                xmin: FROZEN,
                is_speculative: false,
                lockers: Vec::new(),
                xmax: None,
            };
            database.versions.insert((u32::from(u8::MAX), number), version);
        }
        let states = |wanted: u8| {
            let rows = self.rows.iter().filter(move |(key, ..)| *key == wanted);
            rows.filter_map(|(.., stored)| match stored {
                Stored::State(state) => Some(state.clone()),
                _ => None,
            })
        };
        let committed: Vec<_> =
            (0..KEYS.len() as u8).map(|key| oracle::total(states(key))).collect();
        let kept = if has_saved { committed.clone() } else { Vec::new() };
        let mut world = World {
            database,
            sessions: vec![SessionState::default(); self.programs.len()],
            committed,
            holds: vec![Vec::new(); KEYS.len()],
            used: (0..KEYS.len() as u8).map(|key| self.used_at_first(key)).collect(),
            copied: kept.clone(),
            kept,
            history: Vec::new(),
            wrong: Vec::new(),
            moves: 0,
            has_crashed: false,
            denied: false,
            admitted: false,
        };
        for session in 0..self.programs.len() {
            self.resume(&mut world, session);
        }
        world
    }

    /// A session's view of the keys now.
    pub fn instant(&self, world: &World, session: usize) -> Instant {
        let (mut states, mut holds) = (world.committed.clone(), world.holds.clone());
        for effect in &world.sessions[session].effects {
            let key = usize::from(effect.key);
            self.apply(&mut states[key], &mut holds[key], effect);
        }
        let database = &world.database;
        let mut blocked = database.blocked.clone();
        blocked.extend(database.blocking[session]);
        let defined = database.defining[session].unwrap_or(database.defined);
        let bounds = match self.has_bounds() {
            true => (0..KEYS.len() as u8)
                .map(|key| self.bounds(world, key, &world.sessions[session].effects))
                .collect(),
            false => Vec::new(),
        };
        Instant { now: database.now, states, holds, blocked, defined, bounds }
    }

    /// Whether only bounds of the tokens in shards are known: they refill one by one, or are cut to a smaller share.
    pub fn has_bounds(&self) -> bool {
        let largest = self.largest().limit.capacity();
        let is_smaller = |definition: &Definition| definition.limit.capacity() < largest;
        !self.is_exact() && (!self.clock.is_empty() || self.setting.limits.iter().any(is_smaller))
    }

    /// The bounds of a key's tokens after the committed changes and these, in the order of their instants.
    pub fn bounds(&self, world: &World, key: u8, more: &[Applied]) -> Bounds {
        let of_key = self.rows.iter().filter(|row| row.0 == key);
        let states = of_key.filter_map(|(.., stored)| match stored {
            Stored::State(state) => Some(state.value()),
            _ => None,
        });
        let tokens = states.reduce(|sum, value| sum + value);
        let mut bounds = Bounds::new(tokens.unwrap_or(self.largest().limit.capacity()), BEGIN);
        let mut effects: Vec<&Applied> =
            world.history.iter().chain(more).filter(|effect| effect.key == key).collect();
        effects.sort_by_key(|effect| effect.now);
        let limits = &self.setting.limits;
        effects.into_iter().for_each(|effect| bounds.apply(limits, effect));
        bounds
    }

    /// Changes a state; false if the state before does not explain the change.
    pub fn apply(
        &self,
        state: &mut Option<Total>,
        holds: &mut Vec<HoldOf>,
        effect: &Applied,
    ) -> bool {
        if effect.change == Change::Reset {
            *state = None; // full, whatever the definition
            holds.clear();
            return true;
        }
        if self.setting.has_holds && self.is_exact() {
            let mut book = Book { state: state.take(), holds: std::mem::take(holds) };
            let limit = &self.setting.limits[usize::from(effect.limit)];
            book.expire(limit, effect.key, Micros(effect.now));
            let is_right = match effect.change {
                Change::Hold(..) | Change::Settle(..) | Change::Prune(_) => {
                    Some(self.apply_to_hold(&mut book, effect))
                }
                _ => None,
            };
            (*state, *holds) = (book.state, book.holds);
            if let Some(is_right) = is_right {
                return is_right;
            }
        }
        let after = match self.is_exact() {
            true => {
                let limit = &self.setting.limits[usize::from(effect.limit)];
                oracle::follows(limit, state.as_ref(), effect)
            }
            false => oracle::sums(self.largest(), state.as_ref(), effect),
        };
        let Some(after) = after else { return false };
        // A full limit stays unstored, so its instant doesn't count.
        let is_full = || {
            let limit = &self.setting.limits[usize::from(effect.limit)];
            after.0 == oracle::state_of(limit, effect.key, None, Micros(effect.now))
        };
        if state.is_some() || !is_full() {
            *state = Some(after);
        }
        true
    }

    /// The definition with the largest capacity. A call with a smaller one changes one shard, and leaves the others
    /// as they are.
    pub fn largest(&self) -> &Definition {
        let limits = self.setting.limits.iter();
        let largest =
            limits.max_by(|one, other| one.limit.capacity().total_cmp(&other.limit.capacity()));
        largest.unwrap_or(&self.setting.limits[0])
    }

    /// Runs a session until it reaches a step.
    pub fn resume(&self, world: &mut World, session: usize) {
        loop {
            let at = &world.sessions[session];
            let transactions = &self.programs[session];
            let Some(transaction) = transactions.get(usize::from(at.transaction)) else {
                world.sessions[session].pending = None;
                return;
            };
            let statement = transaction.get(usize::from(at.statement)).unwrap_or(&Command::Commit);
            if let Some(step) = self.control(world, session, statement) {
                world.sessions[session].pending = step;
                if world.sessions[session].pending.is_some() {
                    return;
                }
                world.sessions[session].statement += 1;
                continue;
            }
            let at = &mut world.sessions[session];
            let log = std::mem::take(&mut at.log);
            let database = std::mem::take(&mut world.database);
            let at = &world.sessions[session];
            let given = Given { leases: &at.leases, holds: &at.holds };
            let ran = run::run(&self.setting, database, session, statement, given, log);
            world.database = ran.database;
            let at = &mut world.sessions[session];
            match ran.state {
                Err(step) => {
                    (at.log, at.pending) = (ran.log, Some(step));
                    return;
                }
                Ok(outcome) => {
                    at.used = ran.used;
                    self.judge_outcome(world, session, statement, outcome);
                }
            }
        }
    }

    /// Runs a session's own statements; `Some(None)` if that took no step.
    fn control(
        &self,
        world: &mut World,
        session: usize,
        statement: &Command,
    ) -> Option<Option<Primitive>> {
        let at = &mut world.sessions[session];
        match statement {
            Command::Savepoint => {
                world.database.begin(session);
                at.savepoint = Some(world.database.open[session].len() as u8);
                Some(None)
            }
            Command::RollbackTo => Some(at.savepoint.map(Primitive::RollbackTo)),
            Command::Commit => Some(Some(Primitive::Commit)),
            Command::Rollback => Some(Some(Primitive::Rollback)),
            _ => None,
        }
    }

    /// The number of choices of a session's next step; 0: it waits, or is cut off.
    pub fn choices(&self, world: &World, session: usize) -> u8 {
        let at = &world.sessions[session];
        let lost = at.log.iter().filter(|reply| matches!(reply, StepReply::Inserted(_, false)));
        let loaded = |reply: &&StepReply| **reply == StepReply::Loaded(LoadedKey::Yes);
        let loads = at.log.iter().filter(loaded).count();
        if lost.count() > LOST_INSERTS || loads > LOST_LOADS && self.programs.len() > 1 {
            return 0;
        }
        match &at.pending {
            Some(step) if !world.database.is_enabled(session, step) => 0,
            Some(Primitive::Choose(end)) => *end,
            Some(_) => 1,
            None => 0,
        }
    }

    /// Takes a session's step.
    pub fn step(&self, world: &mut World, session: usize, choice: u8) {
        let Some(step) = world.sessions[session].pending.take() else { return };
        self.await_ends(world);
        if world.sessions[session].seen.is_empty() {
            let instant = self.instant(world, session);
            let at = &mut world.sessions[session];
            at.seen.push(instant);
            at.locked = world.database.locked(session);
        }
        let reply = self.execute(world, session, &step, choice);
        self.note_saved(world, step.itself(), &reply);
        match step {
            Primitive::Commit | Primitive::Rollback => {
                self.end(world, session, step == Primitive::Commit);
            }
            Primitive::RollbackTo(_) => {
                self.forget_rolled_back(world, session);
                let at = &mut world.sessions[session];
                at.statement += 1;
                at.seen.clear();
            }
            _ => world.sessions[session].log.push(reply),
        }
        self.resume(world, session);
        self.observe(world);
    }

    fn execute(
        &self,
        world: &mut World,
        session: usize,
        step: &Primitive,
        choice: u8,
    ) -> StepReply {
        let reply = world.database.execute(session, step, choice);
        if !world.database.has(Flaw::OldSnapshot) || !matches!(step, Primitive::Read(_)) {
            return reply;
        }
        world.sessions[session].first_read.get_or_insert(reply).clone()
    }

    /// Keeps the status of transactions that sessions wait for.
    fn await_ends(&self, world: &mut World) {
        let awaited = world.sessions.iter().filter_map(|session| match session.pending {
            Some(Primitive::WaitForEnd(xid)) => Some(xid),
            _ => None,
        });
        world.database.awaited = awaited.collect();
    }

    /// Adds this instant to those of each session's call, checks the invariants, and drops versions that no
    /// session has read.
    pub fn observe(&self, world: &mut World) {
        self.lose_forgotten(world);
        for session in 0..world.sessions.len() {
            if !world.sessions[session].seen.is_empty() {
                let instant = self.instant(world, session);
                let seen = &mut world.sessions[session].seen;
                if !seen.contains(&instant) {
                    seen.push(instant);
                }
            }
        }
        self.await_ends(world);
        let read: BTreeSet<Tid> = world.sessions.iter().flat_map(read_versions).collect();
        world.database.vacuum(&read);
        world.database.awaited.clear();
        self.check(world);
    }

    /// Makes the keys of removed or evicted entries full.
    fn lose_forgotten(&self, world: &mut World) {
        for key in std::mem::take(&mut world.database.forgotten) {
            // The same step may have written it again.
            let is_kept = world.database.entries.keys().any(|id| id[0] % 100 == key % 100)
                || self.in_memory.get(key as usize) != Some(&true)
                || self.saved.get(key as usize) == Some(&true);
            if let Some(state) = world.committed.get_mut(key as usize).filter(|_| !is_kept) {
                *state = None;
            }
        }
        for (key, state) in std::mem::take(&mut world.database.noted) {
            world.committed[usize::from(key)] = state;
        }
        if world.database.refused {
            world.is_wrong(Wrong::Failed);
        }
    }

    /// Crashes the server: transactions in progress are rolled back, and the memory is lost. Sessions go on with their
    /// next transactions.
    pub fn crash(&self, world: &mut World) {
        (0..world.sessions.len()).for_each(|session| self.cut(world, session));
        self.restart(world, false);
    }

    /// Rolls back a session's transaction, and that of the worker for which it may wait.
    pub fn cut(&self, world: &mut World, session: usize) {
        if world.sessions[session].pending.take().is_some() {
            self.await_ends(world);
            let worker = world.database.open.len() - 1;
            let with_worker = (worker >= world.sessions.len()).then_some(worker);
            for session in [session].into_iter().chain(with_worker) {
                world.database.execute(session, &Primitive::Rollback, 0);
            }
            self.end(world, session, false);
        }
    }

    /// Ends a session: its transaction is rolled back, and it makes no more calls.
    pub fn kill(&self, world: &mut World, session: usize) {
        self.cut(world, session);
        world.sessions[session].transaction = self.programs[session].len() as u8;
        self.observe(world);
    }

    /// Empties the memory, and lets sessions go on with their next transactions. Saved limits keep the state that was
    /// saved last, or all with `is_saved`.
    pub fn restart(&self, world: &mut World, is_saved: bool) {
        world.has_crashed = true;
        world.database.versions.retain(|_, version| !version.is_speculative);
        world.database.entries.clear();
        world.database.saved = world.database.saved.emptied();
        for key in (0..KEYS.len()).filter(|&key| self.in_memory[key]) {
            match (self.saved[key], is_saved) {
                (true, true) => {}
                (true, false) => world.committed[key] = world.kept[key].clone(),
                (false, _) => world.committed[key] = None,
            }
        }
        for session in 0..world.sessions.len() {
            self.resume(world, session);
        }
        self.observe(world);
    }

    /// Ends a deadlock, as PostgreSQL does: the transaction of a session fails.
    pub fn break_deadlock(&self, world: &mut World, session: usize) {
        world.sessions[session].pending = None;
        world.database.execute(session, &Primitive::Rollback, 0);
        self.end(world, session, false);
        self.resume(world, session);
        self.observe(world);
    }
}

/// The store of a key's limit. Definitions may differ in the number of rows only.
fn stores(programs: &[Vec<Vec<Command>>], limits: &[Definition], key: u8) -> Store {
    let statements = programs.iter().flatten().flatten();
    let numbers = statements.filter(|at| at.is_for(key)).filter_map(|at| at.limit(key));
    let mut stores: Vec<Store> =
        numbers.map(|number| Store::from_definition(&limits[usize::from(number)])).collect();
    stores.push(stores.first().copied().unwrap_or_else(|| Store::from_definition(&limits[0])));
    let first = stores[0];
    let is_same = |store: &Store| *store == first || store.is_in_table() && first.is_in_table();
    assert!(stores.iter().all(is_same), "a key whose limit is in rows and in memory");
    first
}

/// The versions that a session has read.
fn read_versions(session: &SessionState) -> Vec<Tid> {
    let mut read = Vec::new();
    for reply in &session.log {
        match reply {
            StepReply::Row(Some((tid, ..))) | StepReply::Inserted(tid, _) => read.push(*tid),
            StepReply::Rows(rows) => read.extend(rows.iter().map(|(_, (tid, ..))| *tid)),
            _ => {}
        }
    }
    let pending = session.pending.as_ref().map(Primitive::itself);
    if let Some(Primitive::TryLockUpdated(_, next, _)) = pending {
        read.push(*next);
    }
    if let Some(
        Primitive::Lock(tid, _)
        | Primitive::TryLock(tid)
        | Primitive::TryLockNewest(tid, _)
        | Primitive::TryLockUpdated(tid, ..)
        | Primitive::Update(tid, ..)
        | Primitive::Delete(tid)
        | Primitive::Rename(tid, _)
        | Primitive::WaitForInsert(tid),
    ) = pending
    {
        read.push(*tid);
    }
    read
}

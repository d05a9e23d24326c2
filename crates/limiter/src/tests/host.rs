//! A session on ordinary memory.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use ratelimit_core::config::{self, Definition};
use ratelimit_core::{Micros, State};

use crate::error::Result;
use crate::ports::*;
use crate::request::Request;

/// The primary key of a row.
type Key = (Vec<u8>, Vec<u8>, i32);

fn key_of(id: RowId) -> Key {
    (id.name.to_vec(), id.key.to_vec(), id.shard)
}

fn key((name, key, shard): (&str, &str, i32)) -> Key {
    (name.into(), key.into(), shard)
}

/// The request of a name and key.
pub fn request<'a>(name: &'a str, key: &'a str, count: f64) -> Request<'a> {
    let (name, key) = (name.as_bytes(), key.as_bytes());
    Request { name, key, count, reserve: false, config: None }
}

/// A config in a call.
pub struct TestConfig(pub &'static str);

impl InlineConfig for TestConfig {
    fn definition(&self) -> Result<Rc<Definition>> {
        Ok(Rc::new(config::definition(self.0)?))
    }
}

/// What the transaction has locked, and the rows as it sees them.
#[derive(Clone, Default)]
struct Transaction {
    rows: BTreeMap<Key, Stored>,
    locked: Vec<Key>,
}

type Hook = Box<dyn FnOnce(&TestSession)>;

type EntriesHook = Box<dyn FnOnce(&Shared)>;

/// A name and a key.
type NameAndKey = (Vec<u8>, Vec<u8>);

/// The hash of an entry's name, and what it keeps.
type NamedEntry = ([u64; 2], Kept);

/// A session.
#[derive(Default)]
pub struct TestSession {
    now: Cell<i64>,
    drawn: Cell<u64>,
    transaction: RefCell<Transaction>,
    /// The rows that other transactions hold.
    others: RefCell<BTreeSet<Key>>,
    /// The locks that would have waited for others.
    waits: RefCell<Vec<Key>>,
    definitions: RefCell<BTreeMap<Vec<u8>, Rc<Definition>>>,
    blocks: RefCell<BTreeMap<NameAndKey, Micros>>,
    may_not_define: Cell<bool>,
    /// Whether rows are replaced in one step, as in the heap; otherwise they are locked first, as through SQL.
    pub replaces: Cell<bool>,
    /// Whether many rows are deleted together, as on the nodes of Citus.
    pub together: Cell<bool>,
    counted: RefCell<Vec<Verdict>>,
    before_insert: RefCell<Option<Hook>>,
    before_try_lock: RefCell<Option<Hook>>,
    /// Whether somebody saves what is in memory.
    pub saves: Cell<bool>,
    pub entries: Shared,
}

impl TestSession {
    pub fn with(name: &str, config: &str) -> TestSession {
        let session =
            TestSession { now: Cell::new(1_798_804_800_000_000), ..TestSession::default() };
        session.define(name, config);
        session
    }

    pub fn define(&self, name: &str, config: &str) {
        let limit = Rc::new(config::definition(config).unwrap());
        self.definitions.borrow_mut().insert(name.into(), limit);
    }

    pub fn block(&self, name: &str, key: &str, until: Micros) {
        self.blocks.borrow_mut().insert((name.into(), key.into()), until);
    }

    pub fn may_define(&self, may: bool) {
        self.may_not_define.set(!may);
    }

    pub fn pass(&self, span: Micros) {
        self.now.set(self.now.get() + span.0);
    }

    pub fn commit(&self) {
        self.transaction.borrow_mut().locked.clear();
    }

    pub fn rows(&self) -> Vec<(Key, Stored)> {
        self.transaction.borrow().rows.clone().into_iter().collect()
    }

    pub fn locked(&self) -> Vec<Key> {
        self.transaction.borrow().locked.clone()
    }

    pub fn lock_for_others(&self, rows: &[(&str, &str, i32)]) {
        *self.others.borrow_mut() = rows.iter().map(|&row| key(row)).collect();
    }

    pub fn waits(&self) -> Vec<Key> {
        self.waits.borrow().clone()
    }

    pub fn put(&self, row: (&str, &str, i32), stored: Stored) {
        self.transaction.borrow_mut().rows.insert(key(row), stored);
    }

    pub fn overwrite(&self, row: (&str, &str, i32), with: impl FnOnce(&Stored) -> Stored) {
        let mut transaction = self.transaction.borrow_mut();
        let stored = transaction.rows.get_mut(&key(row)).unwrap();
        *stored = with(stored);
    }

    pub fn before_insert(&self, hook: impl FnOnce(&TestSession) + 'static) {
        *self.before_insert.borrow_mut() = Some(Box::new(hook));
    }

    pub fn before_try_lock(&self, hook: impl FnOnce(&TestSession) + 'static) {
        *self.before_try_lock.borrow_mut() = Some(Box::new(hook));
    }

    /// What another session does to the entries before several of them are locked here.
    pub fn before_lock_all(&self, hook: impl FnOnce(&Shared) + 'static) {
        *self.entries.1.borrow_mut() = Some(Box::new(hook));
    }

    pub fn counted(&self) -> Vec<Verdict> {
        self.counted.borrow().clone()
    }

    pub fn entries_len(&self) -> usize {
        self.entries.0.borrow().len()
    }
}

impl Clock for TestSession {
    fn now(&self) -> Micros {
        Micros(self.now.get())
    }
}

impl Interrupts for TestSession {
    fn check_for_interrupts(&self) {}

    fn each_page<T: 'static>(&self, page: impl FnMut() -> Option<T>) -> T {
        std::iter::repeat_with(page).find_map(|result| result).unwrap()
    }
}

impl Random for TestSession {
    fn unguessable(&self) -> Result<u64> {
        Ok(self.draw() << 20)
    }

    fn below(&self, end: usize) -> usize {
        self.draw() as usize % end
    }
}

impl TestSession {
    fn draw(&self) -> u64 {
        self.drawn.set(self.drawn.get() + 1);
        self.drawn.get()
    }
}

impl Subtransaction for TestSession {
    fn attempt<T>(&self, work: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
        let before = self.transaction.borrow().clone();
        let result = work();
        if !matches!(result, Ok(Some(_))) {
            *self.transaction.borrow_mut() = before;
        }
        result
    }
}

impl Encoding for TestSession {
    fn utf8(bytes: &[u8]) -> Cow<'_, str> {
        String::from_utf8_lossy(bytes)
    }
}

impl Definitions for TestSession {
    fn known(&self, name: &[u8], key: &[u8]) -> Result<Known> {
        let blocked_until = self.blocks.borrow().get(&(name.to_vec(), key.to_vec())).copied();
        Ok(Known { definition: self.defined(name, key)?, blocked_until })
    }

    fn defined(&self, name: &[u8], _: &[u8]) -> Result<Option<Rc<Definition>>> {
        Ok(self.definitions.borrow().get(name).cloned())
    }

    fn may_be_in_table(&self, name: &[u8]) -> Result<bool> {
        let defined = self.defined(name, b"")?;
        Ok(!defined.is_some_and(|limit| crate::target::Store::of(&limit).is_in_memory()))
    }

    fn may_define(&self) -> bool {
        !self.may_not_define.get()
    }

    fn blocks_in_force(&self, _: Option<&[u8]>, _: Option<&[u8]>) -> Result<Vec<BlockInForce>> {
        let block = |((name, key), until): (&NameAndKey, &Micros)| BlockInForce {
            name: name.clone(),
            key: key.clone(),
            until: *until,
        };
        Ok(self.blocks.borrow().iter().map(block).collect())
    }

    fn prune_blocks(&self, _: i64) -> Result<i64> {
        Ok(0)
    }
}

impl Tally for TestSession {
    type Place = ();

    fn place(&self, _: &[u8], _: &[u8]) -> Result<Option<()>> {
        Ok(None)
    }

    fn count(&self, _: Option<()>, counted: Counted) {
        self.counted.borrow_mut().push(counted.verdict);
    }
}

impl Host for TestSession {
    type Entries = Shared;

    fn with_rows<T>(&self, _: RowAccess, work: impl FnOnce(&dyn Rows) -> Result<T>) -> Result<T> {
        work(&Table(self))
    }

    fn entries(&self) -> Result<&Shared> {
        Ok(&self.entries)
    }

    fn saved_entries(&self) -> Result<&Shared> {
        Ok(&self.entries)
    }

    fn wait_for_save(&self) -> Result<bool> {
        if self.saves.get() {
            self.entries.2.borrow_mut().values_mut().for_each(|entry| entry.unsaved = false);
        }
        Ok(self.saves.get())
    }

    fn entries_if_any(&self) -> Result<Option<&Shared>> {
        Ok(Some(&self.entries))
    }

    fn entry_of(&self, (): ()) -> Id {
        self.entries.id(b"", b"")
    }

    fn refuse_read_only(&self) -> Result<()> {
        Ok(())
    }
}

/// The rows of a session.
struct Table<'a>(&'a TestSession);

impl Table<'_> {
    fn found(&self, key: &Key) -> Option<Row> {
        let stored = self.0.transaction.borrow().rows.get(key)?.clone();
        Some(Row { stored, tuple: TupleId::NONE })
    }

    fn is_others(&self, key: &Key) -> bool {
        self.0.others.borrow().contains(key)
    }

    fn locked(&self, key: Key) -> Option<Row> {
        let found = self.found(&key)?;
        let locked = &mut self.0.transaction.borrow_mut().locked;
        locked.retain(|held| *held != key);
        locked.push(key);
        Some(found)
    }
}

/// The version of a row: that of its contents.
fn version(stored: &Stored) -> TupleId {
    TupleId { writer: Some(hash(format!("{stored:?}").as_bytes()) as u32), ..TupleId::NONE }
}

impl Rows for Table<'_> {
    fn read(&self, id: RowId) -> Result<Option<Row>> {
        Ok(self.found(&key_of(id)))
    }

    fn read_shards(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<ShardRow>> {
        let mut found = self.read_key(name, key)?;
        found.retain(|(shard, _)| shards.contains(shard));
        Ok(found)
    }

    fn read_key(&self, name: &[u8], key: &[u8]) -> Result<Vec<ShardRow>> {
        let rows = self.0.rows().into_iter().filter(|((n, k, _), _)| n == name && k == key);
        let row = |((_, _, shard), stored)| {
            let tuple = version(&stored);
            (shard, Row { stored, tuple })
        };
        Ok(rows.map(row).collect())
    }

    fn read_after(
        &self,
        after: (&[u8], &[u8]),
        same_name: bool,
        rows: i64,
    ) -> Result<Vec<KeyedRow>> {
        let after = (after.0.to_vec(), after.1.to_vec());
        let row = |((name, key, shard), stored): (Key, Stored)| {
            let tuple = version(&stored);
            KeyedRow { name, key, row: (shard, Row { stored, tuple }) }
        };
        let wanted = |((name, key, _), _): &(Key, Stored)| {
            (name.clone(), key.clone()) > after && (!same_name || *name == after.0)
        };
        Ok(self.0.rows().into_iter().filter(wanted).take(rows as usize).map(row).collect())
    }

    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        Ok(self.0.rows().into_iter().next().map(|((name, key, _), _)| (name, key)))
    }

    fn lock(&self, id: RowId) -> Result<Option<Row>> {
        let key = key_of(id);
        if self.is_others(&key) {
            // They commit meanwhile, and change nothing but what a test says.
            let hook = self.0.before_try_lock.take();
            hook.into_iter().for_each(|hook| hook(self.0));
            self.0.waits.borrow_mut().push(key.clone());
            self.0.others.borrow_mut().remove(&key);
        }
        Ok(self.locked(key))
    }

    fn try_lock(&self, id: RowId) -> Result<Option<Row>> {
        let hook = self.0.before_try_lock.take();
        hook.into_iter().for_each(|hook| hook(self.0));
        let key = key_of(id);
        Ok(if self.is_others(&key) { None } else { self.locked(key) })
    }

    fn insert(&self, id: RowId, stored: &Stored) -> Result<bool> {
        let hook = self.0.before_insert.take();
        hook.into_iter().for_each(|hook| hook(self.0));
        let key = key_of(id);
        if self.found(&key).is_some() {
            return Ok(false);
        }
        self.0.transaction.borrow_mut().rows.insert(key.clone(), stored.clone());
        self.locked(key);
        Ok(true)
    }

    fn update(&self, id: RowId, _: TupleId, stored: &Stored) -> Result<()> {
        let key = key_of(id);
        let mut transaction = self.0.transaction.borrow_mut();
        assert!(transaction.locked.contains(&key), "{key:?} is updated without a lock");
        match transaction.rows.get_mut(&key) {
            Some(row) => *row = stored.clone(),
            None => return Err(self.not_written()),
        }
        Ok(())
    }

    fn delete(&self, id: RowId, _: TupleId) -> Result<()> {
        let key = key_of(id);
        let mut transaction = self.0.transaction.borrow_mut();
        assert!(transaction.locked.contains(&key), "{key:?} is deleted without a lock");
        transaction.rows.remove(&key).map(|_| ()).ok_or_else(|| self.not_written())
    }

    fn replaces(&self) -> bool {
        self.0.replaces.get()
    }

    fn replace(&self, id: RowId, seen: &Row, stored: &Stored, wait: bool) -> Result<bool> {
        let key = key_of(id);
        if !self.replaces() || self.is_others(&key) && !wait {
            return Ok(false);
        }
        if self.is_others(&key) {
            let hook = self.0.before_try_lock.take();
            hook.into_iter().for_each(|hook| hook(self.0));
            self.lock(id)?;
        }
        if self.found(&key).is_none_or(|row| row.stored != seen.stored) {
            return Ok(false);
        }
        self.0.transaction.borrow_mut().rows.insert(key.clone(), stored.clone());
        self.locked(key);
        Ok(true)
    }

    fn remove_all(&self, keys: &[KeyRows]) -> Result<Option<u64>> {
        if !self.0.together.get() {
            return Ok(None);
        }
        let mut deleted = 0;
        for KeyRows { name, key, rows } in keys {
            let id = |shard: i32| (name.clone(), key.clone(), shard);
            let unchanged = |(shard, seen): &ShardRow| {
                self.found(&id(*shard)).is_some_and(|row| version(&row.stored) == seen.tuple)
                    && !self.is_others(&id(*shard))
            };
            if rows.iter().all(unchanged) {
                deleted += rows.len() as u64;
                let all = &mut self.0.transaction.borrow_mut().rows;
                rows.iter().for_each(|(shard, _)| drop(all.remove(&id(*shard))));
            }
        }
        Ok(Some(deleted))
    }

    fn delete_name(&self, name: &[u8]) -> Result<Option<Vec<KeyedRow>>> {
        if !self.0.together.get() {
            return Ok(None);
        }
        let all = self.read_after((name, b""), true, i64::MAX)?;
        let hook = self.0.before_try_lock.take();
        hook.into_iter().for_each(|hook| hook(self.0));
        let rows = &mut self.0.transaction.borrow_mut().rows;
        all.iter().for_each(|row| {
            rows.remove(&(row.name.clone(), row.key.clone(), row.row.0));
        });
        Ok(Some(all))
    }

    fn held(&self, name: &[u8], key: &[u8]) -> Vec<i32> {
        let held = self.0.locked().into_iter().rev();
        held.filter(|(n, k, _)| n == name && k == key).map(|(_, _, shard)| shard).collect()
    }

    fn table(&self) -> u32 {
        1
    }
}

/// The entries of memory.
#[derive(Default)]
pub struct Shared(
    RefCell<HashMap<[u64; 2], NamedEntry>>,
    RefCell<Option<EntriesHook>>,
    /// Those that are saved, by their ids.
    pub RefCell<HashMap<[u64; 2], SavedEntry>>,
    /// How many of them have room; `None`: all.
    pub Cell<Option<usize>>,
);

/// A saved key, with its state and whether it is to be written.
#[derive(Clone, Debug)]
pub struct SavedEntry {
    pub key: SavedKey,
    pub state: Option<State>,
    pub unsaved: bool,
}

/// All of them, locked.
pub struct AllLocked<'a>(&'a Shared);

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(14_695_981_039_346_656_037, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
    })
}

impl Shared {
    /// Changes the tokens of a key.
    pub fn set_tokens(&self, name: &str, key: &str, value: f64) {
        let id = self.id(name.as_bytes(), key.as_bytes());
        let mut entries = self.0.borrow_mut();
        match entries.get_mut(&id.key) {
            Some((_, Kept::Tokens(tokens))) => tokens.value = value,
            other => panic!("{other:?}"),
        }
    }
}

impl Entries for Shared {
    type Locked<'e> = AllLocked<'e>;

    fn id(&self, name: &[u8], key: &[u8]) -> Id {
        let (name, key) = ([hash(name), 0], [hash(name), hash(key)]);
        Id { name, key, room: Room::Defined, owner: 0 }
    }

    fn inline(&self, id: Id) -> Id {
        Id { key: [id.key[0] + 1, id.key[1]], room: Room::Inline, ..id }
    }

    fn read(&self, id: Id) -> Option<Kept> {
        self.0.borrow().get(&id.key).map(|&(_, kept)| kept)
    }

    fn locked<T>(&self, _: Id, work: impl FnOnce(&mut AllLocked<'_>) -> T) -> T {
        work(&mut AllLocked(self))
    }

    fn lock_all(&self, _: impl Iterator<Item = Id>) -> AllLocked<'_> {
        let hook = self.1.take();
        hook.into_iter().for_each(|hook| hook(self));
        AllLocked(self)
    }

    fn forget_name(&self, name: &[u8]) -> u64 {
        let of = self.id(name, b"").name;
        let mut counted = 0;
        self.0.borrow_mut().retain(|_, &mut (name, kept)| {
            let is_further = matches!(kept, Kept::Slot { is_first: false, .. });
            counted += u64::from(name == of && !is_further);
            name != of
        });
        counted
    }

    fn before_read(&self, _: Id) -> BeforeRead {
        BeforeRead { evictions: 0, on_standby: false }
    }

    fn load(
        &self,
        id: Id,
        (name, key): (&[u8], &[u8]),
        state: Option<&State>,
        _: BeforeRead,
    ) -> Loaded {
        let key = SavedKey { name: name.to_vec(), key: key.to_vec() };
        let entry = SavedEntry { key, state: state.cloned(), unsaved: false };
        let mut all = self.2.borrow_mut();
        if self.3.get().is_some_and(|room| all.len() >= room && !all.contains_key(&id.key)) {
            // One that was saved with what was taken; of those that were read only, any.
            let saved = all.iter().filter(|(_, entry)| !entry.unsaved);
            let evicted = saved.max_by_key(|(_, entry)| entry.state.is_some());
            let Some(evicted) = evicted.map(|(&id, _)| id) else { return Loaded::NoRoom };
            all.remove(&evicted);
        }
        all.entry(id.key).or_insert(entry);
        Loaded::Yes
    }

    fn saved_keys(&self, name: Option<&[u8]>) -> Vec<SavedKey> {
        let all = self.2.borrow();
        let keys = all.values().map(|entry| entry.key.clone());
        keys.filter(|key| name.is_none_or(|name| key.name == name)).collect()
    }

    fn save_later(&self) {}

    fn tell_losses(&self) {}
}

impl LockedEntries for AllLocked<'_> {
    fn read(&mut self, id: Id) -> Option<Kept> {
        self.0.read(id)
    }

    fn gone(&mut self, _: Id) -> u32 {
        0 // none comes and goes between two looks
    }

    fn write(&mut self, id: Id, kept: Kept, _: Worth) {
        self.0.0.borrow_mut().insert(id.key, (id.name, kept));
    }

    fn remove(&mut self, id: Id) -> bool {
        self.0.0.borrow_mut().remove(&id.key).is_some()
    }

    fn read_saved(&mut self, id: Id) -> Option<Option<State>> {
        self.0.2.borrow().get(&id.key).map(|entry| entry.state.clone())
    }

    fn write_saved(&mut self, id: Id, state: Option<&State>, _: Micros) -> bool {
        let mut all = self.0.2.borrow_mut();
        let entry = all.get_mut(&id.key).expect("a key that was put in");
        (entry.state, entry.unsaved) = (state.cloned(), true);
        true
    }
}

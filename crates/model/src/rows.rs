//! The rows of the table, in steps.

use ratelimit_limiter::error::Result;
use ratelimit_limiter::ports::{KeyedRow, Row, RowId, Rows, ShardRow, Stored, TupleId};

use crate::content::Content;
use crate::postgres::{Flaw, Found, Primitive, RowKey, StepReply, Tid};
use crate::run::{AccessPath, Run};
use crate::statement::{KEYS, NAME, key_number};

/// The place of a row.
fn place(id: RowId) -> RowKey {
    RowKey { key: key_number(id.key), shard: id.shard }
}

/// A row that was found.
fn row((tid, unlocked, Content(stored)): Found) -> Row {
    Row { stored, tuple: TupleId { tid: Some(tid), unlocked, writer: None } }
}

/// The version of a row.
fn tid(tuple: TupleId) -> Tid {
    tuple.tid.unwrap_or_default()
}

impl Run<'_> {
    fn found(&self, step: Primitive) -> Option<Row> {
        let reply = self.step(step);
        let StepReply::Row(found) = reply else { unreachable!("{reply:?}") };
        found.map(row)
    }

    fn rows(&self, step: Primitive) -> Vec<(RowKey, Row)> {
        let reply = self.step(step);
        let StepReply::Rows(rows) = reply else { unreachable!("{reply:?}") };
        rows.into_iter().map(|(place, found)| (place, row(found))).collect()
    }

    fn was(&self, reply: StepReply) -> bool {
        let StepReply::Was(done) = reply else { unreachable!("{reply:?}") };
        done
    }

    /// Locks the newest version, or without `wait` the one that is found.
    fn lock_newest(&self, id: RowId, wait: bool) -> Option<Row> {
        let seen = self.found(Primitive::Read(place(id)))?;
        let tid = tid(seen.tuple);
        let mut locked = match (wait, self.setting.access) {
            (true, _) => self.found(Primitive::Lock(tid, place(id))),
            (false, AccessPath::Heap) => self.found(Primitive::TryLock(tid)),
            (false, AccessPath::Sql) => self.skip_locked(tid, place(id)),
        }?;
        if self.has(Flaw::DecidedBeforeWait) {
            locked.stored = seen.stored;
        }
        Some(locked)
    }

    /// Locks the newest version as SKIP LOCKED does, which waits where it is updated again while an update ends.
    fn skip_locked(&self, tid: Tid, place: RowKey) -> Option<Row> {
        let mut step = Primitive::TryLockNewest(tid, place);
        loop {
            match self.step(step) {
                StepReply::Row(found) => return found.map(row),
                StepReply::Updated(tid, next) => step = Primitive::TryLockUpdated(tid, next, place),
                reply => unreachable!("{reply:?}"),
            }
        }
    }

    fn lock_seen(&self, seen: &Row) -> bool {
        seen.tuple.unlocked && self.found(Primitive::TryLock(tid(seen.tuple))).is_some()
    }

    /// Inserts a row, unless there is another; false if so.
    fn insert_row(&self, id: RowId, stored: &Stored) -> bool {
        let reply = self.step(Primitive::Insert(place(id), Content(stored.clone())));
        let StepReply::Inserted(tid, is_alone) = reply else { unreachable!("{reply:?}") };
        self.step(Primitive::Confirm(tid, is_alone));
        is_alone
    }

    /// Waits for a session that is inserting or deleting a row.
    fn wait_for_inserter(&self, id: RowId) {
        let reply = self.step(Primitive::FindInserter(place(id)));
        let StepReply::Inserter(found) = reply else { unreachable!("{reply:?}") };
        match found {
            Some((_, Some(tid))) => drop(self.step(Primitive::WaitForInsert(tid))),
            Some((xid, None)) => drop(self.step(Primitive::WaitForEnd(xid))),
            None => {}
        }
    }
}

impl Rows for Run<'_> {
    fn read(&self, id: RowId) -> Result<Option<Row>> {
        Ok(self.found(Primitive::Read(place(id))))
    }

    fn read_shards(&self, name: &[u8], key: &[u8], shards: &[i32]) -> Result<Vec<ShardRow>> {
        if self.setting.access == AccessPath::Sql {
            let mut rows = self.read_key(name, key)?;
            rows.retain(|(shard, _)| shards.contains(shard));
            return Ok(rows);
        }
        let find = |&shard: &i32| {
            let found = self.found(Primitive::Read(place(RowId { name, key, shard })))?;
            Some((shard, found))
        };
        Ok(shards.iter().filter_map(find).collect())
    }

    fn read_key(&self, _: &[u8], key: &[u8]) -> Result<Vec<ShardRow>> {
        let rows = self.rows(Primitive::ReadKey(key_number(key))).into_iter();
        Ok(rows.map(|(place, row)| (place.shard, row)).collect())
    }

    fn read_after(&self, after: (&[u8], &[u8]), _: bool, rows: i64) -> Result<Vec<KeyedRow>> {
        let row = |(place, row): (RowKey, Row)| {
            let key = KEYS[usize::from(place.key)].to_vec();
            KeyedRow { name: NAME.to_vec(), key, row: (place.shard, row) }
        };
        let found = self.rows(Primitive::ReadAll).into_iter().map(row);
        let wanted = found.filter(|row| (&row.name[..], &row.key[..]) > after);
        Ok(wanted.take(rows as usize).collect())
    }

    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        Ok(None)
    }

    fn lock(&self, id: RowId) -> Result<Option<Row>> {
        Ok(self.lock_newest(id, true))
    }

    fn try_lock(&self, id: RowId) -> Result<Option<Row>> {
        Ok(self.lock_newest(id, false))
    }

    fn insert(&self, id: RowId, stored: &Stored) -> Result<bool> {
        let is_alone = self.insert_row(id, stored);
        if !is_alone {
            self.wait_for_inserter(id);
        }
        Ok(is_alone)
    }

    fn try_insert(&self, id: RowId, stored: &Stored) -> Result<bool> {
        match self.setting.access {
            AccessPath::Heap => Ok(self.insert_row(id, stored)),
            AccessPath::Sql => self.insert(id, stored),
        }
    }

    fn update(&self, _: RowId, locked: TupleId, stored: &Stored) -> Result<()> {
        let update = Primitive::Update(tid(locked), Content(stored.clone()));
        // The row is locked: no session sees the new version before the commit.
        let done = self.was(self.at_once(update));
        if done { Ok(()) } else { Err(self.not_written()) }
    }

    fn delete(&self, _: RowId, locked: TupleId) -> Result<()> {
        let done = self.was(self.at_once(Primitive::Delete(tid(locked))));
        if done { Ok(()) } else { Err(self.not_written()) }
    }

    fn held(&self, _: &[u8], key: &[u8]) -> Vec<i32> {
        let reply = self.at_once(Primitive::OwnRows(key_number(key)));
        let StepReply::OwnRows(shards) = reply else { unreachable!("{reply:?}") };
        shards
    }

    fn table(&self) -> u32 {
        self.number()
    }

    fn page(&self) -> usize {
        2
    }

    fn replaces(&self) -> bool {
        self.setting.access == AccessPath::Heap
    }

    fn replace(&self, _: RowId, seen: &Row, stored: &Stored, wait: bool) -> Result<bool> {
        if self.setting.access == AccessPath::Sql {
            return Ok(false);
        }
        let update = Primitive::Update(tid(seen.tuple), Content(stored.clone()));
        Ok(match wait {
            true => self.was(self.step(update)),
            false => self.lock_seen(seen) && self.was(self.at_once(update)),
        })
    }

    fn remove(&self, _: RowId, seen: &Row) -> Result<bool> {
        if self.setting.access == AccessPath::Sql {
            return Ok(false);
        }
        Ok(self.lock_seen(seen) && self.was(self.at_once(Primitive::Delete(tid(seen.tuple)))))
    }
}

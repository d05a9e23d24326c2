//! The rows of the table, in steps.

use ratelimit_core::{Micros, State};
use ratelimit_faults::Fault;
use ratelimit_limiter::error::{LimiterError, Result};
use ratelimit_limiter::ports::{
    KeyRef, KeyRows, KeyedRow, Row, RowFacts, RowId, Rows, ShardRow, Stored, TupleId, Version,
};

use crate::content::Content;
use crate::postgres::{Flaw, Found, Primitive, RowKey, StepReply, Tid};
use crate::run::{AccessPath, Run};
use crate::statement::{KEYS, NAME, key_number};

/// The place of a row.
fn place(id: RowId) -> RowKey {
    RowKey { key: key_number(id.key), shard: id.shard }
}

/// The contents of a row to write; `is_locked`: the row is locked.
fn content(version: &Version, is_locked: bool) -> Content {
    let mut version = version.clone();
    match &mut version.stored {
        Stored::State(State::Tokens(tokens)) if is_locked && Fault::RefilledTwice.is_on() => {
            tokens.ts = tokens.ts.minus(Micros::SECOND);
        }
        _ => {}
    }
    version.holds_due = version.holds_due.filter(|_| !Fault::ExpiresForgotten.is_on());
    Content::Limit(version)
}

/// A row that was found.
fn row((tid, unlocked, content): Found) -> Row {
    let Content::Limit(version) = content else { unreachable!("{content:?}") };
    Row { version, tuple: TupleId { tid: Some(tid), unlocked, writer: None } }
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

    pub(crate) fn was(&self, reply: StepReply) -> bool {
        let StepReply::Was(done) = reply else { unreachable!("{reply:?}") };
        done
    }

    /// Locks the newest version, or without `wait` the one that was found.
    fn lock_newest(&self, id: RowId, wait: bool) -> Option<Row> {
        let seen = self.found(Primitive::Read(place(id)))?;
        let tid = tid(seen.tuple);
        let mut locked = match (wait, self.setting.access) {
            (true, _) => self.found(Primitive::Lock(tid, place(id))),
            (false, AccessPath::Heap) => self.found(Primitive::TryLock(tid)),
            (false, _) => self.skip_locked(tid, place(id)).map(row),
        }?;
        if self.has(Flaw::DecidedBeforeWait) {
            locked.version.stored = seen.version.stored;
        }
        Some(locked)
    }

    /// Locks the newest version as SKIP LOCKED does: waits if it is updated again while an update ends.
    pub(crate) fn skip_locked(&self, tid: Tid, place: RowKey) -> Option<Found> {
        let mut step = Primitive::TryLockNewest(tid, place);
        loop {
            match self.step(step) {
                StepReply::Row(found) => return found,
                StepReply::Updated(tid, next) => step = Primitive::TryLockUpdated(tid, next, place),
                reply => unreachable!("{reply:?}"),
            }
        }
    }

    fn lock_seen(&self, seen: &Row) -> bool {
        seen.tuple.unlocked && self.found(Primitive::TryLock(tid(seen.tuple))).is_some()
    }

    /// Inserts a row; false if there is another.
    fn insert_row(&self, id: RowId, content: Content) -> bool {
        let reply = self.step(Primitive::Insert(place(id), content));
        let StepReply::Inserted(tid, is_alone) = reply else { unreachable!("{reply:?}") };
        self.step(Primitive::Confirm(tid, is_alone));
        is_alone
    }

    /// Waits for a session that is inserting or deleting a row.
    pub(crate) fn wait_for_inserter(&self, place: RowKey) {
        let reply = self.step(Primitive::FindInserter(place));
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

    fn read_key(&self, name: &[u8], key: &[u8], shards: Option<&[i32]>) -> Result<Vec<ShardRow>> {
        if let (Some(shards), AccessPath::Heap) = (shards, self.setting.access) {
            let find = |&shard: &i32| {
                let found = self.found(Primitive::Read(place(RowId { name, key, shard })))?;
                Some((shard, found))
            };
            return Ok(shards.iter().filter_map(find).collect());
        }
        let rows = self.rows(Primitive::ReadKey(key_number(key))).into_iter();
        let wanted = |shard: &i32| shards.is_none_or(|shards| shards.contains(shard));
        Ok(rows.map(|(place, row)| (place.shard, row)).filter(|(shard, _)| wanted(shard)).collect())
    }

    fn read_after(&self, after: KeyRef, _: bool, rows: i64) -> Result<Vec<KeyedRow>> {
        let row = |(place, row): (RowKey, Row)| {
            let key = KEYS[usize::from(place.key)].to_vec();
            ((NAME.to_vec(), key), (place.shard, row))
        };
        let found = self.rows(Primitive::ReadAll).into_iter().map(row);
        let wanted = found.filter(|((name, key), _)| (&name[..], &key[..]) > after);
        Ok(wanted.take(rows as usize).collect())
    }

    fn random_key(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        Ok(None)
    }

    fn lock(&self, id: RowId, wait: bool) -> Result<Option<Row>> {
        Ok(self.lock_newest(id, wait))
    }

    fn insert(&self, id: RowId, version: &Version, wait: bool) -> Result<bool> {
        let is_alone = self.insert_row(id, content(version, false));
        if !is_alone && (wait || self.setting.access != AccessPath::Heap) {
            self.wait_for_inserter(place(id));
        }
        Ok(is_alone)
    }

    fn update(&self, id: RowId, locked: TupleId, version: &Version) -> Result<()> {
        let update = Primitive::Update(tid(locked), place(id), content(version, true));
        // The row is locked: no session sees the new version before the commit.
        let done = self.was(self.at_once(update));
        if done { Ok(()) } else { Err(LimiterError::not_written()) }
    }

    fn delete(&self, _: RowId, locked: TupleId) -> Result<()> {
        let done = self.was(self.at_once(Primitive::Delete(tid(locked))));
        if done { Ok(()) } else { Err(LimiterError::not_written()) }
    }

    fn facts(&self) -> RowFacts {
        let locks_first = self.setting.access != AccessPath::Heap;
        let batch = if self.setting.access == AccessPath::Distributed { 2 } else { 1 };
        RowFacts { page: 2, batch, locks_first, ..RowFacts::LOCAL }
    }

    fn replace(&self, id: RowId, seen: &Row, version: &Version, wait: bool) -> Result<bool> {
        if self.setting.access != AccessPath::Heap {
            return Ok(false);
        }
        let update = Primitive::Update(tid(seen.tuple), place(id), content(version, false));
        Ok(match wait {
            true => self.was(self.step(update)),
            false => self.lock_seen(seen) && self.was(self.at_once(update)),
        })
    }

    fn remove(&self, keys: &[KeyRows]) -> Result<u64> {
        let takes_one_step = |of: &KeyRows| match self.setting.access {
            AccessPath::Heap => of.rows.len() == 1,
            AccessPath::Sql => false,
            AccessPath::Distributed => true,
        };
        let delete = |seen: &Row| self.was(self.at_once(Primitive::Delete(tid(seen.tuple))));
        let remove = |of: &&KeyRows| {
            takes_one_step(of)
                && of.rows.iter().all(|(_, seen)| self.lock_seen(seen))
                && of.rows.iter().all(|(_, seen)| delete(seen))
        };
        Ok(keys.iter().filter(remove).map(|of| of.rows.len() as u64).sum())
    }

    fn delete_name(&self, name: &[u8]) -> Result<Option<Vec<KeyedRow>>> {
        if self.setting.access != AccessPath::Distributed {
            return Ok(None);
        }
        let mut deleted = Vec::new();
        for (place, seen) in self.rows(Primitive::ReadAll) {
            if let Some(row) = self.found(Primitive::Lock(tid(seen.tuple), place)) {
                self.at_once(Primitive::Delete(tid(row.tuple)));
                let key = KEYS[usize::from(place.key)].to_vec();
                deleted.push(((name.to_vec(), key), (place.shard, row)));
            }
        }
        Ok(Some(deleted))
    }
}

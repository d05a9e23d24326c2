//! Executes steps.

use super::versions::MustWait;
use super::{
    Content, Database, Flaw, Found, MemoryEntry, Primitive, RowKey, StepReply, Tid,
    TransactionStatus, Version, Xid,
};

impl Database {
    /// Executes a step that would not wait; `choice` is what it chooses.
    pub fn execute(&mut self, session: usize, step: &Primitive, choice: u8) -> StepReply {
        match step {
            Primitive::Read(_)
            | Primitive::ReadKey(_)
            | Primitive::ReadAll
            | Primitive::ReadHolds(_)
            | Primitive::FindInserter(_) => self.read(session, step),
            &Primitive::Lock(tid, place)
            | &Primitive::TryLockNewest(tid, place)
            | &Primitive::TryLockUpdated(tid, _, place) => {
                let is_first = !matches!(step, Primitive::TryLockUpdated(..));
                self.lock_newest(session, tid, place, is_first)
            }
            &Primitive::TryLock(tid) => self.try_lock(session, tid),
            Primitive::Update(tid, place, content) => {
                StepReply::Was(self.update(session, *tid, *place, content.clone()))
            }
            Primitive::Delete(tid) => StepReply::Was(self.delete(session, *tid)),
            &Primitive::Rename(tid, key) => {
                let Version { place, content, .. } = self.versions[&tid].clone();
                StepReply::Was(self.update(session, tid, RowKey { key, ..place }, content))
            }
            Primitive::Insert(place, content) => self.insert(session, *place, content.clone()),
            &Primitive::Confirm(tid, is_alone) => self.confirm(session, tid, is_alone),
            Primitive::WaitForInsert(_) | Primitive::WaitForEnd(_) | Primitive::LockPartition => {
                StepReply::Done
            }
            Primitive::BeginSub => {
                self.begin(session);
                StepReply::Done
            }
            Primitive::ReleaseSub => {
                self.release(session);
                StepReply::Done
            }
            Primitive::RollbackSub => {
                self.roll_back(session, self.open[session].len() - 1);
                StepReply::Done
            }
            &Primitive::RollbackTo(depth) => {
                self.roll_back(session, usize::from(depth) - 1);
                self.begin(session); // the savepoint stays
                StepReply::Done
            }
            Primitive::Commit | Primitive::Rollback => {
                self.end(session, *step == Primitive::Commit);
                StepReply::Done
            }
            Primitive::Choose(_) => StepReply::Number(choice),
            _ => self.shared(session, step),
        }
    }

    /// Executes a step on shared things other than rows.
    fn shared(&mut self, session: usize, step: &Primitive) -> StepReply {
        match *step {
            Primitive::Clock => StepReply::Instant(self.now),
            Primitive::Known(key) => {
                let defined = match self.has(Flaw::DefinitionKept) {
                    true => 0,
                    false => self.defining[session].unwrap_or(self.defined),
                };
                let blocked = self.blocked.contains(&key) || self.blocking[session] == Some(key);
                StepReply::Known(defined, blocked)
            }
            Primitive::Define(number) => {
                self.defining[session] = Some(number);
                StepReply::Done
            }
            Primitive::Block(key) => {
                self.blocking[session] = Some(key);
                StepReply::Done
            }
            Primitive::Draw => {
                let drawn = self.drawn[session];
                self.drawn[session] += 1;
                StepReply::Number(drawn)
            }
            Primitive::OwnRows(key) => {
                let rows =
                    self.own_rows[session].iter().rev().filter(|(place, _)| place.key == key);
                let shards = rows.map(|(place, _)| place.shard);
                let forgotten = self.has(Flaw::OwnRowsForgotten);
                StepReply::OwnRows(shards.filter(|_| !forgotten).collect())
            }
            Primitive::ReadEntry(id) => {
                StepReply::Entry(self.entries.get(&id).map(|entry| entry.content.clone()))
            }
            Primitive::WriteEntry(id, ref content, idle_at, now) => {
                self.make_room(id, now);
                let entry = MemoryEntry { content: content.clone(), idle_at };
                let was = self.entries.insert(id, entry);
                self.born += u8::from(was.is_none());
                StepReply::Done
            }
            Primitive::CountGone => StepReply::Number(self.born - self.entries.len() as u8),
            Primitive::RemoveEntry(id) => StepReply::Was(self.entries.remove(&id).is_some()),
            Primitive::RemoveEntries(key) => {
                let count = self.entries.len();
                self.entries.retain(|id, _| id[0] % 100 != key);
                self.forgotten.push(key);
                StepReply::Was(self.entries.len() < count)
            }
            _ => self.save(session, step),
        }
    }

    /// Evicts an entry for a new one that doesn't fit, an idle one if possible.
    fn make_room(&mut self, id: [u64; 2], now: i64) {
        let room = usize::from(self.room);
        if room == 0 || self.entries.len() < room || self.entries.contains_key(&id) {
            return;
        }
        let next = self.entries.iter().min_by_key(|(_, entry)| entry.idle_at);
        if let Some((&id, entry)) = next {
            if entry.idle_at > now {
                self.forgotten.push(id[0]);
            }
            self.entries.remove(&id);
        }
    }

    fn read(&self, session: usize, step: &Primitive) -> StepReply {
        let is_wanted = |place: &RowKey| match step {
            Primitive::Read(wanted) => place == wanted,
            Primitive::ReadKey(key) => place.key == *key && !place.is_hold(),
            Primitive::ReadHolds(which) => which.has(place),
            _ => !place.is_hold(),
        };
        if let &Primitive::FindInserter(place) = step {
            return StepReply::Inserter(self.inserter(session, place));
        }
        let mut rows: Vec<(RowKey, Found)> = self
            .versions
            .iter()
            .filter(|(_, version)| is_wanted(&version.place) && self.is_visible(session, version))
            .map(|(&tid, version)| (version.place, self.found(session, tid, version)))
            .collect();
        rows.sort_by_key(|&(place, _)| place);
        match step {
            Primitive::Read(_) => StepReply::Row(rows.pop().map(|(_, found)| found)),
            _ => StepReply::Rows(rows),
        }
    }

    /// Remembers that a session holds a row, like `store::own_locks`: in the subtransaction in which it
    /// locked it first.
    fn note_own(&mut self, session: usize, place: RowKey) {
        if place.is_hold() {
            return;
        }
        let xid = self.xid(session);
        let own = &mut self.own_rows[session];
        let row = match own.iter().position(|(other, _)| *other == place) {
            Some(at) => own.remove(at),
            None => (place, xid),
        };
        own.push(row);
    }

    /// Locks the newest version. One that is being updated is only reported, if `is_first` or another one
    /// came before it.
    fn lock_newest(
        &mut self,
        session: usize,
        tid: Tid,
        place: RowKey,
        is_first: bool,
    ) -> StepReply {
        let (last, is_other) = match self.follow(session, tid) {
            Ok(Some(last)) => last,
            Ok(None) => return StepReply::Row(None),
            Err(MustWait(locked)) => {
                return match self.versions[&locked].xmax {
                    Some((_, Some(next))) if is_first || locked != tid => {
                        StepReply::Updated(locked, next)
                    }
                    _ => StepReply::Row(None),
                };
            }
        };
        if is_other && self.versions[&last].place != place && !self.has(Flaw::ChainNotCompared) {
            // The lock stays, as in PostgreSQL.
            self.lock(session, last);
            return StepReply::Row(None);
        }
        self.lock(session, last);
        self.note_own(session, place);
        StepReply::Row(Some((last, true, self.versions[&last].content.clone())))
    }

    fn try_lock(&mut self, session: usize, tid: Tid) -> StepReply {
        let version = &self.versions[&tid];
        if self.is_replaced(tid) || self.has_holder(session, version) {
            return StepReply::Row(None);
        }
        let (place, content) = (version.place, version.content.clone());
        self.lock(session, tid);
        self.note_own(session, place);
        StepReply::Row(Some((tid, true, content)))
    }

    fn lock(&mut self, session: usize, tid: Tid) {
        let xid = self.xid(session);
        if self.has(Flaw::LockGivenUp) {
            return;
        }
        if let Some(version) = self.versions.get_mut(&tid)
            && !version.lockers.contains(&xid)
        {
            version.lockers.push(xid);
            version.lockers.sort();
        }
    }

    fn update(&mut self, session: usize, tid: Tid, place: RowKey, content: Content) -> bool {
        if self.is_replaced(tid) && !self.has(Flaw::LostUpdate) {
            return false;
        }
        let (xid, new) = (self.xid(session), self.new_tid(session));
        if let Some(version) = self.versions.get_mut(&tid) {
            version.xmax = Some((xid, Some(new)));
        }
        self.versions.insert(new, self.version(session, place, content, false));
        self.note_own(session, place);
        true
    }

    fn version(&self, session: usize, place: RowKey, content: Content, new: bool) -> Version {
        let xmin = self.xid(session);
        Version { place, content, xmin, is_speculative: new, lockers: Vec::new(), xmax: None }
    }

    fn delete(&mut self, session: usize, tid: Tid) -> bool {
        if self.is_replaced(tid) {
            return false;
        }
        let xid = self.xid(session);
        let mut place = None;
        if let Some(version) = self.versions.get_mut(&tid) {
            version.xmax = Some((xid, None));
            place = Some(version.place);
        }
        place.into_iter().for_each(|place| self.note_own(session, place));
        true
    }

    /// Whether a version no longer counts under its key, for a dirty snapshot.
    fn is_gone(&self, session: usize, xid: Xid) -> bool {
        self.is_own(session, xid) || self.status(xid) == TransactionStatus::Committed
    }

    fn insert(&mut self, session: usize, place: RowKey, content: Content) -> StepReply {
        let is_conflict = |version: &Version| {
            version.place == place
                && self.status(version.xmin) != TransactionStatus::Aborted
                && !version.xmax.is_some_and(|(xid, _)| self.is_gone(session, xid))
        };
        let is_alone = !self.versions.values().any(is_conflict) || self.has(Flaw::InsertNotChecked);
        let new = self.new_tid(session);
        self.versions.insert(new, self.version(session, place, content, true));
        StepReply::Inserted(new, is_alone)
    }

    fn confirm(&mut self, session: usize, tid: Tid, is_alone: bool) -> StepReply {
        if !is_alone {
            self.versions.remove(&tid);
            return StepReply::Done;
        }
        let mut place = None;
        if let Some(version) = self.versions.get_mut(&tid) {
            version.is_speculative = false;
            place = Some(version.place);
        }
        place.into_iter().for_each(|place| self.note_own(session, place));
        StepReply::Done
    }

    fn inserter(&self, session: usize, place: RowKey) -> Option<(Xid, Option<Tid>)> {
        let rows = self.versions.iter().filter(|(_, version)| version.place == place);
        let others = |xid: Xid| self.is_others(session, xid).then_some(xid);
        let mut inserters = rows.filter_map(|(&tid, version)| {
            if version.xmax.is_some_and(|(xid, _)| self.is_gone(session, xid)) {
                return None;
            }
            let inserts = others(version.xmin);
            let inserts = inserts.map(|xid| (xid, version.is_speculative.then_some(tid)));
            let deletes = version.xmax.and_then(|(xid, _)| others(xid));
            inserts.or(deletes.map(|xid| (xid, None)))
        });
        inserters.next()
    }
}

//! What each step does.

use super::{
    Content, Database, Flaw, Found, MemoryEntry, Place, Reply, Status, Step, Tid, Version, Xid,
};

impl Database {
    /// Executes a step that would not wait; `choice` is what it chooses.
    pub fn execute(&mut self, session: usize, step: &Step, choice: u8) -> Reply {
        match step {
            Step::Read(_) | Step::ReadKey(_) | Step::ReadAll | Step::FindInserter(_) => {
                self.read(session, step)
            }
            &Step::Lock(tid, place) | &Step::TryLockNewest(tid, place) => {
                self.lock_newest(session, tid, place)
            }
            &Step::TryLock(tid) => self.try_lock(session, tid),
            Step::Update(tid, content) => {
                let place = self.versions[tid].place;
                Reply::Was(self.update(session, *tid, place, content.clone()))
            }
            Step::Delete(tid) => Reply::Was(self.delete(session, *tid)),
            &Step::Rename(tid, key) => {
                let Version { place, content, .. } = self.versions[&tid].clone();
                Reply::Was(self.update(session, tid, Place { key, ..place }, content))
            }
            Step::Insert(place, content) => self.insert(session, *place, content.clone()),
            &Step::Confirm(tid, is_alone) => self.confirm(session, tid, is_alone),
            Step::WaitForInsert(_) | Step::WaitForEnd(_) | Step::LockPartition => Reply::Done,
            Step::BeginSub => {
                self.begin(session);
                Reply::Done
            }
            Step::ReleaseSub => {
                self.release(session);
                Reply::Done
            }
            Step::RollbackSub => {
                self.roll_back(session, self.open[session].len() - 1);
                Reply::Done
            }
            &Step::RollbackTo(depth) => {
                self.roll_back(session, usize::from(depth) - 1);
                self.begin(session); // the savepoint stays
                Reply::Done
            }
            Step::Commit | Step::Rollback => {
                self.end(session, *step == Step::Commit);
                Reply::Done
            }
            Step::Choose(_) => Reply::Number(choice),
            _ => self.shared(session, step),
        }
    }

    /// What is beside the rows.
    fn shared(&mut self, session: usize, step: &Step) -> Reply {
        match *step {
            Step::Clock => Reply::Instant(self.now),
            Step::Known(key) => {
                let defined = self.defining[session].unwrap_or(self.defined);
                let blocked = self.blocked.contains(&key) || self.blocking[session] == Some(key);
                Reply::Known(defined, blocked)
            }
            Step::Define(number) => {
                self.defining[session] = Some(number);
                Reply::Done
            }
            Step::Block(key) => {
                self.blocking[session] = Some(key);
                Reply::Done
            }
            Step::Draw => {
                let drawn = self.drawn[session];
                self.drawn[session] += 1;
                Reply::Number(drawn)
            }
            Step::Held(key) => {
                let rows = self.held[session].iter().rev().filter(|(place, _)| place.key == key);
                let shards = rows.map(|(place, _)| place.shard);
                let forgotten = self.has(Flaw::HeldForgotten);
                Reply::Held(shards.filter(|_| !forgotten).collect())
            }
            Step::ReadEntry(id) => Reply::Entry(self.entries.get(&id).map(|entry| entry.content)),
            Step::WriteEntry(id, content, idle_at, now) => {
                self.make_room(id, now);
                self.entries.insert(id, MemoryEntry { content, idle_at });
                Reply::Done
            }
            Step::RemoveEntry(id) => Reply::Was(self.entries.remove(&id).is_some()),
            Step::RemoveEntries => {
                let count = self.entries.len();
                self.entries.clear();
                Reply::Number(count as u8)
            }
            _ => Reply::Done,
        }
    }

    /// Evicts an entry for a new one, where there is no room: one that is idle, or else the one that is so next.
    fn make_room(&mut self, id: [u64; 2], now: i64) {
        let room = usize::from(self.room);
        if room == 0 || self.entries.len() < room || self.entries.contains_key(&id) {
            return;
        }
        let next = self.entries.iter().min_by_key(|(_, entry)| entry.idle_at);
        if let Some((&id, entry)) = next {
            if entry.idle_at > now {
                self.evicted = Some(id[0]);
            }
            self.entries.remove(&id);
        }
    }

    fn read(&self, session: usize, step: &Step) -> Reply {
        let is_wanted = |place: &Place| match step {
            Step::Read(wanted) => place == wanted,
            Step::ReadKey(key) => place.key == *key,
            _ => true,
        };
        if let &Step::FindInserter(place) = step {
            return Reply::Inserter(self.inserter(session, place));
        }
        let mut rows: Vec<(Place, Found)> = self
            .versions
            .iter()
            .filter(|(_, version)| is_wanted(&version.place) && self.is_visible(session, version))
            .map(|(&tid, version)| (version.place, self.found(session, tid, version)))
            .collect();
        rows.sort_by_key(|&(place, _)| place);
        match step {
            Step::Read(_) => Reply::Row(rows.pop().map(|(_, found)| found)),
            _ => Reply::Rows(rows),
        }
    }

    /// Remembers that a session holds a row, as `store::held` does: in the subtransaction in which it locked it first.
    fn hold(&mut self, session: usize, place: Place) {
        let xid = self.xid(session);
        let held = &mut self.held[session];
        let row = match held.iter().position(|(other, _)| *other == place) {
            Some(at) => held.remove(at),
            None => (place, xid),
        };
        held.push(row);
    }

    fn lock_newest(&mut self, session: usize, tid: Tid, place: Place) -> Reply {
        let Ok(Some((last, is_other))) = self.follow(session, tid) else { return Reply::Row(None) };
        if is_other && self.versions[&last].place != place && !self.has(Flaw::ChainNotCompared) {
            // The lock stays, as in PostgreSQL.
            self.lock(session, last);
            return Reply::Row(None);
        }
        self.lock(session, last);
        self.hold(session, place);
        Reply::Row(Some((last, true, self.versions[&last].content.clone())))
    }

    fn try_lock(&mut self, session: usize, tid: Tid) -> Reply {
        let version = &self.versions[&tid];
        if self.is_replaced(tid) || self.has_holder(session, version) {
            return Reply::Row(None);
        }
        let (place, content) = (version.place, version.content.clone());
        self.lock(session, tid);
        self.hold(session, place);
        Reply::Row(Some((tid, true, content)))
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

    fn update(&mut self, session: usize, tid: Tid, place: Place, content: Content) -> bool {
        if self.is_replaced(tid) && !self.has(Flaw::LostUpdate) {
            return false;
        }
        let (xid, new) = (self.xid(session), self.new_tid(session));
        if let Some(version) = self.versions.get_mut(&tid) {
            version.xmax = Some((xid, Some(new)));
        }
        self.versions.insert(new, self.version(session, place, content, false));
        self.hold(session, place);
        true
    }

    fn version(&self, session: usize, place: Place, content: Content, new: bool) -> Version {
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
        place.into_iter().for_each(|place| self.hold(session, place));
        true
    }

    /// Whether a version no longer counts as one with its key, under a dirty snapshot.
    fn is_gone(&self, session: usize, xid: Xid) -> bool {
        self.is_own(session, xid) || self.status(xid) == Status::Committed
    }

    fn insert(&mut self, session: usize, place: Place, content: Content) -> Reply {
        let is_conflict = |version: &Version| {
            version.place == place
                && self.status(version.xmin) != Status::Aborted
                && !version.xmax.is_some_and(|(xid, _)| self.is_gone(session, xid))
        };
        let is_alone = !self.versions.values().any(is_conflict) || self.has(Flaw::InsertNotChecked);
        let new = self.new_tid(session);
        self.versions.insert(new, self.version(session, place, content, true));
        Reply::Inserted(new, is_alone)
    }

    fn confirm(&mut self, session: usize, tid: Tid, is_alone: bool) -> Reply {
        if !is_alone {
            self.versions.remove(&tid);
            return Reply::Done;
        }
        let mut place = None;
        if let Some(version) = self.versions.get_mut(&tid) {
            version.is_speculative = false;
            place = Some(version.place);
        }
        place.into_iter().for_each(|place| self.hold(session, place));
        Reply::Done
    }

    fn inserter(&self, session: usize, place: Place) -> Option<(Xid, Option<Tid>)> {
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

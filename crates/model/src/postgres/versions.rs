//! The versions that a session sees, and the sessions that it waits for.

use super::{
    Content, Database, Flaw, Found, Primitive, RowKey, Tid, TransactionStatus, Version, Xid,
};

use crate::content::HoldOf;

/// A wait for another session, which has this version.
pub struct MustWait(pub Tid);

impl Database {
    /// The status of a transaction, or of a subtransaction with its parents.
    pub fn status(&self, mut xid: Xid) -> TransactionStatus {
        loop {
            match self.transactions.get(&xid) {
                None | Some((None, TransactionStatus::Committed)) => {
                    return TransactionStatus::Committed;
                }
                Some((_, TransactionStatus::Aborted)) => return TransactionStatus::Aborted,
                Some((_, TransactionStatus::Running)) => return TransactionStatus::Running,
                Some((Some(parent), TransactionStatus::Committed)) => xid = *parent,
            }
        }
    }

    /// Whether a transaction in progress is the session's.
    pub fn is_own(&self, session: usize, xid: Xid) -> bool {
        usize::from(xid.session) == session && self.status(xid) == TransactionStatus::Running
    }

    /// Whether a transaction in progress is another session's.
    pub fn is_others(&self, session: usize, xid: Xid) -> bool {
        usize::from(xid.session) != session && self.status(xid) == TransactionStatus::Running
    }

    /// Whether another session has locked or replaced a version.
    pub fn has_holder(&self, session: usize, version: &Version) -> bool {
        version.lockers.iter().any(|&xid| self.is_others(session, xid))
            || version.xmax.is_some_and(|(xid, _)| self.is_others(session, xid))
    }

    /// Whether a version is visible under the latest state, with the session's own writes.
    pub fn is_visible(&self, session: usize, version: &Version) -> bool {
        is_visible_if(version, |xid| {
            self.is_own(session, xid)
                || self.status(xid) == TransactionStatus::Committed
                || self.has(Flaw::DirtyRead) && self.status(xid) == TransactionStatus::Running
        })
    }

    /// A version as a session finds it.
    pub fn found(&self, session: usize, tid: Tid, version: &Version) -> Found {
        (tid, !self.has_holder(session, version), version.content.clone())
    }

    /// The last version of a row from `tid` on, and whether it is a different one; `None`: deleted, or replaced by
    /// the session.
    pub fn follow(&self, session: usize, mut tid: Tid) -> Result<Option<(Tid, bool)>, MustWait> {
        let mut is_other = false;
        loop {
            let version = &self.versions[&tid];
            if self.has_holder(session, version) {
                return Err(MustWait(tid));
            }
            match version.xmax {
                Some((xid, next)) if self.status(xid) == TransactionStatus::Committed => match next
                {
                    Some(next) => (tid, is_other) = (next, true),
                    None => return Ok(None),
                },
                Some((xid, _)) if self.is_own(session, xid) => return Ok(None),
                _ => return Ok(Some((tid, is_other))),
            }
        }
    }

    /// Whether a version is replaced or deleted, or being so.
    pub fn is_replaced(&self, tid: Tid) -> bool {
        self.versions[&tid]
            .xmax
            .is_some_and(|(xid, _)| self.status(xid) != TransactionStatus::Aborted)
    }

    /// A free tuple id.
    pub fn new_tid(&self, session: usize) -> Tid {
        let free = |number: &u16| !self.versions.contains_key(&(session as u32, *number));
        (session as u32, (0..).find(free).unwrap_or(0))
    }

    /// Whether a step would not wait.
    pub fn is_enabled(&self, session: usize, step: &Primitive) -> bool {
        match step {
            Primitive::OfWriter(step) => self.is_enabled(self.open.len() - 1, step),
            Primitive::BeginTurn => !self.saved.is_in_turn || self.has(Flaw::TwoWriters),
            &Primitive::Lock(tid, _) => self.follow(session, tid).is_ok(),
            Primitive::TryLockUpdated(tid, next, _) => {
                let committed = |(xid, _)| self.status(xid) == TransactionStatus::Committed;
                !self.versions[tid].xmax.is_some_and(committed)
                    || self.versions.get(next).is_none_or(|next| !self.has_holder(session, next))
            }
            Primitive::Update(..) if self.has(Flaw::LostUpdate) => true,
            &(Primitive::Update(tid, ..) | Primitive::Delete(tid) | Primitive::Rename(tid, _)) => {
                !self.has_holder(session, &self.versions[&tid])
            }
            &Primitive::TryLock(tid) if self.has(Flaw::TryLockWaits) => {
                !self.has_holder(session, &self.versions[&tid])
            }
            &Primitive::WaitForEnd(xid) => self.status(xid) != TransactionStatus::Running,
            Primitive::WaitForInsert(tid) => {
                !self.versions.get(tid).is_some_and(|version| version.is_speculative)
            }
            _ => true,
        }
    }

    /// The rows that a session has locked or written.
    pub fn locked(&self, session: usize) -> Vec<RowKey> {
        let is_locked = |version: &&Version| {
            let own = |xid: Xid| self.is_own(session, xid);
            version.lockers.iter().any(|&xid| own(xid))
                || own(version.xmin)
                || version.xmax.is_some_and(|(xid, _)| own(xid))
        };
        let mut places: Vec<RowKey> =
            self.versions.values().filter(is_locked).map(|version| version.place).collect();
        places.sort();
        places.dedup();
        places
    }

    /// The committed rows of a key, with their shard numbers.
    pub fn committed(&self, key: u8) -> Vec<(i32, &Version)> {
        let is_row = |version: &&Version| version.place.key == key && !version.place.is_hold();
        let visible = self.all_committed().filter(is_row);
        visible.map(|version| (version.place.shard, version)).collect()
    }

    /// The committed holds of a key, in the order of their rows' keys.
    pub fn committed_holds(&self, key: u8) -> Vec<(RowKey, HoldOf)> {
        let mut holds = self.all_committed().filter(|version| version.place.key == key);
        let mut holds: Vec<_> = holds.by_ref().filter_map(hold_of).collect();
        holds.sort_by_key(|(place, _)| *place);
        holds
    }

    fn all_committed(&self) -> impl Iterator<Item = &Version> {
        let counts = |xid: Xid| self.status(xid) == TransactionStatus::Committed;
        self.versions.values().filter(move |version| is_visible_if(version, counts))
    }

    /// The holds that a session has deleted.
    pub fn deleted_holds(&self, session: usize) -> Vec<(RowKey, HoldOf)> {
        let is_deleted = |version: &&Version| matches!(version.xmax, Some((xid, None)) if self.is_own(session, xid));
        self.versions.values().filter(is_deleted).filter_map(hold_of).collect()
    }
}

/// A version of a hold's row.
fn hold_of(version: &Version) -> Option<(RowKey, HoldOf)> {
    match &version.content {
        Content::Hold(hold) => Some((version.place, hold.clone())),
        Content::Limit(..) => None,
    }
}

/// Whether a version is visible if those transactions count for which `counts` is true.
fn is_visible_if(version: &Version, counts: impl Fn(Xid) -> bool) -> bool {
    let is_replaced = version.xmax.is_some_and(|(xid, _)| counts(xid));
    !version.is_speculative && counts(version.xmin) && !is_replaced
}

//! Ends transactions, and drops what they leave so that equal contents are equal states.

use std::collections::{BTreeMap, BTreeSet};

use super::{Database, FROZEN, Flaw, Tid, TransactionStatus, Version, Xid};

impl Database {
    /// The current transaction or subtransaction of a session.
    pub fn xid(&self, session: usize) -> Xid {
        self.open[session].last().copied().unwrap_or(FROZEN)
    }

    /// Begins a transaction, or inside one a subtransaction.
    pub fn begin(&mut self, session: usize) {
        let parent = self.open[session].last().copied();
        let xid = |number| Xid { session: session as u8, number };
        let free = |number: &u8| !self.transactions.contains_key(&xid(*number));
        let xid = xid((0..=u8::MAX).find(free).unwrap_or(u8::MAX));
        self.transactions.insert(xid, (parent, TransactionStatus::Running));
        self.open[session].push(xid);
    }

    /// Commits a subtransaction: its versions and locks go to its parent.
    pub fn release(&mut self, session: usize) {
        let Some(ended) = self.open[session].pop() else { return };
        let heir = self.xid(session);
        let inherit = |xid: &mut Xid| {
            if *xid == ended {
                *xid = heir;
            }
        };
        for version in self.versions.values_mut() {
            inherit(&mut version.xmin);
            version.lockers.iter_mut().for_each(inherit);
            version.lockers.sort();
            version.lockers.dedup();
            version.xmax.iter_mut().for_each(|(xid, _)| inherit(xid));
        }
        self.own_rows[session].iter_mut().for_each(|(_, xid)| inherit(xid));
        if self.awaited.contains(&ended) {
            self.set_status(Some(ended), TransactionStatus::Committed);
        } else {
            self.transactions.remove(&ended);
        }
    }

    /// Rolls back the last subtransactions of a session until `depth` transactions are open.
    pub fn roll_back(&mut self, session: usize, depth: usize) {
        let is_kept = self.has(Flaw::WritesKept);
        let end = if is_kept { TransactionStatus::Committed } else { TransactionStatus::Aborted };
        if self.has(Flaw::LocksKept) && !is_kept {
            self.inherit_locks(session, depth);
        }
        while self.open[session].len() > depth {
            let ended = self.open[session].pop();
            self.set_status(ended, end);
        }
        let mut own = std::mem::take(&mut self.own_rows[session]);
        own.retain(|&(_, xid)| self.status(xid) != TransactionStatus::Aborted);
        self.own_rows[session] = own;
        self.clean();
    }

    /// Gives the locks of subtransactions to the remaining transaction.
    fn inherit_locks(&mut self, session: usize, depth: usize) {
        let (kept, ended) = self.open[session].split_at(depth);
        let Some(&heir) = kept.last() else { return };
        for version in self.versions.values_mut() {
            if version.lockers.iter().any(|xid| ended.contains(xid))
                || version.xmax.is_some_and(|(xid, _)| ended.contains(&xid))
            {
                version.lockers.push(heir);
            }
        }
    }

    fn set_status(&mut self, xid: Option<Xid>, status: TransactionStatus) {
        if let Some(transaction) = xid.and_then(|xid| self.transactions.get_mut(&xid)) {
            transaction.1 = status;
        }
    }

    /// Ends a session's transaction; another begins.
    pub fn end(&mut self, session: usize, commits: bool) {
        let is_kept = match commits {
            true => !self.has(Flaw::CommitLost),
            false => self.has(Flaw::RollbackKept),
        };
        let end = if is_kept { TransactionStatus::Committed } else { TransactionStatus::Aborted };
        for xid in std::mem::take(&mut self.open[session]) {
            self.set_status(Some(xid), end);
        }
        let (defines, blocks) = (self.defining[session].take(), self.blocking[session].take());
        if commits {
            self.defined = defines.unwrap_or(self.defined);
            self.blocked.extend(blocks);
            self.blocked.sort_unstable();
            self.blocked.dedup();
        }
        self.own_rows[session].clear();
        self.clean();
        let own = |xid: &Xid| usize::from(xid.session) == session;
        let ended: Vec<Xid> = self.transactions.keys().copied().filter(own).collect();
        for xid in ended {
            let status = self.status(xid);
            self.transactions.remove(&xid);
            if self.awaited.contains(&xid) {
                self.transactions.insert(xid, (None, status));
            }
        }
        self.begin(session);
    }

    /// Drops versions that were rolled back, and freezes committed ones.
    fn clean(&mut self) {
        let known: BTreeMap<Xid, TransactionStatus> =
            self.transactions.keys().map(|&xid| (xid, self.status(xid))).collect();
        let status = |xid: Xid| known.get(&xid).copied().unwrap_or(TransactionStatus::Committed);
        self.versions.retain(|_, version| status(version.xmin) != TransactionStatus::Aborted);
        for version in self.versions.values_mut() {
            if status(version.xmin) == TransactionStatus::Committed {
                version.xmin = FROZEN;
            }
            version.lockers.retain(|&xid| status(xid) == TransactionStatus::Running);
            match version.xmax {
                Some((xid, _)) if status(xid) == TransactionStatus::Aborted => version.xmax = None,
                Some((xid, next)) if status(xid) == TransactionStatus::Committed => {
                    version.xmax = Some((FROZEN, next));
                }
                _ => {}
            }
        }
    }

    /// Drops dead versions that no session has read, and shortens chains, as VACUUM does.
    pub fn vacuum(&mut self, read: &BTreeSet<Tid>) {
        let ended = |xid: &Xid| {
            self.status(*xid) != TransactionStatus::Running && !self.awaited.contains(xid)
        };
        let ended: Vec<Xid> = self.transactions.keys().copied().filter(ended).collect();
        self.transactions.retain(|xid, _| !ended.contains(xid));
        let is_dead = |version: &Version| version.xmax.is_some_and(|(xid, _)| xid == FROZEN);
        let tids: Vec<Tid> = self.versions.keys().copied().collect();
        for tid in tids {
            let Some((FROZEN, Some(mut next))) = self.versions[&tid].xmax else { continue };
            while let Some((FROZEN, Some(after))) = self.versions[&next].xmax {
                next = after;
            }
            if let Some(version) = self.versions.get_mut(&tid) {
                version.xmax = Some((FROZEN, Some(next)));
            }
        }
        let mut keep = read.clone();
        let next = |version: &Version| version.xmax.and_then(|(_, next)| next);
        keep.extend(self.versions.values().filter(|version| !is_dead(version)).filter_map(next));
        keep.extend(read.iter().filter_map(|tid| self.versions.get(tid)).filter_map(next));
        self.versions.retain(|tid, version| !is_dead(version) || keep.contains(tid));
    }
}

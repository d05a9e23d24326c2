//! The entries of memory that sessions share.

use ratelimit_core::{Micros, State};

use super::{Key, RowId};

/// The address of an entry: keyed hashes of name and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    /// The hash of the name.
    pub name: [u64; 2],
    /// The hash of the name and key.
    pub key: [u64; 2],
    /// The pool of the entry.
    pub pool: Pool,
    /// The number of slots of a concurrency limit; 0 for other kinds.
    pub slots: u32,
}

/// The pools of the memory. A new key evicts one of the same pool only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Limits that are defined.
    Defined,
    /// Limits with a config in the call, where callers choose the names.
    Inline,
    /// Limits that are saved to the table: their keys are loaded from rows, and evicted only after they are saved.
    Saved,
}

/// Facts that decide when an entry is evicted or saved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retention {
    /// When the state is full again; `None`: never.
    pub idle_at: Option<Micros>,
    /// Whether half of the limit or more is used.
    pub half_used: bool,
    /// The time of the call.
    pub now: Micros,
    /// How long a saved entry may be in memory alone.
    pub save: Micros,
}

/// An entry as a call has read it: it is unchanged as long as it reads the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The state; `None`: the limit is full.
    pub state: Option<State>,
    /// Without a state: the number of entries evicted or removed so far, modulo 2^32. One may have come and gone, which
    /// changes when the key is full.
    pub gone: Option<u32>,
}

/// A saved key that is not in memory and must be loaded from its row. The fields are from before the row is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The number of keys of its partition evicted or removed so far, modulo 2^32.
    pub evictions: u32,
    /// Whether this was a standby: its promotion may have changed the rows.
    pub on_standby: bool,
}

/// Entries of memory that sessions share: changed at once, outside any transaction.
pub trait Entries {
    /// Entries that are locked.
    type Locked<'e>: LockedEntries
    where
        Self: 'e;

    /// Returns the address of a name and key in the pool of defined limits.
    fn id(&self, name: &[u8], key: &[u8]) -> Id;

    /// Reads the state of an entry without marking it as used; `None`: full.
    ///
    /// # Errors
    /// [`Absent`]: a saved key that must be loaded.
    fn read(&self, id: Id) -> std::result::Result<Option<State>, Absent>;

    /// Locks entries, which may be missing, in the same order in all sessions. Until they are unlocked, the caller uses
    /// nothing of the host but its clock, and only for a short time.
    fn lock(&self, ids: &[Id]) -> Self::Locked<'_>;

    /// Loads the state of a saved key that was read from its row (`None`: full), unless keys were evicted since it was
    /// found absent, maybe this one: its row may then be newer. False if the pool is full of unsaved keys.
    fn load(&self, id: Id, row: RowId, state: Option<&State>, absent: Absent) -> bool;

    /// Lists the saved keys in memory, of one name or of all.
    fn saved_keys(&self, name: Option<&[u8]>) -> Vec<Key>;

    /// Removes the entries of a name that are not saved; returns the number of keys that had one.
    fn forget_name(&self, name: &[u8]) -> u64;
}

/// Locked entries, until this is dropped.
pub trait LockedEntries {
    /// Reads an entry for a call, and marks it as used.
    ///
    /// # Errors
    /// [`Absent`]: a saved key that must be loaded.
    fn read(&mut self, id: Id) -> std::result::Result<Seen, Absent>;

    /// Stores a state, or `None`: full, which removes an entry that is not saved. False if a saved entry has no
    /// capacity for its leases, or if there was nothing to remove.
    fn write(&mut self, id: Id, state: Option<&State>, retention: Retention) -> bool;

    /// Unlocks the entries, then has unsaved ones saved in time and evictions of entries in use logged.
    fn unlock(self);
}

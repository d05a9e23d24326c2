//! The entries of memory that sessions share.

use ratelimit_core::{Micros, State};
pub use ratelimit_memory::states::Kept;

/// What identifies an entry of memory: a keyed hash of name and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    /// The hash of the name.
    pub name: [u64; 2],
    /// That of the name and key.
    pub key: [u64; 2],
    /// Whose room it takes.
    pub room: Room,
    /// Who fills the room with it: the database, and of configs in calls its role.
    pub owner: u32,
}

/// The rooms of the memory, where keys make room for those of the same room only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Of limits that are defined.
    Defined,
    /// Of limits whose config is in the call, where whoever may call brings any name.
    Inline,
    /// Of limits that are saved to the table.
    Saved,
}

impl Id {
    /// What identifies one of the slots of a key, in the key's partition: found at a place of its own there, and told
    /// from the key and its other slots.
    pub fn slot(self, number: u32) -> Id {
        // An odd number whose multiples are far from each other: 2^64 divided by the golden ratio.
        let apart = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(number) + 1);
        Id { key: [self.key[0], self.key[1].wrapping_add(apart)], ..self }
    }
}

/// What is stored with an entry, to choose which one makes room for another.
#[derive(Clone, Copy, Debug)]
pub struct Worth {
    /// When nobody misses it any more; `None`: never.
    pub idle_at: Option<Micros>,
    /// Whether half of its limit or more is used.
    pub half_used: bool,
    /// The instant of the call that stores it.
    pub now: Micros,
}

/// How things stood before a row was read, which may be newer by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeforeRead {
    /// How many saved keys made room for others in the part of memory where this one is, or were removed.
    pub evictions: u32,
    /// Whether this was a standby, whose rows may have changed up to its promotion.
    pub on_standby: bool,
}

/// What came of putting in a key that is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// It is there now.
    Yes,
    /// Others made room meanwhile, maybe it itself: its row may be newer than it was read.
    Moved,
    /// There is no room: all that is there is unsaved.
    NoRoom,
}

/// Entries of memory that sessions share, at once and in no transaction.
pub trait Entries {
    /// Entries that are locked.
    type Locked<'e>: LockedEntries
    where
        Self: 'e;

    /// Identifies the entry of a name and key in the room of defined limits.
    fn id(&self, name: &[u8], key: &[u8]) -> Id;

    /// The same in the room of configs in calls, where it is the current role's.
    fn inline(&self, id: Id) -> Id;

    /// Says that an entry will be read, for a processor that can fetch it while it has other work.
    fn prefetch(&self, _: Id) {}

    /// Reads an entry.
    fn read(&self, id: Id) -> Option<Kept>;

    /// Locks an entry, which may not be there, and changes or keeps it: what `work` does is short, and calls nothing of
    /// the host but its clock.
    fn locked<T>(&self, id: Id, work: impl FnOnce(&mut Self::Locked<'_>) -> T) -> T;

    /// Locks several entries at once, in an order that is the same for all sessions.
    fn lock_all(&self, ids: impl Iterator<Item = Id>) -> Self::Locked<'_>;

    /// Forgets the entries of a name's keys; returns how many keys had one.
    fn forget_name(&self, name: &[u8]) -> u64;

    /// How things stand before the row of a saved key is read.
    fn before_read(&self, id: Id) -> BeforeRead;

    /// Puts in a saved key, with the state that its row has, read since `before`.
    fn load(
        &self,
        id: Id,
        name_and_key: (&[u8], &[u8]),
        state: Option<&State>,
        before: BeforeRead,
    ) -> Loaded;

    /// The saved keys of a name, or of all, that are in memory.
    fn saved_keys(&self, name: Option<&[u8]>) -> Vec<SavedKey>;

    /// Sees to it that what is unsaved is saved in time, after the locks are released.
    fn save_later(&self);

    /// Tells in the server's log, now and then, that entries in use made room for others.
    fn tell_losses(&self);
}

/// Entries that are locked.
pub trait LockedEntries {
    /// Reads an entry, for a call.
    fn read(&mut self, id: Id) -> Option<Kept>;

    /// How many entries were removed so far where this one is, or made room for others, modulo 2^32. As long as it
    /// stays, none came and went for a key that has none.
    fn gone(&mut self, id: Id) -> u32;

    /// Stores an entry.
    fn write(&mut self, id: Id, kept: Kept, worth: Worth);

    /// Forgets an entry; false if there was none.
    fn remove(&mut self, id: Id) -> bool;

    /// Reads a saved entry, for a call; `None`: it is not there, its row has what there is. Of a key that is full,
    /// `Some(None)`.
    fn read_saved(&mut self, id: Id) -> Option<Option<State>>;

    /// Stores a saved entry that is there, `None`: it is full, to be saved after so long at most; false where there is
    /// no room for its leases.
    fn write_saved(&mut self, id: Id, state: Option<&State>, save: Micros) -> bool;
}

/// A saved key that is in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedKey {
    /// The limit's name.
    pub name: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
}

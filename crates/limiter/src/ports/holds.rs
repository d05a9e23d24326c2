//! The rows of holds.

use std::collections::BTreeSet;

use ratelimit_core::Micros;
use ratelimit_core::hold::Hold;

use super::{Key, KeyRef, Listing};
use crate::error::Result;

/// A hold of one limit.
#[derive(Clone, Debug)]
pub struct HoldRow {
    /// The id to settle it by, in the server's encoding; several limits may share an id.
    pub id: Vec<u8>,
    /// The limit's name, in the server's encoding.
    pub name: Vec<u8>,
    /// The key, in the server's encoding.
    pub key: Vec<u8>,
    /// Its tokens or slots.
    pub hold: Hold,
    /// The config of the call as JSON in the server's encoding, if the name was not defined for the key.
    pub config: Option<Vec<u8>>,
}

/// The outcome of a deletion.
pub enum Deleted {
    /// There is no such hold any more.
    Gone,
    /// The hold, now deleted.
    Row(HoldRow),
    /// Another transaction had it. It is locked now, after that wait, and not deleted yet.
    Waited,
}

/// Access to single holds, inside the caller's transaction and on the latest committed state, as with
/// [`Rows`](super::Rows). A hold is written only under the lock of row 0 of its key, unless its limit has no row.
pub trait Holds {
    /// Reads the holds with an id, in the order of name and key.
    fn of_id(&self, id: &[u8]) -> Result<Vec<HoldRow>>;

    /// Reads the hold of one limit with an id.
    fn one(&self, id: &[u8], name: &[u8], key: &[u8]) -> Result<Option<HoldRow>>;

    /// Inserts a hold of a limit; false if there is one with its id, also after a wait for another transaction.
    fn insert(&self, row: &HoldRow) -> Result<bool>;

    /// Updates a hold of a limit; false if it is gone.
    fn update(&self, row: &HoldRow) -> Result<bool>;

    /// Locks a hold of a limit, if it is there.
    fn lock(&self, id: &[u8], name: &[u8], key: &[u8]) -> Result<()>;

    /// Deletes and returns a hold of a limit, unless it waits for another transaction first.
    fn delete(&self, id: &[u8], name: &[u8], key: &[u8]) -> Result<Deleted>;
}

/// Access to the holds of whole keys, in the same way as [`Holds`].
pub trait KeyHolds {
    /// Reads at most `most` holds of a key that give tokens back when they expire, and expire from `from` to `until`,
    /// both included, in the order of expiry and id.
    fn returning(&self, of: KeyRef, from: Micros, until: Micros, most: i64)
    -> Result<Vec<HoldRow>>;

    /// Returns the first expiry from an instant on of a hold of a key that gives tokens back then.
    fn first_expiry(&self, of: KeyRef, from: Micros) -> Result<Option<Micros>> {
        Ok(self.returning(of, from, Micros::FOREVER, 1)?.first().map(|first| first.hold.expires_at))
    }

    /// Writes `count`, `spent` and `returned` of holds of one key, in one statement.
    fn expire(&self, of: KeyRef, rows: &[HoldRow]) -> Result<()>;

    /// Deletes the holds of a key; returns how many.
    fn delete_of_key(&self, of: KeyRef) -> Result<u64>;

    /// Lists the names and keys of a listing that have holds; without a name it reads the whole table. With `held_at`,
    /// only holds with `count` above `spent` that expire after it, and charged ones that expired within
    /// [`SETTLED_LATE`](ratelimit_core::hold::SETTLED_LATE) before it.
    fn keys(&self, listing: Listing, held_at: Option<Micros>) -> Result<BTreeSet<Key>>;

    /// Sums `count - spent`, if above 0, of the holds of a key that have a `taken_at` from `since` on and are held at
    /// `now`, as in [`keys`](KeyHolds::keys).
    fn held(&self, of: KeyRef, since: Micros, now: Micros) -> Result<f64>;

    /// Lists, in order, at most `most` keys after (name, key) with a hold that gives tokens back and has expired by
    /// `now`.
    fn due_keys(&self, after: KeyRef, now: Micros, most: i64) -> Result<Vec<Key>>;

    /// Deletes at most `most` holds that no longer give anything back and expired before an instant; skips holds that
    /// others have locked. Returns how many.
    fn prune(&self, before: Micros, most: i64) -> Result<i64>;
}

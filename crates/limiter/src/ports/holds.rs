//! The rows of holds.

use std::collections::BTreeSet;
use std::rc::Rc;

use ratelimit_core::Micros;
use ratelimit_core::config::Definition;
use ratelimit_core::hold::Hold;

use crate::error::Result;

/// What a hold has of a limit.
#[derive(Clone, Debug)]
pub struct HoldRow {
    /// The id that it is settled by, in the server's encoding; one id has several limits.
    pub id: Vec<u8>,
    /// The limit's name, likewise.
    pub name: Vec<u8>,
    /// The key, likewise.
    pub key: Vec<u8>,
    /// What it holds.
    pub hold: Hold,
    /// The config of the call as JSON, likewise, where the name was not defined for the key.
    pub config: Option<Vec<u8>>,
}

/// Access to the holds, inside the caller's transaction and under the latest committed state, as to
/// [`Rows`](super::Rows). They are written only under the lock of row 0 of their key, but for those of a limit that has
/// none.
pub trait Holds {
    /// Reads what a hold has of its limits, in the order of name and key.
    fn of_id(&self, id: &[u8]) -> Result<Vec<HoldRow>>;

    /// Reads what a hold has of one limit.
    fn one(&self, id: &[u8], name: &[u8], key: &[u8]) -> Result<Option<HoldRow>>;

    /// Reads at most `most` holds of a key that give tokens back when they expire, in the order of expiry and id; only
    /// those that expire from `from` to `until`, both included.
    fn returning(
        &self,
        name: &[u8],
        key: &[u8],
        from: Micros,
        until: Micros,
        most: i64,
    ) -> Result<Vec<HoldRow>>;

    /// Inserts a hold of a limit; false if there is one with its id, also after a wait for another transaction.
    fn insert(&self, row: &HoldRow) -> Result<bool>;

    /// Writes what a hold has of a limit; false if it is gone.
    fn update(&self, row: &HoldRow) -> Result<bool>;

    /// Writes `count`, `spent` and `returned` of holds of one key, in one statement.
    fn expire(&self, name: &[u8], key: &[u8], rows: &[HoldRow]) -> Result<()>;

    /// Deletes what a hold has of a limit, and returns it; `None`: it is gone, also after a wait for another
    /// transaction.
    fn delete(&self, id: &[u8], name: &[u8], key: &[u8]) -> Result<Option<HoldRow>>;

    /// Deletes the holds of a key; returns how many.
    fn delete_of_key(&self, name: &[u8], key: &[u8]) -> Result<u64>;

    /// Lists the names and keys that have holds, of one name or one key where they are given; without a name it reads
    /// the whole table. With `held_at` only holds with `count` above `spent` which expire after it, and charged ones
    /// which expired within [`SETTLED_LATE`](ratelimit_core::hold::SETTLED_LATE) before it.
    fn keys(
        &self,
        name: Option<&[u8]>,
        key: Option<&[u8]>,
        held_at: Option<Micros>,
    ) -> Result<BTreeSet<(Vec<u8>, Vec<u8>)>>;

    /// The sum of `count - spent`, where that is above 0, of the holds of a key that have a `taken_at` from `since` on and
    /// are held at `now`, as in [`keys`](Holds::keys).
    fn held(&self, name: &[u8], key: &[u8], since: Micros, now: Micros) -> Result<f64>;

    /// Lists at most `most` keys after (name, key), in order, that have a hold which gives tokens back and has expired
    /// by `now`.
    fn due_keys(
        &self,
        after: (&[u8], &[u8]),
        now: Micros,
        most: i64,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Deletes at most `most` holds that give nothing back any more and have expired before an instant; those that others
    /// have locked are left. Returns how many.
    fn prune(&self, before: Micros, most: i64) -> Result<i64>;

    /// Parses the config of a hold.
    ///
    /// # Errors
    /// [`LimiterError::Config`](crate::error::LimiterError::Config) (22023).
    fn definition(&self, config: &[u8]) -> Result<Rc<Definition>>;
}

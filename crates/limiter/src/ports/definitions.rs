//! The definitions of limits, and the blocks of their keys.

use std::borrow::Cow;
use std::rc::Rc;

use ratelimit_core::Micros;
use ratelimit_core::config::Definition;

use crate::error::Result;

/// The encoding of names and keys.
pub trait Encoding {
    /// Converts text from the server's encoding to UTF-8.
    fn utf8(bytes: &[u8]) -> Cow<'_, str>;
}

/// What is known of a name and key.
#[derive(Clone, Default)]
pub struct Defined {
    /// The definition.
    pub definition: Option<Rc<Definition>>,
    /// The plan that the key has, where that is not defined; then the key has no definition.
    pub missing_plan: Option<Rc<str>>,
    /// Until when it is blocked, if it ever was.
    pub blocked_until: Option<Micros>,
}

/// A config that a call brings.
pub trait InlineConfig {
    /// Parses it.
    ///
    /// # Errors
    /// [`LimiterError::Config`](crate::error::LimiterError::Config) (22023).
    fn definition(&self) -> Result<Rc<Definition>>;

    /// It as JSON, in the server's encoding, to be stored.
    fn json(&self) -> Vec<u8>;
}

/// The definitions of limits, and the blocks of their keys.
pub trait Definitions: Encoding {
    /// Looks up the definition of (name, key), which may be that of its plan, or else that of the name, as it is stored,
    /// and until when the key is blocked.
    ///
    /// # Errors
    /// [`LimiterError::StoredConfig`](crate::error::LimiterError::StoredConfig) (22023).
    fn look_up(&self, name: &[u8], key: &[u8]) -> Result<Defined>;

    /// The definition or config of a name as it holds for this call, where its state is elsewhere for now.
    fn in_force(&self, _name: &[u8], definition: Rc<Definition>) -> Rc<Definition> {
        definition
    }

    /// Looks up the definition alone, as it is [in force](Definitions::in_force).
    fn defined(&self, name: &[u8], key: &[u8]) -> Result<Option<Rc<Definition>>>;

    /// Whether states of a name may be in the table: unless every definition of it says that they are in memory, and
    /// not saved, or exempts a key.
    fn may_be_in_table(&self, name: &[u8]) -> Result<bool>;

    /// Whether the caller may define limits, and so bring a config for a defined one.
    fn may_define(&self) -> bool;

    /// Reads the blocks that are not over, of one name or one key where they are given, in the order of name and key.
    fn blocks_in_force(&self, name: Option<&[u8]>, key: Option<&[u8]>)
    -> Result<Vec<BlockInForce>>;

    /// Reads the names and keys that an override or its plan exempts, with the definition that does, of one name or one key
    /// where they are given; where both are, the key is one that its name exempts, too.
    ///
    /// # Errors
    /// [`LimiterError::StoredConfig`](crate::error::LimiterError::StoredConfig) (22023).
    fn exempt_keys(&self, name: Option<&[u8]>, key: Option<&[u8]>) -> Result<Vec<ExemptKey>>;

    /// Deletes at most `max_rows` expired blocks; returns how many. Rows that others have locked are left.
    fn prune_blocks(&self, max_rows: i64) -> Result<i64>;
}

/// A key that no limit holds for.
pub struct ExemptKey {
    /// The limit's name, in the server's encoding.
    pub name: Vec<u8>,
    /// The key, likewise.
    pub key: Vec<u8>,
    /// What exempts it.
    pub definition: Rc<Definition>,
}

/// A block that is not over.
pub struct BlockInForce {
    /// The limit's name, in the server's encoding.
    pub name: Vec<u8>,
    /// The key, likewise.
    pub key: Vec<u8>,
    /// Until when, or [`FOREVER`](crate::target::FOREVER).
    pub until: Micros,
    /// Why, likewise.
    pub reason: Option<Vec<u8>>,
}

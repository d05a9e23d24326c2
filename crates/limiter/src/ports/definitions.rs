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

/// The definition and the block of a name and key.
#[derive(Clone, Default)]
pub struct Defined {
    /// The definition.
    pub definition: Option<Rc<Definition>>,
    /// The key's plan, if that is not defined; the key then has no definition.
    pub missing_plan: Option<Rc<str>>,
    /// The end of its block, which may be past; `None`: there is none.
    pub blocked_until: Option<Micros>,
}

/// A config passed in a call.
pub trait InlineConfig {
    /// Parses it.
    ///
    /// # Errors
    /// [`LimiterError::Config`](crate::error::LimiterError::Config) (22023).
    fn definition(&self) -> Result<Rc<Definition>>;

    /// Returns it as JSON in the server's encoding, for storage.
    fn json(&self) -> Vec<u8>;
}

/// The definitions of limits, and the blocks of their keys.
pub trait Definitions: Encoding {
    /// Looks up the definition of (name, key), or of its plan, or else of the name, as stored, and the end of the key's
    /// block.
    ///
    /// # Errors
    /// [`LimiterError::StoredConfig`](crate::error::LimiterError::StoredConfig) (22023).
    fn look_up(&self, name: &[u8], key: &[u8]) -> Result<Defined>;

    /// Returns a definition or config of a name as it applies to this call: its state may be elsewhere for now.
    fn in_force(&self, _name: &[u8], definition: Rc<Definition>) -> Rc<Definition> {
        definition
    }

    /// Looks up the definition alone, as it is [in force](Definitions::in_force).
    fn defined(&self, name: &[u8], key: &[u8]) -> Result<Option<Rc<Definition>>>;

    /// Whether states of a name may be in the table: true unless each of its definitions exempts a key, or keeps states
    /// in memory without saving them.
    fn may_be_in_table(&self, name: &[u8]) -> Result<bool>;

    /// Whether the caller may define limits, and so pass a config for a defined one.
    fn may_define(&self) -> bool;

    /// Reads the blocks in force, of one name or one key if given, in the order of name and key.
    fn blocks_in_force(&self, name: Option<&[u8]>, key: Option<&[u8]>)
    -> Result<Vec<BlockInForce>>;

    /// Reads the names and keys that an override or its plan exempts, with the definition that exempts them, of one
    /// name or one key if given. If both are given, the key counts also if its name exempts it.
    ///
    /// # Errors
    /// [`LimiterError::StoredConfig`](crate::error::LimiterError::StoredConfig) (22023).
    fn exempt_keys(&self, name: Option<&[u8]>, key: Option<&[u8]>) -> Result<Vec<ExemptKey>>;

    /// Parses the config of a hold.
    ///
    /// # Errors
    /// [`LimiterError::Config`](crate::error::LimiterError::Config) (22023).
    fn of_hold(&self, config: &[u8]) -> Result<Rc<Definition>>;

    /// Deletes at most `max_rows` expired blocks; returns how many. Skips rows that others have locked.
    fn prune_blocks(&self, max_rows: i64) -> Result<i64>;
}

/// A key that is exempt from its limit.
pub struct ExemptKey {
    /// The limit's name, in the server's encoding.
    pub name: Vec<u8>,
    /// The key, in the server's encoding.
    pub key: Vec<u8>,
    /// The definition that exempts it.
    pub definition: Rc<Definition>,
}

/// A block in force.
pub struct BlockInForce {
    /// The limit's name, in the server's encoding.
    pub name: Vec<u8>,
    /// The key, in the server's encoding.
    pub key: Vec<u8>,
    /// The end, or [`FOREVER`](crate::target::FOREVER).
    pub until: Micros,
    /// The reason, in the server's encoding.
    pub reason: Option<Vec<u8>>,
}

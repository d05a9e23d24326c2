//! The definitions of limits, and the blocks of their keys.

use std::rc::Rc;

use ratelimit_core::Micros;
use ratelimit_core::config::Definition;

use crate::error::Result;

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

/// A block of a key.
pub struct Block {
    /// The end, or [`FOREVER`](crate::target::FOREVER).
    pub until: Micros,
    /// The reason, in the server's encoding.
    pub reason: Option<Vec<u8>>,
}

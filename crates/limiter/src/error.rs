//! The limiter's errors. The extension gives each its SQLSTATE, detail and hint.

use ratelimit_core::config::ConfigError;
use ratelimit_core::{ArgumentError, Kind};

/// The result of a use case. A function that reads rows can fail with [`BadState`](LimiterError::BadState), one that
/// writes them with [`NotWritten`](LimiterError::NotWritten), which its own comment doesn't repeat.
pub type Result<T> = std::result::Result<T, LimiterError>;

/// An error of the limiter. It displays its message.
#[derive(Debug, thiserror::Error)]
pub enum LimiterError {
    /// An invalid argument.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// A config is not valid.
    #[error("invalid rate limit config: {}", .0.problem)]
    Config(#[from] ConfigError),
    /// This limit can't be defined by a config that is not valid.
    #[error("invalid config for rate limit \"{0}\": {problem}", problem = .1.problem)]
    ConfigOf(String, ConfigError),
    /// The stored definition of this limit is not a valid config.
    #[error("invalid config stored for rate limit \"{0}\": {problem}", problem = .1.problem)]
    StoredConfig(String, ConfigError),
    /// This name without a definition was used without a config, by a function for this kind.
    #[error("rate limit \"{0}\" is not defined")]
    Undefined(String, Kind),
    /// A key of this limit has this plan, which is not defined.
    #[error("plan \"{1}\" of rate limit \"{0}\" is not defined")]
    UndefinedPlan(String, String),
    /// This limit, of this kind and with `keyed`, was used without a key.
    #[error("rate limit \"{0}\" requires a key")]
    Keyed(String, Kind),
    /// This limit, of this kind and with `keyed` false, was used with a key.
    #[error("rate limit \"{0}\" takes no key")]
    NotKeyed(String, Kind),
    /// A config was passed for this defined limit without the privilege to define.
    #[error("permission denied to override rate limit \"{0}\"")]
    InlineConfig(String),
    /// The error of this request of a list, from 1.
    #[error("request {0}: {1}")]
    InRequest(usize, Box<LimiterError>),
    /// This function is not supported for limits of this kind.
    #[error("{0}() is not supported for {kind}", kind = .1.with_article())]
    NotForKind(&'static str, Kind),
    /// The limit can't have holds.
    #[error("{function}() is not supported for {}", why.of(*.kind))]
    NotForHolds {
        /// The function.
        function: &'static str,
        /// The limit.
        name: String,
        /// Its kind.
        kind: Kind,
        /// The reason.
        why: NoHolds,
    },
    /// A hold of this number of limits was settled as a hold of one.
    #[error("the hold is of {0} limits")]
    SeveralLimits(usize),
    /// A stored row has a value that no call writes, such as NaN.
    #[error("rate limit \"{name}\" has a stored {column} of {value}")]
    BadState {
        /// The row's table.
        table: &'static str,
        /// The limit.
        name: String,
        /// The row's column.
        column: &'static str,
        /// Its value.
        value: String,
    },
    /// A row of this table was not written although no statement failed: a trigger or rule suppressed it.
    #[error("the rate limit could not be stored")]
    NotWritten(&'static str),
    /// The call needs rows that are locked, and may not wait for them. A function that can deny answers with a denial.
    #[error("could not lock the rows of a rate limit")]
    Busy,
    /// The row of a request for this limit is locked, and the call waits no longer for it.
    #[error("the row of rate limit \"{0}\" is locked")]
    Locked(String),
    /// The memory has no room for another key of this limit: it is full of keys that are not saved yet.
    #[error("no room in memory for another key of rate limit \"{0}\"")]
    MemoryFull(String),
    /// An error of the host, from below a port.
    #[error("{0}")]
    Host(Box<dyn std::error::Error>),
}

/// The reason why a limit can't have holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHolds {
    /// Its kind.
    Kind,
    /// It is in memory.
    Memory,
    /// It has shards.
    Shards,
}

impl NoHolds {
    /// The limits of this kind that it is about, as text.
    fn of(self, kind: Kind) -> &'static str {
        match self {
            NoHolds::Kind => kind.with_article(),
            NoHolds::Memory => "a limit in memory",
            NoHolds::Shards => "a limit with shards",
        }
    }
}

impl LimiterError {
    /// A row could not be written although nothing failed (55000).
    pub fn not_written() -> LimiterError {
        LimiterError::NotWritten("rateLimits")
    }

    /// A row of this limit has a value that no call writes (55000).
    pub fn bad_state(name: String, column: &'static str, value: &str) -> LimiterError {
        let value = value.to_owned();
        LimiterError::BadState { table: "rateLimits", name, column, value }
    }

    /// The error of the `n`th request of a list, from 1.
    pub fn in_request(n: usize, error: impl Into<LimiterError>) -> LimiterError {
        LimiterError::InRequest(n, Box::new(error.into()))
    }

    /// Whether it concerns one request of a call that makes each on its own, and stops no other.
    pub(crate) fn is_of_request(&self) -> bool {
        !matches!(
            self,
            LimiterError::ConfigOf { .. }
                | LimiterError::InRequest(..)
                | LimiterError::NotForHolds { .. }
                | LimiterError::SeveralLimits { .. }
                | LimiterError::NotWritten { .. }
                | LimiterError::Busy
                | LimiterError::Host(_)
        )
    }

    /// The same error, for a function of leases: its hint defines a concurrency limit.
    pub fn for_leases(self) -> LimiterError {
        match self {
            LimiterError::Undefined(name, _) => LimiterError::Undefined(name, Kind::Concurrency),
            other => other,
        }
    }
}

//! What the limiter can't do. The extension gives each error its SQLSTATE, detail and hint.

use ratelimit_core::Kind;
use ratelimit_core::config::ConfigError;
use ratelimit_core::text::float_text;

/// The result of a use case.
pub type Result<T> = std::result::Result<T, LimiterError>;

/// What went wrong. What it displays is the message.
#[derive(Debug, thiserror::Error)]
pub enum LimiterError {
    /// An argument has a value that is not allowed (22023).
    #[error("{argument} is {value}")]
    InvalidArgument {
        /// Which one.
        argument: &'static str,
        /// What it has.
        value: String,
        /// What it may have.
        allowed: String,
    },
    /// A count that is not allowed (22023).
    #[error("count is {}", float_text(*.count))]
    BadCount {
        /// Tokens.
        count: f64,
        /// What it may be.
        allowed: String,
    },
    /// A config is not a valid one (22023).
    #[error("invalid rate limit config: {}", .0.problem)]
    Config(#[from] ConfigError),
    /// The stored definition of a limit is not a valid config (22023).
    #[error("invalid config stored for rate limit \"{name}\": {}", .error.problem)]
    StoredConfig {
        /// The limit.
        name: String,
        /// What is wrong.
        error: ConfigError,
    },
    /// A name that nobody defined was used without a config (42704).
    #[error("rate limit \"{name}\" is not defined")]
    Undefined {
        /// The limit.
        name: String,
        /// What the function is for.
        kind: Kind,
    },
    /// A limit that is keyed was used without a key (22004).
    #[error("rate limit \"{name}\" requires a key")]
    Keyed {
        /// The limit.
        name: String,
        /// Its kind.
        kind: Kind,
    },
    /// A config was passed for a defined name without the privilege to define (42501).
    #[error("permission denied to override rate limit \"{name}\"")]
    InlineConfig {
        /// The limit.
        name: String,
    },
    /// What is wrong with one request of a list (the SQLSTATE of that).
    #[error("request {n}: {error}")]
    InRequest {
        /// Which one, from 1.
        n: usize,
        /// What is wrong.
        error: Box<LimiterError>,
    },
    /// A function that this kind of limit has no answer to (0A000).
    #[error("{function}() is not supported for {}", .kind.with_article())]
    NotForKind {
        /// The function.
        function: &'static str,
        /// The kind.
        kind: Kind,
    },
    /// A stored row that no call wrote, such as a NaN value (55000).
    #[error("rate limit \"{name}\" has a stored {column} of {}", float_text(*.value))]
    BadState {
        /// The limit.
        name: String,
        /// The row's column.
        column: &'static str,
        /// What it has.
        value: f64,
    },
    /// A row could not be written although nothing failed: a trigger or rule swallows it (55000).
    #[error("the rate limit could not be stored")]
    NotWritten {
        /// The row's table.
        table: &'static str,
    },
    /// Rows that the call needs are locked, and it may not wait for them; answered as a denial
    /// (55P03 where that is not possible).
    #[error("could not lock the rows of a rate limit")]
    Busy,
    /// All room for saved keys in memory is taken by such that are not saved yet (53200).
    #[error("no room in memory for another key of rate limit \"{name}\"")]
    NoRoom {
        /// The limit.
        name: String,
    },
    /// What the host says, from below a port.
    #[error("{0}")]
    Host(Box<dyn std::error::Error>),
}

impl LimiterError {
    /// Where leases are taken, the hint to define a limit shows one that gives them.
    pub fn for_leases(self) -> LimiterError {
        match self {
            LimiterError::Undefined { name, .. } => {
                LimiterError::Undefined { name, kind: Kind::Concurrency }
            }
            other => other,
        }
    }
}

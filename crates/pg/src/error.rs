//! This crate's errors, and the trait for raising one. The caller adds SQLSTATE and hint.

#![forbid(unsafe_code)]

use std::ffi::CStr;

use ratelimit_core::ArgumentError;

/// An SQLSTATE, its five characters.
pub type SqlState = [u8; 5];

/// The result of a call that this crate may refuse.
pub type Result<T, E = PgError> = std::result::Result<T, E>;

/// An error of this crate. It displays its message.
#[derive(Debug, thiserror::Error)]
pub enum PgError {
    /// An invalid argument.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// A column no longer has the type under which it is read.
    #[error("column \"{column}\" of extension ratelimit has been altered")]
    AlteredColumn {
        /// Its name.
        column: String,
    },
    /// The SQL declaration of the function does not match its code.
    #[error(
        "the SQL declaration of the function does not match the library of extension ratelimit"
    )]
    Declaration,
    /// Shared memory could not be mapped into the session.
    #[error("could not map the shared memory of the rate limiter")]
    NotMapped,
    /// Called in a parallel query.
    #[error("cannot execute {} during a parallel operation", .function.to_string_lossy())]
    Parallel {
        /// The function's name, with its parentheses.
        function: &'static CStr,
    },
    /// A call that would write although nothing can be written.
    #[error("cannot execute {call} in a read-only transaction")]
    ReadOnly {
        /// The function's name, with its parentheses.
        call: String,
        /// Whether the server is a standby or recovering.
        is_standby: bool,
    },
}

/// An error as Postgres reports it.
pub struct Report {
    /// Its SQLSTATE.
    pub sqlstate: SqlState,
    /// The message, on one line.
    pub message: String,
    /// More about it.
    pub detail: Option<String>,
    /// What to do about it; see [`SCHEMA`].
    pub hint: Option<String>,
}

impl Report {
    /// Reports an error by its displayed text.
    pub fn new(sqlstate: &SqlState, error: &impl std::error::Error) -> Report {
        Report { sqlstate: *sqlstate, message: error.to_string(), detail: None, hint: None }
    }

    /// Adds the detail.
    pub fn detail(self, detail: impl Into<String>) -> Report {
        Report { detail: Some(detail.into()), ..self }
    }

    /// Adds the hint.
    pub fn hint(self, hint: impl Into<String>) -> Report {
        Report { hint: Some(hint.into()), ..self }
    }
}

/// Marks the place in a hint of the called function's schema and a dot, which are left out if `search_path` finds the
/// function. No text of a user has this character.
pub const SCHEMA: char = '\0';

/// An error that an SQL function can end with; see [`enter`](crate::call::enter).
pub trait Raised: From<PgError> {
    /// Returns the report to raise.
    fn report(&self) -> Report;
}

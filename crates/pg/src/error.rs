//! What is refused here, and what an error has to say of itself to be raised. How it is worded is for who raises it.

#![forbid(unsafe_code)]

use std::ffi::CStr;

/// An SQLSTATE, its five characters.
pub type SqlState = [u8; 5];

/// What may be refused.
pub type Result<T, E = PgError> = std::result::Result<T, E>;

/// What went wrong, with the SQLSTATE that it is meant to be raised with.
#[derive(Debug)]
pub enum PgError {
    /// An argument that may not be NULL is (22004).
    NullArgument(&'static str),
    /// An argument has a value that is not allowed (22023).
    InvalidArgument {
        /// Its name.
        argument: &'static str,
        /// What it is, to be read after "is".
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// A column no longer has the type that it is read as (42804).
    AlteredColumn {
        /// Its name.
        column: String,
    },
    /// The SQL declaration of the function is not the one that its code was made for (42P13).
    Declaration,
    /// Shared memory could not be mapped into the session (53200).
    NotMapped,
    /// Called while the query runs in parallel (25000).
    Parallel {
        /// The function's name, with its parentheses.
        function: &'static CStr,
    },
    /// A call that writes, where nothing can be written (25006).
    ReadOnly {
        /// The function's name, with its parentheses.
        call: String,
        /// Whether that is because the server is a standby, or recovers.
        is_standby: bool,
    },
}

/// An error as Postgres reports it.
pub struct Report {
    /// Its SQLSTATE.
    pub sqlstate: SqlState,
    /// The message, on one line.
    pub message: String,
    /// What else is to be known of it.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

/// What qualifies the names of functions and tables in a hint: the schema of the function that is called and a dot
/// where `search_path` does not find it, or nothing. Asked only where a hint has such a name.
pub type Qualifier<'a> = &'a dyn Fn() -> String;

/// An error that an SQL function ends with; see [`enter`](crate::call::enter).
pub trait Raised: From<PgError> {
    /// What is raised.
    fn report(&self, qualifier: Qualifier) -> Report;
}

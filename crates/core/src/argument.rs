//! Errors for invalid arguments of a call.

/// An invalid argument. Its text ends before the allowed values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// It is null or missing.
    #[error("{0} must not be NULL")]
    Null(&'static str),
    /// An empty text, which would stand for something else.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// It has a value that is not allowed.
    #[error("{argument} is {value}")]
    Invalid {
        /// Its name.
        argument: &'static str,
        /// The value, or a description of it, shortened to fit a message.
        value: String,
        /// The allowed values.
        allowed: String,
    },
}

impl ArgumentError {
    /// Refuses a value.
    pub fn invalid(
        argument: &'static str,
        value: impl Into<String>,
        allowed: impl Into<String>,
    ) -> ArgumentError {
        ArgumentError::Invalid { argument, value: value.into(), allowed: allowed.into() }
    }
}

//! Errors for invalid arguments of a call.

use crate::numbers::{MAX_TOKENS, TOKENS};
use crate::text::float_text;

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

    /// Refuses a number of tokens.
    pub fn tokens(argument: &'static str, tokens: f64, allowed: &str) -> ArgumentError {
        ArgumentError::invalid(argument, float_text(tokens), allowed)
    }
}

/// Checks an argument with a number of tokens.
///
/// # Errors
/// Not a number from 0 to 1e15.
pub fn valid_tokens(argument: &'static str, tokens: f64) -> Result<f64, ArgumentError> {
    match (0.0..=MAX_TOKENS).contains(&tokens) {
        true => Ok(tokens),
        false => Err(ArgumentError::tokens(argument, tokens, TOKENS.allowed)),
    }
}

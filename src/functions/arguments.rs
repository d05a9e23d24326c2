//! The arguments of SQL functions, checked where they are read.

use ratelimit_core::Micros;

use crate::pg::call::Call;
use crate::pg::error::{Error, Result};

pub fn required<T>(argument: Option<T>, name: &'static str) -> Result<T> {
    argument.ok_or(Error::NullArgument(name))
}

pub fn finite(at: Option<Micros>, argument: &'static str) -> Result<Micros> {
    at.ok_or_else(|| Error::InvalidArgument {
        argument,
        value: "infinite".into(),
        allowed: "a finite time".into(),
    })
}

pub fn name(call: &Call, n: usize) -> Result<&[u8]> {
    valid_name(required(call.text(n), "name")?)
}

pub fn key(call: &Call, n: usize) -> Result<&[u8]> {
    valid_key(required(call.text(n), "key")?)
}

/// Refuses a name that is empty or too long (22023).
pub fn valid_name(name: &[u8]) -> Result<&[u8]> {
    if (1..=200).contains(&name.len()) {
        return Ok(name);
    }
    Err(Error::InvalidArgument {
        argument: "name",
        value: format!("{} bytes long", name.len()),
        allowed: "1 to 200 bytes".into(),
    })
}

/// Refuses a key that is too long (22023).
pub fn valid_key(key: &[u8]) -> Result<&[u8]> {
    if key.len() <= 1024 {
        return Ok(key);
    }
    Err(Error::InvalidArgument {
        argument: "key",
        value: format!("{} bytes long", key.len()),
        allowed: "at most 1024 bytes; of a longer one, pass a hash".into(),
    })
}

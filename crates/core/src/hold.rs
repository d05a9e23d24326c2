//! Holds: tokens that are taken before it is known how many are used, with the right to give back the others.
//!
//! A hold is an ordinary take. It is settled once, with what was used, or it expires: then what can come back does.

use crate::Micros;

/// Tokens that a hold has of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    /// Tokens that it has taken and not given back.
    pub count: f64,
    /// Of these, those that can't come back: of windows that have ended, or after its expiry.
    pub old: f64,
    /// Tokens that came back when it expired.
    pub back: f64,
    /// When those beyond `old` were taken. Of a concurrency limit the id of the lease.
    pub taken_at: Micros,
    /// When it expires.
    pub expires_at: Micros,
    /// Whether its tokens stay taken when it expires.
    pub charge: bool,
}

//! Holds: takes that are settled later, with what was used, or expire.

use ratelimit_core::Micros;

use crate::error::{LimiterError, Result};
use crate::ports::Host;
use crate::request::{Answer, Request};
use crate::several::RequestOutcome;

/// On which terms a hold is taken.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// How long it lasts, from 1 ms to 366 days.
    pub ttl: Micros,
    /// Its id, from 1 to 200 bytes in the server's encoding; `None`: a random one.
    pub id: Option<&'a [u8]>,
    /// Whether its tokens stay taken when it expires.
    pub charge: bool,
}

/// The outcome of a hold of one limit.
pub struct Held {
    /// The answer of the take.
    pub answer: Answer,
    /// The hold's id; `None`: there is no hold.
    pub id: Option<Vec<u8>>,
    /// The tokens that it holds now; where there is no hold and the call passes, those that it would.
    pub count: f64,
    /// When it expires.
    pub expires_at: Option<Micros>,
}

/// A limit of a hold that was settled.
pub struct Settled {
    /// The limit's name, in the server's encoding.
    pub name: Vec<u8>,
    /// The key, likewise.
    pub key: Vec<u8>,
    /// The answer, as of a credit; `None`: there is no limit any more.
    pub answer: Option<Answer>,
}

/// What was used of a hold.
#[derive(Clone, Copy)]
pub enum Used<'a> {
    /// All that it held.
    All,
    /// So many tokens of each limit.
    Count(f64),
    /// So many tokens of the limits of these names; all of the others.
    ByName(&'a [(Vec<u8>, f64)]),
}

/// The outcome of one request of a hold of several limits.
pub struct HeldOfSeveral {
    /// The outcome of the take.
    pub outcome: RequestOutcome,
    /// As in [`Held`].
    pub id: Option<Vec<u8>>,
    /// As in [`Held`].
    pub count: f64,
    /// As in [`Held`].
    pub expires_at: Option<Micros>,
}

/// Takes tokens and holds them, or extends what the id holds already; with `at_least` as many as there are.
///
/// # Errors
/// 0A000: [`LimiterError::NotForHolds`]; 22023, as [`single::take`](crate::single::take).
pub fn hold<H: Host>(
    _host: &H,
    _request: &Request,
    _at_least: Option<f64>,
    _terms: &Terms,
) -> Result<Held> {
    Err(LimiterError::not_written())
}

/// Settles a hold of one limit: gives back what was not used, or takes what was used beyond it; `None`: there is no such
/// hold.
///
/// # Errors
/// [`LimiterError::SeveralLimits`] (22023); 22023: `used` is no number from 0 to 1e15.
pub fn settle<H: Host>(_host: &H, _id: &[u8], _used: Option<f64>) -> Result<Option<Settled>> {
    Err(LimiterError::not_written())
}

/// Settles all limits of a hold, in the order of name and key.
///
/// # Errors
/// 22023: a number is none from 0 to 1e15.
pub fn settle_all<H: Host>(_host: &H, _id: &[u8], _used: &Used) -> Result<Vec<Settled>> {
    Err(LimiterError::not_written())
}

/// Takes tokens from all the limits and holds them, or none; of what the id holds already takes only what is missing.
///
/// # Errors
/// Those of [`hold`], each with the number of its request; 22023 also for two requests of one limit.
pub fn hold_all<H: Host>(
    _host: &H,
    _requests: &[Request],
    _terms: &Terms,
) -> Result<Vec<HeldOfSeveral>> {
    Err(LimiterError::not_written())
}

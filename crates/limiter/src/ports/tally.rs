//! The counters of requests.

use ratelimit_core::Micros;

use crate::error::Result;

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It passed.
    Allowed,
    /// It was denied.
    Denied {
        /// `false`: in a dry run, so it passed.
        enforced: bool,
    },
}

/// The counters of requests.
pub trait Tally {
    /// The counter of a request.
    type Counter: Copy;

    /// Returns the counter of a request; `None`: it is not counted.
    ///
    /// # Errors
    /// A cancel. If nothing can be counted, calls go on.
    fn counter(&self, name: &[u8], key: &[u8]) -> Result<Option<Self::Counter>>;

    /// Counts an answer to a request of `count` tokens, and logs a share of the denials; `retry_after` as in
    /// [`Answer`](crate::request::Answer).
    fn count(&self, counter: Option<Self::Counter>, counted: Counted);
}

/// A request to count.
#[derive(Clone, Copy)]
pub struct Counted<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, in the server's encoding.
    pub key: &'a [u8],
    /// Tokens.
    pub count: f64,
    /// The answer.
    pub verdict: Verdict,
    /// The wait that it reports.
    pub retry_after: Option<Micros>,
}

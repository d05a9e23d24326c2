//! What is counted of a request.

use ratelimit_core::Micros;

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

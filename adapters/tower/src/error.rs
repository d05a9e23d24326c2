//! The errors, and whether each says "not now".

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

/// A call that was not decided: the error of the driver, or a timeout of the layer.
#[derive(Clone, Debug)]
pub struct Error {
    source: Arc<dyn StdError + Send + Sync>,
    code: Option<String>,
    is_not_now: bool,
    /// A prepared statement was refused before it ran: it doesn't exist, exists already, or returns other columns now.
    pub(crate) is_refused: bool,
}

/// A server that is a standby, full, starting or stopping; too many connections; a timeout inside it.
const NOT_NOW: [&str; 9] =
    ["25006", "53100", "53200", "53300", "55P03", "57014", "57P01", "57P02", "57P03"];

impl Error {
    /// The error of a driver, with its SQLSTATE if the server has answered.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>>, code: Option<&str>) -> Self {
        let source: Arc<dyn StdError + Send + Sync> = source.into().into();
        let is_not_now = match code {
            // PgBouncer uses 08P01 for a refused login, too.
            Some("08P01") => false,
            Some(code) => code.starts_with("08") || NOT_NOW.contains(&code),
            None => no_answer(&*source),
        };
        let is_refused = matches!(code, Some("26000" | "42P05"));
        Self { source, code: code.map(str::to_owned), is_not_now, is_refused }
    }

    /// The error of a server, with the function in which it was raised.
    #[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
    pub(crate) fn raised_in(self, routine: Option<&str>) -> Self {
        let is_of_plan = self.code() == Some("0A000") && routine == Some("RevalidateCachedQuery");
        Self { is_refused: self.is_refused || is_of_plan, ..self }
    }

    /// A prepared statement was another one's, and has done nothing.
    pub(crate) fn another_statement() -> Self {
        Self { is_refused: true, ..Self::new("the prepared statement is another one's", None) }
    }

    /// An error that says "not now" without an SQLSTATE, such as a pool with no connection left.
    pub fn unavailable(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { is_not_now: true, ..Self::new(source, None) }
    }

    /// The SQLSTATE, if the server has answered.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Whether the call can't be decided now: no server answers, or it is full, starting, stopping or a standby; or
    /// there was a timeout. After such an error, work may continue unchecked; not after a mistake or a refused login.
    pub fn is_not_now(&self) -> bool {
        self.is_not_now
    }
}

/// Whether no server answers, or not any more. A missing or unreadable file is a mistake, unless it is a socket.
fn no_answer(error: &(dyn StdError + 'static)) -> bool {
    let mut causes =
        std::iter::successors(Some(error), |error: &&(dyn StdError + 'static)| (*error).source());
    causes.any(|cause| {
        use io::ErrorKind::*;
        let Some(error) = cause.downcast_ref::<io::Error>() else { return false };
        matches!(
            error.kind(),
            ConnectionRefused | ConnectionReset | ConnectionAborted | NotConnected | BrokenPipe
                | TimedOut | UnexpectedEof | HostUnreachable | NetworkUnreachable | NetworkDown
                | NotFound
        )
        // The error kind of a name that can't be resolved has no public name.
        || error.to_string().starts_with("failed to lookup address information")
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rate limit was not decided: {}", self.source)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

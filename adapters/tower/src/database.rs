//! The connections that run the statements.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::Error;
use crate::statement::parameters;

/// A connection or a transaction that runs a call.
pub trait Connection: Send {
    /// Runs a statement with parameters that are texts or NULL, and returns the text in the one column of its one row.
    fn text(
        &mut self,
        sql: &str,
        values: &[Option<&str>],
    ) -> impl Future<Output = Result<String, Error>> + Send;
}

/// A pool of connections, for the layer.
pub trait Pool: Clone + Send + Sync + 'static {
    /// The connection that it lends.
    type Connection: Connection;

    /// Borrows a connection. Dropping it returns it.
    fn get(&self) -> impl Future<Output = Result<Self::Connection, Error>> + Send;

    /// Runs a statement as [`Connection::text`] does, in a transaction of its own. If it `prepares`, the connection
    /// keeps the statement prepared; None: that statement returned no row. Default: never prepares.
    fn run(
        connection: &mut Self::Connection,
        sql: &str,
        values: &[Option<&str>],
        prepares: bool,
    ) -> impl Future<Output = Result<Option<String>, Error>> + Send {
        let _ = prepares;
        async { connection.text(sql, values).await.map(Some) }
    }

    /// Closes a connection with an unfinished statement: it must not return to the pool.
    fn discard(connection: Self::Connection);
}

/// A pool, as the calls of a layer use it.
#[derive(Clone)]
pub(crate) struct Database<P> {
    pub pool: P,
    /// The maximum time of a call.
    pub timeout: Duration,
    /// None: statements are never prepared.
    pub prepared: Option<Arc<Prepared>>,
}

impl<P: Pool> Database<P> {
    /// The end of a call that begins now.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// The error after a deadline.
    pub fn late(&self, what: &str) -> Error {
        Error::unavailable(format!("{what} within {:?}", self.timeout))
    }

    /// Runs a statement. If a prepared one is refused, which takes nothing, it runs unprepared, on another connection.
    pub async fn run(
        &self,
        deadline: Instant,
        sql: &str,
        values: [Option<&str>; 4],
    ) -> Result<String, Error> {
        let values = parameters(sql, values);
        let once = async |prepares: bool| {
            let Ok(connection) = timeout_at(deadline, self.pool.get()).await else {
                return Err(self.late("there was no connection to the database"));
            };
            let mut busy = Busy::<P>(None);
            let connection = busy.0.insert(connection?);
            let answer = P::run(connection, sql, &values, prepares);
            let Ok(result) = timeout_at(deadline, answer).await else {
                return Err(self.late("there was no answer of the database"));
            };
            let result = result.and_then(|text| text.ok_or_else(Error::another_statement));
            // A connection that has prepared what the server doesn't know is closed.
            if !(prepares && result.as_ref().is_err_and(|error| error.is_refused)) {
                drop(busy.0.take());
            }
            result
        };
        let prepared = self.prepared.as_ref().filter(|prepared| prepared.is_on());
        match (once(prepared.is_some()).await, prepared) {
            (Err(error), Some(prepared)) if error.is_refused => {
                prepared.refused(&error);
                once(false).await
            }
            (result, _) => result,
        }
    }
}

/// Whether the statements of a pool are prepared: not for ten minutes after three have been refused in one.
#[derive(Default)]
pub(crate) struct Prepared(Mutex<Refusals>);

#[derive(Default)]
struct Refusals {
    /// The times of the last minute, since none was last given up.
    last: Vec<Instant>,
    off_until: Option<Instant>,
}

impl Prepared {
    fn is_on(&self) -> bool {
        let refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.off_until.is_none_or(|end| Instant::now() >= end)
    }

    fn refused(&self, error: &Error) {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        refusals.last.retain(|time| now - *time < Duration::from_secs(60));
        refusals.last.push(now);
        if refusals.last.len() == 3 {
            refusals.last.clear();
            if refusals.off_until.replace(now + Duration::from_secs(600)).is_none() {
                tracing::warn!(%error, "prepared statements are refused: none is prepared for ten minutes");
            }
        }
    }
}

/// A connection with an unfinished statement. Dropping it closes it, for example when a request is given up.
struct Busy<P: Pool>(Option<P::Connection>);

impl<P: Pool> Drop for Busy<P> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            P::discard(connection);
        }
    }
}

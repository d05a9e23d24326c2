//! The connections that run the statements.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::Error;

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

    /// Closes a connection with an unfinished statement: it must not return to the pool.
    fn discard(connection: Self::Connection);
}

/// Runs a statement on a connection of the pool, with a timeout for both.
pub(crate) async fn within<P: Pool>(
    timeout: Duration,
    pool: &P,
    sql: &str,
    values: &[Option<&str>],
) -> Result<String, Error> {
    let deadline = Instant::now() + timeout;
    let late = |what| Error::unavailable(format!("{what} within {timeout:?}"));
    let Ok(connection) = timeout_at(deadline, pool.get()).await else {
        return Err(late("there was no connection to the database"));
    };
    let mut busy = Busy::<P>(None);
    let result = timeout_at(deadline, busy.0.insert(connection?).text(sql, values)).await;
    let Ok(result) = result else {
        return Err(late("there was no answer of the database"));
    };
    drop(busy.0.take());
    result
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

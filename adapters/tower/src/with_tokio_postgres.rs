//! Clients and transactions of tokio-postgres, pools of deadpool-postgres.

use deadpool_postgres::{Object, PoolError};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Transaction};

use crate::{Connection, Error, Pool};

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        if error.is_closed() {
            return Self::unavailable(error);
        }
        let code = error.code().map(|code| code.code().to_owned());
        Self::new(error, code.as_deref())
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            PoolError::Timeout(_) => Self::unavailable(error),
            _ => Self::new(error, None),
        }
    }
}

/// Runs it in one round trip, and without a prepared statement, which suits PgBouncer.
async fn text(
    client: &impl GenericClient,
    sql: &str,
    values: &[Option<&str>],
) -> Result<String, Error> {
    let typed: Vec<_> =
        values.iter().map(|value| (value as &(dyn ToSql + Sync), Type::TEXT)).collect();
    Ok(client.query_typed_one(sql, &typed).await?.try_get(0)?)
}

impl Connection for Client {
    async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
        text(self, sql, values).await
    }
}

impl Connection for Transaction<'_> {
    async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
        text(self, sql, values).await
    }
}

impl Connection for deadpool_postgres::Transaction<'_> {
    async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
        text(&**self, sql, values).await
    }
}

impl Connection for Object {
    async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
        let client: &Client = self;
        text(client, sql, values).await
    }
}

impl Pool for deadpool_postgres::Pool {
    type Connection = Object;

    async fn get(&self) -> Result<Object, Error> {
        Ok(deadpool_postgres::Pool::get(self).await?)
    }

    fn discard(connection: Object) {
        drop(Object::take(connection));
    }
}

//! Clients and transactions of tokio-postgres, pools of deadpool-postgres.

use deadpool_postgres::{Object, PoolError};
use tokio_postgres::error::DbError;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Transaction};

use crate::{Connection, Error, Pool};

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        if error.is_closed() {
            return Self::unavailable(error);
        }
        let code = error.code().map(|code| code.code().to_owned());
        let routine = error.as_db_error().and_then(DbError::routine).map(str::to_owned);
        Self::new(error, code.as_deref()).raised_in(routine.as_deref())
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

/// Runs it in one round trip, and without a prepared statement.
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

    async fn run(
        connection: &mut Object,
        sql: &str,
        values: &[Option<&str>],
        prepares: bool,
    ) -> Result<Option<String>, Error> {
        if !prepares {
            return connection.text(sql, values).await.map(Some);
        }
        let types = vec![Type::TEXT; values.len()];
        let statement = connection.prepare_typed_cached(sql, &types).await?;
        let values: Vec<_> = values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        let row = connection.query_opt(&statement, &values).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    fn discard(connection: Object) {
        drop(Object::take(connection));
    }
}

//! Clients and transactions of tokio-postgres, pools of deadpool-postgres.

use deadpool_postgres::{Object, PoolError};
use tokio_postgres::error::DbError;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Transaction};

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

/// Each runs a statement in one round trip, and without a prepared one.
macro_rules! connections {
    ($($type:ty),+) => {$(
        impl Connection for $type {
            async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
                let values = values.iter().map(|value| (value as &(dyn ToSql + Sync), Type::TEXT));
                let typed: Vec<_> = values.collect();
                Ok(self.query_typed_one(sql, &typed).await?.try_get(0)?)
            }
        }
    )+};
}
connections!(Client, Transaction<'_>, deadpool_postgres::Transaction<'_>, Object);

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

//! Connections and pools of sqlx.

use std::io;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Transaction};

use crate::{Connection, Error, Pool};

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code()).map(String::from);
        match error {
            sqlx::Error::PoolTimedOut => Self::unavailable(error),
            _ => Self::new(error, code.as_deref()),
        }
    }
}

impl Connection for PgConnection {
    async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
        // Made of constants and a quoted schema.
        let mut query = sqlx::query_scalar(AssertSqlSafe(sql));
        for value in values {
            query = query.bind(value);
        }
        Ok(query.fetch_one(self).await?)
    }
}

impl Connection for Transaction<'_, Postgres> {
    async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
        (**self).text(sql, values).await
    }
}

impl Connection for PoolConnection<Postgres> {
    async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
        (**self).text(sql, values).await
    }
}

impl Pool for PgPool {
    type Connection = PoolConnection<Postgres>;

    async fn get(&self) -> Result<PoolConnection<Postgres>, Error> {
        self.acquire().await.map_err(|error| match error {
            // Without a socket, a missing file is that of a certificate.
            sqlx::Error::Io(error)
                if error.kind() == io::ErrorKind::NotFound && !has_socket(self) =>
            {
                Error::new(error.to_string(), None)
            }
            error => error.into(),
        })
    }

    fn discard(connection: PoolConnection<Postgres>) {
        drop(connection.detach());
    }
}

fn has_socket(pool: &PgPool) -> bool {
    let options = pool.connect_options();
    options.get_socket().is_some() || options.get_host().starts_with('/')
}

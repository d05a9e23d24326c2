//! Connections and pools of sqlx.

use std::io;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres, Transaction};

use crate::{Connection, Error, Pool};

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let raised = error.as_database_error();
        let code = raised.and_then(|raised| raised.code()).map(String::from);
        let raised = raised.and_then(|raised| raised.try_downcast_ref::<PgDatabaseError>());
        let routine = raised.and_then(PgDatabaseError::routine).map(String::from);
        match error {
            sqlx::Error::PoolTimedOut => Self::unavailable(error),
            _ => Self::new(error, code.as_deref()).raised_in(routine.as_deref()),
        }
    }
}

/// Runs it prepared, or in a transaction unprepared: outside of one, sqlx would send Parse and Bind in parts between
/// which a pooler may change the connection.
async fn text(
    db: &mut PgConnection,
    sql: &str,
    values: &[Option<&str>],
) -> Result<Option<String>, Error> {
    let prepares = !db.is_in_transaction();
    // Another text than those that the connection has prepared, which sqlx finds by it.
    let sql = if prepares { sql.to_owned() } else { format!("{sql} -- unprepared") };
    // Made of constants and a quoted schema.
    let mut query = sqlx::query_scalar(AssertSqlSafe(sql)).persistent(prepares);
    for value in values {
        query = query.bind(value);
    }
    Ok(query.fetch_optional(db).await?)
}

impl Connection for PgConnection {
    async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
        text(self, sql, values).await?.ok_or_else(Error::another_statement)
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

    async fn run(
        connection: &mut PoolConnection<Postgres>,
        sql: &str,
        values: &[Option<&str>],
        prepares: bool,
    ) -> Result<Option<String>, Error> {
        if prepares {
            return text(connection, sql, values).await;
        }
        let mut transaction = connection.begin().await?;
        let result = text(&mut transaction, sql, values).await?;
        transaction.commit().await?;
        Ok(result)
    }

    fn discard(connection: PoolConnection<Postgres>) {
        drop(connection.detach());
    }
}

fn has_socket(pool: &PgPool) -> bool {
    let options = pool.connect_options();
    options.get_socket().is_some() || options.get_host().starts_with('/')
}

//! Connections and pools of sqlx.

use std::io;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row, Transaction};

use crate::statement::hex;
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

/// Runs it unprepared, with its values in the text. sqlx sends values only to a statement that it has prepared, at best
/// the unnamed one, and in a message of its own, before which a pooler may change the connection. A transaction around
/// both could end that of the caller, since sqlx doesn't know of one begun by SQL.
async fn unprepared(
    db: &mut PgConnection,
    sql: &str,
    values: &[Option<&str>],
) -> Result<Option<String>, Error> {
    let row = sqlx::raw_sql(AssertSqlSafe(with_values(sql, values))).fetch_optional(db).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// The statement with these values in place of its parameters, but not in what is quoted, such as the name of a schema.
fn with_values(sql: &str, values: &[Option<&str>]) -> String {
    let (mut text, mut rest) = (String::new(), sql);
    while let Some(begins) = rest.find(['$', '\'', '"']) {
        let (before, from) = rest.split_at(begins);
        let (sign, after) = from.split_at(1);
        let ends = match sign {
            "$" => after.find(|c: char| !c.is_ascii_digit()),
            quote => after.find(quote).map(|closes| closes + 1),
        };
        let (inside, after) = after.split_at(ends.unwrap_or(after.len()));
        let n = inside.parse::<usize>().ok().filter(|_| sign == "$");
        text += before;
        match n.and_then(|n| values.get(n.checked_sub(1)?)) {
            Some(Some(value)) => text += &constant(value),
            Some(None) => text += "NULL",
            None => text.extend([sign, inside]),
        }
        rest = after;
    }
    text + rest
}

/// A text, in hex: nothing in it is SQL, whatever the settings of the session.
fn constant(value: &str) -> String {
    let hex = hex(value.as_bytes());
    format!("pg_catalog.convert_from(pg_catalog.decode('{hex}', 'hex'), 'UTF8')")
}

macro_rules! connections {
    ($($type:ty),+) => {$(
        impl Connection for $type {
            async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
                unprepared(self, sql, values).await?.ok_or_else(Error::another_statement)
            }
        }
    )+};
}
connections!(PgConnection, Transaction<'_, Postgres>, PoolConnection<Postgres>);

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
        if !prepares {
            return unprepared(connection, sql, values).await;
        }
        // Made of constants and a quoted schema.
        let mut query = sqlx::query_scalar(AssertSqlSafe(sql));
        for value in values {
            query = query.bind(value);
        }
        Ok(query.fetch_optional(&mut **connection).await?)
    }

    fn discard(connection: PoolConnection<Postgres>) {
        drop(connection.detach());
    }
}

fn has_socket(pool: &PgPool) -> bool {
    let options = pool.connect_options();
    options.get_socket().is_some() || options.get_host().starts_with('/')
}

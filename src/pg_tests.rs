//! Tests of what is between the library and PostgreSQL. They run inside a server, as SQL functions of a build with the
//! feature `server_tests`, each in a transaction that is rolled back: `cargo pgrx test`, or `make test ONLY=pgrx`.

use pgrx::pg_sys;
use pgrx::prelude::*;
use ratelimit_limiter::error::Result as PortResult;
use ratelimit_limiter::ports::{Host, RowAccess, Rows};

use crate::host::{Session, Use};
use crate::schema::catalog::{self, Catalog, TableLock};
use crate::schema::error::Result;

mod announced;
mod cached;
mod declared;
mod held_rows;
mod kept_in_partition;
mod raised;
mod resharded_between;
mod rolled_back;
mod row_codec;
mod row_template;
mod run_as_owner;
mod session_settings;
mod shared;
mod table_shape;

/// An SQL function of the extension: its schema is the extension's.
fn function() -> pg_sys::Oid {
    get("SELECT 'rl_limit(text, text, float8, bool, bool, jsonb)'::regprocedure::oid")
}

fn run(sql: &str) {
    Spi::run(sql).unwrap();
}

/// Returns the value that a query selects.
fn get<T: FromDatum + IntoDatum>(sql: &str) -> T {
    Spi::get_one(sql).unwrap().unwrap()
}

/// Runs work with the extension's objects.
fn with_catalog<T>(mut work: impl FnMut(&Catalog) -> T) -> T {
    catalog::with(function(), TableLock::Write, |catalog| Ok(work(catalog))).unwrap()
}

/// Runs work on the rows, accessed as `ratelimit.access` says.
fn with_rows<T>(mut work: impl FnMut(&dyn Rows) -> PortResult<T>) -> Result<T> {
    with_session(|_, rows| work(rows))
}

/// Runs work with the session and the rows.
fn with_session<T>(mut work: impl FnMut(&Session, &dyn Rows) -> PortResult<T>) -> Result<T> {
    Session::run(Use::Writes, function(), |session| {
        session.with_rows(RowAccess::Write, |rows| work(session, rows))
    })
}

/// Runs work in a subtransaction; see [`attempt`](ratelimit_pg::subtransaction::attempt).
fn attempt<T>(work: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    ratelimit_pg::subtransaction::attempt(work)
}

/// Runs work in a subtransaction and rolls it back.
fn and_rolled_back<T>(work: impl FnOnce() -> T) -> T {
    let mut outcome = None;
    let kept = attempt(|| {
        outcome = Some(work());
        Ok(None::<()>)
    });
    assert!(kept.unwrap().is_none());
    outcome.unwrap()
}

/// An error as PL/pgSQL sees it.
#[derive(Debug)]
struct Diagnosis {
    sqlstate: String,
    message: String,
    detail: String,
    hint: String,
    context: String,
}

/// Runs a statement that must fail, and returns its error.
fn error_of(sql: &str) -> Diagnosis {
    let known = get::<bool>("SELECT to_regproc('pg_temp.error_of') IS NOT NULL");
    let create = "CREATE FUNCTION pg_temp.error_of(statement text) RETURNS text[] LANGUAGE plpgsql AS $$
        DECLARE state text; message text; detail text; hint text; context text;
        BEGIN
            EXECUTE statement;
            RETURN NULL;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, context = PG_EXCEPTION_CONTEXT;
            RETURN ARRAY[state, message, detail, hint, context];
        END $$";
    if !known {
        run(create);
    }
    let parts: Option<Vec<String>> =
        Spi::get_one_with_args("SELECT pg_temp.error_of($1)", &[sql.into()]).unwrap();
    let parts = parts.unwrap_or_else(|| panic!("no error: {sql}"));
    let [sqlstate, message, detail, hint, context] = parts.try_into().unwrap();
    Diagnosis { sqlstate, message, detail, hint, context }
}

/// The functions that `#[pg_test]` requires of the program that runs the tests in the server.
#[cfg(all(test, feature = "pg_test"))]
pub mod pg_test {
    use std::cell::RefCell;
    use std::sync::{Mutex, MutexGuard};

    static ONE: Mutex<()> = Mutex::new(());
    thread_local! {
        static TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
    }

    /// Waits until no other test runs, and excludes others until this one and its thread end: they alter the
    /// same tables.
    pub fn setup(_: Vec<&str>) {
        TURN.with_borrow_mut(|turn| {
            turn.get_or_insert_with(|| ONE.lock().unwrap_or_else(|failed| failed.into_inner()));
        });
    }

    /// No settings of our own.
    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec![]
    }
}

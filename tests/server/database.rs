//! A database of a test's own, on the server that RATELIMIT_TEST_SERVER names.

use std::sync::{Mutex, MutexGuard, PoisonError};

use postgres::{Client, Config, NoTls};

/// The tests share the server's connections, so they run one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// A fresh database with the extension, dropped with this value.
pub struct Database {
    name: &'static str,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Database {
    /// The sessions of a storm.
    pub const SESSIONS: usize = 16;
    /// Where limits may be.
    pub const STORES: [&str; 2] = ["table", "memory"];

    pub fn new(name: &'static str) -> Database {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut database = Database::beside(name);
        database._turn = Some(turn);
        database
    }

    /// Creates one of several of a test, without waiting for other tests.
    pub fn beside(name: &'static str) -> Database {
        let database = Database::empty(name);
        database.connect().batch_execute("CREATE EXTENSION ratelimit").unwrap();
        database
    }

    /// Creates one without the extension.
    pub fn empty(name: &'static str) -> Database {
        let mut postgres = connect("postgres");
        postgres.batch_execute(&format!("DROP DATABASE IF EXISTS {name} (FORCE)")).unwrap();
        postgres.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        Database { name, _turn: None }
    }

    /// How many of these calls a storm makes: all.
    pub const fn part(all: usize) -> usize {
        all
    }

    /// The SQL that defines limits, as it is.
    pub fn limits(sql: &str) -> String {
        sql.to_owned()
    }

    pub fn connect(&self) -> Client {
        connect(self.name)
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether a call above READ COMMITTED may fail to be serialized: of the SQL store, never of the heap store.
    pub fn may_conflict(client: &mut Client) -> bool {
        client.batch_execute("LOAD 'ratelimit'").unwrap();
        let access: String = client.query_one("SHOW ratelimit.access", &[]).unwrap().get(0);
        access == "sql"
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE {} (FORCE)", self.name);
        if let Err(error) = connect("postgres").batch_execute(&drop) {
            eprintln!("{drop}: {error}");
        }
    }
}

pub fn connect(database: &str) -> Client {
    config(database).connect(NoTls).expect("the test server answers")
}

/// The server's settings for a connection.
pub fn config(database: &str) -> Config {
    let server = std::env::var("RATELIMIT_TEST_SERVER")
        .expect("RATELIMIT_TEST_SERVER is not set: run make test");
    let mut config: Config = server.parse().expect("RATELIMIT_TEST_SERVER is a connection string");
    config.dbname(database);
    config
}

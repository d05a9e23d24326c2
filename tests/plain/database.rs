//! A test's own database with the SQL file, loaded by its owner, without a superuser's rights. It takes the place of
//! tests/server/database.rs, so the extension's tests run on the file.

use std::sync::{Mutex, MutexGuard, PoisonError};

use postgres::{Client, Config, NoTls};

use crate::settings;

/// Held by the test that uses the server, since tests share its connections.
static TURN: Mutex<()> = Mutex::new(());

/// Owns the databases and the file's objects.
pub const OWNER: &str = "plain_owner";

/// A fresh database with the file, dropped with this value.
pub struct Database {
    name: &'static str,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Database {
    /// The sessions of a storm.
    pub const SESSIONS: usize = 32;
    /// The stores of limits.
    pub const STORES: [&str; 1] = ["table"];

    pub fn new(name: &'static str) -> Database {
        Database::under(name, &[])
    }

    /// One with settings, under which the file is loaded, too.
    pub fn under(name: &'static str, settings: &[(&str, &str)]) -> Database {
        let turn = turn();
        let mut database = Database::empty(name);
        let mut server = connect_as("postgres", "postgres");
        for sql in settings::of_database(&mut server, name, settings) {
            server.batch_execute(&sql).unwrap();
        }
        database.connect_as(OWNER).batch_execute(&file()).unwrap();
        database._turn = Some(turn);
        database
    }

    /// A test's second database: it doesn't wait for other tests.
    pub fn second(name: &'static str) -> Database {
        let database = Database::empty(name);
        database.connect_as(OWNER).batch_execute(&file()).unwrap();
        database
    }

    /// A second one, without the file.
    pub fn empty(name: &'static str) -> Database {
        Database::made(name, "")
    }

    /// One in another encoding, without the file.
    pub fn in_encoding(name: &'static str, encoding: &str) -> Database {
        Database::made(
            name,
            &format!("ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"),
        )
    }

    fn made(name: &'static str, options: &str) -> Database {
        let mut server = connect_as("postgres", "postgres");
        create_role(&mut server, OWNER);
        let drop = format!("DROP DATABASE IF EXISTS {name} (FORCE)");
        let create = format!("CREATE DATABASE {name} OWNER {OWNER} {options}");
        let path = format!("ALTER DATABASE {name} SET search_path = ratelimit, public");
        for sql in [drop, create, path] {
            server.batch_execute(&sql).unwrap();
        }
        Database { name, _turn: None }
    }

    /// The number of calls of a storm: a quarter, since it has twice the sessions, and calls take longer.
    pub const fn part(all: usize) -> usize {
        all.div_ceil(4)
    }

    /// Removes shards from SQL that defines limits.
    pub fn limits(sql: &str) -> String {
        let mut parts = sql.split("shards => ");
        let mut one = parts.next().unwrap().to_owned();
        for part in parts {
            one += "shards => 1";
            one += part.trim_start_matches(|letter: char| letter.is_ascii_digit());
        }
        one
    }

    /// Connects as a superuser, which setting deadlock_timeout requires.
    pub fn connect(&self) -> Client {
        self.connect_as("postgres")
    }

    pub fn connect_as(&self, role: &str) -> Client {
        connect_as(self.name, role)
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether a call above READ COMMITTED may fail with 40001.
    pub fn may_conflict(_: &mut Client) -> bool {
        true
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE {} (FORCE)", self.name);
        if let Err(error) = connect_as("postgres", "postgres").batch_execute(&drop) {
            eprintln!("{drop}: {error}");
        }
    }
}

/// Creates a role, unless another test has.
pub fn create_role(client: &mut Client, name: &str) {
    let sql = format!(
        "DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN END $$"
    );
    client.batch_execute(&sql).unwrap();
}

/// Waits until no other test uses the server.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file that `make plain` has made.
pub fn file() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/ratelimit.sql");
    std::fs::read_to_string(path).expect("make plain has built dist/ratelimit.sql")
}

/// The server's settings for a connection.
pub fn config(database: &str, role: &str) -> Config {
    let server = std::env::var("RATELIMIT_TEST_SERVER")
        .expect("RATELIMIT_TEST_SERVER is not set: run make test ONLY=plain");
    let mut config: Config = server.parse().expect("RATELIMIT_TEST_SERVER is a connection string");
    config.dbname(database).user(role);
    config
}

fn connect_as(database: &str, role: &str) -> Client {
    config(database, role).connect(NoTls).expect("the test server answers")
}

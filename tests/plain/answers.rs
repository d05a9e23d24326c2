//! What calls answer, on the SQL file.

use cases::Place;

use crate::database::{Database, OWNER, config};

#[path = "../answers/mod.rs"]
mod cases;

#[test]
#[ignore = "needs a server: make test"]
fn on_the_file() {
    let database = Database::new("answers");
    cases::run(Place::File, "ratelimit", &config(database.name(), OWNER));
}

/// In the PGlite that adapters/run has started.
#[test]
#[ignore = "needs PGlite: make test ONLY=adapters"]
fn in_pglite() {
    let socket = std::env::var("RATELIMIT_TEST_PGLITE").expect("adapters/run sets its socket");
    let config = format!("host={socket} user=postgres dbname=postgres").parse().unwrap();
    cases::run(Place::Pglite, "ratelimit", &config);
}

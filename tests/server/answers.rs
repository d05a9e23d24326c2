//! What calls answer, in each of the extension's stores and by each way to the rows.

use cases::Place;

use crate::database::{self, Database};

#[path = "../answers/mod.rs"]
pub mod cases;

fn run(place: Place) {
    run_on(&Database::new("answers"), place);
}

pub fn run_on(database: &Database, place: Place) {
    cases::run(place, "public", &database::config(database.name()));
}

#[test]
#[ignore = "needs a server: make test"]
fn rows() {
    run(Place::Heap);
}

#[test]
#[ignore = "needs a server: make test"]
fn sql() {
    run(Place::Sql);
}

#[test]
#[ignore = "needs a server: make test"]
fn memory() {
    run(Place::Memory);
}

#[test]
#[ignore = "needs a server: make test"]
fn shards() {
    run(Place::Shards);
}

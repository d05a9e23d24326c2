//! The contract of a store on the rows of the SQL file, which has no shards.

use cases::{Case, Store};

use crate::database::Database;

#[path = "../contract/mod.rs"]
pub mod cases;
#[path = "../contract/server.rs"]
mod server;

#[test]
#[ignore = "needs a server: make test"]
fn the_file_keeps_the_contract_of_a_store() {
    let database = Database::new("contract");
    let runs = |case: &Case| !case.limits.iter().any(|config| config.contains("shards"));
    println!("{} runs", server::run(|| database.connect(), &[Store::Row], runs));
}

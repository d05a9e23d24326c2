//! The contract of a store on each of the extension's, by each way to the rows.

use cases::Store;

use crate::database::Database;

#[path = "../contract/mod.rs"]
pub mod cases;
#[path = "../contract/server.rs"]
mod server;

#[test]
#[ignore = "needs a server: make test"]
fn each_store_keeps_the_contract() {
    let database = Database::new("contract");
    let mut runs = 0;
    for access in ["heap", "sql"] {
        let connect = || {
            let mut client = database.connect();
            let set = format!("SET ratelimit.access = {access}; SET lock_timeout = '60s'");
            client.batch_execute(&set).unwrap();
            client
        };
        runs += server::run(connect, &Store::ALL.map(|(_, store)| store), |_| true);
    }
    println!("{runs} runs");
}

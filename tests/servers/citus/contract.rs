//! The contract of a store on rows that are distributed, through the coordinator.

use cases::{Case, Store};

use crate::cluster::Cluster;

#[path = "../../contract/mod.rs"]
pub mod cases;
#[path = "../../contract/server.rs"]
mod server;

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn distributed_rows_keep_the_contract_of_a_store() {
    let cluster = Cluster::distributed();
    // Locks that are waited for on another node are not shown here.
    let runs = |case: &Case| case.steps.iter().all(|step| step.expected != "waits");
    let runs = server::run(|| cluster.coordinator(), &[Store::Row, Store::Shards], runs);
    println!("{runs} runs");
}

//! What calls answer on rows that are distributed, through the coordinator.

use cases::Place;

use crate::cluster::Cluster;

#[path = "../../answers/mod.rs"]
mod cases;

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn through_the_coordinator() {
    let cluster = Cluster::distributed();
    cases::run(Place::Citus, "public", &cluster.nodes[0].config("postgres"));
}

//! What a call costs on a cluster: the messages that it sends to the node of its key.

use crate::cluster::{Cluster, Counted};

/// A read, BEGIN, the write and COMMIT. So it is again after another transaction has locked the row and rolled back,
/// which leaves its mark on the row until that is written.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_take_from_another_node_is_four_messages_and_a_denial_one() {
    let cluster = Cluster::distributed();
    let mut client = cluster.coordinator();
    client.batch_execute("SELECT rl_define('api', rl_token_bucket(4, '1000 days'))").unwrap();
    let mut other = Counted::on(&cluster, 0);
    let limit = "SELECT ok FROM rl_limit('api', 'k')";
    // What it reads of the definitions is here, and a new row is inserted with as many.
    assert_eq!(other.call(limit), ("true".into(), 4));
    assert_eq!(other.call(limit), ("true".into(), 4));
    client.batch_execute(&format!("BEGIN; {limit}; ROLLBACK")).unwrap();
    assert_eq!(other.call(limit), ("true".into(), 4));
    assert_eq!(other.call(limit), ("true".into(), 4));
    assert_eq!(other.call(limit), ("false".into(), 1));
    assert_eq!(other.call("SELECT ok FROM rl_check('api', 'k')"), ("false".into(), 1));

    let node = crate::one(&mut client, "SELECT host FROM rl_node('api', 'k')");
    let own = (0..3).find(|&node_of| cluster.name(node_of) == node).unwrap();
    client.batch_execute("SELECT rl_reset('api', 'k')").unwrap();
    assert_eq!(Counted::on(&cluster, own).call(limit), ("true".into(), 0));
}

//! Servers of a test's own, joined by Citus: a coordinator and workers. A node's name is the folder of its
//! socket, so none of them listens to a network.

use std::sync::mpsc::Receiver;

use postgres::Client;

use crate::one;
use crate::own::Server;

const CONF: &str = "tests/servers/citus/postgresql.conf";

/// The first node is the coordinator.
pub struct Cluster {
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// A coordinator and two workers, with the extension on each, and nothing distributed.
    pub fn new() -> Cluster {
        Cluster::of(2)
    }

    /// A coordinator and this many workers, as [`new`](Cluster::new).
    pub fn of(workers: usize) -> Cluster {
        Cluster::with_clocks(&vec![""; workers])
    }

    /// Starts a coordinator, and workers whose clocks are ahead by these seconds; empty: as the coordinator's.
    pub fn with_clocks(workers: &[&str]) -> Cluster {
        let mut cluster = Cluster { nodes: vec![node("")] };
        let set_host = format!("SELECT citus_set_coordinator_host('{}')", cluster.name(0));
        cluster.coordinator().batch_execute(&set_host).unwrap();
        for ahead in workers {
            cluster.add(node(ahead));
        }
        cluster.coordinator().batch_execute("CREATE EXTENSION ratelimit").unwrap();
        cluster
    }

    /// Such a one with the limits distributed.
    pub fn distributed() -> Cluster {
        Cluster::distributed_over(2)
    }

    /// A coordinator and this many workers, with the limits distributed.
    pub fn distributed_over(workers: usize) -> Cluster {
        Cluster::of(workers).distribute()
    }

    /// Distributes the limits.
    pub fn distribute(self) -> Cluster {
        self.coordinator().batch_execute("SELECT rl_distribute(shard_count => 8)").unwrap();
        self
    }

    /// Starts a worker, and adds it.
    pub fn add_node(&mut self) {
        self.add(node(""));
    }

    /// A server that is no node yet.
    pub fn spare() -> Server {
        node("")
    }

    fn add(&mut self, node: Server) {
        self.nodes.push(node);
        let add = format!("SELECT citus_add_node('{}', 5432)", self.name(self.nodes.len() - 1));
        self.coordinator().batch_execute(&add).unwrap();
    }

    /// A session on the coordinator.
    pub fn coordinator(&self) -> Client {
        self.nodes[0].client()
    }

    /// Opens a session on each node.
    pub fn clients(&self) -> Vec<Client> {
        self.nodes.iter().map(Server::client).collect()
    }

    /// How Citus calls a node.
    pub fn name(&self, node: usize) -> &str {
        self.nodes[node].folder()
    }
}

fn node(ahead: &str) -> Server {
    let server = Server::with_clock(CONF, ahead);
    let mut client = server.client();
    // How a node reaches itself; otherwise by the network.
    let name = format!("ALTER SYSTEM SET citus.local_hostname = '{}'", server.folder());
    client.batch_execute(&name).unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    client.batch_execute("CREATE EXTENSION citus").unwrap();
    server
}

/// A session that counts what it sends to other nodes.
pub struct Counted {
    pub client: Client,
    notices: Receiver<String>,
}

impl Counted {
    pub fn on(cluster: &Cluster, node: usize) -> Counted {
        let (mut client, notices) = cluster.nodes[node].client_with_notices();
        client.batch_execute("SET citus.log_remote_commands = on").unwrap();
        Counted { client, notices }
    }

    /// Makes a call, and returns its answer and the number of statements that it sends.
    pub fn call(&mut self, sql: &str) -> (String, usize) {
        let answer = one(&mut self.client, sql);
        let sent = self.notices.try_iter().filter(|notice| notice.starts_with("issuing ")).count();
        println!("{sql}: {answer}, {sent} statements to other nodes");
        (answer, sent)
    }
}

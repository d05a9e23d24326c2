//! What an operator meets: a node that stands still, connections that run out, tables that are not co-located with the
//! limits, nodes that were taken out.

use std::time::{Duration, Instant};

use postgres::Client;

use crate::cluster::Cluster;
use crate::one;
use crate::own::{Server, children};

const DEFINE: &str = "SELECT rl_define('api', rl_token_bucket(20, '1000 days'))";

/// A key whose shard is on this node.
fn key_on(cluster: &Cluster, node: usize) -> String {
    let sql = "SELECT key FROM (SELECT 'key ' || n AS key FROM generate_series(1, 1000) AS n) AS keys
               WHERE (SELECT nodename FROM pg_dist_placement JOIN pg_dist_node USING (groupid)
                      WHERE shardid = get_shard_id_for_distribution_column('ratelimits', key)) = $1 LIMIT 1";
    cluster.coordinator().query_one(sql, &[&cluster.name(node)]).unwrap().get(0)
}

fn take(key: &str) -> String {
    format!("SELECT ok FROM rl_limit('api', '{key}')")
}

/// The SQLSTATE of the error that a statement ends with.
fn refused(client: &mut Client, sql: &str) -> String {
    let error = client.batch_execute(sql).expect_err(sql);
    error.code().unwrap_or_else(|| panic!("{sql}: {error:?}")).code().to_owned()
}

fn run(client: &mut Client, statements: &[&str]) {
    // One by one: Citus sends what it is given to other nodes, where it can't be several statements.
    for sql in statements {
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

/// A server whose processes stand still until this is dropped. The kernel goes on for them: it accepts connections
/// and acknowledges what is sent.
struct Stopped<'a> {
    server: &'a Server,
    processes: String,
}

impl<'a> Stopped<'a> {
    fn new(server: &'a Server) -> Stopped<'a> {
        let postmaster = server.exec("head -n 1 data/postmaster.pid");
        let mut stopped = Stopped { server, processes: postmaster.clone() };
        // First, so that it starts nothing while its children are collected.
        server.exec(&format!("kill -STOP {postmaster}"));
        stopped.processes = format!("{postmaster} {}", children(&postmaster).join(" "));
        server.exec(&format!("kill -STOP {} 2>/dev/null || true", stopped.processes));
        stopped
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.server.exec(&format!("kill -CONT {} 2>/dev/null || true", self.processes));
    }
}

/// Connections that are new end by the timeouts. Those that a session has kept end with the node: Citus sends a
/// cancel request over another one, and waits for its answer, whatever that is.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_node_that_stands_still_is_left_by_new_calls_and_must_be_ended_for_others() {
    let cluster = Cluster::distributed();
    let mut client = cluster.coordinator();
    client.batch_execute(DEFINE).unwrap();
    let (here, there) = (take(&key_on(&cluster, 1)), take(&key_on(&cluster, 2)));
    let mut kept = [cluster.coordinator(), cluster.coordinator()];
    let pids = kept.each_mut().map(|session| {
        session.batch_execute(&there).unwrap();
        one(session, "SELECT pg_backend_pid()")
    });
    let stopped = Stopped::new(&cluster.nodes[2]);

    let mut fresh = cluster.coordinator();
    fresh.batch_execute("SET statement_timeout = '1s'").unwrap();
    assert_eq!(refused(&mut fresh, &there), "57014");
    assert_eq!(one(&mut fresh, &here), "true");
    fresh
        .batch_execute("SET statement_timeout = 0; SET citus.node_connection_timeout = '1s'")
        .unwrap();
    assert_eq!(refused(&mut fresh, &there), "08006");
    assert_eq!(one(&mut fresh, &here), "true");

    // The error is reported, and the session not free for another statement.
    for session in &mut kept {
        session.batch_execute("SET statement_timeout = '1s'").unwrap();
        assert_eq!(refused(session, &there), "57014");
    }
    for terminates in ["pg_cancel_backend(PID)", "pg_terminate_backend(PID)"] {
        assert_eq!(
            one(&mut client, &format!("SELECT {}", terminates.replace("PID", &pids[0]))),
            "true"
        );
    }
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE pid IN (PIDS) AND state = 'active'";
    assert_eq!(one(&mut client, &busy.replace("PIDS", &pids.join(", "))), "2");

    cluster.nodes[2].kill();
    drop(stopped);
    assert!(kept[0].batch_execute(&here).is_err(), "it was terminated");
    assert_eq!(one(&mut kept[1], &here), "true");
    cluster.nodes[2].restart();
    assert_eq!(one(&mut kept[1], &there), "true");
    assert_eq!(one(&mut fresh, &there), "true");
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn settings_of_the_nodes() {
    let cluster = Cluster::distributed();
    connections(&cluster);
    no_connection_left(&cluster);
    a_pool_that_is_too_small(&cluster);
    without_logical_wal(&cluster);
}

/// A node needs as many as all nodes together have clients.
fn connections(cluster: &Cluster) {
    const SESSIONS: usize = 5;
    cluster.coordinator().batch_execute(DEFINE).unwrap();
    let [first, second] = [1, 2].map(|node| take(&key_on(cluster, node)));
    let mut sessions: Vec<Client> = (0..SESSIONS).flat_map(|_| cluster.clients()).collect();
    let mut gpids = Vec::new();
    for session in &mut sessions {
        session.batch_execute(&format!("BEGIN; {first}; {second}; COMMIT")).unwrap();
        gpids
            .push(format!("'citus_internal gpid={}'", one(session, "SELECT citus_backend_gpid()")));
    }
    // Each has one to every node that has shards, but to its own, and keeps it.
    for (node, others) in [(0, 0), (1, 2 * SESSIONS), (2, 2 * SESSIONS)] {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name IN (GPIDS)";
        let count =
            one(&mut cluster.nodes[node].client(), &sql.replace("GPIDS", &gpids.join(", ")));
        assert_eq!(count, others.to_string(), "at node {node}");
    }
    drop(sessions);
}

fn no_connection_left(cluster: &Cluster) {
    let first = take(&key_on(cluster, 1));
    let worker = &cluster.nodes[1];
    worker.client().batch_execute("ALTER SYSTEM SET max_connections = 20").unwrap();
    worker.restart();
    let mut filling = Vec::new();
    let error = loop {
        while let Ok(client) = worker.connect("postgres") {
            filling.push(client);
        }
        // One that another process has just left free may let it pass.
        if let Err(error) = cluster.coordinator().batch_execute(&first) {
            break error;
        }
    };
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), "08006");
    assert!(error.message().contains("too many clients"), "{error:?}");
}

/// A session waits for a connection that another keeps, although that one is idle.
fn a_pool_that_is_too_small(cluster: &Cluster) {
    let second = take(&key_on(cluster, 2));
    let mut client = cluster.coordinator();
    let pool = |client: &mut Client, to: &str| {
        run(client, &[&format!("ALTER SYSTEM {to}"), "SELECT pg_reload_conf()"]);
    };
    pool(&mut client, "SET citus.max_shared_pool_size = 1");
    let mut sessions = Vec::new();
    within_a_minute(|| {
        let mut session = cluster.coordinator();
        run(&mut session, &["SET statement_timeout = '1s'"]);
        let error = session.batch_execute(&second).err();
        sessions.push(session);
        error.is_some_and(|error| error.code().unwrap().code() == "57014")
    });
    pool(&mut client, "RESET citus.max_shared_pool_size");
    let mut waited = sessions.pop().unwrap();
    within_a_minute(|| waited.batch_execute(&second).is_ok());
}

fn within_a_minute(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn shards_have_one_copy_and_notices_are_ours_alone() {
    let cluster = Cluster::new();
    let (mut client, notices) = cluster.nodes[0].client_with_notices();
    client.batch_execute(DEFINE).unwrap();
    client.batch_execute(&take("before")).unwrap();
    client.batch_execute("SET citus.shard_replication_factor = 2").unwrap();
    let error = client.batch_execute("SELECT rl_distribute(4)").unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), "0A000");
    assert_eq!(error.message(), "citus.shard_replication_factor is 2, but limits need 1");

    // By hand it can be done.
    let by_hand = "SELECT create_distributed_table('ratelimits', 'key')";
    client.batch_execute(by_hand).unwrap();
    let shards =
        "SELECT rl_limit('s', 'a', config => rl_token_bucket(20, '1000 days', shards => 4))";
    for _ in 0..3 {
        client.batch_execute(shards).unwrap();
    }
    client.batch_execute("SELECT rl_undistribute()").unwrap();
    let _ = notices.try_iter().count();

    client.batch_execute("SET citus.shard_replication_factor = 1").unwrap();
    let in_memory = "SELECT rl_define('m', rl_token_bucket(1, '1 day', store => 'memory'))";
    client.batch_execute(in_memory).unwrap();
    client.batch_execute("SET client_min_messages = log").unwrap();
    client.batch_execute("SELECT rl_distribute(4)").unwrap();
    let told: Vec<String> = notices.try_iter().collect();
    assert_eq!(told, ["limits in memory still count on each node separately"]);
    assert_eq!(one(&mut client, "SELECT current_setting('client_min_messages')"), "log");
    assert_eq!(one(&mut client, "SELECT remaining < 20 FROM rl_check('api', 'before')"), "true");
}

/// Returns how many rows of 20 authors can be inserted, with as many keys, and the SQLSTATE of what can't.
fn inserts(client: &mut Client, table: &str, author: &str) -> (usize, Option<String>) {
    let mut failed = Vec::new();
    for n in 0..20 {
        let sql = format!("INSERT INTO {table} (id, author) VALUES ({n}, '{author} {n}')");
        failed.extend(client.batch_execute(&sql).err());
    }
    let code = failed.first().map(|error| error.code().unwrap().code().to_owned());
    (20 - failed.len(), code)
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_trigger_needs_the_rows_of_its_table_beside_the_limits() {
    let cluster = Cluster::distributed();
    let (mut client, notices) = cluster.nodes[0].client_with_notices();
    let mut worker = cluster.nodes[1].client();
    run(
        &mut client,
        &[
            DEFINE,
            "CREATE TABLE messages (id int, author text COLLATE \"C\")",
            "SELECT create_distributed_table('messages', 'id', colocate_with => 'none')",
            "SET citus.enable_unsafe_triggers = on",
            "CREATE TRIGGER limited BEFORE INSERT ON messages
             FOR EACH ROW EXECUTE FUNCTION rl_trigger('api', 'key=author')",
        ],
    );
    let (passed, error) = inserts(&mut worker, "messages", "apart");
    assert!((1..20).contains(&passed), "{passed}");
    assert_eq!(error.as_deref(), Some("XX000"));
    let told = |client: &mut Client, sql: &str| {
        let _ = notices.try_iter().count();
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        notices.try_iter().collect::<Vec<String>>()
    };
    let already = "rateLimits is already distributed, in 8 shards";
    let apart =
        "rl_trigger fails on tables that are not co-located with rateLimits: public.messages";
    assert_eq!(told(&mut client, "SELECT rl_distribute()"), [already, apart]);
    let beside = "SELECT alter_distributed_table('messages', distribution_column => 'author',
                                                 colocate_with => 'ratelimits')";
    client.batch_execute(beside).unwrap();
    assert_eq!(told(&mut client, "SELECT rl_distribute(colocate_with => 'messages')"), [already]);
    assert_eq!(inserts(&mut worker, "messages", "beside"), (20, None));

    // Taken back and distributed again, they are co-located only where that is said.
    let alone = "the rate limits are on this node alone, with its grants; the other nodes no longer have any";
    let were =
        "rl_trigger now fails on the tables that were co-located with rateLimits: public.messages";
    assert_eq!(told(&mut client, "SELECT rl_undistribute()"), [alone, were]);
    assert_eq!(inserts(&mut worker, "messages", "alone"), (0, Some("42704".to_owned())));
    assert_eq!(told(&mut client, "SELECT rl_distribute(3)"), [apart]);
    let colocate = "SELECT rl_distribute(colocate_with => 'messages')";
    assert_eq!(refused(&mut client, colocate), "55000");
    // Without an instant between, in one transaction.
    let again = format!("BEGIN; SELECT rl_undistribute(); {colocate}; COMMIT");
    assert_eq!(told(&mut client, &again), [alone]);
    assert_eq!(inserts(&mut worker, "messages", "again"), (20, None));
    let shards = "SELECT count(*) FROM pg_dist_shard WHERE logicalrelid = 'ratelimits'::regclass";
    assert_eq!(one(&mut client, shards), "8");
    assert_eq!(
        one(&mut client, "SELECT 20 - remaining < 1.5 FROM rl_check('api', 'beside 7')"),
        "true"
    );
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn what_is_another_on_another_node() {
    let cluster = Cluster::distributed();
    above_read_committed(&cluster);
    resets_in_memory(&cluster);
}

/// A transaction keeps what it first saw of another node, and the other's rows are then not its to change.
fn above_read_committed(cluster: &Cluster) {
    cluster.coordinator().batch_execute(DEFINE).unwrap();
    let mut other = cluster.nodes[2].client();
    let key = key_on(cluster, 1);
    let left = format!("SELECT round(remaining) FROM rl_check('api', '{key}')");
    other.batch_execute(&take(&key)).unwrap();
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        for (node, client) in cluster.clients().iter_mut().enumerate() {
            client.batch_execute(&format!("BEGIN ISOLATION LEVEL {isolation}")).unwrap();
            let before: u32 = one(client, &left).parse().unwrap();
            other.batch_execute(&take(&key)).unwrap();
            let own = node == 1;
            assert_eq!(
                one(client, &left),
                (before - u32::from(own)).to_string(),
                "{isolation} at {node}"
            );
            if own {
                assert_eq!(one(client, &take(&key)), "true");
            } else {
                assert_eq!(refused(client, &take(&key)), "40001");
            }
            client.batch_execute("ROLLBACK").unwrap();
        }
    }
}

fn resets_in_memory(cluster: &Cluster) {
    let define = "SELECT rl_define('m', rl_token_bucket(1, '1000 days', store => 'memory'))";
    let mut clients = cluster.clients();
    clients[0].batch_execute(define).unwrap();
    let pass = |client: &mut Client| one(client, "SELECT ok FROM rl_limit('m', 'a')") == "true";
    for reset in ["rl_reset('m', 'a')", "rl_reset_keys('m')"] {
        for client in &mut clients {
            client.batch_execute("SELECT rl_reset('m', 'a')").unwrap();
            assert_eq!([pass(client), pass(client)], [true, false]);
        }
        clients[1].batch_execute(&format!("SELECT {reset}")).unwrap();
        let passes: Vec<bool> = clients.iter_mut().map(pass).collect();
        assert_eq!(passes, [false, true, false], "{reset}");
        let everywhere = format!("SELECT run_command_on_all_nodes($$SELECT {reset}$$)");
        clients[2].batch_execute(&everywhere).unwrap();
        let passes: Vec<bool> = clients.iter_mut().map(pass).collect();
        assert_eq!(passes, [true; 3], "{reset}");
    }
}

/// The copies of the definitions on the last node, and its calls, while it is a node and when it is none.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_disabled_node_counts_by_the_definitions_that_it_had() {
    let mut cluster = Cluster::new();
    let mut client = cluster.coordinator();
    cluster.add_node();
    let last = cluster.name(3).to_owned();
    let call = |function: &str| format!("SELECT {function}('{last}', 5432)");
    run(
        &mut client,
        &[
            &format!("SELECT citus_set_node_property('{last}', 5432, 'shouldhaveshards', false)"),
            "SELECT rl_distribute(4)",
            DEFINE,
        ],
    );
    let mut there = cluster.nodes[3].client();
    let capacity = |client: &mut Client| one(client, "SELECT capacity FROM rl_limit('api', 'a')");
    let blocked = "SELECT NOT ok FROM rl_check('api', 'b')";
    let define =
        |capacity| format!("SELECT rl_define('api', rl_token_bucket({capacity}, '1000 days'))");
    assert_eq!(capacity(&mut there), "20");

    // Citus disables no node that has shards; without the last argument it first refuses the node with the first name.
    let disable =
        |node: &str| format!("SELECT citus_disable_node('{node}', 5432, synchronous => true)");
    let with_shards = disable(cluster.name(1));
    assert_eq!(refused(&mut client, &with_shards), "XX000");
    client.batch_execute(&disable(&last)).unwrap();
    client.batch_execute(&define(30)).unwrap();
    client.batch_execute("SELECT rl_block('api', 'b', '1 hour')").unwrap();
    assert_eq!([capacity(&mut client), capacity(&mut there)], ["30", "20"]);
    assert_eq!([one(&mut client, blocked), one(&mut there, blocked)], ["true", "false"]);
    client.batch_execute(&call("citus_activate_node")).unwrap();
    assert_eq!([capacity(&mut there), one(&mut there, blocked)], ["30", "true"]);

    // One that is removed while it is reached has no copy any more, and asks the others.
    client.batch_execute("SELECT replicate_reference_tables('block_writes')").unwrap();
    client.batch_execute(&call("citus_remove_node")).unwrap();
    client.batch_execute(&define(40)).unwrap();
    assert_eq!([capacity(&mut client), capacity(&mut there)], ["40", "40"]);
}

/// Shards move by logical replication, if they are to be written meanwhile.
fn without_logical_wal(cluster: &Cluster) {
    for node in &cluster.nodes {
        node.client().batch_execute("ALTER SYSTEM SET wal_level = replica").unwrap();
        node.restart();
    }
    let mut client = cluster.coordinator();
    run(&mut client, &[DEFINE, &take("a")]);
    let shard = one(
        &mut client,
        "SELECT shardid FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) JOIN pg_dist_node USING (groupid)
         WHERE logicalrelid = 'ratelimits'::regclass AND groupid = 1 LIMIT 1",
    );
    let (from, to) = (cluster.name(1), cluster.name(2));
    let moves = |mode: &str| {
        format!(
            "SELECT citus_move_shard_placement({shard}, '{from}', 5432, '{to}', 5432, '{mode}')"
        )
    };
    for mode in ["auto", "force_logical"] {
        let error = client.batch_execute(&moves(mode)).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "XX000");
        assert!(error.message().contains("wal_level >= logical"), "{error:?}");
    }
    client.batch_execute(&moves("block_writes")).unwrap();
    assert_eq!(refused(&mut client, "SELECT rebalance_table_shards()"), "XX000");
    client
        .batch_execute("SELECT rebalance_table_shards(shard_transfer_mode => 'block_writes')")
        .unwrap();
    assert_eq!(one(&mut client, "SELECT 20 - remaining < 1.5 FROM rl_check('api', 'a')"), "true");
}

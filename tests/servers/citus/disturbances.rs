//! The tally of sessions on all nodes while a cluster is disturbed. What calls reported is used, and nothing beyond
//! what they reported or is in doubt; no limit gives more than it has. Each case prints its line of the table in
//! docs/citus.md, whose figures are those of TIMES=10.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use ratelimit_tests::is_long;

use crate::cluster::Cluster;
use crate::moves::{change, outlast_transactions};
use crate::one;
use crate::own::Server;
use crate::tally::{Shared, set_up, set_up_node};

/// What a disturbance has to do with.
struct Scene<'a, 'n> {
    cluster: &'a Cluster,
    /// A server that is no node yet.
    spare: &'n Server,
    shared: &'a Shared<'n>,
    /// When it ends.
    ends: Instant,
}

impl Scene<'_, '_> {
    fn goes_on(&self) -> bool {
        Instant::now() < self.ends
    }

    fn workers(&self) -> &[Server] {
        &self.cluster.nodes[1..]
    }

    /// Runs statements on the coordinator; prints those that fail.
    fn tries(&self, client: &mut Client, sql: &str) -> bool {
        client.batch_execute(sql).map_err(|error| println!("  {sql}: {error:?}")).is_ok()
    }
}

struct Case {
    what: &'static str,
    /// The number of workers that it runs with; 0: only where tests are long. Then it runs with two and three.
    usually: usize,
    disturb: fn(&Scene),
}

const fn case(what: &'static str, usually: usize, disturb: fn(&Scene)) -> Case {
    Case { what, usually, disturb }
}

const TIMEOUT: &str = "`statement_timeout` of 2 to 100 ms";

const CASES: [Case; 14] = [
    case("nothing", 0, |scene| pause(scene.ends - Instant::now())),
    case("queries canceled", 3, |scene| signal(scene, "pg_cancel_backend", 5)),
    case("sessions terminated", 2, |scene| signal(scene, "pg_terminate_backend", 50)),
    case(TIMEOUT, 3, |scene| pause(scene.ends - Instant::now())),
    case("a worker killed", 2, |scene| kill(scene, scene.workers())),
    case("the coordinator killed", 0, |scene| kill(scene, &scene.cluster.nodes[..1])),
    case("any node killed, prepared transactions recovered", 3, kill_any),
    case("a worker restarted", 0, restart),
    case("one process killed, so that its node recovers", 3, kill_process),
    case("shards moved, split and isolated", 3, |scene| change_shards(scene, false)),
    case("rebalanced", 2, |scene| change_shards(scene, true)),
    case("`rl_prune`, and `rl_reset_keys` of another limit", 3, prune),
    case("a worker drained, disabled and activated", 0, disable),
    case("a node added, and rebalanced", 3, add),
];

fn pause(time: Duration) {
    thread::sleep(time);
}

fn milliseconds(range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(range))
}

/// Calls a function for a process of clients or nodes, on all nodes in turn.
fn signal(scene: &Scene, function: &str, every: u64) {
    let sql = format!(
        "SELECT {function}(pid) FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'
         ORDER BY random() LIMIT 1"
    );
    let mut clients = scene.cluster.clients();
    let mut signaled = 0;
    while scene.goes_on() {
        for client in &mut clients {
            signaled += client.query(&sql, &[]).unwrap().len();
            pause(Duration::from_millis(every));
        }
    }
    assert!(signaled > 0);
}

fn any(nodes: &[Server]) -> &Server {
    &nodes[fastrand::usize(0..nodes.len())]
}

/// Kills one of these, and starts it again.
fn kill(scene: &Scene, nodes: &[Server]) {
    loop {
        pause(milliseconds(300..1000));
        let node = any(nodes);
        node.kill();
        pause(milliseconds(0..500));
        node.restart();
        if !scene.goes_on() {
            return;
        }
    }
}

/// Kills nodes soon after they have started, and ends what they have prepared meanwhile.
fn kill_any(scene: &Scene) {
    loop {
        pause(milliseconds(100..500));
        let node = any(&scene.cluster.nodes);
        node.kill();
        for other in &scene.cluster.nodes {
            if let Ok(mut client) = other.connect("postgres") {
                let _ = client.batch_execute("SELECT recover_prepared_transactions()");
            }
        }
        node.restart();
        for node in &scene.cluster.nodes {
            let _ = node.client().batch_execute("SELECT recover_prepared_transactions()");
        }
        if !scene.goes_on() {
            return;
        }
    }
}

fn restart(scene: &Scene) {
    loop {
        pause(milliseconds(100..1000));
        any(scene.workers()).restart();
        if !scene.goes_on() {
            return;
        }
    }
}

/// As the kernel does where memory is short: the server ends all other sessions, and recovers.
fn kill_process(scene: &Scene) {
    let busy = "SELECT coalesce((SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
                                 AND pid <> pg_backend_pid() AND state <> 'idle' ORDER BY random() LIMIT 1), 0)";
    let mut killed = 0;
    while scene.goes_on() || killed == 0 {
        pause(milliseconds(100..800));
        let node = any(&scene.cluster.nodes);
        let process = one(&mut node.client(), busy);
        if process != "0" {
            // It may have ended already.
            let kill = format!("kill -KILL {process} 2>/dev/null && echo killed || true");
            killed += u32::from(node.exec(&kill) == "killed");
        }
    }
}

fn change_shards(scene: &Scene, rebalances: bool) {
    let mut client = scene.cluster.coordinator();
    let mut done = BTreeMap::<_, u32>::new();
    let hows = [
        ["move", "block_writes"],
        ["move", "force_logical"],
        ["split", "block_writes"],
        ["isolate", "block_writes"],
    ];
    for how in hows.into_iter().cycle() {
        // What the last one left where the shard was may still be in use by a reader.
        scene.tries(&mut client, "CALL citus_cleanup_orphaned_resources()");
        if rebalances {
            let mode = how[1];
            for _ in 0..3 {
                let sql = change(scene.cluster, &mut client, ["move", mode]);
                scene.tries(&mut client, &sql);
            }
            let sql = format!("SELECT rebalance_table_shards(shard_transfer_mode => '{mode}')");
            *done.entry(["rebalance", mode]).or_default() +=
                u32::from(scene.tries(&mut client, &sql));
        } else {
            let sql = change(scene.cluster, &mut client, how);
            *done.entry(how).or_default() += u32::from(scene.tries(&mut client, &sql));
            if how[0] != "move" {
                outlast_transactions(scene.cluster);
            }
        }
        // Takes of several keys and a rebalance may be a deadlock, whose victim is either.
        if !scene.goes_on() && done.values().any(|done| *done > 0) {
            break;
        }
    }
    println!("  {done:?}");
}

/// On all nodes.
fn prune(scene: &Scene) {
    let mut clients = scene.cluster.clients();
    let mut pruned = 0;
    for client in &mut clients {
        client.batch_execute("SELECT rl_define('scrap', rl_token_bucket(10, '1 day'))").unwrap();
    }
    while scene.goes_on() || pruned == 0 {
        for client in &mut clients {
            let fill =
                "SELECT count(*) FROM generate_series(1, 20) n, rl_limit('scrap', 'scrap ' || n)";
            for sql in ["SELECT rl_prune()", fill, "SELECT rl_reset_keys('scrap')"] {
                match client.query_one(sql, &[]) {
                    Ok(row) if sql.contains("prune") => pruned += row.get::<_, i64>(0),
                    Ok(_) => {}
                    Err(error) => println!("  {sql}: {error:?}"),
                }
            }
        }
    }
    println!("  {pruned} pruned");
}

/// Citus disables no node that has shards.
fn disable(scene: &Scene) {
    let mut client = scene.cluster.coordinator();
    let node = format!("'{}', 5432", any(scene.workers()).folder());
    loop {
        let done = [
            format!("SELECT citus_drain_node({node}, 'block_writes')"),
            format!("SELECT citus_disable_node({node}, synchronous => true)"),
            format!("SELECT citus_activate_node({node})"),
            format!("SELECT citus_set_node_property({node}, 'shouldhaveshards', true)"),
            "SELECT rebalance_table_shards(shard_transfer_mode => 'block_writes')".into(),
        ];
        for sql in done {
            scene.tries(&mut client, "CALL citus_cleanup_orphaned_resources()");
            println!("  {} of {sql}", scene.tries(&mut client, &sql));
            pause(milliseconds(0..300));
        }
        if !scene.goes_on() {
            return;
        }
    }
}

/// The new node calls, too.
fn add(scene: &Scene) {
    let mut client = scene.cluster.coordinator();
    let third = (scene.ends - Instant::now()) / 3;
    pause(third);
    let add = format!("SELECT citus_add_node('{}', 5432)", scene.spare.folder());
    client.batch_execute(&add).unwrap();
    set_up_node(scene.spare);
    scene.shared.nodes.lock().unwrap().push(scene.spare);
    pause(third);
    let rebalance = "SELECT rebalance_table_shards(shard_transfer_mode => 'block_writes')";
    // A deadlock of it and takes of several keys may have either as its victim.
    while !scene.tries(&mut client, rebalance) {}
    pause(third);
}

/// Runs a case, and returns what is wrong.
fn run(cluster: &Cluster, spare: &Server, number: usize, case: &Case) -> Vec<String> {
    let prefix = format!("case-{number}");
    let shared = Shared::new(&prefix, cluster.nodes.iter().collect(), case.what == TIMEOUT);
    let mut tally = shared.beside(|| {
        let ends = Instant::now() + Duration::from_secs(if is_long() { 20 } else { 1 });
        (case.disturb)(&Scene { cluster, spare, shared: &shared, ends });
    });
    let nodes = shared.nodes.lock().unwrap().clone();
    let took = Instant::now();
    tally.check(&nodes, &prefix);
    shared.judge();
    println!("  checked in {:?}", took.elapsed());
    let mut errors = BTreeSet::new();
    for ((code, call), (count, message)) in &tally.errors {
        println!("  {code}, {count} times, {call}: {message}");
        errors.insert(&**code);
    }
    let errors = Vec::from_iter(errors).join(", ");
    println!(
        "| {} | {} | {} | {} | {} | {} | {errors} |",
        case.what,
        cluster.nodes.len() - 1,
        tally.told,
        tally.in_doubt,
        tally.lost,
        tally.over
    );
    assert!(tally.told > 50, "{} told", tally.told);
    tally.wrong.iter().map(|wrong| format!("{}: {wrong}", case.what)).collect()
}

fn all(workers: usize) {
    let cluster = Cluster::distributed_over(workers);
    let spare = Cluster::spare();
    set_up(&cluster);
    let runs = |case: &Case| is_long() || case.usually == workers;
    let cases = CASES.iter().enumerate().filter(|(_, case)| runs(case));
    let wrong: Vec<_> =
        cases.flat_map(|(number, case)| run(&cluster, &spare, number, case)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn nothing_is_lost_or_over_while_two_workers_are_disturbed() {
    all(2);
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn nothing_is_lost_or_over_while_three_workers_are_disturbed() {
    all(3);
}

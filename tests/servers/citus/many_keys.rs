//! rl_prune and rl_reset_keys where they have ten thousand keys: what they do, what they leave, for whom they wait, and
//! how many statements they send to other nodes: some for each shard of Citus, not for each key.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::cluster::{Cluster, Counted};
use crate::one;

/// The statements that may be sent for ten thousand keys and each of the eight shards, with BEGIN, PREPARE and COMMIT.
const STATEMENTS: usize = 15 * 8;

/// A limit with many keys, all in the state of one that was made by calls.
struct Filled {
    name: &'static str,
    /// Empty: by a config in the call that is not defined.
    config: &'static str,
    /// The call that makes a key.
    call: &'static str,
    /// Whether the calls were made years ago.
    old: bool,
    keys: usize,
    /// Whether rl_prune deletes them: always, where undefined names are deleted, never.
    pruned: Pruned,
}

#[derive(Clone, Copy, PartialEq)]
enum Pruned {
    Always,
    Undefined,
    Never,
}

const BUCKET: &str = "rl_token_bucket(100, '1000 days')";
const TAKE: &str = "SELECT rl_limit('NAME', 'made', 10)";
const TAKES: &str = "SELECT count(*) FROM generate_series(1, 12) n, rl_limit('NAME', substr('made', 1, 4 + 0 * n), 5)";
const UNDEFINED: &str =
    "SELECT rl_limit('NAME', 'made', config => rl_token_bucket(100, '1 minute'))";

/// About ten thousand.
const FILLED: [Filled; 11] = {
    use Pruned::{Always, Never, Undefined};
    let filled =
        Filled { name: "", config: BUCKET, call: TAKE, old: false, keys: 200, pruned: Never };
    [
        Filled {
            name: "full",
            call: "SELECT rl_limit('NAME', 'made'), rl_credit('NAME', 'made', 1)",
            keys: 8000,
            pruned: Always,
            ..filled
        },
        Filled { name: "busy", ..filled },
        Filled {
            name: "parts",
            config: "rl_token_bucket(100, '1 minute', shards => 4)",
            call: TAKES,
            old: true,
            pruned: Always,
            ..filled
        },
        Filled {
            name: "busy parts",
            config: "rl_token_bucket(100, '1000 days', shards => 4)",
            call: TAKES,
            ..filled
        },
        Filled {
            name: "window",
            config: "rl_fixed_window(100, '1 minute', start => '2020-01-01+00')",
            old: true,
            pruned: Always,
            ..filled
        },
        Filled {
            name: "log",
            config: "rl_sliding_log(100, '1 minute')",
            old: true,
            pruned: Always,
            ..filled
        },
        Filled {
            name: "held slots",
            config: "rl_concurrency(100, '1 day')",
            call: "SELECT rl_acquire('NAME', 'made', 3)",
            ..filled
        },
        Filled {
            name: "lapsed slots",
            config: "rl_concurrency(100, '1 day')",
            call: "SELECT rl_acquire('NAME', 'made', 3)",
            old: true,
            pruned: Always,
            ..filled
        },
        Filled {
            name: "undefined",
            config: "",
            call: UNDEFINED,
            old: true,
            pruned: Undefined,
            ..filled
        },
        Filled { name: "undefined, in use", config: "", call: UNDEFINED, ..filled },
        // Defined when it has rows.
        Filled {
            name: "exempt",
            config: "",
            call: UNDEFINED,
            old: true,
            pruned: Undefined,
            ..filled
        },
    ]
};

/// Makes the keys of a limit: "made", and copies of its rows under "key 1", "key 2" and so on.
fn fill(client: &mut Client, filled: &Filled) {
    let Filled { name, config, call, old, keys, .. } = *filled;
    if !config.is_empty() {
        client.batch_execute(&format!("SELECT rl_define('{name}', {config})")).unwrap();
    }
    if old {
        client.batch_execute("SET ratelimit.clock = '2020-01-01 12:00+00'").unwrap();
    }
    client.batch_execute(&call.replace("NAME", name)).unwrap();
    client.batch_execute("RESET ratelimit.clock").unwrap();
    if name == "exempt" {
        client.batch_execute("SELECT rl_define('exempt', rl_unlimited())").unwrap();
    }
    let made = format!("SELECT r::text FROM ratelimits r WHERE name = '{name}' AND key = 'made'");
    let made = client.query(&made, &[]).unwrap();
    assert_eq!(made.len() > 1, config.contains("shards"), "{name}");
    for row in made {
        let row: String = row.get(0);
        let copy = format!(
            "INSERT INTO ratelimits SELECT '{name}', 'key ' || n, (made).shard, (made).kind, (made).value, (made).ts, (made).added,
             (made).prior, (made).log, (made).leases, (made).holds_due FROM generate_series(1, {keys} - 1) n, (SELECT $${row}$$::ratelimits) t (made)"
        );
        client.batch_execute(&copy).unwrap();
    }
}

/// A cluster that has all of them.
fn cluster() -> Cluster {
    let cluster = Cluster::distributed();
    let mut client = cluster.coordinator();
    FILLED.iter().for_each(|filled| fill(&mut client, filled));
    cluster
}

/// Returns the number of keys that each name has.
fn keys(client: &mut Client) -> BTreeMap<String, usize> {
    let sql = "SELECT name, count(DISTINCT key) FROM ratelimits GROUP BY name";
    let rows = client.query(sql, &[]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1) as usize)).collect()
}

/// Returns the keys that there were, without those that were pruned.
fn keys_without(pruned: &[Pruned]) -> BTreeMap<String, usize> {
    let left = FILLED.iter().filter(|filled| !pruned.contains(&filled.pruned));
    left.map(|filled| (filled.name.to_owned(), filled.keys)).collect()
}

/// Takes from keys of "full" on each node, one token each, while `work` runs; returns how many of each key.
fn beside_takes<T>(cluster: &Cluster, work: impl FnOnce() -> T) -> (T, BTreeMap<String, i64>) {
    let stop = AtomicBool::new(false);
    let takes = |mut client: Client| {
        let mut taken = BTreeMap::<_, i64>::new();
        while !stop.load(Ordering::Relaxed) {
            // "key 1" is held.
            let key = format!("key {}", fastrand::u32(2..8000));
            let ok = "SELECT ok FROM rl_limit('full', $1)";
            if client.query_one(ok, &[&key]).unwrap().get(0) {
                *taken.entry(key).or_default() += 1;
            }
        }
        taken
    };
    thread::scope(|scope| {
        let clients = cluster.clients().into_iter();
        let sessions: Vec<_> = clients.map(|client| scope.spawn(|| takes(client))).collect();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        let mut taken = BTreeMap::<_, i64>::new();
        for session in sessions {
            for (key, count) in session.join().unwrap() {
                *taken.entry(key).or_default() += count;
            }
        }
        (result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), taken)
    })
}

/// Returns what the rows of "full" lack.
fn taken_of_full(client: &mut Client) -> BTreeMap<String, i64> {
    let sql = "SELECT key, round(100 - value)::bigint FROM ratelimits WHERE name = 'full' AND value < 99.5";
    client.query(sql, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// On the coordinator and, where undefined names go as well, on a worker.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn many_keys_are_pruned_by_few_statements() {
    let cluster = cluster();
    let mut client = cluster.coordinator();
    assert_eq!(keys(&mut client), keys_without(&[]));
    let mut counted = Counted::on(&cluster, 0);

    // What is rolled back has pruned nothing.
    counted.client.batch_execute("BEGIN").unwrap();
    let (deleted, sent) = counted.call("SELECT rl_prune(100000)");
    counted.client.batch_execute("ROLLBACK").unwrap();
    assert_eq!(keys(&mut client), keys_without(&[]));
    let idle: usize = FILLED
        .iter()
        .filter(|filled| filled.pruned == Pruned::Always)
        .map(|filled| filled.keys)
        .sum();
    // With all rows of the limit with shards.
    let rows = "SELECT count(*) FROM ratelimits WHERE name = 'parts'";
    let rows: usize = one(&mut client, rows).parse().unwrap();
    assert_eq!(deleted, (idle - 200 + rows).to_string());
    assert!(sent <= STATEMENTS, "{sent} statements");

    // A row that another has is left, without a wait for him. Others take meanwhile.
    let mut held = cluster.nodes[2].client();
    held.batch_execute("BEGIN; SELECT rl_limit('full', 'key 1')").unwrap();
    let (sent, mut taken) = beside_takes(&cluster, || {
        counted.client.batch_execute("SET statement_timeout = '5min'").unwrap();
        counted.call("SELECT rl_prune(100000)").1
    });
    held.batch_execute("COMMIT").unwrap();
    taken.insert("key 1".into(), 1);
    assert_eq!(taken_of_full(&mut client), taken);
    assert!(sent <= STATEMENTS, "{sent} statements");
    // What was locked at that time goes now.
    client.batch_execute("SELECT rl_prune(100000)").unwrap();
    let mut left = keys_without(&[Pruned::Always]);
    left.insert("full".into(), taken.len());
    assert_eq!(keys(&mut client), left);
    assert_eq!(taken_of_full(&mut client), taken);

    let mut counted = Counted::on(&cluster, 1);
    let (deleted, sent) = counted.call("SELECT rl_prune(100000, undefined_idle => '1 day')");
    assert_eq!(deleted, "400");
    assert!(sent <= STATEMENTS, "{sent} statements");
    left.retain(|name, _| name != "undefined" && name != "exempt");
    assert_eq!(keys(&mut client), left);
    assert_eq!(counted.call("SELECT rl_prune(100000)").0, "0");
}

/// Batches end where they should, and together they have all.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_batch_of_prune_has_its_size() {
    let cluster = Cluster::distributed();
    let mut client = cluster.coordinator();
    for filled in FILLED.iter().filter(|filled| filled.name != "full") {
        fill(&mut client, filled);
    }
    let mut deleted = Vec::new();
    loop {
        let batch: usize = one(&mut client, "SELECT rl_prune(150)").parse().unwrap();
        if batch == 0 {
            break;
        }
        deleted.push(batch);
    }
    // At most a key's rows beyond.
    assert!(deleted.iter().all(|&batch| batch <= 150 + 3), "{deleted:?}");
    let mut left = keys_without(&[Pruned::Always]);
    left.remove("full");
    assert_eq!(keys(&mut client), left);
}

/// From a worker: of one row a key, of several, and of slots.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn many_keys_are_reset_by_few_statements() {
    let cluster = cluster();
    let mut client = cluster.coordinator();
    let taken = |client: &mut Client, name: &str| {
        let sql = format!("SELECT count(*) FROM rl_status('{name}') WHERE remaining < capacity");
        one(client, &sql)
    };
    // All of them differ from a full one.
    let take = "UPDATE ratelimits SET value = 50 WHERE name = 'full'";
    client.batch_execute(take).unwrap();
    let mut counted = Counted::on(&cluster, 1);
    for name in ["full", "busy parts", "held slots"] {
        let keys = FILLED.iter().find(|filled| filled.name == name).unwrap().keys.to_string();
        assert_eq!(taken(&mut client, name), keys);
        let reset = format!("SELECT rl_reset_keys('{name}')");
        counted.client.batch_execute("BEGIN").unwrap();
        let (answer, sent) = counted.call(&reset);
        counted.client.batch_execute("ROLLBACK").unwrap();
        assert_eq!((&answer, taken(&mut client, name)), (&keys, keys.clone()), "{name}");
        assert!(sent <= STATEMENTS, "{name}: {sent} statements");

        // It waits for the session that has a row, and forgets that take, too.
        let mut held = cluster.nodes[2].client();
        let call = if name == "held slots" { "rl_acquire" } else { "rl_limit" };
        held.batch_execute(&format!("BEGIN; SELECT {call}('{name}', 'key 7')")).unwrap();
        let (answer, sent) = thread::scope(|scope| {
            let reset = scope.spawn(|| counted.call(&reset));
            wait_until_it_waits(&cluster, || reset.is_finished());
            held.batch_execute("COMMIT").unwrap();
            reset.join().unwrap()
        });
        assert_eq!((&answer, &*taken(&mut client, name)), (&keys, "0"), "{name}");
        assert!(sent <= STATEMENTS, "{name}: {sent} statements");
        assert_eq!(counted.call(&reset).0, "0");
        let refill = format!("SELECT remaining FROM rl_check('{name}', 'key 7')");
        assert_eq!(one(&mut client, &refill), "100");
    }
    // Those of others stay.
    let busy = FILLED.iter().find(|filled| filled.name == "busy").unwrap().keys.to_string();
    assert_eq!(taken(&mut client, "busy"), busy);
}

/// Polls until some process of a node waits for a transaction that does nothing now.
fn wait_until_it_waits(cluster: &Cluster, is_finished: impl Fn() -> bool) {
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity AS waits, pg_stat_activity AS holds
                 WHERE holds.pid = ANY (pg_blocking_pids(waits.pid)) AND holds.state = 'idle in transaction')";
    let (mut nodes, began) = (cluster.clients(), Instant::now());
    while !nodes.iter_mut().any(|node| one(node, waits) == "true") {
        assert!(!is_finished(), "it did not wait");
        assert!(began.elapsed() < Duration::from_secs(120), "it neither ends nor waits");
        thread::sleep(Duration::from_millis(5));
    }
}

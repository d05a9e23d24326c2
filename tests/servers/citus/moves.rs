//! Shards that move, are split or rebalanced between two workers, or among three, while calls are made on a node that
//! is neither source nor target. Such a node keeps what it knows of a placement, and a transaction that has read from
//! it its connection: what is written there after the move is lost.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::cluster::Cluster;
use crate::load::{DEFINE, DISTRIBUTE_NOTES, assert_exact, beside};
use crate::{assert_shells_are_empty, one, seconds};

/// The worker that makes the calls; the shard moves between the two others.
const THIRD: usize = 3;

/// A write during a move. NAME, KEY, FAR and LEASE stand for a limit and a key of its own, a key of another shard, and
/// a lease of the session.
struct Write {
    what: &'static str,
    /// Made before all, and committed.
    before: &'static str,
    /// Reads the placement.
    read: &'static str,
    /// The write after it.
    write: &'static str,
    /// What is there in the end.
    look: &'static str,
    expected: &'static str,
}

/// A take of 5 where 90 are left.
const TAKE: Write = Write {
    what: "rl_limit",
    before: "SELECT rl_define('NAME', rl_token_bucket(100, '1000 days')), rl_limit('NAME', 'KEY', 10)",
    read: "SELECT rl_check('NAME', 'KEY')",
    write: "SELECT rl_limit('NAME', 'KEY', 5)",
    look: "SELECT round(remaining) FROM rl_check('NAME', 'KEY')",
    expected: "85",
};

/// A lease of a second slot of ten.
const ACQUIRE: Write = Write {
    what: "rl_acquire",
    before: "SELECT rl_define('NAME', rl_concurrency(10, '1 hour')),
                    set_config('test.lease', (rl_acquire('NAME', 'KEY')).lease, false)",
    read: "SELECT rl_check('NAME', 'KEY')",
    write: "SELECT rl_acquire('NAME', 'KEY')",
    look: "SELECT round(remaining) FROM rl_check('NAME', 'KEY')",
    expected: "8",
};

/// What reads before a take, in the same transaction.
const READS: [Write; 8] = [
    Write { what: "rl_status", read: "SELECT rl_status('NAME')", ..TAKE },
    Write { what: "rl_status of a key", read: "SELECT rl_status('NAME', 'KEY')", ..TAKE },
    Write { what: "rl_value", read: "SELECT rl_value('NAME', 'KEY')", ..TAKE },
    Write {
        what: "rl_check_all",
        read: r#"SELECT rl_check_all('[{"name": "NAME", "key": "KEY"}, {"name": "NAME", "key": "FAR"}]')"#,
        ..TAKE
    },
    Write { what: "a denial", read: "SELECT rl_limit('NAME', 'KEY', 95)", ..TAKE },
    Write {
        what: "a denial of several",
        read: r#"SELECT rl_limit_all('[{"name": "NAME", "key": "KEY", "count": 95}]')"#,
        ..TAKE
    },
    Write {
        what: "rl_check, in a savepoint that is rolled back",
        read: "SAVEPOINT s; SELECT rl_check('NAME', 'KEY'); ROLLBACK TO s",
        ..TAKE
    },
    Write {
        what: "rl_limit, in a savepoint that is rolled back",
        read: "SAVEPOINT s; SELECT rl_limit('NAME', 'KEY'); ROLLBACK TO s",
        ..TAKE
    },
];

/// What writes.
const WRITES: [Write; 14] = [
    TAKE,
    Write {
        what: "rl_limit without a row",
        before: "SELECT rl_define('NAME', rl_token_bucket(100, '1000 days'))",
        expected: "95",
        ..TAKE
    },
    Write {
        what: "rl_limit with shards",
        before: "SELECT rl_define('NAME', rl_token_bucket(100, '1000 days', shards => 4)), rl_limit('NAME', 'KEY', 10)",
        ..TAKE
    },
    Write {
        what: "rl_limit_all",
        write: r#"SELECT rl_limit_all('[{"name": "NAME", "key": "FAR"}, {"name": "NAME", "key": "KEY", "count": 5}]')"#,
        ..TAKE
    },
    Write {
        what: "rl_credit",
        write: "SELECT rl_credit('NAME', 'KEY', 5)",
        expected: "95",
        ..TAKE
    },
    Write { what: "rl_reset", write: "SELECT rl_reset('NAME', 'KEY')", expected: "100", ..TAKE },
    Write { what: "rl_reset_keys", write: "SELECT rl_reset_keys('NAME')", expected: "100", ..TAKE },
    Write {
        what: "rl_prune",
        before:
            "SELECT rl_define('NAME', rl_token_bucket(100, '1000 days')), rl_limit('NAME', 'KEY'),
                        rl_credit('NAME', 'KEY', 1)",
        write: "SELECT rl_prune()",
        look: "SELECT count(*) FROM ratelimits WHERE name = 'NAME'",
        expected: "0",
        ..TAKE
    },
    ACQUIRE,
    Write {
        what: "rl_acquire without a row",
        before: "SELECT rl_define('NAME', rl_concurrency(10, '1 hour'))",
        expected: "9",
        ..ACQUIRE
    },
    Write { what: "rl_release", write: "SELECT rl_release(LEASE)", expected: "10", ..ACQUIRE },
    Write {
        what: "rl_extend",
        write: "SELECT rl_extend(LEASE, rl_concurrency(10, '3 hours'))",
        look: "SELECT count(*) FROM ratelimits WHERE name = 'NAME' AND timestamptz 'epoch' + leases[2] * interval '1 us'
               BETWEEN now() + '2 hours' AND now() + '4 hours'",
        expected: "1",
        ..ACQUIRE
    },
    Write {
        what: "rl_check and rl_limit",
        write: "SELECT rl_check('NAME', 'KEY'), rl_limit('NAME', 'KEY', 5)",
        ..TAKE
    },
    Write {
        what: "rl_limit in a function",
        write: "DO $$ DECLARE answer record; BEGIN answer := rl_limit('NAME', 'KEY', 5); END $$",
        ..TAKE
    },
];

/// A write, the session that makes it, and the names that it uses.
struct Session {
    write: &'static Write,
    client: Client,
    name: String,
    key: String,
    far: String,
}

impl Session {
    fn sql(&self, sql: &str) -> String {
        sql.replace("NAME", &self.name)
            .replace("KEY", &self.key)
            .replace("FAR", &self.far)
            .replace("LEASE", "current_setting('test.lease')")
    }

    /// Returns what is wrong, if anything is.
    fn looks_wrong(&self, client: &mut Client) -> Option<String> {
        let found = one(client, &self.sql(self.write.look));
        let Write { what, expected, .. } = *self.write;
        (found != expected).then(|| format!("{what}: {found}, not {expected}"))
    }
}

/// How a shard goes to the other of the two workers. SHARD, FROM and TO stand for it and their names.
const MOVES: [&str; 3] = [
    "citus_move_shard_placement(SHARD, 'FROM', 5432, 'TO', 5432, 'block_writes')",
    "citus_move_shard_placement(SHARD, 'FROM', 5432, 'TO', 5432, 'force_logical')",
    // The last one: the shard is others then.
    "citus_split_shard_by_split_points(SHARD, ARRAY['MIDDLE'], ARRAY[TO_ID, TO_ID], 'block_writes')",
];

/// A shard that is on one of the first two workers, and is to be moved to the other.
struct Shard {
    id: String,
    /// Distinguishes the limits of this move from those of others.
    round: &'static str,
    /// What moves it.
    sql: String,
}

impl Shard {
    fn find(cluster: &Cluster, round: &'static str, how: &str) -> Shard {
        let mut client = cluster.coordinator();
        let at = |node: usize| {
            format!(
                "pg_dist_shard JOIN pg_dist_placement USING (shardid) JOIN pg_dist_node USING (groupid)
                 WHERE logicalrelid = 'ratelimits'::regclass AND nodename = '{}'",
                cluster.name(node)
            )
        };
        let count = |client: &mut Client, node| {
            one(client, &format!("SELECT count(*) FROM {}", at(node))).parse::<u32>().unwrap()
        };
        let (from, to) = if count(&mut client, 1) > 0 { (1, 2) } else { (2, 1) };
        let id = one(&mut client, &format!("SELECT min(shardid) FROM {}", at(from)));
        let middle =
            "SELECT (shardminvalue::bigint + shardmaxvalue::bigint) / 2 FROM pg_dist_shard";
        let middle = one(&mut client, &format!("{middle} WHERE shardid = {id}"));
        let to_id = "SELECT nodeid FROM pg_dist_node WHERE nodename =";
        let to_id = one(&mut client, &format!("{to_id} '{}'", cluster.name(to)));
        let sql = how
            .replace("SHARD", &id)
            .replace("FROM", cluster.name(from))
            .replace("TO_ID", &to_id)
            .replace("TO", cluster.name(to))
            .replace("MIDDLE", &middle);
        Shard { id, round, sql: format!("SELECT {sql}") }
    }

    /// Keys of it, or of others.
    fn keys(&self, client: &mut Client, of_it: bool) -> Vec<String> {
        let sql = format!(
            "SELECT key FROM generate_series(1, 1000) n, LATERAL (SELECT 'key ' || n) t (key)
             WHERE (get_shard_id_for_distribution_column('ratelimits', key) = {}) = {of_it} ORDER BY n",
            self.id
        );
        client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// Sessions on the third worker, one for each write, with what each has before.
    fn sessions(
        &self,
        cluster: &Cluster,
        writes: impl Iterator<Item = &'static Write>,
    ) -> Vec<Session> {
        let mut coordinator = cluster.coordinator();
        let mut keys = self.keys(&mut coordinator, true).into_iter();
        let mut others = self.keys(&mut coordinator, false).into_iter();
        let session = |write: &'static Write| {
            let key = keys.next().unwrap();
            let mut session = Session {
                write,
                client: cluster.nodes[THIRD].client(),
                name: format!("{} {key}", self.round),
                key,
                far: others.next().unwrap(),
            };
            session.client.batch_execute("SET statement_timeout = '30s'").unwrap();
            let before = session.sql(write.before);
            session.client.batch_execute(&before).unwrap();
            session
        };
        writes.map(session).collect()
    }

    /// Ends the move, and says which writes are not there; looks from the coordinator and from the third worker.
    fn wrong(&self, cluster: &Cluster, sessions: &[Session]) -> Vec<String> {
        // What the move has left where the shard was.
        let mut coordinator = cluster.coordinator();
        coordinator.batch_execute("CALL citus_cleanup_orphaned_resources()").unwrap();
        let mut wrong = Vec::new();
        for client in [&mut coordinator, &mut cluster.nodes[THIRD].client()] {
            wrong = sessions.iter().filter_map(|session| session.looks_wrong(client)).collect();
            if !wrong.is_empty() {
                break;
            }
        }
        wrong.iter().map(|wrong| format!("{}: {wrong}", self.sql)).collect()
    }
}

/// Returns how many processes of a node wait for a transaction that does nothing now.
fn waiting(client: &mut Client) -> usize {
    let sql = "SELECT count(*) FROM pg_stat_activity AS waits
               WHERE EXISTS (SELECT FROM pg_stat_activity AS holds WHERE holds.state = 'idle in transaction'
                             AND holds.pid = ANY (pg_blocking_pids(waits.pid)))";
    one(client, sql).parse().unwrap()
}

/// Returns how many processes of a node wait for a lock.
fn locked_out(client: &mut Client) -> usize {
    one(client, "SELECT count(*) FROM pg_locks WHERE NOT granted").parse().unwrap()
}

/// Polls until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Transactions read a key, the shard moves, or waits for them, and they write: what they wrote is there. Where a write
/// ends with an error, its transaction is no more; which may, is for the caller.
fn read_then_write(cluster: &Cluster, round: &'static str, how: &str) -> Vec<String> {
    let shard = Shard::find(cluster, round, how);
    // A logical copy waits for a transaction that has written, whatever else it does.
    let waits =
        |write: &&Write| how.contains("force_logical") && write.what.contains("rl_limit, in");
    let reads = READS.iter().filter(|write| !waits(write));
    let mut sessions = shard.sessions(cluster, reads.chain(&WRITES));
    for session in &mut sessions {
        session.client.batch_execute("BEGIN").unwrap();
        let read = session.sql(session.write.read);
        session.client.batch_execute(&read).unwrap();
    }
    let mut wrong = thread::scope(|scope| {
        let moved = scope.spawn(|| cluster.coordinator().batch_execute(&shard.sql));
        let mut nodes = cluster.clients();
        until("the shard has moved, or waits", || {
            moved.is_finished() || nodes.iter_mut().any(|node| waiting(node) > 0)
        });
        println!("{}: {}", shard.sql, if moved.is_finished() { "moved" } else { "waits" });
        let mut wrong = Vec::new();
        for session in &mut sessions {
            let write = session.sql(session.write.write);
            for sql in [&*write, "COMMIT"] {
                if let Err(error) = session.client.batch_execute(sql) {
                    wrong.push(format!("{}: {sql}: {error:?}", session.write.what));
                    session.client.batch_execute("ROLLBACK").unwrap();
                    break;
                }
            }
        }
        moved.join().unwrap().unwrap();
        wrong
    });
    wrong.extend(shard.wrong(cluster, &sessions));
    wrong
}

/// Calls that begin when a move is to come before their first write, and after what they read first, if they can.
fn write_beside(cluster: &Cluster, round: &'static str, how: &str) -> Vec<String> {
    let shard = Shard::find(cluster, round, how);
    let mut sessions = shard.sessions(cluster, WRITES.iter());
    // Writes on this node need it, and so does the move.
    let mut gate = cluster.nodes[THIRD].client();
    let mut third = cluster.nodes[THIRD].client();
    let close = format!("BEGIN; SELECT lock_shard_metadata(7, ARRAY[{}])", shard.id);
    gate.batch_execute(&close).unwrap();
    let mut wrong = thread::scope(|scope| {
        let moved = scope.spawn(|| cluster.coordinator().batch_execute(&shard.sql));
        until("the move waits", || locked_out(&mut third) == 1);
        let writes: Vec<_> = sessions
            .iter_mut()
            .map(|session| {
                let sql = session.sql(session.write.write);
                scope
                    .spawn(move || session.client.batch_execute(&sql).map_err(|error| (sql, error)))
            })
            .collect();
        until("all calls wait", || {
            let ended = writes.iter().filter(|write| write.is_finished()).count();
            locked_out(&mut third) + ended > writes.len()
        });
        gate.batch_execute("ROLLBACK").unwrap();
        moved.join().unwrap().unwrap();
        let errors = writes.into_iter().filter_map(|write| write.join().unwrap().err());
        errors.map(|error| format!("{error:?}")).collect::<Vec<_>>()
    });
    wrong.extend(shard.wrong(cluster, &sessions));
    wrong
}

/// Once all of them were lost: the writes went to where the shard had been.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_third_worker_loses_nothing_that_it_writes_after_a_move() {
    let cluster = Cluster::distributed_over(THIRD);
    let mut wrong = Vec::new();
    for (how, [after, beside]) in MOVES.into_iter().zip([["a", "b"], ["c", "d"], ["e", "f"]]) {
        wrong.extend(read_then_write(&cluster, after, how));
        wrong.extend(write_beside(&cluster, beside, how));
    }
    assert!(wrong.is_empty(), "{} are not there: {wrong:#?}", wrong.len());
    assert_shells_are_empty(&cluster);
}

/// What may happen to a shard, and in what mode. A logical split is missing: late releases of PostgreSQL want Citus in
/// output_plugin_libraries for it, and earlier ones don't know that setting.
const CHANGES: [[&str; 2]; 4] = [
    ["move", "block_writes"],
    ["move", "force_logical"],
    ["split", "block_writes"],
    ["isolate", "block_writes"],
];

/// A statement that changes some shard so.
pub fn change(cluster: &Cluster, client: &mut Client, [what, mode]: [&str; 2]) -> String {
    let shard = client
        .query_one(
            "SELECT shardid, nodename, (shardminvalue::bigint + shardmaxvalue::bigint) / 2
             FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) JOIN pg_dist_node USING (groupid)
             WHERE logicalrelid = 'ratelimits'::regclass ORDER BY random() LIMIT 1",
            &[],
        )
        .unwrap();
    let (shard, from, middle): (i64, String, i64) = (shard.get(0), shard.get(1), shard.get(2));
    let others =
        (1..cluster.nodes.len()).map(|node| cluster.name(node)).filter(|name| *name != from);
    let others: Vec<_> = others.collect();
    let to = others[fastrand::usize(0..others.len())];
    let node = |name| format!("(SELECT nodeid FROM pg_dist_node WHERE nodename = '{name}')");
    let key = fastrand::u32(0..100);
    let call = match what {
        "move" => {
            format!("citus_move_shard_placement({shard}, '{from}', 5432, '{to}', 5432, '{mode}')")
        }
        "split" => format!(
            "citus_split_shard_by_split_points({shard}, ARRAY['{middle}'], ARRAY[{}, {}], '{mode}')",
            node(to),
            node(&from)
        ),
        _ => format!("isolate_tenant_to_new_shard('ratelimits', 'key {key}', 'CASCADE', '{mode}')"),
    };
    format!("SELECT {call}")
}

/// Waits until the transactions that are open on any node have ended: Citus names the lock of a shard by its number
/// among the shards, which a split changes, so the next move doesn't wait for a session that locked the shard before.
pub fn outlast_transactions(cluster: &Cluster) {
    let open = "SELECT string_agg(format('(%s, %L)', pid, xact_start), ', ') FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
    for client in &mut cluster.clients() {
        let before: Option<String> = client.query_one(open, &[]).unwrap().get(0);
        let Some(before) = before else { continue };
        let left =
            format!("SELECT count(*) FROM pg_stat_activity WHERE (pid, xact_start) IN ({before})");
        until("they end", || one(client, &left) == "0");
    }
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn nothing_is_lost_while_shards_move_among_three_workers() {
    let cluster = Cluster::distributed_over(THIRD);
    let mut client = cluster.coordinator();
    client.batch_execute(DEFINE).unwrap();
    client.batch_execute(DISTRIBUTE_NOTES).unwrap();
    let nodes: Vec<_> = cluster.nodes.iter().collect();
    let (done_to_shards, done) = beside(&nodes, || {
        let (began, mut done_to_shards) = (Instant::now(), BTreeMap::<_, u32>::new());
        for how in CHANGES.into_iter().cycle() {
            // What the last one left where the shard was may still be in use by a reader.
            client.batch_execute("CALL citus_cleanup_orphaned_resources()").unwrap();
            let sql = change(&cluster, &mut client, how);
            match client.batch_execute(&sql) {
                Ok(()) => *done_to_shards.entry(how).or_default() += 1,
                Err(error) => println!("{sql}: {error:?}"),
            }
            if how[0] != "move" {
                outlast_transactions(&cluster);
            }
            if began.elapsed() > seconds(8) {
                break;
            }
        }
        let rebalance = "SELECT rebalance_table_shards(shard_transfer_mode => 'block_writes')";
        println!("rebalance: {:?}", client.batch_execute(rebalance).err());
        done_to_shards
    });
    println!("{done_to_shards:?}; {} committed; errors: {:#?}", done.committed, done.errors);
    assert_exact(&mut client);
    done.judge();
    assert!(
        CHANGES[..2].iter().all(|how| done_to_shards.contains_key(how)) && done.committed > 100
    );
    assert_shells_are_empty(&cluster);
}

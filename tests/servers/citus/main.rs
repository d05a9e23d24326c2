//! The limits on several nodes, with Citus: a coordinator and two workers, each a server of the test's own.
//!
//! Run by `make test-citus`, on a PostgreSQL in which Citus is installed.

use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use postgres::error::SqlState;

use cluster::Cluster;
use load::{DEFINE, DISTRIBUTE_NOTES, assert_exact, beside};

mod answers;
mod clocks;
mod cluster;
mod contract;
mod disturbances;
mod errors;
mod load;
mod many_keys;
mod messages;
mod moves;
mod operation;
#[allow(dead_code, reason = "the soak tests do more to a server")]
#[path = "../soak/own.rs"]
mod own;
mod tally;
mod triggers;

/// The only column of the only row, as text.
fn one(client: &mut Client, sql: &str) -> String {
    let sql = format!("SELECT ({sql})::text");
    client.query_one(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

fn seconds(default: u64) -> Duration {
    Duration::from_secs(if ratelimit_tests::is_long() { 10 * default } else { default })
}

/// 150 calls on each of three nodes at once, for a limit of 100.
fn takes_of_450(cluster: &Cluster, sql: &str) -> usize {
    let calls = |mut client: Client| {
        let pass = |_: &usize| one(&mut client, sql) == "true";
        (0..150).filter(pass).count()
    };
    thread::scope(|scope| {
        let nodes: Vec<_> =
            cluster.clients().into_iter().map(|client| scope.spawn(|| calls(client))).collect();
        nodes.into_iter().map(|node| node.join().unwrap()).sum()
    })
}

fn assert_shells_are_empty(cluster: &Cluster) {
    for mut client in cluster.clients() {
        let bytes = "pg_relation_size('ratelimits') + pg_relation_size('rl_config')";
        assert_eq!(one(&mut client, &format!("SELECT {bytes}")), "0");
    }
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn three_nodes_together_take_what_the_limit_has() {
    let cluster = Cluster::distributed();
    let define = "SELECT rl_define('api', rl_token_bucket(100, '1000 days'))";
    cluster.coordinator().batch_execute(define).unwrap();
    assert_eq!(takes_of_450(&cluster, "SELECT ok FROM rl_limit('api', 'hot')"), 100);
    assert_shells_are_empty(&cluster);
}

/// Without rl_distribute, which a user may not know of. Once the heap store took from the empty shell of
/// each worker: 300 passed.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_table_that_was_distributed_by_hand_is_exact_too() {
    let cluster = Cluster::new();
    let by_hand = "SELECT create_distributed_table('ratelimits', 'key')";
    cluster.coordinator().batch_execute(by_hand).unwrap();
    let sql = "SELECT ok FROM rl_limit('api', 'hot', config => rl_token_bucket(100, '1000 days'))";
    assert_eq!(takes_of_450(&cluster, sql), 100);
    assert_shells_are_empty(&cluster);
    // Also with copies, by a column that is no key, and as a reference table.
    for (again, config) in [
        (
            "SET citus.shard_replication_factor = 2; SELECT create_distributed_table('ratelimits', 'key')",
            "copies",
        ),
        ("SELECT create_distributed_table('ratelimits', 'name', colocate_with => 'none')", "names"),
        (
            "SELECT create_distributed_table('ratelimits', 'shard', colocate_with => 'none')",
            "numbers",
        ),
        ("SELECT create_reference_table('ratelimits')", "reference"),
    ] {
        let mut client = cluster.coordinator();
        let back = "SELECT rl_undistribute(); TRUNCATE ratelimits";
        client.batch_execute(back).unwrap_or_else(|error| panic!("{config}: {error:?}"));
        for statement in again.split("; ") {
            client.batch_execute(statement).unwrap_or_else(|error| panic!("{config}: {error:?}"));
        }
        let sql = sql.replace("hot", config);
        assert_eq!(takes_of_450(&cluster, &sql), 100, "{config}");
    }
    let back = "SELECT rl_undistribute()";
    cluster.coordinator().batch_execute(back).unwrap();
    cluster.coordinator().batch_execute(by_hand).unwrap();
    let mut worker = cluster.nodes[1].client();
    worker.batch_execute("SET ratelimit.access = heap").unwrap();
    let refused = worker.batch_execute(sql).unwrap_err();
    let refused = refused.as_db_error().unwrap();
    assert_eq!(refused.code().code(), "0A000");
    assert_eq!(refused.detail(), Some("The table is distributed by Citus."));
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn every_node_knows_a_definition_at_its_next_call() {
    let mut cluster = Cluster::distributed();
    let config = |capacity: usize| format!("rl_token_bucket({capacity}, '1000 days')");
    let mut clients = cluster.clients();
    // Each node in turn defines, in sessions that remember what was before.
    let everywhere = |clients: &mut Vec<Client>| {
        for by in 0..clients.len() {
            let mut change = |sql: &str, capacity: usize| {
                clients[by].batch_execute(sql).unwrap();
                for (n, client) in clients.iter_mut().enumerate() {
                    for key in ["ann", "bob"] {
                        let sql = format!("SELECT capacity FROM rl_check('api', '{key}')");
                        let capacity = if key == "ann" { capacity.max(1000) } else { capacity };
                        assert_eq!(one(client, &sql), capacity.to_string(), "{by}, {n}: {sql}");
                    }
                }
            };
            change(
                &format!(
                    "SELECT rl_define('api', {}), rl_define('api', {}, 'ann')",
                    config(100 + by),
                    config(1000)
                ),
                100 + by,
            );
            change(&format!("SELECT rl_define('api', {})", config(200 + by)), 200 + by);
            change(
                &format!("UPDATE rl_config SET config = {} WHERE key = ''", config(300 + by)),
                300 + by,
            );
            change(
                &format!(
                    "SELECT rl_undefine('api', 'ann'), rl_define('api', {})",
                    config(2000 + by)
                ),
                2000 + by,
            );
            // And blocks.
            for (change, passes) in [
                ("rl_block('api', 'bob', '1 hour')", "false"),
                ("rl_unblock('api', 'bob')", "true"),
            ] {
                clients[by].batch_execute(&format!("SELECT {change}")).unwrap();
                for (n, client) in clients.iter_mut().enumerate() {
                    let ok = one(client, "SELECT ok FROM rl_check('api', 'bob')");
                    assert_eq!(ok, passes, "{by}, {n}: {change}");
                }
            }
            clients[by].batch_execute("SELECT rl_undefine('api')").unwrap();
            for client in clients.iter_mut() {
                let error = client.batch_execute("SELECT rl_check('api', 'bob')").unwrap_err();
                assert_eq!(error.code().unwrap().code(), "42704");
            }
        }
    };
    everywhere(&mut clients);
    // A bad one is refused on every node.
    for client in &mut clients {
        for sql in
            ["SELECT rl_define('bad', '{}')", "INSERT INTO rl_config VALUES ('bad', '', '{}')"]
        {
            assert_eq!(client.batch_execute(sql).unwrap_err().code().unwrap().code(), "22023");
        }
    }

    // One that has no copy of the definitions yet remembers none; then it has one, with its triggers.
    cluster.add_node();
    let mut clients = cluster.clients();
    let copies = |client: &mut Client| {
        let shard = "SELECT shardid FROM pg_dist_shard WHERE logicalrelid = 'rl_config'::regclass";
        one(client, &format!("SELECT count(*) FROM pg_dist_placement WHERE shardid = ({shard})"))
    };
    assert_eq!(copies(&mut clients[0]), "3");
    everywhere(&mut clients);
    clients[0].batch_execute("SELECT rebalance_table_shards()").unwrap();
    assert_eq!(copies(&mut clients[0]), "4");
    everywhere(&mut clients);
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn every_function_works_on_every_node() {
    let cluster = Cluster::distributed();
    for (n, client) in cluster.clients().iter_mut().enumerate() {
        client
            .batch_execute("SET ratelimit.clock = '2027-01-01 12:00:00+00'; SET timezone = 'UTC'")
            .unwrap();
        let name = format!("name {n}");
        for (sql, expected) in [
            ("SELECT rl_define('NAME', rl_token_bucket(10, '1 minute'))", "true"),
            ("SELECT rl_limit('NAME', 'a', 4)", "(t,,,6,10,\"2027-01-01 12:00:24+00\",)"),
            (
                "SELECT rl_limit('NAME', 'a', 7)",
                "(f,6,\"2027-01-01 12:00:06+00\",6,10,\"2027-01-01 12:00:24+00\",tokens)",
            ),
            ("SELECT rl_check('NAME', 'a', 6)", "(t,,,6,10,\"2027-01-01 12:00:24+00\",)"),
            ("SELECT rl_credit('NAME', 'a', 1)", "(t,,,7,10,\"2027-01-01 12:00:18+00\",)"),
            (
                "SELECT string_agg(key || ' ' || ok || ' ' || remaining, ', ') FROM rl_limit_all('[{\"name\": \"NAME\", \"key\": \"a\"}, {\"name\": \"NAME\", \"key\": \"b\"}, {\"name\": \"NAME\", \"key\": \"c\", \"count\": 10}]')",
                "a true 6, b true 9, c true 0",
            ),
            (
                "SELECT string_agg(key || ' ' || ok || ' ' || remaining, ', ') FROM rl_limit_all('[{\"name\": \"NAME\", \"key\": \"a\"}, {\"name\": \"NAME\", \"key\": \"c\"}]')",
                "a false 6, c false 0",
            ),
            (
                "SELECT bool_or(ok) FROM rl_check_all('[{\"name\": \"NAME\", \"key\": \"a\"}]')",
                "true",
            ),
            (
                "SELECT string_agg(key || ' ' || remaining, ', ') FROM rl_status('NAME')",
                "a 6, b 9, c 0",
            ),
            ("SELECT rl_reset('NAME', 'b')", "true"),
            ("SELECT rl_reset('NAME', 'b')", "false"),
            ("SELECT rl_prune()", "1"),
            (
                "SELECT rl_limit('NAME', 'r', 15, reserve => true, config => rl_token_bucket(10, '1 minute', max_reserved => 10))",
                "(t,30,\"2027-01-01 12:00:30+00\",-5,10,\"2027-01-01 12:01:30+00\",)",
            ),
            ("SELECT rl_reset_keys('NAME')", "3"),
            ("SELECT count(*) FROM rateLimits WHERE name = 'NAME'", "0"),
            (
                "SELECT count(*) FROM generate_series(1, 30) n, rl_limit('NAME', substr('s', 1, n), config => rl_token_bucket(20, '1 minute', shards => 4)) WHERE ok",
                "20",
            ),
            ("SELECT count(*) > 1 FROM rateLimits WHERE name = 'NAME'", "true"),
            (
                "SELECT count(*) FROM generate_series(1, 30) n, rl_limit('NAME', substr('l', 1, n), config => rl_sliding_log(5, '1 minute')) WHERE ok",
                "5",
            ),
            (
                "SELECT count(*) FROM generate_series(1, 30) n, rl_limit('NAME', substr('w', 1, n), config => rl_sliding_window(5, '1 minute')) WHERE ok",
                "5",
            ),
            ("SELECT rl_reset_keys('NAME')", "3"),
            (
                "SELECT count(*) FROM generate_series(1, 30) n, rl_limit('NAME', substr('m', 1, n), config => rl_token_bucket(5, '1 minute', store => 'memory')) WHERE ok",
                "5",
            ),
            ("SELECT rl_define('NAME', rl_concurrency(2, '1 minute'), 'slots')", "true"),
            (
                "SELECT set_config('test.lease', lease, false) LIKE '%/slots/%' FROM rl_acquire('NAME', 'slots')",
                "true",
            ),
            (
                "SELECT count(*) FROM generate_series(1, 3) n, rl_acquire('NAME', substr('slots', 1, 5 + 0 * n)) WHERE ok",
                "1",
            ),
            ("SELECT jsonb_array_length(rl_value('NAME', 'slots') -> 'state' -> 'leases')", "2"),
            ("SELECT rl_extend(LEASE) = '2027-01-01 12:01:00+00'", "true"),
            ("SELECT rl_release(LEASE)", "true"),
            ("SELECT rl_release(LEASE)", "false"),
            ("SELECT remaining FROM rl_check('NAME', 'slots')", "1"),
            ("SELECT rl_undefine('NAME', 'slots')", "true"),
            ("SELECT rl_define('NAME', rl_unlimited(), 'vip')", "true"),
            ("SELECT ok FROM rl_limit('NAME', 'vip', 1000)", "true"),
            ("SELECT rl_block('NAME', 'vip', '1 hour') > '2027-01-01'", "true"),
            ("SELECT retry_after FROM rl_limit('NAME', 'vip')", "3600"),
            ("SELECT string_agg(key, ', ') FROM rl_status('NAME') WHERE limited", "vip"),
            ("SELECT rl_unblock('NAME', 'vip')", "true"),
            ("SELECT ok FROM rl_limit('NAME', 'vip')", "true"),
            (
                "SELECT rl_block('NAME', 'old', until => '2027-01-01 12:00:01+00') > '2027-01-01'",
                "true",
            ),
            ("SELECT count(*) FROM rl_blocks WHERE name = 'NAME'", "1"),
            (
                "SELECT set_config('ratelimit.clock', '2027-01-01 12:00:02+00', false)",
                "2027-01-01 12:00:02+00",
            ),
            ("SELECT rl_prune() > 0", "true"),
            ("SELECT count(*) FROM rl_blocks", "0"),
            ("SELECT rl_undefine('NAME', 'vip')", "true"),
            ("SELECT rl_undefine('NAME')", "true"),
        ] {
            let lease = "current_setting('test.lease')";
            let sql = sql.replace("NAME", &name).replace("LEASE", lease);
            assert_eq!(one(client, &sql), expected, "node {n}: {sql}");
        }
        let config = "config => rl_token_bucket(1, '1 minute'), throws => true";
        let throws = format!("SELECT rl_limit('{name}', 't', {config})");
        client.batch_execute(&throws).unwrap();
        assert_eq!(client.batch_execute(&throws).unwrap_err().code().unwrap().code(), "PT429");
    }
    assert_shells_are_empty(&cluster);
}

/// Tokens are held until the tables are distributed, which waits for the settlement of all.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn tokens_are_held_on_no_cluster() {
    let cluster = Cluster::new();
    let mut clients = cluster.clients();
    let here = &mut clients[0];
    here.batch_execute("SELECT rl_define('held', rl_token_bucket(10, '1000 days'))").unwrap();
    assert_eq!(one(here, "SELECT held FROM rl_hold('held', 'k', 4, id => 'x')"), "4");
    let refused = |client: &mut Client, sql: &str| {
        let error = client.batch_execute(sql).unwrap_err();
        let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}")).clone();
        (error.code().code().to_owned(), error.message().to_owned())
    };
    let distribute = refused(here, "SELECT rl_distribute(4)");
    assert_eq!(distribute.1, "rl_holds has rows, and holds are not distributed");
    assert_eq!(one(here, "SELECT ok FROM rl_settle('x', 1)"), "true");
    here.batch_execute("SELECT rl_distribute(4)").unwrap();
    for client in &mut clients {
        for call in [
            "rl_hold('held', 'k', 4)",
            "rl_hold('held', 'k', 4, id => 'x')",
            "rl_settle('x', 1)",
            r#"rl_hold_all('[{"name": "held", "key": "k"}]')"#,
            r#"rl_settle_all('x', '{"held": 1}')"#,
        ] {
            let (code, message) = refused(client, &format!("SELECT {call}"));
            assert_eq!(code, "0A000", "{call}: {message}");
            assert!(message.starts_with("tokens can't be held where Citus"), "{call}: {message}");
        }
        // Without an id there is nothing to look for.
        assert_eq!(one(client, "SELECT ok FROM rl_settle(NULL)"), "true");
        assert_eq!(one(client, "SELECT count(*) FROM rl_settle_all(NULL)"), "0");
        // What they say to call instead.
        assert_eq!(one(client, "SELECT ok FROM rl_limit('held', 'k', 2)"), "true");
        client.batch_execute("SELECT rl_credit('held', 'k', 2)").unwrap();
        assert_eq!(one(client, "SELECT floor(remaining) FROM rl_check('held', 'k')"), "9");
    }
    assert_shells_are_empty(&cluster);
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_take_commits_and_rolls_back_with_writes_on_other_nodes() {
    let cluster = Cluster::distributed();
    let mut clients = cluster.clients();
    // One by one: Citus sends what it is given to other nodes, where it can't be several statements.
    for sql in [
        "SELECT rl_define('post', rl_token_bucket(3, '1000 days'))",
        "SET citus.enable_unsafe_triggers = on",
        "CREATE TABLE posts (author text COLLATE \"C\", body text)",
        "SELECT create_distributed_table('posts', 'author', colocate_with => 'ratelimits')",
        "CREATE TRIGGER limited BEFORE INSERT ON posts
             FOR EACH ROW EXECUTE FUNCTION rl_trigger('post', 'key=author')",
        "CREATE TABLE letters (author text COLLATE \"C\", body text)",
        "SELECT create_distributed_table('letters', 'author', colocate_with => 'ratelimits')",
        "CREATE TRIGGER limited AFTER INSERT ON letters REFERENCING NEW TABLE AS new_letters
             FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('post', 'key=author')",
    ] {
        clients[0].batch_execute(sql).unwrap();
    }
    for (n, client) in clients.iter_mut().enumerate() {
        // Ten keys, so of several shards and both workers.
        let several = format!(
            "INSERT INTO posts SELECT 'node {n}, ' || k, 'x' FROM generate_series(1, 10) k"
        );
        let taken = format!(
            "SELECT sum(3 - remaining)::int FROM generate_series(1, 10) k, rl_check('post', 'node {n}, ' || k)"
        );
        client.batch_execute(&several).unwrap();
        client.batch_execute(&format!("BEGIN; {several}; ROLLBACK")).unwrap();
        assert_eq!(one(client, &taken), "10");
        client.batch_execute(&several.replace("posts", "letters")).unwrap();
        let mut writer = client.copy_in("COPY posts FROM STDIN").unwrap();
        for key in 1..=10 {
            std::io::Write::write_all(&mut writer, format!("node {n}, {key}\tx\n").as_bytes())
                .unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(one(client, &taken), "30");
        let row = format!("INSERT INTO posts VALUES ('node {n}, 3', 'x')");
        for row in [row.clone(), row.replace("posts", "letters")] {
            let denied = client.batch_execute(&row).unwrap_err();
            assert_eq!(denied.code().unwrap().code(), "PT429", "{denied:?}");
        }
        // Citus copies the rows to their shards, and reports only the message of an error there.
        let denied = client.batch_execute(&several).unwrap_err();
        assert_eq!(denied.as_db_error().unwrap().message(), "rate limit exceeded");
        assert_eq!(
            one(client, &format!("SELECT count(*) FROM posts WHERE author LIKE 'node {n},%'")),
            "20"
        );

        // Two keys of several shards and another write: all or nothing, after a savepoint, too.
        let both = format!(
            "SELECT rl_limit('post', 'x{n}'), rl_limit('post', 'y{n}'), rl_limit('post', 'z{n}');
             INSERT INTO posts VALUES ('w{n}', 'x')"
        );
        let left = format!(
            "SELECT string_agg(remaining::int::text, ' ') FROM unnest('{{x,y,z,w}}'::text[]) k, rl_check('post', k || '{n}')"
        );
        client.batch_execute(&format!("BEGIN; {both}; ROLLBACK")).unwrap();
        assert_eq!(one(client, &left), "3 3 3 3");
        client
            .batch_execute(&format!("BEGIN; {both}; SAVEPOINT s; {both}; ROLLBACK TO s; COMMIT"))
            .unwrap();
        assert_eq!(one(client, &left), "2 2 2 2");
    }
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn nothing_is_lost_while_shards_move() {
    let cluster = Cluster::distributed();
    let mut client = cluster.coordinator();
    client.batch_execute(DEFINE).unwrap();
    client.batch_execute(DISTRIBUTE_NOTES).unwrap();
    let nodes: Vec<_> = cluster.nodes.iter().collect();
    let (moves, done) = beside(&nodes, || {
        let (began, mut moves) = (Instant::now(), [0; 2]);
        while began.elapsed() < seconds(20) {
            let shard = client
                .query_one(
                    "SELECT shardid, nodename FROM pg_dist_shard JOIN pg_dist_placement USING (shardid)
                     JOIN pg_dist_node USING (groupid)
                     WHERE logicalrelid = 'ratelimits'::regclass ORDER BY random() LIMIT 1",
                    &[],
                )
                .unwrap();
            let (shard, from): (i64, String) = (shard.get(0), shard.get(1));
            let to = cluster.name(if from == cluster.name(1) { 2 } else { 1 });
            let mode = fastrand::usize(0..2);
            // What the last move left where the shard was may still be in use by a reader.
            client.batch_execute("CALL citus_cleanup_orphaned_resources()").unwrap();
            let sql = format!(
                "SELECT citus_move_shard_placement({shard}, '{from}', 5432, '{to}', 5432, '{}')",
                ["block_writes", "force_logical"][mode]
            );
            match client.batch_execute(&sql) {
                Ok(()) => moves[mode] += 1,
                Err(error) => println!("not moved: {error:?}"),
            }
        }
        let rebalance = "SELECT rebalance_table_shards(shard_transfer_mode => 'block_writes')";
        println!("rebalance: {:?}", client.batch_execute(rebalance).err());
        moves
    });
    println!("{moves:?} moves; {} committed; errors: {:#?}", done.committed, done.errors);
    assert_exact(&mut client);
    done.judge();
    assert!(moves.iter().all(|&moves| moves > 0) && done.committed > 100);
    assert_shells_are_empty(&cluster);
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn a_killed_worker_loses_no_take_and_leaves_no_prepared_transaction() {
    let cluster = Cluster::distributed();
    let mut client = cluster.coordinator();
    client.batch_execute(DEFINE).unwrap();
    client.batch_execute(DISTRIBUTE_NOTES).unwrap();
    let nodes: Vec<_> = cluster.nodes.iter().collect();
    let ((), done) = beside(&nodes, || {
        for _ in 0..3 {
            thread::sleep(seconds(3));
            cluster.nodes[2].kill();
            thread::sleep(Duration::from_secs(1));
            cluster.nodes[2].restart();
        }
        thread::sleep(seconds(2));
    });
    println!("{} committed; errors: {:#?}", done.committed, done.errors);
    // Citus does it once a minute.
    let began = Instant::now();
    loop {
        let mut left = 0;
        for client in &mut cluster.clients() {
            client.batch_execute("SELECT recover_prepared_transactions()").unwrap();
            left += one(client, "SELECT count(*) FROM pg_prepared_xacts").parse::<u32>().unwrap();
        }
        if left == 0 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{left} prepared transactions are left");
        thread::sleep(Duration::from_millis(200));
    }
    assert_exact(&mut cluster.coordinator());
    assert!(done.committed > 100 && !done.errors.is_empty());
    done.judge_after_crashes();
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn limits_are_distributed_and_taken_back_under_load() {
    let cluster = Cluster::new();
    let (mut client, notices) = cluster.nodes[0].client_with_notices();
    client.batch_execute(DEFINE).unwrap();
    let ((), done) = beside(&[&cluster.nodes[0]], || {
        for _ in 0..3 {
            thread::sleep(seconds(1));
            until_done(&mut client, "SELECT rl_distribute(4)");
            thread::sleep(seconds(1));
            until_done(&mut client, "SELECT rl_undistribute()");
        }
        until_done(&mut client, "SELECT rl_distribute(4)");
    });
    println!("{} committed; errors: {:#?}", done.committed, done.errors);
    assert!(done.committed > 100);
    assert_exact(&mut client);
    done.judge();
    assert_shells_are_empty(&cluster);
    assert_exact(&mut cluster.coordinator());

    let define = "SELECT rl_define('in memory', rl_token_bucket(1, '1 day', store => 'memory'))";
    client.batch_execute(define).unwrap();
    client.batch_execute("SELECT rl_distribute()").unwrap();
    let notices: Vec<String> = notices.try_iter().collect();
    for notice in [
        "the rate limits are on this node alone, with its grants; the other nodes no longer have any",
        "rateLimits is already distributed, in 4 shards",
        "limits in memory still count on each node separately",
    ] {
        assert!(notices.iter().any(|told| told == notice), "{notices:#?}");
    }

    // A limit that is saved to the table counts on no node, and is not distributed.
    let define =
        define.replace("in memory", "saved").replace("'memory'", "'memory', save => '1 second'");
    let error = client.batch_execute(&define).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED), "{error:?}");
    client.batch_execute("SELECT rl_undistribute()").unwrap();
    client.batch_execute(&define).unwrap();
    let error = client.batch_execute("SELECT rl_distribute(4)").unwrap_err();
    let prerequisite = Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(error.code() == prerequisite, "{error:?}");
    assert!(error.as_db_error().unwrap().message().contains("\"saved\""), "{error:?}");
    client.batch_execute("SELECT rl_undefine('saved'); SELECT rl_distribute(4)").unwrap();

    // On a worker that knew them before, and not, and again.
    let mut worker = cluster.nodes[1].client();
    assert_eq!(one(&mut worker, "SELECT ok FROM rl_limit('one', 'by a worker')"), "true");
    assert_eq!(
        one(&mut client, "SELECT 1000000 - remaining < 1.5 FROM rl_check('one', 'by a worker')"),
        "true"
    );

    // Both dumps bring state and definitions back, with and without Citus.
    let state =
        "SELECT (SELECT md5(string_agg(r::text, ' ' ORDER BY name, key, shard)) FROM rateLimits r)
                     || (SELECT string_agg(c::text, ' ' ORDER BY name, key) FROM rl_config c)";
    let expected = one(&mut client, state);
    for database in ["dumped_distributed", "dumped_local"] {
        if database == "dumped_local" {
            client.batch_execute("SELECT rl_undistribute()").unwrap();
            assert_eq!(one(&mut client, state), expected);
        }
        let folder = cluster.name(0);
        cluster.nodes[0].exec(&format!(
            "createdb -h {folder} -U postgres {database} &&
             pg_dump -h {folder} -U postgres postgres | psql -X -q -h {folder} -U postgres -v ON_ERROR_STOP=1 {database} >/dev/null"
        ));
        let mut restored = cluster.nodes[0].connect(database).unwrap();
        assert_eq!(one(&mut restored, state), expected);
        assert_eq!(
            one(&mut restored, "SELECT count(*) FROM rl_status()  WHERE name = 'one'"),
            one(&mut client, "SELECT count(*) FROM rl_status() WHERE name = 'one'")
        );
    }
    // As before: a member of the extension, in dumps, and after VACUUM reached directly again.
    client.batch_execute("VACUUM rateLimits").unwrap();
    client.batch_execute("SET ratelimit.access = heap").unwrap();
    client.batch_execute("SELECT rl_limit('one', 'direct'); RESET ratelimit.access").unwrap();
    let again = client.batch_execute("SELECT rl_undistribute()").unwrap_err();
    assert_eq!(again.code().unwrap().code(), "55000");
    client.batch_execute("SELECT rl_distribute()").unwrap();
    // The triggers of the copies of rl_config depend on it.
    let refused = client.batch_execute("DROP EXTENSION ratelimit").unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "2BP01");
    client.batch_execute("SELECT rl_undistribute()").unwrap();
    client.batch_execute("DROP EXTENSION ratelimit").unwrap();
    for client in &mut cluster.clients() {
        assert_eq!(
            one(client, "SELECT count(*) FROM pg_class WHERE relname ~ '^(ratelimits|rl_config)'"),
            "0"
        );
    }
}

/// The extension is trusted: a role with CREATE on the database installs it, and distributes its tables.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn an_installer_who_is_no_superuser_distributes_and_is_told_what_to_grant() {
    let cluster = Cluster::new();
    let mut client = cluster.coordinator();
    for sql in [
        "DROP EXTENSION ratelimit",
        "CREATE ROLE installer LOGIN",
        "CREATE ROLE app LOGIN",
        "CREATE ROLE \"other App\" LOGIN",
        "GRANT CREATE ON DATABASE postgres TO installer",
        "GRANT CREATE ON SCHEMA public TO installer",
        "SET ROLE installer",
        "CREATE EXTENSION ratelimit",
        "SELECT rl_define('api', rl_token_bucket(2, '1000 days'))",
        "GRANT EXECUTE ON FUNCTION rl_limit, rl_check TO app",
        "GRANT EXECUTE ON FUNCTION rl_limit TO \"other App\" WITH GRANT OPTION",
    ] {
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    let refused = client.batch_execute("SELECT rl_distribute()").unwrap_err();
    let refused = refused.as_db_error().unwrap();
    assert_eq!(refused.code().code(), "42501");
    let hint = refused.hint().unwrap().strip_prefix("A superuser can grant it: ").unwrap();
    client.batch_execute("RESET ROLE").unwrap();
    run_on_all(&mut client, hint);
    client.batch_execute("SET ROLE installer").unwrap();
    let statements: Vec<String> =
        client.query("SELECT rl_distribute()", &[]).unwrap().iter().map(|row| row.get(0)).collect();
    println!("{statements:#?}");
    client.batch_execute("RESET ROLE").unwrap();
    statements.iter().for_each(|statement| run_on_all(&mut client, statement));
    for (n, client) in cluster.clients().iter_mut().enumerate() {
        for role in ["app", "\"other App\""] {
            client.batch_execute(&format!("SET ROLE {role}")).unwrap();
            let passes = |client: &mut Client| {
                one(
                    client,
                    &format!("SELECT ok FROM rl_limit('api', '{n} {}')", role.trim_matches('"')),
                )
            };
            assert_eq!([passes(client), passes(client), passes(client)], ["true", "true", "false"]);
            client.batch_execute("RESET ROLE").unwrap();
        }
    }
    client.batch_execute("SET ROLE installer; SELECT rl_undistribute(); RESET ROLE").unwrap();
    assert_eq!(one(&mut client, "SELECT ok FROM rl_limit('api', '1 app')"), "false");
    let denied = client.batch_execute("SET ROLE app; SELECT rl_distribute()").unwrap_err();
    assert_eq!(denied.code().unwrap().code(), "42501");
}

/// Runs what Citus runs on all nodes, and sees that each did it.
fn run_on_all(client: &mut Client, statement: &str) {
    for row in client.query(statement.trim_end_matches(';'), &[]).unwrap() {
        assert!(row.get::<_, bool>("success"), "{statement}: {}", row.get::<_, String>("result"));
    }
}

/// Repeats a statement that was chosen to end a deadlock: all of it happened, or nothing.
fn until_done(client: &mut Client, sql: &str) {
    while let Err(error) = client.batch_execute(sql) {
        assert_eq!(error.code().unwrap().code(), "40P01", "{error:?}");
    }
}

#[test]
#[ignore = "needs Citus: run make test-citus"]
fn an_extension_that_was_there_before_citus_is_distributed() {
    let cluster = Cluster::new();
    let database = |node: usize| cluster.nodes[node].connect("before").unwrap();
    for node in &cluster.nodes {
        node.client().batch_execute("CREATE DATABASE before").unwrap();
    }
    let mut client = database(0);
    for sql in [
        "CREATE EXTENSION ratelimit",
        "SELECT rl_define('api', rl_token_bucket(3, '1000 days')), rl_limit('api', 'k')",
        "CREATE EXTENSION citus",
    ] {
        client.batch_execute(sql).unwrap();
    }
    for node in 1..=2 {
        database(node).batch_execute("CREATE EXTENSION citus").unwrap();
    }
    let host = format!("SELECT citus_set_coordinator_host('{}')", cluster.name(0));
    client.batch_execute(&host).unwrap();
    for node in 1..=2 {
        let add = format!("SELECT citus_add_node('{}', 5432)", cluster.name(node));
        client.batch_execute(&add).unwrap();
    }
    client.batch_execute("SELECT rl_distribute(4)").unwrap();
    let limit = "SELECT ok FROM rl_limit('api', 'k')";
    let answers: Vec<String> = (0..3).map(|node| one(&mut database(node), limit)).collect();
    assert_eq!(answers, ["true", "true", "false"]);
}

/// What would lose rows, or run an owner's code with another's rights.
#[test]
#[ignore = "needs Citus: run make test-citus"]
fn what_is_not_safe_is_refused() {
    let cluster = Cluster::new();
    let (mut client, mut worker) = (cluster.coordinator(), cluster.nodes[1].client());
    let refused = |client: &mut Client, sql: &str, message: &str| {
        let error = client.batch_execute(sql).unwrap_err();
        let _ = client.batch_execute("ROLLBACK");
        let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}"));
        assert!(error.message().contains(message), "{sql}: {error:?}");
    };
    let both = |client: &mut Client, when: &str, message: &str| {
        for call in ["rl_distribute()", "rl_undistribute()"] {
            let distributed = one(
                client,
                "SELECT count(*) FROM pg_dist_partition WHERE logicalrelid = 'ratelimits'::regclass",
            ) == "1";
            if distributed || call == "rl_distribute()" {
                refused(client, &when.replace("CALL", &format!("SELECT {call}")), message);
            }
        }
    };
    // Nothing that a node has of its own is hidden.
    let define = "SELECT rl_define('own', rl_token_bucket(1, '1 day'))";
    worker.batch_execute(define).unwrap();
    refused(&mut client, "SELECT rl_distribute()", "has limits of its own");
    worker.batch_execute("TRUNCATE rl_config, ratelimits").unwrap();
    for _ in 0..2 {
        both(&mut client, "BEGIN ISOLATION LEVEL REPEATABLE READ; CALL", "READ COMMITTED");
        both(&mut worker, "CALL", "must be called on the coordinator");
        client.batch_execute("SELECT rl_distribute(2)").unwrap();
    }
    // A definition that was committed since is brought back, too.
    let mut late = cluster.nodes[2].client();
    client.batch_execute("BEGIN").unwrap();
    assert_eq!(one(&mut client, "SELECT count(*) FROM rl_config"), "0");
    late.batch_execute(&define.replace("own", "late")).unwrap();
    client.batch_execute("SELECT rl_undistribute(); COMMIT").unwrap();
    assert_eq!(one(&mut client, "SELECT name FROM rl_config"), "late");

    // An owner who is no superuser, and what he may do to his tables.
    let owned = [
        "DROP EXTENSION ratelimit",
        "CREATE ROLE mallory LOGIN",
        "GRANT CREATE ON DATABASE postgres TO mallory",
        "GRANT CREATE ON SCHEMA public TO mallory",
        "SET ROLE mallory",
        "CREATE EXTENSION ratelimit",
        "SELECT rl_define('api', rl_token_bucket(2, '1000 days')), rl_define('hidden', rl_token_bucket(2, '1000 days'))",
        "RESET ROLE",
        "SELECT run_command_on_all_nodes('GRANT EXECUTE ON FUNCTION rl_config_changed, rl_blocks_changed TO mallory')",
    ];
    for sql in owned {
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    both(&mut client, "CALL", "can be called only by the owner of the tables, role mallory");
    client.batch_execute("SET ROLE mallory; SELECT rl_distribute(2); RESET ROLE").unwrap();
    both(&mut client, "CALL", "can be called only by the owner of the tables, role mallory");
    for sql in [
        "SET ROLE mallory",
        "ALTER TABLE rl_config ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE rl_config FORCE ROW LEVEL SECURITY",
        "CREATE POLICY visible ON rl_config USING (name = 'api')",
    ] {
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    refused(&mut client, "SELECT rl_undistribute()", "row-level security");
    client.batch_execute("ALTER TABLE rl_config NO FORCE ROW LEVEL SECURITY").unwrap();
    client.batch_execute("SELECT rl_undistribute()").unwrap();
    assert_eq!(one(&mut client, "SELECT count(*) FROM rl_config"), "2");
}

//! Logical replication: limits and definitions are replicated as other rows, and the apply worker takes
//! tokens in an ENABLE ALWAYS row trigger, and stops at a denial. What a subscriber deletes or takes of its own before
//! it is moved to, it pays for. Publisher and subscriber are two databases of one server.

use std::time::{Duration, Instant};

use postgres::Client;

use crate::database::{Database, connect};

/// Polls until the query returns true, since no event shows the progress of the worker.
fn wait_until(client: &mut Client, answer: &str) {
    let start = Instant::now();
    while !client.query_one(&format!("SELECT {answer}"), &[]).unwrap().get::<_, bool>(0) {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn taken(client: &mut Client, name: &str) -> f64 {
    let sql = format!("SELECT round(capacity - remaining) FROM rl_check('{name}', 'ada')");
    client.query_one(&sql, &[]).unwrap().get(0)
}

#[test]
#[ignore = "needs a server: make test"]
fn an_applied_change_takes_a_limit_if_its_trigger_fires_always() {
    let source = Database::new("replication_source");
    let mut publisher = source.connect();
    for statement in [
        "DROP DATABASE IF EXISTS replication_target",
        "CREATE DATABASE replication_target",
        "CREATE TABLE messages (author text)",
        "CREATE PUBLICATION messages FOR TABLE messages",
        "SELECT pg_create_logical_replication_slot('messages', 'pgoutput')",
    ] {
        publisher.batch_execute(statement).unwrap();
    }
    let mut subscriber = connect("replication_target");
    subscriber
        .batch_execute(&format!(
            "CREATE EXTENSION ratelimit;
             CREATE TABLE messages (author text);
             SELECT rl_define(name, rl_token_bucket(5, '365 days'))
             FROM unnest(ARRAY['always', 'ordinary', 'statement']) name;
             CREATE TRIGGER ordinary BEFORE INSERT ON messages
                 FOR EACH ROW EXECUTE FUNCTION rl_trigger('ordinary', 'key=author');
             CREATE TRIGGER always BEFORE INSERT ON messages
                 FOR EACH ROW EXECUTE FUNCTION rl_trigger('always', 'key=author');
             ALTER TABLE messages ENABLE ALWAYS TRIGGER always;
             CREATE TRIGGER statement AFTER INSERT ON messages REFERENCING NEW TABLE AS new_rows
                 FOR EACH STATEMENT EXECUTE FUNCTION rl_trigger('statement', 'key=author');
             ALTER TABLE messages ENABLE ALWAYS TRIGGER statement;
             CREATE SUBSCRIPTION messages CONNECTION '{} dbname=replication_source'
                 PUBLICATION messages WITH (create_slot = false, copy_data = false);",
            std::env::var("RATELIMIT_TEST_SERVER").unwrap()
        ))
        .unwrap();

    publisher.batch_execute("INSERT INTO messages VALUES ('ada'), ('ada'), ('ada')").unwrap();
    wait_until(&mut subscriber, "(SELECT count(*) FROM messages) = 3");
    assert_eq!(taken(&mut subscriber, "always"), 3.0);
    assert_eq!(taken(&mut subscriber, "ordinary"), 0.0);
    assert_eq!(taken(&mut subscriber, "statement"), 0.0, "apply fires no statement triggers");

    // Three more are one too many: the publisher has them, the subscriber stops.
    publisher.batch_execute("INSERT INTO messages VALUES ('ada'), ('ada'), ('ada')").unwrap();
    wait_until(
        &mut subscriber,
        "(SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = 'messages') > 0",
    );
    publisher.batch_execute("INSERT INTO messages VALUES ('bob')").unwrap();
    let count: i64 = subscriber.query_one("SELECT count(*) FROM messages", &[]).unwrap().get(0);
    assert_eq!(count, 3);
    assert_eq!(taken(&mut subscriber, "always"), 3.0);

    // Once there are tokens it continues.
    subscriber.batch_execute("SELECT rl_reset('always', 'ada')").unwrap();
    wait_until(&mut subscriber, "(SELECT count(*) FROM messages) = 7");
    assert_eq!(taken(&mut subscriber, "always"), 3.0);

    subscriber.batch_execute("DROP SUBSCRIPTION messages").unwrap();
    drop(subscriber);
    publisher.batch_execute("DROP DATABASE replication_target").unwrap();
}

/// Returns the replicated rows of a database, the definitions, and their levels by rl_check.
fn state(client: &mut Client) -> Vec<String> {
    let sql = "SELECT r::text FROM rateLimits AS r UNION ALL SELECT c::text FROM rl_config AS c
               UNION ALL
               SELECT format('%s %s: %s', name, key, (rl_check(name, key)).remaining)
               FROM (SELECT DISTINCT name, key FROM rateLimits) AS r ORDER BY 1";
    client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// A publication of all tables contains ours: no call may fail for that, and all its writes arrive,
/// concurrent inserts of the same row included.
#[test]
#[ignore = "needs a server: make test"]
fn limits_are_replicated_with_all_tables() {
    let source = Database::new("replication_all_source");
    let mut publisher = source.connect();
    for statement in [
        "DROP DATABASE IF EXISTS replication_all_target",
        "CREATE DATABASE replication_all_target",
        "CREATE PUBLICATION everything FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('everything', 'pgoutput')",
    ] {
        publisher.batch_execute(statement).unwrap();
    }
    let mut subscriber = connect("replication_all_target");
    subscriber
        .batch_execute(&format!(
            "CREATE EXTENSION ratelimit;
             CREATE SUBSCRIPTION everything CONNECTION '{} dbname=replication_all_source'
                 PUBLICATION everything
                 WITH (create_slot = false, copy_data = false, streaming = true);",
            std::env::var("RATELIMIT_TEST_SERVER").unwrap()
        ))
        .unwrap();

    // Without a refill, so that the rows are the level.
    publisher
        .batch_execute(
            "SELECT rl_define('bucket', rl_token_bucket(1e-300, '1 day', capacity => 1000)),
                    rl_define('shards', rl_token_bucket(1e-300, '1 day', capacity => 1000, shards => 4)),
                    rl_define('log', rl_sliding_log(1000, '10000 days')),
                    rl_define('window', rl_sliding_window(1000, '10000 days'))",
        )
        .unwrap();
    wait_until(&mut subscriber, "(SELECT count(*) FROM rl_config) = 4");
    let known = "SELECT capacity FROM rl_check('log')";
    assert_eq!(subscriber.query_one(known, &[]).unwrap().get::<_, f64>(0), 1000.0);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let mut client = source.connect();
            scope.spawn(move || {
                client.batch_execute("SET deadlock_timeout = '10ms'").unwrap();
                for key in 0..50 {
                    // The same keys at the same time; every third is rolled back.
                    let end = if (key + n) % 3 == 0 { "ROLLBACK" } else { "COMMIT" };
                    let take = format!(
                        "BEGIN;
                         SELECT rl_limit_all('[{{\"name\": \"bucket\", \"key\": \"{key}\"}},
                             {{\"name\": \"log\", \"key\": \"{key}\", \"count\": 100}},
                             {{\"name\": \"shards\", \"key\": \"{}\"}},
                             {{\"name\": \"window\"}}]');
                         {end}",
                        key % 5
                    );
                    client.batch_execute(&take).unwrap();
                }
            });
        }
    });
    publisher
        .batch_execute(
            "SELECT rl_reset('bucket', '1'), rl_reset_keys('window'), rl_undefine('window'),
                    rl_define('log', rl_sliding_log(2000, '10000 days'))",
        )
        .unwrap();
    catch_up(&mut publisher, "everything");
    let errors = "SELECT apply_error_count FROM pg_stat_subscription_stats";
    println!("{} rows", state(&mut publisher).len());
    assert_eq!(subscriber.query_one(errors, &[]).unwrap().get::<_, i64>(0), 0);
    assert_eq!(state(&mut subscriber), state(&mut publisher));

    assert_eq!(subscriber.query_one(known, &[]).unwrap().get::<_, f64>(0), 2000.0);

    // The subscriber's own calls continue from there.
    let left = "SELECT remaining FROM rl_check('bucket', '2')";
    let before: f64 = subscriber.query_one(left, &[]).unwrap().get(0);
    let sql = "SELECT remaining FROM rl_limit('bucket', '2') WHERE ok";
    assert_eq!(subscriber.query_one(sql, &[]).unwrap().get::<_, f64>(0), before - 1.0);
    assert!(before < 1000.0);

    subscriber.batch_execute("DROP SUBSCRIPTION everything").unwrap();
    drop(subscriber);
    publisher.batch_execute("DROP DATABASE replication_all_target").unwrap();
}

/// Waits until all that the publisher has written is applied.
fn catch_up(publisher: &mut Client, slot: &str) {
    let written = "SELECT pg_current_wal_insert_lsn()::text";
    let written: String = publisher.query_one(written, &[]).unwrap().get(0);
    let arrived = format!(
        "(SELECT confirmed_flush_lsn >= '{written}' FROM pg_replication_slots WHERE slot_name = '{slot}')"
    );
    wait_until(publisher, &arrived);
}

/// A database that is moved by logical replication: the subscriber denies what the publisher would. But if it has
/// pruned a row as idle that the publisher still has, the publisher's UPDATE finds none, without an error, and the key
/// has all its tokens after the move. A row that the subscriber has made itself stops the worker.
#[test]
#[ignore = "needs a server: make test"]
fn a_subscriber_that_prunes_before_the_move_loses_what_is_taken_afterwards() {
    let source = Database::new("replication_move_source");
    let mut publisher = source.connect();
    for statement in [
        "DROP DATABASE IF EXISTS replication_move_target",
        "CREATE DATABASE replication_move_target",
        "CREATE PUBLICATION move FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('move', 'pgoutput')",
    ] {
        publisher.batch_execute(statement).unwrap();
    }
    let mut subscriber = connect("replication_move_target");
    subscriber
        .batch_execute(&format!(
            "CREATE EXTENSION ratelimit;
             CREATE SUBSCRIPTION move CONNECTION '{} dbname=replication_move_source'
                 PUBLICATION move WITH (create_slot = false, copy_data = false);",
            std::env::var("RATELIMIT_TEST_SERVER").unwrap()
        ))
        .unwrap();
    publisher
        .batch_execute(
            "SELECT rl_define('moved', rl_fixed_window(3, '1 day', first_request => true))",
        )
        .unwrap();
    let take = |client: &mut Client, key: &str| -> i64 {
        let sql = "SELECT count(*) FROM rl_limit('moved', $1) WHERE ok";
        (0..3).map(|_| client.query_one(sql, &[&key]).unwrap().get::<_, i64>(0)).sum()
    };
    // Two keys whose rows are idle, of which one is called again before rl_prune and one after it.
    publisher
        .batch_execute(
            "SET ratelimit.clock = '2026-01-01 00:00:00Z';
             SELECT rl_limit('moved', 'kept'), rl_limit('moved', 'pruned');
             RESET ratelimit.clock",
        )
        .unwrap();
    assert_eq!(take(&mut publisher, "kept"), 3);
    catch_up(&mut publisher, "move");
    assert_eq!(subscriber.query_one("SELECT rl_prune()", &[]).unwrap().get::<_, i64>(0), 1);
    assert_eq!(take(&mut publisher, "pruned"), 3);
    catch_up(&mut publisher, "move");
    let errors = "SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = 'move'";
    assert_eq!(subscriber.query_one(errors, &[]).unwrap().get::<_, i64>(0), 0);

    // A call for a key without a row makes one, in the way of the publisher's.
    assert_eq!(take(&mut subscriber, "new"), 3);
    assert_eq!(take(&mut publisher, "new"), 3);
    wait_until(&mut subscriber, &format!("({errors}) > 0"));
    subscriber.batch_execute("DELETE FROM rateLimits WHERE key = 'new'").unwrap();
    catch_up(&mut publisher, "move");

    subscriber.batch_execute("DROP SUBSCRIPTION move").unwrap();
    assert_eq!(["kept", "pruned", "new"].map(|key| take(&mut publisher, key)), [0, 0, 0]);
    assert_eq!(["kept", "pruned", "new"].map(|key| take(&mut subscriber, key)), [0, 3, 0]);
    drop(subscriber);
    publisher.batch_execute("DROP DATABASE replication_move_target").unwrap();
}

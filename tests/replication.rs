//! Logical replication: the worker that applies changes takes limits where a row trigger fires
//! always, and stops at a denial. Publisher and subscriber are two databases of one server.

mod server;

use std::time::{Duration, Instant};

use postgres::Client;

/// Asks until the answer is yes: nothing tells us when the worker has come so far.
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
    let source = server::Database::new("replication_source");
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
    let mut subscriber = server::connect("replication_target");
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

    // Three more are one too many: the publisher has them, the subscriber gets no further.
    publisher.batch_execute("INSERT INTO messages VALUES ('ada'), ('ada'), ('ada')").unwrap();
    wait_until(
        &mut subscriber,
        "(SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = 'messages') > 0",
    );
    publisher.batch_execute("INSERT INTO messages VALUES ('bob')").unwrap();
    let count: i64 = subscriber.query_one("SELECT count(*) FROM messages", &[]).unwrap().get(0);
    assert_eq!(count, 3);
    assert_eq!(taken(&mut subscriber, "always"), 3.0);

    // Once there are tokens it goes on where it stood.
    subscriber.batch_execute("SELECT rl_reset('always', 'ada')").unwrap();
    wait_until(&mut subscriber, "(SELECT count(*) FROM messages) = 7");
    assert_eq!(taken(&mut subscriber, "always"), 3.0);

    subscriber.batch_execute("DROP SUBSCRIPTION messages").unwrap();
    drop(subscriber);
    publisher.batch_execute("DROP DATABASE replication_target").unwrap();
}

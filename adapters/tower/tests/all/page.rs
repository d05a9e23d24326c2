//! The program of the pages, as a whole.

use crate::application::*;
use crate::example::app;

#[tokio::test(flavor = "multi_thread")]
async fn the_program_of_the_pages() {
    let program = include_str!("../../examples/messages.rs");
    let part = |from: &str, to: &str| {
        let rest = &program[program.find(from).unwrap()..];
        rest[..rest.find(to).unwrap()].trim_end()
    };
    let page = include_str!("../../../../docs/rust.md");
    assert!(page.contains(part("/// The application", "/// Stores")), "it shows another");
    let page = include_str!("../../../../docs/clients.md");
    assert!(page.contains(part("async fn stored", "#[tokio")), "it shows another");
    for statement in [
        "CREATE SCHEMA IF NOT EXISTS tower_page",
        "GRANT USAGE ON SCHEMA tower_page TO PUBLIC",
        "DROP TABLE IF EXISTS tower_page.messages",
        "CREATE TABLE tower_page.messages (author text CHECK (author <> 'mallory'), body text)",
        "GRANT ALL ON tower_page.messages TO PUBLIC",
        "SELECT count(rl_reset_keys(name))::text FROM unnest('{api,sendMessage}'::text[]) AS name",
    ] {
        sql(statement, &[]).await;
    }
    // The superuser may set the clock.
    let settings = [
        ("search_path", "tower_page,public,ratelimit"),
        ("ratelimit.clock", "2027-01-01 12:00:00+00"),
    ];
    let settings = settings.map(|(name, value)| (name, value.to_owned())).to_vec();
    let to = To { user: "postgres".into(), settings, ..To::default() };
    let app = start(app(Sqlx::pool(to))).await;
    let post = async |author: &str| {
        let head = format!("POST /messages/{author} HTTP/1.1\r\ncontent-type: text/plain");
        send(app, &head, "hello").await.status
    };
    for _ in 0..10 {
        assert_eq!(post("ann").await, 201);
    }
    assert_eq!([post("ann").await, post("bob").await], [429, 201], "10 a minute each");
    assert_eq!(post("mallory").await, 500);
    let stored = "SELECT count(*)::text FROM tower_page.messages WHERE body = 'hello'";
    assert_eq!(sql(stored, &[]).await, "11");
    let left = "SELECT count(*)::text FROM rl_status('sendMessage') WHERE key = 'mallory'";
    assert_eq!(sql(left, &[]).await, "0", "a rollback returns the token");
    let addresses = "SELECT string_agg(key, ',') FROM rl_status('api')";
    assert_eq!(sql(addresses, &[]).await, "127.0.0.1");
}

//! ratelimit from Rust, with tokio-postgres, on what setup.sql prepares.
//!
//! Connects with PGHOST, PGPORT, PGUSER and PGDATABASE, as a role that has EXECUTE on rl_limit,
//! rl_check and rl_credit. Every claim is asserted: it fails where one does not hold.

use std::env::var;
use std::time::SystemTime;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Error, NoTls, Row};

async fn send_message(client: &mut Client, user: i64, body: &str) -> Result<Row, Error> {
    let transaction = client.transaction().await?; // rolls back when dropped: returns the token
    // In FROM the function runs once. $1 has the type of its first cast, bigint; the key is text.
    let take = "SELECT ok, retry_after, retry_at FROM rl_limit('sendMessage', $1::bigint::text)";
    let limit = transaction.query_one(take, &[&user]).await?;
    if limit.get("ok") {
        transaction.execute("INSERT INTO messages VALUES ($1, $2)", &[&user, &body]).await?;
    }
    transaction.commit().await?;
    Ok(limit)
}

/// A denial is an error here, and takes the whole transaction with it.
async fn send_or_fail(client: &mut Client, user: i64, body: &str) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    transaction.execute("INSERT INTO messages VALUES ($1, $2)", &[&user, &body]).await?;
    let take = "SELECT ok FROM rl_limit('sendMessage', $1::bigint::text, throws => true)";
    transaction.query_one(take, &[&user]).await?;
    transaction.commit().await
}

/// Takes the tokens of a job in advance, and stores when to run it: without a retry_at, at once.
/// One statement, so one transaction. No row: too much is reserved already.
const SCHEDULE: &str = "
    INSERT INTO jobs (owner, estimate, run_at)
    SELECT $1, $2, coalesce(retry_at, now())
    FROM rl_limit('llmTokens', $1::bigint::text, count => $2, reserve => true) WHERE ok
    RETURNING id";
/// The job is done: gives back what it did not use, in the statement that deletes it.
const SETTLE: &str = "
    WITH done AS (DELETE FROM jobs WHERE id = $1 RETURNING owner, estimate)
    SELECT remaining FROM done, LATERAL rl_credit('llmTokens', owner::text, estimate - $2)";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new(); // libpq reads these variables, tokio-postgres doesn't
    config.host(var("PGHOST")?).port(var("PGPORT")?.parse()?);
    config.user(var("PGUSER")?).dbname(var("PGDATABASE")?);
    let (mut client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let client = &mut client;
    let sign_up = "INSERT INTO users (name) VALUES ('linus') RETURNING id";
    let user: i64 = client.query_one(sign_up, &[]).await?.get("id");

    // 1. An empty message breaks a constraint: the transaction rolls back, and no token is gone.
    let error = send_message(client, user, "").await.expect_err("an empty message was sent");
    assert_eq!(error.code(), Some(&SqlState::CHECK_VIOLATION));
    let check = "SELECT remaining FROM rl_check('sendMessage', $1::bigint::text)";
    let remaining: f64 = client.query_one(check, &[&user]).await?.get("remaining");
    assert_eq!(remaining, 3.0);

    // 2. Three pass; the fourth is denied, by an ordinary row that says when to try again.
    for body in ["one", "two", "three"] {
        assert!(send_message(client, user, body).await?.get::<_, bool>("ok"));
    }
    let denied = send_message(client, user, "one too many").await?;
    let (ok, retry_after): (bool, f64) = (denied.get("ok"), denied.get("retry_after"));
    assert!(!ok && 80_000.0 < retry_after && retry_after <= 86_400.0);
    println!("denied: Retry-After: {}", retry_after.ceil());
    let retry_at: SystemTime = denied.get("retry_at");
    let same = "SELECT retry_at = $2 AS same FROM rl_check('sendMessage', $1::bigint::text)";
    assert!(client.query_one(same, &[&user, &retry_at]).await?.get::<_, bool>("same"));

    // 3. The same as an error. retryAfter is in milliseconds, null where it can never pass.
    let error = send_or_fail(client, user, "one too many").await.expect_err("it passed");
    assert_eq!(error.code(), Some(&SqlState::from_code("PT429")));
    let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
    let detail: serde_json::Value = serde_json::from_str(detail)?;
    let retry_ms = detail["retryAfter"].as_f64().expect("it can pass some day");
    assert!(80_000_000.0 < retry_ms && retry_ms <= 86_400_000.0);
    let sent = client.query("SELECT body FROM messages WHERE author = $1", &[&user]).await?;
    assert_eq!(sent.len(), 3);

    // 4. Of 1,000 tokens, the first job runs now, the second when there are as many again, and a
    // third would be too much.
    let mut jobs: Vec<Option<i64>> = Vec::new();
    for estimate in [800.0, 800.0, 800.0] {
        let job = client.query_opt(SCHEDULE, &[&user, &estimate]).await?;
        jobs.push(job.map(|job| job.get("id")));
    }
    let due = "SELECT id FROM jobs WHERE owner = $1 AND run_at <= now()";
    let due: i64 = client.query_one(due, &[&user]).await?.get("id"); // more than one: an error
    assert!(jobs[0] == Some(due) && jobs[1].is_some() && jobs[2].is_none());
    let settled: f64 = client.query_one(SETTLE, &[&due, &500.0]).await?.get("remaining");
    assert_eq!(settled, 1000.0 - 800.0 - 800.0 + (800.0 - 500.0));
    Ok(())
}

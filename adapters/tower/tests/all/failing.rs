//! Requests that can't be decided: refused, or let through where that is asked for and the error says "not now".

use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Extension;
use axum::routing::get;
use postgres_rate_limit::{Decision, Error, Limit, OnError};
use sqlx::Connection;

use crate::application::*;

/// For a call that can never be decided.
const SHORT: Duration = Duration::from_millis(200);

/// Ends the connections of an application, and counts them.
const END: &str = "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE application_name = $1";

/// The statuses of a request where it fails closed and where it fails open, and how many passed unchecked.
async fn statuses<D: Driver>(to: &To, limit: Limit, timeout: Duration) -> (u16, u16, usize) {
    let heard = Arc::new(AtomicUsize::new(0));
    let mut found = Vec::new();
    for on_error in [OnError::Closed, OnError::Open] {
        let heard = heard.clone();
        let layer = layer(D::pool(to.clone()), limit.clone()).timeout(timeout).on_error(on_error);
        let hears = move |_: &_| {
            heard.fetch_add(1, Ordering::Relaxed);
        };
        found.push(status(limited(layer.on_unchecked(hears)).await, "a").await);
    }
    (found[0], found[1], heard.load(Ordering::Relaxed))
}

/// A role of a test alone, which may only log in.
async fn role(what: &str) -> String {
    let name = unique(what);
    sql(&format!("CREATE ROLE \"{name}\" LOGIN"), &[]).await;
    name
}

async fn no_server_answers<D: Driver>() {
    let nowhere = To { host: "/nowhere".into(), ..To::default() };
    assert_eq!(statuses::<D>(&nowhere, limit(9), LONG).await, (503, 200, 1), "no socket");
    // sqlx tries again until the timeout.
    let no_port = To { host: "127.0.0.1".into(), port: 1, ..To::default() };
    assert_eq!(statuses::<D>(&no_port, limit(9), SHORT).await, (503, 200, 1), "no port");
}

async fn what_passes_unchecked_has_a_decision_as_an_exempt_key_has<D: Driver>() {
    let nowhere = To { host: "/nowhere".into(), ..To::default() };
    let layer = layer(D::pool(nowhere), limit(9)).on_error(OnError::Open);
    let shows = async |Extension(decision): Extension<Decision>| {
        format!("{} {:?} {:?}", decision.ok, decision.remaining, decision.capacity)
    };
    let answer = call(start(Router::new().route("/", get(shows)).layer(layer)).await, "a").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "true None None"));
}

async fn the_server_can_not_now<D: Driver>() {
    let standby = To::with("default_transaction_read_only", "on");
    assert_eq!(statuses::<D>(&standby, limit(9), LONG).await, (503, 200, 1), "read only");
    let full = To { user: role("full").await, ..To::default() };
    sql(&format!("ALTER ROLE \"{}\" CONNECTION LIMIT 0", full.user), &[]).await;
    // sqlx tries again until the timeout.
    assert_eq!(statuses::<D>(&full, limit(9), SHORT).await, (503, 200, 1), "too many connections");
}

async fn a_row_is_locked<D: Driver>() {
    let limit = limit(9);
    let mut holder = admin().await;
    let mut transaction = holder.begin().await.unwrap();
    assert!(limit.take(&mut transaction, "a").await.unwrap().ok);
    let gives_up = To::with("lock_timeout", "20");
    assert_eq!(statuses::<D>(&gives_up, limit.clone(), LONG).await, (503, 200, 1), "lock_timeout");
    let waits = To { most: 1, ..To::default() };
    assert_eq!(statuses::<D>(&waits, limit.clone(), SHORT).await, (503, 200, 1), "our timeout");
    // The connection that waits was given up, or its pool would have none.
    let pool = D::pool(waits);
    let late = limited(layer(pool.clone(), limit.clone()).timeout(SHORT)).await;
    assert_eq!(status(late, "a").await, 503);
    assert_eq!(status(limited(layer(pool, limit)).await, "b").await, 200);
}

async fn mistakes_and_refused_logins_never_pass<D: Driver>() {
    let refused = To { user: "nobody at all".into(), ..To::default() };
    assert_eq!(statuses::<D>(&refused, limit(9), LONG).await, (500, 500, 0), "no such role");
    let elsewhere = To { database: "no_such_database".into(), ..To::default() };
    assert_eq!(statuses::<D>(&elsewhere, limit(9), LONG).await, (500, 500, 0), "no such database");
    let stranger = To { user: role("stranger").await, ..To::default() };
    assert_eq!(statuses::<D>(&stranger, limit(9), LONG).await, (500, 500, 0), "no grant");
    let undefined = Limit::new(unique("undefined"));
    assert_eq!(
        statuses::<D>(&To::default(), undefined, LONG).await,
        (500, 500, 0),
        "no definition"
    );
}

async fn a_connection_is_lost<D: Driver>() {
    let limit = limit(9);
    let to = To { most: 1, ..To::with("application_name", unique("lost")) };
    let app = limited(layer(D::pool(to.clone()), limit.clone())).await;
    assert_eq!(status(app, "a").await, 200);
    // While it is used.
    let mut holder = admin().await;
    let mut transaction = holder.begin().await.unwrap();
    assert!(limit.take(&mut transaction, "a").await.unwrap().ok);
    let waiting = tokio::spawn(status(app, "a"));
    let end = format!("{END} AND wait_event_type = 'Lock'");
    until("the request waits", async || sql(&end, &[&to.settings[0].1]).await == "1").await;
    assert_eq!(waiting.await.unwrap(), 503);
    transaction.rollback().await.unwrap();
    until("a request has passed", async || status(app, "a").await == 200).await;
    // While it is idle.
    assert_eq!(sql(END, &[&to.settings[0].1]).await, "1");
    until("another has passed", async || status(app, "a").await == 200).await;
    let left = limit.take(&mut admin().await, "a").await.unwrap();
    assert_eq!(left.remaining, Some(5.0), "each that passed has taken one");
}

/// Its statement waits on in the server.
async fn a_request_that_is_given_up_keeps_no_connection_of_the_pool<D: Driver>() {
    let limit = limit(9);
    let to = To { most: 1, ..To::with("application_name", unique("given up")) };
    let app = limited(layer(D::pool(to.clone()), limit.clone())).await;
    let mut holder = admin().await;
    let mut transaction = holder.begin().await.unwrap();
    assert!(limit.take(&mut transaction, "a").await.unwrap().ok);
    let client = tokio::spawn(status(app, "a"));
    let waits = "SELECT count(*)::text FROM pg_stat_activity
        WHERE application_name = $1 AND wait_event_type = 'Lock'";
    until("it waits", async || sql(waits, &[&to.settings[0].1]).await == "1").await;
    client.abort();
    assert_eq!(status(app, "b").await, 200);
}

#[tokio::test]
async fn a_client_whose_connection_is_closed() {
    let to = To::with("application_name", unique("closed"));
    let mut client = TokioPostgres::pool(to.clone()).get().await.unwrap();
    client.simple_query("SELECT 1").await.unwrap();
    assert_eq!(sql(END, &[&to.settings[0].1]).await, "1");
    until("it is closed", async || client.is_closed()).await;
    let error = limit(9).take(&mut client, "a").await.unwrap_err();
    assert_eq!((error.is_not_now(), error.code()), (true, None));
}

#[test]
fn errors_that_say_not_now() {
    let of = |code| Error::new("an error", Some(code)).is_not_now();
    assert!(
        ["08000", "08006", "53100", "53200", "57P01", "57P02", "57P03", "57014"]
            .map(of)
            .iter()
            .all(|&is| is)
    );
    // PgBouncer makes 08P01 of a refused login.
    assert!(
        !["08P01", "28P01", "28000", "3D000", "PT429", "42501", "40001"].map(of).contains(&true)
    );
    let unresolved = ("no host.invalid", 1).to_socket_addrs().unwrap_err();
    assert!(Error::new(unresolved, None).is_not_now());
    assert!(!Error::new(io::Error::from(io::ErrorKind::PermissionDenied), None).is_not_now());
    assert!(!Error::new("a mistake", None).is_not_now());
    assert!(Error::unavailable("no connection is left").is_not_now());
}

on_each_driver!(
    a_connection_is_lost,
    a_request_that_is_given_up_keeps_no_connection_of_the_pool,
    a_row_is_locked,
    mistakes_and_refused_logins_never_pass,
    no_server_answers,
    the_server_can_not_now,
    what_passes_unchecked_has_a_decision_as_an_exempt_key_has,
);

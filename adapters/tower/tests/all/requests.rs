//! Requests that are decided: how many pass, and what their responses say.

use axum::Router;
use axum::extract::Extension;
use axum::routing::get;
use postgres_rate_limit::{Decision, Error, Limit, RateLimitLayer, address_key};
use serde_json::{Value, json};

use crate::application::*;

/// The limit has a policy that headers show: 2 a minute.
fn two_a_minute(name: &str) -> Limit {
    let config = json!({ "kind": "fixed window", "rate": 2, "period": "1 minute", "start": "first request" });
    Limit::new(name).config(config)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_100_at_once_to_two_applications_exactly_the_limit_passes() {
    let limit = limit(20);
    let apps = [
        limited(layer(Sqlx::pool(To::default()), limit.clone())).await,
        limited(layer(TokioPostgres::pool(To::default()), limit.clone())).await,
    ];
    let calls: Vec<_> = (0..100).map(|n| tokio::spawn(status(apps[n % 2], "all"))).collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }
    answers.sort();
    assert_eq!(answers, [[200; 20].as_slice(), &[429; 80]].concat());
}

async fn a_denial_is_429_with_its_headers_and_so_is_a_response<D: Driver>() {
    let name = unique("api");
    let app = limited(layer(D::pool(To::default()), two_a_minute(&name))).await;
    for left in [1, 0] {
        let passed = call(app, "a").await;
        assert_eq!((passed.status, passed.body.as_str()), (200, "hello"));
        let begin = format!("\"{name}\";r={left};t=");
        assert!(passed.header("ratelimit").starts_with(&begin), "{passed:?}");
        assert_eq!(passed.header("ratelimit-policy"), format!("\"{name}\";q=2;w=60"));
        assert!(!passed.headers.contains_key("retry-after"));
    }
    let denied = call(app, "a").await;
    assert_eq!((denied.status, denied.body.as_str()), (429, "Too many requests.\n"));
    let wait: u64 = denied.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(denied.header("ratelimit"), format!("\"{name}\";r=0;t={wait}"));
    assert_eq!(denied.header("ratelimit-policy"), format!("\"{name}\";q=2;w=60"));
    assert_eq!(denied.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(status(app, "b").await, 200, "another key");
}

async fn seconds_are_those_of_the_database_whatever_its_clock_shows<D: Driver>() {
    for ahead in ["-1 hour", "-10 seconds", "0", "10 seconds", "1 hour"] {
        let clock = sql("SELECT (clock_timestamp() + $1::interval)::text", &[ahead]).await;
        let to = To { user: "postgres".into(), ..To::with("ratelimit.clock", clock) };
        let limit = two_a_minute(&unique("clock"));
        let pool = D::pool(to);
        let app = limited(layer(pool, limit)).await;
        for expected in [200, 200, 429] {
            let answer = call(app, "a").await;
            assert_eq!(answer.status, expected);
            assert!(answer.header("ratelimit").ends_with(";t=60"), "{ahead}: {answer:?}");
            if expected == 429 {
                assert_eq!(answer.header("retry-after"), "60", "{ahead}");
            }
        }
    }
}

async fn each_of_two_layers_adds_its_headers_and_the_decision<D: Driver>() {
    let names = [unique("inner"), unique("outer")];
    let pool = D::pool(To::default());
    let [inner, outer] = [&names[0], &names[1]].map(|name| layer(pool.clone(), two_a_minute(name)));
    let shows = async |Extension(decision): Extension<Decision>| {
        format!("{:?} of {:?}", decision.remaining, decision.capacity)
    };
    let app = start(Router::new().route("/", get(shows)).layer(inner).layer(outer)).await;
    let answer = call(app, "a").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "Some(1.0) of Some(2.0)"));
    for (text, name) in answer.headers["ratelimit"].iter().zip(&names) {
        assert!(text.starts_with(&format!("\"{name}\";r=1;t=")), "{answer:?}");
    }
    assert_eq!(answer.headers["ratelimit-policy"].len(), 2);
}

/// What the packages share.
fn facts() -> Value {
    serde_json::from_str(include_str!("../../../facts.json")).unwrap()
}

async fn keys_are_stored_as_by_the_other_packages<D: Driver>() {
    let name = unique("keys");
    let keys = facts()["stored keys"].as_array().unwrap().clone();
    for fact in keys {
        let times = fact["times"].as_u64().unwrap_or(1) as usize;
        let key = fact["key"].as_str().unwrap().repeat(times);
        let stored = fact["stored"].as_str().unwrap_or(&key);
        let limit = Limit::new(&name).config(an_hour(1));
        let own = key.clone();
        let layer = RateLimitLayer::new(D::pool(To::default()), limit, move |_| own.clone());
        let app = limited(layer.timeout(LONG)).await;
        assert_eq!([status(app, "").await, status(app, "").await], [200, 429], "{fact}");
        let found = "SELECT count(*)::text FROM rl_status($1) WHERE key = $2";
        assert_eq!(sql(found, &[&name, stored]).await, "1", "{fact}");
    }
}

#[test]
fn errors_say_not_now_as_in_the_other_packages() {
    let facts = &facts()["not now"];
    let of = |code: &str| Error::new("an error", Some(code)).is_not_now();
    let class = format!("{}000", facts["class"].as_str().unwrap());
    let codes = |of: &str| facts[of].as_array().unwrap().clone();
    assert!(of(&class));
    assert!(codes("sqlstates").iter().all(|code| of(code.as_str().unwrap())));
    assert!(!codes("except").iter().any(|code| of(code.as_str().unwrap())));
}

async fn functions_in_a_schema_that_is_named<D: Driver>() {
    let to = || To { database: format!("{}_elsewhere", env("PGDATABASE")), ..To::default() };
    let app = limited(layer(D::pool(to()), limit(1).schema("limits"))).await;
    assert_eq!([status(app, "a").await, status(app, "a").await], [200, 429]);
    let app = limited(layer(D::pool(to()), limit(1))).await;
    assert_eq!(status(app, "a").await, 500, "by the search_path");
}

#[test]
fn an_address_of_ipv6_counts_with_its_network() {
    let keys = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8:1:2:3::4"]
        .map(|address| address_key(address.parse().unwrap()));
    assert_eq!(keys, ["192.0.2.1", "192.0.2.1", "2001:db8:1:2::/64"]);
}

on_each_driver!(
    a_denial_is_429_with_its_headers_and_so_is_a_response,
    each_of_two_layers_adds_its_headers_and_the_decision,
    functions_in_a_schema_that_is_named,
    keys_are_stored_as_by_the_other_packages,
    seconds_are_those_of_the_database_whatever_its_clock_shows,
);

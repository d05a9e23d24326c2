//! Denials that the layer remembers.

use std::time::Duration;

use postgres_rate_limit::Limit;

use crate::application::*;

const RESET: &str = "SELECT rl_reset($1, $2)::text";

async fn a_denied_key_is_answered_without_the_database<D: Driver>() {
    let name = unique("remembered");
    // A clock that stands: waits are whole seconds.
    let settings = vec![("ratelimit.clock", "2027-01-01 12:00:00+00".to_owned())];
    let to = To { user: "postgres".into(), settings, ..To::default() };
    let limit = || layer(D::pool(to.clone()), Limit::new(&name).config(an_hour(1)));
    let app = limited(limit().remember_denials(100, 60 * LONG)).await;
    assert_eq!(status(app, "a").await, 200);
    let denied = call(app, "a").await;
    assert_eq!(denied.header("retry-after"), "3600");
    assert_eq!(sql(RESET, &[&name, "a"]).await, "true");
    // The waits go down, by the clock of the process.
    until("a second has passed", async || {
        let again = call(app, "a").await;
        assert_eq!((again.status, &again.body), (429, &denied.body));
        assert_eq!(again.headers["ratelimit-policy"], denied.headers["ratelimit-policy"]);
        let left = again.header("retry-after");
        assert!(again.header("ratelimit").ends_with(&format!(";t={left}")), "{again:?}");
        left.parse::<u32>().unwrap() < 3600
    })
    .await;
    assert_eq!(status(app, "b").await, 200, "another key");
    assert_eq!(status(limited(limit()).await, "a").await, 200, "which the database allows");
}

async fn for_a_time_and_a_number_of_keys<D: Driver>() {
    let name = unique("forgotten");
    let limit = || layer(D::pool(To::default()), Limit::new(&name).config(an_hour(1)));
    let app = limited(limit().remember_denials(100, Duration::from_nanos(1))).await;
    assert_eq!([status(app, "a").await, status(app, "a").await], [200, 429]);
    sql(RESET, &[&name, "a"]).await;
    assert_eq!(status(app, "a").await, 200, "the time has passed");
    let app = limited(limit().remember_denials(4, 60 * LONG)).await;
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for key in keys {
        assert_eq!([status(app, key).await, status(app, key).await][1], 429);
        assert_eq!(status(app, "a").await, 429);
        sql(RESET, &[&name, key]).await;
    }
    assert_eq!(status(app, "b").await, 200, "forgotten, since others came");
    for key in ["a", "h"] {
        assert_eq!(status(app, key).await, 429, "{key} was used last");
    }
}

on_each_driver!(a_denied_key_is_answered_without_the_database, for_a_time_and_a_number_of_keys);

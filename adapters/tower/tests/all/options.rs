//! What a layer takes, for which requests, and which headers it adds.

use axum::Router;
use axum::extract::Extension;
use axum::http::HeaderName;
use axum::http::request::Parts;
use axum::routing::get;
use postgres_rate_limit::{Decision, Headers, Limit, RateLimitLayer};
use serde_json::json;

use crate::application::*;

/// An application whose requests name their keys: by the header `key` for the first limit, by `tenant` for the second.
async fn of_both<D: Driver>(user: &Limit, tenant: &Limit) -> RateLimitLayer<D::Pool> {
    layer(D::pool(To::default()), user.clone()).and(tenant.clone(), |request| of("tenant", request))
}

fn of(name: &str, request: &Parts) -> String {
    request.headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

async fn asked(app: std::net::SocketAddr, headers: &str) -> Answer {
    send(app, &format!("GET / HTTP/1.1\r\n{headers}"), "").await
}

async fn several_limits_take_all_or_nothing<D: Driver>() {
    let names = [unique("user"), unique("tenant")];
    let [user, tenant] = [&names[0], &names[1]].map(Limit::new);
    let (user, tenant) = (user.config(an_hour(2)), tenant.config(an_hour(3)));
    let shows = async |Extension(decision): Extension<Decision>| {
        format!("{:?} of {:?}", decision.remaining, decision.capacity)
    };
    let layer = of_both::<D>(&user, &tenant).await;
    let app = start(Router::new().route("/", get(shows)).layer(layer)).await;
    let passed = asked(app, "key: ann\r\ntenant: acme").await;
    assert_eq!((passed.status, passed.body.as_str()), (200, "Some(1.0) of Some(2.0)"));
    let begins = format!("\"{}\";r=1;t=", names[0]);
    assert!(passed.header("ratelimit").starts_with(&begins), "{passed:?}");
    assert!(passed.header("ratelimit").contains(&format!(", \"{}\";r=2;t=", names[1])));
    assert_eq!(passed.header("ratelimit-policy").matches(";q=").count(), 2);
    assert_eq!(asked(app, "key: ann\r\ntenant: acme").await.status, 200);
    for _ in 0..3 {
        let denied = asked(app, "key: ann\r\ntenant: acme").await;
        assert_eq!(denied.status, 429, "of the user");
        assert!(denied.header("retry-after").parse::<u32>().unwrap() > 3000);
    }
    let last = asked(app, "key: bob\r\ntenant: acme").await;
    assert_eq!((last.status, last.body.as_str()), (200, "Some(0.0) of Some(3.0)"));
    assert_eq!(asked(app, "key: bob\r\ntenant: acme").await.status, 429, "of the tenant");
    let left = user.take(&mut admin().await, "bob").await.unwrap();
    assert_eq!(left.remaining, Some(0.0), "a request that the other limit denies takes nothing");
}

async fn denials_of_several_limits_are_remembered<D: Driver>() {
    let name = unique("user");
    let user = Limit::new(&name).config(an_hour(1));
    let layer = of_both::<D>(&user, &limit(9)).await.remember_denials(100, 60 * LONG);
    let app = limited(layer).await;
    let ann = "key: ann\r\ntenant: acme";
    assert_eq!([asked(app, ann).await.status, asked(app, ann).await.status], [200, 429]);
    sql("SELECT rl_reset($1, $2)::text", &[&name, "ann"]).await;
    assert_eq!(asked(app, ann).await.status, 429);
    assert_eq!(asked(app, "key: ann\r\ntenant: b").await.status, 200, "another key");
}

async fn a_count_is_of_the_request<D: Driver>() {
    let count = |request: &Parts| of("count", request).parse().unwrap();
    let one = limited(layer(D::pool(To::default()), limit(10)).count(count)).await;
    let of_second = of_both::<D>(&limit(1000), &limit(10)).await.count(count);
    for app in [one, limited(of_second).await] {
        let asks = async |n: &str| asked(app, &format!("key: a\r\ncount: {n}")).await.status;
        assert_eq!([asks("7").await, asks("4").await, asks("2.5").await], [200, 429, 200]);
        assert_eq!([asks("0").await, asks("0.5").await, asks("0.1").await], [200, 200, 429]);
        assert_eq!([asks("NaN").await, asks("inf").await, asks("-1").await], [500; 3]);
        let never = asked(app, "key: a\r\ncount: 11").await;
        assert_eq!((never.status, never.headers.get("retry-after")), (429, None));
    }
}

async fn a_remembered_denial_is_of_its_count<D: Driver>() {
    let layer = layer(D::pool(To::default()), limit(10))
        .count(|request| of("count", request).parse().unwrap())
        .remember_denials(100, 60 * LONG);
    let app = limited(layer).await;
    let asks = async |n: &str| asked(app, &format!("key: a\r\ncount: {n}")).await.status;
    assert_eq!([asks("9").await, asks("9").await, asks("1").await], [200, 429, 200]);
}

async fn requests_are_left_out<D: Driver>() {
    let layer = layer(D::pool(To::default()), limit(1)).skip(|request| request.method == "HEAD");
    let shows = async |decision: Option<Extension<Decision>>| decision.is_some().to_string();
    let app = start(Router::new().route("/", get(shows)).layer(layer)).await;
    for _ in 0..3 {
        let skipped = send(app, "HEAD / HTTP/1.1\r\nkey: a", "").await;
        assert_eq!(skipped.status, 200);
        assert!(!skipped.headers.contains_key("ratelimit"), "{skipped:?}");
        assert_eq!(skipped.header("content-length"), "false".len().to_string());
    }
    let counted = call(app, "a").await;
    assert_eq!((counted.status, counted.body.as_str()), (200, "true"));
    assert_eq!(status(app, "a").await, 429);
}

async fn headers_are_of_a_style_or_renamed_or_off<D: Driver>() {
    let several = of_both::<D>(&limit(1), &limit(9)).await;
    for layer in [layer(D::pool(To::default()), limit(1)), several] {
        let names = |answer: &Answer| {
            let mut names: Vec<_> = answer.headers.keys().cloned().collect();
            names.retain(|name| name.contains("limit") || name.contains("retry"));
            names.sort();
            names
        };
        let github = |name: &str| format!("x-ratelimit-{name}");
        let expected = ["limit", "remaining", "reset", "resource", "used"].map(github).to_vec();
        let app = limited(layer.clone().headers(Headers::Github)).await;
        let passed = call(app, "github").await;
        assert_eq!(names(&passed), expected);
        assert_eq!(passed.header("x-ratelimit-remaining"), "0");
        let denied = call(app, "github").await;
        assert_eq!(names(&denied), [vec!["retry-after".to_owned()], expected].concat());

        let app = limited(layer.clone().headers(Headers::Off)).await;
        assert_eq!(names(&call(app, "off").await), [""; 0]);
        let denied = call(app, "off").await;
        assert_eq!(names(&denied), ["retry-after"]);
        assert!((3000..=3600).contains(&denied.header("retry-after").parse::<u32>().unwrap()));

        let rename = |name: &HeaderName| match name.as_str() {
            "ratelimit" => Some(HeaderName::from_static("x-limit")),
            "retry-after" => Some(name.clone()),
            _ => None,
        };
        let app = limited(layer.rename_headers(rename)).await;
        assert_eq!(names(&call(app, "renamed").await), ["x-limit"]);
        assert_eq!(names(&call(app, "renamed").await), ["retry-after", "x-limit"]);
    }
}

async fn without_headers_the_role_needs_no_grant_for_them<D: Driver>() {
    let role = unique("no headers");
    let schema = place().await;
    sql(&format!("CREATE ROLE \"{role}\" LOGIN"), &[]).await;
    sql(&format!("GRANT USAGE ON SCHEMA {schema} TO \"{role}\""), &[]).await;
    sql(&format!("GRANT EXECUTE ON FUNCTION rl_limit TO \"{role}\""), &[]).await;
    let to = To { user: role, ..To::default() };
    let layer = layer(D::pool(to), limit(1));
    assert_eq!(status(limited(layer.clone()).await, "a").await, 500);
    let app = limited(layer.headers(Headers::Off)).await;
    assert_eq!([status(app, "a").await, status(app, "a").await], [200, 429]);
}

async fn a_mistake_in_one_of_several_limits_is_an_error<D: Driver>() {
    let undefined = Limit::new(unique("undefined"));
    let app = limited(of_both::<D>(&limit(1), &undefined).await).await;
    assert_eq!(status(app, "a").await, 500);
    let keyed = Limit::new(unique("keyed"))
        .config(json!({ "kind": "token bucket", "rate": 1, "period": "1 hour", "keyed": true }));
    let app = limited(of_both::<D>(&limit(1), &keyed).await).await;
    assert_eq!(status(app, "a").await, 500, "without a key");
    assert_eq!(asked(app, "key: a\r\ntenant: b").await.status, 200);
}

on_each_driver!(
    a_count_is_of_the_request,
    a_mistake_in_one_of_several_limits_is_an_error,
    a_remembered_denial_is_of_its_count,
    denials_of_several_limits_are_remembered,
    headers_are_of_a_style_or_renamed_or_off,
    requests_are_left_out,
    several_limits_take_all_or_nothing,
    without_headers_the_role_needs_no_grant_for_them,
);

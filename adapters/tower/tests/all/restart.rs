//! A restart of the server while applications use it.

use std::process::Command;

use postgres_rate_limit::OnError;

use crate::application::*;

fn ctl(arguments: &[&str]) {
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/server");
    let status = Command::new(server).arg("ctl").arg(env("PGHOST")).args(arguments).status();
    assert!(status.unwrap().success(), "{arguments:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "restarts the server, so runs alone"]
async fn while_the_server_is_stopped_requests_fail_or_pass_then_all_count() {
    let (sqlx, tokio_postgres) = (Sqlx::pool(To::default()), TokioPostgres::pool(To::default()));
    let limits = [limit(2), limit(2), limit(2), limit(2)];
    let [a, b, c, d] = limits.clone();
    let apps = [
        limited(layer(sqlx.clone(), a)).await,
        limited(layer(tokio_postgres.clone(), b)).await,
        limited(layer(sqlx.clone(), c).on_error(OnError::Open)).await,
        limited(layer(tokio_postgres.clone(), d).on_error(OnError::Open)).await,
    ];
    for app in apps {
        assert_eq!(status(app, "a").await, 200);
    }
    let own = limit(1);
    let mut transaction = sqlx.begin().await.unwrap();
    assert!(own.take(&mut transaction, "a").await.unwrap().ok);
    ctl(&["stop", "-m", "fast"]);
    // On connections that are lost, then on none.
    for _ in 0..2 {
        for (app, expected) in apps.into_iter().zip([503, 503, 200, 200]) {
            assert_eq!(status(app, "a").await, expected);
        }
    }
    ctl(&["start"]);
    assert!(transaction.commit().await.is_err());
    assert!(own.take(&mut admin().await, "a").await.unwrap().ok, "its token has come back");
    for (app, limit) in apps.into_iter().zip(limits) {
        until("it is asked again", async || status(app, "b").await == 429).await;
        assert_eq!([status(app, "a").await, status(app, "a").await], [200, 429]);
        assert!(!limit.take(&mut admin().await, "a").await.unwrap().ok);
    }
}

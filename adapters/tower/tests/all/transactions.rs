//! Tokens that are taken in the application's own transaction.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postgres_rate_limit::{Error, Limit};

use crate::application::*;

#[tokio::test]
async fn a_rollback_returns_the_token_with_sqlx() {
    let pool = Sqlx::pool(To::default());
    let limit = limit(1);
    for commits in [false, true] {
        let mut transaction = pool.begin().await.unwrap();
        let taken = limit.take(&mut transaction, "a").await.unwrap();
        assert_eq!((taken.ok, taken.remaining, taken.capacity), (true, Some(0.0), Some(1.0)));
        assert_eq!(taken.retry_after, None);
        assert!(!limit.take(&mut *transaction, "a").await.unwrap().ok);
        if commits {
            transaction.commit().await.unwrap();
        } else {
            drop(transaction);
        }
    }
    assert!(!limit.take(&mut pool.acquire().await.unwrap(), "a").await.unwrap().ok);
}

#[tokio::test]
async fn a_rollback_returns_the_token_with_tokio_postgres() {
    let pool = TokioPostgres::pool(To::default());
    let limit = limit(1);
    let mut client = pool.get().await.unwrap();
    let mut transaction = client.transaction().await.unwrap();
    assert!(limit.take(&mut transaction, "a").await.unwrap().ok);
    transaction.rollback().await.unwrap();
    let client: &mut tokio_postgres::Client = &mut client;
    let mut transaction = client.transaction().await.unwrap();
    assert!(limit.take(&mut transaction, "a").await.unwrap().ok);
    transaction.commit().await.unwrap();
    assert!(!limit.take(client, "a").await.unwrap().ok);
}

#[tokio::test]
async fn a_decision_has_waits_and_times_of_the_database() {
    for seconds in ["1798804800.0004", "-1.5"] {
        let to = To { user: "postgres".into(), most: 1, ..To::with("ratelimit.clock", "0") };
        let pool = Sqlx::pool(to);
        let mut db = pool.acquire().await.unwrap();
        let set = "SELECT set_config('ratelimit.clock', to_timestamp($1::float8)::text, false)";
        sqlx::query(set).bind(seconds.parse::<f64>().unwrap()).execute(&mut *db).await.unwrap();
        let limit = limit(3).count(2.0);
        assert!(limit.take(&mut db, "a").await.unwrap().ok);
        let denied = limit.take(&mut db, "a").await.unwrap();
        let hour = Duration::from_secs(3600);
        let end = match seconds {
            "-1.5" => UNIX_EPOCH + hour - Duration::from_millis(1500),
            _ => UNIX_EPOCH + Duration::from_secs(1_798_804_800) + hour + Duration::from_millis(1),
        };
        assert_eq!(
            (denied.ok, denied.remaining, denied.retry_after),
            (false, Some(1.0), Some(hour))
        );
        assert_eq!([denied.retry_at, denied.reset_at], [Some(end); 2] as [Option<SystemTime>; 2]);
    }
    let never = limit(1).count(2.0).take(&mut admin().await, "a").await.unwrap();
    assert_eq!((never.ok, never.retry_after, never.retry_at), (false, None, None));
}

#[tokio::test]
async fn an_error_has_the_sqlstate_and_the_error_of_the_driver() {
    let undefined = Limit::new(unique("undefined"));
    let mut client = TokioPostgres::pool(To::default()).get().await.unwrap();
    let errors: [Error; 2] = [
        undefined.take(&mut admin().await, "a").await.unwrap_err(),
        undefined.take(&mut client, "a").await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.code(), error.is_not_now()), (Some("42704"), false));
        assert!(std::error::Error::source(&error).is_some());
    }
}

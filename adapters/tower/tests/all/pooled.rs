//! Applications behind a pooler that lends a connection of the server for a transaction. `adapters/run` runs them so,
//! too.

use postgres_rate_limit::{Limit, Pool};
use sqlx::Connection;

use crate::application::*;

/// Of requests at once, on connections whose prepared statements are lost meanwhile, exactly the limit passes.
async fn exactly_the_limit_passes<D: Driver>() {
    let pool = D::pool(To { most: 8, ..To::default() });
    for loses in ["SELECT 1", "DEALLOCATE ALL", "DISCARD ALL"] {
        let (lone, first, second) = (limit(20), limit(30), limit(1000));
        let several = layer(pool.clone(), first.clone()).and(second.clone(), |_| "all".to_owned());
        let apps = [limited(layer(pool.clone(), lone.clone())).await, limited(several).await];
        let calls = (0..160).map(|n| {
            let (app, pool) = (apps[n % 2], pool.clone());
            tokio::spawn(async move {
                if n % 20 == 0 {
                    D::execute(&mut pool.get().await.unwrap(), loses).await;
                }
                (n % 2, status(app, "a").await)
            })
        });
        let mut answers = Vec::new();
        for call in calls.collect::<Vec<_>>() {
            answers.push(call.await.unwrap());
        }
        let with = |app, status| answers.iter().filter(|answer| **answer == (app, status)).count();
        assert_eq!([with(0, 200), with(1, 200)], [20, 30], "{loses}: {answers:?}");
        // PgBouncer that knows prepared statements closes the connection of a client that has lost them: 08P01.
        if loses == "SELECT 1" || std::env::var("RATELIMIT_PREPARED").as_deref() != Ok("200") {
            assert_eq!([with(0, 429), with(1, 429)], [60, 50], "{loses}: {answers:?}");
        }
        let mut admin = admin().await;
        let mut transaction = admin.begin().await.unwrap();
        let mut left = async |limit: &Limit, key| limit.take(&mut transaction, key).await.unwrap();
        assert!(!left(&lone, "a").await.ok && !left(&first, "a").await.ok);
        assert_eq!(left(&second, "all").await.remaining, Some(969.0));
    }
}

async fn unprepared_statements_count<D: Driver>() {
    let limit = limit(2);
    let app = limited(layer(D::pool(To::default()), limit.clone()).prepare(false)).await;
    assert_eq!([status(app, "a").await, status(app, "a").await], [200; 2]);
    assert_eq!(status(app, "a").await, 429);
}

/// Each alone, outside of a transaction.
async fn takes_on_a_connection_count<D: Driver>() {
    let (pool, limit) = (D::pool(To { most: 8, ..To::default() }), limit(30));
    let takes = (0..8).map(|_| {
        let (pool, limit) = (pool.clone(), limit.clone());
        tokio::spawn(async move {
            let mut db = pool.get().await.unwrap();
            let mut taken = 0;
            for _ in 0..10 {
                taken += u32::from(limit.take(&mut db, "a").await.unwrap().ok);
            }
            taken
        })
    });
    let mut taken = 0;
    for take in takes.collect::<Vec<_>>() {
        taken += take.await.unwrap();
    }
    assert_eq!(taken, 30);
}

on_each_driver!(unprepared_statements_count, exactly_the_limit_passes, takes_on_a_connection_count);

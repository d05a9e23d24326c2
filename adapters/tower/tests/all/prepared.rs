//! Prepared statements: which are, and what follows when the server has lost or changed one.

use std::cell::Cell;
use std::time::Duration;

use postgres_rate_limit::{Connection, Limit, Pool};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::application::*;

/// The names of our prepared statements of a session.
const NAMES: &str = "SELECT coalesce(string_agg(name, ','), '') FROM pg_prepared_statements
    WHERE statement LIKE '%rl_limit%' AND statement NOT LIKE '%pg_prepared_statements%'";

fn one() -> To {
    To { most: 1, ..To::default() }
}

async fn names<P: Pool>(pool: &P) -> String {
    pool.get().await.unwrap().text(NAMES, &[]).await.unwrap()
}

async fn execute<D: Driver>(pool: &D::Pool, sql: &str) {
    D::execute(&mut pool.get().await.unwrap(), sql).await;
}

/// Puts another statement in the place of the one that the session has prepared.
async fn replace<D: Driver>(pool: &D::Pool, other: &str) {
    let name = names(pool).await;
    execute::<D>(pool, &format!("DEALLOCATE \"{name}\"; PREPARE \"{name}\" {other}")).await;
}

async fn a_layer_prepares_its_statement_once<D: Driver>() {
    let pool = D::pool(one());
    let prepares = layer(pool.clone(), limit(9));
    let app = limited(prepares.clone().prepare(false)).await;
    assert_eq!([status(app, "a").await, status(app, "a").await], [200; 2]);
    assert_eq!(names(&pool).await, "");
    let app = limited(prepares).await;
    assert_eq!([status(app, "a").await, status(app, "b").await], [200; 2]);
    let name = names(&pool).await;
    let begins = name.trim_end_matches(|end: char| end.is_ascii_digit());
    assert!(["sqlx_s_", "s"].contains(&begins), "{name}");
}

#[tokio::test]
async fn nothing_is_prepared_on_a_connection_of_the_application() {
    let pool = Sqlx::pool(one());
    let app = limited(layer(pool.clone(), limit(9))).await;
    assert_eq!(status(app, "a").await, 200);
    let prepared = names(&pool).await;
    assert_ne!(prepared, "");
    let limit = limit(9);
    let mut connection = pool.acquire().await.unwrap();
    assert!(limit.take(&mut connection, "a").await.unwrap().ok);
    assert!(limit.take(&mut *connection, "a").await.unwrap().ok);
    let mut transaction = connection.begin().await.unwrap();
    assert!(limit.take(&mut transaction, "a").await.unwrap().ok);
    assert!(limit.take(&mut *transaction, "a").await.unwrap().ok);
    assert_eq!(transaction.text(NAMES, &[]).await.unwrap(), prepared);
    transaction.commit().await.unwrap();

    let mut client = TokioPostgres::pool(one()).get().await.unwrap();
    assert!(limit.take(&mut client, "a").await.unwrap().ok);
    assert!(limit.take(&mut **client, "a").await.unwrap().ok);
    let mut transaction = client.transaction().await.unwrap();
    assert!(limit.take(&mut transaction, "a").await.unwrap().ok);
    assert_eq!(transaction.text(NAMES, &[]).await.unwrap(), "");
    transaction.commit().await.unwrap();
    assert_eq!(limit.take(&mut admin().await, "a").await.unwrap().remaining, Some(1.0));
}

async fn values_of_unprepared_statements_are_texts_whatever_they_are<D: Driver>() {
    let schema = unique("it's \"$1\" \\");
    let quoted = schema.replace('"', "\"\"");
    let place = place().await;
    let makes = format!(
        "CREATE SCHEMA \"{quoted}\";
        CREATE FUNCTION \"{quoted}\".rl_limit(name text, key text, count float8, config jsonb) RETURNS {place}.rl_result
            LANGUAGE sql AS 'SELECT * FROM {place}.rl_limit($1, $2, $3, config => $4)';
        GRANT USAGE ON SCHEMA \"{quoted}\" TO PUBLIC"
    );
    sqlx::raw_sql(AssertSqlSafe(makes)).execute(&mut admin().await).await.unwrap();
    let to = To { most: 1, ..To::with("standard_conforming_strings", "off") };
    let mut db = D::pool(to).get().await.unwrap();
    let name = unique("'$2\\' \"");
    let limit = Limit::new(&name).config(an_hour(9)).schema(&schema);
    for key in ["'; SELECT $1", "\\'", "\"", "$2", "é\u{1f600}", ""] {
        assert!(limit.take(&mut db, key).await.unwrap().ok, "{key}");
        let stored = "SELECT count(*)::text FROM rateLimits WHERE name = $1 AND key = $2";
        assert_eq!(sql(stored, &[&name, key]).await, "1", "{key}");
    }
    assert_eq!(limit.take(&mut db, "nul \0").await.unwrap_err().code(), Some("22021"));
    let drops = format!("DROP SCHEMA \"{quoted}\" CASCADE");
    sqlx::raw_sql(AssertSqlSafe(drops)).execute(&mut admin().await).await.unwrap();
}

/// sqlx doesn't know of it.
#[tokio::test]
async fn a_transaction_that_is_begun_by_sql_stays_open() {
    let (mut db, limit) = (Sqlx::pool(one()).acquire().await.unwrap(), limit(9));
    Sqlx::execute(&mut db, "BEGIN").await;
    assert!(limit.take(&mut db, "a").await.unwrap().ok);
    Sqlx::execute(&mut db, "ROLLBACK").await;
    assert_eq!(limit.take(&mut db, "a").await.unwrap().remaining, Some(8.0));
}

/// Counts our warnings on each thread.
struct Warnings;

thread_local!(static WARNINGS: Cell<usize> = const { Cell::new(0) });

impl Subscriber for Warnings {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() == Level::WARN && of.target().starts_with("postgres_rate_limit")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        WARNINGS.set(WARNINGS.get() + 1);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// How many warnings this thread has had: those since the first call.
pub fn warnings() -> usize {
    let _ = tracing::subscriber::set_global_default(Warnings);
    WARNINGS.get()
}

async fn after_three_refusals_in_a_minute_none_is_prepared_for_ten<D: Driver>() {
    assert_eq!(warnings(), 0);
    let pool = D::pool(one());
    let limit = limit(100);
    let app = limited(layer(pool.clone(), limit.clone())).await;
    let mut passed = 0;
    let mut passes = async || {
        assert_eq!(status(app, "a").await, 200);
        passed += 1;
    };
    for rounds in [2, 3, 3] {
        for _ in 0..rounds {
            passes().await;
            assert_ne!(names(&pool).await, "");
            execute::<D>(&pool, "DEALLOCATE ALL").await;
            passes().await;
            assert_eq!(names(&pool).await, "", "on another connection");
        }
        if rounds == 2 {
            assert_eq!(warnings(), 0);
            pass(Duration::from_secs(61)).await; // so these are too old
            continue;
        }
        assert_eq!(warnings(), 1);
        passes().await;
        pass(Duration::from_secs(590)).await;
        passes().await;
        assert_eq!(names(&pool).await, "");
        pass(Duration::from_secs(11)).await;
    }
    let left = limit.take(&mut admin().await, "a").await.unwrap();
    assert_eq!(left.remaining, Some(f64::from(99 - passed)));
}

async fn another_statement_of_that_name_does_nothing<D: Driver>() {
    let (pool, name) = (D::pool(one()), unique("replaced"));
    let app = limited(layer(pool.clone(), Limit::new(&name).config(an_hour(9)))).await;
    assert_eq!(status(app, "a").await, 200);
    let text = "SELECT statement FROM pg_prepared_statements WHERE name = $1";
    let mine = names(&pool).await;
    let text = pool.get().await.unwrap().text(text, &[Some(&mine)]).await.unwrap();
    let (before, tag) = text.split_once("= 'rl_").expect("its tag");
    assert_eq!(tag.len(), 17);
    let other = format!("(text, text, text, text, text) AS {before} = 'rl_0123456789abcdef'");
    replace::<D>(&pool, &other).await;
    assert_eq!(
        call(app, "a").await.header("ratelimit").split(";t=").next(),
        Some(&*format!("\"{name}\";r=7"))
    );
    assert_eq!(names(&pool).await, "", "on another connection");
}

async fn a_result_that_has_changed_is_sent_again<D: Driver>() {
    let (pool, limit, table) = (D::pool(one()), limit(9), unique("changed"));
    let app = limited(layer(pool.clone(), limit.clone())).await;
    assert_eq!(status(app, "a").await, 200);
    sql(&format!("CREATE TABLE \"{table}\" (a text)"), &[]).await;
    sql(&format!("GRANT ALL ON \"{table}\" TO PUBLIC"), &[]).await;
    let columns = format!(
        "(text, text, text, text, text) AS SELECT * FROM public.\"{table}\" WHERE a = $1 || $5"
    );
    replace::<D>(&pool, &columns).await;
    sql(&format!("ALTER TABLE \"{table}\" ADD b text"), &[]).await;
    assert_eq!(status(app, "a").await, 200);
    assert_eq!(names(&pool).await, "", "on another connection");
    let left = limit.take(&mut admin().await, "a").await.unwrap();
    assert_eq!(left.remaining, Some(6.0));
}

async fn other_errors_are_not_sent_again<D: Driver>() {
    let (pool, own) = (D::pool(one()), limit(9));
    let app = limited(layer(pool.clone(), own.clone())).await;
    assert_eq!(status(app, "a").await, 200);
    replace::<D>(&pool, "(text) AS SELECT $1").await;
    assert_eq!(status(app, "a").await, 500, "08P01");
    assert_eq!(own.take(&mut admin().await, "a").await.unwrap().remaining, Some(7.0));
    let pool = D::pool(one());
    let slots = json!({ "kind": "concurrency", "slots": 2, "ttl": "1 minute" });
    let app = limited(layer(pool.clone(), Limit::new(unique("slots")).config(slots))).await;
    for _ in 0..4 {
        assert_eq!(status(app, "a").await, 500, "0A000 of the limiter");
        assert_ne!(names(&pool).await, "");
    }
}

on_one_thread!(
    a_layer_prepares_its_statement_once,
    a_result_that_has_changed_is_sent_again,
    after_three_refusals_in_a_minute_none_is_prepared_for_ten,
    another_statement_of_that_name_does_nothing,
    other_errors_are_not_sent_again,
    values_of_unprepared_statements_are_texts_whatever_they_are,
);

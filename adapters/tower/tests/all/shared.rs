//! Statements that calls share. In these tests one thread runs everything, so calls that begin together are all there
//! before the first is answered: it goes alone, and the others wait for it, since no time passes.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use axum::routing::get;
use postgres_rate_limit::{Error, Headers, Limit, OnError, Pool, RateLimitLayer};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres};
use tokio::task::JoinHandle;
use tower_service::Service;

use crate::application::*;
use crate::prepared::warnings;

/// How many transactions have written the rows of a limit.
const TRANSACTIONS: &str =
    "SELECT count(DISTINCT xmin::text)::text FROM rateLimits WHERE name = $1";

/// How many statements of an application are under way.
const UNDER_WAY: &str = "SELECT count(*)::text FROM pg_stat_activity
    WHERE application_name = $1 AND state = 'active'";

pub fn routes<P: Pool>(layer: RateLimitLayer<P>) -> Router {
    let count = |request: &axum::http::request::Parts| {
        request.headers.get("count").map_or(1.0, |count| count.to_str().unwrap().parse().unwrap())
    };
    Router::new().route("/", get("hello")).layer(layer.count(count))
}

/// Begins calls together, of these keys and counts.
async fn begin<'a>(
    app: &Router,
    calls: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<JoinHandle<Response>> {
    begin_each(calls.into_iter().map(|(key, count)| (app, key, count))).await
}

/// The same, of applications, too.
async fn begin_each<'a>(
    calls: impl IntoIterator<Item = (&'a Router, &'a str, &'a str)>,
) -> Vec<JoinHandle<Response>> {
    let begins = |(app, key, count): (&Router, _, _)| {
        let request = Request::get("/").header("key", key).header("count", count);
        let answer = app.clone().call(request.body(Body::empty()).unwrap());
        tokio::spawn(async { answer.await.unwrap() })
    };
    let begun = calls.into_iter().map(begins).collect();
    tokio::task::yield_now().await;
    begun
}

async fn answers(begun: Vec<JoinHandle<Response>>) -> Vec<Response> {
    let mut answers = Vec::new();
    for call in begun {
        answers.push(tokio::time::timeout(2 * LONG, call).await.expect("an answer").unwrap());
    }
    answers
}

/// Lets a statement be late, so that it counts no longer.
async fn late() {
    tokio::time::advance(Duration::from_millis(21)).await;
}

async fn statuses(begun: Vec<JoinHandle<Response>>) -> Vec<u16> {
    answers(begun).await.iter().map(|answer| answer.status().as_u16()).collect()
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("key {n}")).collect()
}

fn each_one(keys: &[String]) -> impl Iterator<Item = (&str, &str)> {
    keys.iter().map(|key| (&**key, "1"))
}

/// A limit by its name, and calls that pg_stat_activity shows by a name of their own.
fn named<D: Driver>(rate: u32) -> (String, Limit, RateLimitLayer<D::Pool>, String) {
    let (name, application) = (unique("shared"), unique("shared"));
    let limit = Limit::new(&name).config(an_hour(rate));
    let to = To::with("application_name", &application);
    (name, limit.clone(), layer(D::pool(to), limit), application)
}

async fn calls_that_come_meanwhile_go_together<D: Driver>() {
    let _clock = stop_clock();
    let (name, _, layer, _) = named::<D>(9);
    let keys = keys(50);
    assert_eq!(statuses(begin(&routes(layer), each_one(&keys)).await).await, [200; 50]);
    assert_eq!(sql(TRANSACTIONS, &[&name]).await, "2", "the first, and the others");
    let (name, _, layer, _) = named::<D>(9);
    let alone = routes(layer.batch(false));
    assert_eq!(statuses(begin(&alone, each_one(&keys)).await).await, [200; 50]);
    assert_eq!(sql(TRANSACTIONS, &[&name]).await, "50");
}

async fn a_statement_has_at_most_64_calls<D: Driver>() {
    let _clock = stop_clock();
    let (name, limit, layer, _) = named::<D>(9);
    let app = routes(layer);
    let mut holder = admin().await;
    let mut transaction = holder.begin().await.unwrap();
    assert!(limit.take(&mut transaction, "held").await.unwrap().ok);
    let mut begun = begin(&app, [("held", "1")]).await;
    let keys = keys(140);
    for keys in keys.chunks(20) {
        begun.extend(begin(&app, each_one(keys)).await);
    }
    late().await;
    let held = begun.remove(0);
    assert_eq!(statuses(begun).await, [200; 140]);
    transaction.rollback().await.unwrap();
    assert_eq!(statuses(vec![held]).await, [200]);
    let counts = "SELECT string_agg(count::text, ' ' ORDER BY count) FROM (
        SELECT count(*) FROM rateLimits WHERE name = $1 GROUP BY xmin::text) AS t";
    assert_eq!(sql(counts, &[&name]).await, "1 12 64 64");
}

/// A pool that writes down how often it is asked for a connection, and how many requests each statement has: 0 is
/// rl_limit.
#[derive(Clone)]
struct Recorded<P> {
    pool: P,
    asked: Arc<AtomicUsize>,
    sent: Arc<Mutex<Vec<usize>>>,
}

impl<P> Recorded<P> {
    fn of(pool: P) -> Self {
        Self { pool, asked: Arc::default(), sent: Arc::default() }
    }
    /// The statements since the last look.
    fn sent(&self) -> Vec<usize> {
        mem::take(&mut self.sent.lock().unwrap())
    }
}

struct RecordedConnection<C> {
    connection: C,
    sent: Arc<Mutex<Vec<usize>>>,
}

impl<C: postgres_rate_limit::Connection> postgres_rate_limit::Connection for RecordedConnection<C> {
    async fn text(&mut self, sql: &str, values: &[Option<&str>]) -> Result<String, Error> {
        self.connection.text(sql, values).await
    }
}

impl<P: Pool> Pool for Recorded<P> {
    type Connection = RecordedConnection<P::Connection>;

    async fn get(&self) -> Result<Self::Connection, Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await; // a driver may have an answer at once: first come the other calls
        Ok(RecordedConnection { connection: self.pool.get().await?, sent: self.sent.clone() })
    }

    async fn run(
        connection: &mut Self::Connection,
        sql: &str,
        values: &[Option<&str>],
        prepares: bool,
    ) -> Result<Option<String>, Error> {
        let requests = sql.contains("rl_limit_each").then(|| values[3].unwrap());
        let requests = requests.map_or(0, |requests| {
            serde_json::from_str::<Vec<serde_json::Value>>(requests).unwrap().len()
        });
        connection.sent.lock().unwrap().push(requests);
        P::run(&mut connection.connection, sql, values, prepares).await
    }

    fn discard(connection: Self::Connection) {
        P::discard(connection.connection);
    }
}

async fn a_statement_has_at_most_a_megabyte<D: Driver>() {
    let _clock = stop_clock();
    let pool = Recorded::of(D::pool(To::default()));
    let limit = Limit::new("x".repeat(400_000)).config(an_hour(9));
    let app = routes(layer(pool.clone(), limit));
    let keys = keys(6);
    assert_eq!(statuses(begin(&app, each_one(&keys)).await).await, [500; 6], "too long a name");
    assert_eq!(pool.sent(), [0, 2, 2, 0]);
}

/// As long as the statements are under way by the clock.
async fn a_statement_counts_for_4_times_the_median<D: Driver>() {
    let _clock = stop_clock();
    let (name, _, application) = elsewhere_named::<D>(vec![]).await;
    let to = To { database: elsewhere(), ..To::with("application_name", &application) };
    let pool = Recorded::of(D::pool(to));
    let limit = Limit::new(&name).config(an_hour(1000)).schema("limits");
    let app = routes(layer(pool.clone(), limit));
    let mut holder = owner().await;
    let under_way = async |most: &str| {
        until("they wait", async || sql(UNDER_WAY, &[&application]).await == most).await;
    };
    for (key, milliseconds) in [("a", 100), ("b", 2000), ("c", 100)] {
        let transaction = lock(&mut holder, &name).await;
        let begun = begin(&app, [(key, "1")]).await;
        under_way("1").await;
        tokio::time::advance(Duration::from_millis(milliseconds)).await;
        transaction.rollback().await.unwrap();
        assert_eq!(statuses(begun).await, [200]);
    }
    let transaction = lock(&mut holder, &name).await;
    let begun = begin(&app, [("d", "1"), ("e", "1"), ("f", "1")]).await;
    under_way("1").await;
    for (milliseconds, asked) in [(390, 4), (20, 5)] {
        tokio::time::advance(Duration::from_millis(milliseconds)).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.asked.load(Ordering::Relaxed), asked);
    }
    under_way("2").await;
    transaction.rollback().await.unwrap();
    assert_eq!(statuses(begun).await, [200; 3]);
    assert_eq!(pool.sent(), [0, 0, 0, 0, 2]);
}

/// A schema of its own with rl_limit and rl_limit_each, which says how long it may wait for rows, and fails if it is
/// set to.
async fn own_schema() -> String {
    let (schema, place) = (unique("own"), place().await);
    let makes = format!(
        "CREATE SCHEMA \"{schema}\"; GRANT USAGE ON SCHEMA \"{schema}\" TO PUBLIC;
        CREATE FUNCTION \"{schema}\".rl_limit(name text, key text, count float8, config jsonb)
            RETURNS {place}.rl_result LANGUAGE sql AS 'SELECT * FROM {place}.rl_limit($1, $2, $3, config => $4)';
        CREATE FUNCTION \"{schema}\".rl_limit_each(requests jsonb, lock_wait interval)
            RETURNS SETOF {place}.rl_limit_all_result LANGUAGE plpgsql AS $$ BEGIN
                PERFORM set_config('tower.wait', lock_wait::text, false);
                IF current_setting('tower.fails', true) <> '' THEN
                    RAISE 'as it is set' USING ERRCODE = current_setting('tower.fails');
                END IF;
                RETURN QUERY SELECT * FROM {place}.rl_limit_each($1, $2);
            END $$;"
    );
    sqlx::raw_sql(AssertSqlSafe(makes)).execute(&mut admin().await).await.unwrap();
    schema
}

async fn drop_schema(schema: &str) {
    let drops = format!("DROP SCHEMA \"{schema}\" CASCADE");
    sqlx::raw_sql(AssertSqlSafe(drops)).execute(&mut admin().await).await.unwrap();
}

async fn locked_rows_are_waited_for_5_ms_or_a_tenth_of_deadlock_timeout<D: Driver>() {
    let _clock = stop_clock();
    let schema = own_schema().await;
    for (deadlock, expected) in
        [("1s", "00:00:00.005"), ("20ms", "00:00:00.002"), ("1ms", "00:00:00.0001")]
    {
        let to = To { user: "postgres".into(), most: 1, ..To::with("deadlock_timeout", deadlock) };
        let pool = D::pool(to);
        let layer = layer(pool.clone(), limit(9).schema(&schema)).headers(Headers::Off);
        let calls = ["a", "b", "c"].map(|key| (key, "1"));
        assert_eq!(statuses(begin(&routes(layer), calls).await).await, [200; 3]);
        let mut connection = pool.get().await.unwrap();
        let wait =
            postgres_rate_limit::Connection::text(&mut connection, "SHOW tower.wait", &[]).await;
        assert_eq!(wait.unwrap(), expected, "{deadlock}");
    }
    drop_schema(&schema).await;
}

async fn where_calls_can_not_go_together_they_go_alone_quietly_for_ten_minutes<D: Driver>() {
    let _clock = stop_clock();
    assert_eq!(warnings(), 0);
    for (code, ends, begins) in [
        (
            "42883",
            "ALTER FUNCTION rl_limit_each RENAME TO gone",
            "ALTER FUNCTION gone RENAME TO rl_limit_each",
        ),
        (
            "42501",
            "REVOKE EXECUTE ON FUNCTION rl_limit_each FROM PUBLIC",
            "GRANT EXECUTE ON FUNCTION rl_limit_each TO PUBLIC",
        ),
        (
            "0A000",
            "ALTER FUNCTION rl_limit_each SET tower.fails = '0A000'",
            "ALTER FUNCTION rl_limit_each RESET tower.fails",
        ),
    ] {
        let schema = own_schema().await;
        let runs = async |text: &str| {
            let text = format!("SET search_path = \"{schema}\"; {text}");
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut admin().await).await.unwrap();
        };
        runs(ends).await;
        let pool = Recorded::of(D::pool(To::default()));
        let layer = layer(pool.clone(), limit(9).schema(&schema)).headers(Headers::Off);
        let app = routes(layer);
        let keys = keys(4);
        let together = async || {
            assert_eq!(statuses(begin(&app, each_one(&keys)).await).await, [200; 4], "{code}");
            pool.sent()
        };
        assert_eq!(together().await, [0, 3, 0, 0, 0], "{code}");
        runs(begins).await;
        tokio::time::advance(Duration::from_secs(590)).await;
        assert_eq!(together().await, [0; 4], "{code}");
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(together().await, [0, 3], "{code}");
        drop_schema(&schema).await;
    }
    assert_eq!(warnings(), 0);
}

async fn each_call_has_its_own_answer<D: Driver>() {
    let _clock = stop_clock();
    let (name, _, layer, _) = named::<D>(20);
    let same = ["same"; 30].map(|key| (key, "1"));
    let answers = answers(begin(&routes(layer.clone()), same).await).await;
    let mut left = Vec::new();
    for answer in answers {
        let header = answer.headers()["ratelimit"].to_str().unwrap();
        let r = header.strip_prefix(&format!("\"{name}\";r=")).unwrap().split(';').next().unwrap();
        left.push((answer.status().as_u16(), r.parse::<usize>().unwrap()));
        assert_eq!(answer.headers().contains_key("retry-after"), answer.status() == 429);
        assert!(answer.headers().contains_key("ratelimit-policy"));
    }
    let expected: Vec<_> = (0..30).map(|n| if n < 20 { (200, 19 - n) } else { (429, 0) }).collect();
    assert_eq!(left, expected);
    // Wrong ones, and one of a key that isn't stored as it is.
    let long = "k".repeat(1025);
    let calls = [("a", "1"), ("a", "NaN"), ("b", "20"), ("c", "-1"), ("d", "21"), (&*long, "1")];
    let found = statuses(begin(&routes(layer), calls).await).await;
    assert_eq!(found, [200, 500, 200, 500, 429, 200]);
}

/// Also of those that a statement takes while another one waits.
async fn exactly_the_limit_passes<D: Driver>() {
    let limit = limit(500);
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let app = routes(layer(D::pool(To::default()), limit.clone()));
            tokio::spawn(async move {
                let mut passed = 0;
                for _ in 0..5 {
                    let begun = begin(&app, ["hot"; 40].map(|key| (key, "1"))).await;
                    passed += statuses(begun).await.iter().filter(|status| **status == 200).count();
                }
                passed
            })
        })
        .collect();
    let mut passed = 0;
    for call in calls {
        passed += call.await.unwrap();
    }
    assert_eq!(passed, 500);
}

async fn a_locked_row_delays_only_its_own_calls<D: Driver>() {
    let _clock = stop_clock();
    let (name, limit, layer, application) = named::<D>(9);
    let mut holder = admin().await;
    let mut transaction = holder.begin().await.unwrap();
    for key in ["held", "held, too"] {
        assert!(limit.take(&mut transaction, key).await.unwrap().ok);
    }
    let app = routes(layer);
    // The last one comes in the same statement as others, and is then sent alone.
    let mut begun = begin(&app, [("a", "1"), ("b", "1"), ("c", "1"), ("held", "1")]).await;
    let held = begun.pop().unwrap();
    assert_eq!(statuses(begun).await, [200; 3]);
    assert_eq!(sql(TRANSACTIONS, &[&name]).await, "2");
    until("it waits", async || sql(UNDER_WAY, &[&application]).await == "1").await;
    assert_eq!(statuses(begin(&app, [("d", "1"), ("e", "1")]).await).await, [200; 2]);
    // One that goes alone holds the others up until it is late.
    let mut begun = begin(&app, [("held, too", "1"), ("f", "1"), ("g", "1")]).await;
    let first = begun.remove(0);
    until("both wait", async || sql(UNDER_WAY, &[&application]).await == "2").await;
    assert!(!begun[0].is_finished());
    late().await;
    assert_eq!(statuses(begun).await, [200; 2]);
    assert!(!held.is_finished() && !first.is_finished());
    transaction.rollback().await.unwrap();
    assert_eq!(statuses(vec![held, first]).await, [200; 2]);
    for key in ["held", "held, too"] {
        assert_eq!(limit.take(&mut admin().await, key).await.unwrap().remaining, Some(7.0));
    }
}

/// However many calls there are for a locked row, one of them waits on a connection.
async fn a_locked_row_holds_up_no_others<D: Driver>() {
    let _clock = stop_clock();
    let (name, application) = (unique("locked"), unique("locked"));
    let limit = Limit::new(&name).config(an_hour(1000));
    let pool = D::pool(To { most: 2, ..To::with("application_name", &application) });
    let app = routes(layer(pool, limit.clone()));
    let others = keys(20);
    let mut holder = admin().await;
    for first in ["busy", "another"] {
        let mut transaction = holder.begin().await.unwrap();
        assert!(limit.take(&mut transaction, "busy").await.unwrap().ok);
        let mut begun = begin(&app, [(first, "1")]).await;
        begun.extend(begin(&app, ["busy"; 20].map(|key| (key, "1"))).await);
        late().await;
        for _ in 0..2 {
            assert_eq!(statuses(begin(&app, each_one(&others)).await).await, [200; 20]);
        }
        until("one waits", async || sql(UNDER_WAY, &[&application]).await == "1").await;
        assert!(begun.iter().skip(1).all(|call| !call.is_finished()));
        transaction.rollback().await.unwrap();
        assert_eq!(statuses(begun).await, [200; 21]);
    }
    let left = limit.take(&mut admin().await, "busy").await.unwrap().remaining;
    assert_eq!(left, Some(1000.0 - 41.0 - 1.0));
}

/// Of calls that wait for one for a locked row, one that is given up holds up none, nor does that one.
async fn a_call_for_a_locked_row_may_be_given_up<D: Driver>() {
    let _clock = stop_clock();
    let (name, limit, layer, application) = named::<D>(9);
    let app = routes(layer);
    let mut holder = admin().await;
    let mut transaction = holder.begin().await.unwrap();
    assert!(limit.take(&mut transaction, "busy").await.unwrap().ok);
    let mut begun = begin(&app, ["busy"; 4].map(|key| (key, "1"))).await;
    until("one waits", async || sql(UNDER_WAY, &[&application]).await == "1").await;
    late().await;
    begun.remove(1).abort();
    begun.remove(0).abort();
    let waits = "SELECT count(*)::text FROM pg_stat_activity
        WHERE application_name = $1 AND state = 'active' AND query LIKE '%rl_limit(%'";
    until("another one waits", async || sql(waits, &[&application]).await == "2").await;
    transaction.rollback().await.unwrap();
    assert_eq!(statuses(begun).await, [200; 2]);
    let taken = "SELECT (9 - value)::text FROM rateLimits WHERE name = $1";
    until("none waits", async || sql(UNDER_WAY, &[&application]).await == "0").await;
    assert!(["2", "3"].contains(&&*sql(taken, &[&name]).await), "the first may have been taken");
}

async fn layers_made_from_one_another_share_statements<D: Driver>() {
    let _clock = stop_clock();
    let pool = Recorded::of(D::pool(To::default()));
    let first = layer(pool.clone(), limit(2)).remember_denials(100, LONG);
    let other = first.another(limit(1), header_key);
    let apart = first.clone().prepare(false);
    let apps = [&first, &other, &apart].map(|layer| routes(layer.clone()));
    let of = |app: usize| (&apps[app], "a", "1");
    assert_eq!(
        statuses(begin_each([0, 1, 0, 1, 1].map(of)).await).await,
        [200, 200, 200, 429, 429]
    );
    assert_eq!(pool.sent(), [0, 4]);
    // The other knows nothing of a denial of the one.
    assert_eq!(statuses(begin_each([0, 1, 1, 0].map(of)).await).await, [429; 4]);
    assert_eq!(pool.sent(), [0, 0]);
    assert_eq!(statuses(begin_each([2, 0].map(of)).await).await, [429; 2]);
    assert_eq!(pool.sent(), [0; 0]);
}

async fn requests_for_one_row_with_two_configs_go_apart<D: Driver>() {
    let _clock = stop_clock();
    let (pool, name) = (Recorded::of(D::pool(To::default())), unique("two"));
    let limit = |rate| Limit::new(&name).config(an_hour(rate));
    let first = layer(pool.clone(), limit(20));
    let other = routes(first.another(limit(10), header_key));
    let apps = [routes(first), other];
    let calls = (0..6).map(|n| (&apps[n % 2], "a", "1"));
    assert_eq!(statuses(begin_each(calls).await).await, [200; 6]);
    assert_eq!(pool.sent(), [0, 3, 2]);
    let calls = (0..6).map(|n| (&apps[n % 2], ["b", "c"][n % 2], "1"));
    assert_eq!(statuses(begin_each(calls).await).await, [200; 6]);
    assert_eq!(pool.sent(), [0, 5]);
}

async fn a_statement_lasts_as_long_as_its_calls_may<D: Driver>() {
    let _clock = stop_clock();
    let (name, long, application) = elsewhere_named::<D>(vec![]).await;
    let short = long.clone().timeout(LONG / 2);
    let apps = [routes(long), routes(short)];
    let mut holder = owner().await;
    let transaction = lock(&mut holder, &name).await;
    let calls = [(&apps[1], "a", "1"), (&apps[1], "b", "1"), (&apps[0], "c", "1")];
    let mut begun = begin_each(calls).await;
    late().await;
    until("both statements wait", async || sql(UNDER_WAY, &[&application]).await == "2").await;
    tokio::time::advance(LONG / 2 + Duration::from_secs(1)).await;
    let last = begun.pop().unwrap();
    assert_eq!(statuses(begun).await, [503; 2]);
    transaction.rollback().await.unwrap();
    assert_eq!(statuses(vec![last]).await, [200]);
}

fn elsewhere() -> String {
    format!("{}_elsewhere", env("PGDATABASE"))
}

/// A connection of the superuser to the other database.
async fn owner() -> PgConnection {
    PgConnection::connect_with(&options("postgres", &elsewhere())).await.unwrap()
}

/// Runs a statement there.
async fn there(text: &str, values: &[&str]) -> String {
    let mut query = sqlx::query_scalar(AssertSqlSafe(text));
    for value in values {
        query = query.bind(value);
    }
    query.fetch_one(&mut owner().await).await.unwrap()
}

/// A limit in the other database, whose table has a trigger: new keys wait until none locks the name, but not for a
/// lock, and then `raise CODE` raises that error. A sequence counts those.
async fn elsewhere_named<D: Driver>(
    settings: Vec<(&'static str, String)>,
) -> (String, RateLimitLayer<D::Pool>, String) {
    static TRIGGER: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    let makes = async || {
        let trigger = "CREATE OR REPLACE FUNCTION limits.raises() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
                WHILE NOT pg_try_advisory_xact_lock_shared(hashtext(NEW.name)) LOOP
                    PERFORM pg_sleep(0.01);
                END LOOP;
                IF NEW.key LIKE 'raise %' THEN
                    PERFORM nextval(format('limits.%I', NEW.name));
                    RAISE 'an error' USING ERRCODE = right(NEW.key, 5);
                END IF;
                RETURN NEW;
            END $$;
            CREATE OR REPLACE TRIGGER raises BEFORE INSERT ON limits.rateLimits FOR EACH ROW
                WHEN (NEW.name LIKE 'raises %') EXECUTE FUNCTION limits.raises()";
        sqlx::raw_sql(trigger).execute(&mut owner().await).await.unwrap();
    };
    TRIGGER.get_or_init(makes).await;
    let (name, application) = (unique("raises"), unique("raises"));
    let sequence = AssertSqlSafe(format!("CREATE SEQUENCE limits.\"{name}\""));
    sqlx::raw_sql(sequence).execute(&mut owner().await).await.unwrap();
    let limit = Limit::new(&name).config(an_hour(1000)).schema("limits");
    let mut to = To { database: elsewhere(), settings, ..To::default() };
    to.settings.push(("application_name", application.clone()));
    (name, layer(D::pool(to), limit), application)
}

/// Statements that insert keys of this limit wait until the transaction ends.
async fn lock<'a>(holder: &'a mut PgConnection, name: &str) -> sqlx::Transaction<'a, Postgres> {
    let mut transaction = holder.begin().await.unwrap();
    let lock = sqlx::query("SELECT pg_advisory_xact_lock(hashtext($1))").bind(name.to_owned());
    lock.execute(&mut *transaction).await.unwrap();
    transaction
}

/// The keys of a limit there, and what has been taken of each.
async fn taken(name: &str) -> String {
    let taken = "SELECT coalesce(string_agg(key || ' ' || 1000 - value, ',' ORDER BY key), '')
        FROM limits.rateLimits WHERE name = $1";
    there(taken, &[name]).await
}

async fn a_call_that_is_given_up_ends_alone<D: Driver>() {
    let _clock = stop_clock();
    let (name, layer, application) = elsewhere_named::<D>(vec![]).await;
    let app = routes(layer);
    let mut holder = owner().await;
    let transaction = lock(&mut holder, &name).await;
    let mut begun = begin(&app, each_one(&["a", "b", "c", "d"].map(String::from))).await;
    let never = begin(&app, [("never", "1")]).await;
    never[0].abort();
    tokio::task::yield_now().await;
    late().await;
    until("both statements wait", async || sql(UNDER_WAY, &[&application]).await == "2").await;
    begun.remove(1).abort(); // its statement is the shared one
    transaction.rollback().await.unwrap();
    assert_eq!(statuses(begun).await, [200; 3]);
    assert_eq!(taken(&name).await, "a 1,b 1,c 1,d 1");
}

async fn a_first_call_that_is_given_up_holds_none_up<D: Driver>() {
    let _clock = stop_clock();
    let (name, layer, application) = elsewhere_named::<D>(vec![]).await;
    let app = routes(layer);
    let mut holder = owner().await;
    let transaction = lock(&mut holder, &name).await;
    let first = begin(&app, [("a", "1")]).await;
    first[0].abort();
    let begun = begin(&app, [("b", "1"), ("c", "1"), ("d", "1")]).await;
    until("the next waits", async || sql(UNDER_WAY, &[&application]).await != "0").await;
    transaction.rollback().await.unwrap();
    assert_eq!(statuses(begun).await, [200; 3]);
}

async fn a_timeout_ends_its_calls<D: Driver>() {
    let _clock = stop_clock();
    let (name, layer, application) = elsewhere_named::<D>(vec![]).await;
    let mut holder = owner().await;
    let transaction = lock(&mut holder, &name).await;
    let keys = ["a", "b", "c", "d"].map(String::from);
    let begun = begin(&routes(layer.clone()), each_one(&keys)).await;
    late().await;
    until("both statements wait", async || sql(UNDER_WAY, &[&application]).await == "2").await;
    tokio::time::advance(LONG).await;
    assert_eq!(statuses(begun).await, [503; 4]);
    transaction.rollback().await.unwrap();
    until("none waits", async || sql(UNDER_WAY, &[&application]).await == "0").await;
    assert_eq!(statuses(begin(&routes(layer), each_one(&keys)).await).await, [200; 4]);
    // The late statements may have run on, but none has been sent twice.
    let taken = taken(&name).await;
    assert!(taken.split(',').all(|key| [" 1", " 2"].contains(&&key[1..])), "{taken}");
}

async fn a_lost_connection_fails_its_calls_once<D: Driver>() {
    let _clock = stop_clock();
    let (name, layer, application) = elsewhere_named::<D>(vec![]).await;
    let heard = Arc::new(AtomicUsize::new(0));
    let hears = heard.clone();
    let layer = layer.on_error(OnError::Open).on_unchecked(move |_: &Error| {
        hears.fetch_add(1, Ordering::Relaxed);
    });
    let app = routes(layer);
    let mut holder = owner().await;
    let transaction = lock(&mut holder, &name).await;
    let begun = begin(&app, each_one(&keys(5))).await;
    late().await;
    until("both statements wait", async || sql(UNDER_WAY, &[&application]).await == "2").await;
    let end = "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE application_name = $1";
    assert_eq!(sql(end, &[&application]).await, "2");
    assert_eq!(statuses(begun).await, [200; 5], "unchecked");
    assert_eq!(heard.load(Ordering::Relaxed), 5, "once for each request");
    transaction.rollback().await.unwrap();
    assert_eq!(taken(&name).await, "");
}

/// A pool of which each connection is lost after a statement that calls share.
#[derive(Clone)]
struct Loses(PgPool);

impl Pool for Loses {
    type Connection = <PgPool as Pool>::Connection;

    async fn get(&self) -> Result<Self::Connection, Error> {
        Pool::get(&self.0).await
    }

    async fn run(
        connection: &mut Self::Connection,
        sql: &str,
        values: &[Option<&str>],
        prepares: bool,
    ) -> Result<Option<String>, Error> {
        let answer = <PgPool as Pool>::run(connection, sql, values, prepares).await;
        if sql.contains("rl_limit_each") {
            return Err(Error::new(io::Error::from(io::ErrorKind::ConnectionReset), None));
        }
        answer
    }

    fn discard(connection: Self::Connection) {
        PgPool::discard(connection);
    }
}

#[tokio::test]
async fn what_may_have_been_taken_is_not_sent_again() {
    let _clock = stop_clock();
    let limit = limit(9);
    let app = routes(layer(Loses(Sqlx::pool(To::default())), limit.clone()));
    let calls = ["a", "b", "c"].map(|key| (key, "1"));
    assert_eq!(statuses(begin(&app, calls).await).await, [200, 503, 503]);
    for key in ["a", "b", "c"] {
        let left = limit.take(&mut admin().await, key).await.unwrap();
        assert_eq!(left.remaining, Some(7.0), "{key}");
    }
}

async fn denials_are_remembered_by_each_call<D: Driver>() {
    let _clock = stop_clock();
    let (name, _, layer, _) = named::<D>(1);
    let app = routes(layer.remember_denials(100, 60 * LONG));
    let keys = keys(4);
    assert_eq!(statuses(begin(&app, each_one(&keys)).await).await, [200; 4]);
    assert_eq!(statuses(begin(&app, each_one(&keys)).await).await, [429; 4]);
    sql("SELECT rl_reset_keys($1)::text", &[&name]).await;
    assert_eq!(statuses(begin(&app, each_one(&keys)).await).await, [429; 4]);
}

async fn statements_that_fail<D: Driver>() {
    let _clock = stop_clock();
    let isolation = ("default_transaction_isolation", "serializable".to_owned());
    for (settings, code, expected, times) in [
        // Once, and for each.
        (vec![], "57014", [200, 503, 503, 503], "1"),
        (vec![], "53200", [200, 503, 503, 503], "1"),
        (vec![], "53000", [200, 500, 500, 500], "1"),
        (vec![], "08P01", [200, 500, 500, 500], "1"),
        (vec![], "08006", [200, 503, 503, 503], "1"),
        (vec![], "25006", [200, 503, 503, 503], "1"),
        (vec![], "53300", [200, 503, 503, 503], "1"),
        (vec![], "57P01", [200, 503, 503, 503], "1"),
        (vec![isolation], "40001", [200, 500, 500, 500], "1"),
        // Twice, the second time alone.
        (vec![], "P0001", [200, 500, 200, 200], "2"),
        (vec![], "23514", [200, 500, 200, 200], "2"),
        (vec![], "40P01", [200, 500, 200, 200], "2"),
        (vec![], "40001", [200, 500, 200, 200], "2"),
    ] {
        let (name, layer, _) = elsewhere_named::<D>(settings).await;
        let raises = format!("raise {code}");
        let calls = ["a", &raises, "b", "c"].map(|key| (key, "1"));
        assert_eq!(statuses(begin(&routes(layer), calls).await).await, expected, "{code}");
        let raised = format!("SELECT last_value::text FROM limits.\"{name}\"");
        assert_eq!(there(&raised, &[]).await, times, "{code}");
        let all = if times == "1" { "a 1" } else { "a 1,b 1,c 1" };
        assert_eq!(taken(&name).await, all, "{code}");
    }
}

on_one_thread!(
    a_call_that_is_given_up_ends_alone,
    a_first_call_that_is_given_up_holds_none_up,
    a_locked_row_delays_only_its_own_calls,
    a_lost_connection_fails_its_calls_once,
    a_statement_has_at_most_64_calls,
    a_locked_row_holds_up_no_others,
    a_call_for_a_locked_row_may_be_given_up,
    layers_made_from_one_another_share_statements,
    requests_for_one_row_with_two_configs_go_apart,
    a_statement_lasts_as_long_as_its_calls_may,
    a_timeout_ends_its_calls,
    calls_that_come_meanwhile_go_together,
    denials_are_remembered_by_each_call,
    each_call_has_its_own_answer,
    exactly_the_limit_passes,
    statements_that_fail,
    where_calls_can_not_go_together_they_go_alone_quietly_for_ten_minutes,
    a_statement_has_at_most_a_megabyte,
    a_statement_counts_for_4_times_the_median,
    locked_rows_are_waited_for_5_ms_or_a_tenth_of_deadlock_timeout,
);

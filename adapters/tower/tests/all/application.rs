//! The applications, what calls them, and the server as its superuser has it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::request::Parts;
use axum::routing::get;
use deadpool_postgres::{Manager, ManagerConfig, RecyclingMethod};
use postgres_rate_limit::{Limit, Pool, RateLimitLayer};
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::NoTls;

/// Longer than anything takes.
pub const LONG: Duration = Duration::from_secs(60);

/// How a pool connects; the rest is in the environment.
#[derive(Clone)]
pub struct To {
    pub host: String,
    pub port: u16,
    pub user: String,
    pub database: String,
    pub most: u32,
    /// Settings of its sessions.
    pub settings: Vec<(&'static str, String)>,
}

pub fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by adapters/run"))
}

impl Default for To {
    fn default() -> Self {
        Self {
            host: env("PGHOST"),
            port: env("PGPORT").parse().unwrap(),
            user: env("PGUSER"),
            database: env("PGDATABASE"),
            most: 5,
            settings: Vec::new(),
        }
    }
}

impl To {
    pub fn with(setting: &'static str, value: impl Into<String>) -> Self {
        Self { settings: vec![(setting, value.into())], ..Self::default() }
    }
}

pub trait Driver {
    type Pool: Pool;
    fn pool(to: To) -> Self::Pool;
    /// Runs a statement that returns nothing, without a prepared one.
    fn execute(
        db: &mut <Self::Pool as Pool>::Connection,
        sql: &str,
    ) -> impl Future<Output = ()> + Send;
}

pub struct Sqlx;
impl Driver for Sqlx {
    type Pool = sqlx::PgPool;
    fn pool(to: To) -> Self::Pool {
        let options = PgConnectOptions::new().host(&to.host).port(to.port).username(&to.user);
        let options = options.database(&to.database).options(to.settings);
        let pool = PgPoolOptions::new().max_connections(to.most).acquire_timeout(LONG);
        // PgBouncer doesn't know it.
        pool.connect_lazy_with(options.extra_float_digits(None))
    }
    async fn execute(db: &mut <Self::Pool as Pool>::Connection, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **db).await.unwrap();
    }
}

pub struct TokioPostgres;
impl Driver for TokioPostgres {
    type Pool = deadpool_postgres::Pool;
    fn pool(to: To) -> Self::Pool {
        let mut config = tokio_postgres::Config::new();
        config.host(&to.host).port(to.port).user(&to.user).dbname(&to.database);
        let text = |(name, value): &(&str, String)| {
            format!("-c {name}={}", value.replace('\\', "\\\\").replace(' ', "\\ "))
        };
        if !to.settings.is_empty() {
            config.options(to.settings.iter().map(text).collect::<Vec<_>>().join(" "));
        }
        let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(config, NoTls, how);
        deadpool_postgres::Pool::builder(manager).max_size(to.most as usize).build().unwrap()
    }
    async fn execute(db: &mut <Self::Pool as Pool>::Connection, sql: &str) {
        db.batch_execute(sql).await.unwrap();
    }
}

/// A name that no other test has, nor another run.
pub fn unique(what: &str) -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    format!("{what} {} {}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A window of an hour that begins with the first request.
pub fn an_hour(rate: u32) -> Value {
    json!({ "kind": "fixed window", "rate": rate, "period": "1 hour", "start": "first request" })
}

/// Another name each time.
pub fn limit(rate: u32) -> Limit {
    Limit::new(unique("tower")).config(an_hour(rate))
}

/// The key of a request is its header `key`.
pub fn header_key(request: &Parts) -> String {
    let value = request.headers.get("key").map(|value| value.to_str().unwrap());
    value.unwrap_or_default().to_owned()
}

pub fn layer<P: Pool>(pool: P, limit: Limit) -> RateLimitLayer<P> {
    RateLimitLayer::new(pool, limit, header_key).timeout(LONG)
}

/// Starts an application on a port of its own.
pub async fn start(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

pub async fn limited<P: Pool>(layer: RateLimitLayer<P>) -> SocketAddr {
    start(Router::new().route("/", get(async || "hello")).layer(layer)).await
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HashMap<String, Vec<String>>,
    pub body: String,
}

impl Answer {
    /// The header, of which there is one.
    pub fn header(&self, name: &str) -> &str {
        match self.headers.get(name).map(Vec::as_slice) {
            Some([one]) => one,
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Sends a request on a connection of its own.
pub async fn call(address: SocketAddr, key: &str) -> Answer {
    send(address, &format!("GET / HTTP/1.1\r\nkey: {key}"), "").await
}

pub async fn status(address: SocketAddr, key: &str) -> u16 {
    call(address, key).await.status
}

pub async fn send(address: SocketAddr, head: &str, body: &str) -> Answer {
    let sent = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let rest = format!("host: test\r\nconnection: close\r\ncontent-length: {}", body.len());
        stream.write_all(format!("{head}\r\n{rest}\r\n\r\n{body}").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    let text = tokio::time::timeout(2 * LONG, sent).await.expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a response");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap().parse().unwrap();
    let mut headers: HashMap<String, Vec<String>> = HashMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        headers.entry(name.to_lowercase()).or_default().push(value.to_owned());
    }
    Answer { status, headers, body: body.to_owned() }
}

/// Waits until something is true.
pub async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_true().await {
        assert!(Instant::now() < end, "{what} is not so");
        let waits = || std::thread::sleep(Duration::from_millis(10));
        tokio::task::spawn_blocking(waits).await.unwrap();
    }
}

/// Stops the clock of the layer until this is dropped, where it runs on this thread: nothing is late before time
/// [advances](tokio::time::advance), however slow the machine. After a long time it goes on.
pub fn stop_clock() -> Sender<()> {
    tokio::time::pause();
    let (clock, stops) = std::sync::mpsc::channel();
    // The clock doesn't advance on its own while such a task runs.
    tokio::task::spawn_blocking(move || stops.recv_timeout(LONG));
    clock
}

/// Lets time pass for what runs on this thread, where there is no other.
pub async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

pub fn options(user: &str, database: &str) -> PgConnectOptions {
    let to = PgConnectOptions::new().host(&env("PGHOST")).username(user).database(database);
    to.extra_float_digits(None)
}

/// A connection of the superuser.
pub async fn admin() -> PgConnection {
    PgConnection::connect_with(&options("postgres", &env("PGDATABASE"))).await.unwrap()
}

/// Runs a statement as the superuser; returns the text in the one column of its one row, or an empty one.
pub async fn sql(text: &str, values: &[&str]) -> String {
    let mut query = sqlx::query_scalar(AssertSqlSafe(text));
    for value in values {
        query = query.bind(value);
    }
    query.fetch_optional(&mut admin().await).await.unwrap().unwrap_or_default()
}

/// The schema of the limiter.
pub async fn place() -> String {
    let place = "SELECT pronamespace::regnamespace::text FROM pg_proc WHERE proname = 'rl_limit'
        AND pronamespace::regnamespace::text IN ('public', 'ratelimit')";
    sql(place, &[]).await
}

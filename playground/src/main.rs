//! A web service whose requests the extension limits, and a page that shows the answers.
//!
//! An example for services of your own: [`hit`] takes a token and responds with 200 or 429 and the headers of
//! `rl_headers`, [`ask`] has the pool, the prepared statements and the deadlines, and [`Failure`] maps errors to
//! responses. DATABASE_URL names the database, with a role that has EXECUTE on `rl_limit`, `rl_check`, `rl_reset`
//! and `rl_headers`. PORT is the port on 127.0.0.1 (default 8080; 0 for any free one).

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, RecyclingMethod};
use serde::Deserialize;
use serde_json::{Map, Number, Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Row, types};

/// Takes a token. The alias `r` is the whole result, which `rl_headers` makes headers of.
const HIT: &str = "\
SELECT ok, to_jsonb(r) AS result,
       rl_headers($1, r, config => $3) AS headers
FROM rl_limit($1, $2, config => $3) AS r";

/// Looks at the limit, and takes nothing.
const CHECK: &str = "\
SELECT to_jsonb(r) AS result
FROM rl_check($1, $2, config => $3) AS r";

/// Makes the limit full again.
const RESET: &str = "SELECT to_jsonb(rl_reset($1, $2)) AS result";

/// How many connections the service holds. A call takes well under a millisecond: a few serve many requests.
const CONNECTIONS: usize = 8;

/// How long PostgreSQL may take for a statement, and how long a request waits for all that it needs. The second
/// is longer, so that it only matters where PostgreSQL doesn't answer at all.
const STATEMENT_TIMEOUT: &str = "-c statement_timeout=2s";
const DEADLINE: Duration = Duration::from_secs(3);

/// Whose limit it is, and which, as the query of a request says.
///
/// A playground lets its visitors choose. In a service the name is a constant, the key whom you have
/// authenticated, and the limit is defined once by `rl_define`, so that calls need no `config`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Limit {
    name: String,
    key: String,
    kind: Option<String>,
    rate: Option<String>,
    /// In seconds.
    period: Option<String>,
    capacity: Option<String>,
    store: Option<String>,
}

impl Limit {
    /// The config, of the fields that the request has. The extension checks every one and says what is allowed,
    /// so nothing is checked here.
    fn config(&self) -> Value {
        let fields = [
            ("kind", self.kind.as_deref().map(Value::from)),
            ("rate", self.rate.as_deref().map(number)),
            ("period", self.period.as_ref().map(|seconds| json!(format!("{seconds} seconds")))),
            ("capacity", self.capacity.as_deref().map(number)),
            ("store", self.store.as_deref().map(Value::from)),
        ];
        let given =
            fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?)));
        Value::Object(given.collect::<Map<_, _>>())
    }
}

/// A number as such, and what is none as the text that it is.
fn number(text: &str) -> Value {
    text.parse::<Number>().map_or_else(|_| Value::from(text), Value::Number)
}

/// Takes one token: 200, or 429 where there is none, with the headers that go with it.
///
/// A request that writes takes its token in the transaction of that write: a rollback then gives it back. See
/// tests/clients/rust.rs.
async fn hit(State(pool): State<Pool>, Query(limit): Query<Limit>) -> Result<Response, Failure> {
    let config = limit.config();
    let row = ask(&pool, HIT, &[&limit.name, &limit.key, &config]).await?;
    let status = if row.try_get("ok")? { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let types::Json(headers): types::Json<HashMap<String, String>> = row.try_get("headers")?;
    let headers = HeaderMap::try_from(&headers).map_err(Failure::internal)?;
    let body = shown(&row, HIT, json!([limit.name, limit.key, config]))?;
    Ok((status, headers, body).into_response())
}

/// Reports what the limit holds now.
async fn check(
    State(pool): State<Pool>,
    Query(limit): Query<Limit>,
) -> Result<Json<Value>, Failure> {
    let config = limit.config();
    let row = ask(&pool, CHECK, &[&limit.name, &limit.key, &config]).await?;
    shown(&row, CHECK, json!([limit.name, limit.key, config]))
}

/// Makes the limit full again.
async fn reset(
    State(pool): State<Pool>,
    Query(limit): Query<Limit>,
) -> Result<Json<Value>, Failure> {
    let row = ask(&pool, RESET, &[&limit.name, &limit.key]).await?;
    shown(&row, RESET, json!([limit.name, limit.key]))
}

/// Returns what the page shows of a call: its result, and the statement with its parameters.
fn shown(row: &Row, sql: &str, parameters: Value) -> Result<Json<Value>, Failure> {
    let result: Value = row.try_get("result")?;
    Ok(Json(json!({ "result": result, "sql": sql, "parameters": parameters })))
}

/// Runs a statement that returns one row. Each connection prepares it once.
async fn ask(pool: &Pool, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Row, Failure> {
    let answer = async {
        let client = pool.get().await?;
        let statement = client.prepare_cached(sql).await?;
        Ok(client.query_one(&statement, parameters).await?)
    };
    timeout(DEADLINE, answer).await?
}

/// Why a request failed: 400 for an error caused by its input, otherwise 503 or 500.
///
/// If the limit can't be checked, the request fails closed.
struct Failure {
    status: StatusCode,
    error: Value,
}

impl Failure {
    /// Logs the cause; the client gets the message only.
    fn hidden(status: StatusCode, message: &str, cause: impl Error) -> Self {
        eprintln!("error: {message}: {}", with_sources(&cause));
        Failure { status, error: json!({ "message": message }) }
    }

    fn internal(cause: impl Error) -> Self {
        Self::hidden(StatusCode::INTERNAL_SERVER_ERROR, "the limit could not be asked", cause)
    }

    fn unavailable(cause: impl Error) -> Self {
        Self::hidden(StatusCode::SERVICE_UNAVAILABLE, "the database does not answer", cause)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.error }))).into_response()
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            // Class 22, data exceptions: above all 22023, a bad config, name or key, with what is allowed.
            Some(db) if db.code().code().starts_with("22") => Failure {
                status: StatusCode::BAD_REQUEST,
                error: json!({
                    "sqlstate": db.code().code(),
                    "message": db.message(),
                    "detail": db.detail(),
                    "hint": db.hint(),
                }),
            },
            Some(db) if *db.code() != SqlState::QUERY_CANCELED => Self::internal(error),
            _ => Self::unavailable(error), // statement_timeout, or no connection
        }
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            error => Self::unavailable(error),
        }
    }
}

impl From<Elapsed> for Failure {
    fn from(error: Elapsed) -> Self {
        Self::unavailable(error)
    }
}

/// An error and what caused it, in one line.
fn with_sources(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", with_sources(source)),
        None => error.to_string(),
    }
}

/// Returns the pool, which connects when the first request comes, and again after PostgreSQL was restarted.
fn connect(url: &str) -> Result<Pool, Box<dyn Error>> {
    // The value may hold a password, so no message shows it.
    let mut config: tokio_postgres::Config = url
        .parse()
        .map_err(|error| format!("DATABASE_URL can't be read: {}", with_sources(&error)))?;
    config.application_name("ratelimit playground").options(STATEMENT_TIMEOUT);
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(config, NoTls, manager);
    Ok(Pool::builder(manager).max_size(CONNECTIONS).build()?)
}

/// Returns the page, whose files are part of the program.
fn page() -> Router<Pool> {
    let file = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
    };
    Router::new()
        .route("/", file("text/html; charset=utf-8", include_str!("../page/index.html")))
        .route("/page.css", file("text/css; charset=utf-8", include_str!("../page/page.css")))
        .route("/page.js", file("text/javascript; charset=utf-8", include_str!("../page/page.js")))
}

/// Listens on 127.0.0.1 only: any client of the playground may call the extension with any limit.
async fn listen(port: &str) -> Result<TcpListener, Box<dyn Error>> {
    let number: u16 = port
        .parse()
        .map_err(|_| format!("PORT is {port:?}; allowed: a whole number from 0 to 65535"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).await;
    Ok(listener.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            format!("port {port} of 127.0.0.1 is taken; choose another by PORT")
        }
        _ => format!("port {port} of 127.0.0.1 can't be opened: {error}"),
    })?)
}

/// Serves until Ctrl-C or SIGTERM, and then ends the requests that have begun.
async fn serve() -> Result<(), Box<dyn Error>> {
    let url = env::var("DATABASE_URL")
        .map_err(|_| "DATABASE_URL is not set: the database to connect to")?;
    let port = env::var("PORT").unwrap_or_else(|_| "8080".to_owned());
    let api = Router::new()
        .route("/hit", post(hit))
        .route("/check", get(check))
        .route("/reset", post(reset));
    let app = page().merge(api).with_state(connect(&url)?);

    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let listener = listen(&port).await?;
    println!("http://{}", listener.local_addr()?);
    let end = async move {
        tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () }
    };
    Ok(axum::serve(listener, app).with_graceful_shutdown(end).await?)
}

#[tokio::main]
async fn main() {
    if let Err(error) = serve().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

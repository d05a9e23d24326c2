//! An application in axum that answers hello, with a layer for each store at /STORE/LOAD; the key is the header x-key.
//! tests/bench/adapters.py runs and asks it: application sqlx|deadpool PORT. PGHOST, PGUSER and PGDATABASE are the
//! database.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use axum::routing::get;
use postgres_rate_limit::{Limit, Pool, RateLimitLayer};
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::net::TcpListener;

/// Requests an hour of a key: more than a run sends, and few.
const LOADS: [(&str, u32); 2] = [("admitted", 10_000), ("denied", 10)];
/// Connections of a pool: as many as pg's has.
const MOST: usize = 10;

async fn hello() -> &'static str {
    "hello"
}

fn routes<P: Pool>(driver: &str, pool: P) -> Router {
    let shares = RateLimitLayer::new(pool, Limit::new(""), |_: &Parts| String::new());
    let alone = shares.clone().batch(false);
    let mut routes = Router::new();
    for (load, rate) in LOADS {
        let limit = |store: &str, kept: &str| {
            let config = json!({
                "kind": "fixed window", "rate": rate, "period": "1 hour", "start": "first request", "store": kept
            });
            Limit::new(format!("{driver}:{store}:{load}")).config(config)
        };
        for (store, kept, layer) in [
            ("table", "table", &shares),
            ("alone", "table", &alone),
            ("remembered", "table", &shares),
            ("memory", "memory", &shares),
            ("memory_alone", "memory", &alone),
        ] {
            let mut layer = layer.another(limit(store, kept), key);
            if store == "remembered" {
                layer = layer.remember_denials(10_000, Duration::from_secs(1));
            }
            routes = routes.route(&format!("/{store}/{load}"), get(hello).layer(layer));
        }
    }
    routes
}

fn key(request: &Parts) -> String {
    let key = request.headers.get("x-key").and_then(|key| key.to_str().ok());
    key.unwrap_or_default().to_owned()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (driver, port) =
        (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let routes = if driver == "sqlx" {
        let pool = PgPoolOptions::new().max_connections(MOST as u32);
        routes(&driver, pool.connect_lazy_with(PgConnectOptions::new()))
    } else {
        let mut config = tokio_postgres::Config::new();
        config.host(std::env::var("PGHOST")?).user(std::env::var("PGUSER")?);
        config.dbname(std::env::var("PGDATABASE")?);
        let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
        routes(&driver, deadpool_postgres::Pool::builder(manager).max_size(MOST).build()?)
    };
    let app = routes.route("/none/admitted", get(hello));
    Ok(axum::serve(TcpListener::bind(format!("127.0.0.1:{port}")).await?, app).await?)
}

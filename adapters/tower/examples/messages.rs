use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::post;
use postgres_rate_limit::{Limit, RateLimitLayer, address_key};
use serde_json::json;
use sqlx::PgPool;
use tokio::net::TcpListener;

/// The application; its pool is of a role with EXECUTE on `rl_limit` and `rl_headers`.
pub fn app(pool: PgPool) -> Router {
    let api = json!({ "kind": "token bucket", "rate": 100, "period": "1 minute", "capacity": 20, "keyed": true });
    let by_address = |request: &Parts| {
        let client = request.extensions.get::<ConnectInfo<SocketAddr>>();
        client.map(|client| address_key(client.ip())).unwrap_or_default()
    };
    let limited = RateLimitLayer::new(pool.clone(), Limit::new("api").config(api), by_address);
    Router::new().route("/messages/{author}", post(send)).layer(limited).with_state(pool)
}

/// Stores a message if its author's limit allows it, in one transaction.
async fn send(State(pool): State<PgPool>, Path(author): Path<String>, body: String) -> StatusCode {
    stored(&pool, &author, &body).await.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

async fn stored(pool: &PgPool, author: &str, body: &str) -> Result<StatusCode, Box<dyn Error>> {
    let config = json!({ "kind": "token bucket", "rate": 10, "period": "1 minute", "keyed": true });
    let messages = Limit::new("sendMessage").config(config);
    let mut transaction = pool.begin().await?; // rolls back when dropped: returns the token
    if !messages.take(&mut transaction, author).await?.ok {
        return Ok(StatusCode::TOO_MANY_REQUESTS);
    }
    let insert = sqlx::query("INSERT INTO messages VALUES ($1, $2)").bind(author).bind(body);
    insert.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(StatusCode::CREATED)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let service = app(pool).into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(TcpListener::bind("127.0.0.1:3000").await?, service).await?)
}

//! Rate limits in PostgreSQL, by the extension or the SQL file `ratelimit`: [`Limit::take`] takes tokens in your own
//! transaction, [`RateLimitLayer`] limits the requests of a service of tower, such as a router of axum.
//!
//! The features `sqlx` and `tokio-postgres` implement [`Connection`] and [`Pool`] for the types of these crates;
//! without them, implement both for yours.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod database;
mod denials;
mod error;
mod layer;
mod limit;
mod service;
mod shared;
mod statement;
#[cfg(feature = "sqlx")]
mod with_sqlx;
#[cfg(feature = "tokio-postgres")]
mod with_tokio_postgres;

pub use database::{Connection, Pool};
pub use error::Error;
pub use layer::{OnError, RateLimitLayer, address_key};
pub use limit::{Decision, Limit};
pub use service::RateLimit;
pub use statement::Headers;

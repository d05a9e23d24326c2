//! Applications of axum with the layer, over sqlx and over tokio-postgres, on the server that PGHOST names: PGUSER may
//! take tokens in PGDATABASE, the superuser postgres prepares what a test needs. `adapters/run` runs them.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

macro_rules! on_each_driver {
    ($($name:ident),+ $(,)?) => { each_driver!(flavor = "multi_thread"; $($name),+); };
}
/// On one thread calls begin together, and a test can advance time.
macro_rules! on_one_thread {
    ($($name:ident),+ $(,)?) => { each_driver!(flavor = "current_thread"; $($name),+); };
}
macro_rules! each_driver {
    ($flavor:ident = $of:literal; $($name:ident),+) => {
        mod with_sqlx {
            $(#[tokio::test($flavor = $of)]
            async fn $name() { super::$name::<crate::application::Sqlx>().await })+
        }
        mod with_tokio_postgres {
            $(#[tokio::test($flavor = $of)]
            async fn $name() { super::$name::<crate::application::TokioPostgres>().await })+
        }
    };
}

mod application;
mod denials;
#[path = "../../examples/messages.rs"]
#[allow(dead_code, reason = "its main")]
mod example;
mod failing;
mod options;
mod oracle;
mod page;
mod pooled;
mod prepared;
mod requests;
mod restart;
mod shared;
mod transactions;

//! `ratelimit`: rate limits inside PostgreSQL, taken in the caller's transaction.
//!
//! Dependencies run one way: api, trigger -> limiter -> definitions, store -> config -> algorithm.
//! The algorithm and the config know nothing of Postgres and run under plain `cargo test`.

pub mod algorithm;
pub mod config;
pub mod state;

mod api;
mod call;
mod catalog;
mod definitions;
mod error;
mod guc;
mod headers;
mod limit_all;
mod limiter;
mod memory;
mod postgres;
mod prune;
mod requests;
mod scan;
mod shards;
mod spi;
mod status;
mod store;
mod subtransaction;
mod trigger;

pgrx::pg_module_magic!(name, version);

pgrx::extension_sql_file!("../sql/bootstrap.sql", name = "bootstrap", bootstrap);
pgrx::extension_sql_file!("../sql/functions.sql", name = "functions", requires = ["bootstrap"]);
pgrx::extension_sql_file!("../sql/finalize.sql", name = "finalize", finalize);

/// Called by Postgres when it loads the library.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    memory::init(call::end_session);
    guc::init();
    catalog::init();
    subtransaction::init(&[store::heap::forget, shards::forget]);
}

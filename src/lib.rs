//! `ratelimit`: rate limits inside PostgreSQL, taken in the caller's transaction.
//!
//! Four floors, each of which depends on those below it only: `functions`, the SQL functions;
//! `limiter`, the use cases; `store`, the rows; `pg`, the parts of Postgres that are used. The
//! algorithms, configs and states are the crate `ratelimit_core`, which is independent of Postgres.

#![cfg_attr(
    not(test), // tests end with a panic, and say what they found
    warn(clippy::missing_errors_doc, clippy::expect_used, clippy::panic, clippy::unwrap_used)
)]

mod functions;
mod limiter;
mod pg;
mod store;

pgrx::pg_module_magic!(name, version);

pgrx::extension_sql_file!("../sql/bootstrap.sql", name = "bootstrap", bootstrap);
pgrx::extension_sql_file!("../sql/finalize.sql", name = "finalize", finalize);

/// Called by Postgres when it loads the library.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::memory::init(pg::call::end_session);
    pg::settings::init();
    pg::invalidation::init();
    pg::subtransaction::init(&[store::heap::forget, limiter::shards::forget]);
}

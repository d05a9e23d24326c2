//! `ratelimit`: rate limits inside PostgreSQL, taken in the caller's transaction.
//!
//! Four floors, each of which knows those below it only: [`functions`], what SQL can call; [`limiter`],
//! what is done with limits; [`store`], the rows; [`pg`], what is needed of Postgres. What a limit is,
//! and what it answers, is the crate `ratelimit_core`, which knows nothing of Postgres.

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

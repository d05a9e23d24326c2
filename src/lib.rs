//! `ratelimit`: rate limiting inside PostgreSQL, in the caller's transaction.
//!
//! The modules are layers, each of which depends only on those below it: see "Layers" in CONTRIBUTING.md. They build on
//! crates: `ratelimit_limiter` (the use cases), `ratelimit_memory` (shared by the sessions) and `ratelimit_core` (the
//! algorithms) don't depend on PostgreSQL; `ratelimit_pg` (access to PostgreSQL) knows no table and no limit.

#![cfg_attr(
    not(any(test, feature = "server_tests")), // tests end with a panic, and say what they found
    warn(clippy::expect_used, clippy::panic, clippy::unwrap_used)
)]

mod cache;
mod declaration;
mod functions;
mod host;
#[cfg(feature = "server_tests")]
mod pg_tests;
mod redefined;
mod schema;
mod store;
mod tally;
mod writer;

#[cfg(all(test, feature = "pg_test"))]
pub use pg_tests::pg_test; // `#[pg_test]` looks for it here

pgrx::pg_module_magic!(name, version);

// The SQL of CREATE EXTENSION, for cargo-pgrx: in the order in which scripts/build concatenates it.
pgrx::extension_sql_file!("../sql/bootstrap.sql", name = "bootstrap", bootstrap);
pgrx::extension_sql_file!("../sql/functions.sql", name = "functions");
pgrx::extension_sql_file!("../sql/citus.sql", name = "citus", requires = ["functions"]);
pgrx::extension_sql_file!("../sql/finalize.sql", name = "finalize", finalize);

#[global_allocator]
static ALLOCATOR: ratelimit_pg::oom_reserve::Allocator = ratelimit_pg::oom_reserve::Allocator;

/// Called by Postgres when it loads the library.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    ratelimit_pg::oom_reserve::init(ratelimit_pg::raise::end_session);
    ratelimit_pg::hooks::init(ratelimit_pg::hooks::Hooks {
        before_commit: redefined::before_commit,
        before_prepare: redefined::before_prepare,
        ended: redefined::ended,
        rolled_back: |number| {
            store::heap::forget(number);
            store::own_locks::forget(number);
            cache::changed::forget(number);
        },
        relation_changed: schema::invalidation::relation_changed,
        schema_changed: schema::invalidation::schema_changed,
    });
    schema::settings::init();
}

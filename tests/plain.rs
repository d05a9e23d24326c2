//! Tests of the SQL file, dist/ratelimit.sql, on the server that RATELIMIT_TEST_SERVER names: `make test ONLY=plain`.
//!
//! `leases`, `load` and `rl_calculate` are the extension's own, on databases with the file instead; tests/plain/run
//! leaves out those of them that tests/plain/server lists.

#[path = "plain/database.rs"]
mod database;
mod leases;
mod load;
mod rl_calculate;

//! Tests of the SQL file, dist/ratelimit.sql, on the server that RATELIMIT_TEST_SERVER names: `make test ONLY=plain`.
//!
//! `leases`, `load` and `rl_calculate` are the extension's own, on databases with the file instead; tests/plain/run
//! leaves out those of them that tests/plain/server lists. `beside` compares both editions.

mod beside;
mod calls;
mod contract;
mod database;
mod known;
#[path = "../server/leases.rs"]
mod leases;
mod lint;
#[path = "../server/load/mod.rs"]
mod load;
mod real_clock;
mod rights;
#[path = "../server/rl_calculate.rs"]
mod rl_calculate;
mod rows;
mod runs;
mod server_log;
mod settings;

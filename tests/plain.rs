//! Tests of the SQL file, dist/ratelimit.sql, on the server that RATELIMIT_TEST_SERVER names: `make test ONLY=plain`.
//!
//! `leases`, `load` and `rl_calculate` are the extension's own, on databases with the file instead; tests/plain/run
//! leaves out those of them that tests/plain/server lists. `beside` compares both editions.

#[path = "plain/beside.rs"]
mod beside;
#[path = "plain/calls.rs"]
mod calls;
#[path = "plain/database.rs"]
mod database;
#[path = "plain/known.rs"]
mod known;
mod leases;
#[path = "plain/lint.rs"]
mod lint;
mod load;
#[path = "plain/real_clock.rs"]
mod real_clock;
#[path = "plain/rights.rs"]
mod rights;
mod rl_calculate;
#[path = "plain/rows.rs"]
mod rows;
#[path = "plain/runs.rs"]
mod runs;
#[path = "plain/server_log.rs"]
mod server_log;
#[path = "plain/settings.rs"]
mod settings;

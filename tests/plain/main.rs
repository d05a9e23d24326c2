//! Tests of the SQL file, dist/ratelimit.sql, on the server RATELIMIT_TEST_SERVER: `make test ONLY=plain`.
//!
//! `each`, `holds`, `leases`, `load`, `rl_calculate`, `take` and `value` are the extension's tests, on databases with
//! the file; tests/plain/run skips those that tests/plain/server lists. `compare` compares both editions.

mod answers;
mod calls;
mod compare;
mod contract;
mod database;
#[path = "../server/each.rs"]
mod each;
#[path = "../server/holds.rs"]
mod holds;
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
#[path = "../server/take.rs"]
mod take;
#[path = "../server/value.rs"]
mod value;

//! All tests on the server that RATELIMIT_TEST_SERVER names, in one program: a module a subject.
//! `make test ONLY=server TESTS="dump load::shards"` runs those whose names contain one of these.

mod alerts;
mod answers;
mod contract;
mod database;
mod documents;
mod dump;
mod each;
mod fuzz;
mod holds;
mod in_memory;
mod later_version;
mod leases;
mod library;
mod load;
#[path = "../plain/moves.rs"]
mod moves;
mod replication;
mod rl_calculate;
mod server_log;
mod stores;
mod take;
mod value;
mod waiters;

//! The SQL functions, a file for each subject: each reads and checks its arguments, makes one call, and returns its
//! answer as a row. sql/functions.sql, which creates them, describes them.

mod answers;
mod arguments;
mod blocks;
mod builders;
mod calculate;
mod definitions;
mod forget;
mod headers;
mod holds;
mod keys;
mod leases;
mod limits;
mod prune;
mod replay;
mod reset;
mod several;
mod stats;
mod status;
mod triggers;
mod value;

#[cfg(feature = "server_tests")]
pub use answers::RlResult;

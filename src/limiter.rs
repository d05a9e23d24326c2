//! The use cases: calls of one limit and of several, definitions, pruning and status. A call's whole
//! life is [`single::limit`].

pub mod definitions;
mod in_memory;
mod keys;
pub mod prune;
pub mod request;
pub mod several;
pub mod shards;
pub mod single;
pub mod stats;
pub mod status;
pub mod tally;

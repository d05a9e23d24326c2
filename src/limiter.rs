//! The use cases: calls of one limit and of several, definitions, pruning and status. A call's whole
//! life is [`single::limit`].

pub mod blocks;
pub mod definitions;
mod in_memory;
mod keys;
pub mod leases;
pub mod prune;
pub mod request;
pub mod several;
pub mod shards;
pub mod single;
mod slots;
pub mod stats;
pub mod status;
pub mod tally;

//! The parts of Postgres that the extension uses. Independent of limits.

pub mod call;
pub mod catalog;
pub mod citus;
pub mod clock;
pub mod declaration;
pub mod error;
pub mod interrupts;
pub mod invalidation;
pub mod memory;
pub mod memory_context;
pub mod server_log;
pub mod settings;
pub mod shared_memory;
pub mod sort;
pub mod spi;
pub mod subtransaction;
pub mod transaction;
pub mod usual_table;
pub mod values;

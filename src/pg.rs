//! The parts of Postgres that the extension uses. Independent of limits.

pub mod call;
pub mod catalog;
pub mod citus;
pub mod clock;
pub mod declaration;
pub mod error;
pub mod interrupts;
pub mod invalidation;
pub mod memory_context;
pub mod oom_reserve;
pub mod server_log;
pub mod settings;
pub mod shared_memory;
pub mod sort;
pub mod spi;
pub mod subtransaction;
pub mod transaction;
pub mod unaltered_table;
pub mod values;

pub use unaltered_table as usual_table; // until store/heap.rs says so, too

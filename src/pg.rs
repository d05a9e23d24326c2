//! What the floors above use of Postgres and of the extension's own objects in it.

pub mod catalog;
pub mod citus;
pub mod declaration;
pub mod error;
pub mod invalidation;
pub mod settings;
pub mod spi;
pub mod unaltered_table;

pub use ratelimit_pg::{
    call, clock, interrupts, memory_context, server_log, shared_memory, sort, transaction, values,
};
pub use unaltered_table as usual_table; // until store/heap.rs says so, too

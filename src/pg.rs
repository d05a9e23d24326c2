//! What the floors above use of PostgreSQL: of the crate `ratelimit_pg`, and of the extension's own objects.

pub mod declaration;

pub use crate::schema::{catalog, error, invalidation, settings, spi};
pub use ratelimit_pg::{
    call, clock, interrupts, memory_context, server_log, shared_memory, sort, transaction, values,
};

pub use crate::schema::unaltered_table as usual_table;

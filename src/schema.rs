//! The extension's objects in a database: its tables, whether they are unaltered, SQL on them as their owner, and their
//! invalidations; its settings and errors.

pub mod catalog;
pub mod citus;
pub mod error;
pub mod invalidation;
pub mod settings;
pub mod spi;
pub mod unaltered_table;

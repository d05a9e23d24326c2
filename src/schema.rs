//! The extension's objects in a database: tables, checks that they are unaltered, SQL on them as their owner, and
//! invalidations; settings and errors.

pub mod catalog;
pub mod citus;
pub mod error;
pub mod invalidation;
pub mod settings;
pub mod spi;
pub mod unaltered_table;

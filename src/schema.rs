//! The extension's own objects in a database: where its tables are, whether they are as it made them, SQL on them as
//! their owner, and what was announced as changed; its settings, and its errors.

pub mod catalog;
pub mod citus;
pub mod error;
pub mod invalidation;
pub mod settings;
pub mod spi;
pub mod unaltered_table;

//! Keyed rows that sessions cache: the definitions of limits and the blocks of their keys.

pub mod blocks;
pub mod definitions;

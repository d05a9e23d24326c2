//! The rows of `rateLimits`, through direct access to the heap or through SQL, and the limits in memory: the ports of
//! the limiter, made of PostgreSQL.

mod codec;
pub mod distributed;
pub mod heap;
pub mod held;
pub mod memory;
mod sql;

//! The rows of `rateLimits`, through direct access to the heap or through SQL, those of `rl_holds`, and the limits in
//! memory: the ports of the limiter, made of PostgreSQL.

mod codec;
pub mod distributed;
pub mod heap;
pub mod holds;
pub mod memory;
pub mod own_locks;
mod sql;

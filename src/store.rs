//! Implements the ports of the limiter with PostgreSQL: the rows of `rateLimits`, in the heap or through SQL, the rows
//! of `rl_holds`, and the limits in memory.

mod codec;
mod distributed;
pub mod heap;
pub mod holds;
pub mod memory;
pub mod own_locks;
mod sql;

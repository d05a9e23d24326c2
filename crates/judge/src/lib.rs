//! A judge of histories: what concurrent sessions asked and were answered, and whether some order of the calls and
//! commits that agrees with real time explains every answer. The oracle is `ratelimit_core`, as in the limiter.
//!
//! - [`history`] has what is judged: calls, the ends of their transactions, and the limits. It can be written to a
//!   file and read again.
//! - [`record`] writes a history down while sessions run.
//! - [`judge()`](judge::judge) decides, key by key. [`judge`](mod@judge) has the rules, and what it does not see.
//!
//! It knows nothing of PostgreSQL: a history says where a limit is kept, which transactions hold its row, and when.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod history;
pub mod judge;
pub mod record;

pub use history::{Asked, End, History, Invocation, Limited, Reply, ShardSeen, Storage};
pub use judge::{Judgement, Refusal, judge};
pub use record::{Recorder, Recording};

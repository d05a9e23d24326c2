//! Judges concurrent sessions by their calls and answers: does some order of the calls and commits that agrees with
//! real time explain every answer?
//!
//! - [`history`]: calls, the ends of their transactions, and the limits; written to a file and read again.
//! - [`record`] records a history while sessions run.
//! - [`judge()`](judge::judge) decides, key by key. [`judge`](mod@judge) has the rules and their gaps.
//!
//! It knows nothing of PostgreSQL: a history says where a limit is stored, which transactions have its row, and when.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod history;
pub mod judge;
pub mod record;

pub use history::{
    Asked, End, History, Invocation, Limited, Reply, ShardSeen, Storage, hold_number,
};
pub use judge::{Judgement, Refusal, judge};
pub use record::{Recorder, Recording};

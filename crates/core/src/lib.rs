//! Rate limits as pure functions.
//!
//! A [`Limit`] is of one of four kinds: token bucket, fixed window, sliding window or sliding log.
//! What it remembers between two calls is a [`State`] of a few numbers, which the caller keeps; the
//! time is an argument too. So the same call has the same answer on every machine, and this crate has
//! no clock, no storage, no threads and no unsafe code.
//!
//! ```
//! use ratelimit_core::{Micros, config, decide};
//!
//! // Ten tokens a minute, of which up to twenty accumulate.
//! let limit = config::parse(
//!     r#"{"kind": "token bucket", "rate": 10, "period": "1 minute", "capacity": 20}"#,
//! )?;
//! let now = Micros(1_798_804_800_000_000); // 2027-01-01T12:00:00Z
//! let full = limit.initial_state(now, now);
//!
//! let taken = decide(&limit, &full, now, 20.0, false);
//! assert!(taken.ok);
//! let empty = taken.state.expect("a take changes the state");
//!
//! // The bucket is empty: the next token is there in exactly six seconds.
//! let denied = decide(&limit, &empty, now, 1.0, false);
//! assert!(!denied.ok);
//! assert_eq!(denied.retry_after, Some(Micros::from_millis(6_000.0)));
//! assert!(decide(&limit, &empty, now.plus(Micros::from_millis(6_000.0)), 1.0, false).ok);
//!
//! // Or the work is reserved now, and done when its tokens have come in.
//! let reserved = decide(&limit, &empty, now, 1.0, true);
//! assert_eq!((reserved.ok, reserved.retry_after), (true, denied.retry_after));
//! # Ok::<(), ratelimit_core::ConfigError>(())
//! ```
//!
//! # What is where
//!
//! - [`config`] reads and writes the JSON of a limit, and checks every range; [`state`] that of a state.
//! - [`decide`] takes tokens, [`credit`] gives them back, [`Limit::level`] tells what is there.
//! - [`Shards`] is a limit that is spread over several rows, so that they can be taken from at once.
//! - [`requests`] reads a list of calls, [`headers`] writes the outcome of one as HTTP headers.
//!
//! Whoever keeps the state must read and write it as one step, as under a lock: what is decided from
//! one state must not be written over another.

#![forbid(unsafe_code)]
#![allow(missing_docs)]

pub mod algorithm;
pub mod config;
pub mod headers;
pub mod requests;
pub mod state;
pub mod text;

mod fields;
mod micros;
mod numbers;
mod phase;

pub use algorithm::{Decision, Kind, Level, Limit, Shards, State, credit, decide};
pub use config::ConfigError;
pub use micros::Micros;
pub use phase::phase;

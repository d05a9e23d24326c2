//! Rate limits as pure functions: token buckets, fixed, calendar and sliding windows, sliding logs and
//! leases of a number of slots, with reservations, overage and exact retry times.
//!
//! A [`Limit`] is one of several kinds. Its [`State`] between two calls is a few numbers, which the
//! caller stores; the time is an argument too. So the same call has the same answer on every machine,
//! and this crate needs no clock, no storage, no threads and no unsafe code. The PostgreSQL extension
//! `ratelimit` applies this crate to the rows of a table.
//!
//! ```
//! use ratelimit_core::{Micros, config, decide};
//!
//! // Ten tokens a minute; up to twenty accumulate.
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
//! let wait = denied.retry_after.expect("a token fits");
//! assert_eq!(wait, Micros::from_millis(6_000.0));
//! assert!(decide(&limit, &empty, now.plus(wait), 1.0, false).ok);
//!
//! // Or the work is reserved now, and done when its tokens are there.
//! let reserved = decide(&limit, &empty, now, 1.0, true);
//! assert_eq!((reserved.ok, reserved.retry_after), (true, Some(wait)));
//! # Ok::<(), ratelimit_core::ConfigError>(())
//! ```
//!
//! # In a service
//!
//! The code that stores states must read, decide and write in a single step, under a lock or in a
//! transaction: otherwise two calls decide from the same state, and one overwrites the other's. A denial
//! has no state to write.
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::Mutex;
//! use std::time::{Duration, SystemTime, UNIX_EPOCH};
//!
//! use ratelimit_core::{Limit, Micros, State, config, decide, phase};
//!
//! struct Limiter {
//!     name: &'static str,
//!     limit: Limit,
//!     states: Mutex<HashMap<String, State>>,
//! }
//!
//! impl Limiter {
//!     /// Takes a token for a key, or returns how long to wait for one.
//!     fn take(&self, key: &str, now: Micros) -> Result<(), Duration> {
//!         let mut states = self.states.lock().unwrap();
//!         let state = states.entry(key.to_owned()).or_insert_with(|| {
//!             self.limit.initial_state(now, phase(self.name.as_bytes(), key.as_bytes()))
//!         });
//!         let decision = decide(&self.limit, state, now, 1.0, false);
//!         if let Some(after) = decision.state {
//!             *state = after;
//!         }
//!         let wait = decision.retry_after.unwrap_or(Micros(i64::MAX));
//!         if decision.ok { Ok(()) } else { Err(Duration::from_micros(wait.0 as u64)) }
//!     }
//! }
//!
//! let logins = Limiter {
//!     name: "login",
//!     limit: config::parse(r#"{"kind": "fixed window", "rate": 2, "period": "1 day", "timezone": "Europe/Berlin"}"#)?,
//!     states: Mutex::default(),
//! };
//! let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
//! let now = Micros(now.as_micros() as i64);
//! assert_eq!(logins.take("ada", now), Ok(()));
//! assert_eq!(logins.take("ada", now), Ok(()));
//! let wait = logins.take("ada", now).unwrap_err();
//! assert!(wait <= Duration::from_secs(25 * 3600), "the day ends");
//! assert_eq!(logins.take("bob", now), Ok(()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Contents
//!
//! - [`config`] reads and writes the JSON of a limit, and checks every range; [`state`] that of a
//!   state.
//! - [`decide`] takes tokens, [`credit`] gives them back, [`Limit::level`] returns the tokens left, and
//!   [`Limit::is_idle`] whether a state can be deleted. [`kinds`] has the kinds, with the sources
//!   of their formulas.
//! - [`Take`] is how much a call takes, as a value; [`Limit::decide_in_turn`] decides several, each after the other.
//! - [`hold`] has tokens that are given back where they are not used.
//! - [`Shards`] is a limit that is divided, so that several calls can be made at once.
//! - [`Limit::acquire`], [`Limit::extend`] and [`Limit::release`] are for leases, which [`lease`] writes as text.
//! - [`requests`] reads a list of calls, [`headers`] writes the outcome of one as HTTP headers.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod config;
pub mod headers;
pub mod hold;
pub mod kinds;
pub mod lease;
pub mod requests;
pub mod state;
pub mod text;

mod argument;
mod fields;
mod micros;
mod numbers;
mod phase;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use argument::{ArgumentError, valid_tokens};
pub use config::ConfigError;
pub use kinds::{
    AsMany, Decision, Kind, Level, Limit, Shards, State, Take, credit, decide, decide_as_many,
};
pub use micros::{Micros, parse_instant};
pub use phase::phase;

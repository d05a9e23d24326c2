//! A call: what it asks for, of which limit, what it does to the tokens, and what it is answered.

use std::rc::Rc;

use ratelimit_core::config::MAX_TOKENS;
use ratelimit_core::text::float_text;
use ratelimit_core::{Decision, Level, Limit, Micros, Shards, State, algorithm, decide};

use crate::limiter::definitions;
use crate::pg::catalog::Catalog;
use crate::pg::clock::INFINITE;
use crate::pg::error::{Error, Result};
use crate::pg::values::{Jsonb, utf8};
use crate::store::{RowId, is_reset};

/// What a call asks for.
pub struct Request<'a> {
    pub name: &'a [u8],
    pub key: &'a [u8],
    /// Tokens.
    pub count: f64,
    pub reserve: bool,
    pub config: Option<Jsonb<'a>>,
}

/// What a call is answered.
pub struct Answer {
    pub ok: bool,
    /// From `now`; see [`Decision::retry_after`].
    pub retry_after: Option<Micros>,
    /// After the call; for a check, as it stands.
    pub level: Level,
    pub capacity: f64,
    /// The instant that the decision was made for.
    pub now: Micros,
}

/// What a call does to the tokens.
#[derive(Clone, Copy)]
pub enum Change {
    /// See [`algorithm::decide`].
    Take { count: f64, reserve: bool },
    /// See [`algorithm::credit`].
    Credit { count: f64, taken_at: Option<Micros> },
}

impl Change {
    /// The outcome for a state.
    ///
    /// # Errors
    /// [`Error::NotForKind`]: a sliding kind has nothing to give back to.
    pub fn apply(self, limit: &Limit, state: &State, now: Micros) -> Result<Decision> {
        match self {
            Change::Take { count, reserve } => Ok(decide(limit, state, now, count, reserve)),
            Change::Credit { count, taken_at } => {
                algorithm::credit(limit, state, now, count, taken_at)
                    .ok_or(Error::NotForKind { function: "rl_credit", kind: limit.kind() })
            }
        }
    }

    /// The outcome for a limit in parts; the state is that of their total.
    ///
    /// # Errors
    /// As [`apply`](Change::apply).
    pub fn decide(self, limit: &Limit, parts: &Shards, now: Micros) -> Result<Decision> {
        match self {
            Change::Take { count, reserve } => Ok(parts.decide(now, count, reserve)),
            Change::Credit { .. } => self.apply(limit, &parts.total(now), now),
        }
    }
}

/// A limit of somebody: what the rows of a key mean.
pub struct Target<'a> {
    pub name: &'a [u8],
    pub key: &'a [u8],
    pub limit: Rc<Limit>,
}

impl<'a> Request<'a> {
    /// The error that a denial becomes with `throws`, and in a trigger.
    pub fn denied(&self, answer: &Answer) -> Error {
        Error::RateLimited {
            name: utf8(self.name).into_owned(),
            retry_after: answer.retry_after,
            capacity: answer.capacity,
        }
    }

    pub fn resolve(&self, catalog: &Catalog) -> Result<Target<'a>> {
        let limit = definitions::resolve(catalog, self.name, self.key, self.config)?;
        Ok(Target { name: self.name, key: self.key, limit })
    }
}

impl Target<'_> {
    /// One of its rows.
    pub fn row(&self, shard: i32) -> RowId<'_> {
        RowId { name: self.name, key: self.key, shard }
    }

    /// What a row means at `now`, which is read after it. `limit` is the whole limit, or a part of
    /// it where the row is one.
    ///
    /// # Errors
    /// [`Error::BadState`]: a value that no call can have written.
    pub fn state(&self, limit: &Limit, row: Option<State>, now: Micros) -> Result<State> {
        match row {
            // Reset, or of a kind that has nothing to carry over: as if it weren't there.
            Some(row) if !is_reset(&row) && limit.accepts(&row) => match unwritten(&row) {
                Some((column, value)) => {
                    Err(Error::BadState { name: utf8(self.name).into_owned(), column, value })
                }
                None => Ok(row),
            },
            _ => Ok(limit.initial_state(now, self.phase())),
        }
    }

    /// See [`ratelimit_core::phase`].
    pub fn phase(&self) -> Micros {
        ratelimit_core::phase(utf8(self.name).as_bytes(), utf8(self.key).as_bytes())
    }

    /// The answer of a call that was decided at `now`.
    pub fn answer(&self, decision: &Decision, level: Level, now: Micros) -> Answer {
        Answer {
            ok: decision.ok,
            retry_after: decision.retry_after,
            level,
            capacity: self.limit.capacity(),
            now,
        }
    }
}

/// Refuses a count that no limit, or not this kind of limit, can take (22023).
pub fn check_count(limit: &Limit, count: f64) -> Result<()> {
    valid_count(count)?;
    if limit.whole_counts() && count.fract() != 0.0 {
        return Err(bad_count(count, "a whole number, for a sliding log"));
    }
    Ok(())
}

/// A column of a row that no call can have written, and what is in it, for a time an infinity.
fn unwritten(row: &State) -> Option<(&'static str, f64)> {
    let infinite = |at: Option<&Micros>| {
        at.filter(|at| INFINITE.contains(at)).map(|at| f64::INFINITY.copysign(at.0 as f64))
    };
    let log = row.log.as_deref().unwrap_or_default();
    let columns = [
        ("value", Some(row.value)),
        ("prior", row.prior),
        ("ts", infinite(Some(&row.ts))),
        ("log", infinite(log.first())),
        ("log", infinite(log.last())),
    ];
    columns.into_iter().find_map(|(column, value)| {
        value.filter(|value| !value.is_finite()).map(|value| (column, value))
    })
}

/// Refuses a count that no limit can take (22023).
pub fn valid_count(count: f64) -> Result<f64> {
    if (0.0..=MAX_TOKENS).contains(&count) {
        return Ok(count);
    }
    Err(bad_count(count, "a number from 0 to 1e15"))
}

pub fn bad_count(count: f64, allowed: &str) -> Error {
    Error::InvalidArgument { argument: "count", value: float_text(count), allowed: allowed.into() }
}

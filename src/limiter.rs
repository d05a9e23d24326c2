//! One call from start to end: resolve the limit, read the row, decide, write.

use pgrx::pg_sys;
use xxhash_rust::xxh64::xxh64;

use std::ops::ControlFlow;
use std::rc::Rc;

use crate::algorithm::{self, Decision, Level, Limit, Micros, Parts, State, decide};
use crate::catalog::{self, Catalog};
use crate::config::{MAX_TOKENS, float_text};
use crate::definitions;
use crate::error::{Error, Result};
use crate::guc;
use crate::postgres::{INFINITE, Jsonb, check_for_interrupts, utf8};
use crate::scan::each_key;
use crate::shards::{self, Holding};
use crate::store::{self, Row, RowId, Store, TableLock};

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
    pub fn decide(self, limit: &Limit, parts: &Parts, now: Micros) -> Result<Decision> {
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

/// How often a row may vanish under our hands before the call gives up: each time is a row that
/// another session deleted or inserted between two of our statements.
pub const TRIES: u32 = 1000;

/// Takes tokens.
pub fn limit(function: pg_sys::Oid, request: &Request) -> Result<Answer> {
    catalog::with(function, TableLock::Write, |catalog| {
        let target = request.resolve(catalog)?;
        check_count(&target.limit, request.count)?;
        let take = Change::Take { count: request.count, reserve: request.reserve };
        store::opened(catalog, TableLock::Write, |store| change(store, &target, take))
    })
}

/// Gives tokens back, or with a negative count takes them without asking.
///
/// # Errors
/// [`Error::NotForKind`] for the sliding kinds.
pub fn credit(
    function: pg_sys::Oid,
    request: &Request,
    taken_at: Option<Micros>,
) -> Result<Answer> {
    catalog::with(function, TableLock::Write, |catalog| {
        let target = request.resolve(catalog)?;
        if !(-MAX_TOKENS..=MAX_TOKENS).contains(&request.count) {
            return Err(bad_count(request.count, "a number from -1e15 to 1e15"));
        }
        let credit = Change::Credit { count: request.count, taken_at };
        store::opened(catalog, TableLock::Write, |store| change(store, &target, credit))
    })
}

/// Reads a row, decides, and writes what was decided, in one step where the store can and nobody
/// else got there first; otherwise the row is locked and looked at again. What changes nothing is
/// answered from a plain read of the latest committed state: a denial takes no lock, writes nothing
/// and waits for nobody. That is right because what is in flight can only take more, or roll back to
/// this state.
fn change(store: &dyn Store, target: &Target, change: Change) -> Result<Answer> {
    if target.limit.shards() > 1 {
        return shards::change(store, target, change);
    }
    let id = target.row(0);
    let decide = |row: Option<Row>| -> Result<(Answer, Option<State>)> {
        let now = guc::now();
        let state = target.state(&target.limit, row, now)?;
        let decision = change.apply(&target.limit, &state, now)?;
        Ok((target.answer(&decision, decision.level, now), decision.state))
    };
    for _ in 0..TRIES {
        check_for_interrupts();
        let Some(seen) = store.read(id)? else {
            let (answer, state) = decide(None)?;
            let Some(state) = state else { return Ok(answer) };
            if !store.insert(id, &state)? {
                continue;
            }
            if guc::now().minus(answer.now) < Micros::MILLISECOND {
                return Ok(answer);
            }
            // It waited, for another session's insert that rolled back. The key was full all the
            // time, so the call still passes; but it does so now.
            let Some(own) = store.lock(id)? else { continue };
            let (answer, state) = decide(None)?;
            if let Some(state) = state {
                store.update(id, own.at, &state)?;
            }
            return Ok(answer);
        };
        if shards::is_spread(Some(&seen.row)) {
            // The limit had shards until lately.
            let (now, holding) = target.look(store)?;
            let decision = change.decide(&target.limit, &holding.parts, now)?;
            if decision.state.is_none() {
                return Ok(target.answer(&decision, holding.parts.level(now), now));
            }
            shards::rearrange(store, target)?;
            continue;
        }
        let (answer, state) = decide(Some(seen.row.clone()))?;
        let Some(state) = state else { return Ok(answer) };
        if store.replace(id, &seen, &state, true)? {
            if guc::now().minus(answer.now) < Micros::MILLISECOND {
                return Ok(answer);
            }
            // It waited, for another transaction that in the end changed nothing: decide again at the
            // time of the lock.
            let Some(own) = store.lock(id)? else { continue };
            let (answer, state) = decide(Some(seen.row.clone()))?;
            store.update(id, own.at, &state.unwrap_or(seen.row))?;
            return Ok(answer);
        }
        // The lock may have been waited for: look at the row, and at the clock, again.
        let Some(locked) = store.lock(id)? else { continue };
        if shards::is_spread(Some(&locked.row)) {
            continue;
        }
        let (answer, state) = decide(Some(locked.row))?;
        if let Some(state) = state {
            store.update(id, locked.at, &state)?;
        }
        return Ok(answer);
    }
    Err(store.not_written())
}

/// Tells what [`limit`] would answer, consuming, locking and writing nothing.
pub fn check(function: pg_sys::Oid, request: &Request) -> Result<Answer> {
    catalog::with(function, TableLock::Read, |catalog| {
        let target = request.resolve(catalog)?;
        check_count(&target.limit, request.count)?;
        store::opened(catalog, TableLock::Read, |store| {
            let (now, holding) = target.look(store)?;
            let decision = holding.parts.decide(now, request.count, request.reserve);
            Ok(target.answer(&decision, holding.parts.level(now), now))
        })
    })
}

/// Forgets the state of a key; whether there was any.
pub fn reset(function: pg_sys::Oid, name: &[u8], key: &[u8]) -> Result<bool> {
    catalog::with(function, TableLock::Write, |catalog| {
        store::opened(catalog, TableLock::Write, |store| reset_key(store, name, key))
    })
}

/// Marks the rows of a key as reset; whether any held a state.
fn reset_key(store: &dyn Store, name: &[u8], key: &[u8]) -> Result<bool> {
    let reset = |row: &Row| Row { value: f64::INFINITY, ts: row.ts, prior: None, log: None };
    let id = RowId { name, key, shard: 0 };
    if let Some(seen) = store.read(id)?
        && !shards::is_spread(Some(&seen.row))
        && (is_reset(&seen.row) || store.replace(id, &seen, &reset(&seen.row), true)?)
    {
        return Ok(!is_reset(&seen.row));
    }
    let mut was = false;
    for (shard, found) in shards::lock_all(store, name, key)? {
        if !is_reset(&found.row) {
            store.update(RowId { name, key, shard }, found.at, &reset(&found.row))?;
            was = true;
        }
    }
    Ok(was)
}

/// Forgets the state of every key of a name; of how many there was any. The rows are locked and
/// deleted key by key, in the order in which everybody locks rows: a key that appears behind the one
/// that it has reached is as one that appears after the call.
pub fn reset_all(function: pg_sys::Oid, name: &[u8]) -> Result<i64> {
    // Out here, since it begins again where the table has changed.
    let mut were = 0;
    catalog::with(function, TableLock::Write, |catalog| {
        store::opened(catalog, TableLock::Write, |store| {
            let mut delete = |key: &[u8]| -> Result<()> {
                check_for_interrupts();
                let rows = shards::lock_all(store, name, key)?;
                were += i64::from(rows.iter().any(|(_, found)| !is_reset(&found.row)));
                rows.iter().try_for_each(|&(shard, ref found)| {
                    store.delete(RowId { name, key, shard }, found.at)
                })
            };
            delete(b"")?; // which comes first, and after no other
            let _ = each_key(store, (name, b""), true, |found| {
                delete(&found.key)?;
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(were)
        })
    })
}

/// Whether a row counts as none; see [`Row`].
fn is_reset(row: &Row) -> bool {
    row.value == f64::INFINITY
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

    fn resolve(&self, catalog: &Catalog) -> Result<Target<'a>> {
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
    pub fn state(&self, limit: &Limit, row: Option<Row>, now: Micros) -> Result<State> {
        match row {
            // Reset, or of a kind that has nothing to carry over: as if it weren't there.
            Some(row) if !is_reset(&row) && limit.carries(&row) => match unwritten(&row) {
                Some((column, value)) => {
                    Err(Error::BadState { name: utf8(self.name).into_owned(), column, value })
                }
                None => Ok(row),
            },
            _ => Ok(limit.fresh(now, self.phase())),
        }
    }

    /// What is in the limit under the latest state, and when that was looked at: takes no lock.
    pub fn look(&self, store: &dyn Store) -> Result<(Micros, Holding<'_>)> {
        let mut rows = Vec::new();
        if self.limit.shards() == 1 {
            rows.extend(store.read(self.row(0))?.map(|found| (0, found)));
        }
        if self.limit.shards() > 1 || shards::is_spread(rows.first().map(|(_, found)| &found.row)) {
            rows = store.read_all(self.name, self.key)?;
        }
        let now = guc::now();
        Ok((now, shards::holding(self, rows, now)?))
    }

    /// See [`phase`].
    pub fn phase(&self) -> Micros {
        phase(self.name, self.key)
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

/// The phase of a fixed window without a `start`: a hash of name and key, the same on every
/// machine and version (XXH64 of name, a zero byte and key in UTF-8, as microseconds), so that the
/// windows of different keys don't all turn at once.
fn phase(name: &[u8], key: &[u8]) -> Micros {
    let hash = xxh64(&[utf8(name).as_bytes(), &[0], utf8(key).as_bytes()].concat(), 0);
    Micros((hash >> 1) as i64)
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
fn unwritten(row: &Row) -> Option<(&'static str, f64)> {
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

fn bad_count(count: f64, allowed: &str) -> Error {
    Error::InvalidArgument { argument: "count", value: float_text(count), allowed: allowed.into() }
}

/// Refuses a name that is empty or too long (22023).
pub fn valid_name(name: &[u8]) -> Result<&[u8]> {
    if (1..=200).contains(&name.len()) {
        return Ok(name);
    }
    Err(Error::InvalidArgument {
        argument: "name",
        value: format!("{} bytes long", name.len()),
        allowed: "1 to 200 bytes".into(),
    })
}

/// Refuses a key that is too long (22023).
pub fn valid_key(key: &[u8]) -> Result<&[u8]> {
    if key.len() <= 1024 {
        return Ok(key);
    }
    Err(Error::InvalidArgument {
        argument: "key",
        value: format!("{} bytes long", key.len()),
        allowed: "at most 1024 bytes; of a longer one, pass a hash".into(),
    })
}

//! One call from start to end: resolve the limit, read the row, decide, write.

use pgrx::pg_sys;
use xxhash_rust::xxh64::xxh64;

use crate::algorithm::{self, Decision, Level, Limit, Micros, State, decide};
use crate::catalog::{self, Catalog};
use crate::config::{MAX_TOKENS, float_text};
use crate::definitions;
use crate::error::{Error, Result};
use crate::guc;
use crate::postgres::{Jsonb, check_for_interrupts, utf8};
use crate::spi;
use crate::store::{Row, RowId, Store};

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

/// How often a row may vanish under our hands before the call gives up: each time is a row that
/// another session deleted or inserted between two of our statements.
const TRIES: u32 = 1000;

/// Takes tokens.
pub fn limit(function: pg_sys::Oid, request: &Request) -> Result<Answer> {
    let catalog = catalog::current(function)?;
    let limit = request.resolve(&catalog)?;
    check_count(&limit, request.count)?;
    spi::connected(&catalog, catalog.rate_limits, |store| {
        change(store, request, &limit, |state, now| {
            Ok(decide(&limit, state, now, request.count, request.reserve))
        })
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
    let catalog = catalog::current(function)?;
    let limit = request.resolve(&catalog)?;
    if !(-MAX_TOKENS..=MAX_TOKENS).contains(&request.count) {
        return Err(bad_count(request.count, "a number from -1e15 to 1e15"));
    }
    spi::connected(&catalog, catalog.rate_limits, |store| {
        change(store, request, &limit, |state, now| {
            algorithm::credit(&limit, state, now, request.count, taken_at)
                .ok_or(Error::NotForKind { function: "rl_credit", kind: limit.kind() })
        })
    })
}

/// Reads a row, decides, and writes what was decided. What changes nothing is answered from a plain
/// read of the latest committed state: a denial takes no lock, writes nothing and waits for nobody.
/// That is right because what is in flight can only take more, or roll back to this state.
fn change(
    store: &spi::Connection,
    request: &Request,
    limit: &Limit,
    decide: impl Fn(&State, Micros) -> Result<Decision>,
) -> Result<Answer> {
    let id = RowId { name: request.name, key: request.key, shard: 0 };
    let decide = |row: Option<Row>| -> Result<(Answer, Option<State>)> {
        let (now, state) = request.state(limit, row)?;
        let decision = decide(&state, now)?;
        Ok((request.answer(limit, &decision, decision.level, now), decision.state))
    };
    for _ in 0..TRIES {
        check_for_interrupts();
        let row = store.read(id)?;
        let exists = row.is_some();
        let (answer, state) = decide(row)?;
        let Some(state) = state else { return Ok(answer) };
        let (answer, state) = if exists {
            // The lock may have been waited for: look at the row, and at the clock, again.
            let Some(row) = store.lock(id)? else { continue };
            decide(Some(row))?
        } else {
            if !store.insert(id, &state)? {
                continue;
            }
            if guc::now().minus(answer.now) < Micros::MILLISECOND {
                return Ok(answer);
            }
            // It waited, for another session's insert that rolled back. The key was full all the
            // time, so the call still passes; but it does so now.
            decide(None)?
        };
        if let Some(state) = state {
            store.update(id, &state)?;
        }
        return Ok(answer);
    }
    Err(store.not_written())
}

/// Tells what [`limit`] would answer, consuming, locking and writing nothing.
pub fn check(function: pg_sys::Oid, request: &Request) -> Result<Answer> {
    let catalog = catalog::current(function)?;
    let limit = request.resolve(&catalog)?;
    check_count(&limit, request.count)?;
    let id = RowId { name: request.name, key: request.key, shard: 0 };
    let row = spi::connected(&catalog, catalog.rate_limits, |store| store.read(id))?;
    let (now, state) = request.state(&limit, row)?;
    let decision = decide(&limit, &state, now, request.count, request.reserve);
    Ok(request.answer(&limit, &decision, limit.level(&state, now), now))
}

/// Forgets the state of a key; whether there was any.
pub fn reset(function: pg_sys::Oid, name: &[u8], key: &[u8]) -> Result<bool> {
    let catalog = catalog::current(function)?;
    spi::connected(&catalog, catalog.rate_limits, |store| store.reset(name, key))
}

/// Forgets the state of every key of a name; of how many there was any.
pub fn reset_all(function: pg_sys::Oid, name: &[u8]) -> Result<i64> {
    let catalog = catalog::current(function)?;
    spi::connected(&catalog, catalog.rate_limits, |store| store.reset_all(name))
}

impl Request<'_> {
    fn resolve(&self, catalog: &Catalog) -> Result<std::rc::Rc<Limit>> {
        definitions::resolve(catalog, self.name, self.key, self.config)
    }

    /// What a row means at this moment: the clock is read after the row.
    fn state(&self, limit: &Limit, row: Option<Row>) -> Result<(Micros, State)> {
        let now = guc::now();
        let state = match row {
            // Reset, or of a kind that has nothing to carry over: as if it weren't there.
            Some(row) if row.value == f64::INFINITY || !limit.carries(&row) => None,
            Some(row) => {
                for (column, value) in [("value", Some(row.value)), ("prior", row.prior)] {
                    if let Some(value) = value.filter(|value| !value.is_finite()) {
                        let name = utf8(self.name).into_owned();
                        return Err(Error::BadState { name, column, value });
                    }
                }
                Some(row)
            }
            None => None,
        };
        Ok((now, state.unwrap_or_else(|| limit.fresh(now, phase(self.name, self.key)))))
    }

    fn answer(&self, limit: &Limit, decision: &Decision, level: Level, now: Micros) -> Answer {
        Answer {
            ok: decision.ok,
            retry_after: decision.retry_after,
            level,
            capacity: limit.capacity(),
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
    let allowed = if !(0.0..=MAX_TOKENS).contains(&count) {
        "a number from 0 to 1e15"
    } else if limit.whole_counts() && count.fract() != 0.0 {
        "a whole number, for a sliding log"
    } else {
        return Ok(());
    };
    Err(bad_count(count, allowed))
}

fn bad_count(count: f64, allowed: &str) -> Error {
    Error::InvalidArgument { argument: "count", value: float_text(count), allowed: allowed.into() }
}

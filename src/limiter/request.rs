//! A call: its request, the change that it makes, its target and its answer.

use std::rc::Rc;

use ratelimit_core::config::{Definition, MAX_TOKENS, Store as Kept};
use ratelimit_core::text::float_text;
use ratelimit_core::{Decision, Kind, Level, Limit, Micros, Shards, State, algorithm, decide};

use crate::limiter::blocks::FOR_GOOD;
use crate::limiter::definitions::{self, Resolved};
use crate::pg::catalog::Catalog;
use crate::pg::error::{Error, Result};
use crate::pg::values::{Jsonb, utf8};
use crate::store::{RowId, Stored};

/// The arguments of a call.
pub struct Request<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, likewise.
    pub key: &'a [u8],
    /// Tokens.
    pub count: f64,
    /// Whether a take may go into debt, to be waited for.
    pub reserve: bool,
    /// The config to use instead of the definition.
    pub config: Option<Jsonb<'a>>,
}

/// The answer of a call.
pub struct Answer {
    /// Whether the call is allowed.
    pub ok: bool,
    /// From `now`; see [`Decision::retry_after`].
    pub retry_after: Option<Micros>,
    /// After the call; before it, for a check.
    pub level: Level,
    /// Tokens; see [`Limit::capacity`].
    pub capacity: f64,
    /// The instant of the decision.
    pub now: Micros,
    /// Whether a denial is one; otherwise it only tells what one would be, in a dry run.
    pub enforced: bool,
    /// Until when the key is blocked, or [`FOR_GOOD`], if that is why it is denied.
    pub blocked: Option<Micros>,
    /// The id of the lease that was taken, from a concurrency limit.
    pub lease: Option<Micros>,
}

/// How much a call takes.
#[derive(Clone, Copy)]
pub struct Take {
    /// Tokens.
    pub count: f64,
    /// As in [`Request`].
    pub reserve: bool,
    /// The id of the lease that a concurrency limit gives; `None`: no lease is stored.
    pub lease: Option<Micros>,
}

impl Take {
    /// Decides it on a state.
    pub fn decide(self, limit: &Limit, state: &State, now: Micros) -> Decision {
        match (limit, state, self.lease) {
            (Limit::Concurrency(limit), State::Leases(leases), Some(id)) => {
                limit.acquire(leases, now, self.count, id)
            }
            _ => decide(limit, state, now, self.count, self.reserve),
        }
    }
}

/// The change that a call makes.
#[derive(Clone, Copy)]
pub enum Change {
    /// Takes tokens; see [`algorithm::decide`].
    Take(Take),
    /// Gives tokens back; see [`algorithm::credit`].
    Credit {
        /// Tokens; negative: takes them unconditionally.
        count: f64,
        /// The instant of the take that is undone.
        taken_at: Option<Micros>,
    },
}

impl Change {
    /// Decides the change of a state.
    ///
    /// # Errors
    /// [`Error::NotForKind`] (0A000): a credit to a sliding kind or a concurrency limit.
    pub fn apply(self, limit: &Limit, state: &State, now: Micros) -> Result<Decision> {
        match self {
            Change::Take(take) => Ok(take.decide(limit, state, now)),
            Change::Credit { count, taken_at } => {
                algorithm::credit(limit, state, now, count, taken_at)
                    .ok_or(Error::NotForKind { function: "rl_credit", kind: limit.kind() })
            }
        }
    }

    /// Decides the change of a divided limit; the state is that of their total.
    ///
    /// # Errors
    /// As [`apply`](Change::apply).
    pub fn decide(self, limit: &Limit, shards: &Shards, now: Micros) -> Result<Decision> {
        match self {
            Change::Take(take) => Ok(shards.decide(now, take.count, take.reserve)),
            Change::Credit { .. } => self.apply(limit, &shards.total(now), now),
        }
    }
}

/// The key that a call is for, and its limit.
pub struct Target<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, likewise.
    pub key: &'a [u8],
    /// The config of the call, or the definition.
    pub limit: Rc<Definition>,
    /// Whether the name is defined for the key; otherwise it is the config of the call alone that says so.
    pub is_defined: bool,
    /// Until when it is blocked, if it ever was, or [`FOR_GOOD`].
    pub blocked_until: Option<Micros>,
}

impl Answer {
    /// Lets pass what a dry run would deny; nothing has changed.
    pub fn let_pass(&mut self) {
        (self.ok, self.retry_after) = (true, None);
    }
}

impl<'a> Request<'a> {
    /// Returns the error for a denial, with `throws` and in a trigger (PT429).
    pub fn denied(&self, answer: &Answer) -> Error {
        Error::RateLimited {
            name: utf8(self.name).into_owned(),
            retry_after: answer.retry_after,
            capacity: answer.capacity,
            for_good: answer.blocked == Some(FOR_GOOD),
        }
    }

    /// Returns what the request takes.
    pub fn take(&self) -> Take {
        Take { count: self.count, reserve: self.reserve, lease: None }
    }

    /// Resolves the limit of the request.
    ///
    /// # Errors
    /// As [`definitions::resolve`]; 22004: it is keyed, and the key is empty.
    pub fn resolve(&self, catalog: &Catalog) -> Result<Target<'a>> {
        let resolved = definitions::resolve(catalog, self.name, self.key, self.config)?;
        definitions::check_key(self.name, self.key, resolved.keyed, &resolved.limit)?;
        Ok(self.target(resolved))
    }

    /// Resolves the limit of a lease, whose key is that with which it was taken.
    ///
    /// # Errors
    /// As [`definitions::resolve`].
    pub fn resolve_lease(&self, catalog: &Catalog) -> Result<Target<'a>> {
        let resolved = definitions::resolve(catalog, self.name, self.key, self.config)?;
        Ok(self.target(resolved))
    }

    fn target(&self, resolved: Resolved) -> Target<'a> {
        let Resolved { limit, is_defined, blocked_until, .. } = resolved;
        Target { name: self.name, key: self.key, limit, is_defined, blocked_until }
    }
}

impl Target<'_> {
    /// Returns the primary key of a row by its shard number.
    pub fn row(&self, shard_number: i32) -> RowId<'_> {
        RowId { name: self.name, key: self.key, shard: shard_number }
    }

    /// Interprets a row at `now`, which is read after it. `limit` is that of the row: the whole one, or
    /// that of a shard.
    ///
    /// # Errors
    /// [`Error::BadState`] (55000): a value that no call writes.
    pub fn state(&self, limit: &Limit, row: Option<Stored>, now: Micros) -> Result<State> {
        match row {
            Some(Stored::State(state)) if limit.accepts(state.shape()) => Ok(state),
            Some(Stored::Invalid { shape, column, value, .. }) if limit.accepts(shape) => {
                Err(Error::BadState { name: utf8(self.name).into_owned(), column, value })
            }
            // A row that was reset, or of a kind with nothing to carry over, counts as none.
            _ => Ok(limit.initial_state(now, self.phase())),
        }
    }

    /// Returns where the key's windows begin; see [`ratelimit_core::phase`].
    pub fn phase(&self) -> Micros {
        ratelimit_core::phase(utf8(self.name).as_bytes(), utf8(self.key).as_bytes())
    }

    /// Returns the answer of a call decided at `now`.
    pub fn answer(&self, decision: &Decision, level: Level, now: Micros) -> Answer {
        let given = match &decision.state {
            Some(State::Leases(leases)) => leases.given(),
            _ => None,
        };
        Answer {
            ok: decision.ok,
            retry_after: decision.retry_after,
            level,
            capacity: self.limit.capacity(),
            now,
            enforced: self.limit.enforce,
            blocked: None,
            lease: given.map(|lease| lease.id),
        }
    }

    /// Returns the block that is in force: until when.
    pub fn block(&self, now: Micros) -> Option<Micros> {
        self.blocked_until.filter(|&until| until > now)
    }

    /// Returns the answer at `now` to a call that is denied by a block: after it the call passes as far as the
    /// limit lets it then. A dry run is no way around it; with `dry_run_passes` it lets every call pass after it, as
    /// a take does, while a check goes on telling what would be denied.
    pub fn blocked(
        &self,
        until: Micros,
        shards: &Shards,
        now: Micros,
        take: Take,
        dry_run_passes: bool,
    ) -> Answer {
        let denied = after_block(until, now, |then| {
            let decision = shards.decide(then, take.count, take.reserve);
            let passes = decision.ok || dry_run_passes && !self.limit.enforce;
            if passes { Some(Micros(0)) } else { decision.retry_after }
        });
        let decision =
            Decision { ok: false, retry_after: denied, level: shards.level(now), state: None };
        let level = decision.level;
        Answer { enforced: true, blocked: Some(until), ..self.answer(&decision, level, now) }
    }

    /// Whether what it holds is in memory.
    pub fn is_in_memory(&self) -> bool {
        self.limit.store == Kept::Memory && self.limit.kind() != Kind::Unlimited
    }

    /// Refuses what is not for limits whose slots are taken by leases.
    ///
    /// # Errors
    /// [`Error::NotForKind`] (0A000).
    pub fn refuse_leases(&self, function: &'static str) -> Result<()> {
        match self.limit.kind() {
            Kind::Concurrency => Err(Error::NotForKind { function, kind: Kind::Concurrency }),
            _ => Ok(()),
        }
    }
}

/// Returns the wait from `now` on of a call that is blocked until an instant and has `rest` to wait for then;
/// `None`: it never passes.
pub fn after_block(
    until: Micros,
    now: Micros,
    rest: impl FnOnce(Micros) -> Option<Micros>,
) -> Option<Micros> {
    if until == FOR_GOOD { None } else { rest(until).map(|rest| until.minus(now).plus(rest)) }
}

/// Checks the count of a take for a limit.
///
/// # Errors
/// 22023: no number from 0 to 1e15; for a kind with whole counts, no whole number.
pub fn check_count(limit: &Limit, count: f64) -> Result<()> {
    valid_count(count)?;
    if limit.whole_counts() && count.fract() != 0.0 {
        let kind = limit.kind().with_article();
        return Err(bad_count(count, &format!("a whole number, for {kind}")));
    }
    Ok(())
}

/// Checks the count of a take, in tokens.
///
/// # Errors
/// 22023: no number from 0 to 1e15.
pub fn valid_count(count: f64) -> Result<f64> {
    if (0.0..=MAX_TOKENS).contains(&count) {
        return Ok(count);
    }
    Err(bad_count(count, "a number from 0 to 1e15"))
}

/// Returns the error for a count that is not allowed (22023).
pub fn bad_count(count: f64, allowed: &str) -> Error {
    Error::InvalidArgument { argument: "count", value: float_text(count), allowed: allowed.into() }
}

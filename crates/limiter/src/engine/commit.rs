//! All or none: locks, decides again at one instant, and writes.

use ratelimit_core::hold::HoldChange;
use ratelimit_core::{Micros, Shards, Take};
use ratelimit_faults::Fault;

use super::{Part, Parts, memory};
use crate::change::held::{Settlement, random_id};
use crate::change::{Ask, Change, Decided};
use crate::error::{LimiterError, Result};
use crate::ports::{Deleted, HoldRow, Host, Rows, tries};
use crate::stores;
use crate::stores::expiry;
use crate::stores::shards::{self, Contents, Extent};
use crate::target::{Store, Target};

/// A try to make all asks of a call.
pub(super) struct Commit<'c, H> {
    pub(super) host: &'c H,
    pub(super) rows: &'c dyn Rows,
    pub(super) asks: &'c [Ask<'c>],
    /// How many rows of limits with shards it locks.
    pub(super) extent: Extent,
    /// The decisions, once they have refused the call.
    pub(super) refused: Option<Vec<Decided>>,
}

impl<'c, H: Host> Commit<'c, H> {
    /// Locks the rows of the asks, which were `seen` before unless they are settlements, decides, and writes. `None`:
    /// the rows must be read again, or the call is refused.
    ///
    /// # Errors
    /// [`LimiterError::Busy`]: rows are locked and can't be waited for.
    pub(super) fn run(&mut self, seen: Parts<'c>) -> Result<Option<Vec<Decided>>> {
        let Some(mut locked) = self.lock(seen)? else { return Ok(None) };
        let Some(now) = self.apply_expired(&mut locked)? else { return Ok(None) };
        let (mut parts, mut suffice) = (Vec::with_capacity(locked.len()), true);
        for (ask, contents) in self.asks.iter().zip(locked) {
            self.host.check_for_interrupts();
            let mut part = Part::decide(self.host, ask, contents, now)?;
            let Part { contents, decided, .. } = &mut part;
            let Ask { target, change, .. } = ask;
            if contents.are_others && change.is_take() {
                decided.give_up(change, target.limit(), true);
            }
            // A settlement has locked all rows.
            let needs_rows = !matches!(change, Change::Settle(_)) && !ask.is_in_memory();
            if needs_rows && decided.changes() {
                suffice &= contents.suffices(now, decided.after.as_ref());
            }
            parts.push(part);
        }
        if !parts.iter().all(|part| part.decided.passes()) && !Fault::PartOfSeveral.is_on() {
            // A limit with only some rows locked may have enough in the others.
            if parts.iter().all(|part| part.contents.is_whole()) {
                for part in parts.iter_mut().filter(|part| part.waits()) {
                    part.count_expiries(self.host)?;
                }
                self.refused = Some(super::unchanged(parts));
            }
            return Ok(None);
        }
        if !suffice && !Fault::TooFewRowsSuffice.is_on() {
            return Ok(None);
        }
        let in_memory = self.asks.iter().filter(|ask| ask.is_in_memory());
        let in_memory = memory::take(self.host, in_memory)?;
        let is_refused = !in_memory.ok && !Fault::MemoryOverlooked.is_on();
        let mut in_memory = in_memory.decided.into_iter();
        for part in &mut parts {
            if part.ask.is_in_memory() {
                in_memory.next().into_iter().for_each(|own| part.decided = own);
            } else if is_refused {
                part.set_level();
            } else if !self.write(part)? {
                return Ok(None);
            }
        }
        let decided = parts.into_iter().map(|part| part.decided).collect();
        if is_refused {
            self.refused = Some(decided);
            return Ok(None);
        }
        Ok(Some(decided))
    }

    /// Locks the rows to change, limit by limit. `None`: they must be read again.
    fn lock(&self, seen: Parts<'c>) -> Result<Option<Vec<Contents<'c>>>> {
        let (mut seen, mut locked) = (seen.into_iter(), Vec::with_capacity(self.asks.len()));
        for ask in self.asks {
            self.host.check_for_interrupts();
            let one = match (&ask.change, seen.next()) {
                (Change::Settle(settlement), _) => self.lock_to_settle(ask, settlement),
                (_, Some(part)) => self.lock_seen(part),
                (_, None) => Ok(None),
            };
            let Some(one) = one? else { return Ok(None) };
            // None is deleted before all are locked: what expires while it waits for one comes first.
            if let (Change::Settle(Settlement { row, .. }), [_, _, ..]) = (&ask.change, self.asks) {
                self.host.with_holds(|holds| holds.lock(&row.id, &row.name, &row.key))?;
            }
            locked.push(one);
        }
        Ok(Some(locked))
    }

    /// Whether to wait for locked rows of a key: not if the transaction has locked one, under any number of shards.
    fn may_wait(&self, target: &Target) -> bool {
        self.extent == Extent::AllWaiting
            || self.host.own_rows(target.name, target.key).is_empty()
            || Fault::OwnRowsOverlooked.is_on()
    }

    /// Locks the rows of a limit that a decision changes. `None`: they must be read again.
    ///
    /// # Errors
    /// [`LimiterError::Busy`]: other rows are locked while this transaction holds one.
    fn lock_seen(&self, part: Part<'c>) -> Result<Option<Contents<'c>>> {
        let Part { ask, contents, decided } = part;
        if ask.is_in_memory() || !decided.changes() {
            return Ok(Some(contents));
        }
        let shards = contents.found.shards;
        let is_dry_take = ask.change.is_take() && !decided.answer.enforced;
        let seen = is_dry_take.then(|| shards.clone());
        let (&Commit { host, rows, extent, .. }, target) = (self, &ask.target);
        // Rows of another number of shards are resharded, under the locks of all.
        let may_be_few = extent == Extent::Few && target.limit().shards() > 1 && shards.are_equal();
        let (wait, alone) = (self.may_wait(target), self.asks.len() == 1);
        let few = if may_be_few { amount(ask, &shards, &decided) } else { None };
        let locked = match few {
            // A call with no other limit may wait for one of several rows.
            Some(amount) => shards::lock_few(host, rows, target, shards, amount, alone && wait),
            None => shards::lock_all(host, rows, target, wait),
        };
        match (locked, seen) {
            (Err(LimiterError::Busy), Some(seen)) => {
                Ok(Some(Contents { are_others: true, ..Contents::read(seen) }))
            }
            (locked, _) => locked,
        }
    }

    /// Locks the rows to which something may come back, or else row 0; none of a limit with shards if this transaction
    /// already holds one of its rows and another session holds another.
    fn lock_to_settle(&self, ask: &'c Ask, one: &Settlement) -> Result<Option<Contents<'c>>> {
        let (&Commit { host, rows, .. }, target) = (self, &ask.target);
        let are_others = one.counts(target);
        if are_others {
            match shards::lock_all(host, rows, target, self.may_wait(target)) {
                Err(LimiterError::Busy) if target.store != Store::Row => {}
                locked => return locked,
            }
        } else {
            // So that no other session gives back its expired tokens, or waits for the hold while it has the row.
            rows.lock(target.row(0), true)?;
        }
        let (found, _) = stores::peek(host, Some(rows), target, None)?;
        Ok(Some(Contents { are_others, ..Contents::read(found.shards) }))
    }

    /// Applies expired holds to the locked rows, and reads the asks' holds; returns the instant to decide at. `None`:
    /// the rows must be read again.
    fn apply_expired(&self, locked: &mut [Contents]) -> Result<Option<Micros>> {
        let &Commit { host, rows, asks, .. } = self;
        let mut has_read = false;
        tries(host, || {
            let now = host.now();
            // Without holds of its own kind, a limit gets nothing back: the holds wait.
            let is_due = |(ask, contents): (&Ask, &Contents)| {
                contents.found.is_due(now) && expiry::returns(&ask.target.definition)
            };
            if let Some(due) = asks.iter().zip(&*locked).position(is_due) {
                if !locked[due].apply_expired(host, rows, &asks[due].target)? {
                    return Ok(Some(None));
                }
                has_read = false;
                return Ok(None);
            }
            if has_read {
                return Ok(Some(Some(now)));
            }
            let mut waited = false;
            for (ask, contents) in asks.iter().zip(&mut *locked) {
                match &ask.change {
                    Change::Settle(one) => waited = self.delete(one, contents)?,
                    Change::Hold(_) => {
                        contents.own = match contents.locked.is_empty() {
                            true => ask.own_of_state(host, rows)?,
                            false => ask.own(host)?.filter(|_| !contents.begins_anew),
                        };
                        has_read = true;
                    }
                    _ => {}
                }
            }
            Ok((!waited && !has_read).then_some(Some(now)))
        })
    }

    /// Deletes the hold to settle, unless another session has it; returns whether it waited for that session.
    fn delete(&self, settlement: &Settlement, contents: &mut Contents) -> Result<bool> {
        let &HoldRow { ref id, ref name, ref key, hold, .. } = settlement.row;
        contents.own = match self.host.with_holds(|holds| holds.delete(id, name, key))? {
            // In a list it has come after the locks, and so after the settlement.
            Deleted::Waited => return Ok(self.asks.len() == 1),
            Deleted::Row(row) if Fault::HoldReadFirst.is_on() => Some(HoldRow { hold, ..row }),
            Deleted::Row(row) => Some(row),
            Deleted::Gone => Fault::GoneHoldSettled.is_on().then(|| settlement.row.clone()),
        };
        Ok(false)
    }

    /// Writes the decision on an ask to its locked rows and its hold; false if the hold is gone.
    fn write(&self, part: &mut Part) -> Result<bool> {
        let (&Commit { host, rows, .. }, ask) = (self, part.ask);
        let (Part { contents, decided, .. }, target) = (&mut *part, &ask.target);
        if let Change::Settle(settlement) = &ask.change {
            let Some(own) = &contents.own else { return Ok(true) };
            if contents.are_others {
                let (count, taken_at) = own.hold.credit(settlement.used);
                let credit = Change::Credit { count, taken_at };
                let credit = Ask { target: target.clone(), change: credit, entry: None };
                let hold = HoldChange { before: Some(own.hold), ..HoldChange::default() };
                decided.answer = super::run_one(host, rows, &credit)?;
                decided.hold = Some(Box::new(hold));
                return Ok(true);
            }
            if let Some(hold) = decided.hold_after() {
                // No caller knows its new id.
                let row = HoldRow { id: random_id(host)?, hold, ..own.clone() };
                host.with_holds(|holds| holds.insert(&row))?;
            }
        } else if decided.changes() {
            if contents.begins_anew {
                expiry::forget(host, target.row(0))?;
                contents.found.due = None;
            }
            if let (Some(hold), Some(_)) = (decided.hold_after(), &decided.after) {
                contents.found.due = hold.first_expiry(contents.found.due);
            }
        }
        if let Some(after) = &decided.after {
            contents.write(rows, target, decided.answer.now, after)?;
        }
        part.set_level();
        ask.put(host, part.contents.own.as_ref(), &part.decided)
    }
}

/// The tokens by which a decision changes shards, to be made in some of their rows; `None`: it takes all of them.
fn amount(ask: &Ask, shards: &Shards, decided: &Decided) -> Option<f64> {
    let Some(after) = &decided.after else { return Some(0.0) };
    let now = decided.answer.now;
    let amount = after.value() - shards.total(now).value();
    // All rows share a debt, which is paid back first; so is use beyond a config that has changed.
    let is_owed = (0..shards.states().len()).any(|shard| shards.available(shard, now) < 0.0)
        || ask.change.tokens() > 0.0 && shards.are_overused(now);
    // The number of tokens left is decided on all rows.
    let is_part = matches!(ask.change, Change::Take(Take { count, at_least: Some(_), .. })
        if decided.answer.taken < count && !Fault::PartOfSomeShards.is_on());
    let needs_all = after.value() < 0.0 || is_owed || is_part;
    Some(amount).filter(|_| !needs_all)
}

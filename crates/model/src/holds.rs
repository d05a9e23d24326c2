//! The rows of holds, in steps. They are found and written as through SQL: a write finds the row under the latest
//! state, and waits for the transaction that has it.

use std::collections::BTreeSet;

use ratelimit_core::Micros;
use ratelimit_limiter::error::{LimiterError, Result};
use ratelimit_limiter::ports::{Deleted, HoldRow, Holds, Key, KeyHolds, KeyRef, Listing, TRIES};

use crate::content::{Content, HoldOf};
use crate::postgres::{Found, Primitive, RowKey, StepReply, Tid, WhichHolds};
use crate::run::Run;
use crate::statement::{KEYS, NAME, key_number};

/// A row of a hold.
struct FoundHold {
    place: RowKey,
    tid: Tid,
    row: HoldRow,
}

/// The contents of a row.
fn content(row: &HoldRow) -> Content {
    Content::Hold(HoldOf { id: row.id.clone(), hold: row.hold })
}

/// The place of a row.
fn place(id: &[u8], key: &[u8]) -> RowKey {
    RowKey::of_hold(key_number(key), id)
}

fn found(place: RowKey, (tid, _, content): Found) -> FoundHold {
    let Content::Hold(HoldOf { id, hold }) = content else { unreachable!("{content:?}") };
    let key = KEYS[usize::from(place.key)].to_vec();
    FoundHold { place, tid, row: HoldRow { id, name: NAME.to_vec(), key, hold, config: None } }
}

impl Run<'_> {
    fn holds(&self, which: WhichHolds) -> Vec<FoundHold> {
        let reply = self.step(Primitive::ReadHolds(which));
        let StepReply::Rows(rows) = reply else { unreachable!("{reply:?}") };
        rows.into_iter().map(|(place, row)| found(place, row)).collect()
    }

    fn hold(&self, place: RowKey) -> Option<FoundHold> {
        let reply = self.step(Primitive::Read(place));
        let StepReply::Row(row) = reply else { unreachable!("{reply:?}") };
        row.map(|row| found(place, row))
    }

    /// Locks the newest version of a row; `None`: it is gone.
    fn lock_hold(&self, hold: &FoundHold) -> Option<FoundHold> {
        let reply = self.step(Primitive::Lock(hold.tid, hold.place));
        let StepReply::Row(row) = reply else { unreachable!("{reply:?}") };
        row.map(|row| found(hold.place, row))
    }

    /// Writes a row; false: it is gone.
    fn update_hold(&self, hold: &FoundHold, row: &HoldRow) -> bool {
        let locked = self.lock_hold(hold);
        // The row is locked: no session sees the new version before the commit.
        locked.is_some_and(|locked| {
            self.was(self.at_once(Primitive::Update(locked.tid, hold.place, content(row))))
        })
    }

    fn delete_holds(&self, which: WhichHolds) -> u64 {
        let holds = self.holds(which);
        holds.iter().filter(|hold| self.delete_hold(hold).is_some()).count() as u64
    }

    fn delete_hold(&self, hold: &FoundHold) -> Option<FoundHold> {
        let locked = self.lock_hold(hold)?;
        self.was(self.at_once(Primitive::Delete(locked.tid))).then_some(locked)
    }
}

impl Holds for Run<'_> {
    fn of_id(&self, id: &[u8]) -> Result<Vec<HoldRow>> {
        Ok(self.holds(WhichHolds::of_id(id)).into_iter().map(|hold| hold.row).collect())
    }

    fn one(&self, id: &[u8], _: &[u8], key: &[u8]) -> Result<Option<HoldRow>> {
        Ok(self.hold(place(id, key)).map(|hold| hold.row))
    }

    fn insert(&self, row: &HoldRow) -> Result<bool> {
        let place = place(&row.id, &row.key);
        for _ in 0..TRIES {
            let reply = self.step(Primitive::Insert(place, content(row)));
            let StepReply::Inserted(tid, is_alone) = reply else { unreachable!("{reply:?}") };
            self.at_once(Primitive::Confirm(tid, is_alone));
            if is_alone {
                return Ok(true);
            }
            if self.at_once(Primitive::FindInserter(place)) == StepReply::Inserter(None) {
                return Ok(false); // a duplicate key
            }
            self.wait_for_inserter(place);
        }
        Err(LimiterError::not_written())
    }

    fn update(&self, row: &HoldRow) -> Result<bool> {
        let hold = self.hold(place(&row.id, &row.key));
        Ok(hold.is_some_and(|hold| self.update_hold(&hold, row)))
    }

    fn lock(&self, id: &[u8], _: &[u8], key: &[u8]) -> Result<()> {
        if let Some(hold) = self.hold(place(id, key)) {
            self.lock_hold(&hold);
        }
        Ok(())
    }

    fn delete(&self, id: &[u8], _: &[u8], key: &[u8]) -> Result<Deleted> {
        let Some(hold) = self.hold(place(id, key)) else { return Ok(Deleted::Gone) };
        let reply = self.step(Primitive::TryLock(hold.tid));
        let StepReply::Row(locked) = reply else { unreachable!("{reply:?}") };
        let Some((tid, _, content)) = locked else {
            self.lock_hold(&hold);
            return Ok(Deleted::Waited);
        };
        self.at_once(Primitive::Delete(tid));
        Ok(Deleted::Row(found(hold.place, (tid, true, content)).row))
    }
}

impl KeyHolds for Run<'_> {
    fn returning(
        &self,
        (_, key): KeyRef,
        from: Micros,
        until: Micros,
        most: i64,
    ) -> Result<Vec<HoldRow>> {
        let holds = self.holds(WhichHolds::OfKey(key_number(key))).into_iter();
        let returns = |row: &HoldRow| {
            let hold = &row.hold;
            !hold.charge && hold.count > hold.spent && (from..=until).contains(&hold.expires_at)
        };
        let mut rows: Vec<HoldRow> = holds.map(|hold| hold.row).filter(returns).collect();
        rows.sort_by(|one, other| {
            (one.hold.expires_at, &one.id).cmp(&(other.hold.expires_at, &other.id))
        });
        rows.truncate(most as usize);
        Ok(rows)
    }

    fn expire(&self, (_, key): KeyRef, rows: &[HoldRow]) -> Result<()> {
        for hold in self.holds(WhichHolds::OfKey(key_number(key))) {
            if let Some(row) = rows.iter().find(|row| row.id == hold.row.id) {
                self.update_hold(&hold, row);
            }
        }
        Ok(())
    }

    fn delete_of_key(&self, (_, key): KeyRef) -> Result<u64> {
        Ok(self.delete_holds(WhichHolds::OfKey(key_number(key))))
    }

    /// `held_at` is of rl_status, which is not modelled.
    fn keys(&self, listing: Listing, _: Option<Micros>) -> Result<BTreeSet<Key>> {
        let which = listing.key.map_or(WhichHolds::All, |key| WhichHolds::OfKey(key_number(key)));
        let holds = self.holds(which).into_iter();
        Ok(holds.map(|hold| (hold.row.name, hold.row.key)).collect())
    }

    fn held(&self, _: KeyRef, _: Micros, _: Micros) -> Result<f64> {
        Ok(0.0)
    }

    fn due_keys(&self, after: KeyRef, now: Micros, most: i64) -> Result<Vec<Key>> {
        let is_due = |hold: &FoundHold| {
            let row = &hold.row;
            let is_after = (&row.name[..], &row.key[..]) > after;
            let hold = &row.hold;
            is_after && !hold.charge && hold.count > hold.spent && hold.expires_at <= now
        };
        let holds = self.holds(WhichHolds::All).into_iter().filter(is_due);
        let mut keys: Vec<_> = holds.map(|hold| (hold.row.name, hold.row.key)).collect();
        keys.sort();
        keys.dedup();
        keys.truncate(most as usize);
        Ok(keys)
    }

    fn prune(&self, before: Micros, most: i64) -> Result<i64> {
        let is_old = |row: &HoldRow| {
            let hold = &row.hold;
            (hold.charge || hold.count <= hold.spent) && hold.expires_at < before
        };
        let mut deleted = 0;
        for hold in self.holds(WhichHolds::All).iter().filter(|hold| is_old(&hold.row)) {
            if deleted == most {
                break;
            }
            let locked = self.skip_locked(hold.tid, hold.place);
            // Another session may have written it before it was locked.
            let locked = locked.map(|row| found(hold.place, row)).filter(|hold| is_old(&hold.row));
            deleted += locked.map_or(0, |locked| {
                i64::from(self.was(self.at_once(Primitive::Delete(locked.tid))))
            });
        }
        Ok(deleted)
    }
}

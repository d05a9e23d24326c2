//! The books of saved limits, their properties, and stops of the server.

use ratelimit_core::Micros;
use ratelimit_core::config::Definition;
use ratelimit_limiter::target::Store;

use crate::content::Total;
use crate::oracle;
use crate::postgres::{Flaw, Primitive, StepReply};
use crate::properties::TOLERANCE;
use crate::run::{self, Given};
use crate::statement::{Command, KEYS};
use crate::turn::TurnEnd;
use crate::world::{Scenario, World, Wrong, tokens};

impl Scenario {
    /// The limit that is saved.
    fn saved_limit(&self) -> &Definition {
        let mut limits = self.setting.limits.iter();
        let limit = limits.find(|limit| Store::from_definition(limit) == Store::Saved);
        limit.unwrap_or(&self.setting.limits[0])
    }

    /// Whether a call may fail because no worker makes room.
    pub fn may_lack_room(&self, why: &str) -> bool {
        why.starts_with("MemoryFull") && !self.setting.has_worker
    }

    /// Keeps the books of a step.
    pub fn note_saved(&self, world: &mut World, step: &Primitive, reply: &StepReply) {
        match (step, reply) {
            (Primitive::CopySaved(_), StepReply::Copies(copies, _)) => {
                for key in copies.iter().map(|(key, _)| usize::from(*key)) {
                    world.copied[key] = world.committed[key].clone();
                }
            }
            (Primitive::EndWrites(true, keys), _) => {
                for key in keys.iter().map(|&key| usize::from(key)) {
                    world.kept[key] = world.copied[key].clone();
                }
            }
            (&Primitive::Replicate(key, left), _) => {
                let state = oracle::total(state_of(left).into_iter());
                world.kept[usize::from(key)] = state.clone();
                if world.database.saved.entry(key, world.database.in_recovery).is_none() {
                    world.committed[usize::from(key)] = state;
                }
            }
            // The standby's counts are dropped.
            (Primitive::Promote, _) => {
                for key in (0..KEYS.len()).filter(|&key| self.saved[key]) {
                    world.committed[key] = world.kept[key].clone();
                }
            }
            _ => {}
        }
    }

    /// Checks that no take is missing or counted twice, in memory or else in the row, that the row has the state that
    /// was saved last, and that memory agrees with the row unless it is unsaved.
    pub fn check_saved(&self, world: &mut World, key: u8) {
        let (limit, now) = (self.saved_limit(), Micros(world.database.now));
        let left = |state: Option<&Total>| oracle::left(limit, key, state, now);
        let row = oracle::left_in_rows(limit, key, &world.database.committed(key), now);
        let in_recovery = world.database.in_recovery;
        let memory = world.database.saved.entry(key, in_recovery);
        let memory = memory.map(|state| left(state.as_ref()));
        let is = memory.unwrap_or(row);
        let should = left(world.committed[usize::from(key)].as_ref());
        let kept = left(world.kept[usize::from(key)].as_ref());
        let is_unsaved = world.database.saved.unsaved().contains(&key);
        let differs = |one: f64, other: f64| (one - other).abs() > TOLERANCE;
        let is_lost = !in_recovery && !is_unsaved && differs(is, row);
        for (is, wrong) in [
            (is > should + TOLERANCE, Wrong::TakeLost),
            (is < should - TOLERANCE, Wrong::TokensLost),
            (is_lost || differs(row, kept), Wrong::NotSaved),
        ] {
            if is {
                world.is_wrong(wrong);
            }
        }
    }

    /// Stops the server and starts it again: when no session is left, the writer saves for the last time.
    pub fn stop(&self, world: &mut World) {
        (0..world.sessions.len()).for_each(|session| self.cut(world, session));
        world.database.saved.is_in_turn = false;
        if !world.database.has(Flaw::StoppedUnsaved) {
            let worker = world.database.open.len() - 1;
            self.save_alone(world, worker);
        }
        self.restart(world, true);
    }

    /// Saves all unsaved keys, with no other session.
    fn save_alone(&self, world: &mut World, session: usize) {
        let mut log = Vec::new();
        loop {
            let database = std::mem::take(&mut world.database);
            let save = Command::Save(TurnEnd::Committed);
            let ran = run::run(&self.setting, database, session, &save, Given::default(), log);
            (world.database, log) = (ran.database, ran.log);
            let Err(step) = ran.state else { return };
            let reply = world.database.execute(session, &step, 0);
            self.note_saved(world, &step, &reply);
            log.push(reply);
        }
    }
}

/// The state of a row with these tokens.
fn state_of(left: u8) -> Option<ratelimit_core::State> {
    match tokens(left.into()) {
        ratelimit_limiter::ports::Stored::State(state) => Some(state),
        _ => None,
    }
}

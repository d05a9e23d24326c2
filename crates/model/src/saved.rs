//! The books of limits that are saved, what must hold of them, and what a stop of the server does.

use ratelimit_core::Micros;
use ratelimit_core::config::Definition;
use ratelimit_limiter::target::Home;

use crate::content::Total;
use crate::oracle;
use crate::postgres::{Flaw, Primitive, SavedContent, StepReply};
use crate::properties::TOLERANCE;
use crate::run;
use crate::statement::{Command, KEYS};
use crate::turn::TurnEnd;
use crate::world::{Scenario, World, Wrong, tokens};

/// How often a server that stops saves: the second time there is nothing left.
const TURNS_AT_STOP: usize = 3;

impl Scenario {
    /// The limit that is saved.
    fn saved_limit(&self) -> &Definition {
        let mut limits = self.setting.limits.iter();
        let limit = limits.find(|limit| Home::of(limit) == Home::Saved);
        limit.unwrap_or(&self.setting.limits[0])
    }

    /// Whether a call may fail since nobody makes room.
    pub fn may_lack_room(&self, why: &str) -> bool {
        why.starts_with("NoRoom") && !self.setting.has_worker
    }

    /// Notes what a step was to what is saved.
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
                if world.database.saved.entry(key).is_none() {
                    world.committed[usize::from(key)] = state;
                }
            }
            (Primitive::Promote, _) => self.note_promotion(world),
            _ => {}
        }
    }

    /// The lesser of what the standby and the primary have counted is left.
    fn note_promotion(&self, world: &mut World) {
        for key in 0..KEYS.len() {
            let (own, row) = (world.committed[key].as_ref(), world.kept[key].as_ref());
            let now = Micros(world.database.now);
            let left = |state| oracle::left(self.saved_limit(), key as u8, state, now);
            if self.saved[key] && left(row) < left(own) {
                world.committed[key] = row.cloned();
            }
        }
    }

    /// Of what was taken nothing is missing, and nothing is there twice, in memory or else in the row; the row has what
    /// was saved last; and what is not unsaved is in it.
    pub fn check_saved(&self, world: &mut World, key: u8) {
        let (limit, now) = (self.saved_limit(), Micros(world.database.now));
        let left = |state: Option<&Total>| oracle::left(limit, key, state, now);
        let row = oracle::left_in_rows(limit, key, &world.database.committed(key), now);
        let (is, of_memory) = match world.database.saved.entry(key) {
            None => (row, None),
            Some(SavedContent { state, of_standby: true }) => match world.database.in_recovery {
                true => (left(state.as_ref()), None),
                false => (left(state.as_ref()).min(row), None),
            },
            Some(SavedContent { state, .. }) => (left(state.as_ref()), Some(left(state.as_ref()))),
        };
        let should = left(world.committed[usize::from(key)].as_ref());
        let kept = left(world.kept[usize::from(key)].as_ref());
        let is_unsaved = world.database.saved.unsaved().contains(&key);
        let differs = |one: f64, other: f64| (one - other).abs() > TOLERANCE;
        let is_lost = of_memory.is_some_and(|memory| !is_unsaved && differs(memory, row));
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

    /// The server is stopped, and started again. Who saves just then goes on; the others end at once, and what is
    /// unsaved then is saved before the memory is gone.
    pub fn stop(&self, world: &mut World) {
        let saver = world.database.saved.saver.map(usize::from);
        let is_saver = |session: &usize| saver == Some(*session);
        let others = (0..world.sessions.len()).filter(|session| !is_saver(session));
        others.for_each(|session| self.cut(world, session));
        let worker = world.database.open.len() - 1;
        if let Some(saver) = saver.filter(|saver| *saver < worker) {
            while world.database.saved.saver.is_some() {
                self.step(world, saver, 0);
            }
            self.cut(world, saver);
        }
        world.database.saved.saver = None;
        let is_left = world.database.has(Flaw::StoppedUnsaved)
            || world.database.has(Flaw::StoppedInTurn) && saver.is_some();
        for _ in 0..TURNS_AT_STOP {
            if !is_left && !world.database.saved.unsaved().is_empty() {
                self.save_alone(world, worker);
            }
        }
        self.restart(world, true);
    }

    /// Saves what is unsaved, where nobody else is there.
    fn save_alone(&self, world: &mut World, session: usize) {
        let mut log = Vec::new();
        loop {
            let database = std::mem::take(&mut world.database);
            let save = Command::Save(TurnEnd::Committed);
            let ran = run::run(&self.setting, database, session, &save, &[], log);
            (world.database, log) = (ran.database, ran.log);
            let Err(step) = ran.state else { return };
            let reply = world.database.execute(session, &step, 0);
            self.note_saved(world, &step, &reply);
            log.push(reply);
        }
    }
}

/// What a row has with so many tokens.
fn state_of(left: u8) -> Option<ratelimit_core::State> {
    match tokens(left.into()) {
        ratelimit_limiter::ports::Stored::State(state) => Some(state),
        _ => None,
    }
}

//! Explores every order of the steps of a scenario's sessions, by stateright.
//!
//! A statement's replies only grow in number, and statements follow each other, so no state occurs twice on a path. If
//! all states are visited and no session is stuck, every call ends, except one that loses its inserts again and again,
//! which is cut off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stateright::{Checker, Model, Property};

use crate::postgres::Flaw;
use crate::world::{Scenario, World, Wrong};

/// A transition.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A session takes its step, with a choice.
    Step(usize, u8),
    /// The clock moves.
    Move,
    /// The server crashes.
    Crash,
    /// The server is stopped, and started again.
    Stop,
    /// The first session dies.
    Die,
    /// PostgreSQL ends the transaction of a session that waits in a deadlock.
    BreakDeadlock(usize),
}

/// A scenario to explore.
struct Exploration {
    scenario: Arc<Scenario>,
    flaw: Option<Flaw>,
}

impl Model for Exploration {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.scenario.begin(self.flaw)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if !world.wrong.is_empty() {
            return;
        }
        for session in 0..world.sessions.len() {
            let choices = self.scenario.choices(world, session);
            actions.extend((0..choices).map(|choice| Action::Step(session, choice)));
        }
        if actions.is_empty() {
            // A session that is cut off by lost inserts is not stuck.
            let waits = |session: &usize| {
                let pending = &world.sessions[*session].pending;
                pending.as_ref().is_some_and(|step| !world.database.is_enabled(*session, step))
            };
            actions.extend((0..world.sessions.len()).filter(waits).map(Action::BreakDeadlock));
            return;
        }
        if usize::from(world.moves) < self.scenario.clock.len() {
            actions.push(Action::Move);
        }
        if self.scenario.crashes && !world.has_crashed {
            actions.push(Action::Crash);
        }
        if self.scenario.dies && world.sessions[0].pending.is_some() {
            actions.push(Action::Die);
        }
        if self.scenario.stops && !world.has_crashed {
            actions.push(Action::Stop);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Step(session, choice) => self.scenario.step(&mut world, session, choice),
            Action::Move => {
                world.database.now += self.scenario.clock[usize::from(world.moves)];
                world.moves += 1;
                let all = self.scenario.clock.len();
                world.database.clock_stands = usize::from(world.moves) == all;
                self.scenario.observe(&mut world);
            }
            Action::Crash => self.scenario.crash(&mut world),
            Action::Die => self.scenario.kill(&mut world, 0),
            Action::Stop => self.scenario.stop(&mut world),
            Action::BreakDeadlock(session) => self.scenario.break_deadlock(&mut world, session),
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("holds", |_: &Self, world: &World| world.wrong.is_empty()),
            Property::sometimes("ends", |_: &Self, world: &World| {
                world.wrong.is_empty() && world.has_ended()
            }),
            Property::sometimes("admits", |_: &Self, world: &World| world.admitted),
            Property::sometimes("denies", |_: &Self, world: &World| world.denied),
        ]
    }
}

/// The results of an exploration.
pub struct Findings {
    /// The number of visited states.
    pub states: usize,
    /// The number of steps in the longest path.
    pub depth: usize,
    /// The duration.
    pub time: Duration,
    /// Whether all states were visited.
    pub is_whole: bool,
    /// Which of "ends", "admits" and "denies" were seen.
    pub seen: Vec<&'static str>,
    /// The faults of the first wrong state, and the path to it.
    pub wrong: Option<(Vec<Wrong>, Vec<String>)>,
}

/// Explores about `most` states of a scenario.
pub fn explore(
    scenario: &Arc<Scenario>,
    flaw: Option<Flaw>,
    most: usize,
    threads: usize,
) -> Findings {
    let began = Instant::now();
    let model = Exploration { scenario: scenario.clone(), flaw };
    let checker = model.checker().threads(threads).target_state_count(most).spawn_bfs().join();
    let mut seen: Vec<&str> = checker.discoveries().keys().copied().collect();
    seen.retain(|name| *name != "holds");
    seen.sort_unstable();
    let wrong = checker.discovery("holds").map(|path| {
        let steps = path.into_vec();
        let wrong = steps.last().map_or(Vec::new(), |(world, _)| world.wrong.clone());
        (wrong, steps.iter().map(|(world, action)| describe(world, action.as_ref())).collect())
    });
    Findings {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        time: began.elapsed(),
        is_whole: checker.state_count() < most,
        seen,
        wrong,
    }
}

/// A line of a path.
fn describe(world: &World, action: Option<&Action>) -> String {
    match action {
        Some(Action::Step(session, choice)) => {
            format!("session {session}, choice {choice}: {:?}", world.sessions[*session].pending)
        }
        Some(action) => format!("{action:?}"),
        None => format!(
            "the end: committed {:?}, versions {:?}, effects {:?}",
            world.committed,
            world.database.versions,
            world.sessions.iter().map(|session| &session.effects).collect::<Vec<_>>()
        ),
    }
}

//! One limit in memory: decided and changed under the lock of its partition, at once for all sessions.

use ratelimit_core::{Kind, Limit, Micros, State};

use crate::limiter::request::{Answer, Change, Take, Target};
use crate::limiter::slots::Slots;
use crate::pg::catalog::Catalog;
use crate::pg::clock;
use crate::pg::error::Result;
use crate::pg::server_log;
use crate::store::memory::{Id, Kept, LockedState, Memory, Scope};

/// Makes a call on what is one state.
///
/// # Errors
/// [`Error::NotForKind`](crate::pg::error::Error::NotForKind) (0A000): a credit to a kind that takes none.
pub fn change(memory: &Memory, id: Id, target: &Target, change: Change) -> Result<Answer> {
    let phase = phase(target);
    let answer = memory.states.locked(id, |locked| {
        let now = clock::now();
        let before = state(target, locked.state().and_then(Kept::state), now, phase);
        let decision = change.apply(&target.limit, &before, now)?;
        if let Some(after) = &decision.state {
            set(locked, target, after, now, phase);
        }
        Ok(target.answer(&decision, decision.level, now))
    });
    tell_losses(memory);
    answer
}

/// Takes slots of a concurrency limit.
pub fn take_slots(slots: &Slots, memory: &Memory, target: &Target, take: Take) -> Answer {
    let answer = slots.change(|before, now| {
        let decision = take.decide(&target.limit, before, now);
        (target.answer(&decision, decision.level, now), decision.state)
    });
    tell_losses(memory);
    answer
}

/// Tells in the server's log, once a minute at most, that keys which were in use made room for others.
pub fn tell_losses(memory: &Memory) {
    if let Some(lost) = memory.states.losses_to_tell() {
        server_log::line(&format!(
            "rate limits in memory: keys in use that made room for others, and are full again: {lost}; \
             ratelimit.memory_keys should be greater"
        ));
    }
}

/// Identifies the state of a limit.
pub fn id(memory: &Memory, catalog: &Catalog, target: &Target) -> Id {
    in_its_room(memory.id(Scope::new(catalog.extension), target.name, target.key), target)
}

/// The same of what is known but for the room: there is one for limits that are defined, and one for those whose
/// config is in the call.
pub fn in_its_room(id: Id, target: &Target) -> Id {
    if target.is_defined { id } else { id.inline() }
}

/// Reads what is stored of a limit; `None`: nothing, so that it is full.
pub fn find(memory: &'static Memory, id: Id, target: &Target) -> Option<State> {
    match &target.limit.limit {
        Limit::Concurrency(limit) => Slots::of(limit.slots, memory, id).state(),
        limit => {
            let found = memory.states.read(id).and_then(Kept::state);
            found.filter(|state| limit.accepts(state.shape()))
        }
    }
}

/// Reads the state of a limit, with the instant after the read.
///
/// # Errors
/// As [`Memory::get`].
pub fn peek(catalog: &Catalog, target: &Target) -> Result<(Micros, State)> {
    let memory = Memory::get()?;
    let found = find(memory, id(memory, catalog, target), target);
    let now = clock::now();
    Ok((now, state(target, found, now, phase(target))))
}

/// Where the windows of a key begin, for a kind that has windows.
pub fn phase(target: &Target) -> Micros {
    if target.limit.kind() == Kind::FixedWindow { target.phase() } else { Micros(0) }
}

/// Interprets what is stored of a limit, whose definition may have changed since.
pub fn state(target: &Target, found: Option<State>, now: Micros, phase: Micros) -> State {
    found
        .filter(|state| target.limit.accepts(state.shape()))
        .unwrap_or_else(|| target.limit.initial_state(now, phase))
}

/// Stores a state.
pub fn set(locked: &mut LockedState, target: &Target, after: &State, now: Micros, phase: Micros) {
    let limit = &target.limit;
    if let Some(kept) = Kept::of(after) {
        locked.set(kept, limit.idle_at(after, now, phase), limit.is_half_used(after), now);
    }
}

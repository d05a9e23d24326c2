//! A turn of the writer, as in the extension's `writer.rs`: copies the unsaved states, has the limiter write them in a
//! transaction of its own, and marks them as written after the commit.

use ratelimit_core::State;
use ratelimit_limiter::error::Result;
use ratelimit_limiter::stores;

use crate::content::Total;
use crate::postgres::{Flaw, Primitive, StepReply};
use crate::run::Run;
use crate::statement::{KEYS, NAME};

/// How the transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnEnd {
    /// It commits.
    Committed,
    /// Its transaction fails, and is rolled back.
    RolledBack,
    /// The worker is gone before the commit.
    Killed,
}

/// Saves the unsaved keys; returns whether something was written, or nothing was unsaved.
pub fn save(run: &Run, end: TurnEnd) -> Result<bool> {
    run.step(Primitive::BeginTurn);
    let copies = copies(run);
    let mut written = Vec::new();
    for (key, state) in &copies {
        let state: Option<&State> = state.as_ref().map(|Total(state)| state);
        written.push(stores::save(run, run, (NAME, KEYS[usize::from(*key)]), state, false)?);
    }
    let all = || copies.iter().zip(written.iter().copied());
    let finish = |commits: bool| {
        for ((key, state), is_written) in all() {
            run.step(Primitive::FinishSaved(*key, state.clone(), is_written && commits));
        }
    };
    if run.has(Flaw::FinishedBeforeCommit) {
        finish(true);
    }
    let commits = end == TurnEnd::Committed;
    let keys = all().filter(|(_, is_written)| *is_written).map(|((key, _), _)| *key).collect();
    run.step(Primitive::EndWrites(commits, keys));
    if end != TurnEnd::Killed {
        finish(commits);
    }
    run.step(Primitive::EndTurn);
    Ok(copies.is_empty() || written.contains(&true))
}

/// Copies the unsaved states, a place at a time.
fn copies(run: &Run) -> Vec<(u8, Option<Total>)> {
    let (mut copies, mut from) = (Vec::new(), Some(0));
    while let Some(place) = from {
        let reply = run.step(Primitive::CopySaved(place));
        let StepReply::Copies(more, next) = reply else { unreachable!("{reply:?}") };
        copies.extend(more);
        from = next;
    }
    copies.sort_by_key(|(key, _)| *key);
    copies
}
